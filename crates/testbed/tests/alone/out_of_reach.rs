//! The operator cannot reach slurmctld's pod, and the API server can be reached by both.

use testbed::harness::{Namespace, alone, eventually, expect};

use crate::common::operator::{
    ONE_WORKER, SOON, configuration_applied, install, install_chart, set_extra_conf, slurm, wait_idle,
};

const POD: &str = "slurm-controller-0";

fn delivery(namespace: &Namespace) -> anyhow::Result<String> {
    namespace.field("controller/slurm", ".status.configuration.delivery")
}

#[test]
fn a_change_comes_by_a_config_map_where_the_agent_cannot_be_reached() {
    let alone = alone();
    let cluster = alone.cluster;
    install(cluster);
    let namespace = Namespace::create(cluster, "reach").unwrap();
    install_chart(cluster, &namespace, ONE_WORKER).unwrap();
    wait_idle(&namespace, 1).unwrap();
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
    let uid = namespace.field(&format!("pod/{POD}"), ".metadata.uid").unwrap();

    let operator = cluster
        .ask(&[
            "get",
            "pods",
            "--namespace",
            "slinky",
            "-l",
            "app.kubernetes.io/name=slurm-operator",
            "-o",
            "name",
        ])
        .unwrap();
    let operator = operator.trim().trim_start_matches("pod/").to_owned();
    let cut = cluster
        .drop_traffic(
            testbed::faults::Pod {
                namespace: "slinky",
                name: &operator,
            },
            namespace.pod(POD),
        )
        .unwrap();
    // Twice: a second candidate takes the place of the first.
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
    eventually("it is heard that it is live", SOON, || {
        let status = configuration_applied(&namespace, "status")?;
        expect(status == "True", status)
    })
    .unwrap();
    assert_eq!(delivery(&namespace).unwrap(), "ConfigMap");
    let file = slurm(&namespace, "cat /etc/slurm/slurm.conf").unwrap();
    let written = namespace.field("configmap/slurm-config", ".data.slurm\\.conf").unwrap();
    assert_eq!(file, written);
    namespace.wait("delete", "configmap/slurm-candidate").unwrap();
    is_live("4004");
    eventually("pushed again", SOON, || {
        let delivery = delivery(&namespace)?;
        expect(delivery == "Agent", delivery)
    })
    .unwrap();
    assert_eq!(namespace.field(&format!("pod/{POD}"), ".metadata.uid").unwrap(), uid);
    wait_idle(&namespace, 1).unwrap();
}
