//! Values files that no other test installs, one after another in one release.

use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::clusters::{chart_cluster, install_chart, operator_namespace};
use crate::common::slurm::{SOON, slurm, start_job, wait_done, wait_idle, wait_job, wait_node};

const PARTITIONS: &str = include_str!("../../../../examples/earlier-charts/partitions.yaml");
const PYXIS_OF_OLDER_GUIDES: &str = include_str!("../../../../examples/earlier-charts/pyxis.yaml");
const COMPUTE: &str = include_str!("../../../../examples/earlier-charts/compute.yaml");
const CACHE: &str = include_str!("../../../../examples/earlier-charts/enroot-cache.yaml");
const PYXIS: &str = include_str!("../../../../examples/pyxis/values.yaml");

const PLUGSTACK: &str = "include /usr/share/pyxis/*\n";
/// Directory of the files that slurmd and sackd get from slurmctld.
const SERVED: &str = "cat /run/slurm/conf/plugstack.conf";

/// Submits a job as root in a worker and waits for its end.
fn run_as_root(namespace: &Namespace, pod: &str, options: &str, line: &str) {
    let submit = format!("sbatch --parsable --chdir=/tmp -o /dev/null {options} --wrap '{line}'");
    let job = namespace.inside(pod, "slurmd", &submit).unwrap();
    wait_done(namespace, job.trim()).unwrap();
}

/// Runs a step on this number of nodes of a partition and returns their names. It uses sbatch, because a waiting srun
/// does not get its response here (docs/jobs.md).
fn run_on(namespace: &Namespace, partition: &str, nodes: usize) -> String {
    let submit = "sbatch --parsable --wait --chdir=/tmp -o /dev/null";
    let job = slurm(
        namespace,
        &format!("{submit} -p {partition} -N{nodes} --wrap 'srun true'"),
    )
    .unwrap();
    wait_done(namespace, job.trim()).unwrap();
    let shown = slurm(namespace, &format!("scontrol show job {} --oneliner", job.trim())).unwrap();
    let list = shown.split(' ').find_map(|word| word.strip_prefix("NodeList="));
    list.unwrap_or_default().to_owned()
}

/// Replaces a pod and waits until its successor is in Slurm.
fn replace(namespace: &Namespace, pod: &str, node: &str) {
    let uid = || namespace.uid(&format!("pod/{pod}"));
    let before = uid().unwrap();
    namespace.ask(&["delete", "pod", pod]).unwrap();
    eventually("another pod", SOON, || {
        let now = uid()?;
        expect(now != before, now)
    })
    .unwrap();
    wait_node(namespace, node, &["State=IDLE"], &["DRAIN", "DOWN"]).unwrap();
}

fn wait_served(namespace: &Namespace, place: &str) {
    eventually(&format!("plugstack.conf in {place}"), SOON, || {
        let text = namespace.exec(place, SERVED)?;
        expect(text == PLUGSTACK, text)
    })
    .unwrap();
}

#[test]
fn the_older_guides_values_install_one_after_another() {
    let namespace = operator_namespace(cluster(), "guides");

    // As many as there are nodes.
    let few = PARTITIONS
        .replace("replicas: 2", "replicas: 1")
        .replace("replicas: 8", "replicas: 2");
    install_chart(&namespace, &few).unwrap();
    wait_idle(&namespace, 3).unwrap();
    for (partition, nodes) in [
        ("compute", "compute-[0-1]"),
        ("debug", "compute-[0-1]"),
        ("gpu", "gpu-0"),
    ] {
        let count = if nodes == "gpu-0" { 1 } else { 2 };
        assert_eq!(run_on(&namespace, partition, count), nodes, "{partition}");
    }
    let limits = slurm(
        &namespace,
        "scontrol show partitions --oneliner | grep -o 'PartitionName=[a-z]*\\|MaxTime=[^ ]*'",
    )
    .unwrap();
    let limits: Vec<&str> = limits.lines().collect();
    for (partition, limit) in [("debug", "00:30:00"), ("gpu", "1-00:00:00")] {
        let (name, time) = (format!("PartitionName={partition}"), format!("MaxTime={limit}"));
        assert!(
            limits.windows(2).any(|pair| pair == [name.as_str(), time.as_str()]),
            "{limits:?}"
        );
    }

    // Helm treats a set that is still being deleted as existing.
    let gone = |set: &str| {
        namespace
            .wait("delete", &format!("nodeset/slurm-worker-{set}"))
            .unwrap();
    };
    install_chart(&namespace, PYXIS_OF_OLDER_GUIDES).unwrap();
    wait_idle(&namespace, 1).unwrap();
    wait_served(&namespace, "slurm-worker-pyxis-0 -c slurmd");

    gone("compute");
    install_chart(&namespace, COMPUTE).unwrap();
    wait_idle(&namespace, 3).unwrap();
    assert_eq!(run_on(&namespace, "compute", 3), "compute-[0-2]");

    gone("pyxis");
    install_chart(&namespace, &format!("{CACHE}partitions: {{all: {{enabled: true}}}}\n")).unwrap();
    wait_idle(&namespace, 1).unwrap();
    let worker = "slurm-worker-pyxis-0";
    run_as_root(&namespace, worker, "", "echo kept >/var/cache/enroot/image");
    replace(&namespace, worker, "pyxis-0");
    let kept = namespace.inside(worker, "slurmd", "cat /var/cache/enroot/image");
    assert_eq!(kept.unwrap(), "kept\n");
}

#[test]
fn workers_for_containers_have_plugstack_conf_and_a_persistent_cache() {
    let namespace = chart_cluster(cluster(), "pyxis", PYXIS, 1);
    let (first, second) = ("slurm-worker-pyxis-0", "slurm-worker-pyxis-1");
    let runs = start_job(&namespace, "-w pyxis-0", "sleep 30").unwrap();
    namespace
        .ask(&["scale", "nodeset/slurm-worker-pyxis", "--replicas=2"])
        .unwrap();
    wait_node(&namespace, "pyxis-1", &["State=IDLE"], &[]).unwrap();
    wait_job(&namespace, &runs, "RUNNING").unwrap();
    slurm(&namespace, &format!("scancel {runs}")).unwrap();
    for place in [first, second] {
        wait_served(&namespace, &format!("{place} -c slurmd"));
        let privileged = ".spec.containers[?(@.name==\"slurmd\")].securityContext.privileged";
        assert_eq!(namespace.field(&format!("pod/{place}"), privileged).unwrap(), "true");
    }
    wait_served(&namespace, "deploy/slurm-login-pyxis -c login");
    // The first step of enroot, which requires privileges.
    run_as_root(
        &namespace,
        first,
        "-N2",
        "srun unshare --mount mount -t tmpfs none /mnt",
    );

    // Users write to the volume of their worker, which others do not see.
    wait_idle(&namespace, 2).unwrap();
    let write = r#"srun sh -c "mkdir -p /var/cache/enroot/$(id -u) && hostname >/var/cache/enroot/$(id -u)/image""#;
    let submit = format!("sbatch --parsable --wait --chdir=/tmp -o /dev/null -N2 --wrap '{write}'");
    let job = slurm(&namespace, &submit).unwrap();
    wait_done(&namespace, job.trim()).unwrap();
    let user = slurm(&namespace, "id -u").unwrap();
    replace(&namespace, second, "pyxis-1");
    for (pod, node) in [(first, "pyxis-0\n"), (second, "pyxis-1\n")] {
        let read = format!("cat /var/cache/enroot/{}/image", user.trim());
        assert_eq!(namespace.inside(pod, "slurmd", &read).unwrap(), node);
        let claim = format!("pvc/enroot-cache-{pod}");
        assert_eq!(namespace.field(&claim, ".status.phase").unwrap(), "Bound");
    }
}
