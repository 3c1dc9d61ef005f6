//! A NodeSet that was created manually is adopted by Helm, with the commands of the guides.

use testbed::harness::{cluster, eventually, expect};

use crate::common::clusters::{install_chart, operator_namespace};
use crate::common::pods::lives;
use crate::common::slurm::{SOON, slurm, wait_idle};

const BY_HAND: &str = r"
apiVersion: slinky.slurm.net/v1beta1
kind: NodeSet
metadata:
  name: compute
spec:
  controllerRef:
    name: slurm
    namespace: NAMESPACE
  replicas: 1
  slurmd:
    image: ghcr.io/slinkyproject/slurmd:25.05-rockylinux9
  partition:
    enabled: true
";

/// The same as values of the chart, which has its own defaults for everything else.
const VALUES: &str = r"
nodesets:
  compute:
    enabled: true
    replicas: 1
    slurmd:
      image:
        repository: ghcr.io/slinkyproject/slurmd
        tag: 25.05-rockylinux9
    partition:
      enabled: true
";

#[test]
fn a_manually_created_nodeset_is_adopted_by_helm_and_no_pod_restarts() {
    let namespace = operator_namespace(cluster(), "adopt");
    install_chart(&namespace, "nodesets: {}\n").unwrap();
    namespace.apply(&BY_HAND.replace("NAMESPACE", &namespace.name)).unwrap();
    wait_idle(&namespace, 1).unwrap();
    let pods = || lives(&namespace);
    let (before, generation) = (
        pods().unwrap(),
        namespace.field("nodeset/compute", ".metadata.generation").unwrap(),
    );

    namespace
        .ask(&["label", "nodeset", "compute", "app.kubernetes.io/managed-by=Helm"])
        .unwrap();
    let release = format!("meta.helm.sh/release-namespace={}", namespace.name);
    namespace
        .ask(&[
            "annotate",
            "nodeset",
            "compute",
            "meta.helm.sh/release-name=slurm",
            &release,
        ])
        .unwrap();
    install_chart(&namespace, VALUES).unwrap();

    eventually("the chart's spec is applied, and every worker is updated", SOON, || {
        let seen = namespace.field(
            "nodeset/compute",
            ".metadata.generation},{.status.observedGeneration},{.status.updatedReplicas},{.status.conditions[?(@.type==\"Ready\")].status",
        )?;
        let words: Vec<&str> = seen.split(',').collect();
        expect(words[0] != generation && words[0] == words[1] && words[2..] == ["1", "True"], seen)
    })
    .unwrap();
    assert_eq!(
        namespace.ask(&["get", "nodesets", "-o", "name"]).unwrap(),
        "nodeset.slinky.slurm.net/compute\n"
    );
    assert_eq!(pods().unwrap(), before);
    assert_eq!(slurm(&namespace, "srun -p compute hostname").unwrap(), "compute-0\n");
}
