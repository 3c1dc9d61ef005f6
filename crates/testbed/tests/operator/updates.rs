//! Workers with running jobs are replaced, and jobs that exceed the drain timeout are handled as configured.

use serde_json::Value;
use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::clusters::{install_chart, operator_namespace};
use crate::common::kills::kill_everyone;
use crate::common::slurm::{SOON, slurm, start_job, wait_idle, wait_job, wait_saved};

const SET: &str = "nodeset/slurm-worker-slinky";

/// A cluster with this number of workers and these lines in the NodeSet.
fn set_up(name: &str, replicas: usize, lines: &str) -> Namespace {
    let namespace = operator_namespace(cluster(), name);
    change(&namespace, replicas, lines);
    wait_idle(&namespace, replicas).unwrap();
    namespace.wait("condition=Ready", SET).unwrap();
    namespace
}

fn change(namespace: &Namespace, replicas: usize, lines: &str) {
    let values =
        format!("nodesets:\n  slinky:\n    replicas: {replicas}\n{lines}\npartitions:\n  all:\n    enabled: true\n");
    install_chart(namespace, &values).unwrap();
}

/// Submits a job and waits until it runs. Returns its ID and its node.
fn run(namespace: &Namespace, options: &str, seconds: u32) -> (String, String) {
    let job = start_job(namespace, &format!("-p all {options}"), &format!("sleep {seconds}")).unwrap();
    let node = slurm(namespace, &format!("squeue --noheader --format=%N --jobs {job}")).unwrap();
    (job, node.trim().to_owned())
}

fn shown(namespace: &Namespace, job: &str) -> String {
    slurm(namespace, &format!("scontrol show job {job}")).unwrap()
}

fn condition(namespace: &Namespace, type_: &str, field: &str) -> anyhow::Result<String> {
    namespace.field(SET, &format!(".status.conditions[?(@.type==\"{type_}\")].{field}"))
}

/// Names and UIDs of the pods.
fn pods(namespace: &Namespace) -> anyhow::Result<Vec<String>> {
    let path = "jsonpath={range .items[*]}{.metadata.name}={.metadata.uid} {end}";
    let shown = namespace.ask(&["get", "pods", "-l", "app.kubernetes.io/name=slurmd", "-o", path])?;
    Ok(shown.split_whitespace().map(str::to_owned).collect())
}

/// Waits until all workers are replaced and have the newest revision.
fn wait_replaced(namespace: &Namespace, before: &[String]) {
    eventually("all workers replaced", SOON * 3, || {
        let now = pods(namespace)?;
        let counts = namespace.field(SET, ".status.updatedReplicas")?;
        expect(
            now.len() == before.len()
                && now.iter().all(|pod| !before.contains(pod))
                && counts == before.len().to_string(),
            (now, counts),
        )
    })
    .unwrap();
}

const REQUEUE: &str = "    drain: {timeout: 10s, onTimeout: Requeue}";

#[test]
fn a_job_that_exceeds_the_drain_timeout_is_requeued_elsewhere() {
    let namespace = set_up("requeue", 2, REQUEUE);
    let (other, _) = run(&namespace, "--exclusive", 600);
    // It is slow only at its first start.
    let line = "[ $SLURM_RESTART_COUNT ] || sleep 600";
    let job = start_job(&namespace, "--partition=all --exclusive", line).unwrap();
    let node = slurm(&namespace, &format!("squeue --noheader --jobs={job} --format=%N")).unwrap();
    let node = node.trim();
    // Ranked first, so that the worker with the job is removed first.
    let pod = namespace
        .ask(&[
            "get",
            "pods",
            "-l",
            &format!("nodeset.slinky.slurm.net/pod-hostname={node}"),
            "-o",
            "name",
        ])
        .unwrap();
    namespace
        .ask(&["annotate", pod.trim(), "nodeset.slinky.slurm.net/pod-deletion-cost=-5"])
        .unwrap();
    namespace.ask(&["scale", SET, "--replicas=1"]).unwrap();
    eventually("the job is requeued", SOON, || {
        let shown = slurm(&namespace, &format!("scontrol show job {job}"))?;
        expect(shown.contains("Restarts=1"), shown)
    })
    .unwrap();
    slurm(&namespace, &format!("scancel {other}")).unwrap();
    wait_idle_or_busy(&namespace, 1);
    // Slurm gives it another node after two minutes.
    eventually("the job is done", SOON * 3, || {
        let shown = slurm(&namespace, &format!("scontrol show job {job}"))?;
        expect(shown.contains("JobState=COMPLETED"), shown)
    })
    .unwrap();
    let record = shown(&namespace, &job);
    assert!(
        record.contains("Restarts=1") && record.contains("ExitCode=0:0"),
        "{record}"
    );
    assert!(!record.contains(&format!("NodeList={node} ")), "{record}");
    let events = namespace.ask(&["events", "--for", SET]).unwrap();
    assert_eq!(events.matches("JobRequeued").count(), 1, "{events}");
}

/// Expects this number of nodes, in any state.
fn wait_idle_or_busy(namespace: &Namespace, count: usize) {
    eventually(&format!("{count} nodes"), SOON, || {
        let nodes = slurm(namespace, "scontrol show nodes --oneliner")?;
        expect(nodes.lines().count() == count, nodes)
    })
    .unwrap();
}

#[test]
fn an_update_waits_for_a_job_unless_a_drain_timeout_is_set() {
    let namespace = set_up("patience", 1, "");
    let (job, _) = run(&namespace, "", 600);
    namespace.ask(&["scale", SET, "--replicas=0"]).unwrap();
    eventually("the status reports what it waits for", SOON, || {
        let message = condition(&namespace, "Progressing", "message")?;
        let says = message.contains(&format!("job {job} (RUNNING)")) && message.contains("however long it takes");
        expect(says, message)
    })
    .unwrap();
    assert!(shown(&namespace, &job).contains("JobState=RUNNING"));
    // Now the administrator sets the timeout.
    change(&namespace, 0, "    drain: {timeout: 5s, onTimeout: Cancel}");
    wait_job(&namespace, &job, "CANCELLED").unwrap();
    eventually("no pod and no node", SOON, || {
        let pods = pods(&namespace)?;
        let nodes = slurm(&namespace, "scontrol show nodes --oneliner")?;
        expect(pods.is_empty() && !nodes.contains("NodeName="), (pods, nodes))
    })
    .unwrap();
    let events = namespace.ask(&["events", "--for", SET]).unwrap();
    assert_eq!(events.matches("JobCancelled").count(), 1, "{events}");
}

#[test]
fn a_rolling_update_waits_for_jobs_and_never_exceeds_max_unavailable() {
    let namespace = set_up("rolling", 3, "");
    let before = pods(&namespace).unwrap();
    let (job, _) = run(&namespace, "--exclusive", 40);
    // A worker that has just become ready does not count as available yet.
    let patient = r#"{"spec":{"minReadySeconds":8}}"#;
    namespace
        .ask(&["patch", SET, "--type=merge", "--patch", patient])
        .unwrap();
    let one_at_a_time = "    updateStrategy: {rollingUpdate: {maxUnavailable: 1}}\n    extraConf: Weight=7";
    change(&namespace, 3, one_at_a_time);
    let most = most_missing(&namespace, &before, 3);
    assert_eq!(most, 1, "never more than one is missing, and one is");
    wait_idle(&namespace, 3).unwrap();
    let record = shown(&namespace, &job);
    assert!(
        record.contains("JobState=COMPLETED") && record.contains("ExitCode=0:0") && record.contains("Restarts=0"),
        "{record}"
    );
    let nodes = slurm(&namespace, "scontrol show nodes --oneliner").unwrap();
    assert_eq!(nodes.matches("Weight=7 ").count(), 3, "{nodes}");
    let made = creations(&namespace);
    let far_apart = made.windows(2).all(|pair| pair[1] - pair[0] >= 8);
    assert!(
        far_apart,
        "each is ready for eight seconds before the next goes: {made:?}"
    );

    // The actions are reported, once each.
    namespace.ask(&["scale", SET, "--replicas=2"]).unwrap();
    wait_idle(&namespace, 2).unwrap();
    namespace.ask(&["delete", SET, "--timeout=120s"]).unwrap();
    let events = OperatorEvents::of(&namespace);
    let expect_told = |words: &str, times: usize| {
        // An event is lost if another test kills the operator at that moment.
        let count = events.count(words);
        assert!((1..=times).contains(&count), "{words}: {count} times; {events:?}");
    };
    // In the update and in the scale-in.
    expect_told("SuccessfulDelete Removed pod ", 6);
    expect_told("RollingUpdate Draining 1 Pod(s)", 3);
    // Three were removed by the update, one by the scale-in and two with their NodeSet.
    assert_eq!(events.count("NodeLost"), 0, "{events:?}");
    let scale_in = "ScalingDown Draining 1 Pod(s) to stabilize at 2 replicas";
    assert!(events.count(scale_in) <= 1, "{events:?}");
    for number in 0..3 {
        let removed = format!("SuccessfulDelete Removed pod slurm-worker-slinky-{number},");
        assert!(events.count(&removed) <= 2, "{events:?}");
    }
}

/// Creation times of the workers in seconds, in this order.
fn creations(namespace: &Namespace) -> Vec<i64> {
    let path = "jsonpath={.items[*].metadata.creationTimestamp}";
    let shown = namespace
        .ask(&["get", "pods", "-l", "app.kubernetes.io/name=slurmd", "-o", path])
        .unwrap();
    let seconds = slurm(namespace, &format!("for time in {shown}; do date -d $time +%s; done")).unwrap();
    let mut seconds: Vec<i64> = seconds.lines().map(|line| line.parse().unwrap()).collect();
    seconds.sort_unstable();
    seconds
}

/// The events of the operator in a namespace: reason and note of each.
#[derive(Debug)]
struct OperatorEvents(Vec<String>);

impl OperatorEvents {
    fn of(namespace: &Namespace) -> Self {
        let all = namespace.ask(&["get", "events.events.k8s.io", "-o", "json"]).unwrap();
        let all: Value = serde_json::from_str(&all).unwrap();
        let ours = all["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|event| event["reportingController"] == "slinky.slurm.net/slurm-operator");
        Self(
            ours.map(|event| {
                let text = |field: &str| event[field].as_str().unwrap_or_default();
                assert_eq!(event["series"], Value::Null, "{event}");
                format!("{} {}", text("reason"), text("note"))
            })
            .collect(),
        )
    }

    fn count(&self, beginning: &str) -> usize {
        self.0.iter().filter(|event| event.starts_with(beginning)).count()
    }
}

/// Polls until all workers are replaced, and returns the maximum number of drained nodes.
fn most_missing(namespace: &Namespace, before: &[String], count: usize) -> usize {
    let mut most = 0;
    eventually("all workers replaced", SOON * 3, || {
        let nodes = slurm(namespace, "scontrol show nodes --oneliner")?;
        let open = nodes
            .lines()
            .filter(|node| {
                !["DRAIN", "DOWN", "NOT_RESPONDING"]
                    .iter()
                    .any(|word| state(node).contains(word))
            })
            .count();
        most = most.max(count.saturating_sub(open));
        let now = pods(namespace)?;
        let replaced = now.len() == count && now.iter().all(|pod| !before.contains(pod));
        expect(replaced && open == count, (now, nodes))
    })
    .unwrap();
    most
}

/// The state in a node's line.
fn state(line: &str) -> &str {
    line.split_whitespace()
        .find(|word| word.starts_with("State="))
        .unwrap_or_default()
}

#[test]
fn a_broken_template_stops_after_one_batch_and_heals_when_it_is_reverted() {
    let namespace = set_up("broken", 3, "");
    let before = pods(&namespace).unwrap();
    let broken = "    slurmd: {image: {repository: example.invalid/none, tag: none}}";
    let half = "    updateStrategy: {rollingUpdate: {maxUnavailable: 50%}}";
    change(&namespace, 3, &format!("{half}\n{broken}"));
    eventually("the update is stopped, and says so", SOON, || {
        let message = condition(&namespace, "Progressing", "message")?;
        expect(
            message.contains("does not start") && message.contains("older revision"),
            message,
        )
    })
    .unwrap();
    let kept = || -> anyhow::Result<usize> { Ok(pods(&namespace)?.iter().filter(|pod| before.contains(pod)).count()) };
    eventually("half of them, rounded up, are unavailable", SOON, || {
        let kept = kept()?;
        expect(kept == 1, kept)
    })
    .unwrap();
    let (job, _) = run(&namespace, "", 5);
    wait_job(&namespace, &job, "COMPLETED").unwrap();
    change(&namespace, 3, half);
    wait_idle(&namespace, 3).unwrap();
    assert_eq!(kept().unwrap(), 1, "who was never replaced is not replaced now");
}

#[test]
fn no_worker_is_replaced_while_updates_are_paused_or_on_delete() {
    let namespace = set_up("paused", 2, "");
    let before = pods(&namespace).unwrap();
    let wait_seen = |what: &str| {
        eventually(what, SOON, || {
            let updated = namespace.field(SET, ".status.updatedReplicas")?;
            expect(updated == "0", updated)
        })
        .unwrap();
    };
    change(
        &namespace,
        2,
        "    updateStrategy: {paused: true}\n    extraConf: Weight=7",
    );
    wait_seen("the new template is seen");
    change(
        &namespace,
        2,
        "    updateStrategy: {type: OnDelete}\n    extraConf: Weight=8",
    );
    wait_seen("so is the next");
    assert_eq!(pods(&namespace).unwrap(), before);
    // A deleted pod is recreated from the new revision.
    namespace.ask(&["delete", "pod", "slurm-worker-slinky-0"]).unwrap();
    eventually("one is of the new revision", SOON, || {
        let updated = namespace.field(SET, ".status.updatedReplicas")?;
        expect(updated == "1", updated)
    })
    .unwrap();
    change(
        &namespace,
        2,
        "    updateStrategy: {type: RollingUpdate}\n    extraConf: Weight=8",
    );
    wait_replaced(&namespace, &before);
    wait_idle(&namespace, 2).unwrap();
    // The deleted one does not count as lost either.
    let events = OperatorEvents::of(&namespace);
    assert_eq!(events.count("NodeLost"), 0, "{events:?}");
}

#[test]
fn a_scheduled_update_replaces_workers_inside_its_reservation() {
    let namespace = set_up("scheduled", 2, "");
    let before = pods(&namespace).unwrap();
    let schedule = |time: &str, flags: &str| {
        let start = slurm(&namespace, &format!("date -u -d '+{time}' +%Y-%m-%dT%H:%M:%SZ")).unwrap();
        let update = format!("{{startTime: \"{}\", duration: 10m, flags: [{flags}]}}", start.trim());
        let strategy = format!("{{type: ScheduledUpdate, scheduledUpdate: {update}}}");
        let lines = format!("    updateStrategy: {strategy}\n    extraConf: Weight=7");
        change(&namespace, 2, &lines);
    };
    let wait_reserved = |flag: &str, absent: &str| {
        eventually(&format!("a reservation with {flag}, without {absent}"), SOON, || {
            let made = slurm(&namespace, "scontrol show reservation --oneliner")?;
            let named = made.contains("ReservationName=SlurmOperatorMaint-slurm-worker-slinky ");
            let flags = ["MAINT", "IGNORE_JOBS", flag].iter().all(|flag| made.contains(flag));
            expect(named && flags && !made.contains(absent), made)
        })
        .unwrap();
    };
    schedule("1 hour", "FLEX, MAGNETIC");
    wait_reserved("FLEX", "DAILY");
    schedule("1 hour", "FLEX");
    wait_reserved("FLEX", "MAGNETIC");
    // Slurm starts no job that could overlap with it.
    let (job, _) = run(&namespace, "--time=5", 30);
    wait_saved(&namespace).unwrap();
    schedule("20 seconds", "");
    wait_reserved("SPEC_NODES", "FLEX");
    // Slurm loses what it has not saved, and a reservation that is missing during its own time counts as deleted by a
    // user.
    wait_saved(&namespace).unwrap();
    kill_everyone(&namespace).unwrap();
    wait_replaced(&namespace, &before);
    let record = shown(&namespace, &job);
    assert!(
        record.contains("JobState=COMPLETED") && record.contains("Restarts=0"),
        "{record}"
    );
    // New workers belong to the reservation until it ends.
    eventually("the new nodes are reserved", SOON, || {
        let nodes = slurm(&namespace, "scontrol show nodes --oneliner")?;
        let reserved = nodes
            .lines()
            .filter(|node| state(node).contains("MAINT") && node.contains("Weight=7 "))
            .count();
        expect(
            reserved == 2 && condition(&namespace, "ReservationCreated", "status")? == "True",
            nodes,
        )
    })
    .unwrap();
    change(&namespace, 2, "    extraConf: Weight=7");
    eventually("no reservation", SOON, || {
        let made = slurm(&namespace, "scontrol show reservation --oneliner")?;
        let said = condition(&namespace, "ReservationCreated", "status")?;
        expect(!made.contains("ReservationName=") && said.is_empty(), (made, said))
    })
    .unwrap();
    wait_idle(&namespace, 2).unwrap();
}
