//! A fake scontrol beside the fake slurmctld, which accepts its requests in every dialect.
//!
//! A script in the pod's PATH starts this process again with its arguments in the environment; the output is passed in files, since
//! the test harness prints to standard output, too.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use slurm::conf::{Document, RecordKind, Settings};
use slurm::rpc::{Client, Error, LivePartition, Options, PartitionFlag, PartitionUpdate, plan_partition_update};
use slurm::token::{Issuer, SigningKey};

use crate::fake_daemon::SCONTROL;

const WORDS: &str = "FAKE_SCONTROL";
const OUTPUT: &str = "FAKE_SCONTROL_OUTPUT";

/// `daemon` is where it listens, `key` the cluster's.
pub(crate) fn script(calls: &Path, daemon: &str, key: &[u8]) -> String {
    let program = std::env::current_exe().unwrap();
    format!(
        r#"echo "$*" >> {calls}
out=$(mktemp -d)
{WORDS}=$(printf '%s\n' "$@") {OUTPUT}=$out FAKE_PORT={daemon} FAKE_KEY={key} {program} --exact the_scontrol > /dev/null 2>&1
cat "$out/said" 2>/dev/null
cat "$out/complaint" >&2 2>/dev/null
[ ! -e "$out/complaint" ]; code=$?
rm -r "$out"
exit $code"#,
        calls = calls.display(),
        key = String::from_utf8_lossy(key),
        program = program.display(),
    )
}

pub(crate) async fn main() {
    let Ok(words) = std::env::var(WORDS) else { return };
    let out = std::env::var(OUTPUT).unwrap();
    let key = SigningKey::new(std::env::var("FAKE_KEY").unwrap().as_bytes()).unwrap();
    let issuer = Issuer::new(key, SCONTROL, Duration::from_secs(30));
    let client = Client::new(
        host::Host::real(),
        std::env::var("FAKE_PORT").unwrap(),
        issuer,
        Options::default(),
    );
    let words: Vec<&str> = words.lines().collect();
    let (complains, done) = match words.as_slice() {
        ["create", line @ ..] => (
            "Error creating the partition: ",
            client.create_partition(&update(line)).await,
        ),
        ["update", line @ ..] => ("slurm_update error: ", client.update_partition(&update(line)).await),
        ["delete", name] => {
            let name = name.strip_prefix("PartitionName=").unwrap();
            ("delete_partition : ", client.delete_partition(name).await)
        }
        _ => {
            let partitions: Vec<Value> = client.partitions().await.unwrap().iter().map(show).collect();
            let said = json!({ "partitions": partitions, "errors": [] }).to_string();
            fs::write(Path::new(&out).join("said"), said).unwrap();
            return;
        }
    };
    if let Err(error) = done {
        let text = match &error {
            Error::Refused { code, .. } if code.0 == 2000 => "Invalid partition name specified".to_owned(),
            Error::Refused { code, .. } if code.0 == 2018 => "Invalid node name specified".to_owned(),
            Error::Refused { code, .. } if code.0 == 2075 => "Partition is in use".to_owned(),
            error => error.to_string(),
        };
        fs::write(Path::new(&out).join("complaint"), format!("{complains}{text}\n")).unwrap();
    }
}

/// scontrol's arguments have the syntax of slurm.conf.
fn update(words: &[&str]) -> PartitionUpdate {
    let document = Document::parse(&words.join(" "));
    let (name, settings) = document.effective(RecordKind::Partition).remove(0);
    plan_partition_update(name, &Settings::new(), &settings).unwrap()
}

fn show(partition: &LivePartition) -> Value {
    let number = |value: u32| json!({ "set": value < u32::MAX - 1, "infinite": value == u32::MAX, "number": if value < u32::MAX - 1 { value } else { 0 } });
    let unset = || json!({ "set": false, "infinite": false, "number": 0 });
    let nothing = || json!({ "set": true, "infinite": false, "number": 0 });
    let flags: Vec<&str> = [
        (PartitionFlag::Default(true), "DEFAULT"),
        (PartitionFlag::Hidden(true), "HIDDEN"),
    ]
    .into_iter()
    .filter(|(flag, _)| partition.has(*flag))
    .map(|(_, name)| name)
    .collect();
    json!({
        "name": partition.name,
        "partition": {
            "state": [partition.state.name().unwrap().name()],
            "exclusive": "NO",
            "oversubscribe": "NO",
        },
        "nodes": { "configured": partition.nodes, "total": 1 },
        "cpus": {},
        "flags": flags,
        "accounts": { "allowed": partition.allow_accounts, "deny": partition.deny_accounts },
        "groups": { "allowed": partition.allow_groups },
        "qos": {},
        "tres": {},
        "defaults": {
            "partition_memory_per_cpu": unset(), "partition_memory_per_node": nothing(),
            "time": number(partition.default_time),
        },
        "maximums": {
            "partition_memory_per_cpu": unset(), "partition_memory_per_node": nothing(),
            "time": number(partition.max_time), "nodes": number(partition.max_nodes),
        },
        "minimums": { "nodes": partition.min_nodes },
        "grace_time": partition.grace_time,
        "preempt_mode": ["CLUSTER_GLOBAL"],
        "priority": { "job_factor": partition.priority_job_factor, "tier": partition.priority_tier },
    })
}
