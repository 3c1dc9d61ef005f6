//! A slurmrestd that takes connections and answers nothing.

use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::operator::{ONE_WORKER, SOON, install, install_chart, slurm, wait_idle};

#[test]
fn a_slurmrestd_that_hangs_delays_neither_its_own_cluster_nor_another() {
    let cluster = cluster();
    install(cluster);
    let [hanging, other] = ["hanging", "beside"].map(|name| {
        let namespace = Namespace::create(cluster, name).unwrap();
        install_chart(cluster, &namespace, ONE_WORKER).unwrap();
        namespace
    });
    for namespace in [&hanging, &other] {
        wait_idle(namespace, 1).unwrap();
        namespace.rollout("deployment/slurm-restapi").unwrap();
    }
    let pod = hanging
        .ask(&[
            "get",
            "pods",
            "-l",
            "app.kubernetes.io/name=slurmrestd",
            "-o",
            "jsonpath={.items[0].metadata.name}",
        ])
        .unwrap();
    let address = hanging.field(&format!("pod/{pod}"), ".status.podIP").unwrap();
    let answers = || {
        let request = format!("exec 3<>/dev/tcp/{address}/6820; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; head -1 <&3");
        slurm(&hanging, &format!("timeout 3 bash -c \"{request}\""))
    };
    eventually("slurmrestd answers", SOON, answers).unwrap();
    let frozen = cluster.pause_container(hanging.pod(&pod), "slurmrestd").unwrap();
    answers().unwrap_err();

    for namespace in [&other, &hanging] {
        namespace
            .ask(&["scale", "nodeset/slurm-worker-slinky", "--replicas=2"])
            .unwrap();
    }
    wait_idle(&other, 2).unwrap();
    wait_idle(&hanging, 2).unwrap();
    answers().unwrap_err();
    eventually("the other cluster's counts go on", SOON, || {
        let idle = other.field("nodeset/slurm-worker-slinky", ".status.slurmIdle")?;
        expect(idle == "2", idle)
    })
    .unwrap();
    frozen.heal().unwrap();
}
