//! Controller and NodeSet as in the guides, without a chart.

use testbed::harness::{cluster, eventually, expect};

use crate::common::clusters::{CONTROLLER, operator_namespace};
use crate::common::slurm::{SOON, slurm, start_job, wait_idle, wait_job};

const NODESET: &str = r"
apiVersion: slinky.slurm.net/v1beta1
kind: NodeSet
metadata:
  name: compute
spec:
  controllerRef:
    name: slurm
    namespace: NAMESPACE
  replicas: 2
  oversubscribeNode: true
  slurmd:
    image: ghcr.io/slinkyproject/slurmd:25.05-rockylinux9
  partition:
    config: Default=YES MaxTime=7-00:00:00 State=UP
";

#[test]
fn a_running_job_survives_scaling_out_and_in() {
    let namespace = operator_namespace(cluster(), "scale");
    namespace.apply(CONTROLLER).unwrap();
    namespace.apply(&NODESET.replace("NAMESPACE", &namespace.name)).unwrap();
    wait_idle(&namespace, 2).unwrap();
    let seen = namespace
        .ask(&["get", "pods", "-l", "slinky.slurm.net/component=slurmd", "-o", "name"])
        .unwrap();
    assert_eq!(seen.lines().count(), 2, "{seen}");

    namespace.ask(&["scale", "nodeset/compute", "--replicas=4"]).unwrap();
    wait_idle(&namespace, 4).unwrap();
    // On the node that a scale-in would remove first.
    let job = start_job(&namespace, "-w compute-3 -p compute", "sleep 20").unwrap();

    namespace.ask(&["scale", "nodeset/compute", "--replicas=1"]).unwrap();
    wait_job(&namespace, &job, "COMPLETED").unwrap();
    wait_idle(&namespace, 1).unwrap();
    eventually("one pod is left", SOON, || {
        let pods = namespace.ask(&["get", "pods", "-l", "slinky.slurm.net/component=slurmd", "-o", "name"])?;
        expect(pods.lines().count() == 1, pods)
    })
    .unwrap();
    let restarts = slurm(&namespace, &format!("scontrol show job {job}")).unwrap();
    assert!(restarts.contains("Restarts=0"), "{restarts}");
}
