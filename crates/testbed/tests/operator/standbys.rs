//! Two slurmctld on one volume: a change reaches both, a bad one harms neither, and the standby takes over.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::json;
use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::clusters::{configuration_applied, install_chart, operator_namespace, set_extra_conf};
use crate::common::slurm::{SOON, start_job, wait_idle, wait_saved};

const ACTIVE: &str = "slurm-controller-0";
const STANDBY: &str = "slurm-controller-1";

const VALUES: &str = r"
controller:
  ha:
    enabled: true
    backups: 1
  persistence:
    enabled: true
    existingClaim: shared-state
    accessModes: [ReadWriteMany]
nodesets:
  slinky:
    replicas: 1
";

fn claim() -> String {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "shared-state" },
        "spec": { "accessModes": ["ReadWriteMany"], "resources": { "requests": { "storage": "64Mi" } } },
    })
    .to_string()
}

fn conf(line: &str) -> String {
    format!("PartitionName=all Nodes=ALL Default=YES\n{line}\n")
}

/// The goal is 15 s on an idle machine. Slurm's default timeout alone is two minutes.
const MOST_FOR_A_TAKEOVER: Duration = Duration::from_mins(1);

fn on(namespace: &Namespace, pod: &str, line: &str) -> Result<String> {
    namespace.inside(pod, "slurmctld", line)
}

/// Waits until a slurmctld reports this line of its configuration.
fn wait_live(namespace: &Namespace, pod: &str, line: &str) {
    let (key, value) = line.split_once('=').unwrap();
    eventually(&format!("{line} is live, asked in {pod}"), SOON, || {
        let shown = on(namespace, pod, &format!("scontrol show config | grep '^{key} '"))?;
        expect(shown.trim_end().ends_with(&format!("= {value}")), shown)
    })
    .unwrap();
}

/// Waits until the status lists these standbys as lagging.
fn wait_lagging(namespace: &Namespace, pods: &str) {
    eventually(&format!("standbys that lag: {pods:?}"), SOON, || {
        let path = ".status.configuration.laggingStandbys";
        let now = namespace.field("controller/slurm", &format!("{path}[*].pod"))?;
        expect(now == pods, namespace.field("controller/slurm", path)?)
    })
    .unwrap();
}

fn wait_active(namespace: &Namespace, pod: &str) {
    eventually(&format!("{pod} is the active one"), SOON, || {
        let label = "controller.slinky.slurm.net/active=true";
        let active = namespace.ask(&["get", "pods", "-l", label, "-o", "jsonpath={.items[*].metadata.name}"])?;
        expect(active == pod, active)
    })
    .unwrap();
}

#[test]
fn a_change_reaches_the_standby_which_takes_over_with_it() {
    let cluster = cluster();
    let namespace = operator_namespace(cluster, "standbys");
    namespace.apply(&claim()).unwrap();
    install_chart(&namespace, VALUES).unwrap();
    set_extra_conf(&namespace, &conf("MaxJobCount=4000")).unwrap();
    wait_idle(&namespace, 1).unwrap();
    namespace.rollout("statefulset/slurm-controller").unwrap();
    wait_live(&namespace, ACTIVE, "SlurmctldTimeout=10 sec");
    let files = |pod: &str| on(&namespace, pod, "cat /etc/slurm/slurm.conf").unwrap();
    let job = start_job(&namespace, "-p all", "sleep 600").unwrap();
    let runs = |pod: &str| {
        let state = on(&namespace, pod, &format!("squeue --noheader --format=%T --jobs {job}"))?;
        expect(state.trim() == "RUNNING", state)
    };

    // A change is live, and then on the standby too.
    set_extra_conf(&namespace, &conf("MaxJobCount=4001")).unwrap();
    wait_live(&namespace, ACTIVE, "MaxJobCount=4001");
    wait_lagging(&namespace, "");
    let good = |pod: &str| {
        let noted = format!("cat /var/spool/slurmctld/*/.slurm-operator/*/{pod}/verified");
        on(&namespace, ACTIVE, &noted)
    };
    eventually("the standby has its files, and runs with them", SOON, || {
        expect(files(STANDBY) == files(ACTIVE), files(STANDBY))?;
        expect(good(STANDBY)? == good(ACTIVE)?, good(STANDBY))
    })
    .unwrap();

    // A bad change is rejected, and both keep their configuration.
    let kept = || {
        let list = "cd /var/spool/slurmctld/*/.slurm-operator/*/ && ls */*.bundle */verified && cat */verified";
        on(&namespace, ACTIVE, list).unwrap()
    };
    let before = kept();
    assert!(before.contains(ACTIVE) && before.contains(STANDBY), "{before}");
    set_extra_conf(&namespace, &conf("JobSubmitPlugins=nope")).unwrap();
    eventually("it is rejected", SOON, || {
        let message = configuration_applied(&namespace, "message")?;
        expect(message.contains("job_submit"), message)
    })
    .unwrap();
    assert_eq!(kept(), before);
    for pod in [ACTIVE, STANDBY] {
        assert!(!files(pod).contains("nope"));
    }
    runs(ACTIVE).unwrap();

    set_extra_conf(&namespace, &conf("MaxJobCount=4002")).unwrap();
    wait_live(&namespace, ACTIVE, "MaxJobCount=4002");
    wait_lagging(&namespace, "");
    wait_saved(&namespace).unwrap();

    // The active one is killed and not restarted: the standby takes over with the newest configuration, and the job
    // continues.
    let supervisor = namespace.pod(ACTIVE);
    let asleep = cluster.stop_first_process(supervisor, "slurmctld").unwrap();
    on(&namespace, ACTIVE, "pkill -KILL -f '[s]lurmctld --systemd'").unwrap();
    let died = Instant::now();
    // Without a timeout a request would take longer than a retry.
    let ask = format!("timeout 2 squeue --noheader --format=%T --jobs {job} | grep RUNNING");
    eventually("the other serves, and the job runs", SOON, || {
        on(&namespace, STANDBY, &ask)
    })
    .unwrap();
    let took = died.elapsed();
    println!("a standby served {:.1} s after the active one died", took.as_secs_f64());
    assert!(took < MOST_FOR_A_TAKEOVER, "{took:?}");
    wait_active(&namespace, STANDBY);
    wait_live(&namespace, STANDBY, "MaxJobCount=4002");

    // No change waits for the missing one.
    set_extra_conf(&namespace, &conf("MaxJobCount=4003")).unwrap();
    wait_live(&namespace, STANDBY, "MaxJobCount=4003");
    wait_lagging(&namespace, ACTIVE);

    // It returns right after that change, gets the missed configuration, and is active again.
    asleep.heal().unwrap();
    wait_active(&namespace, ACTIVE);
    wait_live(&namespace, ACTIVE, "MaxJobCount=4003");
    wait_lagging(&namespace, "");
    eventually("the job runs", SOON, || runs(ACTIVE)).unwrap();

    // It hangs with its supervisor until the other has taken over; when it continues, it does not save its old state.
    let hanging = cluster.pause_container(namespace.pod(ACTIVE), "slurmctld").unwrap();
    eventually("the other serves, and the job runs", SOON, || {
        on(&namespace, STANDBY, &ask)
    })
    .unwrap();
    hanging.heal().unwrap();
    wait_active(&namespace, ACTIVE);
    eventually("the job runs", SOON, || runs(ACTIVE)).unwrap();
    let log = namespace.ask(&["logs", ACTIVE, "--container=slurmctld"]).unwrap();
    assert!(log.contains("another slurmctld became primary after this one"), "{log}");
    let shown = on(&namespace, ACTIVE, &format!("scontrol show job {job}")).unwrap();
    assert!(shown.contains("Restarts=0"), "{shown}");
}
