//! Every bad configuration of the table, applied through objects to a cluster with jobs: it is reported, nothing that
//! runs is harmed, and the next good edit is live.

use std::collections::BTreeMap;
use std::process::{Child, Stdio};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};
use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::clusters::{CONTROLLER, operator_namespace, set_extra_conf, workers};
use crate::common::slurm::{SOON, slurm, start_job, wait_idle, wait_job};

/// The base configuration of all rows. The operator's own lines come before it.
const BASE: &str = "NodeSet=ns_compute Feature=compute
NodeSet=ns_gpu Feature=gpu
PartitionName=gpu Nodes=ns_gpu MaxTime=1-00:00:00
PartitionName=all Nodes=ALL
";
const CGROUP: &str = "CgroupPlugin=cgroup/v1\n";

/// A user cannot remove lines of the operator, and a second `jwt_key` (43) has no effect, because options are merged.
const NOT_FOR_USERS: &[u32] = &[30, 43, 51, 53, 66];

#[derive(Debug, Deserialize)]
struct Row {
    #[serde(rename = "row")]
    number: u32,
    what: String,
    #[serde(default)]
    append: String,
    #[serde(default)]
    files: BTreeMap<String, String>,
    by: By,
    says: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum By {
    Checker,
    Warning,
    #[serde(rename = "dry run")]
    DryRun,
    Accepted,
}

impl Row {
    /// The part of the checker's message that does not depend on lines, nodes and values.
    fn gist(&self) -> Option<&str> {
        let says = self.says.as_deref()?;
        let (_, reason) = says.split_once(": ")?;
        let end = [" be set,", " from ", " than the ", " names QOS ", ";"]
            .iter()
            .filter_map(|word| reason.find(word))
            .min();
        Some(&reason[..end.unwrap_or(reason.len())])
    }
}

fn rows() -> Vec<Row> {
    let table = include_str!("../../../slurm/tests/bad/rows.yaml");
    // A node of this cluster in place of the one in the table.
    let table = table.replace("=n1", "=compute-0");
    let rows: Vec<Row> = serde_saphyr::from_str(&table).unwrap();
    rows.into_iter()
        .filter(|row| !NOT_FOR_USERS.contains(&row.number))
        .collect()
}

/// Polls slurmctld every 10 ms from within its pod, until it is dropped.
struct Prober(Child);

impl Prober {
    const LOOP: &str = r#"
        while :; do
            answer=
            exec 3<>/dev/tcp/127.0.0.1/6817 && printf 'GET /livez HTTP/1.0\r\n\r\n' >&3 && read -t 5 -r answer <&3
            [[ $answer == *" 20"[04]* ]] || echo "$(date +%T.%N) ${answer:-no answer}"
            exec 3>&-
            sleep 0.01
        done 2>&1"#;

    fn start(namespace: &Namespace) -> Self {
        let mut command = namespace.kubectl(&["exec", "slurm-controller-0", "-c", "slurmctld", "--", "bash", "-c"]);
        Self(command.arg(Self::LOOP).stdout(Stdio::piped()).spawn().unwrap())
    }

    /// The failures so far.
    fn end(mut self) -> String {
        self.0.kill().unwrap();
        let output = self.0.wait_with_output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

fn configure(namespace: &Namespace, extra: &str, files: &BTreeMap<String, String>) {
    let mut data = BTreeMap::from([("cgroup.conf".to_owned(), CGROUP.to_owned())]);
    data.extend(files.clone());
    let files = json!([{ "op": "replace", "path": "/data", "value": data }]);
    let words = [
        "patch",
        "configmap/cgroup",
        "--type=json",
        "--patch",
        &files.to_string(),
    ];
    namespace.ask(&words).unwrap();
    set_extra_conf(namespace, extra).unwrap();
}

/// The Controller's status as text.
fn status(namespace: &Namespace) -> Result<(bool, String)> {
    fn words(value: &Value, into: &mut String) {
        match value {
            Value::String(text) => {
                into.push_str(text);
                into.push('\n');
            }
            Value::Array(items) => items.iter().for_each(|item| words(item, into)),
            Value::Object(fields) => fields.values().for_each(|field| words(field, into)),
            _ => {}
        }
    }
    let shown: Value = serde_json::from_str(&namespace.ask(&["get", "controller/slurm", "-o", "json"])?)?;
    let status = shown.get("status").context("no status")?;
    let applied = status["conditions"]
        .as_array()
        .context("no conditions")?
        .iter()
        .any(|condition| {
            condition["type"] == "ConfigurationApplied"
                && condition["status"] == "True"
                && condition["observedGeneration"] == shown["metadata"]["generation"]
        });
    let mut text = String::new();
    words(status, &mut text);
    Ok((applied, text))
}

#[test]
fn no_bad_configuration_harms_a_running_cluster() {
    let namespace = operator_namespace(cluster(), "bad-config");
    namespace.apply(CONTROLLER).unwrap();
    namespace.apply(&workers(2)).unwrap();
    let good = |number: u32| format!("{BASE}PartitionName=probe Nodes=ns_compute MaxTime={}\n", number + 1);
    configure(&namespace, &good(0), &BTreeMap::new());
    wait_idle(&namespace, 2).unwrap();
    let job = start_job(&namespace, "-p all -w compute-1", "sleep 1000").unwrap();
    let prober = Prober::start(&namespace);

    let mut failures = Vec::new();
    for row in rows() {
        let name = format!("row {}, {}", row.number, row.what);
        configure(
            &namespace,
            &format!("{}{}\n", good(row.number - 1), row.append),
            &row.files,
        );
        let reported = eventually(&name, SOON, || {
            let (applied, text) = status(&namespace)?;
            // In any case it is not tried while a job runs.
            let waits = text.contains("can end jobs");
            let holds = match row.by {
                By::Checker => row.gist().is_some_and(|gist| text.contains(gist)),
                // An unknown host may be known later, so the operator retries.
                By::DryRun => !applied && (text.contains("slurmctld refused it") || text.contains("getaddrinfo")),
                By::Warning | By::Accepted => applied,
            };
            expect(holds || waits, text)
        });
        failures.extend(reported.err().map(|error| format!("{name}: {error:#}")));
        configure(&namespace, &good(row.number), &BTreeMap::new());
        let live = eventually(&name, SOON, || {
            let probe = slurm(&namespace, "scontrol --oneliner show partition probe")?;
            let expected = format!("MaxTime=00:{:02}:00", row.number + 1);
            let hours = format!("MaxTime=01:{:02}:00", (row.number + 1) % 60);
            expect(probe.contains(&expected) || probe.contains(&hours), probe)
        });
        failures.extend(live.err().map(|error| format!("{name}: the next good edit: {error:#}")));
    }
    // As in the guide for pyxis: the included file exists on nodes only, if at all, which is no error.
    let plugstack = BTreeMap::from([("plugstack.conf".to_owned(), "include /usr/share/pyxis/*\n".to_owned())]);
    configure(&namespace, &good(0), &plugstack);
    let live = eventually("plugstack.conf", SOON, || {
        let (applied, text) = status(&namespace)?;
        let file = slurm(&namespace, "cat /etc/slurm/plugstack.conf")?;
        expect(applied && file == plugstack["plugstack.conf"], (file, text))
    });
    failures.extend(live.err().map(|error| format!("{error:#}")));
    let unanswered = prober.end();
    assert_eq!(failures, [""; 0], "{}", failures.join("\n\n"));
    assert_eq!(unanswered, "");
    wait_job(&namespace, &job, "RUNNING").unwrap();
    let nodes = slurm(&namespace, "scontrol --oneliner show nodes compute-[0-1]").unwrap();
    assert!(!nodes.contains("DOWN") && !nodes.contains("NOT_RESPONDING"), "{nodes}");
    assert_eq!(
        slurm(&namespace, "srun -p all -w compute-0 hostname").unwrap(),
        "compute-0\n"
    );
}
