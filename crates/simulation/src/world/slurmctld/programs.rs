//! The programs that the agent runs: Slurm's commands, and slurmctld in a dry run.

use std::{
    io,
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{ExitStatus, Output},
    time::Duration,
};

use futures::future::BoxFuture;
use host::{Process, Program};
use tokio::{
    io::{AsyncRead, AsyncWriteExt as _, DuplexStream, duplex},
    time::sleep,
};

use super::{
    ControllerPod,
    reading::{self, Death, Place},
};
use crate::{
    slurm::ControllerId,
    world::{machine::Programs, views::Activity},
};

/// From exec to "Running as primary controller" (measured: 14 to 22 ms).
const PRIMARY: Duration = Duration::from_millis(20);

impl Programs for ControllerPod {
    fn run(&self, program: Program) -> BoxFuture<'static, io::Result<Output>> {
        let (world, pod) = (self.world.clone(), self.clone());
        Box::pin(async move {
            let words: Vec<String> = program
                .words
                .iter()
                .map(|word| word.to_string_lossy().into_owned())
                .collect();
            let argv: Vec<&str> = words.iter().map(String::as_str).collect();
            let mut waited = Duration::ZERO;
            // The others ask slurmdbd.
            if argv.iter().any(|word| ["squeue", "scontrol", "scancel"].contains(word)) {
                waited += pod.wait_while_away().await;
            }
            if argv.iter().any(|word| ["squeue", "show"].contains(word)) {
                waited += pod.wait_while_frozen().await;
            }
            let to = pod.daemon().unwrap_or(ControllerId(0));
            let ran = world.slurm().run(to, "agent", &argv);
            sleep(ran.takes.saturating_sub(waited)).await;
            if words
                .get(1)
                .is_some_and(|word| matches!(word.as_str(), "update" | "delete" | "create"))
            {
                world.tell(format!("{} -> {} {}", words.join(" "), ran.code, ran.stderr.trim()));
            }
            Ok(Output {
                status: ExitStatus::from_raw(ran.code << 8),
                stdout: ran.stdout.into_bytes(),
                stderr: ran.stderr.into_bytes(),
            })
        })
    }

    /// slurmctld in a dry run.
    fn start(&self, program: Program) -> io::Result<Box<dyn Process>> {
        let conf = program.words.last().cloned().unwrap_or_default();
        let reading = reading::read(&self.machine.files, Path::new(&conf), &Place::DryRun);
        let (stderr, mut output) = duplex(1 << 16);
        let (exit, exited) = host::watch::channel(None);
        let killed = exit.clone();
        self.spawn(async move {
            let say = async |output: &mut DuplexStream, words: &str| {
                for line in words.lines() {
                    let _ = output.write_all(format!("slurmctld: {line}\n").as_bytes()).await;
                }
            };
            match reading.result {
                Ok(_) => {
                    sleep(reading.hangs + PRIMARY).await;
                    say(&mut output, "Running as primary controller").await;
                    let _ = exit.subscribe().wait_for(Option::is_some).await;
                }
                Err(Death { after, words }) => {
                    say(&mut output, &words).await;
                    sleep(after).await;
                    exit.send_if_modified(|code| {
                        let first = code.is_none();
                        code.get_or_insert(1 << 8);
                        first
                    });
                }
            }
        });
        Ok(Box::new(DryRun {
            stderr: Some(stderr),
            killed,
            exited,
            _activity: self.world.begin("dry run"),
        }))
    }
}

struct DryRun {
    stderr: Option<DuplexStream>,
    killed: host::watch::Sender<Option<i32>>,
    exited: host::watch::Receiver<Option<i32>>,
    _activity: Activity,
}

impl Process for DryRun {
    fn id(&self) -> Option<u32> {
        None
    }

    fn stderr(&mut self) -> Option<Box<dyn AsyncRead + Send + Unpin>> {
        self.stderr.take().map(|stderr| Box::new(stderr) as _)
    }

    fn wait(&mut self) -> BoxFuture<'_, io::Result<ExitStatus>> {
        Box::pin(async {
            let code = self.exited.wait_for(Option::is_some).await;
            let code = code.map_err(io::Error::other)?.unwrap_or_default();
            Ok(ExitStatus::from_raw(code))
        })
    }

    fn kill(&mut self) {
        self.killed.send_if_modified(|code| {
            let first = code.is_none();
            code.get_or_insert(9);
            first
        });
    }
}
