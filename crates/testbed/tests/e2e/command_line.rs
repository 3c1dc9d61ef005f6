//! The `testbed` command line.

use std::os::unix::process::CommandExt;
use std::process::Command;

use testbed::command::output;
use testbed::harness::cluster;

use crate::common::command_line::testbed;

#[test]
fn without_root_the_command_fails_and_starts_nothing() {
    // Other users cannot read root's home, so the program and its state must be elsewhere.
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("testbed");
    std::fs::copy(testbed::sibling("testbed").unwrap(), &program).unwrap();
    output(Command::new("chmod").args(["-R", "a+rwX"]).arg(folder.path())).unwrap();
    let said = Command::new(&program)
        .arg("up")
        .env("HOME", folder.path())
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    assert!(!said.status.success());
    let words = String::from_utf8_lossy(&said.stderr).into_owned();
    assert_eq!(words.lines().count(), 1, "{words}");
    assert!(words.contains("must run as root"), "{words}");
}

#[test]
fn env_gives_any_client_access_over_loopback() {
    cluster();
    let lines = output(testbed(cluster()).arg("env")).unwrap();
    let line = format!("{lines}\nkubectl get nodes -o name && helm version --short && helm-unittest --help");
    let said = output(Command::new("bash").args(["-c", &line])).unwrap();
    assert!(
        said.contains("node/node1") && said.contains("v4.") && said.contains("unittest [flags] CHART"),
        "{said}"
    );

    let kubeconfig = lines.split('\'').nth(1).unwrap().to_owned();
    let server = std::fs::read_to_string(&kubeconfig).unwrap();
    assert!(server.contains("https://127.0.0.1:"), "{server}");
    let nodes = tokio::runtime::Runtime::new().unwrap().block_on(async {
        let kubeconfig = kube::config::Kubeconfig::read_from(kubeconfig).unwrap();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &kube::config::KubeConfigOptions::default())
            .await
            .unwrap();
        let client = kube::Client::try_from(config).unwrap();
        let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(client);
        nodes.list(&kube::api::ListParams::default()).await.unwrap().items.len()
    });
    assert_eq!(nodes, 3);
}

#[test]
fn status_and_logs_show_what_runs() {
    cluster();
    let status = output(testbed(cluster()).arg("status")).unwrap();
    for word in ["kube-apiserver", "etcd", "coredns", "node3", "kubelet", "containerd"] {
        assert!(status.contains(word), "{word} is missing:\n{status}");
    }
    assert!(!status.contains("ENDED"), "{status}");
    assert!(
        output(testbed(cluster()).args(["logs", "node1/kubelet"]))
            .unwrap()
            .contains("kubelet")
    );
    assert!(
        output(testbed(cluster()).arg("logs"))
            .unwrap()
            .contains("kube-apiserver.log")
    );
}
