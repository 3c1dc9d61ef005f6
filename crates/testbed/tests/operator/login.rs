//! People of a real directory, in login pods and workers; ssh with the host keys that were made.

use anyhow::Result;
use serde_json::{Value, json};
use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::operator::{SOON, install, install_chart, wait_idle};
use crate::common::pods::shell_pod;

const VALUES: &str = include_str!("../../../../examples/login/values.yaml");
const HOME: &str = include_str!("../../../../examples/login/home.yaml");
const LDAP: &str = include_str!("ldap.yaml");

const LOGIN: &str = "deploy/slurm-login-slinky";
const LOGIN_SET: &str = "loginset/slurm-login-slinky";

fn wait_condition(namespace: &Namespace, object: &str, type_: &str, words: &str) {
    // Host keys take a busy machine a while.
    eventually(&format!("{type_} of {object} says {words:?}"), SOON * 2, || {
        let path = format!(".status.conditions[?(@.type==\"{type_}\")].");
        let said = namespace.field(object, &format!("{path}status}} {{{path}reason}} {{{path}message"))?;
        expect(said.contains(words), said)
    })
    .unwrap();
}

fn change(namespace: &Namespace, object: &str, spec: &Value) {
    let patch = json!({ "spec": spec }).to_string();
    namespace
        .ask(&["patch", object, "--type=merge", "--patch", &patch])
        .unwrap();
}

/// Runs a line as root of a login pod, by key; the client knows the host's key and accepts no other.
fn ssh(namespace: &Namespace, line: &str) -> Result<String> {
    namespace.exec(
        "client",
        &format!("ssh -o BatchMode=yes root@slurm-login-slinky {line:?}"),
    )
}

fn wait_ssh(namespace: &Namespace) {
    eventually("root can log in and use Slurm", SOON, || ssh(namespace, "sinfo")).unwrap();
}

fn begin() -> Namespace {
    let cluster = cluster();
    install(cluster);
    let namespace = Namespace::create(cluster, "login").unwrap();
    for manifest in [LDAP, HOME, &shell_pod("client", &json!({}))] {
        namespace.apply(manifest).unwrap();
    }
    // sssd that finds nobody waits for a minute before it looks again.
    namespace.rollout("deploy/ldap").unwrap();
    install_chart(cluster, &namespace, VALUES).unwrap();
    wait_idle(&namespace, 1).unwrap();
    wait_condition(&namespace, LOGIN_SET, "Ready", "True");
    namespace.wait("condition=Ready", "pod/client").unwrap();
    namespace
}

/// The checks of the older documents, where people log in and where their jobs run.
fn check_users(namespace: &Namespace) {
    for place in [&format!("{LOGIN} -c login"), "slurm-worker-slinky-0 -c slurmd"] {
        eventually(&format!("{place} knows alice"), SOON, || {
            let found = namespace.exec(place, "getent passwd alice")?;
            expect(found.starts_with("alice:*:5001:5000:"), found)
        })
        .unwrap();
        let groups = namespace.exec(place, "id alice").unwrap();
        assert_eq!(groups.trim(), "uid=5001(alice) gid=5000(science) groups=5000(science)");
        let order = namespace.exec(place, "grep ^passwd: /etc/nsswitch.conf").unwrap();
        let order: Vec<&str> = order.split_whitespace().collect();
        assert_eq!(order, ["passwd:", "files", "sss"], "{place}");
        let local = namespace.exec(place, "getent passwd daemon | cut -d: -f3").unwrap();
        assert_eq!(local.trim(), "1", "the container's own account wins");
        let asked = "getent -s sss passwd alice daemon root slurm | cut -d: -f1,3";
        let asked = namespace.exec(place, asked).unwrap();
        assert_eq!(
            asked, "alice:5001\ndaemon:6001\n",
            "root and slurm are not asked of the directory"
        );
    }
    let who = namespace.exec(&format!("{LOGIN} -c login"), "su - alice -c 'whoami; id -u'");
    assert_eq!(who.unwrap(), "alice\n5001\n");
    namespace.exec(&format!("{LOGIN} -c login"), "nc -zv ldap 389").unwrap();
    let log = namespace.ask(&["logs", LOGIN, "--container=login"]).unwrap();
    assert!(log.contains("[sssd"), "sssd speaks in the container's log: {log}");
}

/// Gives the client a key that is root's, and the host's keys as they are in their Secret.
fn let_root_in(namespace: &Namespace) {
    let line = "mkdir -p ~/.ssh; ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519; cat ~/.ssh/id_ed25519.pub";
    let key = namespace.exec("client", line).unwrap();
    let get = ["get", "secret", "slurm-login-slinky-ssh-host-keys", "-o", "json"];
    let secret: Value = serde_json::from_str(&namespace.ask(&get).unwrap()).unwrap();
    let known = ["rsa", "ecdsa", "ed25519"].map(|kind| {
        let encoded = secret["data"][format!("ssh_host_{kind}_key.pub")].as_str().unwrap();
        format!("echo slurm-login-slinky $(echo {encoded} | base64 -d); ")
    });
    let known = known.concat();
    namespace
        .exec(
            "client",
            &format!("{{ {known} }} | sort | tee /tmp/host_keys >~/.ssh/known_hosts"),
        )
        .unwrap();
    change(namespace, LOGIN_SET, &json!({ "rootSshAuthorizedKeys": key }));
    wait_ssh(namespace);
    let scan = "ssh-keyscan -q -t rsa,ecdsa,ed25519 slurm-login-slinky | sort | diff - /tmp/host_keys";
    namespace.exec("client", scan).unwrap();
}

#[test]
fn login_pods_and_workers_know_the_people_of_a_directory_and_root_logs_in_by_key() {
    let namespace = begin();
    check_users(&namespace);
    let_root_in(&namespace);
}
