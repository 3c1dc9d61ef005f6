//! The records on the volume that all share.
//!
//! A volume over the network may not answer for minutes, so a thread of its own talks to it. It looks from time to time: no
//! file system tells of changes that another machine has made.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tracing::warn;

use super::heartbeat::{self, Heartbeat};
use super::place::Place;
use super::record::{Other, Record, Seen};
use crate::durable;

/// How long two slurmctld may write at once, at most, and a good part of what a hand-over takes. A look is an `open` for each
/// of the others.
const LOOK: Duration = Duration::from_millis(250);

/// For the last word. Whoever misses it is waited for in vain for some seconds.
const FAREWELL: Duration = Duration::from_secs(1);

/// What changes in our own record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// For the so-many-th time.
    TookCharge(u64),
    LostCharge,
    Asked(u64),
    Heard(u64),
    Yielded(u64),
    Left,
}

#[derive(Debug)]
pub(super) struct Volume {
    pub(super) place: Place,
    changes: Sender<Change>,
    seen: UnboundedReceiver<Seen>,
}

impl Volume {
    /// No slurmctld may run here yet.
    pub(super) fn open(place: Place) -> io::Result<Self> {
        let (changes, to_make) = mpsc::channel();
        let (tell, seen) = unbounded_channel();
        let keeper = Keeper::new(&place, tell);
        std::thread::Builder::new()
            .name("standing".to_owned())
            .spawn(move || keeper.run(&to_make))?;
        Ok(Self { place, changes, seen })
    }

    pub(super) fn change(&self, change: Change) {
        // The thread ends after us.
        let _ = self.changes.send(change);
    }

    /// `None` never comes while this lives.
    pub(super) async fn next(&mut self) -> Option<Seen> {
        self.seen.recv().await
    }

    pub(super) async fn leave(mut self) {
        self.change(Change::Left);
        let gone = async { while self.seen.recv().await.is_some_and(|seen| seen.own.here) {} };
        let _ = tokio::time::timeout(FAREWELL, gone).await;
    }
}

struct Keeper {
    directory: PathBuf,
    own_path: PathBuf,
    heartbeat: PathBuf,
    seen: Seen,
    /// What the volume has of our own record.
    written: Option<Record>,
    /// It took charge, and has no term yet.
    takes_charge: Option<u64>,
    begun: bool,
    tell: UnboundedSender<Seen>,
}

impl Keeper {
    fn new(place: &Place, tell: UnboundedSender<Seen>) -> Self {
        // Hidden from whoever lists the Controllers in there.
        let directory = place.state.join(".slurm-operator").join(".standing");
        let other = |(index, host): (usize, &String)| Other {
            index,
            host: host.clone(),
            record: None,
        };
        let (own, others): (Vec<_>, Vec<_>) = place
            .hosts
            .iter()
            .enumerate()
            .map(other)
            .partition(|other| other.index == place.own);
        let own_path = directory.join(own.first().map_or("", |own| &own.host));
        Self {
            directory,
            own_path,
            heartbeat: place.state.join(heartbeat::FILE),
            seen: Seen {
                index: place.own,
                own: Record::default(),
                charge: 0,
                heartbeat: None,
                others,
            },
            written: None,
            takes_charge: None,
            begun: false,
            tell,
        }
    }

    fn run(mut self, changes: &Receiver<Change>) {
        let mut failing = false;
        let mut told = None;
        loop {
            match self.look() {
                Ok(()) => failing = false,
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        let path = self.directory.display();
                        warn!(%error, %path, "cannot tell the other slurmctld's supervisors where this one stands");
                    }
                }
            }
            if told.as_ref() != Some(&self.seen) {
                if self.tell.send(self.seen.clone()).is_err() {
                    return;
                }
                told = Some(self.seen.clone());
            }
            match changes.recv_timeout(LOOK) {
                Ok(change) => self.make(change),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Reads what the others say, and then says what is new.
    fn look(&mut self) -> io::Result<()> {
        let heartbeat = std::fs::read(&self.heartbeat).unwrap_or_default();
        self.seen.heartbeat = Heartbeat::parse(&heartbeat);
        for other in &mut self.seen.others {
            // What cannot be read is as it was.
            other.record = read(&self.directory.join(&other.host))?;
        }
        if !self.begun {
            self.begin()?;
        }
        if let Some(charge) = self.takes_charge.take() {
            // All terms are known here, so nobody's old one can be above it.
            self.seen.own.term = self.seen.next_term();
            self.seen.own.in_charge = true;
            self.seen.charge = charge;
        }
        if self.written.as_ref() != Some(&self.seen.own) {
            std::fs::create_dir_all(&self.directory)?;
            // Our own message types have nothing that JSON does not have.
            let bytes = serde_json::to_vec(&self.seen.own).unwrap_or_default();
            durable::replace_unsynced(&self.own_path, &bytes, 0o640)?;
            self.written = Some(self.seen.own.clone());
        }
        Ok(())
    }

    /// What was asked before is followed: nothing runs here yet.
    fn begin(&mut self) -> io::Result<()> {
        let before = read(&self.own_path)?.unwrap_or_default();
        let first = self.seen.others.iter().find(|other| other.index == 0);
        let asked = first
            .and_then(|first| Some(first.record.as_ref()?.asks))
            .unwrap_or_default();
        let own = &mut self.seen.own;
        own.here = true;
        own.term = own.term.max(before.term);
        if own.heard == 0 {
            own.yielded = asked;
        }
        self.begun = true;
        Ok(())
    }

    fn make(&mut self, change: Change) {
        let own = &mut self.seen.own;
        match change {
            Change::TookCharge(count) => self.takes_charge = Some(count),
            Change::LostCharge => {
                self.takes_charge = None;
                own.in_charge = false;
            }
            Change::Asked(question) => own.asks = question,
            Change::Heard(question) => own.heard = question,
            Change::Yielded(question) => own.yielded = question,
            Change::Left => {
                self.takes_charge = None;
                own.in_charge = false;
                own.here = false;
            }
        }
    }
}

/// `None` if there is none, or if it means nothing: records are whole or absent.
fn read(path: &Path) -> io::Result<Option<Record>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
