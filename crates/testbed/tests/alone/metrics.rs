//! The operator's own metrics, with access control.

use serde_json::json;
use testbed::command::output;
use testbed::harness::{Namespace, alone, eventually, expect};
use testbed::paths;

use crate::common::operator::{PutBack, helm, install};
use crate::common::pods::shell_pod;
use crate::common::slurm::SOON;

#[test]
fn secure_metrics_require_permission() {
    let alone = alone();
    let cluster = alone.cluster;
    install(cluster);
    let _put_back = PutBack(cluster);
    let arguments = ["upgrade", "--wait", "--namespace", "slinky", "slurm-operator"];
    let chart = paths::repository().join("charts/slurm-operator");
    output(
        helm(cluster)
            .args(arguments)
            .arg(chart)
            .args(["--set", "operator.metricsSecure=true"]),
    )
    .unwrap();
    let namespace = Namespace::create(cluster, "reader").unwrap();
    namespace.apply(&shell_pod("one", &json!({}))).unwrap();
    namespace.wait("condition=Ready", "pod/one").unwrap();
    let token = namespace.ask(&["create", "token", "default"]).unwrap();
    let answers = |header: &str, expected: &str| {
        let url = "https://slurm-operator.slinky:8080/metrics";
        let line = format!("curl -sk -o /dev/null --max-time 5 -w '%{{http_code}}' -H '{header}' {url}");
        eventually(&format!("the response is {expected}"), SOON, || {
            let code = namespace.exec("one", &line)?;
            expect(code == expected, code)
        })
        .unwrap();
    };
    let bearer = format!("Authorization: Bearer {}", token.trim());
    answers("Accept: */*", "401");
    answers(&bearer, "403");
    let account = format!("--serviceaccount={}:default", namespace.name);
    let role = "--clusterrole=slurm-operator-metrics-reader";
    cluster
        .ask(&["create", "clusterrolebinding", &namespace.name, role, &account])
        .unwrap();
    answers(&bearer, "200");
    cluster.ask(&["delete", "clusterrolebinding", &namespace.name]).unwrap();
}
