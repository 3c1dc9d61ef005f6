//! slurmctld's own metrics for Prometheus, with a ServiceMonitor.

use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::clusters::{ONE_WORKER, chart_cluster, install_chart};
use crate::common::slurm::{SOON, slurm};

/// A minimal definition of the Prometheus operator's kind.
const DEFINITION: &str = r"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: servicemonitors.monitoring.coreos.com
spec:
  group: monitoring.coreos.com
  names: {kind: ServiceMonitor, plural: servicemonitors, singular: servicemonitor}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        x-kubernetes-preserve-unknown-fields: true
";

const METRICS: &str = "controller:\n  metrics:\n    enabled: true\n    serviceMonitor:\n      enabled: true\n";

#[test]
fn a_service_monitor_is_created_with_its_kind_and_deleted_when_disabled() {
    let cluster = cluster();
    let namespace = chart_cluster(cluster, "metrics", &format!("{ONE_WORKER}{METRICS}"), 1);
    let degraded = || {
        namespace.field(
            "controller/slurm",
            ".status.conditions[?(@.type==\"Degraded\")].message",
        )
    };
    eventually("the Controller reports what is missing", SOON, || {
        let message = degraded()?;
        expect(message.contains("install the Prometheus operator"), message)
    })
    .unwrap();

    namespace.apply(DEFINITION).unwrap();
    let monitor = "servicemonitors.monitoring.coreos.com/slurm-controller";
    let endpoints = eventually("the ServiceMonitor is created", SOON, || {
        namespace.field(monitor, ".spec.endpoints[*].path")
    })
    .unwrap();
    assert_eq!(
        endpoints,
        "/metrics/jobs /metrics/nodes /metrics/partitions /metrics/scheduler"
    );
    for path in endpoints.split(' ') {
        let fetch = format!("curl -s -o /dev/null -w '%{{http_code}}' http://slurm-controller:6817{path}");
        assert_eq!(slurm(&namespace, &fetch).unwrap(), "200", "{path}");
    }

    install_chart(&namespace, ONE_WORKER).unwrap();
    namespace.wait("delete", monitor).unwrap();
    a_service_monitor_of_others_is_left_alone();
    // Other tests expect a cluster without the kind.
    cluster
        .ask(&["delete", "crd", "servicemonitors.monitoring.coreos.com"])
        .unwrap();
}

/// In this test, because other tests expect a cluster without the kind.
fn a_service_monitor_of_others_is_left_alone() {
    let namespace = Namespace::create(cluster(), "monitors").unwrap();
    let monitor = "servicemonitors.monitoring.coreos.com/slurm-controller";
    namespace
        .apply("{apiVersion: monitoring.coreos.com/v1, kind: ServiceMonitor, metadata: {name: slurm-controller}, spec: {theirs: 1}}")
        .unwrap();
    let version = || namespace.field(monitor, ".metadata.resourceVersion");
    let before = version().unwrap();
    namespace
        .apply("{apiVersion: slinky.slurm.net/v1beta1, kind: Controller, metadata: {name: slurm}, spec: {metrics: {enabled: true, serviceMonitor: {enabled: true}}}}")
        .unwrap();
    eventually("the Controller reports the owner of the name", SOON, || {
        let degraded = ".status.conditions[?(@.type==\"Degraded\")]";
        let said = namespace.field("controller/slurm", &format!("{degraded}.reason}},{{{degraded}.message"))?;
        let taken = said.starts_with("NameTaken,ServiceMonitor") && said.contains("slurm-controller already exists");
        expect(taken, said)
    })
    .unwrap();
    namespace.ask(&["delete", "controller", "slurm"]).unwrap();
    namespace.wait("delete", "statefulset/slurm-controller").unwrap();
    assert_eq!(version().unwrap(), before);
}
