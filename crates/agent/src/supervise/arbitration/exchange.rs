//! The exchange of records on the shared volume.
//!
//! A network volume may not respond for minutes, so a thread of its own accesses it. The volume is polled: no file system
//! reports changes that another machine has made.

use std::path::{Path, PathBuf};
use std::time::Duration;

use host::{Durability, FileError, Host, Worker};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tracing::warn;

use super::heartbeat::{self, Heartbeat};
use super::membership::Membership;
use super::record::{Peer, Record, Snapshot};
use super::succession::{Question, Succession, Tenure};

/// Bounds how long two slurmctld may write at once, and is a large part of the time a hand-over takes. A poll is one `open` for
/// each of the others.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// For the last record. If it is not written, the others wait some seconds for this host.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// A change of this host's own record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// With the number of the takeover.
    BecamePrimary(u64),
    NoLongerPrimary,
    Requested(u64),
    Noticed(u64),
    Yielded(u64),
    Tenure(Tenure),
    /// The daemon was killed because it ran on after another one had started. With a new number.
    Overran(u64),
    Left,
}

#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) membership: Membership,
    changes: UnboundedSender<Change>,
    snapshots: UnboundedReceiver<Snapshot>,
}

impl Exchange {
    /// No slurmctld may run on this host yet.
    pub(super) fn open(host: &Host, membership: Membership) -> std::io::Result<Self> {
        let (changes, to_apply) = unbounded_channel();
        let (sender, snapshots) = unbounded_channel();
        let records = Records::new(host.clone(), &membership, sender);
        let thread = host.worker("arbitration")?;
        host.spawn("arbitration", records.run(thread, to_apply)).detach();
        Ok(Self {
            membership,
            changes,
            snapshots,
        })
    }

    pub(super) fn send(&self, change: Change) {
        // The task outlives this handle.
        let _ = self.changes.send(change);
    }

    /// The next snapshot that differs from the one before.
    pub(super) async fn next(&mut self) -> Option<Snapshot> {
        self.snapshots.recv().await
    }

    pub(super) async fn leave(mut self) {
        self.send(Change::Left);
        let left = async { while self.snapshots.recv().await.is_some_and(|seen| seen.own.present) {} };
        let _ = timeout(LEAVE_TIMEOUT, left).await;
    }
}

struct Records {
    host: Host,
    directory: PathBuf,
    own_path: PathBuf,
    heartbeat: PathBuf,
    snapshot: Snapshot,
    /// The pods of this host's name, and the last one that started its slurmctld. See [`Succession`].
    pods_path: PathBuf,
    tenure_path: PathBuf,
    /// What this pod says about its slurmctld, once it has started one.
    tenure: Option<Tenure>,
    /// The last question of a superseded pod, and the last response. See [`Question`].
    asked_path: PathBuf,
    answered_path: PathBuf,
    /// The last question of this pod.
    question: Option<Question>,
    /// The last question that this pod has responded to.
    answered: Option<u64>,
    overrun_path: PathBuf,
    /// An overrun of this pod that is not written yet.
    overrun: Option<u64>,
    /// This host's record as the volume has it.
    written: Option<Record>,
    /// The daemon became primary and has no term yet.
    takeover: Option<u64>,
    initialized: bool,
    snapshots: UnboundedSender<Snapshot>,
    /// The last snapshot that was sent.
    sent: Option<Snapshot>,
    failing: bool,
}

impl Records {
    fn new(host: Host, membership: &Membership, snapshots: UnboundedSender<Snapshot>) -> Self {
        // A hidden name, since the directory above lists Controllers.
        let directory = membership.state_dir.join(".slurm-operator").join(".standing");
        let peer = |(index, host): (usize, &String)| Peer {
            index,
            host: host.clone(),
            record: None,
        };
        let all = membership.hosts.iter().enumerate().map(peer);
        let (own, peers): (Vec<_>, Vec<_>) = all.partition(|peer| peer.index == membership.own);
        let own = own.first().map_or("", |own| &own.host);
        Self {
            host,
            own_path: directory.join(own),
            // No host name has this character.
            pods_path: directory.join(format!("{own}@pods")),
            tenure_path: directory.join(format!("{own}@tenure")),
            tenure: None,
            asked_path: directory.join(format!("{own}@asked")),
            answered_path: directory.join(format!("{own}@answered")),
            question: None,
            answered: None,
            overrun_path: directory.join("@overrun"),
            overrun: None,
            directory,
            heartbeat: membership.state_dir.join(heartbeat::FILE),
            snapshot: Snapshot {
                index: membership.own,
                own: Record::default(),
                takeover: 0,
                heartbeat: None,
                peers,
                succession: Succession {
                    own: membership.pod.clone(),
                    ..Succession::default()
                },
                overrun: None,
            },
            written: None,
            takeover: None,
            initialized: false,
            snapshots,
            sent: None,
            failing: false,
        }
    }

    async fn run(self, thread: Worker, mut changes: UnboundedReceiver<Change>) {
        let mut records = self;
        loop {
            let (done, polled) = oneshot::channel();
            thread.submit(move || {
                records.exchange();
                // The task waits for it.
                drop(done.send(records));
            });
            let Ok(after) = polled.await else { return };
            records = after;
            match timeout(POLL_INTERVAL, changes.recv()).await {
                Ok(Some(change)) => records.apply(change),
                Ok(None) => return,
                Err(_) => {}
            }
        }
    }

    fn exchange(&mut self) {
        match self.poll() {
            Ok(()) => self.failing = false,
            Err(error) => {
                if !std::mem::replace(&mut self.failing, true) {
                    warn!(%error, "cannot exchange records with the supervisors of the other slurmctld");
                }
            }
        }
        if self.sent.as_ref() != Some(&self.snapshot) {
            // The task ends once the receiver is dropped.
            let _ = self.snapshots.send(self.snapshot.clone());
            self.sent = Some(self.snapshot.clone());
        }
    }

    /// Reads the others' records, then writes the own one if it has changed.
    fn poll(&mut self) -> Result<(), FileError> {
        let heartbeat = self.host.files().read(&self.heartbeat).unwrap_or_default();
        self.snapshot.heartbeat = Heartbeat::parse(&heartbeat);
        for peer in &mut self.snapshot.peers {
            // A record that cannot be read stays as it was.
            peer.record = read(&self.host, &self.directory.join(&peer.host))?;
        }
        let succession = &mut self.snapshot.succession;
        if succession.own.is_some() {
            succession.pods = read(&self.host, &self.pods_path)?.unwrap_or_default();
            succession.tenure = read(&self.host, &self.tenure_path)?;
        }
        if !self.initialized {
            self.initialize()?;
        }
        self.write_tenure()?;
        let own = &mut self.snapshot.own;
        if let Some(takeover) = self.takeover.take() {
            // All terms are known here, so that no earlier one is above it.
            own.primary = true;
            self.snapshot.takeover = takeover;
            self.snapshot.own.term = self.snapshot.next_term();
        }
        let is_over = self.snapshot.succession.is_over();
        if self.written.as_ref() != Some(&self.snapshot.own) && !is_over {
            self.write(&self.own_path, &self.snapshot.own)?;
            self.written = Some(self.snapshot.own.clone());
        }
        if let Some(overrun) = self.overrun {
            self.write(&self.overrun_path, &overrun)?;
            self.overrun = None;
        }
        self.snapshot.overrun = read(&self.host, &self.overrun_path)?;
        self.ask_or_answer()
    }

    fn write_tenure(&mut self) -> Result<(), FileError> {
        let succession = &self.snapshot.succession;
        if let (Some(pod), Some(tenure)) = (&succession.own, self.tenure)
            && succession.may_write(tenure)
        {
            let tenure = (pod.clone(), tenure);
            self.write(&self.tenure_path, &tenure)?;
            self.snapshot.succession.tenure = Some(tenure);
        }
        Ok(())
    }

    /// Asks whether the later pod is alive if there is one, and responds to an earlier pod otherwise.
    fn ask_or_answer(&mut self) -> Result<(), FileError> {
        let succession = &self.snapshot.succession;
        if succession.own.is_none() {
            return Ok(());
        }
        if !succession.is_superseded() {
            let asked: Option<u64> = read(&self.host, &self.asked_path)?;
            if let Some(asked) = asked.filter(|asked| self.answered != Some(*asked)) {
                self.write(&self.answered_path, &asked)?;
                self.answered = Some(asked);
            }
            return Ok(());
        }
        let answered = read(&self.host, &self.answered_path)?;
        let now = self.host.instant();
        if self.question.is_none_or(|question| question.is_outdated(answered, now)) {
            let number = new_number(&self.host);
            self.write(&self.asked_path, &number)?;
            self.question = Some(Question { number, since: now });
        }
        let is_silent = self.question.is_some_and(|question| question.is_ignored(answered, now));
        self.snapshot.succession.is_silent = is_silent;
        Ok(())
    }

    fn write(&self, path: &Path, content: &impl Serialize) -> Result<(), FileError> {
        let files = self.host.files();
        files.create_directories(&self.directory, 0o777)?;
        // Serializing our own types cannot fail.
        let bytes = serde_json::to_vec(content).unwrap_or_default();
        files.replace(path, &bytes, 0o640, Durability::Unsynced)
    }

    /// Continues the previous record. An open request is fulfilled: no slurmctld runs on this host yet.
    fn initialize(&mut self) -> Result<(), FileError> {
        if self.snapshot.succession.join() {
            self.write(&self.pods_path, &self.snapshot.succession.pods)?;
        }
        let before: Record = read(&self.host, &self.own_path)?.unwrap_or_default();
        let request = self.snapshot.first().map_or(0, |first| first.request);
        let own = &mut self.snapshot.own;
        own.present = true;
        own.term = own.term.max(before.term);
        if own.noticed == 0 {
            own.yielded = request;
        }
        self.initialized = true;
        Ok(())
    }

    fn apply(&mut self, change: Change) {
        let own = &mut self.snapshot.own;
        match change {
            Change::BecamePrimary(takeover) => self.takeover = Some(takeover),
            Change::NoLongerPrimary | Change::Left => {
                self.takeover = None;
                own.primary = false;
                if change == Change::Left {
                    own.present = false;
                    self.tenure = self.tenure.map(|_| Tenure::Ended);
                }
            }
            Change::Tenure(tenure) => self.tenure = Some(tenure),
            Change::Overran(number) => self.overrun = Some(number),
            Change::Requested(number) => own.request = number,
            Change::Noticed(number) => own.noticed = number,
            Change::Yielded(number) => own.yielded = number,
        }
    }
}

/// Nanoseconds since 1970, so that no process has used the number before.
pub(super) fn new_number(host: &Host) -> u64 {
    u64::try_from(host.unix_time().as_nanos()).unwrap_or(u64::MAX).max(1)
}

/// `None` if there is no such file, or one that cannot be decoded: files are replaced atomically.
fn read<T: DeserializeOwned>(host: &Host, path: &Path) -> Result<Option<T>, FileError> {
    match host.files().read(path) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::record::NOTICE_TIMEOUT;
    use super::*;

    /// The exchange of a pod of the only host, and its snapshots.
    fn pod(volume: &Path, uid: &str) -> (Records, UnboundedReceiver<Snapshot>) {
        let membership = Membership {
            hosts: vec!["c-0".to_owned()],
            own: 0,
            state_dir: volume.to_owned(),
            pod: Some(uid.to_owned()),
        };
        let (sender, snapshots) = unbounded_channel();
        (Records::new(Host::real(), &membership, sender), snapshots)
    }

    /// Two pods, of which the second has started its slurmctld.
    fn pods(volume: &Path) -> [Records; 2] {
        let mut pods = ["older", "newer"].map(|uid| pod(volume, uid).0);
        for (pod, takeover) in pods.iter_mut().zip(1..) {
            pod.poll().unwrap();
            pod.apply(Change::Tenure(Tenure::Running));
            pod.apply(Change::BecamePrimary(takeover));
            pod.poll().unwrap();
        }
        pods
    }

    #[tokio::test(start_paused = true)]
    async fn an_older_pod_knows_whether_its_successor_is_alive() {
        let volume = tempfile::tempdir().unwrap();
        let [mut older, mut newer] = pods(volume.path());
        let later = NOTICE_TIMEOUT * 3;
        for _ in 0..3 {
            older.poll().unwrap();
            newer.poll().unwrap();
            tokio::time::advance(later).await;
            older.poll().unwrap();
            assert!(!older.snapshot.succession.is_silent);
        }
        // The newer one has died.
        tokio::time::advance(NOTICE_TIMEOUT.saturating_sub(Duration::from_secs(1))).await;
        older.poll().unwrap();
        assert!(!older.snapshot.succession.is_silent, "it has time to respond");
        tokio::time::advance(Duration::from_secs(1)).await;
        older.poll().unwrap();
        assert!(older.snapshot.succession.is_silent);
        newer.poll().unwrap();
        older.poll().unwrap();
        assert!(!older.snapshot.succession.is_silent, "it was only slow");
    }

    #[test]
    fn a_pod_that_was_replaced_does_not_write_the_record_of_its_host() {
        let volume = tempfile::tempdir().unwrap();
        let [mut older, newer] = pods(volume.path());
        older.apply(Change::NoLongerPrimary);
        older.poll().unwrap();
        older.apply(Change::Left);
        older.poll().unwrap();
        let record: Record = read(&newer.host, &newer.own_path).unwrap().unwrap();
        assert_eq!(record, newer.snapshot.own);
        assert!(record.present && record.primary);
    }
}
