//! Arbitration between the slurmctld that may share one state volume, because there are several hosts or because a pod that was
//! deleted by force still runs: only one of them may write to it.
//!
//! Slurm decides that by messages and timeouts, which two cases escape. The first host in order, when it returns, waits
//! half a minute for the primary to hand over and then starts even if the primary still runs. And a primary that hung while
//! a standby took over continues as if nothing had happened. In both cases two slurmctld write, and jobs were lost. The
//! supervisors therefore arbitrate beforehand, by records on that volume:
//!
//! * Before the first host's slurmctld starts, the others' are stopped gracefully. They start again, as standbys, once it is
//!   primary.
//! * A primary is killed, even if it is stopped, when another slurmctld became primary after it.
//! * Of two pods with one host's name the older one stops its slurmctld for good before the newer one starts its own.
//! * A slurmctld that ran on nevertheless, because all processes of its machine were stopped, may write once more before it is
//!   killed. The one that replaced it then restarts, and so saves its own state again.
//!
//! [`membership`], [`record`], [`succession`] and [`heartbeat`] decide, [`exchange`] reads and writes.

mod exchange;
pub mod heartbeat;
pub mod membership;
pub mod record;
pub mod succession;

use std::path::PathBuf;
use std::time::Duration;

use host::Host;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::check::read_files;
use crate::dry_run::configuration_of;
use exchange::{Change, Exchange, new_number};
use heartbeat::HeartbeatWatch;
use membership::Membership;
use record::{NOTICE_TIMEOUT, PreviousRun, START_TIMEOUT, STOP_TIMEOUT, Snapshot, must_request};
use succession::Tenure;

/// What the supervisor has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Start the daemon: the others have yielded or have timed out.
    Start,
    /// Stop the daemon, if it runs, and start it again: the first host is about to start.
    Yield,
    /// Restart the daemon, so that it saves its whole state: another one may have overwritten it.
    Restart,
    /// Kill the daemon: it did not stop in time, or another slurmctld became primary after it.
    Kill,
}

#[derive(Debug)]
pub struct Arbiter {
    host: Host,
    config_dir: PathBuf,
    hostname: String,
    /// The UID of this pod.
    pod: Option<String>,
    /// `None` if no other slurmctld can share the volume.
    exchange: Option<Exchange>,
    snapshot: Option<Snapshot>,
    /// How often the daemon became primary.
    takeovers: u64,
    heartbeats: HeartbeatWatch,
    /// This host's own request; the daemon starts once the others have yielded.
    requesting: Option<YieldRequest>,
    /// The first host's request; the daemon is being stopped.
    yielding: Option<YieldRequest>,
    /// The first host's request; the stopped daemon waits for the first host to become primary.
    yielded: Option<YieldRequest>,
    /// The daemon is being killed because another one has replaced it.
    is_overrun: bool,
    /// The last overrun that the daemon has taken into account, 0 if there was none; `None` until the volume was read.
    overrun: Option<u64>,
}

/// A request of the first host to the others to stop their slurmctld.
#[derive(Debug, Clone, Copy)]
struct YieldRequest {
    number: u64,
    since: Instant,
}

impl YieldRequest {
    fn age(self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }
}

impl Arbiter {
    pub fn new(host: Host, config_dir: PathBuf, hostname: String, pod: Option<String>) -> Self {
        Self {
            host,
            config_dir,
            hostname,
            pod,
            exchange: None,
            snapshot: None,
            takeovers: 0,
            heartbeats: HeartbeatWatch::default(),
            requesting: None,
            yielding: None,
            yielded: None,
            is_overrun: false,
            overrun: None,
        }
    }

    /// Returns whether a start has to wait for [`Action::Start`]. Called before each start.
    pub fn must_wait(&mut self, previous: Option<PreviousRun>, now: Instant) -> bool {
        self.update_membership();
        let Some(exchange) = &self.exchange else { return false };
        // A new supervisor waits for the previous pod of this name, too.
        if must_request(exchange.membership.own, previous) || previous.is_none() {
            let number = new_number(&self.host);
            info!("requesting any other slurmctld on the volume to yield before this one starts");
            exchange.send(Change::Requested(number));
            self.requesting = Some(YieldRequest { number, since: now });
        }
        self.is_waiting()
    }

    pub fn is_waiting(&self) -> bool {
        self.requesting.or(self.yielded).is_some() || self.is_superseded()
    }

    fn is_superseded(&self) -> bool {
        let snapshot = self.snapshot.as_ref();
        snapshot.is_some_and(|snapshot| snapshot.succession.is_superseded())
    }

    /// The later pod of this name, and whether it responds on the volume.
    pub fn later_pod(&self) -> Option<(&str, bool)> {
        let succession = &self.snapshot.as_ref()?.succession;
        Some((succession.later_pod()?, !succession.is_silent))
    }

    /// Reads slurm.conf, as each new slurmctld does, for the other hosts.
    fn update_membership(&mut self) {
        let files = read_files(&self.host, &self.config_dir).unwrap_or_default();
        let membership = Membership::find(&configuration_of(&files), &self.hostname, self.pod.as_deref());
        if self.exchange.as_ref().map(|exchange| &exchange.membership) == membership.as_ref() {
            return;
        }
        (self.snapshot, self.yielding, self.yielded) = (None, None, None);
        self.exchange = membership.and_then(|membership| {
            Exchange::open(&self.host, membership)
                .inspect_err(|error| warn!(%error, "cannot arbitrate with the other slurmctld"))
                .ok()
        });
    }

    /// Returns when the records or the heartbeat have changed.
    pub async fn changed(&mut self) {
        match &mut self.exchange {
            Some(exchange) => match exchange.next().await {
                Some(snapshot) => self.snapshot = Some(snapshot),
                None => self.exchange = None,
            },
            None => std::future::pending().await,
        }
    }

    /// Returns whether the heartbeat shows that the daemon is primary, whatever its log says.
    pub fn is_primary_by_heartbeat(&mut self) -> bool {
        let Some(snapshot) = &self.snapshot else { return false };
        self.heartbeats.observe(snapshot.heartbeat, snapshot.index)
    }

    /// When to call [`next_action`](Self::next_action) though nothing has changed.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let start = self
            .requesting
            .map(|request| now + self.remaining_wait(request, now).unwrap_or_default());
        let kill = self.yielding.map(|request| request.since + STOP_TIMEOUT);
        [start, kill].into_iter().flatten().min()
    }

    fn remaining_wait(&self, request: YieldRequest, now: Instant) -> Option<Duration> {
        let waited = request.age(now);
        let snapshot = self.snapshot.as_ref();
        match snapshot.filter(|snapshot| snapshot.own.request == request.number) {
            Some(snapshot) => snapshot.remaining_wait(request.number, waited),
            // The volume does not respond.
            None => Some(NOTICE_TIMEOUT.saturating_sub(waited)).filter(|left| !left.is_zero()),
        }
    }

    /// Returns the next action, if there is one. `primary` is whether the daemon is known to be primary.
    pub fn next_action(&mut self, primary: bool, now: Instant) -> Option<Action> {
        if let Some(snapshot) = &self.snapshot
            && snapshot.succession.is_superseded()
        {
            self.requesting = None;
            if snapshot.succession.is_replaced() {
                self.yielding = None;
                self.is_overrun = true;
                warn!("another pod of this name has started its slurmctld, killing this one before it writes");
                return Some(Action::Kill);
            }
            if self.yielded.is_some() {
                return None;
            }
            if self.yielding.is_none() {
                warn!("another pod of this name is about to start, stopping slurmctld here for good");
                self.yielding = Some(YieldRequest { number: 0, since: now });
                self.send(Change::Tenure(Tenure::Yielding));
                return Some(Action::Yield);
            }
        }
        let is_overwritten = self.is_overwritten();
        // This comes first: a superseded primary that stops gracefully saves its outdated state.
        if primary && let Some(successor) = self.successor() {
            warn!(%successor, "another slurmctld became primary after this one, killing this one before it writes");
            self.is_overrun = true;
            return Some(Action::Kill);
        }
        if let Some(request) = self.requesting {
            let is_over = self.remaining_wait(request, now).is_none();
            return is_over.then(|| self.end_request(request));
        }
        if let Some(request) = self.yielded {
            return self.wait_for_first(request, now);
        }
        if let Some(request) = &mut self.yielding {
            if request.age(now) < STOP_TIMEOUT {
                return None;
            }
            warn!("slurmctld did not stop in time for the first host, killing it");
            request.since = now;
            return Some(Action::Kill);
        }
        let Some(number) = self.snapshot.as_ref()?.open_request() else {
            // A slurmctld that yields saves its state, too.
            return (is_overwritten && primary).then(|| {
                warn!("a slurmctld that this one had replaced ran on, restarting this one so that it saves its state again");
                Action::Restart
            });
        };
        info!("the first slurmctld is about to start, yielding to it");
        self.yielding = Some(YieldRequest { number, since: now });
        self.send(Change::Noticed(number));
        Some(Action::Yield)
    }

    /// Returns once whether another slurmctld may have written since the last call.
    fn is_overwritten(&mut self) -> bool {
        let Some(snapshot) = &self.snapshot else { return false };
        let last = snapshot.overrun.unwrap_or_default();
        let before = self.overrun.replace(last);
        before.is_some_and(|before| before != last)
    }

    fn wait_for_first(&mut self, request: YieldRequest, now: Instant) -> Option<Action> {
        let snapshot = self.snapshot.as_ref();
        let done = snapshot.is_some_and(|snapshot| snapshot.is_first_primary_since(request.number));
        if done || request.age(now) >= START_TIMEOUT {
            self.yielded = None;
            return Some(Action::Start);
        }
        // The first host started over; the daemon here is still stopped.
        let number = snapshot?.open_request().filter(|number| *number != request.number)?;
        self.send(Change::Yielded(number));
        self.yielded = Some(YieldRequest { number, since: now });
        None
    }

    fn successor(&self) -> Option<&str> {
        let snapshot = self.snapshot.as_ref();
        snapshot
            .filter(|snapshot| snapshot.takeover == self.takeovers)?
            .successor()
    }

    fn end_request(&mut self, request: YieldRequest) -> Action {
        self.requesting = None;
        let silent = self
            .snapshot
            .iter()
            .flat_map(|snapshot| snapshot.silent(request.number));
        let silent: Vec<&str> = silent.map(|(host, _)| host).collect();
        if !silent.is_empty() {
            warn!(?silent, "starting although not all of them have yielded");
        }
        self.send(Change::Tenure(Tenure::Running));
        Action::Start
    }

    /// Records that the daemon became primary.
    pub fn record_primary(&mut self) {
        self.takeovers += 1;
        self.send(Change::BecamePrimary(self.takeovers));
    }

    /// Records that the daemon is a standby.
    pub fn record_standby(&mut self) {
        self.heartbeats.restart();
        self.send(Change::NoLongerPrimary);
    }

    /// Records that no process of the daemon is left.
    pub fn record_exit(&mut self, now: Instant) {
        self.record_standby();
        if std::mem::take(&mut self.is_overrun) {
            self.send(Change::Overran(new_number(&self.host)));
        }
        if let Some(YieldRequest { number, .. }) = self.yielding.take() {
            if self.is_superseded() {
                self.send(Change::Tenure(Tenure::Ended));
            }
            self.send(Change::Yielded(number));
            self.yielded = Some(YieldRequest { number, since: now });
        }
    }

    /// Records that this supervisor exits, so that the others do not wait for it.
    pub async fn leave(&mut self) {
        if let Some(exchange) = self.exchange.take() {
            exchange.leave().await;
        }
    }

    fn send(&self, change: Change) {
        if let Some(exchange) = &self.exchange {
            exchange.send(change);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::record::Record;
    use super::succession::Succession;
    use super::*;

    fn snapshot(overrun: Option<u64>) -> Snapshot {
        Snapshot {
            index: 0,
            own: Record::default(),
            takeover: 0,
            heartbeat: None,
            peers: Vec::new(),
            succession: Succession::default(),
            overrun,
        }
    }

    #[test]
    fn a_primary_restarts_once_after_another_slurmctld_has_overrun_it() {
        let host = Host::real();
        let now = host.instant();
        let mut arbiter = Arbiter::new(host, PathBuf::new(), "c-0".to_owned(), None);
        let mut look = |overrun, primary| {
            arbiter.snapshot = Some(snapshot(overrun));
            arbiter.next_action(primary, now)
        };
        assert_eq!(
            look(Some(1), true),
            None,
            "that was before this slurmctld read the volume"
        );
        assert_eq!(look(Some(2), true), Some(Action::Restart));
        assert_eq!(look(Some(2), true), None);
        assert_eq!(look(Some(3), false), None, "a standby has nothing to save");
        assert_eq!(look(Some(3), true), None);
    }
}
