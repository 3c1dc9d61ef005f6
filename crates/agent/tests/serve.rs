//! `slurm-agent prepare`, `supervise` and `serve` as in a pod, with the operator's own client on one side and a daemon that
//! behaves as slurmctld does under `--systemd` on the other.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail by panicking"
)]

mod fake_daemon;
mod fake_scontrol;
mod hung_volume;
mod partitions;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use slurm::agent::{
    Action, AgentKey, Candidate, Client, DaemonState, Error, Fence, JobAction, JobCommand, NodeAction, NodeCommand,
    NodeName, Options, Outcome, Phase, Pushed, Reason, Refusal, ReservationCommand, Status, Way,
};
use slurm::revision::{ControllerUid, File, FileName};
use slurm::{AdminState, JobHandle, ReservationName, ReservationRequest, Revision};
use slurm_agent::config_dir::ConfigDir;
use slurm_agent::store::Store;
use tempfile::TempDir;
use tokio::time::sleep;

const PATIENCE: Duration = Duration::from_secs(20);
const POD: &str = "pod-1";
const KEY: &[u8] = b"0123456789abcdef0123456789abcdef";

/// What slurmctld does in a dry run. It does not find out what the real one finds "bad".
const DRY_RUN: &str = r#"
for conf; do :; done
echo "slurmctld: reading $conf" >&2
if grep -q stuck "$conf"; then sleep 100; fi
if grep -q full "$conf"; then echo "slurmctld: fatal: write: No space left on device" >&2; exit 1; fi
if grep -q wrong "$conf"; then
    echo "slurmctld: error: Parse error in file $conf line 1: wrong" >&2
    echo "slurmctld: fatal: Unable to process configuration file" >&2
    exit 1
fi
echo "slurmctld: Running as primary controller" >&2
exec sleep 100
"#;

#[test]
fn the_daemon() {
    if let Some(directory) = std::env::var_os("FAKE_DAEMON") {
        fake_daemon::main(&PathBuf::from(directory));
    }
}

#[tokio::test]
async fn the_scontrol() {
    fake_scontrol::main().await;
}

fn uid() -> ControllerUid {
    ControllerUid::new("controller-1").unwrap()
}

fn revision(sequence: u64, conf: &str) -> Revision {
    Revision {
        sequence,
        controller: uid(),
        files: BTreeMap::from([(FileName::new("slurm.conf").unwrap(), File::config(conf))]),
        closed_by_hand: BTreeSet::new(),
    }
}

fn fence(sequence: u64) -> Fence {
    Fence { term: 1, sequence }
}

struct Pod {
    directory: TempDir,
    address: SocketAddr,
    /// Where the daemon tells what it runs with.
    daemon: SocketAddr,
    supervisor: Option<Child>,
    agent: Option<Child>,
}

impl Pod {
    /// Prepared from this bundle; nothing runs yet.
    fn prepared(bundle: &Revision) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["etc", "keys", "state", "run", "bin", "scratch", "candidate"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        fs::write(directory.path().join("keys/jwt.key"), KEY).unwrap();
        fs::write(directory.path().join("bundle"), bundle.to_bundle().unwrap()).unwrap();
        let port = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let pod = Self {
            directory,
            address: port(),
            daemon: port(),
            supervisor: None,
            agent: None,
        };
        pod.tool("slurmctld", DRY_RUN);
        assert!(pod.command("prepare").status().unwrap().success());
        pod
    }

    async fn running(bundle: &Revision) -> Self {
        let mut pod = Self::prepared(bundle);
        pod.supervise();
        pod.serve();
        pod.phase(Phase::Verified).await;
        pod
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, subcommand: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slurm-agent"));
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
        command
            .arg(subcommand)
            .env("SLURM_AGENT_CONFIG_DIR", self.path("etc"))
            .env("SLURM_AGENT_KEYS_DIR", self.path("keys"))
            .env("SLURM_AGENT_STATE_DIR", self.path("state"))
            .env("SLURM_AGENT_BUNDLE", self.path("bundle"))
            .env("SLURM_AGENT_CONTROLLER_UID", uid().as_str())
            .env("SLURM_AGENT_POD_UID", POD)
            .env("SLURM_AGENT_CONTROL", self.path("run/control"))
            .env("SLURM_AGENT_LISTEN", self.address.to_string())
            .env("SLURM_AGENT_SLURMCTLD", self.daemon.to_string())
            .env("SLURM_AGENT_SCRATCH_DIR", self.path("scratch"))
            .env("SLURM_AGENT_CANDIDATE", self.path("candidate"))
            .env("SLURM_AGENT_HOLD_VOLUME", self.path("held"))
            .env("PATH", path);
        command
    }

    fn log(&self, name: &str) -> fs::File {
        fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.path(name))
            .unwrap()
    }

    fn supervise(&mut self) {
        let mut command = self.command("supervise");
        command
            .arg("--")
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "the_daemon", "--nocapture"])
            .env("FAKE_DAEMON", self.directory.path())
            .env("FAKE_PORT", self.daemon.to_string())
            .env("RUNTIME_DIRECTORY", self.path("run"))
            .stdout(Stdio::null())
            .stderr(self.log("supervise.log"));
        self.supervisor = Some(command.spawn().unwrap());
    }

    fn serve(&mut self) {
        self.serve_until("");
    }

    /// An agent that dies right after it has noted this step.
    fn serve_until(&mut self, step: &str) {
        let mut command = self.command("serve");
        command
            .env("SLURM_AGENT_DIE_AT", step)
            .stdout(self.log("story"))
            .stderr(self.log("serve.log"));
        self.agent = Some(command.spawn().unwrap());
    }

    /// A revision is pushed to an agent that is stopped at this step of it. Others act meanwhile, then it goes on.
    async fn push_stopping_at(
        &mut self,
        step: &str,
        revision: &Revision,
        meanwhile: impl AsyncFnOnce(&Self),
    ) -> Result<Pushed, Error> {
        self.kill_agent();
        let mut command = self.command("serve");
        command
            .env("SLURM_AGENT_STOP_AT", step)
            .stdout(self.log("story"))
            .stderr(self.log("serve.log"));
        let agent = command.spawn().unwrap();
        let pid = Pid::from_raw(i32::try_from(agent.id()).unwrap());
        self.agent = Some(agent);
        self.phase(Phase::Verified).await;
        let (client, pushed) = (self.client(), revision.clone());
        let push = tokio::spawn(async move { client.push(&pushed, fence(pushed.sequence)).await });
        let start = Instant::now();
        while !fs::read_to_string(format!("/proc/{pid}/stat"))
            .unwrap()
            .contains(") T ")
        {
            assert!(start.elapsed() < PATIENCE, "{step} is not reached");
            sleep(Duration::from_millis(5)).await;
        }
        meanwhile(self).await;
        kill(pid, Signal::SIGCONT).unwrap();
        push.await.unwrap()
    }

    /// A revision is pushed to an agent that dies at this step of it.
    async fn push_dying_at(&mut self, step: &str, revision: &Revision) {
        self.kill_agent();
        self.serve_until(step);
        self.phase(Phase::Verified).await;
        let failed = self.client().push(revision, fence(revision.sequence)).await;
        assert!(failed.is_err(), "{step}: {failed:?}");
        self.agent.take().unwrap().wait().unwrap();
    }

    /// The pod is made again, on whatever node: only the state volume and the bundle are left.
    async fn replaced(mut self) -> Self {
        self.end();
        for name in ["etc", "run", "scratch"] {
            fs::remove_dir_all(self.path(name)).unwrap();
            fs::create_dir(self.path(name)).unwrap();
        }
        let _ = fs::remove_file(self.path("lives"));
        assert!(self.command("prepare").status().unwrap().success());
        self.supervise();
        self.serve();
        self.phase(Phase::Verified).await;
        self
    }

    /// The next agent goes on, or the next pod.
    async fn gone_on(mut self, whole_pod: bool) -> Self {
        if whole_pod {
            return self.replaced().await;
        }
        self.serve();
        self.phase(Phase::Verified).await;
        self
    }

    fn end(&mut self) {
        for mut child in [self.agent.take(), self.supervisor.take()].into_iter().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
        for pid in self.lives() {
            let _ = kill(pid, Signal::SIGKILL);
        }
    }

    fn kill_agent(&mut self) {
        let mut agent = self.agent.take().unwrap();
        agent.kill().unwrap();
        agent.wait().unwrap();
    }

    fn client(&self) -> Client {
        self.client_of(POD, KEY)
    }

    fn client_of(&self, pod: &str, key: &[u8]) -> Client {
        Client::new(
            host::Host::real(),
            self.address,
            pod,
            AgentKey::derive(key).unwrap(),
            Options::default(),
        )
    }

    /// As people reach it, past the agent.
    fn slurmctld(&self) -> slurm::rpc::Client {
        let key = slurm::token::SigningKey::new(KEY).unwrap();
        let issuer = slurm::token::Issuer::new(key, "root", Duration::from_secs(30));
        slurm::rpc::Client::new(
            host::Host::real(),
            self.daemon.to_string(),
            issuer,
            slurm::rpc::Options::default(),
        )
    }

    async fn push(&self, revision: &Revision) -> Pushed {
        self.client().push(revision, fence(revision.sequence)).await.unwrap()
    }

    async fn refusal(&self, revision: &Revision) -> Error {
        self.client()
            .push(revision, fence(revision.sequence))
            .await
            .unwrap_err()
    }

    async fn status_that(&self, what: &str, good: impl Fn(&Status) -> bool) -> Status {
        let start = Instant::now();
        loop {
            let status = self.client().status().await;
            if let Ok(status) = &status
                && good(status)
            {
                return status.clone();
            }
            assert!(
                start.elapsed() < PATIENCE,
                "waited in vain for {what}: {status:?}\n{}",
                fs::read_to_string(self.path("serve.log")).unwrap_or_default()
            );
            sleep(Duration::from_millis(10)).await;
        }
    }

    async fn phase(&self, phase: Phase) -> Status {
        self.status_that("the phase", |status| status.phase == phase).await
    }

    fn conf(&self) -> String {
        fs::read_to_string(self.path("etc/slurm.conf")).unwrap()
    }

    fn lives(&self) -> Vec<Pid> {
        let text = fs::read_to_string(self.path("lives")).unwrap_or_default();
        text.lines().map(|line| Pid::from_raw(line.parse().unwrap())).collect()
    }

    /// The lines people know, without their dates.
    fn story(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("story")).unwrap();
        text.lines()
            .map(|line| line.split_once("] ").unwrap().1.to_owned())
            .collect()
    }

    fn stored(&self) -> Vec<u64> {
        Store::new(&self.path("state"), &uid()).sequences().unwrap()
    }

    fn tool(&self, name: &str, script: &str) {
        let path = self.path("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        self.end();
    }
}

#[tokio::test]
async fn a_push_is_durable_live_and_taken_by_slurmctld() {
    let pod = Pod::running(&revision(1, "one")).await;
    assert_eq!(pod.conf(), "one");
    let pushed = pod.push(&revision(2, "two")).await;
    assert_eq!(pushed.outcome, Outcome::Applied);
    assert_eq!(pushed.status.phase, Phase::Verified);
    assert_eq!(pushed.status.live, Some(revision(2, "two").summary()));
    assert_eq!(pushed.status.fence, fence(2));
    let slurmctld = pushed.status.slurmctld.unwrap();
    assert_eq!(slurmctld.state, DaemonState::Ready);
    assert_eq!(slurmctld.restarts, 0);
    assert_eq!(slurmctld.pid, pod.lives().last().map(|pid| pid.as_raw()));
    assert_eq!(pod.conf(), "two");
    assert_eq!(pod.lives().len(), 2, "one reconfigure");
    assert_eq!(pod.stored(), [1, 2]);
    assert_eq!(
        pod.story(),
        [
            format!("Start '{}' polling", pod.path("etc").display()).as_str(),
            "Reconfiguring Slurm...",
            "SUCCESS"
        ]
    );
}

#[tokio::test]
async fn a_revision_that_slurmctld_refuses_is_taken_back_with_its_own_words() {
    let pod = Pod::running(&revision(1, "one")).await;
    pod.push(&revision(2, "two")).await;
    let pushed = pod.push(&revision(3, "bad")).await;
    let Outcome::RolledBack(rolled_back) = &pushed.outcome else {
        panic!("{pushed:?}")
    };
    assert_eq!(rolled_back.sequence, 3);
    assert!(rolled_back.reason.contains("unrecognized key: bad"), "{rolled_back:?}");
    assert!(!rolled_back.last_words.is_empty());
    assert_eq!(pushed.status.live, Some(revision(2, "two").summary()));
    assert_eq!(pushed.status.rolled_back.as_ref(), Some(rolled_back));
    assert_eq!(pod.conf(), "two");
    assert_eq!(pod.stored(), [1, 2], "the next pod must not start from it");
    // 1 was the start, 2 the good push, and the third is the reconfigure with the old files.
    assert_eq!(pod.lives().len(), 3);
    assert_eq!(
        pod.story()[3..],
        [
            "Reconfiguring Slurm...",
            "Failed to reconfigure, try again...",
            "SUCCESS"
        ]
    );
    let pushed = pod.push(&revision(4, "four")).await;
    assert_eq!(pushed.outcome, Outcome::Applied);
    assert_eq!(pushed.status.rolled_back, None);
}

#[tokio::test]
async fn a_revision_that_the_dry_run_refuses_touches_nothing() {
    let mut pod = Pod::running(&revision(1, "one")).await;
    let pushed = pod.push(&revision(2, "wrong")).await;
    let Outcome::Rejected(rejected) = &pushed.outcome else {
        panic!("{pushed:?}")
    };
    assert_eq!(rejected.sequence, 2);
    assert_eq!(
        rejected.reason,
        "error: Parse error in file /etc/slurm/slurm.conf line 1: wrong; fatal: Unable to process configuration file"
    );
    assert_eq!(pushed.action, Action::Nothing);
    assert_eq!(pushed.status.phase, Phase::Verified);
    assert_eq!(pushed.status.rolled_back, None);
    assert_eq!(pod.conf(), "one");
    assert_eq!(pod.stored(), [1], "the next pod must not start from it");
    assert_eq!(pod.lives().len(), 1);
    assert_eq!(
        pod.story()[1..],
        ["Reconfiguring Slurm...", "Failed to reconfigure, try again..."]
    );
    let journal = Store::new(&pod.path("state"), &uid()).journal().entries();
    assert_eq!(journal.last().unwrap().refused.as_ref(), Some(rejected), "{journal:?}");
    pod.kill_agent();
    pod.serve();
    let status = pod.phase(Phase::Verified).await;
    assert_eq!(status.rolled_back, None, "it was never live");
    assert_eq!(pod.conf(), "one");
    assert_eq!(pod.push(&revision(3, "three")).await.outcome, Outcome::Applied);
    assert_eq!(
        fs::read_dir(pod.path("scratch")).unwrap().count(),
        0,
        "nothing lies about"
    );
}

#[tokio::test]
async fn a_dry_run_that_cannot_tell_is_a_failure_and_no_refusal() {
    let pod = Pod::running(&revision(1, "one")).await;
    for (conf, said) in [
        ("full", "No space left on device"),
        ("stuck", "came to no end within 5s"),
    ] {
        let failed = pod.refusal(&revision(2, conf)).await;
        let ((Error::Refused(Refusal::Failed { detail }), "full")
        | (Error::Refused(Refusal::Stuck { detail }), "stuck")) = (&failed, conf)
        else {
            panic!("{failed:?}")
        };
        assert!(detail.contains(said), "{detail}");
    }
    fs::remove_file(pod.path("bin/slurmctld")).unwrap();
    let failed = pod.refusal(&revision(2, "two")).await;
    assert!(matches!(failed, Error::Refused(Refusal::Failed { .. })), "{failed:?}");
    assert_eq!(pod.conf(), "one");
    assert_eq!(pod.stored(), [1]);
}

#[tokio::test]
async fn a_push_tells_what_was_done_and_how_long_it_took() {
    let pod = Pod::running(&revision(1, "SlurmctldPort=6817\n")).await;
    let pushed = pod.push(&revision(2, "SlurmctldPort=6817\nMaxJobCount=5\n")).await;
    assert_eq!(pushed.outcome, Outcome::Applied);
    assert_eq!(pushed.action, Action::Reconfigure);
    let steps = |pushed: &Pushed| pushed.steps.iter().map(|step| step.step).collect::<Vec<_>>();
    assert_eq!(steps(&pushed), [Phase::Checked, Phase::Swapped, Phase::Verified]);
    assert!(pushed.steps.iter().map(|step| step.milliseconds).sum::<u64>() <= pushed.milliseconds);
    let process = pushed.status.slurmctld.unwrap().since;
    // A port is opened at the start only.
    let pushed = pod.push(&revision(3, "SlurmctldPort=6827\n")).await;
    assert_eq!(pushed.outcome, Outcome::Applied, "{pushed:?}");
    assert_eq!(pushed.action, Action::Restart);
    let slurmctld = pushed.status.slurmctld.unwrap();
    assert_eq!(slurmctld.restarts, 0, "no death");
    assert!(slurmctld.since >= process);
    assert_eq!(pod.lives().len(), 3);
    let pushed = pod.push(&revision(4, "SlurmctldPort=6827\nbad\n")).await;
    assert!(matches!(pushed.outcome, Outcome::RolledBack(_)), "{pushed:?}");
    assert_eq!(
        steps(&pushed),
        [Phase::Checked, Phase::Swapped, Phase::RollingBack, Phase::Verified]
    );
}

#[tokio::test]
async fn a_node_that_only_slurmctld_knows_is_known_to_the_dry_run() {
    let pod = Pod::running(&revision(1, "one")).await;
    pod.tool(
        "scontrol",
        r#"echo '{"nodes":[{"name":"d1","state":["IDLE"]},{"name":"d2","state":["IDLE"]}],"errors":[]}'"#,
    );
    pod.tool(
        "slurmctld",
        &format!(
            r#"for conf; do :; done; cp "$conf" {}{DRY_RUN}"#,
            pod.path("seen").display()
        ),
    );
    pod.push(&revision(2, "MaxJobCount=5\nPartitionName=a Nodes=d[2-3]\n"))
        .await;
    let seen = fs::read_to_string(pod.path("seen")).unwrap();
    assert!(seen.contains("\nNodeName=d2 State=FUTURE\n"), "{seen}");
    assert!(!seen.contains("NodeName=d3"), "a mistake stays one");
    pod.tool("scontrol", "exit 1");
    pod.push(&revision(3, "MaxJobCount=6\nPartitionName=a Nodes=d3\n"))
        .await;
    let seen = fs::read_to_string(pod.path("seen")).unwrap();
    assert!(seen.contains("\nNodeName=d3 State=FUTURE\n"), "nobody could tell");
}

#[tokio::test]
async fn a_slurmctld_that_runs_with_something_else_is_reconfigured_again() {
    let pod = Pod::running(&revision(1, "one")).await;
    for (sequence, what) in [(2, "lie"), (3, "miscount")] {
        fs::write(pod.path(what), "once").unwrap();
        let lives = pod.lives().len();
        let pushed = pod.push(&revision(sequence, &format!("revision {sequence}"))).await;
        assert_eq!(pushed.outcome, Outcome::Applied, "{pushed:?}");
        assert_eq!(pod.lives().len(), lives + 2, "{what}");
    }
}

#[tokio::test]
async fn a_slurmctld_that_serves_something_else_for_good_is_reported() {
    let pod = Pod::running(&revision(1, "one")).await;
    fs::write(pod.path("lie"), "always").unwrap();
    let pushed = pod.push(&revision(2, "two")).await;
    let Outcome::Pending { reason } = &pushed.outcome else {
        panic!("{pushed:?}")
    };
    assert!(reason.contains("serves another slurm.conf"), "{reason}");
    assert_eq!(pod.lives().len(), 3, "two reconfigures and no more");
    assert_eq!(pod.conf(), "two", "nobody refused it");
    // Its files are right; how it counts them is its own affair.
    fs::remove_file(pod.path("lie")).unwrap();
    fs::write(pod.path("miscount"), "always").unwrap();
    assert_eq!(pod.push(&revision(3, "three")).await.outcome, Outcome::Applied);
}

#[tokio::test]
async fn a_slurmctld_that_does_not_answer_is_asked_again_and_nothing_is_rolled_back() {
    let pod = Pod::running(&revision(1, "one")).await;
    fs::write(pod.path("mute"), "").unwrap();
    let pushed = pod.push(&revision(2, "two")).await;
    assert!(matches!(pushed.outcome, Outcome::Pending { .. }), "{pushed:?}");
    assert_ne!(pushed.status.phase, Phase::Verified);
    assert_eq!(pod.conf(), "two");
    fs::remove_file(pod.path("mute")).unwrap();
    let status = pod.phase(Phase::Verified).await;
    assert_eq!(status.live, Some(revision(2, "two").summary()));
    assert_eq!(status.rolled_back, None);
    assert_eq!(pod.lives().len(), 2, "one reconfigure");
}

/// As one of several does while it waits for another to hand over, which writes the same state.
#[tokio::test]
async fn of_several_one_that_does_not_answer_is_not_told_to_reconfigure() {
    let of_two = |rest: &str| format!("SlurmctldHost=a\nSlurmctldHost=b\n{rest}\n");
    let pod = Pod::running(&revision(1, &of_two("KillWait=30"))).await;
    fs::write(pod.path("mute"), "").unwrap();
    let pushed = pod.push(&revision(2, &of_two("KillWait=31"))).await;
    assert!(matches!(pushed.outcome, Outcome::Pending { .. }), "{pushed:?}");
    assert_eq!(pod.lives().len(), 1, "no reconfigure");
    fs::remove_file(pod.path("mute")).unwrap();
    pod.phase(Phase::Verified).await;
    assert_eq!(pod.lives().len(), 2, "one reconfigure");
}

#[tokio::test]
async fn the_same_bytes_cause_no_action() {
    let pod = Pod::running(&revision(1, "one")).await;
    let pushed = pod.push(&revision(5, "one")).await;
    assert_eq!(pushed.outcome, Outcome::Unchanged);
    assert_eq!(pushed.status.live.unwrap().sequence, 5, "the number moves on");
    assert_eq!(pod.stored(), [1, 5]);
    assert_eq!(
        pod.push(&revision(5, "one")).await.outcome,
        Outcome::Unchanged,
        "sent twice"
    );
    assert_eq!(pod.lives().len(), 1);
    assert!(!pod.story().contains(&"SUCCESS".to_owned()));
}

#[tokio::test]
async fn an_old_or_foreign_revision_is_refused_with_what_is_live() {
    let pod = Pod::running(&revision(5, "five")).await;
    for stale in [revision(4, "five"), revision(5, "other")] {
        let Error::Refused(Refusal::StaleSequence { live }) = pod.refusal(&stale).await else {
            panic!("not refused")
        };
        assert_eq!(*live, revision(5, "five").summary());
    }
    let foreign = Revision {
        controller: ControllerUid::new("another").unwrap(),
        ..revision(9, "nine")
    };
    let refusal = pod.refusal(&foreign).await;
    assert!(
        matches!(refusal, Error::Refused(Refusal::OtherController { .. })),
        "{refusal:?}"
    );
    assert_eq!(pod.conf(), "five");
    assert_eq!(pod.stored(), [5]);
}

#[tokio::test]
async fn a_leader_that_was_replaced_is_refused() {
    let mut pod = Pod::running(&revision(1, "one")).await;
    let client = pod.client();
    let new = Fence { term: 2, sequence: 1 };
    assert_eq!(client.claim(new).await.unwrap().fence, new);
    let stale = client.push(&revision(2, "two"), fence(100)).await.unwrap_err();
    assert!(
        matches!(stale, Error::StaleFence { highest } if highest == new),
        "{stale:?}"
    );
    // Also by an agent that starts after that.
    pod.kill_agent();
    pod.serve();
    pod.phase(Phase::Verified).await;
    let stale = pod.client().push(&revision(2, "two"), fence(100)).await.unwrap_err();
    assert!(matches!(stale, Error::StaleFence { .. }), "{stale:?}");
    assert_eq!(pod.conf(), "one");
}

#[tokio::test]
async fn who_has_another_key_or_means_another_pod_is_refused() {
    let pod = Pod::running(&revision(1, "one")).await;
    for client in [pod.client_of("pod-2", KEY), pod.client_of(POD, b"another key")] {
        let push = client.push(&revision(2, "two"), fence(2)).await.unwrap_err();
        assert!(matches!(push, Error::Refused(Refusal::Token { .. })), "{push:?}");
        let read = client.status().await.unwrap_err();
        assert!(matches!(read, Error::Refused(Refusal::Token { .. })), "{read:?}");
    }
    assert_eq!(pod.conf(), "one");
}

#[tokio::test]
async fn an_answer_without_proof_is_not_believed() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await;
            let body = r#"{"jobs":[],"errors":[]}"#;
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
        }
    });
    let client = Client::new(
        host::Host::real(),
        address,
        POD,
        AgentKey::derive(KEY).unwrap(),
        Options::default(),
    );
    let error = client.jobs().await.unwrap_err();
    assert!(
        matches!(error, Error::Transport(slurm::transport::Error::Malformed { .. })),
        "{error:?}"
    );
    assert!(!error.is_definite());
}

#[tokio::test]
async fn nobody_at_the_address_is_unreachable() {
    let pod = Pod::prepared(&revision(1, "one"));
    let error = pod.client().status().await.unwrap_err();
    assert!(
        matches!(error, Error::Transport(slurm::transport::Error::Unreachable { .. })),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_push_to_a_slurmctld_that_dies_of_its_files_brings_it_up() {
    let mut pod = Pod::prepared(&revision(1, "bad"));
    pod.supervise();
    pod.serve();
    pod.status_that("a few deaths", |status| {
        status.slurmctld.as_ref().is_some_and(|daemon| daemon.restarts > 1)
    })
    .await;
    let pushed = pod.push(&revision(2, "good")).await;
    assert_eq!(pushed.outcome, Outcome::Applied, "{pushed:?}");
    // Twice if the files changed in the middle of its start: nobody knows then which of them it has read.
    assert!(pod.lives().len() <= 2);
}

#[tokio::test]
async fn a_push_while_slurmctld_is_away_waits_for_it() {
    let mut pod = Pod::prepared(&revision(1, "one"));
    pod.serve();
    pod.status_that("the agent", |_| true).await;
    let pushed = pod.push(&revision(2, "two")).await;
    assert!(matches!(pushed.outcome, Outcome::Pending { .. }), "{pushed:?}");
    assert_eq!(pushed.status.phase, Phase::Swapped);
    assert_eq!(pushed.status.slurmctld, None);
    assert_eq!(pod.conf(), "two");
    // A later one is not kept out by it.
    let third = revision(3, "three");
    let client = pod.client();
    let (pushed, ()) = tokio::join!(client.push(&third, fence(3)), async {
        while pod.conf() != "three" {
            sleep(Duration::from_millis(5)).await;
        }
        pod.supervise();
    });
    assert_eq!(pushed.unwrap().outcome, Outcome::Applied);
    assert!(pod.story().contains(&"Failed to reconfigure, try again...".to_owned()));
    assert_eq!(
        pod.lives().len(),
        1,
        "it started with the new files and needed no reconfigure"
    );
}

#[tokio::test]
async fn a_push_that_was_interrupted_before_the_swap_is_gone_on_with() {
    let mut pod = Pod::running(&revision(1, "one")).await;
    pod.kill_agent();
    Store::new(&pod.path("state"), &uid())
        .save(&revision(2, "two"))
        .unwrap();
    pod.serve();
    let status = pod
        .status_that("revision 2", |status| {
            status.live.as_ref().is_some_and(|live| live.sequence == 2) && status.phase == Phase::Verified
        })
        .await;
    assert_eq!(status.rolled_back, None);
    assert_eq!(pod.lives().len(), 2);
}

#[tokio::test]
async fn a_push_that_was_interrupted_after_the_swap_is_gone_on_with_or_taken_back() {
    for (conf, expected) in [("two", "two"), ("bad", "one")] {
        let mut pod = Pod::running(&revision(1, "one")).await;
        pod.kill_agent();
        Store::new(&pod.path("state"), &uid()).save(&revision(2, conf)).unwrap();
        let config = ConfigDir::new(&pod.path("etc"), &pod.path("keys"));
        let files = config.write(&revision(2, conf)).unwrap();
        config.switch(&files).unwrap();
        pod.serve();
        pod.phase(Phase::Verified).await;
        assert_eq!(pod.conf(), expected);
        assert_eq!(pod.lives().len(), 2, "{conf}: reconfigured either way");
    }
}

/// Kills the agent after each step of a push, good or bad, and has the next agent, or the next pod, go on.
#[tokio::test]
async fn an_agent_killed_at_any_step_leaves_the_old_or_the_new_and_never_a_mix() {
    let cases = [
        ("staged", "two", "one"),
        ("checked", "two", "two"),
        ("swapped", "two", "two"),
        ("reconfiguring", "two", "two"),
        ("verified", "two", "two"),
        ("checked", "bad", "one"),
        ("swapped", "bad", "one"),
        ("reconfiguring", "bad", "one"),
        ("rolling back", "bad", "one"),
    ];
    for (step, conf, expected) in cases {
        for whole_pod in [false, true] {
            let case = format!("{step}, {conf}, {whole_pod}");
            let mut pod = Pod::running(&revision(1, "one")).await;
            // An agent that finds all well notes that, too.
            if step == "verified" {
                pod.kill_agent();
                pod.serve_until(step);
                pod.agent.take().unwrap().wait().unwrap();
                pod.serve();
                pod.phase(Phase::Verified).await;
                pod.push(&revision(2, conf)).await;
            } else {
                pod.push_dying_at(step, &revision(2, conf)).await;
            }
            if whole_pod {
                pod = pod.replaced().await;
            } else {
                if pod.agent.is_some() {
                    pod.kill_agent();
                }
                pod.serve();
                pod.phase(Phase::Verified).await;
            }
            assert_eq!(pod.conf(), expected, "{case}");
            let status = pod.client().status().await.unwrap();
            let sequence = if expected == "one" { 1 } else { 2 };
            assert_eq!(status.live, Some(revision(sequence, expected).summary()), "{case}");
            assert_eq!(
                pod.stored().last(),
                Some(&sequence),
                "{case}: what the next pod starts from"
            );
            let directories = fs::read_dir(pod.path("etc")).unwrap().flatten();
            let directories = directories.filter(|entry| entry.file_type().unwrap().is_dir());
            assert_eq!(directories.count(), 1, "{case}: nothing lies about");
            assert_eq!(
                pod.push(&revision(3, "three")).await.outcome,
                Outcome::Applied,
                "{case}"
            );
        }
    }
}

#[tokio::test]
async fn why_a_revision_was_rolled_back_is_known_to_the_next_agent() {
    let mut pod = Pod::running(&revision(1, "one")).await;
    let pushed = pod.push(&revision(2, "bad")).await;
    let Outcome::RolledBack(refused) = pushed.outcome else {
        panic!("{pushed:?}")
    };
    pod.kill_agent();
    pod.serve();
    let status = pod.phase(Phase::Verified).await;
    assert_eq!(status.rolled_back, Some(refused));
    let pushed = pod.push(&revision(3, "three")).await;
    assert_eq!(pushed.status.rolled_back, None);
}

#[tokio::test]
async fn files_that_need_a_restart_and_let_slurmctld_die_go_back() {
    let pod = Pod::running(&revision(1, "SlurmctldPort=6817\n")).await;
    let pushed = pod.push(&revision(2, "SlurmctldPort=6827\nbad\n")).await;
    let Outcome::RolledBack(refused) = &pushed.outcome else {
        panic!("{pushed:?}")
    };
    assert!(refused.reason.contains("unrecognized key: bad"), "{refused:?}");
    assert_eq!(pushed.action, Action::Restart);
    assert_eq!(pushed.status.slurmctld.unwrap().state, DaemonState::Ready);
    assert_eq!(pod.conf(), "SlurmctldPort=6817\n");
    assert_eq!(pod.stored(), [1]);
}

#[tokio::test]
async fn a_pod_that_cannot_start_with_the_newest_revision_starts_with_the_last_known_good() {
    let pod = Pod::running(&revision(1, "one")).await;
    pod.push(&revision(2, "two")).await;
    assert_eq!(pod.push(&revision(3, "two")).await.outcome, Outcome::Unchanged);
    Store::new(&pod.path("state"), &uid())
        .save(&revision(4, "bad"))
        .unwrap();
    let mut pod = pod.replaced().await;
    assert_eq!(pod.conf(), "two");
    assert_eq!(pod.stored(), [2, 3]);
    let status = pod.client().status().await.unwrap();
    assert_eq!(
        status.live,
        Some(revision(3, "two").summary()),
        "the same bytes, by their last number"
    );
    let refused = status.rolled_back.unwrap();
    assert_eq!(refused.sequence, 4);
    assert!(refused.reason.contains("unrecognized key: bad"), "{refused:?}");
    // What has run here once is not to blame when it cannot start any more.
    pod.end();
    fs::write(pod.path("bad"), "").unwrap();
    let _ = fs::remove_file(pod.path("lives"));
    pod.supervise();
    pod.serve();
    pod.status_that("a few deaths", |status| {
        status.slurmctld.as_ref().is_some_and(|daemon| daemon.restarts > 2)
    })
    .await;
    assert_eq!(pod.conf(), "two");
    assert_eq!(pod.stored(), [2, 3]);
    fs::remove_file(pod.path("bad")).unwrap();
    pod.phase(Phase::Verified).await;
}

#[tokio::test]
async fn an_agent_that_starts_beside_a_settled_slurmctld_does_nothing() {
    let mut pod = Pod::running(&revision(1, "one")).await;
    pod.push(&revision(2, "two")).await;
    let story = pod.story().len();
    pod.kill_agent();
    pod.serve();
    pod.phase(Phase::Verified).await;
    assert_eq!(pod.lives().len(), 2);
    assert_eq!(pod.story().len(), story + 1, "only that it started");
}

#[tokio::test]
async fn a_slurmctld_that_is_killed_comes_back_with_the_live_files() {
    let pod = Pod::running(&revision(1, "one")).await;
    pod.push(&revision(2, "two")).await;
    kill(*pod.lives().last().unwrap(), Signal::SIGKILL).unwrap();
    let status = pod
        .status_that("the next life", |status| {
            status
                .slurmctld
                .as_ref()
                .is_some_and(|daemon| daemon.restarts == 1 && daemon.state == DaemonState::Ready)
        })
        .await;
    assert_eq!(status.phase, Phase::Verified);
    assert_eq!(pod.push(&revision(3, "three")).await.outcome, Outcome::Applied);
}

#[tokio::test]
async fn files_changed_by_hand_are_not_called_live() {
    let pod = Pod::running(&revision(1, "one")).await;
    fs::write(pod.path("etc/slurm.conf"), "by hand").unwrap();
    assert_eq!(pod.client().status().await.unwrap().live, None);
    // The same revision again puts them right.
    assert_eq!(pod.push(&revision(1, "one")).await.outcome, Outcome::Applied);
    assert_eq!(pod.conf(), "one");
    assert_eq!(
        pod.client().status().await.unwrap().live,
        Some(revision(1, "one").summary())
    );
}

#[tokio::test]
async fn slurm_is_asked_and_commanded_through_its_own_programs() {
    let pod = Pod::running(&revision(1, "one")).await;
    let calls = pod.path("calls");
    let record = format!(
        r#"for word; do printf '%s|' "$word"; done >> {}; echo >> {}"#,
        calls.display(),
        calls.display()
    );
    pod.tool(
        "scontrol",
        &format!(
            r#"{record}
case "$*" in
*nodes*) echo '{{"nodes":[{{"name":"n1","state":["IDLE"]}}],"errors":[]}}';;
*config*) echo '{{"slurm_conf_meta":{{"LastUpdate":1000,"BOOT_TIME":900,"HashValue":7}},"errors":[]}}';;
*=n9*) echo 'slurm_update error: Invalid node name specified' >&2; exit 1;;
esac"#
        ),
    );
    pod.tool("squeue", r#"echo '{"jobs":[],"errors":[]}'"#);
    pod.tool("sacctmgr", r#"echo "{\"qos\":[{\"name\":\"$2-$3\"}],\"errors\":[]}""#);
    let client = pod.client();
    assert_eq!(client.qos().await.unwrap().value[0].name, "show-qos");
    let observation = client.observe().await.unwrap();
    assert_eq!(observation.nodes[0].name, "n1");
    assert!(observation.jobs.is_empty());
    assert_eq!(observation.process.unwrap().boot_time, 900);
    let command = |node: &str, action| NodeCommand {
        node: NodeName::new(node).unwrap(),
        expect: None,
        action,
    };
    let reason = Some(Reason::new("scale in; rm -rf /").unwrap());
    let drain = command("n1", NodeAction::Drain { reason });
    assert_eq!(client.command_node(&drain, fence(7)).await.unwrap(), Way::Scontrol);
    let text = fs::read_to_string(&calls).unwrap();
    assert!(
        text.ends_with("update|NodeName=n1|State=DRAIN|Reason=scale in; rm -rf /|\n"),
        "{text}"
    );
    let stale = client.command_node(&drain, fence(6)).await.unwrap_err();
    assert!(matches!(stale, Error::StaleFence { .. }), "{stale:?}");
    let unknown = client
        .command_node(&command("n9", NodeAction::Delete), fence(8))
        .await
        .unwrap_err();
    assert!(matches!(unknown, Error::Refused(Refusal::NoSuchNode)), "{unknown:?}");
    pod.tool(
        "squeue",
        "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1",
    );
    let unknown = client.jobs().await.unwrap_err();
    assert!(matches!(unknown, Error::Refused(Refusal::Slurm { .. })), "{unknown:?}");
}

#[tokio::test]
async fn nodes_are_commanded_in_slurms_own_protocol() {
    let pod = Pod::running(&revision(1, "PartitionName=a Nodes=n1\n")).await;
    fs::write(pod.path("nodes"), "").unwrap();
    let client = pod.client();
    let command = |node: &str, action| NodeCommand {
        node: NodeName::new(node).unwrap(),
        expect: None,
        action,
    };
    let reason = Some(Reason::new("scale in").unwrap());
    let drain = command("n1", NodeAction::Drain { reason });
    assert_eq!(client.command_node(&drain, fence(7)).await.unwrap(), Way::Rpc);
    let gone = client
        .command_node(&command("n9", NodeAction::Delete), fence(8))
        .await
        .unwrap_err();
    assert!(matches!(gone, Error::Refused(Refusal::NoSuchNode)), "{gone:?}");
    let told = fs::read_to_string(pod.path("told")).unwrap();
    assert_eq!(told, "n1 Some(Drain) Some(\"scale in\")\nn9 None None\n");
}

/// An order for n1 that was planned on this state.
fn expecting(expect: &AdminState, action: NodeAction) -> NodeCommand {
    NodeCommand {
        node: NodeName::new("n1").unwrap(),
        expect: Some(expect.clone()),
        action,
    }
}

fn drained(reason: &str, reason_since: u64) -> AdminState {
    AdminState {
        drain: true,
        down: false,
        reason: reason.to_owned(),
        reason_since,
    }
}

#[tokio::test]
async fn an_order_to_a_node_that_somebody_changed_meanwhile_is_refused() {
    let pod = Pod::running(&revision(1, "PartitionName=a Nodes=n1\n")).await;
    let (ours, theirs) = (drained("slurm-operator: x", 7), drained("RMA", 8));
    let live = |state: &AdminState| fs::write(pod.path("nodes"), serde_json::to_string(state).unwrap()).unwrap();
    let client = pod.client();
    live(&theirs);
    for (n, action) in [
        NodeAction::Undrain,
        NodeAction::Resume,
        NodeAction::Delete,
        NodeAction::Drain { reason: None },
        NodeAction::Down { reason: None },
    ]
    .into_iter()
    .enumerate()
    {
        let number = u64::try_from(n).unwrap();
        let refused = client
            .command_node(&expecting(&ours, action), fence(number))
            .await
            .unwrap_err();
        let Error::Refused(Refusal::Changed { now }) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(now, theirs);
    }
    // The same words, written anew, are another order.
    live(&drained("slurm-operator: x", 9));
    let refused = client
        .command_node(&expecting(&ours, NodeAction::Undrain), fence(10))
        .await;
    assert!(
        matches!(refused, Err(Error::Refused(Refusal::Changed { .. }))),
        "{refused:?}"
    );
    assert!(!pod.path("told").exists(), "nothing was ordered");
    live(&ours);
    client
        .command_node(&expecting(&ours, NodeAction::Undrain), fence(11))
        .await
        .unwrap();
    let told = fs::read_to_string(pod.path("told")).unwrap();
    assert_eq!(told, "n1 Some(Undrain) None\n");
}

#[tokio::test]
async fn scontrol_too_orders_only_what_was_planned_and_keeps_a_reason_that_stands() {
    let pod = Pod::running(&revision(1, "one")).await;
    let calls = pod.path("calls");
    let shown = r#"{"nodes":[{"name":"n1","state":["DOWN"],"reason":"RMA","reason_changed_at":{"set":true,"number":8}}],"errors":[]}"#;
    let record = format!(
        r#"case "$*" in
*show*node*) echo '{shown}';;
*) (IFS='|'; echo "$*") >> {};;
esac"#,
        calls.display()
    );
    pod.tool("scontrol", &record);
    let client = pod.client();
    let refused = client
        .command_node(&expecting(&AdminState::default(), NodeAction::Resume), fence(1))
        .await;
    assert!(
        matches!(refused, Err(Error::Refused(Refusal::Changed { .. }))),
        "{refused:?}"
    );
    assert!(!calls.exists());
    let theirs = AdminState {
        drain: false,
        down: true,
        ..drained("RMA", 8)
    };
    let drain = expecting(&theirs, NodeAction::Drain { reason: None });
    assert_eq!(client.command_node(&drain, fence(2)).await.unwrap(), Way::Scontrol);
    let text = fs::read_to_string(&calls).unwrap();
    assert_eq!(text, "update|NodeName=n1|State=DRAIN|Reason=RMA\n");
}

#[tokio::test]
async fn jobs_and_reservations_are_commanded_through_slurms_programs() {
    let pod = Pod::running(&revision(1, "one")).await;
    let calls = pod.path("calls");
    let record = format!(r#"echo "$(basename "$0") $*" >> {}"#, calls.display());
    pod.tool("scancel", &record);
    pod.tool(
        "scontrol",
        &format!(
            r#"{record}
case "$*" in
*show*) echo '{{"reservations":[{{"name":"r","start_time":5,"end_time":9}}],"errors":[]}}';;
*update*Reservation*) echo 'slurm_update error: Requested reservation is invalid' >&2; exit 1;;
*delete*) echo 'delete_reservation: Requested reservation is invalid' >&2; exit 1;;
*requeue*7) echo '7: Job is pending execution' >&2; exit 1;;
*requeue*8) echo '8: Invalid job id specified' >&2; exit 1;;
esac"#
        ),
    );
    let client = pod.client();
    let job = |id: &str, action| JobCommand {
        job: JobHandle::new(id).unwrap(),
        action,
    };
    client
        .command_job(&job("7", JobAction::Cancel), fence(2))
        .await
        .unwrap();
    client
        .command_job(&job("7", JobAction::Requeue), fence(1))
        .await
        .unwrap();
    let gone = client
        .command_job(&job("8", JobAction::Requeue), fence(3))
        .await
        .unwrap_err();
    assert!(matches!(gone, Error::Refused(Refusal::NoSuchThing)), "{gone:?}");
    assert_eq!(client.reservations().await.unwrap().value[0].name, "r");
    let name = ReservationName::new("r").unwrap();
    let reserve = ReservationCommand::Reserve(ReservationRequest {
        minutes: Some(5),
        ..ReservationRequest::new(name.clone())
    });
    client.command_reservation(&reserve, fence(4)).await.unwrap();
    let stale = client.command_reservation(&reserve, fence(3)).await.unwrap_err();
    assert!(matches!(stale, Error::StaleFence { .. }), "{stale:?}");
    let gone = client
        .command_reservation(&ReservationCommand::Unreserve { name }, fence(5))
        .await
        .unwrap_err();
    assert!(matches!(gone, Error::Refused(Refusal::NoSuchThing)), "{gone:?}");
    assert_eq!(
        fs::read_to_string(&calls).unwrap().lines().collect::<Vec<_>>(),
        [
            "scancel 7",
            "scontrol requeue 7",
            "scontrol requeue 8",
            "scontrol --all --json show reservations",
            "scontrol update ReservationName=r Duration=5",
            "scontrol create reservation ReservationName=r Duration=5",
            "scontrol delete ReservationName=r",
        ]
    );
}

#[tokio::test]
async fn probes_need_no_token_and_everything_else_does() {
    let pod = Pod::running(&revision(1, "one")).await;
    for (path, expected) in [("/healthz", 200), ("/readyz", 200), ("/v1/revision", 401), ("/", 401)] {
        assert_eq!(get(pod.address, path).await, expected, "{path}");
    }
    fs::remove_file(pod.path("etc/..data")).unwrap();
    assert_eq!(get(pod.address, "/readyz").await, 503);
}

async fn get(address: SocketAddr, path: &str) -> u16 {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

/// As the kubelet brings it.
fn mount(pod: &Pod, version: &str, candidate: &Candidate) {
    let directory = pod.path("candidate");
    fs::create_dir(directory.join(version)).unwrap();
    fs::write(directory.join(version).join("candidate"), &candidate.bundle).unwrap();
    fs::write(directory.join(version).join("token"), &candidate.token).unwrap();
    symlink(version, directory.join("..data_tmp")).unwrap();
    fs::rename(directory.join("..data_tmp"), directory.join("..data")).unwrap();
    for name in ["candidate", "token"] {
        let _ = symlink(Path::new("..data").join(name), directory.join(name));
    }
}

#[tokio::test]
async fn a_candidate_that_the_kubelet_brings_goes_live_under_the_checks_of_a_push() {
    let pod = Pod::running(&revision(1, "one")).await;
    let key = AgentKey::derive(KEY).unwrap();
    let made = |revision: &Revision, number: u64, pod: &str, key: &AgentKey| {
        Candidate::new(revision, fence(number), pod, key, SystemTime::now()).unwrap()
    };
    mount(&pod, "..1", &made(&revision(2, "two"), 2, POD, &key));
    pod.status_that("revision 2", |status| {
        status.live.as_ref().is_some_and(|live| live.sequence == 2) && status.phase == Phase::Verified
    })
    .await;
    assert_eq!(pod.conf(), "two");
    let forged = AgentKey::derive(b"another key of another cluster..").unwrap();
    let mut swapped = made(&revision(3, "three"), 3, POD, &key);
    swapped.bundle = revision(3, "not three").to_bundle().unwrap();
    for (version, candidate, complaint) in [
        ("..2", made(&revision(3, "three"), 3, POD, &forged), "another key"),
        (
            "..3",
            made(&revision(3, "three"), 3, "another-pod", &key),
            "another pod",
        ),
        ("..4", swapped, "another candidate"),
        ("..5", made(&revision(3, "three"), 1, POD, &key), "higher fence"),
        ("..6", made(&revision(2, "old"), 4, POD, &key), "is an old one"),
        ("..7", made(&revision(3, "wrong"), 5, POD, &key), "Rejected"),
    ] {
        mount(&pod, version, &candidate);
        let log = pod.path("serve.log");
        let begun = Instant::now();
        while !fs::read_to_string(&log).unwrap().contains(complaint) {
            assert!(begun.elapsed() < Duration::from_secs(10), "{complaint}");
            sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(pod.conf(), "two", "{complaint}");
    }
    // Whoever can be reached again is pushed to as ever.
    assert_eq!(pod.push(&revision(9, "three")).await.outcome, Outcome::Applied);
}

#[tokio::test]
async fn people_can_ask_whether_slurmctld_would_run_with_some_files() {
    let pod = Pod::prepared(&revision(1, "one"));
    let directory = pod.path("tried");
    fs::create_dir(&directory).unwrap();
    let good = "ClusterName=a\nSlurmctldHost=b\n";
    for (conf, code, said) in [
        (good.to_owned(), 0, "slurmctld would run with"),
        (format!("{good}FooBar=1\n"), 1, "slurm.conf line 3: FooBar is no key"),
        // The fake one stumbles over words in comments, too.
        (
            format!("{good}# wrong\n"),
            1,
            "slurmctld: error: Parse error in file /etc/slurm/slurm.conf line 1",
        ),
        (format!("{good}# full\n"), 2, "No space left on device"),
    ] {
        fs::write(directory.join("slurm.conf"), &conf).unwrap();
        let output = pod.command("check").arg(&directory).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(output.status.code(), Some(code), "{conf}: {text}");
        assert!(text.contains(said), "{conf}: {text}");
    }
    let output = pod.command("check").arg("/no/such/place").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[tokio::test]
async fn the_agent_ends_when_told_to() {
    let mut pod = Pod::running(&revision(1, "one")).await;
    let agent = pod.agent.as_mut().unwrap();
    kill(Pid::from_raw(agent.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    assert!(agent.wait().unwrap().success());
}
