//! The delivery task of one cluster: polls, pushes and waits as [`decide`] decides.

use std::{sync::Arc, time::Duration};

use api::configuration::RejectedBy;
use host::watch;
use slurm::{
    agent::{
        Action, AgentKey, Candidate, Checked, Client, EmptyKey, Error, Outcome, PROTOCOL, Phase, Pushed, RETRY_DRY_RUN,
        Refusal, Status,
    },
    revision::{Digest, next_sequence},
};
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{info, warn};

use super::{
    Cluster, FinishedPush, Goal, JwtKey, LiveRevision, MOST_REFUSALS, NotApplied, RETRY_LIVE, Rejection, Report, Sent,
    State, Wanted,
    decide::{Memory, Next, decide, describe, refusals_of, refused_before},
    standbys::find_veto,
};
use crate::{
    cluster::pods::Target,
    fence::{next_fence, note_rejection},
};

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

struct Task<'a> {
    cluster: &'a Cluster,
    /// Since when the revision is wanted.
    wanted_since: Instant,
    memory: Memory,
    /// The agent that `memory` is about.
    agent: Option<(Target, JwtKey, Arc<Client>)>,
    /// The agent's last status, and when it was read: if nothing failed since, a push need not poll the agent first.
    known: Option<(Instant, Status)>,
    failures: u32,
    /// When slurmctld was last reconfigured, or may have been.
    reconfigured: Option<Instant>,
    /// When slurmctld last refused to delete a partition in use.
    in_use_since: Option<Instant>,
}

/// Delivers the wanted revision, in a loop.
pub(super) async fn run(cluster: &Cluster) {
    let mut inbox = cluster.delivery.wanted.subscribe();
    let mut task = Task {
        cluster,
        wanted_since: cluster.host().instant(),
        memory: Memory::default(),
        agent: None,
        known: None,
        failures: 0,
        reconfigured: None,
        in_use_since: None,
    };
    loop {
        let request = inbox.borrow_and_update().clone();
        let Some((wanted, since)) = request else {
            task.agent = None;
            cluster.update_report(Report::forget_agent);
            drop(inbox.changed().await);
            continue;
        };
        task.wanted_since = since;
        let pause = task.step(&wanted, &mut inbox).await;
        if timeout(task.expire_in_use(pause), inbox.changed()).await.is_err() {
            task.known = None;
        }
    }
}

impl Task<'_> {
    fn elapsed(&self, since: Instant) -> Duration {
        self.cluster.host().instant().duration_since(since)
    }

    /// Clears the partitions in use after a while: they may no longer be in use.
    fn expire_in_use(&mut self, pause: Duration) -> Duration {
        let Some(refused_at) = self.in_use_since else {
            return pause;
        };
        let left = IN_USE_RETRY.saturating_sub(self.elapsed(refused_at));
        if left.is_zero() {
            self.in_use_since = None;
            self.cluster.update_report(|report| report.in_use.clear());
            return pause;
        }
        pause.min(left)
    }

    /// Polls the agent, unless its status is known, and pushes if necessary. Returns when to poll again.
    async fn step(&mut self, wanted: &Wanted, inbox: &mut watch::Receiver<Option<(Wanted, Instant)>>) -> Duration {
        let due = self.memory.expire(self.cluster.host().instant());
        if !due.is_empty() {
            // The reconciler wants them again, if the inputs are still the same.
            self.cluster.update_report(|report| {
                Arc::make_mut(&mut report.refusals).retain(|digest, _| !due.contains(digest));
            });
        }
        let (client, status) = match self.status(wanted).await {
            Ok(agent) => agent,
            Err(error) => {
                let pause = self.failed(wanted, State::Away { why: error.to_string() });
                if wanted.goal == Goal::Live {
                    self.send_candidate(wanted);
                }
                return pause;
            }
        };
        self.cluster.update_report(|report| report.sent = None);
        let live = status.live.as_ref().map(LiveRevision::from);
        let sequence = match decide(wanted, &status, &self.memory) {
            Next::Idle(state) => {
                self.failures = 0;
                self.close_open_push(wanted, &state, refused_before(wanted, &status).is_some());
                self.publish(wanted, live, state);
                return RECHECK_INTERVAL;
            }
            Next::Poll(state) => {
                self.failures = 0;
                self.publish(wanted, live, state);
                return POLL_INTERVAL;
            }
            Next::Push { sequence } => sequence,
        };
        let tried = wanted.tried(sequence);
        let report = self.cluster.report();
        if wanted.goal == Goal::Checked {
            return self.dry_run(wanted, tried, &client, &report).await;
        }
        // `Busy` need not be reported if slurmctld runs with this agent's live revision: the reconciler itself reports
        // a push in progress, and another reconcile would only delay the push.
        let is_at_rest = report.pod == wanted.target.uid && report.live == live && report.state == State::Done;
        // A failure stays reported until a push succeeds.
        if self.failures == 0 && !is_at_rest {
            self.publish(wanted, live, State::Busy);
        }
        if let Some(last) = self.reconfigured
            && self.elapsed(last) < MIN_GAP
            && timeout_at(last + MIN_GAP, inbox.changed()).await.is_ok()
        {
            // A newer revision is wanted.
            return Duration::ZERO;
        }
        if self.cluster.shared.fence.remaining().is_none() {
            return LONGEST_BACKOFF;
        }
        self.push(wanted, tried, &client).await
    }

    /// Sends the revision in a ConfigMap, if the pod mounts one. The result is known once the agent can be reached.
    fn send_candidate(&mut self, wanted: &Wanted) {
        let (target, digest) = (&wanted.target, wanted.digest);
        if !target.takes_candidates
            || self.failures < FAILURES_BEFORE_CANDIDATE
            || self.cluster.shared.fence.remaining().is_none()
            || self.memory.refused.contains_key(&digest)
        {
            return;
        }
        let report = self.cluster.report();
        let live = report.live_in(target);
        let is_this = |sent: &Arc<Sent>| sent.pod == target.uid && sent.revision.digest == digest;
        let sent = report.sent.filter(is_this);
        let fresh = |sent: &Arc<Sent>| self.elapsed(sent.made) < RENEW_CANDIDATE;
        if live.is_some_and(|live| live.digest == digest) || sent.as_ref().is_some_and(fresh) {
            return;
        }
        let next = || {
            let live = live.map_or(0, |live| live.sequence);
            next_sequence(wanted.floor.max(self.memory.highest).max(live))
        };
        let Ok(sequence) = sent.map_or_else(next, |sent| Ok(sent.revision.sequence)) else {
            return;
        };
        let Ok(key) = AgentKey::derive(&wanted.jwt_key.0) else {
            return;
        };
        let (host, fence) = (self.cluster.host(), next_fence(&self.cluster.shared.fence));
        let Ok(candidate) = Candidate::new(&wanted.revision(sequence), fence, &target.uid, &key, host.now()) else {
            return;
        };
        info!(controller = %self.cluster.key, pod = %target.pod, sequence, %digest, "sending the configuration in a ConfigMap");
        let revision = wanted.tried(sequence);
        self.memory.highest = self.memory.highest.max(sequence);
        self.memory.open = Some(revision);
        self.memory.sent = Some(revision);
        let sent = Sent {
            pod: target.uid.clone(),
            revision,
            candidate,
            made: host.instant(),
        };
        self.cluster.update_report(|report| report.sent = Some(Arc::new(sent)));
    }

    /// Returns the client of the agent, and the agent's status.
    async fn status(&mut self, wanted: &Wanted) -> Result<(Arc<Client>, Status), NotApplied> {
        let client = self.client(wanted)?;
        if let Some((at, status)) = &self.known
            && self.elapsed(*at) < RECHECK_INTERVAL
        {
            return Ok((client, status.clone()));
        }
        let status = client.status().await?;
        let Status { protocol, agent, .. } = &status;
        let pod = &wanted.target.pod;
        let old = (*protocol < PROTOCOL).then(|| format!("pod {pod} (release {agent}, protocol {protocol})"));
        self.cluster.update_report(|report| report.old_agent = old);
        let rolled_back = status.rolled_back.as_ref().and_then(|refused| refused.digest);
        // Which of several inputs are held is decided from all rejections together.
        for (digest, why) in refusals_of(&status) {
            if !self.memory.expired.contains_key(&digest) {
                let retry = if rolled_back == Some(digest) {
                    RETRY_LIVE
                } else {
                    RETRY_DRY_RUN
                };
                self.note_refusal(digest, &why, retry);
            }
        }
        self.remember_status(&status);
        Ok((client, status))
    }

    /// Remembers a status only if no push is in progress; another status may change before the next push.
    fn remember_status(&mut self, status: &Status) {
        let at_rest = status.phase == Phase::Verified;
        self.known = at_rest.then(|| (self.cluster.host().instant(), status.clone()));
    }

    /// Makes a dry run only: the next step restarts slurmctld.
    async fn dry_run(&mut self, wanted: &Wanted, tried: LiveRevision, client: &Client, report: &Report) -> Duration {
        let LiveRevision { sequence, digest } = tried;
        if report.checked == Some(digest) {
            return RECHECK_INTERVAL;
        }
        info!(controller = %self.cluster.key, pod = %wanted.target.pod, sequence, %digest, "checking the configuration in a dry run before slurmctld is restarted with it");
        match client.check(&wanted.revision(sequence)).await {
            Ok(Checked { refused: Some(refused) }) => {
                self.failures = 0;
                let rejection = Rejection::of(tried, RejectedBy::DryRun, describe(&refused));
                self.reject(wanted, report.live, rejection, None)
            }
            Ok(Checked { refused: None }) => {
                self.failures = 0;
                self.publish(wanted, report.live, State::Busy);
                self.cluster.update_report(|report| report.checked = Some(digest));
                RECHECK_INTERVAL
            }
            Err(error) => self.not_carried_out(wanted, tried, error),
        }
    }

    async fn push(&mut self, wanted: &Wanted, tried: LiveRevision, client: &Client) -> Duration {
        let LiveRevision { sequence, digest } = tried;
        let revision = wanted.revision(sequence);
        let report = self.cluster.report();
        if let Some((pod, refused)) = find_veto(self.cluster.host(), wanted, &revision, &report.standbys).await {
            let why = format!("on standby {pod}: {}", describe(&refused));
            let rejection = Rejection::of(tried, RejectedBy::DryRun, why);
            return self.reject(wanted, report.live, rejection, None);
        }
        info!(controller = %self.cluster.key, pod = %wanted.target.pod, sequence, %digest, "pushing the configuration");
        let fence = next_fence(&self.cluster.shared.fence);
        self.known = None;
        let answer = client.push(&revision, fence).await;
        let answer = answer.inspect_err(|error| note_rejection(&self.cluster.shared.fence, error));
        self.memory.highest = self.memory.highest.max(sequence);
        // Neither a dry run nor a change of partitions by RPC reconfigures slurmctld, so the next push need not wait.
        let no_reconfigure = |pushed: &Pushed| {
            matches!(pushed.outcome, Outcome::Rejected(_) | Outcome::PartitionsInUse { .. })
                || pushed.action == Action::PartitionRpc
        };
        if !answer.as_ref().is_ok_and(no_reconfigure) {
            self.reconfigured = Some(self.cluster.host().instant());
        }
        match answer {
            Ok(pushed) => self.pushed(wanted, tried, &pushed),
            Err(error) => self.not_carried_out(wanted, tried, error),
        }
    }

    fn not_carried_out(&mut self, wanted: &Wanted, tried: LiveRevision, error: Error) -> Duration {
        let state = match error {
            Error::Refused(Refusal::Busy { .. }) => return POLL_INTERVAL,
            Error::Refused(Refusal::StaleSequence { live }) => {
                self.memory.highest = self.memory.highest.max(live.sequence);
                return SHORTEST_BACKOFF;
            }
            Error::Refused(Refusal::Malformed { detail }) => {
                let rejection = Rejection::of(tried, RejectedBy::Agent, detail);
                self.finish(wanted, tried.sequence, None, Some(rejection));
                return Duration::ZERO;
            }
            Error::Refused(Refusal::Stuck { detail }) => {
                self.set_aside(wanted.digest, &detail);
                State::Failed { why: detail }
            }
            Error::Refused(Refusal::Failed { detail }) => State::Failed { why: detail },
            error => {
                // The agent may have received the revision nevertheless.
                self.memory.open = Some(tried).filter(|_| wanted.goal == Goal::Live);
                State::Away { why: error.to_string() }
            }
        };
        self.cluster.shared.metrics.failed(&self.cluster.key);
        self.failed(wanted, state)
    }

    /// Counts a revision whose dry run does not end as rejected for a while, so that it does not delay others.
    fn set_aside(&mut self, digest: Digest, why: &str) {
        let times = self.memory.stuck.entry(digest).or_default();
        *times = times.saturating_add(1);
        if *times >= MAX_STUCK_DRY_RUNS {
            self.note_refusal(digest, &format!("{why}; it is retried every minute"), SET_ASIDE_TIME);
        }
    }

    /// Counts a revision as rejected until it is tried again.
    fn note_refusal(&mut self, digest: Digest, why: &str, retry: Duration) {
        let at = self.cluster.host().instant() + retry;
        self.memory.retry_at.entry(digest).or_insert(at);
        self.cluster.update_report(|report| report.note_refusal(digest, why));
    }

    fn pushed(&mut self, wanted: &Wanted, tried: LiveRevision, pushed: &Pushed) -> Duration {
        let live = pushed.status.live.as_ref().map(LiveRevision::from);
        self.failures = 0;
        self.remember_status(&pushed.status);
        let (refused, by) = match &pushed.outcome {
            Outcome::Applied | Outcome::Unchanged => {
                self.finish(wanted, tried.sequence, Some(pushed), None);
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
                info!(controller = %self.cluster.key, ?partitions, "slurmctld refuses to delete partitions that are in use");
                self.in_use_since = Some(self.cluster.host().instant());
                self.cluster
                    .update_report(|report| report.in_use.clone_from(partitions));
                return IN_USE_RETRY;
            }
            Outcome::Rejected(refused) => (refused, RejectedBy::DryRun),
            Outcome::RolledBack(refused) => (refused, RejectedBy::Slurmctld),
        };
        if by == RejectedBy::Slurmctld && refused.digest.is_none() {
            // Its content was not the cause.
            self.note_refusal(tried.digest, &describe(refused), RETRY_DRY_RUN);
        }
        self.reject(wanted, live, Rejection::of(tried, by, describe(refused)), Some(pushed))
    }

    /// Records the result of a push without a waiting caller, or a pod's failure to start with a revision.
    fn close_open_push(&mut self, wanted: &Wanted, state: &State, was_reported: bool) {
        let open = self.memory.open.take();
        let open = open.filter(|open| open.digest == wanted.digest);
        match (state, open) {
            (State::Done, Some(open)) => self.finish(wanted, open.sequence, None, None),
            (State::Refused(rejection), open) => {
                let known = was_reported
                    || self.memory.refused.contains_key(&rejection.digest)
                    || wanted.rejected == Some(wanted.tried(rejection.sequence));
                if open.is_some() || !known {
                    self.finish(wanted, rejection.sequence, None, Some(rejection.clone()));
                }
            }
            (State::Done | State::Busy | State::Waiting { .. } | State::Failed { .. } | State::Away { .. }, _) => {}
        }
    }

    /// Records and reports a rejection.
    fn reject(
        &mut self,
        wanted: &Wanted,
        live: Option<LiveRevision>,
        rejection: Rejection,
        pushed: Option<&Pushed>,
    ) -> Duration {
        self.finish(wanted, rejection.sequence, pushed, Some(rejection.clone()));
        self.publish(wanted, live, State::Refused(rejection));
        RECHECK_INTERVAL
    }

    /// Records the end of a push. Its times and steps are known only if the agent responded to the push itself.
    fn finish(&mut self, wanted: &Wanted, sequence: u64, pushed: Option<&Pushed>, rejection: Option<Rejection>) {
        let digest = wanted.digest;
        let milliseconds = pushed.map_or(0, |pushed| pushed.milliseconds);
        let action = pushed.map(|pushed| pushed.action).unwrap_or_default();
        let (key, pod) = (&self.cluster.key, &wanted.target.pod);
        let metrics = &self.cluster.shared.metrics;
        match &rejection {
            None => {
                let seen = self.elapsed(self.wanted_since);
                info!(controller = %key, %pod, sequence, milliseconds, ?seen, "slurmctld runs with the configuration");
                metrics.accepted(key, action, seen.as_secs_f64());
            }
            Some(Rejection { by, why, .. }) => {
                warn!(controller = %key, %pod, sequence, milliseconds, %by, %why, "the configuration was rejected");
                metrics.rejected(key, *by == RejectedBy::Slurmctld);
            }
        }
        self.memory.open = None;
        if let Some(rejection) = &rejection {
            if self.memory.refused.len() >= MOST_REFUSALS {
                self.memory.refused.clear();
            }
            self.memory.refused.insert(digest, rejection.clone());
        }
        let ended = FinishedPush {
            by_candidate: self.memory.sent.take() == Some(wanted.tried(sequence)),
            sequence,
            digest,
            files: Arc::clone(&wanted.files),
            at: self.cluster.now(),
            action,
            way: pushed.map(|pushed| pushed.way).unwrap_or_default(),
            milliseconds,
            steps: pushed.map(|pushed| pushed.steps.clone()).unwrap_or_default(),
            rejection,
        };
        // A retry that was rejected as before is no news.
        if ended.rejection.is_none() || !self.memory.expired.contains_key(&digest) {
            self.cluster.update_report(|report| report.remember(ended));
        }
    }

    /// Reports a failure. Returns how long to wait before the next attempt.
    fn failed(&mut self, wanted: &Wanted, state: State) -> Duration {
        let backoff = SHORTEST_BACKOFF
            .saturating_mul(2_u32.saturating_pow(self.failures))
            .min(LONGEST_BACKOFF);
        self.known = None;
        self.failures = self.failures.saturating_add(1);
        if self.failures == 1 {
            warn!(controller = %self.cluster.key, pod = %wanted.target.pod, ?state, "request to the agent failed, retrying");
        }
        self.publish(wanted, self.cluster.report().live_in(&wanted.target), state);
        backoff
    }

    fn publish(&mut self, wanted: &Wanted, live: Option<LiveRevision>, state: State) {
        if let State::Refused(rejection) = &state {
            let retries = self.memory.expired.get(&rejection.digest).copied().unwrap_or_default();
            let retry = rejection.retry_after(retries);
            self.note_refusal(rejection.digest, &rejection.why, retry);
        }
        if let (State::Done, Some(live)) = (&state, live) {
            // The rest does not matter to standbys, and a change of it must not interrupt a push to them.
            let active = Wanted {
                goal: Goal::Live,
                floor: 0,
                known: 0,
                rejected: None,
                ..wanted.clone()
            };
            let active = Some((active, live.sequence));
            self.cluster.delivery.active_revision.send_if_modified(|current| {
                let differs = *current != active;
                *current = active;
                differs
            });
        }
        self.cluster.update_report(|report| {
            report.pod.clone_from(&wanted.target.uid);
            report.live = live;
            report.state = state;
        });
    }

    /// The client is kept, because it knows the agent's clock.
    fn client(&mut self, wanted: &Wanted) -> Result<Arc<Client>, EmptyKey> {
        let Wanted { target, jwt_key, .. } = wanted;
        if let Some((known, key, client)) = &self.agent
            && (known, key) == (target, jwt_key)
        {
            return Ok(Arc::clone(client));
        }
        let client = Arc::new(target.client(self.cluster.host(), jwt_key)?);
        self.agent = Some((target.clone(), jwt_key.clone(), Arc::clone(&client)));
        self.known = None;
        // Rejections by another pod or another slurmctld do not apply to this one.
        self.memory = Memory {
            highest: self.memory.highest,
            ..Memory::default()
        };
        self.cluster.update_report(|report| {
            report.refusals = Arc::default();
            report.checked = None;
        });
        Ok(client)
    }
}
