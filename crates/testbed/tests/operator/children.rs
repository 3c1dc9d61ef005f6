//! Foreign changes of the operator's objects.

use anyhow::Result;
use testbed::harness::{cluster, eventually, expect};

use crate::common::clusters::operator_namespace;
use crate::common::slurm::SOON;

/// Object, a field of the operator, an edit and an addition.
const CHILDREN: [(&str, &str, &str, &str); 3] = [
    (
        "service/slurm-controller",
        ".spec.ports},{.spec.selector",
        r#"{"spec":{"selector":{"app.kubernetes.io/name":"nobody"}}}"#,
        r#"{"spec":{"selector":{"more":"yes"}}}"#,
    ),
    (
        "configmap/slurm-config",
        ".data",
        r#"{"data":{"slurm.conf":"ClusterName=other\n"}}"#,
        r#"{"data":{"more.conf":"x"}}"#,
    ),
    (
        "statefulset/slurm-controller",
        ".spec",
        r#"{"spec":{"replicas":0}}"#,
        r#"{"spec":{"template":{"spec":{"containers":[{"name":"slurmctld","env":[{"name":"MORE","value":"x"}]}]}}}}"#,
    ),
];

#[test]
fn a_child_that_is_edited_extended_or_deleted_is_restored() {
    let namespace = operator_namespace(cluster(), "children");
    namespace
        .apply("{apiVersion: slinky.slurm.net/v1beta1, kind: Controller, metadata: {name: slurm}, spec: {}}")
        .unwrap();
    namespace.wait_new("condition=Ready", "controller/slurm").unwrap();
    for (child, ours, edit, addition) in CHILDREN {
        let wanted = namespace.field(child, ours).unwrap();
        let is_right = || -> Result<()> {
            let now = namespace.field(child, ours)?;
            expect(now == wanted, now)
        };
        for patch in [edit, addition] {
            let patched = namespace
                .ask(&[
                    "patch",
                    child,
                    "-p",
                    patch,
                    "-o",
                    "jsonpath={.metadata.resourceVersion}",
                ])
                .unwrap();
            eventually(&format!("{child} is right again after {patch}"), SOON, is_right).unwrap();
            assert_ne!(namespace.field(child, ".metadata.resourceVersion").unwrap(), patched);
        }
        let uid = namespace.uid(child).unwrap();
        namespace.ask(&["delete", child]).unwrap();
        eventually(&format!("{child} is there again"), SOON, is_right).unwrap();
        assert_ne!(namespace.uid(child).unwrap(), uid);
    }
    namespace.wait("condition=Ready", "controller/slurm").unwrap();
}
