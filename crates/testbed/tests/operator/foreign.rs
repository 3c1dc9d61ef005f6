//! Foreign objects with the names of children.

use std::time::Duration;

use anyhow::Result;
use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::clusters::operator_namespace;
use crate::common::slurm::SOON;

/// Created before Slurm is installed. The StatefulSet has a label of slurmctld and no pods.
const STRANGERS: &str = r"
{apiVersion: v1, kind: Service, metadata: {name: victim}, spec: {selector: {app: theirs}, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: slurm-workers-slurm}, spec: {selector: {app: theirs}, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: victim-ssh-config}, data: {theirs: kept}}
---
{apiVersion: v1, kind: Secret, metadata: {name: slurm-accounting}, stringData: {theirs: kept}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: slurm-controller, labels: {app.kubernetes.io/name: slurmctld}}
spec:
  replicas: 0
  serviceName: theirs
  selector: {matchLabels: {app: theirs}}
  template:
    metadata: {labels: {app: theirs}}
    spec:
      nodeSelector: {kubernetes.io/hostname: nowhere}
      containers: [{name: theirs, image: theirs}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: slurm-restapi}
spec:
  replicas: 0
  selector: {matchLabels: {app: theirs}}
  template:
    metadata: {labels: {app: theirs}}
    spec: {containers: [{name: theirs, image: theirs}]}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: slurm-workers-pdb-slurm}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: theirs}}}
---
apiVersion: v1
kind: Pod
metadata: {name: compute-0}
spec:
  nodeSelector: {kubernetes.io/hostname: nowhere}
  containers: [{name: theirs, image: theirs}]
";

/// Each needs names that are taken. Their other requirements exist.
const OBJECTS: &str = r"
{apiVersion: v1, kind: Secret, metadata: {name: given}, stringData: {password: x, sssd.conf: '[sssd]'}}
---
{apiVersion: slinky.slurm.net/v1beta1, kind: Controller, metadata: {name: slurm}, spec: {}}
---
{apiVersion: slinky.slurm.net/v1beta1, kind: RestApi, metadata: {name: slurm}, spec: {controllerRef: {name: slurm}}}
---
apiVersion: slinky.slurm.net/v1beta1
kind: NodeSet
metadata: {name: compute}
spec: {controllerRef: {name: slurm}, replicas: 1}
---
apiVersion: slinky.slurm.net/v1beta1
kind: LoginSet
metadata: {name: victim}
spec: {controllerRef: {name: slurm}, replicas: 0, sssdConfRef: {name: given, key: sssd.conf}}
---
apiVersion: slinky.slurm.net/v1beta1
kind: Accounting
metadata: {name: slurm}
spec:
  slurmKeyRef: {name: slurm-auth-slurm, key: slurm.key}
  jwtKeyRef: {name: slurm-auth-jwt, key: jwt.key}
  storageConfig: {host: nowhere, passwordKeyRef: {name: given, key: password}}
";

/// The foreign object, and the object that needs its name.
const PLACES: [(&str, &str, &str); 8] = [
    ("Service", "victim", "LoginSet/victim"),
    ("ConfigMap", "victim-ssh-config", "LoginSet/victim"),
    ("Secret", "slurm-accounting", "Accounting/slurm"),
    ("StatefulSet", "slurm-controller", "Controller/slurm"),
    ("Deployment", "slurm-restapi", "RestApi/slurm"),
    ("Service", "slurm-workers-slurm", "NodeSet/compute"),
    ("PodDisruptionBudget", "slurm-workers-pdb-slurm", "NodeSet/compute"),
    ("Pod", "compute-0", "NodeSet/compute"),
];

/// The fields that the operator could change. Kubernetes' own controllers write to statuses.
fn look(namespace: &Namespace) -> Result<Vec<String>> {
    let seen =
        ".metadata.uid},{.metadata.deletionTimestamp},{.metadata.labels},{.metadata.ownerReferences},{.spec},{.data";
    let look = |(kind, name, _)| {
        let object = format!("{kind}/{name}");
        let managers = namespace.field(&object, ".metadata.managedFields[*].manager")?;
        expect(!managers.contains("slurm-operator"), (&object, managers))?;
        namespace.field(&object, seen)
    };
    PLACES.into_iter().map(look).collect()
}

fn names_are_taken(namespace: &Namespace) {
    for (kind, name, wants) in PLACES {
        eventually(&format!("{wants} says whose {kind} {name} is"), SOON, || {
            for condition in ["Ready", "Degraded"] {
                let path = format!(".status.conditions[?(@.type==\"{condition}\")]");
                let said = namespace.field(wants, &format!("{path}.reason}},{{{path}.message"))?;
                let whose = format!("{kind} {}/{name} already exists and has no owner", namespace.name);
                expect(said.starts_with("NameTaken,") && said.contains(&whose), said)?;
            }
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn foreign_objects_with_the_names_of_children_are_neither_changed_nor_deleted() {
    let namespace = operator_namespace(cluster(), "foreign");
    namespace.apply(STRANGERS).unwrap();
    let before = look(&namespace).unwrap();
    namespace.apply(OBJECTS).unwrap();
    names_are_taken(&namespace);
    assert_eq!(look(&namespace).unwrap(), before);

    let kinds = "controllers,restapis,nodesets,loginsets,accountings";
    namespace.ask(&["delete", kinds, "--all", "--timeout=120s"]).unwrap();
    // The garbage collector has deleted the children.
    eventually("nothing of them is left", SOON, || {
        let left = namespace.ask(&["get", "services", "-o", "jsonpath={.items[*].metadata.name}"])?;
        expect(left.split(' ').count() == 2, left)
    })
    .unwrap();
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(look(&namespace).unwrap(), before);

    namespace.apply(OBJECTS).unwrap();
    names_are_taken(&namespace);
    for (kind, name, _) in PLACES {
        namespace.ask(&["delete", kind, name, "--wait=false"]).unwrap();
    }
    for (kind, name, wants) in PLACES {
        eventually(&format!("{kind} {name} is made for {wants}"), SOON, || {
            let owners = namespace.field(
                &format!("{kind}/{name}"),
                ".metadata.ownerReferences[0].kind}/{.metadata.ownerReferences[0].name",
            )?;
            expect(owners == wants, owners)
        })
        .unwrap();
    }
}
