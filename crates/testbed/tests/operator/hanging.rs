//! A slurmrestd or slurmctld that accepts connections and does not respond, and a state volume that hangs.

use std::time::Duration;

use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::clusters::{ONE_WORKER, chart_cluster, chart_workers, install_chart, operator_namespace};
use crate::common::operator::install;
use crate::common::slurm::{SOON, slurm, slurmrestd_pod, wait_idle, wait_node};

#[test]
fn a_slurmrestd_that_hangs_delays_neither_its_own_cluster_nor_another() {
    let cluster = cluster();
    install(cluster);
    let [hanging, other] = ["hanging", "beside"].map(|name| {
        let namespace = Namespace::create(cluster, name).unwrap();
        install_chart(&namespace, ONE_WORKER).unwrap();
        namespace
    });
    for namespace in [&hanging, &other] {
        wait_idle(namespace, 1).unwrap();
        namespace.rollout("deployment/slurm-restapi").unwrap();
    }
    let pod = slurmrestd_pod(&hanging).unwrap();
    let address = hanging.field(&format!("pod/{pod}"), ".status.podIP").unwrap();
    let answers = || {
        let request = format!("exec 3<>/dev/tcp/{address}/6820; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; head -1 <&3");
        slurm(&hanging, &format!("timeout 3 bash -c \"{request}\""))
    };
    eventually("slurmrestd responds", SOON, answers).unwrap();
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

#[test]
fn while_slurms_state_is_unknown_workers_are_created_and_none_is_removed() {
    let cluster = cluster();
    let namespace = chart_cluster(cluster, "unknown", &chart_workers(2), 2);
    let set = "nodeset/slurm-worker-slinky";
    let scale = |count: &str| namespace.ask(&["scale", set, &format!("--replicas={count}")]).unwrap();
    let workers = || {
        let path = "jsonpath={range .items[*]}{.metadata.uid} {.metadata.deletionTimestamp}{\"\\n\"}{end}";
        namespace.ask(&["get", "pods", "-l", "app.kubernetes.io/name=slurmd", "-o", path])
    };
    let before = workers().unwrap();
    let frozen = cluster
        .pause_container(namespace.pod("slurm-controller-0"), "slurmctld")
        .unwrap();
    scale("1");
    eventually("it is reported", SOON, || {
        let why = namespace.field(set, ".status.conditions[?(@.type==\"Progressing\")].message")?;
        expect(why.contains("nothing is removed while Slurm cannot be asked"), why)
    })
    .unwrap();
    assert_eq!(workers().unwrap(), before);
    scale("3");
    eventually("a third worker", SOON, || {
        let now = workers()?;
        expect(
            now.lines().count() == 3 && before.lines().all(|pod| now.contains(pod)),
            now,
        )
    })
    .unwrap();
    frozen.heal().unwrap();
    wait_idle(&namespace, 3).unwrap();
    let now = workers().unwrap();
    assert!(before.lines().all(|pod| now.contains(pod)), "{before} {now}");
}

#[test]
fn while_the_state_volume_hangs_the_agent_responds_and_orders_are_retried() {
    let cluster = cluster();
    let namespace = operator_namespace(cluster, "frozen-state");
    let values = format!("{ONE_WORKER}controller:\n  persistence:\n    storageClassName: freezable\n");
    install_chart(&namespace, &values).unwrap();
    wait_idle(&namespace, 1).unwrap();
    let (pod, node) = ("pod/slurm-worker-slinky-0", "slinky-0");
    // The leader has connected to the agent.
    namespace
        .ask(&["annotate", pod, "slinky.slurm.net/pod-cordon=true"])
        .unwrap();
    wait_node(&namespace, node, &["DRAIN"], &[]).unwrap();
    namespace
        .ask(&["annotate", pod, "slinky.slurm.net/pod-cordon-"])
        .unwrap();
    wait_node(&namespace, node, &["State=IDLE"], &["DRAIN"]).unwrap();

    let frozen = cluster
        .freeze_volume(&namespace.name, "statesave-slurm-controller-0")
        .unwrap();
    let probe = "exec 3<>/dev/tcp/127.0.0.1/6822; printf 'GET /healthz HTTP/1.0\\r\\n\\r\\n' >&3; head -1 <&3";
    let healthy = || {
        let answer = slurm(&namespace, &format!("timeout 2 bash -c \"{probe}\"")).unwrap();
        assert!(answer.contains("200 OK"), "{answer}");
    };
    healthy();
    namespace
        .ask(&["annotate", pod, "slinky.slurm.net/pod-cordon=true"])
        .unwrap();
    // slurmctld hangs within seconds, when it saves its state, and with it every order. The agent does not hang: it
    // responds to its probe, and the operator retries the order that could not be delivered. The volume is thawed
    // before slurmctld's own probe kills it.
    for _ in 0..8 {
        std::thread::sleep(Duration::from_secs(2));
        healthy();
    }

    frozen.heal().unwrap();
    wait_node(&namespace, node, &["DRAIN"], &[]).unwrap();
    namespace
        .ask(&["annotate", pod, "slinky.slurm.net/pod-cordon-"])
        .unwrap();
    wait_node(&namespace, node, &["State=IDLE"], &["DRAIN"]).unwrap();
}
