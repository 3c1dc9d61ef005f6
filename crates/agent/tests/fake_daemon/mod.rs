//! A daemon that behaves as slurmctld and slurmd do under `--systemd`, as a service manager sees them (Slurm 26.05).
//!
//! A reconfigure is a child of a child, so that the new main process is an orphan; it reads its files, notifies the service manager,
//! waits at a barrier until the notification was handled, and signals the old process, which exits with 0. If it dies instead, the
//! old process continues. Its files are bad if there is one named `bad`, or if `etc/slurm.conf` contains the word. [`port`] is its
//! RPC port.

mod partitions;
mod port;

use std::fs::OpenOptions;
use std::io::{IoSlice, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio, exit};

use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};
use tokio::signal::unix::{Signal, SignalKind, signal};

pub(crate) const EXIT_CODE: i32 = 7;

/// The user of scontrol's tokens.
pub(crate) const SCONTROL: &str = "scontrol";

const PRIMARY: &str = "[2026-11-15T05:25:07.740] Running as primary controller";

/// Its log line with `FAKE_STANDBY`, until SIGUSR1 makes it take over.
const STANDBY: &str = "[2026-11-15T05:25:07.740] slurmctld running in background mode";

/// In the environment of a process that is to become the main one: `child`, then `grandchild`.
const STAGE: &str = "FAKE_STAGE";

pub(crate) fn main(directory: &Path) -> ! {
    if let Ok(words) = std::env::var("FAKE_FATAL") {
        eprintln!("{words}");
        exit(1);
    }
    match std::env::var(STAGE).as_deref() {
        Ok("child") => {
            again("grandchild", Stdio::inherit());
            exit(0);
        }
        Ok(_) => {
            read_files(directory);
            serve(directory, announce)
        }
        Err(_) => {
            // slurmctld notifies before it acts on its files.
            notify("READY=1", &[]);
            read_files(directory);
            serve(directory, || ())
        }
    }
}

fn read_files(directory: &Path) {
    let conf = std::fs::read_to_string(directory.join("etc/slurm.conf")).unwrap_or_default();
    if directory.join("bad").exists() || conf.contains("bad") {
        eprintln!("[2026-11-15T05:25:07.733] error: _parse_next_key: Parsing error at unrecognized key: bad");
        eprintln!("[2026-11-15T05:25:07.733] fatal: Unable to process configuration file");
        exit(1);
    }
}

fn serve(directory: &Path, announce: impl FnOnce()) -> ! {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let listen = |kind: SignalKind| -> Signal { signal(kind).unwrap() };
        let (mut hangup, mut terminate) = (listen(SignalKind::hangup()), listen(SignalKind::terminate()));
        let mut interrupt = listen(SignalKind::interrupt());
        let (mut user1, mut user2) = (listen(SignalKind::user_defined1()), listen(SignalKind::user_defined2()));
        // From here on signals are handled, so tests may send them.
        record(directory);
        port::open(directory);
        let standby = std::env::var_os("FAKE_STANDBY").is_some();
        eprintln!("{}", if standby { STANDBY } else { PRIMARY });
        announce();
        print!("serving");
        std::io::stdout().flush().unwrap();
        loop {
            tokio::select! {
                _ = hangup.recv() => reconfigure(),
                _ = terminate.recv() => exit(EXIT_CODE),
                _ = interrupt.recv() => exit(EXIT_CODE),
                _ = user1.recv() => eprintln!("{}", if standby { PRIMARY } else { "heard USR1" }),
                _ = user2.recv() => eprintln!("heard USR2"),
            }
        }
    })
}

fn reconfigure() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let child = again("child", writer.into());
    child.wait_with_output().unwrap();
    let mut output = String::new();
    let mut byte = [0];
    while reader.read(&mut byte).unwrap() == 1 {
        output.push(char::from(byte[0]));
        if output.ends_with("serving") {
            exit(0);
        }
    }
    eprintln!("[2026-11-15T05:25:07.734] Resuming operation, reconfigure failed.");
}

fn again(stage: &str, stdout: Stdio) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_daemon", "--nocapture"])
        .env(STAGE, stage)
        .stdout(stdout)
        .spawn()
        .unwrap()
}

fn announce() {
    notify(&format!("READY=1\nMAINPID={}", std::process::id()), &[]);
    let (mut reader, writer) = std::io::pipe().unwrap();
    notify("BARRIER=1", &[writer.as_raw_fd()]);
    drop(writer);
    // Returns when the supervisor has closed its copy.
    reader.read_to_end(&mut Vec::new()).unwrap();
}

fn record(directory: &Path) {
    let mut lives = OpenOptions::new()
        .append(true)
        .create(true)
        .open(directory.join("lives"))
        .unwrap();
    lives.write_all(format!("{}\n", std::process::id()).as_bytes()).unwrap();
}

fn notify(text: &str, descriptors: &[i32]) {
    let path = std::env::var_os("NOTIFY_SOCKET").unwrap();
    let socket = UnixDatagram::unbound().unwrap();
    let address = UnixAddr::new(Path::new(&path)).unwrap();
    let control = [ControlMessage::ScmRights(descriptors)];
    let control = if descriptors.is_empty() { &[][..] } else { &control[..] };
    sendmsg(
        socket.as_raw_fd(),
        &[IoSlice::new(text.as_bytes())],
        control,
        MsgFlags::empty(),
        Some(&address),
    )
    .unwrap();
}
