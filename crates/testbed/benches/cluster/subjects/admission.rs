//! Reviews at the webhook itself, as an API server sends them: as many as it answers, half of them for bad objects.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testbed::command::output_with_input;
use testbed::harness::Namespace;

use super::effort::Effort;
use super::memory::{cpu_seconds, process_of};
use super::table::{Row, Table};
use crate::common::pods::shell_pod;

/// Requests at the same time, each on a connection of its own.
const CONNECTIONS: u32 = 50;

/// Path, object, and whether it is accepted. All are judged with the other objects of the cluster, which the webhook reads.
fn reviews() -> [(&'static str, Value, bool); 4] {
    let controller = |extra: &str| {
        let spec = json!({"extraConf": extra, "slurmKeyRef": {"name": "k", "key": "k"}, "jwtKeyRef": {"name": "k", "key": "k"}});
        json!({"apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller", "metadata": {"name": "slurm"}, "spec": spec})
    };
    let partition = |config: &str| {
        let spec = json!({"controllerRef": {"name": "slurm"}, "nodeSetSelector": {}, "config": config});
        json!({"apiVersion": "slinky.slurm.net/v1alpha1", "kind": "Partition", "metadata": {"name": "long"}, "spec": spec})
    };
    let (of_controllers, of_partitions) = ("v1beta1-controller", "v1alpha1-partition");
    [
        (of_controllers, controller("MaxJobCount=5000"), true),
        (of_controllers, controller("MaxJobCuont=5000"), false),
        (of_partitions, partition("MaxTime=5"), true),
        (of_partitions, partition("MaxTiem=5"), false),
    ]
}

/// What `curl --config` reads to send that many reviews, and whether each is to be accepted, by its UID.
fn requests(namespace: &Namespace, count: u32) -> Result<(String, BTreeMap<String, bool>)> {
    let (mut lines, mut expected) = (String::new(), BTreeMap::new());
    let reviews = reviews();
    for (index, (path, object, is_accepted)) in (0..count).zip(reviews.iter().cycle()) {
        let uid = format!("review-{index}");
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {"uid": uid, "operation": "CREATE", "namespace": namespace.name, "object": object},
        });
        let url = format!("https://slurm-operator-webhook.slinky.svc/validate-slinky-slurm-net-{path}?timeout=10s");
        let body = serde_json::to_string(&review.to_string())?;
        writeln!(
            lines,
            "url = {url:?}\ninsecure\nsilent\nshow-error\nheader = \"Content-Type: application/json\"\n\
             data-raw = {body}\noutput = \"/tmp/answers/{uid}\"\nwrite-out = \"%{{time_total}}\\n\"\nnext"
        )?;
        expected.insert(uid, *is_accepted);
    }
    Ok((lines.trim_end_matches("next\n").to_owned(), expected))
}

/// UID and verdict of an answer.
fn verdict(answer: &str) -> Option<(String, bool)> {
    let answer: Value = serde_json::from_str(answer).ok()?;
    let uid = answer.pointer("/response/uid")?.as_str()?;
    Some((uid.to_owned(), answer.pointer("/response/allowed")?.as_bool()?))
}

pub(crate) fn measure(namespace: &Namespace, effort: &Effort, table: &mut Table) -> Result<()> {
    namespace.apply(&shell_pod("reviewer", &json!({})))?;
    namespace.wait("condition=Ready", "pod/reviewer")?;
    let rollout = [
        "rollout",
        "status",
        "deployment/slurm-operator-webhook",
        "--timeout=120s",
    ];
    namespace.cluster.ask_in("slinky", &rollout)?;
    let (requests, expected) = requests(namespace, effort.reviews)?;
    let send = format!(
        "cat > /tmp/reviews; mkdir -p /tmp/answers; begin=$(date +%s%N); \
         curl --parallel --parallel-immediate --parallel-max {CONNECTIONS} --config /tmp/reviews; echo $(( $(date +%s%N) - begin ))"
    );
    let webhook = process_of(namespace.cluster, "slurm-operator-webhook")?;
    let idle = cpu_seconds(&webhook)?;
    let mut exec = namespace.kubectl(&["exec", "--stdin", "reviewer", "--", "bash", "-c", &send]);
    let shown = output_with_input(&mut exec, &requests)?;
    let busy = cpu_seconds(&webhook)? - idle;
    let (times, nanoseconds) = shown.trim_end().rsplit_once('\n').context("no times")?;
    let mut times: Vec<f64> = times.lines().filter_map(|time| time.parse().ok()).collect();
    times.sort_by(f64::total_cmp);

    let answers = namespace.exec("reviewer", "grep --no-filename '' /tmp/answers/*")?;
    let answers: BTreeMap<String, bool> = answers.lines().filter_map(verdict).collect();
    let wrong: Vec<&String> = expected
        .iter()
        .filter(|(uid, accepted)| answers.get(*uid) != Some(accepted))
        .map(|(uid, _)| uid)
        .collect();
    ensure!(
        wrong.is_empty(),
        "{} answers are wrong or missing: {wrong:?}",
        wrong.len()
    );

    let late = times.get(times.len() * 99 / 100).context("no times")?;
    let seconds = nanoseconds.parse::<f64>()? / 1e9;
    table.add(Row::alone(
        "admission reviews answered per second",
        f64::from(effort.reviews) / seconds,
    ));
    table.add(Row::alone("admission review, p99, ms", late * 1e3));
    table.add(Row::alone(
        "webhook's CPU time for a review, ms",
        busy * 1e3 / f64::from(effort.reviews),
    ));
    namespace.ask(&["delete", "pod/reviewer", "--wait=false"]).map(drop)
}
