//! Two slurmctld on one volume: a change reaches both, a bad one harms neither, and the second takes over from the first.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::json;
use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::operator::{
    SOON, configuration_applied, install, install_chart, set_extra_conf, start_job, wait_idle, wait_saved,
};

const ACTIVE: &str = "slurm-controller-0";
const STANDBY: &str = "slurm-controller-1";

/// The kubelet would restart the container whose slurmctld is dead in this test, sooner or later.
const VALUES: &str = r"
controller:
  ha:
    enabled: true
    backups: 1
  persistence:
    enabled: true
    existingClaim: shared-state
    accessModes: [ReadWriteMany]
  slurmctld:
    livenessProbe:
      failureThreshold: 60
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

/// The aim is 15 s on a machine that has nothing else to do. Slurm's own timeout alone would be two minutes.
const MOST_FOR_A_TAKEOVER: Duration = Duration::from_mins(1);

fn on(namespace: &Namespace, pod: &str, line: &str) -> Result<String> {
    namespace.inside(pod, "slurmctld", line)
}

/// Waits until a slurmctld says that it runs with this line.
fn wait_live(namespace: &Namespace, pod: &str, line: &str) {
    let (key, value) = line.split_once('=').unwrap();
    eventually(&format!("{line} is live, asked in {pod}"), SOON, || {
        let shown = on(namespace, pod, &format!("scontrol show config | grep '^{key} '"))?;
        expect(shown.trim_end().ends_with(&format!("= {value}")), shown)
    })
    .unwrap();
}

/// Waits until these standbys do not have what the active slurmctld has.
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
fn a_change_is_on_both_and_the_second_takes_over_with_it() {
    let cluster = cluster();
    install(cluster);
    let namespace = Namespace::create(cluster, "standbys").unwrap();
    namespace.apply(&claim()).unwrap();
    install_chart(cluster, &namespace, VALUES).unwrap();
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

    // A change is live, and then with the standby too.
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

    // A bad one is refused, and neither of them loses what it has.
    let kept = || {
        let list = "cd /var/spool/slurmctld/*/.slurm-operator/*/ && ls */*.bundle */verified && cat */verified";
        on(&namespace, ACTIVE, list).unwrap()
    };
    let before = kept();
    assert!(before.contains(ACTIVE) && before.contains(STANDBY), "{before}");
    set_extra_conf(&namespace, &conf("JobSubmitPlugins=nope")).unwrap();
    eventually("it is refused", SOON, || {
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

    // The active one dies, and nobody starts it again: the other takes over with the newest configuration, and the job lives.
    let supervisor = namespace.pod(ACTIVE);
    let asleep = cluster.stop_first_process(supervisor, "slurmctld").unwrap();
    on(&namespace, ACTIVE, "pkill -KILL -f '[s]lurmctld --systemd'").unwrap();
    let died = Instant::now();
    // Without a limit of its own a question waits longer than it takes to ask again.
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

    // Nobody waits for the one that is missing.
    set_extra_conf(&namespace, &conf("MaxJobCount=4003")).unwrap();
    wait_live(&namespace, STANDBY, "MaxJobCount=4003");
    wait_lagging(&namespace, ACTIVE);

    // It comes back at once after that change, has what it missed, and takes its place again.
    asleep.heal().unwrap();
    wait_active(&namespace, ACTIVE);
    wait_live(&namespace, ACTIVE, "MaxJobCount=4003");
    wait_lagging(&namespace, "");
    eventually("the job runs", SOON, || runs(ACTIVE)).unwrap();

    // It hangs, with its supervisor, until the other has taken over; when it goes on it does not write what it knew.
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
