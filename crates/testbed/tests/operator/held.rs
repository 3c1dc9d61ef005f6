//! A bad input is held and named, the good ones beside it are live, and its correction becomes live by itself.

use serde_json::json;
use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::clusters::{configuration_applied, manifest_cluster, set_extra_conf};
use crate::common::slurm::{SOON, slurm, start_job};

fn partition(namespace: &Namespace, config: &str) {
    let patch = json!({ "spec": { "partition": { "config": config } } }).to_string();
    namespace
        .ask(&["patch", "nodeset/compute", "--type=merge", "-p", &patch])
        .unwrap();
}

/// Status, reason and message of the condition, and the sources that are held.
fn standing(namespace: &Namespace) -> anyhow::Result<[String; 4]> {
    let condition = |field: &str| configuration_applied(namespace, field);
    Ok([
        condition("status")?,
        condition("reason")?,
        condition("message")?,
        namespace.field("controller/slurm", ".status.configuration.heldInputs[*].source")?,
    ])
}

fn held(namespace: &Namespace, reason: &str, words: &[&str]) {
    eventually(&format!("spec.extraConf is held: {reason}"), SOON, || {
        let now = standing(namespace)?;
        let [status, said, message, sources] = &now;
        let matches = words.iter().all(|word| message.contains(word));
        expect(
            status == "False" && said == reason && sources == "spec.extraConf" && matches,
            &now,
        )
    })
    .unwrap();
}

fn applied(namespace: &Namespace) {
    eventually("everything is live", SOON, || {
        let now = standing(namespace)?;
        expect(now[0] == "True" && now[3].is_empty(), &now)
    })
    .unwrap();
}

fn live(namespace: &Namespace, line: &str, words: &str) {
    eventually(&format!("{words} is live"), SOON, || {
        let shown = slurm(namespace, line)?;
        expect(shown.contains(words), shown)
    })
    .unwrap();
}

#[test]
fn a_bad_input_is_held_while_good_inputs_are_live_and_jobs_continue() {
    let namespace = manifest_cluster(cluster(), "held", 1);
    applied(&namespace);
    let pod = "jsonpath={.metadata.uid} {.status.containerStatuses[*].restartCount}";
    let pod = || namespace.ask(&["get", "pod", "slurm-controller-0", "-o", pod]).unwrap();
    let before = pod();
    let job = start_job(&namespace, "-p compute", "sleep 600").unwrap();
    let shown = "scontrol show partition compute";
    let unharmed = || {
        assert!(slurm(&namespace, "scontrol ping").unwrap().contains("is UP"));
        let state = slurm(&namespace, &format!("squeue --noheader --format=%T --jobs {job}")).unwrap();
        assert_eq!(state.trim(), "RUNNING");
        assert_eq!(pod(), before);
    };

    // A fault that the checker finds.
    let good = "PartitionName=all Nodes=ALL Default=NO\nPartitionName=highprio Nodes=compute MaxTime=1-00:00:00 PriorityTier=100\n";
    set_extra_conf(&namespace, &format!("{good}# mine\nSchedulerParameter=defer\n")).unwrap();
    partition(&namespace, "Default=YES MaxTime=60");
    live(&namespace, shown, "MaxTime=01:00:00");
    held(
        &namespace,
        "ConfigRejected",
        &["spec.extraConf line 4: ", "SchedulerParameters"],
    );
    unharmed();

    // A fault that only slurmctld finds.
    set_extra_conf(&namespace, &format!("{good}JobSubmitPlugins=nope\n")).unwrap();
    partition(&namespace, "Default=YES MaxTime=120");
    live(&namespace, shown, "MaxTime=02:00:00");
    held(&namespace, "ConfigRejected", &["job_submit"]);
    unharmed();

    // A change that could end the job waits for it.
    set_extra_conf(&namespace, &format!("{good}GresTypes=gpu\n")).unwrap();
    partition(&namespace, "Default=YES MaxTime=180");
    live(&namespace, shown, "MaxTime=03:00:00");
    held(
        &namespace,
        "WaitsForJobs",
        &["GresTypes", &format!("job {job} is there")],
    );
    unharmed();

    // The correction, while the job runs.
    set_extra_conf(&namespace, &format!("{good}SchedulerParameters=defer\n")).unwrap();
    applied(&namespace);
    live(&namespace, "scontrol show config", "defer");
    unharmed();
    set_extra_conf(&namespace, &format!("{good}GresTypes=gpu\n")).unwrap();
    held(&namespace, "WaitsForJobs", &["GresTypes"]);
    slurm(&namespace, &format!("scancel {job}")).unwrap();
    applied(&namespace);
    live(&namespace, "scontrol show config | grep GresTypes", "gpu");
    assert_eq!(pod(), before);
}
