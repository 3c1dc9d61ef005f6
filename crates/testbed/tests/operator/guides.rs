//! A change of the configuration can be followed with the commands of the guides, and their three troubleshooting cases
//! are solved.

use std::time::Duration;

use anyhow::Result;
use testbed::cluster::Cluster;
use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::clusters::{ONE_WORKER, chart_cluster, chart_workers, configuration_applied, set_extra_conf};
use crate::common::shell::Shell;
use crate::common::slurm::{SOON, slurm};

const POD: &str = "slurm-controller-0";

/// A user's shell that fills in the names.
struct Guide(Shell);

impl Guide {
    fn open(cluster: &Cluster, namespace: &Namespace) -> Self {
        Self(Shell::open(cluster, namespace))
    }

    /// Runs a command of a guide with the names filled in. A command that follows a log is stopped after some seconds.
    fn run(&self, line: &str) -> Result<String> {
        let line = line
            .replace("<controller-pod>", POD)
            .replace("<controller>", "slurm")
            .replace("kubectl logs", "timeout 5 kubectl logs");
        let follows = line.ends_with(" -f");
        self.0.run(&if follows {
            format!("{line} || [ $? = 124 ]")
        } else {
            line
        })
    }
}

/// Status, reason and message of `ConfigurationApplied`.
fn applied(namespace: &Namespace) -> Result<(String, String, String)> {
    let field = |name: &str| configuration_applied(namespace, name);
    Ok((field("status")?, field("reason")?, field("message")?))
}

fn wait_applied(namespace: &Namespace, status: &str, reason: &str) -> String {
    eventually(&format!("ConfigurationApplied={status}, {reason}"), SOON, || {
        let now = applied(namespace)?;
        expect(now.0 == status && now.1 == reason, &now)?;
        Ok(now.2)
    })
    .unwrap()
}

/// Waits until the output contains these words.
fn wait_shown(namespace: &Namespace, line: &str, words: &str) {
    eventually(&format!("{words} in `{line}`"), SOON, || {
        let shown = slurm(namespace, line)?;
        expect(shown.contains(words), shown)
    })
    .unwrap();
}

/// A partition with a time limit that distinguishes changes.
fn partition(minutes: u32) -> String {
    format!("PartitionName=mine Nodes=ALL MaxTime={minutes}")
}

#[test]
fn every_diagnostic_command_of_the_guides_works() {
    let cluster = cluster();
    let namespace = chart_cluster(cluster, "story", ONE_WORKER, 1);
    set_extra_conf(&namespace, &partition(33)).unwrap();
    wait_shown(&namespace, "scontrol show partition mine", "MaxTime=00:33:00");
    wait_applied(&namespace, "True", "Applied");
    let shell = Guide::open(cluster, &namespace);

    let log = shell.run("kubectl logs <controller-pod> -c reconfigure -f").unwrap();
    for words in ["Start '/etc/slurm' polling", "Reconfiguring Slurm...", "SUCCESS"] {
        assert!(log.contains(words), "{words} is missing:\n{log}");
    }
    let in_pod = shell
        .run(r#"kubectl exec <controller-pod> -c slurmctld -- cat /etc/slurm/slurm.conf | grep -E "NodeSet|Partition""#)
        .unwrap();
    assert!(in_pod.contains(&partition(33)), "{in_pod}");
    let in_config_map = shell
        .run(r#"kubectl get configmap <controller>-config -o jsonpath='{.data.slurm\.conf}' | grep -E "NodeSet|Partition""#)
        .unwrap();
    assert_eq!(in_config_map, in_pod);
    shell
        .run("kubectl exec <controller-pod> -c slurmctld -- scontrol reconfigure")
        .unwrap();
    let shown = shell
        .run("kubectl exec <controller-pod> -c slurmctld -- scontrol show partition")
        .unwrap();
    assert!(shown.contains("PartitionName=mine"), "{shown}");
    let shown = shell
        .run("kubectl exec <controller-pod> -c slurmctld -- sinfo -a")
        .unwrap();
    assert!(shown.contains("mine"), "{shown}");
    let mounts = shell
        .run("kubectl get pod <controller-pod> -o yaml | grep -A5 volumeMounts")
        .unwrap();
    assert!(!mounts.contains("subPath"), "{mounts}");
    let log = shell.run("kubectl logs <controller-pod> -c slurmctld").unwrap();
    assert!(!log.is_empty());
    let log = shell
        .run("kubectl logs <controller-pod> -c reconfigure | tail -20")
        .unwrap();
    assert!(log.contains("SUCCESS"), "{log}");
    // Slurm has no `slurmctld -t`; the agent provides it.
    for container in ["slurmctld", "reconfigure"] {
        shell
            .run(&format!(
                "kubectl exec <controller-pod> -c {container} -- slurm-agent check"
            ))
            .unwrap();
    }

    let uid = namespace.uid(&format!("pod/{POD}")).unwrap();
    shell.run("kubectl delete pod <controller-pod>").unwrap();
    namespace.wait_new("condition=Ready", &format!("pod/{POD}")).unwrap();
    assert_ne!(namespace.uid(&format!("pod/{POD}")).unwrap(), uid);
    wait_shown(&namespace, "scontrol show partition mine", "MaxTime=00:33:00");

    // And the operator's own: the status and the history.
    let way = namespace
        .field("controller/slurm", ".status.configuration.lastChange.action")
        .unwrap();
    assert_eq!(way, "PartitionRpc");
    let history = namespace.field("configmap/slurm-history", ".data").unwrap();
    assert!(history.contains("cause: spec.extraConf"), "{history}");
    assert!(history.contains("+PartitionName=mine"), "{history}");
}

#[test]
fn the_three_troubleshooting_cases_of_the_guide_are_solved() {
    let cluster = cluster();
    let namespace = chart_cluster(cluster, "trouble", ONE_WORKER, 1);
    let shell = Guide::open(cluster, &namespace);
    let conf = || {
        shell.run(
            r#"kubectl exec <controller-pod> -c slurmctld -- cat /etc/slurm/slurm.conf | grep -E "NodeSet|Partition""#,
        )
    };

    // 1. The object has changed, but the files in the pod have not: the agent does not run.
    let frozen = cluster.pause_container(namespace.pod(POD), "reconfigure").unwrap();
    set_extra_conf(&namespace, &partition(11)).unwrap();
    wait_applied(&namespace, "False", "AgentAway");
    assert!(!conf().unwrap().contains("mine"));
    assert_eq!(
        slurm(&namespace, "srun -p all hostname").unwrap().lines().count(),
        1,
        "slurmctld goes on"
    );
    frozen.heal().unwrap();
    wait_applied(&namespace, "True", "Applied");
    assert!(conf().unwrap().contains(&partition(11)));
    wait_shown(&namespace, "scontrol show partition mine", "MaxTime=00:11:00");
    // The other partition goes when its job is over, which makes another revision.
    eventually("partition all is gone", SOON, || {
        let conf = conf()?;
        expect(!conf.contains("PartitionName=all"), conf)
    })
    .unwrap();

    // 2. The reconfigure fails because the file is bad …
    set_extra_conf(&namespace, &format!("{}\nJobSubmitPlugins=nope", partition(22))).unwrap();
    let message = wait_applied(&namespace, "False", "ConfigRejected");
    assert!(message.contains("nope"), "{message}");
    let log = shell.run("kubectl logs <controller-pod> -c reconfigure").unwrap();
    assert!(log.contains("Failed to reconfigure, try again..."), "{log}");
    shell.run("kubectl logs <controller-pod> -c slurmctld").unwrap();
    shell
        .run("kubectl exec <controller-pod> -c slurmctld -- slurm-agent check")
        .unwrap();
    wait_shown(&namespace, "scontrol show partition mine", "MaxTime=00:11:00");
    let history = namespace.field("configmap/slurm-history", ".data").unwrap();
    assert!(history.contains("refused by: the dry run"), "{history}");
    let events = namespace
        .ask(&["get", "events", "--field-selector=reason=ConfigRejected", "-o", "name"])
        .unwrap();
    assert_eq!(events.lines().count(), 1, "{events}");
    set_extra_conf(&namespace, &partition(22)).unwrap();
    wait_applied(&namespace, "True", "Applied");
    wait_shown(&namespace, "scontrol show partition mine", "MaxTime=00:22:00");

    // … or slurmctld is not up yet.
    let frozen = cluster.pause_container(namespace.pod(POD), "slurmctld").unwrap();
    set_extra_conf(&namespace, &partition(44)).unwrap();
    eventually("it is reported", SOON, || {
        let (status, reason, message) = applied(&namespace)?;
        expect(status == "False" && reason != "Pushing", (reason, message))
    })
    .unwrap();
    std::thread::sleep(Duration::from_secs(1));
    frozen.heal().unwrap();
    wait_applied(&namespace, "True", "Applied");
    wait_shown(&namespace, "scontrol show partition mine", "MaxTime=00:44:00");

    // 3. A partition is in slurm.conf, but sinfo does not show it.
    slurm(&namespace, "scontrol delete partitionname=mine").unwrap();
    assert!(conf().unwrap().contains("PartitionName=mine"));
    let listed = || shell.run("kubectl exec <controller-pod> -c slurmctld -- sinfo -a");
    assert!(!listed().unwrap().contains("mine"));
    shell
        .run("kubectl logs <controller-pod> -c reconfigure | tail -20")
        .unwrap();
    shell
        .run("kubectl exec <controller-pod> -c slurmctld -- scontrol reconfigure")
        .unwrap();
    let shown = listed().unwrap();
    assert!(shown.contains("mine"), "{shown}");
}

#[test]
fn lagging_nodes_are_listed_until_they_have_the_change() {
    let cluster = cluster();
    let namespace = chart_cluster(cluster, "lagging", &chart_workers(2), 2);
    let lagging = |expected: &str| {
        eventually(&format!("lagging nodes: {expected:?}"), SOON, || {
            let listed = namespace.field("controller/slurm", ".status.configuration.laggingNodes")?;
            expect(listed == expected, listed)
        })
        .unwrap();
    };
    // The kubelet would restart it before its startup probe has succeeded.
    namespace.wait("condition=Ready", "pod/slurm-worker-slinky-1").unwrap();
    let worker = namespace.pod("slurm-worker-slinky-1");
    let frozen = cluster.pause_container(worker, "slurmd").unwrap();
    // A change of partitions does not affect nodes.
    set_extra_conf(&namespace, "KillWait=47").unwrap();
    wait_shown(&namespace, "scontrol show config", "KillWait                = 47 sec");
    wait_applied(&namespace, "True", "Applied");
    lagging("slinky-1");
    frozen.heal().unwrap();
    lagging("");
}
