//! The charts' NetworkPolicies, enforced: everything works, and others are kept out.

use std::mem::ManuallyDrop;

use anyhow::Result;
use serde_json::json;
use testbed::cluster::Cluster;
use testbed::command::output;
use testbed::harness::{Namespace, alone, eventually, expect};
use testbed::paths;
use testbed::policies::{Enforcement, Rejected};

use crate::common::clusters::{change_spec, configuration_applied, install_chart, operator_namespace, wait_said};
use crate::common::kills::operator_pods;
use crate::common::operator::{PutBack, helm};
use crate::common::pods::shell_pod;
use crate::common::slurm::{
    SOON, slurm, slurm_conf, slurmrestd_pod, start_job, submit_job, wait_done, wait_idle, wait_node,
};

const MARIADB: &str = include_str!("../../../../examples/accounting/mariadb.yaml");
const VALUES: &str = include_str!("../../../../examples/accounting/values.yaml");

/// Whether a pod can connect to this address.
fn reaches(namespace: &Namespace, pod: &str, target: &str) -> Result<bool> {
    // Slurm's daemons do not answer HTTP, so only the connection counts.
    let line = format!("curl -s -o /dev/null --max-time 2 -w '%{{time_connect}}' http://{target}/ || true");
    let seconds: f64 = namespace.exec(pod, &line)?.trim().parse()?;
    Ok(seconds > 0.0)
}

/// Those of the targets that a pod reaches.
fn reached<'a>(namespace: &Namespace, pod: &str, targets: &[&'a str]) -> Result<Vec<&'a str>> {
    let mut reached = Vec::new();
    for target in targets {
        if reaches(namespace, pod, target)? {
            reached.push(*target);
        }
    }
    Ok(reached)
}

/// Installs the operator with its policies.
fn install_operator(cluster: &Cluster) {
    let mut upgrade = helm(cluster);
    upgrade.args(["upgrade", "--wait", "--namespace=slinky", "slurm-operator"]);
    upgrade.arg(paths::repository().join("charts/slurm-operator"));
    upgrade.args(["--set=networkPolicy.enabled=true", "--set=privilegedTokenUsers={slurm}"]);
    output(&mut upgrade).unwrap();
}

/// Installs a Slurm cluster with accounting, two workers, a login pod and its policies.
fn install_cluster(namespace: &Namespace) {
    let password = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "mariadb-password"}, "stringData": {"password": "secret"},
    });
    namespace.apply(&password.to_string()).unwrap();
    namespace.apply(MARIADB).unwrap();
    let values = VALUES.replace("replicas: 1", "replicas: 2");
    let login = "loginsets:\n  slinky:\n    replicas: 1\n";
    install_chart(namespace, &format!("networkPolicy:\n  enabled: true\n{login}{values}")).unwrap();
    wait_idle(namespace, 2).unwrap();
    namespace
        .wait("condition=Ready", "loginset/slurm-login-slinky")
        .unwrap();
    wait_said(namespace, "accounting/slurm", "Ready", &["True"]);
}

/// Jobs over both workers, with their output, and accounting.
fn jobs_and_accounting_work(namespace: &Namespace) {
    let srun = "srun -N2 -p all hostname";
    let of_login = namespace.exec("deploy/slurm-login-slinky -c login", srun);
    for hosts in [slurm(namespace, srun), of_login] {
        let hosts = hosts.unwrap();
        assert_eq!(hosts.lines().count(), 2, "{hosts}");
    }
    let job = submit_job(namespace, "-p all -N2", "srun hostname").unwrap();
    wait_done(namespace, &job).unwrap();
    eventually("the job is recorded", SOON, || {
        let ask = format!("sacct --noheader --parsable2 --allocations --jobs={job} --format=State");
        let said = slurm(namespace, &ask)?;
        expect(said.trim() == "COMPLETED", said)
    })
    .unwrap();
}

/// A drain with a job, a scale-in, a scale-out, and configuration.
fn drains_scaling_and_configuration_work(namespace: &Namespace) {
    // The worker that is not ready in Kubernetes would be removed first.
    for pod in ["pod/slurm-worker-slinky-0", "pod/slurm-worker-slinky-1"] {
        namespace.wait("condition=Ready", pod).unwrap();
    }
    let cost = "nodeset.slinky.slurm.net/pod-deletion-cost=-1";
    namespace.ask(&["annotate", "pod/slurm-worker-slinky-1", cost]).unwrap();
    let job = start_job(namespace, "-p all -w slinky-1", "sleep 30").unwrap();
    let scale = |replicas: &str| namespace.ask(&["scale", "nodeset/slurm-worker-slinky", replicas]);
    scale("--replicas=1").unwrap();
    wait_node(
        namespace,
        "slinky-1",
        &["DRAIN", "is pending termination for scale-in"],
        &[],
    )
    .unwrap();
    wait_done(namespace, &job).unwrap();
    namespace.wait("delete", "pod/slurm-worker-slinky-1").unwrap();
    scale("--replicas=2").unwrap();
    wait_idle(namespace, 2).unwrap();

    // The agent takes configuration.
    let old = namespace.field("controller/slurm", ".spec.extraConf").unwrap();
    change_spec(
        namespace,
        "controller/slurm",
        &json!({"extraConf": format!("{old}\nMaxJobCount=4321\n")}),
    )
    .unwrap();
    eventually("slurmctld has the new configuration", SOON, || {
        let shown = slurm(namespace, "scontrol show config")?;
        expect(shown.contains("MaxJobCount             = 4321"), shown)?;
        expect(slurm_conf(namespace)?.contains("MaxJobCount=4321"), "slurm.conf")?;
        let status = configuration_applied(namespace, "status")?;
        expect(status == "True", status)
    })
    .unwrap();
}

/// Of the pods that ran all the time, only those of others were rejected. A new worker is rejected until the rules have its address.
fn only_others_were_rejected(enforcement: &Enforcement, namespace: &Namespace, stranger: &Namespace) {
    let rejected = enforcement.rejected();
    let daemons = ["controller", "accounting", "restapi"].map(|daemon| format!("{}/slurm-{daemon}-", namespace.name));
    let operator = "slinky/slurm-operator-".to_owned();
    for own in daemons.iter().chain([&operator]) {
        let of_own: Vec<_> = rejected
            .iter()
            .filter(|rejected| rejected.source.starts_with(own))
            .collect();
        assert!(of_own.is_empty(), "{of_own:?}");
    }
    let shell = format!("{}/shell", stranger.name);
    let of_stranger = |rejected: &Rejected| rejected.source == shell;
    assert!(rejected.iter().any(of_stranger), "{rejected:?}");
}

#[test]
fn a_cluster_behind_policies_works_and_is_closed_to_others() {
    let alone = alone();
    let cluster = alone.cluster;
    let namespace = operator_namespace(cluster, "policies");
    let _put_back = PutBack(cluster);
    install_operator(cluster);
    install_cluster(&namespace);

    let stranger = Namespace::create(cluster, "stranger").unwrap();
    stranger.apply(&shell_pod("shell", &json!({}))).unwrap();
    stranger.wait("condition=Ready", "pod/shell").unwrap();
    let address = |pod: &str| namespace.field(&format!("pod/{pod}"), ".status.podIP").unwrap();
    let operator = operator_pods(cluster).unwrap().remove(0);
    let operator = [
        "get",
        "pod",
        &operator,
        "--namespace=slinky",
        "-o",
        "jsonpath={.status.podIP}",
    ];
    let targets = [
        format!("{}:6817", address("slurm-controller-0")),
        format!("{}:6822", address("slurm-controller-0")),
        format!("{}:6819", address("slurm-accounting-0")),
        format!("{}:6820", address(&slurmrestd_pod(&namespace).unwrap())),
        format!("{}:6818", address("slurm-worker-slinky-0")),
        format!("{}:8080", cluster.ask(&operator).unwrap()),
    ];
    let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
    let open = reached(&stranger, "shell", &targets).unwrap();
    assert_eq!(open, targets, "without enforcement");

    let enforcement = Enforcement::begin(cluster);
    eventually("nothing is reached from another namespace", SOON, || {
        let open = reached(&stranger, "shell", &targets)?;
        expect(open.is_empty(), (open, enforcement.problem()))
    })
    .unwrap();
    let login = [
        "get",
        "pods",
        "--selector=app.kubernetes.io/name=login",
        "-o",
        "jsonpath={.items[0].status.podIP}",
    ];
    let ssh = format!("{}:22", namespace.ask(&login).unwrap());
    assert!(reaches(&stranger, "shell", &ssh).unwrap(), "everybody may log in");
    // A pod of another application in the cluster's own namespace.
    namespace.apply(&shell_pod("other", &json!({}))).unwrap();
    namespace.wait("condition=Ready", "pod/other").unwrap();
    assert_eq!(reached(&namespace, "other", &targets).unwrap(), Vec::<&str>::new());
    // A job reaches Slurm, but neither the agent nor slurmrestd.
    let connect = |target: &str| {
        let (host, port) = target.split_once(':').unwrap();
        let line = format!("timeout 2 bash -c '</dev/tcp/{host}/{port}'");
        namespace.inside("slurm-worker-slinky-0", "slurmd", &line).is_ok()
    };
    let of_job: Vec<&str> = targets.iter().copied().filter(|target| connect(target)).collect();
    assert_eq!(of_job, [targets[0], targets[2], targets[4]]);

    jobs_and_accounting_work(&namespace);
    drains_scaling_and_configuration_work(&namespace);

    // Whoever has the operator's label in its namespace reaches slurmrestd, slurmctld and its agent.
    let mut as_operator: serde_json::Value = serde_json::from_str(&shell_pod("as-operator", &json!({}))).unwrap();
    as_operator["metadata"]["labels"] = json!({"app.kubernetes.io/name": "slurm-operator"});
    // Dropping it would delete the operator's namespace.
    let slinky = ManuallyDrop::new(Namespace {
        cluster,
        name: "slinky".to_owned(),
    });
    slinky.apply(&as_operator.to_string()).unwrap();
    slinky.wait("condition=Ready", "pod/as-operator").unwrap();
    eventually("slurmrestd, slurmctld and the agent are reached", SOON, || {
        let open = reached(&slinky, "as-operator", &targets)?;
        expect(
            open == [targets[0], targets[1], targets[3]],
            (open, enforcement.problem()),
        )
    })
    .unwrap();
    slinky.ask(&["delete", "pod/as-operator", "--now"]).unwrap();

    // Probes of kubelets passed all the time.
    let ready = namespace.field(
        "pod/slurm-controller-0",
        ".status.conditions[?(@.type==\"Ready\")].status",
    );
    assert_eq!(ready.unwrap(), "True");
    assert_eq!(enforcement.problem(), None);
    only_others_were_rejected(&enforcement, &namespace, &stranger);
    drop(enforcement);
    assert_eq!(
        reached(&stranger, "shell", &targets).unwrap(),
        targets,
        "enforcement has ended"
    );
}
