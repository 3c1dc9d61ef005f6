//! Users of a real directory log in by ssh and submit jobs, while the configuration of the login pod changes or is
//! wrong.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::clusters::{change_spec, install_chart, operator_namespace, wait_said};
use crate::common::pods::{shell_pod, uids};
use crate::common::shell::Shell;
use crate::common::slurm::{SOON, slurm, wait_done, wait_idle, wait_job};

const VALUES: &str = include_str!("../../../../examples/login/values.yaml");
const HOME: &str = include_str!("../../../../examples/login/home.yaml");

const LOGIN: &str = "deploy/slurm-login-slinky";
const LOGIN_SET: &str = "loginset/slurm-login-slinky";
const WORKER: &str = "slurm-worker-slinky-0";
/// A NodePort, which no other test uses.
const NODE_PORT: u16 = 31722;

/// Runs a command in the client pod.
pub(crate) fn client(namespace: &Namespace, line: &str) -> Result<String> {
    namespace.inside("client", "shell", line)
}

/// Runs a command as root of a login pod, by key; the client accepts only the known host key.
pub(crate) fn ssh(namespace: &Namespace, line: &str) -> Result<String> {
    client(
        namespace,
        &format!("ssh -o BatchMode=yes -o ConnectTimeout=5 root@slurm-login-slinky {line:?}"),
    )
}

/// Runs a command as a user of the directory, by password.
fn ssh_as_alice(namespace: &Namespace, line: &str) -> Result<String> {
    let command = format!(
        "printf '#!/bin/sh\\necho wonderland\\n' >/tmp/word; chmod +x /tmp/word; \
         SSH_ASKPASS=/tmp/word SSH_ASKPASS_REQUIRE=force \
         ssh -o PubkeyAuthentication=no -o ConnectTimeout=5 alice@slurm-login-slinky {line:?}"
    );
    client(namespace, &command)
}

fn wait_ssh(namespace: &Namespace) {
    eventually("root can log in and use Slurm", SOON, || ssh(namespace, "sinfo")).unwrap();
}

/// The only login pod, by its UID.
fn login_pod(namespace: &Namespace) -> Result<String> {
    let found = uids(namespace, "app.kubernetes.io/name=login")?;
    expect(found.len() == 1, &found)?;
    Ok(found.concat())
}

fn uid(namespace: &Namespace, pod: &str) -> Result<String> {
    namespace.uid(&format!("pod/{pod}"))
}

fn sssd_conf(namespace: &Namespace) -> String {
    let encoded = namespace.field("secret/slurm-sssd-conf", r".data.sssd\.conf").unwrap();
    client(namespace, &format!("echo {encoded} | base64 -d")).unwrap()
}

fn set_sssd_conf(namespace: &Namespace, conf: &str) {
    let patch = json!({ "stringData": { "sssd.conf": conf } }).to_string();
    namespace
        .ask(&["patch", "secret", "slurm-sssd-conf", "--patch", &patch])
        .unwrap();
}

fn begin() -> Namespace {
    let namespace = operator_namespace(cluster(), "login");
    for manifest in [HOME, &shell_pod("client", &json!({}))] {
        namespace.apply(manifest).unwrap();
    }
    // It returns when the directory serves: sssd waits for a minute after a failed connection.
    let directory = "hack/test-directory ~ && kubectl create configmap ldap-ca --from-file ~/ca.crt";
    Shell::open(namespace.cluster, &namespace).run(directory).unwrap();
    install_chart(&namespace, &VALUES.replace("ldap.example.org", "ldap")).unwrap();
    wait_idle(&namespace, 1).unwrap();
    wait_said(&namespace, LOGIN_SET, "Ready", &["True"]);
    namespace.wait("condition=Ready", "pod/client").unwrap();
    namespace
}

/// The checks of the older documents, in a login pod and in a worker.
fn check_users(namespace: &Namespace) {
    for place in &[format!("{LOGIN} -c login"), format!("{WORKER} -c slurmd")] {
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
    namespace.exec(&format!("{LOGIN} -c login"), "nc -zv ldap 636").unwrap();
    let log = namespace.ask(&["logs", LOGIN, "--container=login"]).unwrap();
    assert!(log.contains("[sssd"), "sssd speaks in the container's log: {log}");
}

/// Gives the client a key of root, and the host keys from their Secret.
pub(crate) fn let_root_in(namespace: &Namespace) -> String {
    let line = "mkdir -p ~/.ssh; ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519; cat ~/.ssh/id_ed25519.pub";
    let key = client(namespace, line).unwrap();
    let get = ["get", "secret", "slurm-login-slinky-ssh-host-keys", "-o", "json"];
    let secret: Value = serde_json::from_str(&namespace.ask(&get).unwrap()).unwrap();
    let known = ["rsa", "ecdsa", "ed25519"].map(|kind| {
        let encoded = secret["data"][format!("ssh_host_{kind}_key.pub")].as_str().unwrap();
        format!("echo slurm-login-slinky $(echo {encoded} | base64 -d); ")
    });
    let known = known.concat();
    client(
        namespace,
        &format!("{{ {known} }} | sort | tee /tmp/host_keys >~/.ssh/known_hosts"),
    )
    .unwrap();
    change_spec(namespace, LOGIN_SET, &json!({ "rootSshAuthorizedKeys": key })).unwrap();
    wait_ssh(namespace);
    let scan = "ssh-keyscan -q -t rsa,ecdsa,ed25519 slurm-login-slinky | sort | diff - /tmp/host_keys";
    client(namespace, scan).unwrap();
    key
}

/// sbatch by ssh; what the job writes is on storage that login pods see.
fn submit(namespace: &Namespace) {
    let out = "/home/alice/out.txt";
    let job = format!("sbatch --wait --partition=all --output={out} --wrap='id -un; hostname'");
    eventually("alice can log in", SOON, || ssh_as_alice(namespace, "true")).unwrap();
    ssh_as_alice(namespace, &job).unwrap();
    let written = ssh_as_alice(namespace, &format!("cat {out}")).unwrap();
    assert_eq!(written, "alice\nslinky-0\n");
}

/// /run/slurm holds the configuration of all users' commands, so users cannot write there.
fn nobody_but_slurm_writes_to_its_directory(namespace: &Namespace) {
    let found = namespace.exec(&format!("{LOGIN} -c login"), "stat -c '%a %U' /run/slurm");
    assert_eq!(found.unwrap(), "755 slurm\n");
    let refused = ssh_as_alice(namespace, "mkdir /run/slurm/mine")
        .unwrap_err()
        .to_string();
    assert!(refused.contains("Permission denied"), "{refused}");
}

/// A job's user cannot write into the log of the slurmd that runs the job.
fn a_job_cannot_write_slurmds_log(namespace: &Namespace) {
    let (out, log) = ("/home/alice/forged.txt", "/var/log/slurm/slurmd.log");
    let wrap = format!("stat -c %a.%U {log}; (echo a forged line >{log}) 2>&1; true");
    let job = format!("sbatch --wait --partition=all --output={out} --wrap='{wrap}'");
    ssh_as_alice(namespace, &job).unwrap();
    let written = ssh_as_alice(namespace, &format!("cat {out}")).unwrap();
    assert!(
        written.starts_with("600.root\n") && written.contains("Permission denied"),
        "{written}"
    );
    let log = namespace.ask(&["logs", WORKER, "--container=logfile"]).unwrap();
    assert!(log.contains("slurmd") && !log.contains("a forged line"), "{log}");
}

/// A login pod is not ready until sackd has reached slurmctld.
fn sshd_waits_for_sackd(namespace: &Namespace) {
    let names = || {
        let path = "jsonpath={.items[*].metadata.name}";
        namespace.ask(&["get", "pods", "-l", "app.kubernetes.io/name=login", "-o", path])
    };
    let before = names().unwrap();
    let options = json!([{ "name": "SACKD_OPTIONS", "value": "--conf-server late:6817" }]);
    change_spec(namespace, LOGIN_SET, &json!({ "login": { "env": options } })).unwrap();
    let listens = "timeout 3 bash -c ': </dev/tcp/127.0.0.1/22' && echo yes || echo no";
    let pod = eventually("sshd is there and waits", SOON, || {
        let pod = names()?.replace(&before, "").trim().to_owned();
        namespace.exec(&format!("{pod} -c login"), "pgrep -x sshd")?;
        Ok(pod)
    })
    .unwrap();
    let place = format!("{pod} -c login");
    for _ in 0..5 {
        let found = namespace
            .exec(&place, &format!("{listens}; ls /run/slurm; stat -c '%a %U' /run/slurm"))
            .unwrap();
        assert!(
            found.starts_with("no\n") && found.ends_with("755 slurm\n") && !found.contains("sack.socket"),
            "{found}"
        );
        std::thread::sleep(Duration::from_secs(1));
    }
    let late = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "late" },
        "spec": {
            "selector": { "app.kubernetes.io/name": "slurmctld", "app.kubernetes.io/instance": "slurm" },
            "ports": [{ "port": 6817 }],
        },
    });
    namespace.apply(&late.to_string()).unwrap();
    eventually("sshd listens", SOON, || {
        let found = namespace.exec(&place, &format!("{listens}; ls /run/slurm"))?;
        expect(found.starts_with("yes\n") && found.contains("sack.socket"), found)
    })
    .unwrap();
    let log = namespace.ask(&["logs", &pod, "--container=reload"]).unwrap();
    assert!(
        log.contains("sshd: waiting for sackd") && log.contains("sshd: started"),
        "{log}"
    );
    wait_ssh(namespace);
}

/// The running daemons use changed files, and sessions are not interrupted.
fn change_files_under_a_session(namespace: &Namespace) {
    let pod = login_pod(namespace).unwrap();
    let session = "while sleep 1; do echo still; done";
    let begin = format!("nohup ssh -n -o BatchMode=yes root@slurm-login-slinky {session:?} >/tmp/session 2>&1 &");
    client(namespace, &begin).unwrap();
    let lines = || -> Result<usize> { Ok(client(namespace, "wc -l </tmp/session")?.trim().parse()?) };
    eventually("the session runs", SOON, || expect(lines()? > 0, "no line")).unwrap();

    change_spec(
        namespace,
        LOGIN_SET,
        &json!({ "extraSshdConfig": "AcceptEnv TEA\nPasswordAuthentication yes" }),
    )
    .unwrap();
    eventually("sshd has its new configuration", SOON, || {
        let asked = "ssh -o BatchMode=yes -o SetEnv=TEA=mint root@slurm-login-slinky 'echo $TEA'";
        let said = client(namespace, asked)?;
        expect(said.trim() == "mint", said)
    })
    .unwrap();
    let worker = uid(namespace, WORKER).unwrap();
    let job = "id -un; until test -e /home/alice/enough; do sleep 1; done; id -un";
    let job = format!("sbatch --parsable --partition=all --chdir=/tmp --output=/home/alice/long.txt --wrap='{job}'");
    let job = ssh_as_alice(namespace, &job).unwrap().trim().to_owned();
    wait_job(namespace, &job, "RUNNING").unwrap();
    set_sssd_conf(
        namespace,
        &format!("{}\noverride_shell = /bin/dash\n", sssd_conf(namespace)),
    );
    eventually("sssd has its new configuration", SOON, || {
        let found = namespace.exec(&format!("{LOGIN} -c login"), "getent passwd alice")?;
        expect(found.trim().ends_with(":/bin/dash"), found)
    })
    .unwrap();

    let before = lines().unwrap();
    eventually("the session goes on", SOON, || expect(lines()? > before, before)).unwrap();
    assert_eq!(login_pod(namespace).unwrap(), pod);
    a_worker_follows_under_its_job(namespace, &worker, &job);
}

/// A worker gets the changed sssd.conf too: its sssd restarts, slurmd and its jobs do not.
fn a_worker_follows_under_its_job(namespace: &Namespace, worker: &str, job: &str) {
    let place = format!("{WORKER} -c slurmd");
    eventually("the worker's sssd has its new configuration", SOON, || {
        let found = namespace.exec(&place, "getent passwd alice")?;
        expect(found.trim().ends_with(":/bin/dash"), found)
    })
    .unwrap();
    let log = namespace.ask(&["logs", WORKER, "--container=slurmd"]).unwrap();
    assert!(log.contains("sssd.conf: in use"), "{log}");
    slurm(namespace, &format!("scontrol show job {job} | grep JobState=RUNNING")).unwrap();
    ssh_as_alice(namespace, "touch /home/alice/enough").unwrap();
    wait_done(namespace, job).unwrap();
    let written = ssh_as_alice(namespace, "cat /home/alice/long.txt").unwrap();
    assert_eq!(written, "alice\nalice\n", "as whom it began and as whom it ended");
    assert_eq!(uid(namespace, WORKER).unwrap(), worker, "no worker is replaced");
}

/// An invalid sssd.conf is not delivered, neither to workers nor to login pods.
fn sssd_keeps_what_it_can_read(namespace: &Namespace) {
    let conf = sssd_conf(namespace);
    set_sssd_conf(namespace, "services = nss\n");
    for (pod, container, speaker) in [(WORKER, "slurmd", "slurmd"), (LOGIN, "login", "reload")] {
        eventually(&format!("{pod} refuses it"), SOON, || {
            let log = namespace.ask(&["logs", pod, &format!("--container={speaker}")])?;
            expect(log.contains("sssd.conf: refused"), log)
        })
        .unwrap();
        let place = format!("{pod} -c {container}");
        let found = namespace
            .exec(&place, "getent passwd alice && cat /etc/sssd/sssd.conf")
            .unwrap();
        assert!(found.contains(":/bin/dash") && found.contains("[sssd]"), "{found}");
    }
    wait_said(namespace, LOGIN_SET, "Ready", &["False SssdConfInvalid"]);
    set_sssd_conf(namespace, &conf);
    wait_said(namespace, LOGIN_SET, "Ready", &["True"]);
}

/// Invalid input is reported, harms nothing, and heals when it is corrected.
fn make_mistakes(namespace: &Namespace, key: &str) {
    let pod = login_pod(namespace).unwrap();
    for (bad, good, type_, words) in [
        (
            json!({ "extraSshdConfig": "Nonsense yes" }),
            json!({ "extraSshdConfig": "" }),
            "Degraded",
            "Nonsense",
        ),
        (
            json!({ "rootSshAuthorizedKeys": "ssh-ed25519 oops" }),
            json!({ "rootSshAuthorizedKeys": key }),
            "Ready",
            "spec.rootSshAuthorizedKeys has \"ssh-ed25519 oops\" in line 1",
        ),
        (
            json!({ "sssdConfRef": { "key": "absent" } }),
            json!({ "sssdConfRef": { "key": "sssd.conf" } }),
            "Ready",
            "entry \"absent\" of Secret \"slurm-sssd-conf\", which is absent or empty there",
        ),
    ] {
        change_spec(namespace, LOGIN_SET, &bad).unwrap();
        wait_said(namespace, LOGIN_SET, type_, &[words]);
        wait_ssh(namespace);
        change_spec(namespace, LOGIN_SET, &good).unwrap();
        wait_said(namespace, LOGIN_SET, "Ready", &["True"]);
        wait_said(namespace, LOGIN_SET, "Degraded", &["False"]);
    }

    let service = json!({ "nodePort": NODE_PORT, "spec": { "type": "NodePort" } });
    change_spec(namespace, LOGIN_SET, &json!({ "service": service })).unwrap();
    eventually("ssh by the port of a node", SOON, || {
        let line = format!("ssh-keyscan -q -t ed25519 -p {NODE_PORT} 172.31.0.11 | grep ssh-ed25519");
        client(namespace, &line)
    })
    .unwrap();
    let second = json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "LoginSet", "metadata": { "name": "second" },
        "spec": {
            "controllerRef": { "name": "slurm" }, "sssdConfRef": { "name": "slurm-sssd-conf", "key": "sssd.conf" },
            "replicas": 0, "service": service,
        },
    });
    namespace.apply(&second.to_string()).unwrap();
    wait_said(namespace, "loginset/second", "Ready", &["already allocated"]);
    wait_said(namespace, LOGIN_SET, "Ready", &["True"]);
    change_spec(namespace, "loginset/second", &json!({ "service": { "nodePort": 0 } })).unwrap();
    wait_said(namespace, "loginset/second", "Ready", &["True"]);
    namespace.ask(&["delete", "loginset/second", "--wait=false"]).unwrap();
    assert_eq!(login_pod(namespace).unwrap(), pod, "no mistake has ended a pod");
}

/// The host keys are kept when pods are replaced.
fn replace_and_scale(namespace: &Namespace) {
    let scale = |replicas: u32| {
        let replicas = format!("--replicas={replicas}");
        namespace.ask(&["scale", LOGIN_SET, &replicas]).unwrap();
    };
    scale(0);
    eventually("no worker is left", SOON, || {
        let left = namespace.ask(&["get", "pods", "-l", "app.kubernetes.io/name=login", "-o", "name"])?;
        let replicas = namespace.field(LOGIN_SET, ".status.replicas")?;
        expect(left.is_empty() && replicas == "0", (left, replicas))
    })
    .unwrap();
    wait_said(namespace, LOGIN_SET, "Ready", &["True"]);
    scale(1);
    wait_ssh(namespace);
}

fn lose_the_directory(namespace: &Namespace) {
    namespace.ask(&["scale", "deploy/ldap", "--replicas=0"]).unwrap();
    wait_said(namespace, LOGIN_SET, "Degraded", &["directory unreachable: ldap:636"]);
    wait_said(namespace, LOGIN_SET, "Ready", &["True"]);
    wait_ssh(namespace);
    namespace.ask(&["scale", "deploy/ldap", "--replicas=1"]).unwrap();
    wait_said(namespace, LOGIN_SET, "Degraded", &["False"]);
}

#[test]
fn users_of_a_directory_log_in_and_submit_jobs() {
    let namespace = begin();
    check_users(&namespace);
    let key = let_root_in(&namespace);
    submit(&namespace);
    nobody_but_slurm_writes_to_its_directory(&namespace);
    a_job_cannot_write_slurmds_log(&namespace);
    change_files_under_a_session(&namespace);
    sssd_keeps_what_it_can_read(&namespace);
    make_mistakes(&namespace, &key);
    replace_and_scale(&namespace);
    lose_the_directory(&namespace);
    sshd_waits_for_sackd(&namespace);
}
