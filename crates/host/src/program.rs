//! Programs that a process runs.
#![allow(clippy::disallowed_methods, reason = "everything else goes through this file")]

use std::{
    ffi::OsString,
    io,
    process::{ExitStatus, Output, Stdio},
};

use futures::future::BoxFuture;
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tokio::{
    io::AsyncRead,
    process::{Child, Command},
};

/// A program with its arguments.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Program {
    pub words: Vec<OsString>,
    /// Variables that it does not get from this process.
    pub without: Vec<&'static str>,
}

impl Program {
    fn command(self) -> io::Result<Command> {
        let (program, arguments) = self.words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
        for variable in self.without {
            command.env_remove(variable);
        }
        Ok(command)
    }
}

/// A running program.
pub trait Process: Send {
    /// Its number and that of its group; `None` if it has ended, or is simulated.
    fn id(&self) -> Option<u32>;

    /// The standard error, once.
    fn stderr(&mut self) -> Option<Box<dyn AsyncRead + Send + Unpin>>;

    fn wait(&mut self) -> BoxFuture<'_, io::Result<ExitStatus>>;

    /// Kills it, and the processes of its group.
    fn kill(&mut self);
}

pub(crate) async fn run(program: Program) -> io::Result<Output> {
    program.command()?.output().await
}

pub(crate) fn start(program: Program) -> io::Result<Box<dyn Process>> {
    let mut command = program.command()?;
    command.stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
    let child = command.spawn()?;
    let group = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
    Ok(Box::new(Group { child, group }))
}

#[derive(Debug)]
struct Group {
    child: Child,
    group: Option<Pid>,
}

impl Process for Group {
    fn id(&self) -> Option<u32> {
        self.child.id()
    }

    fn stderr(&mut self) -> Option<Box<dyn AsyncRead + Send + Unpin>> {
        self.child.stderr.take().map(|stderr| Box::new(stderr) as _)
    }

    fn wait(&mut self) -> BoxFuture<'_, io::Result<ExitStatus>> {
        Box::pin(self.child.wait())
    }

    fn kill(&mut self) {
        if let Some(group) = self.group {
            // The group is gone if the program has exited and left nothing behind.
            let _ = killpg(group, Signal::SIGKILL);
        }
    }
}
