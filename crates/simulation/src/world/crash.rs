//! Crash points: everything that a process does to the world is counted, and the process can die right after the n-th.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    pin::Pin,
    task::{Context, Poll},
};

use host::{Connection, Durability, Entry, FileError, Files, Metadata};
use slurm::rpc::{Frame, MessageType};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::machine::{Life, Simulated};

thread_local! {
    /// Of the world of this thread.
    static PLAN: RefCell<Option<Plan>> = const { RefCell::new(None) };
}

/// What was counted, and who dies.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    pub counts: BTreeMap<&'static str, u64>,
    done: u64,
    deadly: Option<u64>,
    /// What the process that died did last.
    pub struck: Option<String>,
}

/// Counts effects from now on. The process that does the n-th dies right after it.
pub fn begin(deadly: Option<u64>) {
    PLAN.set(Some(Plan {
        deadly,
        ..Plan::default()
    }));
}

/// Counts no more.
pub fn end() -> Plan {
    PLAN.take().unwrap_or_default()
}

/// A process has done something.
pub(super) fn effect(kind: &'static str, what: &str, life: &Life) {
    if life.is_lasting() || life.is_dead() {
        return;
    }
    let dies = PLAN.with_borrow_mut(|plan| {
        let Some(plan) = plan else { return false };
        *plan.counts.entry(kind).or_default() += 1;
        plan.done += 1;
        let dies = plan.deadly == Some(plan.done);
        if dies {
            plan.struck = Some(format!("{kind} {what}"));
        }
        dies
    });
    if dies {
        life.kill();
    }
}

/// A connection of which each order is an effect of the process that sends it.
pub(super) struct Sending {
    pub(super) connection: Connection,
    pub(super) life: Life,
}

/// What a message orders; `None` if it only asks.
fn order_of(message: &[u8]) -> Option<(&'static str, String)> {
    const ORDERS: [MessageType; 8] = [
        MessageType::UPDATE_NODE,
        MessageType::CREATE_PARTITION,
        MessageType::DELETE_PARTITION,
        MessageType::UPDATE_PARTITION,
        MessageType::DELETE_NODE,
        MessageType::CREATE_NODE,
        MessageType::COMPLETE_JOB_ALLOCATION,
        MessageType::COMPLETE_BATCH_SCRIPT,
    ];
    let text = String::from_utf8_lossy(message.get(..100).unwrap_or(message)).into_owned();
    let first = text.lines().next().unwrap_or_default();
    if ["POST ", "PUT ", "DELETE ", "PATCH "]
        .iter()
        .any(|verb| first.starts_with(verb))
    {
        return Some(("agent request", first.to_owned()));
    }
    if first == "\"reconfigure\"" || first == "\"restart\"" {
        return Some(("control message", first.to_owned()));
    }
    let frame = Frame::unpack(message.get(4..)?).ok()?;
    ORDERS
        .contains(&frame.kind)
        .then(|| ("Slurm message", format!("{:?}", frame.kind)))
}

impl AsyncRead for Sending {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_read(context, buffer)
    }
}

impl AsyncWrite for Sending {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.connection).poll_write(context, bytes);
        if let (Poll::Ready(Ok(_)), Some((kind, what))) = (&written, order_of(bytes)) {
            effect(kind, &what, &self.life);
            if self.life.is_dead() {
                return Poll::Pending;
            }
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(context)
    }
}

type Result<T> = std::result::Result<T, FileError>;

impl Simulated {
    /// Changes a file, unless the process is dead: its code runs on until it waits for something.
    fn change(&self, path: &Path, change: impl FnOnce() -> Result<()>) -> Result<()> {
        if self.life.is_dead() {
            return Err(FileError::new("write", path, io::ErrorKind::BrokenPipe.into()));
        }
        change()?;
        effect(self.change, &path.to_string_lossy(), &self.life);
        Ok(())
    }
}

impl Files for Simulated {
    fn read(&self, path: &Path) -> Result<Vec<u8>> {
        self.files.read(path)
    }

    fn metadata(&self, path: &Path) -> Result<Metadata> {
        self.files.metadata(path)
    }

    fn entries(&self, directory: &Path) -> Result<Vec<Entry>> {
        self.files.entries(directory)
    }

    fn read_link(&self, path: &Path) -> Result<PathBuf> {
        self.files.read_link(path)
    }

    fn canonicalize(&self, path: &Path) -> Result<PathBuf> {
        self.files.canonicalize(path)
    }

    fn create(&self, path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
        self.change(path, || self.files.create(path, bytes, mode))
    }

    fn replace(&self, path: &Path, bytes: &[u8], mode: u32, durability: Durability) -> Result<()> {
        self.change(path, || self.files.replace(path, bytes, mode, durability))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.change(to, || self.files.rename(from, to))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.change(path, || self.files.remove(path))
    }

    fn remove_tree(&self, path: &Path) -> Result<()> {
        self.change(path, || self.files.remove_tree(path))
    }

    fn create_directory(&self, path: &Path, mode: u32) -> Result<()> {
        self.change(path, || self.files.create_directory(path, mode))
    }

    fn create_directories(&self, path: &Path, mode: u32) -> Result<()> {
        self.change(path, || self.files.create_directories(path, mode))
    }

    fn sync_directory(&self, path: &Path) -> Result<()> {
        self.files.sync_directory(path)
    }

    fn symlink(&self, target: &Path, link: &Path) -> Result<()> {
        self.change(link, || self.files.symlink(target, link))
    }

    fn set_mode(&self, path: &Path, mode: u32) -> Result<()> {
        self.change(path, || self.files.set_mode(path, mode))
    }

    fn set_owner(&self, path: &Path, user: u32, group: u32) -> Result<()> {
        self.change(path, || self.files.set_owner(path, user, group))
    }
}
