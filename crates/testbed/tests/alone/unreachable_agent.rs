//! The operator cannot reach slurmctld's pod, but both can reach the API server.

use testbed::harness::{Namespace, alone, eventually, expect};

use crate::common::clusters::{ONE_WORKER, chart_cluster, configuration_applied, set_extra_conf};
use crate::common::kills::operator_pods;
use crate::common::slurm::{SOON, slurm, slurm_conf, wait_idle};

const POD: &str = "slurm-controller-0";

fn delivery(namespace: &Namespace) -> anyhow::Result<String> {
    namespace.field("controller/slurm", ".status.configuration.delivery")
}

#[test]
fn a_change_is_delivered_by_a_config_map_if_the_agent_is_unreachable() {
    let alone = alone();
    let cluster = alone.cluster;
    let namespace = chart_cluster(cluster, "reach", ONE_WORKER, 1);
    let extra_conf = namespace.field("controller/slurm", ".spec.extraConf").unwrap();
    let is_live = |jobs: &str| {
        set_extra_conf(&namespace, &format!("{extra_conf}\nMaxJobCount={jobs}\n")).unwrap();
        eventually(&format!("MaxJobCount={jobs} is live"), SOON, || {
            let live = slurm(&namespace, "scontrol show config | grep '^MaxJobCount '")?;
            expect(live.trim_end().ends_with(&format!("= {jobs}")), live)
        })
        .unwrap();
    };
    is_live("4001");
    assert_eq!(delivery(&namespace).unwrap(), "Agent");
    let uid = namespace.uid(&format!("pod/{POD}")).unwrap();

    let operators = operator_pods(cluster).unwrap();
    let [operator] = operators.as_slice() else {
        panic!("{operators:?}")
    };
    let cut = cluster
        .drop_traffic(
            testbed::faults::Pod {
                namespace: "slinky",
                name: operator,
            },
            namespace.pod(POD),
        )
        .unwrap();
    // Twice: a second candidate replaces the first.
    for jobs in ["4002", "4003"] {
        is_live(jobs);
        eventually("the status says which way it went", SOON, || {
            let delivery = delivery(&namespace)?;
            expect(delivery == "ConfigMap", delivery)
        })
        .unwrap();
    }
    assert_eq!(configuration_applied(&namespace, "reason").unwrap(), "AgentAway");

    cut.heal().unwrap();
    eventually("the operator learns that it is live", SOON, || {
        let status = configuration_applied(&namespace, "status")?;
        expect(status == "True", status)
    })
    .unwrap();
    assert_eq!(delivery(&namespace).unwrap(), "ConfigMap");
    slurm_conf(&namespace).unwrap();
    namespace.wait("delete", "configmap/slurm-candidate").unwrap();
    is_live("4004");
    eventually("the change is pushed again", SOON, || {
        let delivery = delivery(&namespace)?;
        expect(delivery == "Agent", delivery)
    })
    .unwrap();
    assert_eq!(namespace.uid(&format!("pod/{POD}")).unwrap(), uid);
    wait_idle(&namespace, 1).unwrap();
}
