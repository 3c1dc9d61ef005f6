//! The interfaces show the same state, in the form that the clients decode.

use serde_json::{Value, json};
use slurm::answer::{Ping, ServedConf, decode};
use slurm::{Job, Node, Partition};

use super::{Lab, long};
use crate::slurm::Code;
use crate::slurm::settings::EPOCH;

impl Lab {
    fn rest(&mut self, method: &str, path: &str, body: &Value) -> (u16, Vec<u8>) {
        let answer = self.slurm.rest(self.ctl, "rest", method, path, body);
        (answer.status, answer.body.to_string().into_bytes())
    }

    fn program(&mut self, line: &str) -> Result<Vec<u8>, String> {
        let argv: Vec<&str> = line.split('|').collect();
        let output = self.slurm.run(self.ctl, "agent", &argv);
        if output.code == 0 {
            Ok(output.stdout.into_bytes())
        } else {
            Err(output.stderr)
        }
    }
}

#[test]
fn rest_and_programs_show_the_same_nodes_jobs_and_partitions() {
    let mut lab = Lab::new();
    let id = lab.submit(long(&["n1", "n2"]));
    lab.wait(2);
    let nodes: Vec<Node> = decode(&lab.rest("GET", "nodes/", &Value::Null).1).unwrap().value;
    assert_eq!(nodes.len(), 3);
    assert_eq!(nodes[0].state.to_string(), "MIXED+DYNAMIC_NORM");
    assert_eq!((nodes[0].address.as_str(), nodes[0].alloc_cpus), ("10.0.0.1", 1));
    let shown: Vec<Node> = decode(&lab.program("scontrol|--all|--json|show|nodes").unwrap())
        .unwrap()
        .value;
    assert_eq!(shown, nodes);
    let jobs: Vec<Job> = decode(&lab.rest("GET", "jobs/", &Value::Null).1).unwrap().value;
    assert_eq!((jobs[0].id, jobs[0].nodes.as_str()), (u64::from(id), "n[1-2]"));
    assert!(jobs[0].start_time.finite().is_some_and(|start| start > EPOCH));
    let shown: Vec<Job> = decode(&lab.program("squeue|--all|--states=pending,running|--json").unwrap())
        .unwrap()
        .value;
    assert_eq!(shown, jobs);
    let partitions: Vec<Partition> = decode(&lab.rest("GET", "partitions/", &Value::Null).1).unwrap().value;
    assert_eq!(
        (partitions[0].nodes.as_str(), partitions[0].node_sets.as_str()),
        ("n[1-3]", "all")
    );
    assert_eq!(
        (partitions[0].is_default(), partitions[1].is_default()),
        (Some(true), Some(false))
    );
    assert_eq!(partitions[1].state.to_string(), "DOWN");
}

#[test]
fn orders_have_slurms_texts_and_numbers() {
    let mut lab = Lab::new();
    lab.submit(long(&["n1"]));
    lab.wait(2);
    let (status, body) = lab.rest("DELETE", "node/n1", &Value::Null);
    assert_eq!(status, 422);
    assert!(String::from_utf8(body).unwrap().contains("2016"));
    let failed = lab.program("scontrol|delete|NodeName=n1").unwrap_err();
    assert!(failed.contains(Code::NodesBusy.text()), "{failed}");
    assert_eq!(
        lab.program("scontrol|update|PartitionName=none|State=UP").unwrap_err(),
        "slurm_update error: Invalid partition name specified\n"
    );
    lab.program("scontrol|update|NodeName=n2|State=DRAIN|Reason=scale in: 3")
        .unwrap();
    assert_eq!(
        (lab.shown("n2").as_str(), lab.reason("n2")),
        ("IDLE+DRAIN", "scale in: 3")
    );
    let drain = json!({ "state": ["DRAIN"], "reason": "RMA" });
    assert_eq!(lab.rest("POST", "node/n3", &drain).0, 200);
    assert_eq!(lab.reason("n3"), "RMA");
    let senders: Vec<&str> = lab
        .slurm
        .ledger
        .orders
        .iter()
        .map(|order| order.sender.as_str())
        .collect();
    assert_eq!(senders[senders.len() - 2..], ["agent", "rest"]);
}

#[test]
fn partitions_are_written_by_rest_and_by_scontrol() {
    let mut lab = Lab::new();
    let body = json!({ "partitions": [{
        "name": "new", "nodes": { "configured": "all" }, "partition": { "state": ["INACTIVE"] },
        "maximums": { "time": { "set": true, "infinite": false, "number": 90 } }, "flags": ["HIDDEN"],
    }] });
    assert_eq!(lab.rest("POST", "partitions/", &body).0, 200);
    lab.program("scontrol|update|PartitionName=new|State=UP|PriorityTier=7|maxtime=1-00:00:00")
        .unwrap();
    let shown: Vec<Partition> = decode(&lab.program("scontrol|--all|--json|show|partitions").unwrap())
        .unwrap()
        .value;
    let new = shown.iter().find(|partition| partition.name == "new").unwrap();
    assert_eq!((new.state.to_string().as_str(), new.priority_tier), ("UP", 7));
    assert_eq!(new.max_time.finite(), Some(24 * 60));
    assert!(
        new.flags
            .as_ref()
            .is_some_and(|flags| flags.contains(&"HIDDEN".to_owned()))
    );
    lab.program("scontrol|delete|PartitionName=new").unwrap();
}

#[test]
fn a_missing_slurmctld_is_an_error_of_the_connection() {
    let mut lab = Lab::new();
    let conf: ServedConf = decode(&lab.rest("GET", "conf", &Value::Null).1).unwrap().value;
    assert!(conf.now > conf.boot_time);
    lab.slurm.kill_controller(lab.ctl);
    let (status, body) = lab.rest("GET", "nodes/", &Value::Null);
    assert!(status == 500 && decode::<Vec<Node>>(&body).is_err());
    let pings: Vec<Ping> = decode(&lab.rest("GET", "ping/", &Value::Null).1).unwrap().value;
    assert!(!pings[0].responding);
    assert!(lab.program("squeue|--json").unwrap_err().contains("Unable to contact"));
}

#[test]
fn sacct_shows_each_start() {
    let mut lab = Lab::new();
    let id = lab.submit(long(&["n1"]));
    lab.wait(2);
    let records = String::from_utf8(
        lab.program(&format!("env|SLURM_TIME_FORMAT=%s|sacct|--jobs={id}"))
            .unwrap(),
    )
    .unwrap();
    let fields: Vec<&str> = records.trim().split('|').collect();
    assert_eq!(
        (fields[0], fields[1], fields[2], fields[5]),
        ("1", "RUNNING", "0:0", "Unknown")
    );
    lab.slurm.slurmdbd.running = false;
    assert!(lab.program("sacct|--jobs=1").is_err());
}
