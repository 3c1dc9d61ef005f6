//! One test for each rule of Slurm that the model keeps.

mod interfaces;
mod kills;
mod protocol;
mod replayed;

use std::time::Duration;

use super::ledger::End;
use super::state::JobPhase;
use super::*;

const CONF: &str = "\
SlurmdTimeout=30
ReturnToService=2
AuthInfo=use_client_ids,cred_expire=120
NodeSet=all Feature=all
PartitionName=main Nodes=all Default=YES
PartitionName=other Nodes=all State=DOWN
";

struct Lab {
    slurm: Slurm,
    volume: VolumeId,
    ctl: ControllerId,
    hosts: Vec<HostId>,
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

impl Lab {
    /// Three idle nodes n1 to n3 of four CPUs, saved.
    fn new() -> Self {
        Self::with_conf(CONF)
    }

    fn with_conf(conf: &str) -> Self {
        let mut slurm = Slurm::default();
        let volume = slurm.add_volume();
        let ctl = slurm.start_controller(volume, Conf::parse(conf));
        slurm.set_service(Some(ctl));
        let mut lab = Self {
            slurm,
            volume,
            ctl,
            hosts: Vec::new(),
        };
        lab.wait(1);
        for number in 1..=3 {
            let host = lab.slurm.add_host(HostSpec {
                name: format!("n{number}"),
                address: format!("10.0.0.{number}"),
                cpus: 4,
                features: vec!["all".to_owned()],
                boot_time: Duration::ZERO,
            });
            lab.slurm.start_slurmd(host);
            lab.hosts.push(host);
        }
        lab.wait(1);
        // A registration alone is not saved for five minutes.
        let update = NodeUpdate {
            comment: Some("saved".to_owned()),
            ..NodeUpdate::default()
        };
        let node = "n1".to_owned();
        lab.order(Request::UpdateNode { node, update }).unwrap();
        lab.wait(20);
        lab
    }

    fn wait(&mut self, time: u64) {
        self.slurm.advance(self.slurm.now() + seconds(time));
    }

    fn order(&mut self, request: Request) -> Result<Reply, Code> {
        match self.slurm.request(self.ctl, "test", request) {
            Ok(reply) => Ok(reply),
            Err(Failure::Refused(code)) => Err(code),
            Err(failure) => panic!("{failure:?}"),
        }
    }

    fn submit(&mut self, spec: Submission) -> u32 {
        match self.order(Request::Submit(spec)) {
            Ok(Reply::Submitted(id)) => id,
            other => panic!("{other:?}"),
        }
    }

    fn node(&mut self, name: &str, state: NodeOrder, reason: &str) -> Result<Reply, Code> {
        let reason = (!reason.is_empty()).then(|| reason.to_owned());
        let update = NodeUpdate {
            state: Some(state),
            reason,
            ..NodeUpdate::default()
        };
        self.order(Request::UpdateNode {
            node: name.to_owned(),
            update,
        })
    }

    fn state(&self) -> &State {
        self.slurm.state(self.ctl).unwrap()
    }

    /// The state of a node, without the flag that all have.
    fn shown(&self, name: &str) -> String {
        let state = self.state();
        let Some(node) = state.nodes.get(name) else {
            return String::new();
        };
        let names = state.node_state_names(node, self.slurm.now());
        names
            .into_iter()
            .filter(|name| *name != "DYNAMIC_NORM")
            .collect::<Vec<_>>()
            .join("+")
    }

    fn reason(&self, name: &str) -> &str {
        &self.state().nodes[name].reason
    }

    fn job(&self, id: u32) -> String {
        let job = self.state().jobs.get(&id);
        job.map_or(String::new(), |job| job.state_names().join("+"))
    }

    fn kill_and_start(&mut self) {
        self.slurm.kill_controller(self.ctl);
        self.ctl = self.slurm.start_controller(self.volume, Conf::parse(CONF));
        self.slurm.set_service(Some(self.ctl));
        self.wait(1);
    }

    fn running(&self) -> usize {
        self.slurm.hosts().map(|(_, host)| host.processes.len()).sum()
    }
}

fn long(nodes: &[&str]) -> Submission {
    Submission::new("main", seconds(3600)).on(nodes.iter().copied())
}

#[test]
fn a_job_runs_once_and_its_node_is_idle_afterwards() {
    let mut lab = Lab::new();
    let id = lab.submit(Submission::new("main", seconds(10)).on(["n1"]));
    lab.wait(2);
    assert_eq!((lab.job(id).as_str(), lab.shown("n1").as_str()), ("RUNNING", "MIXED"));
    lab.wait(10);
    assert_eq!((lab.job(id).as_str(), lab.shown("n1").as_str()), ("COMPLETED", "IDLE"));
    let runs = &lab.slurm.ledger.jobs[0].runs;
    assert_eq!(runs.len(), 1);
    assert_eq!(runs[0].ended.unwrap().1, End::Exited(0));
    assert_eq!(lab.slurm.slurmdbd.records[0].phase, JobPhase::Completed);
}

#[test]
fn down_requeues_the_job_in_the_same_call_and_the_node_returns() {
    let mut lab = Lab::new();
    let id = lab.submit(long(&["n1"]));
    let keeps = lab.submit(Submission {
        requeue: false,
        ..long(&["n1"])
    });
    lab.wait(2);
    lab.node("n1", NodeOrder::Down, "broken").unwrap();
    assert_eq!(
        (lab.job(id).as_str(), lab.job(keeps).as_str()),
        ("PENDING", "NODE_FAIL")
    );
    assert_eq!(lab.shown("n1"), "DOWN");
    lab.wait(30);
    assert_eq!(
        (lab.shown("n1").as_str(), lab.reason("n1"), lab.running()),
        ("IDLE", "", 0)
    );
    lab.wait(100);
    assert_eq!(lab.job(id), "RUNNING", "after cred_expire");
}

#[test]
fn a_silent_node_is_not_responding_and_then_down() {
    let mut lab = Lab::new();
    let id = lab.submit(long(&["n1"]));
    lab.node("n2", NodeOrder::Drain, "RMA").unwrap();
    lab.wait(2);
    lab.slurm.remove_host(lab.hosts[0]);
    lab.slurm.remove_host(lab.hosts[1]);
    lab.wait(22);
    assert_eq!(lab.shown("n1"), "MIXED+NOT_RESPONDING");
    lab.wait(30);
    assert_eq!(
        (lab.shown("n1").as_str(), lab.reason("n1")),
        ("DOWN+NOT_RESPONDING", "Not responding")
    );
    assert_eq!(lab.reason("n2"), "RMA : Not responding");
    assert_eq!(lab.job(id), "PENDING");
}

#[test]
fn a_node_whose_network_returns_stays_down_until_slurmd_registers() {
    let mut lab = Lab::new();
    lab.submit(long(&["n1"]));
    lab.wait(2);
    lab.slurm.set_cut(lab.ctl, lab.hosts[0], true);
    lab.wait(60);
    lab.slurm.set_cut(lab.ctl, lab.hosts[0], false);
    lab.wait(60);
    assert_eq!((lab.shown("n1").as_str(), lab.running()), ("DOWN+NOT_RESPONDING", 1));
    lab.slurm.reload_slurmd(lab.hosts[0]);
    lab.wait(1);
    assert_eq!((lab.shown("n1").as_str(), lab.running()), ("IDLE", 0));
}

#[test]
fn resume_waits_for_a_registration_and_clears_the_reason() {
    let mut lab = Lab::new();
    lab.node("n1", NodeOrder::Drain, "RMA").unwrap();
    assert_eq!((lab.shown("n1").as_str(), lab.reason("n1")), ("IDLE+DRAIN", "RMA"));
    lab.node("n1", NodeOrder::Undrain, "").unwrap();
    assert_eq!(
        (lab.shown("n1").as_str(), lab.reason("n1")),
        ("IDLE+NOT_RESPONDING", "")
    );
    lab.wait(4);
    assert_eq!(lab.shown("n1"), "IDLE");
    assert_eq!(
        lab.node("n1", NodeOrder::Resume, ""),
        Err(Code::InvalidNodeStateTransition)
    );
}

#[test]
fn a_drained_node_keeps_its_job_and_is_not_deleted() {
    let mut lab = Lab::new();
    let id = lab.submit(long(&["n1"]));
    lab.wait(2);
    lab.node("n1", NodeOrder::Drain, "scale in").unwrap();
    assert_eq!(lab.shown("n1"), "MIXED+DRAIN");
    assert_eq!(lab.order(Request::DeleteNode("n1".to_owned())), Err(Code::NodesBusy));
    lab.order(Request::Cancel(id)).unwrap();
    lab.wait(1);
    lab.order(Request::DeleteNode("n1".to_owned())).unwrap();
    assert_eq!(
        lab.order(Request::DeleteNode("n1".to_owned())),
        Err(Code::InvalidNodeName)
    );
    lab.wait(60);
    assert_eq!(lab.shown("n1"), "", "its slurmd does not register again by itself");
}

#[test]
fn a_suspended_job_does_not_protect_its_node() {
    let mut lab = Lab::new();
    let id = lab.submit(long(&["n1"]));
    lab.wait(2);
    lab.order(Request::Suspend(id)).unwrap();
    assert_eq!(lab.shown("n1"), "MIXED");
    lab.order(Request::DeleteNode("n1".to_owned())).unwrap();
    assert_eq!(lab.job(id), "SUSPENDED");
    lab.slurm.reconfigure(lab.ctl, Conf::parse(CONF)).unwrap();
    assert_eq!(lab.job(id), "NODE_FAIL");
}

#[test]
fn a_partition_that_is_only_live_ends_its_jobs_at_the_restart() {
    let mut lab = Lab::new();
    let update = PartitionUpdate {
        nodes: Some("n1".to_owned()),
        ..PartitionUpdate::default()
    };
    lab.order(Request::CreatePartition {
        name: "live".to_owned(),
        update,
    })
    .unwrap();
    let id = lab.submit(Submission::new("live", seconds(3600)));
    lab.wait(10);
    assert_eq!(
        lab.order(Request::DeletePartition("live".to_owned())),
        Err(Code::PartitionInUse)
    );
    lab.kill_and_start();
    assert_eq!(lab.job(id).split('+').next(), Some("NODE_FAIL"));
}

#[test]
fn jobs_wait_in_a_partition_that_is_down_and_are_refused_by_one_that_drains() {
    let mut lab = Lab::new();
    let id = lab.submit(Submission::new("other", seconds(60)));
    lab.wait(5);
    assert_eq!(lab.job(id), "PENDING");
    let state = |state: &str| Request::UpdatePartition {
        name: "other".to_owned(),
        update: PartitionUpdate {
            state: Some(state.to_owned()),
            ..PartitionUpdate::default()
        },
    };
    lab.order(state("DRAIN")).unwrap();
    lab.wait(2);
    assert_eq!(lab.job(id), "RUNNING");
    assert_eq!(
        lab.order(Request::Submit(Submission::new("other", seconds(1)))),
        Err(Code::PartitionNotAvailable)
    );
    assert_eq!(
        lab.order(Request::Submit(Submission::new("none", seconds(1)))),
        Err(Code::InvalidPartitionName)
    );
}

#[test]
fn relative_nodes_drop_the_node_sets() {
    let mut lab = Lab::new();
    let update = PartitionUpdate {
        nodes: Some("-n1".to_owned()),
        ..PartitionUpdate::default()
    };
    lab.order(Request::UpdatePartition {
        name: "main".to_owned(),
        update,
    })
    .unwrap();
    let conf = Conf::parse(CONF);
    let partition = &lab.slurm.state(lab.ctl).unwrap().partitions["main"];
    assert_eq!(
        (partition.nodes.as_str(), partition.node_sets(&conf).len()),
        ("n2,n3", 0)
    );
}

#[test]
fn a_frozen_slurmctld_carries_out_old_requests_when_it_thaws() {
    let mut lab = Lab::new();
    lab.slurm.freeze_controller(lab.ctl);
    let update = NodeUpdate {
        state: Some(NodeOrder::Drain),
        ..NodeUpdate::default()
    };
    let request = Request::UpdateNode {
        node: "n1".to_owned(),
        update,
    };
    assert_eq!(lab.slurm.request(lab.ctl, "late", request), Err(Failure::NoAnswer));
    lab.wait(30);
    assert_eq!(lab.slurm.state(lab.ctl), Err(Failure::NoAnswer));
    lab.slurm.thaw_controller(lab.ctl);
    lab.wait(1);
    assert!(lab.shown("n1").contains("DRAIN"));
    assert_eq!(lab.slurm.ledger.orders.last().unwrap().sender, "late");
}

#[test]
fn two_slurmctlds_on_one_volume_show_in_the_ledger() {
    let mut lab = Lab::new();
    let second = lab.slurm.start_controller(lab.volume, Conf::parse(CONF));
    lab.wait(10);
    let request = Request::Submit(long(&["n2"]));
    lab.slurm.request(second, "test", request).unwrap();
    lab.submit(long(&["n1"]));
    lab.wait(10);
    let writers: std::collections::BTreeSet<_> = lab.slurm.ledger.writes.iter().map(|write| write.writer).collect();
    assert_eq!(writers, [lab.ctl, second].into());
}

#[test]
fn a_pod_that_is_replaced_within_the_timeout_leaves_a_young_job_as_a_ghost() {
    let mut lab = Lab::new();
    let id = lab.submit(long(&["n1"]));
    lab.wait(3);
    let spec = HostSpec {
        address: "10.0.0.77".to_owned(),
        ..lab.slurm.host(lab.hosts[0]).spec.clone()
    };
    lab.slurm.remove_host(lab.hosts[0]);
    let host = lab.slurm.add_host(spec);
    lab.slurm.start_slurmd(host);
    lab.wait(5);
    assert_eq!((lab.job(id).as_str(), lab.running()), ("RUNNING", 0));
    lab.wait(60);
    lab.slurm.reload_slurmd(host);
    lab.wait(1);
    assert_eq!(lab.job(id), "PENDING");
    assert_eq!(lab.slurm.ledger.jobs[0].runs[0].ended.unwrap().1, End::HostLost);
}

#[test]
fn a_job_of_an_unreachable_node_is_completing_until_the_node_is_down() {
    let mut lab = Lab::new();
    let id = lab.submit(long(&["n1", "n2"]));
    lab.wait(2);
    lab.slurm.kill_slurmd(lab.hosts[0]);
    lab.order(Request::Cancel(id)).unwrap();
    lab.wait(2);
    assert_eq!(lab.job(id), "CANCELLED+COMPLETING");
    assert!(lab.shown("n1").contains("COMPLETING") && lab.shown("n2") == "IDLE");
    lab.wait(60);
    assert_eq!(
        (lab.job(id).as_str(), lab.shown("n1").as_str()),
        ("CANCELLED", "DOWN+NOT_RESPONDING")
    );
}

#[test]
fn a_later_job_does_not_delay_an_earlier_one() {
    let mut lab = Lab::new();
    let exclusive = |nodes: &[&str]| Submission {
        exclusive: true,
        ..long(nodes)
    };
    let first = lab.submit(Submission {
        time_limit: Some(120),
        ..exclusive(&["n1"])
    });
    lab.wait(2);
    let waits = lab.submit(exclusive(&["n1", "n2"]));
    let late = lab.submit(exclusive(&["n2"]));
    let free = lab.submit(exclusive(&["n3"]));
    lab.wait(3);
    let states = [first, waits, late, free].map(|id| lab.job(id));
    assert_eq!(states, ["RUNNING", "PENDING", "PENDING", "RUNNING"]);
}

#[test]
fn features_move_a_node_only_when_the_partition_is_written_again() {
    let mut lab = Lab::new();
    let update = NodeUpdate {
        features: Some(vec!["none".to_owned()]),
        active_features: Some(vec!["none".to_owned()]),
        ..NodeUpdate::default()
    };
    lab.order(Request::UpdateNode {
        node: "n1".to_owned(),
        update,
    })
    .unwrap();
    let has = |lab: &Lab| {
        lab.slurm.state(lab.ctl).unwrap().partitions["main"]
            .members
            .contains("n1")
    };
    assert!(has(&lab));
    let update = PartitionUpdate {
        nodes: Some("all".to_owned()),
        ..PartitionUpdate::default()
    };
    lab.order(Request::UpdatePartition {
        name: "main".to_owned(),
        update,
    })
    .unwrap();
    assert!(!has(&lab));
    let update = NodeUpdate {
        features: Some(vec!["x".to_owned()]),
        ..NodeUpdate::default()
    };
    let refused = lab.order(Request::UpdateNode {
        node: "n1".to_owned(),
        update,
    });
    assert_eq!(refused, Err(Code::ActiveFeaturesNotSubset));
}

#[test]
fn resume_after_lifts_a_drain() {
    let mut lab = Lab::new();
    let update = NodeUpdate {
        state: Some(NodeOrder::Drain),
        reason: Some("x".to_owned()),
        resume_after: Some(5),
        ..NodeUpdate::default()
    };
    lab.order(Request::UpdateNode {
        node: "n1".to_owned(),
        update,
    })
    .unwrap();
    assert_eq!(lab.shown("n1"), "IDLE+DRAIN");
    lab.wait(30);
    assert_eq!(lab.shown("n1"), "IDLE");
}

#[test]
fn a_submission_for_a_node_outside_the_partition_is_refused_and_uses_a_number() {
    let mut lab = Lab::new();
    let update = PartitionUpdate {
        nodes: Some("n1,n2".to_owned()),
        ..PartitionUpdate::default()
    };
    let name = "main".to_owned();
    lab.order(Request::UpdatePartition { name, update }).unwrap();
    assert_eq!(
        lab.order(Request::Submit(long(&["n3"]))),
        Err(Code::NodeConfigUnavailable)
    );
    let held = Submission {
        hold: true,
        ..long(&["n3"])
    };
    assert_eq!(lab.submit(held), 2);
}

#[test]
fn undrain_lifts_fail_of_a_node_without_jobs() {
    let mut lab = Lab::new();
    lab.submit(long(&["n2"]));
    lab.wait(2);
    for name in ["n1", "n2"] {
        lab.node(name, NodeOrder::Fail, "x").unwrap();
        lab.node(name, NodeOrder::Undrain, "").unwrap();
    }
    lab.wait(4);
    assert_eq!(
        (lab.shown("n1").as_str(), lab.shown("n2").as_str()),
        ("IDLE", "MIXED+FAIL")
    );
}

#[test]
fn a_launch_that_did_not_arrive_is_not_repeated_when_the_job_is_over() {
    let mut lab = Lab::new();
    lab.slurm.set_cut(lab.ctl, lab.hosts[0], true);
    let id = lab.submit(long(&["n1"]));
    lab.wait(2);
    assert_eq!(lab.job(id), "RUNNING");
    lab.order(Request::Cancel(id)).unwrap();
    lab.slurm.set_cut(lab.ctl, lab.hosts[0], false);
    lab.wait(60);
    assert_eq!((lab.slurm.ledger.jobs[0].runs.len(), lab.running()), (0, 0));
}
