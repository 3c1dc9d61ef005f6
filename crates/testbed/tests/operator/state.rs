//! slurmctld's state directory.

use serde_json::json;
use testbed::harness::cluster;

use crate::common::clusters::{operator_namespace, wait_said};

/// slurmctld checks its directories at its start and warns about a world-writable one.
#[test]
fn only_slurmctld_writes_to_its_state() {
    let namespace = operator_namespace(cluster(), "state");
    let cgroup = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "cgroup" },
        "data": { "cgroup.conf": "CgroupPlugin=cgroup/v1" },
    });
    namespace.apply(&cgroup.to_string()).unwrap();
    for (name, persistent) in [("kept", true), ("fleeting", false)] {
        let controller = json!({
            "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller", "metadata": { "name": name },
            "spec": { "configFileRefs": [{ "name": "cgroup" }], "persistence": { "enabled": persistent } },
        });
        namespace.apply(&controller.to_string()).unwrap();
    }
    for name in ["kept", "fleeting"] {
        wait_said(&namespace, &format!("controller/{name}"), "Ready", &["True"]);
        let pod = format!("{name}-controller-0");
        let modes = namespace
            .exec(
                &format!("{pod} -c slurmctld"),
                "stat -Lc %A $(scontrol show config | awk '/^StateSaveLocation/ {print $3}')",
            )
            .unwrap();
        assert_eq!(modes.as_bytes().get(8), Some(&b'-'), "{name}: {modes}");
        let log = namespace.ask(&["logs", &pod, "--all-containers"]).unwrap();
        assert!(
            log.contains("slurmctld") && !log.contains("WORLD WRITABLE"),
            "{name}: {log}"
        );
    }
}
