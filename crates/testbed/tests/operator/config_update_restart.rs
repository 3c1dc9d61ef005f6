//! Changes that restart slurmctld's pod, if the user chose that.

use serde_json::{Value, json};
use testbed::harness::{cluster, eventually, expect};

use crate::common::clusters::{ONE_WORKER, chart_cluster, configuration_applied, set_extra_conf};
use crate::common::kills::kill_operator;
use crate::common::slurm::{SOON, slurm, start_job, wait_idle, wait_saved};

const POD: &str = "slurm-controller-0";

/// With `configUpdate: Restart` a dry run comes before the restart. Plugins pass the checker, because they may be
/// custom ones.
#[test]
fn a_configuration_that_slurmctld_cannot_start_with_is_not_retried_by_the_next_leader() {
    let cluster = cluster();
    let namespace = chart_cluster(cluster, "good", ONE_WORKER, 1);
    let extra_conf = namespace.field("controller/slurm", ".spec.extraConf").unwrap();
    let restart = json!({ "spec": { "configUpdate": "Restart" } }).to_string();
    namespace
        .ask(&["patch", "controller/slurm", "--type=merge", "--patch", &restart])
        .unwrap();
    eventually("the pod is one that restarts for changes", SOON, || {
        let made_for = namespace.field(
            &format!("pod/{POD}"),
            r".metadata.annotations.slinky\.slurm\.net/slurm-config-hash",
        )?;
        expect(!made_for.is_empty(), made_for)
    })
    .unwrap();
    namespace.rollout("statefulset/slurm-controller").unwrap();
    wait_idle(&namespace, 1).unwrap();
    let job = start_job(&namespace, "-p all", "sleep 1000").unwrap();
    wait_saved(&namespace).unwrap();
    let uid = || namespace.uid(&format!("pod/{POD}"));
    let before = uid().unwrap();

    let rejected = |by: &str, words: &str| {
        eventually(&format!("refused by {by}: {words}"), SOON, || {
            let reason = configuration_applied(&namespace, "reason")?;
            expect(reason == "ConfigRejected", reason)?;
            let rejected = namespace.field("controller/slurm", ".status.configuration.rejected")?;
            let matches = rejected.contains(&format!(r#""by":"{by}""#)) && rejected.contains(words);
            expect(matches, rejected)
        })
        .unwrap();
    };
    set_extra_conf(&namespace, &format!("{extra_conf}\nSchedulerType=sched/nonsense\n")).unwrap();
    rejected("DryRun", "sched/nonsense");
    // The next leader learns it from the agent.
    kill_operator(cluster).unwrap();
    namespace.ask(&["delete", "configmap", "slurm-config"]).unwrap();
    namespace.wait("create", "configmap/slurm-config").unwrap();
    rejected("DryRun", "sched/nonsense");
    let log = namespace.ask(&["logs", POD, "-c", "reconfigure"]).unwrap();
    assert_eq!(log.matches("the dry run rejected").count(), 1, "{log}");
    assert_eq!(uid().unwrap(), before, "slurmctld was not restarted for it");

    // A dry run writes no logs, so it does not detect that slurmctld fails with this one. The pod is restarted for it
    // and starts with the last known good.
    set_extra_conf(
        &namespace,
        &format!("{extra_conf}\nSlurmSchedLogFile=/nowhere/sched.log\n"),
    )
    .unwrap();
    rejected("Slurmctld", "could not open /nowhere/sched.log");
    let fallen_back = uid().unwrap();
    assert_ne!(fallen_back, before);
    // The agent reports the rejection before it starts slurmctld again.
    eventually("slurmctld runs with the last known good", SOON, || {
        let live = slurm(&namespace, "scontrol ping; cat /etc/slurm/slurm.conf")?;
        expect(live.contains("is UP") && !live.contains("/nowhere"), live)
    })
    .unwrap();
    let log = namespace.ask(&["logs", POD, "-c", "reconfigure"]).unwrap();
    assert!(log.contains("slurmctld rejected the revision, rolling back"), "{log}");
    let about = "--field-selector=reason=ConfigRejected,involvedObject.kind=Controller";
    let events = namespace.ask(&["get", "events", about, "-o", "json"]).unwrap();
    let events: Value = serde_json::from_str(&events).unwrap();
    let count = |words: &str| {
        let messages = events["items"].as_array().unwrap().iter();
        let messages = messages.filter_map(|event| event["message"].as_str());
        messages.filter(|message| message.contains(words)).count()
    };
    assert_eq!(count("could not open /nowhere/sched.log"), 1, "{events:#}");
    assert_eq!(count("sched/nonsense"), 1, "by one leader only: {events:#}");

    set_extra_conf(&namespace, &format!("{extra_conf}\nMaxJobCount=4001\n")).unwrap();
    eventually("the next good edit is live", SOON, || {
        let live = slurm(&namespace, "scontrol show config | grep '^MaxJobCount '")?;
        expect(live.contains("= 4001") && uid()? != fallen_back, live)
    })
    .unwrap();
    eventually("and the object says so", SOON, || {
        let status = configuration_applied(&namespace, "status")?;
        expect(status == "True", status)
    })
    .unwrap();
    let shown = slurm(&namespace, &format!("scontrol show job {job}")).unwrap();
    let lives = shown.contains("JobState=RUNNING") && shown.contains("Restarts=0");
    assert!(lives, "{shown}");
}
