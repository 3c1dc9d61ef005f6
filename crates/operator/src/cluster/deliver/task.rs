//! The delivery task of one cluster: polls, pushes and waits as [`decide`] decides.

use std::{sync::Arc, time::Duration};

use api::configuration::RejectedBy;
use host::Host;
use runtime::{Clock, Fence};
use slurm::{
    agent::{
        Action, AgentKey, Candidate, Checked, Client, Error, Options, Outcome, Pushed, Refusal, Status, StepTime,
        UpdateChannel,
    },
    revision::Digest,
};
use tokio::{sync::watch, time::Instant};
use tracing::{info, warn};

use super::{
    FinishedPush, Goal, JwtKey, LiveRevision, MOST_REFUSALS, Rejection, Report, Reporter, Request, Sent, State, Wanted,
    decide::{Memory, Next, decide, describe, refusals_of, refused_before, rejection_of},
    standbys::{ActiveRevision, find_veto},
};
use crate::{cluster::pods::Target, configuration_metrics::ConfigurationMetrics, fence::next_fence};

/// The minimum time between two reconfigures of one slurmctld, so that a burst of edits causes one.
const MIN_GAP: Duration = Duration::from_secs(1);
/// While slurmctld has not applied the live revision.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// After a failure, doubled each time up to [`LONGEST_BACKOFF`].
const SHORTEST_BACKOFF: Duration = Duration::from_millis(250);
const LONGEST_BACKOFF: Duration = Duration::from_secs(15);
/// How long a partition in use is not tried again.
const IN_USE_RETRY: Duration = Duration::from_secs(5);
/// After this many dry runs that did not end, a revision is set aside for [`SET_ASIDE_TIME`], so that others go live.
const MAX_STUCK_DRY_RUNS: u32 = 2;
const SET_ASIDE_TIME: Duration = Duration::from_mins(1);
/// After this many failures in a row to reach the agent, the ConfigMap is used: an agent that restarts is back sooner.
const FAILURES_BEFORE_CANDIDATE: u32 = 2;
/// A candidate's token is valid for ten minutes.
const RENEW_CANDIDATE: Duration = Duration::from_mins(5);
/// How often an agent that has the wanted revision is polled: files in the pod may be changed manually.
const RECHECK_INTERVAL: Duration = Duration::from_mins(1);

pub(crate) struct Task {
    reporter: Reporter,
    fence: Fence,
    clock: Clock,
    metrics: ConfigurationMetrics,
    memory: Memory,
    active_revision: watch::Sender<Option<Arc<ActiveRevision>>>,
    client: Option<(Target, JwtKey, Client)>,
    /// The agent's last status, and when it was read: if nothing failed since, a push need not poll the agent first.
    known: Option<(Instant, Status)>,
    failures: u32,
    /// When slurmctld was last reconfigured, or may have been.
    reconfigured: Option<Instant>,
    /// When slurmctld last refused to delete a partition in use.
    in_use_since: Option<Instant>,
    /// When a revision was last set aside, to be retried.
    set_aside: Option<Instant>,
}

impl Task {
    pub(crate) fn new(
        reporter: Reporter,
        fence: Fence,
        clock: Clock,
        metrics: ConfigurationMetrics,
        active_revision: watch::Sender<Option<Arc<ActiveRevision>>>,
    ) -> Self {
        Self {
            reporter,
            fence,
            clock,
            metrics,
            active_revision,
            memory: Memory::default(),
            client: None,
            known: None,
            failures: 0,
            reconfigured: None,
            in_use_since: None,
            set_aside: None,
        }
    }

    fn host(&self) -> &Host {
        self.clock.host()
    }

    fn elapsed(&self, since: Instant) -> Duration {
        self.host().instant().duration_since(since)
    }

    pub(crate) async fn run(mut self, mut inbox: watch::Receiver<Option<Arc<Request>>>) {
        loop {
            let request = inbox.borrow_and_update().clone();
            let pause = if let Some(request) = request {
                let pause = self.step(&request, &mut inbox).await;
                Some(self.expire_in_use(pause))
            } else {
                self.client = None;
                self.known = None;
                self.reporter.report(Report::forget_agent);
                None
            };
            let changed = match pause {
                Some(pause) => tokio::time::timeout(pause, inbox.changed()).await.unwrap_or_else(|_| {
                    self.known = None;
                    Ok(())
                }),
                None => inbox.changed().await,
            };
            if changed.is_err() {
                return;
            }
        }
    }

    /// Clears the partitions in use after a while: they may no longer be in use.
    fn expire_in_use(&mut self, pause: Duration) -> Duration {
        let Some(refused_at) = self.in_use_since else {
            return pause;
        };
        let left = IN_USE_RETRY.saturating_sub(self.elapsed(refused_at));
        if left.is_zero() {
            self.in_use_since = None;
            self.reporter.report(|report| report.in_use.clear());
            return pause;
        }
        pause.min(left)
    }

    /// Polls the agent, unless its status is known, and pushes if necessary. Returns when to poll again.
    async fn step(&mut self, request: &Request, inbox: &mut watch::Receiver<Option<Arc<Request>>>) -> Duration {
        let wanted = &request.wanted;
        if self
            .set_aside
            .is_some_and(|since| self.elapsed(since) >= SET_ASIDE_TIME)
        {
            self.set_aside = None;
            let stuck = &self.memory.stuck;
            self.reporter.report(|report| report.forget_refusals(stuck.keys()));
        }
        let status = match self.status(wanted).await {
            Ok(status) => status,
            Err(why) => {
                let pause = self.failed(wanted, State::Away { why });
                if wanted.goal == Goal::Live {
                    self.send_candidate(wanted);
                }
                return pause;
            }
        };
        self.reporter.report(|report| report.sent = None);
        let live = status.live.as_ref().map(LiveRevision::from);
        match decide(wanted, &status, &self.memory) {
            Next::Idle(state) => {
                self.failures = 0;
                self.close_open_push(request, &state, refused_before(wanted, &status).is_some());
                self.publish(wanted, live, state);
                RECHECK_INTERVAL
            }
            Next::Push { sequence } if wanted.goal == Goal::Checked => self.dry_run(request, sequence).await,
            Next::Poll(state) => {
                self.failures = 0;
                self.publish(wanted, live, state);
                POLL_INTERVAL
            }
            Next::Push { sequence } => {
                // A failure stays reported until a push succeeds.
                if self.failures == 0 && !self.is_at_rest(wanted, live) {
                    self.publish(wanted, live, State::Busy);
                }
                if let Some(last) = self.reconfigured
                    && self.elapsed(last) < MIN_GAP
                    && tokio::time::timeout_at(last + MIN_GAP, inbox.changed()).await.is_ok()
                {
                    // A newer revision is wanted.
                    return Duration::ZERO;
                }
                if self.fence.remaining().is_none() {
                    return LONGEST_BACKOFF;
                }
                self.push(request, sequence).await
            }
        }
    }

    /// Sends the revision in a ConfigMap, if the pod mounts one. The result is known once the agent can be reached.
    fn send_candidate(&mut self, wanted: &Wanted) {
        let Target {
            uid, takes_candidates, ..
        } = &wanted.target;
        if !takes_candidates
            || self.failures < FAILURES_BEFORE_CANDIDATE
            || self.fence.remaining().is_none()
            || self.memory.refused.contains_key(&wanted.digest)
        {
            return;
        }
        let report = self.reporter.read();
        let live = report.live.filter(|_| report.pod == *uid);
        let sent = report
            .sent
            .filter(|sent| sent.pod == *uid && sent.revision.digest == wanted.digest);
        let fresh = |sent: &Arc<Sent>| self.elapsed(sent.made) < RENEW_CANDIDATE;
        if live.is_some_and(|live| live.digest == wanted.digest) || sent.as_ref().is_some_and(fresh) {
            return;
        }
        let next = || {
            [wanted.floor, self.memory.highest, live.map_or(0, |live| live.sequence)]
                .into_iter()
                .max()
                .unwrap_or_default()
                + 1
        };
        let revision = LiveRevision {
            sequence: sent.map_or_else(next, |sent| sent.revision.sequence),
            digest: wanted.digest,
        };
        let content = wanted.revision(revision.sequence);
        let Ok(key) = AgentKey::derive(&wanted.jwt_key.0) else {
            return;
        };
        let fence = next_fence(&self.fence);
        let Ok(candidate) = Candidate::new(&content, fence, uid, &key, self.host().now()) else {
            return;
        };
        info!(controller = %self.reporter.key, pod = %wanted.target.pod, sequence = revision.sequence, digest = %wanted.digest, "sending the configuration in a ConfigMap");
        self.memory.highest = self.memory.highest.max(revision.sequence);
        self.memory.open = Some(revision);
        self.memory.sent = Some(revision);
        let sent = Sent {
            pod: uid.clone(),
            revision,
            candidate,
            made: self.host().instant(),
        };
        self.reporter.report(|report| report.sent = Some(Arc::new(sent)));
    }

    async fn status(&mut self, wanted: &Wanted) -> Result<Status, String> {
        self.client(wanted)?;
        if let Some((at, status)) = &self.known
            && self.elapsed(*at) < RECHECK_INTERVAL
        {
            return Ok(status.clone());
        }
        let status = self.client(wanted)?.status().await;
        let status = status.map_err(|error| error.to_string())?;
        // Which of several inputs are held is decided from all rejections together.
        self.reporter.report(|report| {
            for (digest, why) in refusals_of(&status) {
                report.note_refusal(digest, &why);
            }
        });
        self.remember_status(&status);
        Ok(status)
    }

    /// Remembers a status only if no push is in progress; another status may change before the next push.
    fn remember_status(&mut self, status: &Status) {
        let at_rest = status.phase == slurm::agent::Phase::Verified;
        self.known = at_rest.then(|| (self.host().instant(), status.clone()));
    }

    /// Makes a dry run only: the next step restarts slurmctld.
    async fn dry_run(&mut self, request: &Request, sequence: u64) -> Duration {
        let wanted = &request.wanted;
        let report = self.reporter.read();
        if report.checked == Some(wanted.digest) {
            return RECHECK_INTERVAL;
        }
        let tried = LiveRevision {
            sequence,
            digest: wanted.digest,
        };
        info!(controller = %self.reporter.key, pod = %wanted.target.pod, sequence, digest = %wanted.digest, "checking the configuration in a dry run before slurmctld is restarted with it");
        let answer = match self.client(wanted) {
            Ok(client) => client.check(&wanted.revision(sequence)).await,
            Err(why) => return self.failed(wanted, State::Away { why }),
        };
        let live = report.live;
        match answer {
            Ok(Checked { refused: Some(refused) }) => {
                self.failures = 0;
                let rejection = rejection_of(&refused, tried, RejectedBy::DryRun);
                self.finish(request, tried, PushTimes::default(), Some(rejection.clone()));
                self.publish(wanted, live, State::Refused(rejection));
            }
            // An older agent has no dry run.
            Ok(Checked { refused: None }) | Err(Error::Refused(Refusal::NotFound)) => {
                self.failures = 0;
                self.publish(wanted, live, State::Busy);
                self.reporter.report(|report| report.checked = Some(tried.digest));
            }
            Err(error) => return self.not_carried_out(request, tried, error),
        }
        RECHECK_INTERVAL
    }

    async fn push(&mut self, request: &Request, sequence: u64) -> Duration {
        let wanted = &request.wanted;
        let revision = wanted.revision(sequence);
        let standbys = self.reporter.read().standbys;
        if let Some((pod, refused)) = find_veto(self.host(), wanted, &revision, &standbys).await {
            let tried = LiveRevision {
                sequence,
                digest: wanted.digest,
            };
            let rejection = Rejection {
                why: format!("on standby {pod}: {}", describe(&refused)),
                ..rejection_of(&refused, tried, RejectedBy::DryRun)
            };
            self.finish(request, tried, PushTimes::default(), Some(rejection.clone()));
            self.publish(wanted, self.reporter.read().live, State::Refused(rejection));
            return RECHECK_INTERVAL;
        }
        info!(controller = %self.reporter.key, pod = %wanted.target.pod, sequence, digest = %wanted.digest, "pushing the configuration");
        let fence = next_fence(&self.fence);
        let tried = LiveRevision {
            sequence,
            digest: wanted.digest,
        };
        self.known = None;
        let answer = match self.client(wanted) {
            Ok(client) => client.push(&revision, fence).await,
            Err(why) => return self.failed(wanted, State::Away { why }),
        };
        self.memory.highest = self.memory.highest.max(sequence);
        // Neither a dry run nor a change of partitions by RPC reconfigures slurmctld, so the next push need not wait.
        let no_reconfigure = |pushed: &Pushed| {
            matches!(pushed.outcome, Outcome::Rejected(_) | Outcome::PartitionsInUse { .. })
                || pushed.action == Action::PartitionRpc
        };
        if !answer.as_ref().is_ok_and(no_reconfigure) {
            self.reconfigured = Some(self.host().instant());
        }
        match answer {
            Ok(pushed) => self.pushed(request, tried, &pushed),
            Err(error) => self.not_carried_out(request, tried, error),
        }
    }

    fn not_carried_out(&mut self, request: &Request, tried: LiveRevision, error: Error) -> Duration {
        let wanted = &request.wanted;
        match error {
            Error::Refused(Refusal::Busy { .. }) => POLL_INTERVAL,
            Error::Refused(Refusal::StaleSequence { live }) => {
                self.memory.highest = self.memory.highest.max(live.sequence);
                SHORTEST_BACKOFF
            }
            Error::Refused(Refusal::Malformed { detail }) => {
                let rejection = Rejection {
                    sequence: tried.sequence,
                    digest: tried.digest,
                    by: RejectedBy::Agent,
                    why: detail,
                };
                self.finish(request, tried, PushTimes::default(), Some(rejection));
                Duration::ZERO
            }
            Error::Refused(Refusal::Stuck { detail }) => {
                self.metrics.failed(&self.reporter.key);
                self.set_aside(wanted.digest, &detail);
                self.failed(wanted, State::Failed { why: detail })
            }
            Error::Refused(Refusal::Failed { detail }) => {
                self.metrics.failed(&self.reporter.key);
                self.failed(wanted, State::Failed { why: detail })
            }
            error => {
                // The agent may have received the revision nevertheless.
                self.memory.open = Some(tried).filter(|_| wanted.goal == Goal::Live);
                self.metrics.failed(&self.reporter.key);
                self.failed(wanted, State::Away { why: error.to_string() })
            }
        }
    }

    /// Counts a revision whose dry run does not end as rejected for a while, so that it does not delay others.
    fn set_aside(&mut self, digest: Digest, why: &str) {
        let times = self.memory.stuck.entry(digest).or_default();
        *times = times.saturating_add(1);
        if *times >= MAX_STUCK_DRY_RUNS {
            self.set_aside = Some(self.host().instant());
            let why = format!("{why}; it is retried every minute");
            self.reporter.report(|report| report.note_refusal(digest, &why));
        }
    }

    fn pushed(&mut self, request: &Request, tried: LiveRevision, pushed: &Pushed) -> Duration {
        let wanted = &request.wanted;
        let live = pushed.status.live.as_ref().map(LiveRevision::from);
        self.failures = 0;
        self.remember_status(&pushed.status);
        let (refused, by) = match &pushed.outcome {
            Outcome::Applied | Outcome::Unchanged => {
                self.finish(request, tried, PushTimes::of(pushed), None);
                self.publish(wanted, live, State::Done);
                return RECHECK_INTERVAL;
            }
            Outcome::Pending { reason } => {
                self.memory.open = Some(tried);
                self.publish(wanted, live, State::Waiting { why: reason.clone() });
                return POLL_INTERVAL;
            }
            Outcome::Unknown => {
                self.memory.open = Some(tried);
                return POLL_INTERVAL;
            }
            // The reconciler keeps the lines of these partitions, and pushes the rest.
            Outcome::PartitionsInUse { partitions } => {
                info!(controller = %self.reporter.key, ?partitions, "slurmctld refuses to delete partitions that are in use");
                self.in_use_since = Some(self.host().instant());
                self.reporter.report(|report| report.in_use.clone_from(partitions));
                return IN_USE_RETRY;
            }
            Outcome::Rejected(refused) => (refused, RejectedBy::DryRun),
            Outcome::RolledBack(refused) => (refused, RejectedBy::Slurmctld),
        };
        let rejection = rejection_of(refused, tried, by);
        self.finish(request, tried, PushTimes::of(pushed), Some(rejection.clone()));
        self.publish(wanted, live, State::Refused(rejection));
        RECHECK_INTERVAL
    }

    /// Records the result of a push without a waiting caller, or a pod's failure to start with a revision.
    fn close_open_push(&mut self, request: &Request, state: &State, was_reported: bool) {
        let open = self.memory.open.take();
        let open = open.filter(|open| open.digest == request.wanted.digest);
        match (state, open) {
            (State::Done, Some(open)) => self.finish(request, open, PushTimes::default(), None),
            (State::Refused(rejection), open) => {
                let tried = LiveRevision {
                    sequence: rejection.sequence,
                    digest: rejection.digest,
                };
                let known = was_reported
                    || self.memory.refused.contains_key(&tried.digest)
                    || request.wanted.rejected == Some(tried);
                if open.is_some() || !known {
                    self.finish(request, tried, PushTimes::default(), Some(rejection.clone()));
                }
            }
            (State::Done | State::Busy | State::Waiting { .. } | State::Failed { .. } | State::Away { .. }, _) => {}
        }
    }

    fn finish(&mut self, request: &Request, tried: LiveRevision, times: PushTimes, rejection: Option<Rejection>) {
        let LiveRevision { sequence, digest } = tried;
        let PushTimes {
            action,
            way,
            milliseconds,
            steps,
        } = times;
        let (key, pod) = (&self.reporter.key, &request.wanted.target.pod);
        let counts = &self.metrics;
        match &rejection {
            None => {
                let seen = self.elapsed(request.seen);
                info!(controller = %key, %pod, sequence, milliseconds, ?seen, "slurmctld runs with the configuration");
                counts.accepted(key, action, seen.as_secs_f64());
            }
            Some(Rejection { by, why, .. }) => {
                warn!(controller = %key, %pod, sequence, milliseconds, %by, %why, "the configuration was rejected");
                counts.rejected(key, *by == RejectedBy::Slurmctld);
            }
        }
        self.memory.open = None;
        if let Some(rejection) = &rejection {
            if self.memory.refused.len() >= MOST_REFUSALS {
                self.memory.refused.clear();
            }
            self.memory.refused.insert(digest, rejection.clone());
        }
        let by_candidate = self.memory.sent.take() == Some(tried);
        let ended = FinishedPush {
            by_candidate,
            sequence,
            digest,
            files: Arc::clone(&request.wanted.files),
            at: self.clock.now(),
            action,
            way,
            milliseconds,
            steps,
            rejection,
        };
        self.reporter.report(|report| report.remember(ended));
    }

    /// Reports a failure. Returns how long to wait before the next attempt.
    fn failed(&mut self, wanted: &Wanted, state: State) -> Duration {
        let backoff = SHORTEST_BACKOFF
            .saturating_mul(2_u32.saturating_pow(self.failures))
            .min(LONGEST_BACKOFF);
        self.known = None;
        self.failures = self.failures.saturating_add(1);
        if self.failures == 1 {
            warn!(controller = %self.reporter.key, pod = %wanted.target.pod, ?state, "request to the agent failed, retrying");
        }
        self.reporter.report(|report| {
            if report.pod != wanted.target.uid {
                report.live = None;
            }
            report.pod.clone_from(&wanted.target.uid);
            report.state = state;
        });
        backoff
    }

    /// Whether the last report says that slurmctld runs with this agent's live revision. Then `Busy` need not be
    /// reported: the reconciler itself reports a push in progress, and another reconcile would only delay the push.
    fn is_at_rest(&self, wanted: &Wanted, live: Option<LiveRevision>) -> bool {
        let Report {
            pod, live: last, state, ..
        } = self.reporter.read();
        pod == wanted.target.uid && last == live && state == State::Done
    }

    fn publish(&self, wanted: &Wanted, live: Option<LiveRevision>, state: State) {
        if let (State::Done, Some(live)) = (&state, live) {
            self.set_active_revision(wanted, live.sequence);
        }
        self.reporter.report(|report| {
            report.pod.clone_from(&wanted.target.uid);
            report.live = live;
            if let State::Refused(rejection) = &state {
                report.note_refusal(rejection.digest, &rejection.why);
            }
            report.state = state;
        });
    }

    /// Passes the active slurmctld's revision on to the standbys.
    fn set_active_revision(&self, wanted: &Wanted, sequence: u64) {
        let active_revision = ActiveRevision {
            revision: wanted.revision(sequence),
            standbys: wanted.standbys.clone(),
            jwt_key: wanted.jwt_key.clone(),
        };
        self.active_revision.send_if_modified(|current| {
            if current.as_deref() == Some(&active_revision) {
                return false;
            }
            *current = Some(Arc::new(active_revision));
            true
        });
    }

    fn client(&mut self, wanted: &Wanted) -> Result<&Client, String> {
        let same = |(target, key, _): &(Target, JwtKey, Client)| *target == wanted.target && *key == wanted.jwt_key;
        if !self.client.as_ref().is_some_and(same) {
            let key = AgentKey::derive(&wanted.jwt_key.0).map_err(|error| error.to_string())?;
            let Target { uid, address, .. } = wanted.target.clone();
            let client = Client::new(self.host().clone(), address, uid, key, Options::default());
            self.client = Some((wanted.target.clone(), wanted.jwt_key.clone(), client));
            // Rejections by another pod or another slurmctld do not apply to this one.
            self.memory.refused.clear();
            self.memory.stuck.clear();
            self.reporter.report(|report| {
                report.refusals = Arc::default();
                report.checked = None;
            });
            self.memory.open = None;
            self.memory.sent = None;
            self.known = None;
        }
        match &self.client {
            Some((_, _, client)) => Ok(client),
            None => Err("there is no agent".to_owned()),
        }
    }
}

/// The times and steps of a push, as far as they are known.
#[derive(Debug, Default)]
struct PushTimes {
    action: Action,
    way: UpdateChannel,
    milliseconds: u64,
    steps: Vec<StepTime>,
}

impl PushTimes {
    fn of(pushed: &Pushed) -> Self {
        Self {
            action: pushed.action,
            way: pushed.way,
            milliseconds: pushed.milliseconds,
            steps: pushed.steps.clone(),
        }
    }
}
