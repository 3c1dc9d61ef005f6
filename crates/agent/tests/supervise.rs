//! `slurm-agent supervise` with a daemon that behaves as Slurm's do under `--systemd`.
//!
//! The daemon is this test binary, run again with `FAKE_DAEMON` set (see [`the_daemon`]): it notifies, moves to another process on
//! SIGHUP, and exits with 7 on SIGTERM.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail by panicking"
)]

mod fake_daemon;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

/// Far above what anything here takes, for busy machines.
const TIMEOUT: Duration = Duration::from_secs(10);

#[test]
fn the_daemon() {
    if let Some(directory) = std::env::var_os("FAKE_DAEMON") {
        fake_daemon::main(&PathBuf::from(directory));
    }
}

struct Supervised {
    supervisor: Child,
    directory: TempDir,
}

impl Supervised {
    fn start(extra: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let supervisor = Command::new(env!("CARGO_BIN_EXE_slurm-agent"))
            .args(["supervise", "--"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "the_daemon", "--nocapture"])
            .env("FAKE_DAEMON", directory.path())
            .env("RUNTIME_DIRECTORY", directory.path())
            .envs(extra.iter().copied())
            .stdout(Stdio::null())
            .stderr(fs::File::create(directory.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        Self { supervisor, directory }
    }

    /// Every main process of the daemon, oldest first.
    fn lives(&self) -> Vec<Pid> {
        let text = fs::read_to_string(self.directory.path().join("lives")).unwrap_or_default();
        text.lines().map(|line| Pid::from_raw(line.parse().unwrap())).collect()
    }

    fn life(&self, nth: usize) -> Pid {
        eventually("the next run of the daemon", || self.lives().get(nth).copied())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.supervisor.id().try_into().unwrap()), signal).unwrap();
    }

    fn exit_code(&mut self) -> i32 {
        let status = eventually("the exit of the supervisor", || self.supervisor.try_wait().unwrap());
        status.code().unwrap()
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        let _ = self.supervisor.kill();
        let _ = self.supervisor.wait();
        for pid in self.lives() {
            let _ = kill(pid, Signal::SIGKILL);
        }
    }
}

fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < TIMEOUT, "timed out waiting for {what}");
        sleep(Duration::from_millis(5));
    }
}

fn is_gone(pid: Pid) -> bool {
    !Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn a_reconfigured_daemon_is_followed_to_its_new_process() {
    let mut supervised = Supervised::start(&[]);
    let first = supervised.life(0);
    supervised.signal(Signal::SIGHUP);
    let second = supervised.life(1);
    eventually("the old process to be reaped", || is_gone(first).then_some(()));
    // Again, from the process that is known by its MAINPID alone.
    supervised.signal(Signal::SIGHUP);
    let third = supervised.life(2);
    eventually("the second process to be reaped", || is_gone(second).then_some(()));
    supervised.signal(Signal::SIGTERM);
    assert_eq!(supervised.exit_code(), fake_daemon::EXIT_CODE);
    assert!(is_gone(third));
    assert_eq!(
        supervised.lives().len(),
        3,
        "nothing was restarted:\n{}",
        supervised.log()
    );
}

#[test]
fn a_killed_daemon_is_restarted_at_once() {
    let supervised = Supervised::start(&[]);
    let first = supervised.life(0);
    kill(first, Signal::SIGKILL).unwrap();
    let killed = Instant::now();
    let second = supervised.life(1);
    assert_ne!(first, second);
    // The supervisor waits 50 ms; the rest is for busy machines.
    assert!(killed.elapsed() < Duration::from_secs(2), "{:?}", killed.elapsed());
}

#[test]
fn a_daemon_killed_after_a_reconfigure_is_restarted_too() {
    let supervised = Supervised::start(&[]);
    supervised.life(0);
    supervised.signal(Signal::SIGHUP);
    let second = supervised.life(1);
    eventually("the hand-over", || {
        supervised.log().contains("main process changed").then_some(())
    });
    kill(second, Signal::SIGKILL).unwrap();
    supervised.life(2);
}

#[test]
fn a_failed_reconfigure_changes_nothing() {
    let supervised = Supervised::start(&[]);
    let first = supervised.life(0);
    fs::write(supervised.directory.path().join("bad"), "").unwrap();
    supervised.signal(Signal::SIGHUP);
    eventually("the failure", || {
        supervised.log().contains("reconfigure failed").then_some(())
    });
    assert_eq!(supervised.lives(), [first]);
    assert!(!is_gone(first));
}

#[test]
fn a_stop_is_forwarded_and_the_exit_code_kept() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut supervised = Supervised::start(&[]);
        let daemon = supervised.life(0);
        supervised.signal(signal);
        assert_eq!(supervised.exit_code(), fake_daemon::EXIT_CODE);
        assert!(is_gone(daemon));
    }
}

#[test]
fn other_signals_reach_the_daemon() {
    let supervised = Supervised::start(&[]);
    supervised.life(0);
    supervised.signal(Signal::SIGUSR1);
    supervised.signal(Signal::SIGUSR2);
    eventually("both signals", || {
        let log = supervised.log();
        (log.contains("heard USR1") && log.contains("heard USR2")).then_some(())
    });
}

/// Starts one of two hosts with a common volume, by its index in Slurm's order.
fn start_one_of_two(volume: &Path, index: usize) -> Supervised {
    let files = volume.join("etc");
    fs::create_dir_all(&files).unwrap();
    let state = volume.display();
    let conf = format!("StateSaveLocation={state}\nSlurmctldHost=c-0(a)\nSlurmctldHost=c-1(b)\n");
    fs::write(files.join("slurm.conf"), conf).unwrap();
    let (hostname, files) = (format!("c-{index}"), files.display().to_string());
    let both = [
        ("SLURM_AGENT_HOSTNAME", &*hostname),
        ("SLURM_AGENT_CONFIG_DIR", &*files),
    ];
    let standby = [("FAKE_STANDBY", "1")];
    Supervised::start(&[&both[..], if index == 0 { &[] } else { &standby[..] }].concat())
}

/// Starts a pod of the only host, by its UID.
fn start_pod(volume: &Path, uid: &str) -> Supervised {
    let files = volume.join("etc");
    fs::create_dir_all(&files).unwrap();
    let conf = format!("StateSaveLocation={}\nSlurmctldHost=c-0(a)\n", volume.display());
    fs::write(files.join("slurm.conf"), conf).unwrap();
    let files = files.display().to_string();
    Supervised::start(&[
        ("SLURM_AGENT_HOSTNAME", "c-0"),
        ("SLURM_AGENT_CONFIG_DIR", &files),
        ("SLURM_AGENT_POD_UID", uid),
    ])
}

#[test]
fn a_second_pod_of_one_name_starts_after_the_first_has_stopped_for_good() {
    let volume = tempfile::tempdir().unwrap();
    let older = start_pod(volume.path(), "a");
    let writer = older.life(0);
    eventually("the first pod as primary", || term(volume.path(), 0));
    let newer = start_pod(volume.path(), "b");
    let successor = newer.life(0);
    assert!(is_gone(writer), "{}\n{}", older.log(), newer.log());
    // Neither the older pod nor its restarted container starts it again.
    let restarted = start_pod(volume.path(), "a");
    sleep(Duration::from_secs(6));
    assert_eq!(older.lives(), [writer], "{}", older.log());
    assert_eq!(restarted.lives(), [], "{}", restarted.log());
    assert_eq!(newer.lives(), [successor], "{}", newer.log());
    assert!(!is_gone(successor));
}

#[test]
fn a_pod_that_was_frozen_during_the_takeover_kills_its_slurmctld() {
    let volume = tempfile::tempdir().unwrap();
    let older = start_pod(volume.path(), "a");
    let writer = older.life(0);
    eventually("the first pod as primary", || term(volume.path(), 0));
    older.signal(Signal::SIGSTOP);
    kill(writer, Signal::SIGSTOP).unwrap();
    let begun = Instant::now();
    let newer = start_pod(volume.path(), "b");
    let successor = newer.life(0);
    assert!(begun.elapsed() >= Duration::from_secs(4), "{:?}", begun.elapsed());
    older.signal(Signal::SIGCONT);
    eventually("the end of the frozen one", || is_gone(writer).then_some(()));
    // It may have written before, so its successor saves its own state again.
    let restarted = newer.life(1);
    assert!(is_gone(successor), "{}", newer.log());
    sleep(Duration::from_secs(1));
    assert_eq!(older.lives(), [writer], "{}", older.log());
    assert_eq!(newer.lives(), [successor, restarted], "{}", newer.log());
    assert!(!is_gone(restarted));
}

#[test]
fn a_clean_stop_and_a_restarted_container_delay_no_start() {
    let volume = tempfile::tempdir().unwrap();
    let begun = Instant::now();
    let mut first = start_pod(volume.path(), "a");
    first.life(0);
    first.signal(Signal::SIGTERM);
    first.exit_code();
    let second = start_pod(volume.path(), "b");
    second.life(0);
    drop(second);
    start_pod(volume.path(), "b").life(0);
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
}

fn term(volume: &Path, index: usize) -> Option<u64> {
    let record = fs::read(volume.join(format!(".slurm-operator/.standing/c-{index}"))).ok()?;
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    record["inCharge"].as_bool()?.then(|| record["term"].as_u64().unwrap())
}

#[test]
fn the_first_host_starts_when_the_primary_has_stopped() {
    let volume = tempfile::tempdir().unwrap();
    let second = start_one_of_two(volume.path(), 1);
    let in_charge = second.life(0);
    second.signal(Signal::SIGUSR1);
    eventually("the second host as primary", || term(volume.path(), 1));
    let mut first = start_one_of_two(volume.path(), 0);
    first.life(0);
    assert!(is_gone(in_charge), "{}", second.log());
    let standby = second.life(1);
    eventually("the first host as primary", || {
        term(volume.path(), 0).filter(|term| *term == 2)
    });

    first.signal(Signal::SIGTERM);
    first.exit_code();
    assert_eq!(term(volume.path(), 0), None);
    assert!(
        !is_gone(standby),
        "only a starting host makes others yield:\n{}",
        second.log()
    );
}

#[test]
fn a_primary_that_hung_during_a_takeover_is_killed_and_restarts() {
    let volume = tempfile::tempdir().unwrap();
    let first = start_one_of_two(volume.path(), 0);
    let hanging = first.life(0);
    // Started earlier it would yield.
    eventually("the first host as primary", || term(volume.path(), 0));
    let second = start_one_of_two(volume.path(), 1);
    let standby = second.life(0);
    kill(hanging, Signal::SIGSTOP).unwrap();
    second.signal(Signal::SIGUSR1);
    first.life(1);
    assert!(
        is_gone(hanging) && is_gone(standby),
        "{}\n{}",
        first.log(),
        second.log()
    );
    assert!(first.log().contains("became primary after this one"), "{}", first.log());
    second.life(1);
}

#[test]
fn the_log_of_a_crash_quotes_the_daemons_last_lines() {
    let mut supervised = Supervised::start(&[("FAKE_FATAL", "fatal: no key")]);
    let line = eventually("the log of the crash", || {
        supervised
            .log()
            .lines()
            .find(|line| line.contains("last_words"))
            .map(str::to_owned)
    });
    assert!(line.contains("fatal: no key"), "{line}");
    // It keeps crashing. The stop comes between two runs, and its last code is used, or during a run.
    supervised.signal(Signal::SIGTERM);
    let code = supervised.exit_code();
    assert!([1, 128 + 15].contains(&code), "{code}");
}

#[test]
fn a_daemon_that_dies_of_a_file_it_never_wrote_is_started_with_the_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let script = r#"case "$*" in
        *-i) echo "forgiven" >&2; exec sleep 100;;
        *) echo "fatal: No Assoc usage file (/s/assoc_usage) to recover" >&2; exit 1;;
    esac"#;
    let mut supervisor = Command::new(env!("CARGO_BIN_EXE_slurm-agent"))
        .args(["supervise", "--", "sh", "-c", script, "daemon"])
        .env("RUNTIME_DIRECTORY", directory.path())
        .stderr(fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let text = || fs::read_to_string(&log).unwrap();
    // The word is also in its command, which is logged.
    let forgiven = || text().lines().any(|line| line == "forgiven");
    eventually("its second run", || forgiven().then_some(()));
    kill(Pid::from_raw(supervisor.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    supervisor.wait().unwrap();
    let deaths = text().lines().filter(|line| line.starts_with("fatal:")).count();
    assert_eq!(deaths, 1, "{}", text());
}

#[test]
fn a_command_that_does_not_exist_is_an_error_in_one_sentence() {
    let output = Command::new(env!("CARGO_BIN_EXE_slurm-agent"))
        .args(["supervise", "--", "/no/such/daemon"])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains(r#"cannot run "/no/such/daemon": No such file or directory"#),
        "{text}"
    );
}
