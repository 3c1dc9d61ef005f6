//! The task of one cluster: it asks, pushes and waits as [`decide`] says.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use api::configuration::RejectedBy;
use slurm::{
    Revision,
    agent::{
        Action, AgentKey, Candidate, Checked, Client, Error, Options, Outcome, Pushed, Refusal, Status, StepTime, Way,
    },
    revision::Digest,
};
use tokio::{sync::watch, time::Instant};
use tracing::{info, warn};

use super::{
    Ended, Goal, JwtKey, Live, MOST_REFUSALS, Rejection, Report, Reporter, Sent, State, Wanted, Wish,
    decide::{Memory, Next, decide, refusals_of, refused_before, rejection_of, words_of},
    standbys::{Settled, object},
};
use crate::{
    cluster::pods::Target,
    configuration_metrics::ConfigurationMetrics,
    fence::next_fence,
    runtime::{Clock, Fence},
};

/// Reconfigures of one slurmctld are at least this far apart, so that a burst of edits is one of them.
const REST: Duration = Duration::from_secs(1);
/// While slurmctld takes its time with a revision it has.
const IMPATIENCE: Duration = Duration::from_millis(500);
/// After a failure, doubled each time up to [`LONGEST_BACKOFF`].
const SHORTEST_BACKOFF: Duration = Duration::from_millis(250);
const LONGEST_BACKOFF: Duration = Duration::from_secs(15);
/// How long a partition that slurmctld did not let go is not asked for again.
const LET_GO: Duration = Duration::from_secs(5);
/// So often a dry run may come to no end before the rest goes live without what it waits for, and that is tried again later.
const STUCK: u32 = 2;
const SET_ASIDE: Duration = Duration::from_mins(1);
/// So often in a row an agent is not reached before the ConfigMap is tried: one that starts again comes back sooner.
const ENOUGH_FAILURES: u32 = 2;
/// A candidate's token holds for ten minutes.
const RENEW_CANDIDATE: Duration = Duration::from_mins(5);
/// How often an agent that has what is wanted is asked again: somebody may have changed files in the pod by hand.
const RECHECK: Duration = Duration::from_mins(1);

pub(crate) struct Task {
    reporter: Reporter,
    fence: Fence,
    clock: Clock,
    metrics: ConfigurationMetrics,
    memory: Memory,
    settled: watch::Sender<Option<Arc<Settled>>>,
    client: Option<(Target, JwtKey, Client)>,
    /// What the agent said last, and when: as long as nothing went wrong since, a change need not wait for it to be asked.
    known: Option<(Instant, Status)>,
    failures: u32,
    /// When it last may have been.
    reconfigured: Option<Instant>,
    /// When slurmctld last did not let go of a partition.
    asked_to_let_go: Option<Instant>,
    /// When something was set aside, to be tried again.
    set_aside: Option<Instant>,
}

impl Task {
    pub(crate) fn new(
        reporter: Reporter,
        fence: Fence,
        clock: Clock,
        metrics: ConfigurationMetrics,
        settled: watch::Sender<Option<Arc<Settled>>>,
    ) -> Self {
        Self {
            reporter,
            fence,
            clock,
            metrics,
            settled,
            memory: Memory::default(),
            client: None,
            known: None,
            failures: 0,
            reconfigured: None,
            asked_to_let_go: None,
            set_aside: None,
        }
    }

    pub(crate) async fn run(mut self, mut wishes: watch::Receiver<Option<Arc<Wish>>>) {
        loop {
            let wish = wishes.borrow_and_update().clone();
            let pause = if let Some(wish) = wish {
                let pause = self.step(&wish, &mut wishes).await;
                Some(self.ask_again_to_let_go(pause))
            } else {
                self.client = None;
                self.known = None;
                self.reporter.report(Report::forget_agent);
                None
            };
            let changed = match pause {
                Some(pause) => tokio::time::timeout(pause, wishes.changed()).await.unwrap_or_else(|_| {
                    self.known = None;
                    Ok(())
                }),
                None => wishes.changed().await,
            };
            if changed.is_err() {
                return;
            }
        }
    }

    /// What was in use may be so no longer.
    fn ask_again_to_let_go(&mut self, pause: Duration) -> Duration {
        let Some(asked) = self.asked_to_let_go else {
            return pause;
        };
        let left = LET_GO.saturating_sub(asked.elapsed());
        if left.is_zero() {
            self.asked_to_let_go = None;
            self.reporter.report(|report| report.in_use.clear());
            return pause;
        }
        pause.min(left)
    }

    /// One question, unless its answer is known, and one push if it takes one. The result is when to ask again if nothing
    /// else is wanted.
    async fn step(&mut self, wish: &Wish, wishes: &mut watch::Receiver<Option<Arc<Wish>>>) -> Duration {
        let wanted = &wish.wanted;
        if self.set_aside.is_some_and(|since| since.elapsed() >= SET_ASIDE) {
            self.set_aside = None;
            let stuck = &self.memory.stuck;
            self.reporter.report(|report| report.forget_refusals(stuck.keys()));
        }
        let status = match self.ask(wanted).await {
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
        let live = status.live.as_ref().map(Live::from);
        match decide(wanted, &status, &self.memory) {
            Next::Rest(state) => {
                self.failures = 0;
                self.close(wish, &state, refused_before(wanted, &status).is_some());
                self.say(wanted, live, state);
                RECHECK
            }
            Next::Push { sequence } if wanted.goal == Goal::Checked => self.try_out(wish, sequence).await,
            Next::Ask(state) => {
                self.failures = 0;
                self.say(wanted, live, state);
                IMPATIENCE
            }
            Next::Push { sequence } => {
                // What went wrong stays said until it goes well.
                if self.failures == 0 && !self.is_at_rest(wanted, live) {
                    self.say(wanted, live, State::Busy);
                }
                if let Some(last) = self.reconfigured
                    && last.elapsed() < REST
                    && tokio::time::timeout_at(last + REST, wishes.changed()).await.is_ok()
                {
                    // Something newer is wanted meanwhile.
                    return Duration::ZERO;
                }
                if self.fence.remaining().is_none() {
                    return LONGEST_BACKOFF;
                }
                self.push(wish, sequence).await
            }
        }
    }

    /// What cannot be pushed goes by a ConfigMap, where the pod mounts one. How it ends is heard when the agent can be reached.
    fn send_candidate(&mut self, wanted: &Wanted) {
        let Target {
            uid, takes_candidates, ..
        } = &wanted.target;
        if !takes_candidates
            || self.failures < ENOUGH_FAILURES
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
        let fresh = |sent: &Arc<Sent>| sent.made.elapsed() < RENEW_CANDIDATE;
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
        let revision = Live {
            sequence: sent.map_or_else(next, |sent| sent.revision.sequence),
            digest: wanted.digest,
        };
        let content = revision_of(wanted, revision.sequence);
        let Ok(key) = AgentKey::derive(&wanted.jwt_key.0) else {
            return;
        };
        let fence = next_fence(&self.fence);
        let Ok(candidate) = Candidate::new(&content, fence, uid, &key, SystemTime::now()) else {
            return;
        };
        info!(controller = %self.reporter.key, pod = %wanted.target.pod, sequence = revision.sequence, digest = %wanted.digest, "sending the configuration by a ConfigMap");
        self.memory.highest = self.memory.highest.max(revision.sequence);
        self.memory.open = Some(revision);
        self.memory.sent = Some(revision);
        let sent = Sent {
            pod: uid.clone(),
            revision,
            candidate,
            made: Instant::now(),
        };
        self.reporter.report(|report| report.sent = Some(Arc::new(sent)));
    }

    async fn ask(&mut self, wanted: &Wanted) -> Result<Status, String> {
        self.client(wanted)?;
        if let Some((at, status)) = &self.known
            && at.elapsed() < RECHECK
        {
            return Ok(status.clone());
        }
        let status = self.client(wanted)?.status().await;
        let status = status.map_err(|error| error.to_string())?;
        // What of several inputs is to be held is decided by all of it together.
        self.reporter.report(|report| {
            for (digest, why) in refusals_of(&status) {
                report.note_refusal(digest, &why);
            }
        });
        self.know(&status);
        Ok(status)
    }

    /// Only what is at rest is as it was when the next change comes.
    fn know(&mut self, status: &Status) {
        let at_rest = status.phase == slurm::agent::Phase::Verified;
        self.known = at_rest.then(|| (Instant::now(), status.clone()));
    }

    /// A dry run and no more: what comes then restarts slurmctld.
    async fn try_out(&mut self, wish: &Wish, sequence: u64) -> Duration {
        let wanted = &wish.wanted;
        let report = self.reporter.read();
        if report.checked == Some(wanted.digest) {
            return RECHECK;
        }
        let tried = Live {
            sequence,
            digest: wanted.digest,
        };
        info!(controller = %self.reporter.key, pod = %wanted.target.pod, sequence, digest = %wanted.digest, "having the configuration tried before slurmctld is restarted with it");
        let answer = match self.client(wanted) {
            Ok(client) => client.check(&revision_of(wanted, sequence)).await,
            Err(why) => return self.failed(wanted, State::Away { why }),
        };
        let live = report.live;
        match answer {
            Ok(Checked { refused: Some(refused) }) => {
                self.failures = 0;
                let rejection = rejection_of(&refused, tried, RejectedBy::DryRun);
                self.end(wish, tried, Course::default(), Some(rejection.clone()));
                self.say(wanted, live, State::Refused(rejection));
            }
            // An agent of before cannot try anything.
            Ok(Checked { refused: None }) | Err(Error::Refused(Refusal::NotFound)) => {
                self.failures = 0;
                self.say(wanted, live, State::Busy);
                self.reporter.report(|report| report.checked = Some(tried.digest));
            }
            Err(error) => return self.not_carried_out(wish, tried, error),
        }
        RECHECK
    }

    async fn push(&mut self, wish: &Wish, sequence: u64) -> Duration {
        let wanted = &wish.wanted;
        let revision = revision_of(wanted, sequence);
        let standbys = self.reporter.read().standbys;
        if let Some((pod, refused)) = object(wanted, &revision, &standbys).await {
            let tried = Live {
                sequence,
                digest: wanted.digest,
            };
            let rejection = Rejection {
                why: format!("in the standby {pod}: {}", words_of(&refused)),
                ..rejection_of(&refused, tried, RejectedBy::DryRun)
            };
            self.end(wish, tried, Course::default(), Some(rejection.clone()));
            self.say(wanted, self.reporter.read().live, State::Refused(rejection));
            return RECHECK;
        }
        info!(controller = %self.reporter.key, pod = %wanted.target.pod, sequence, digest = %wanted.digest, "pushing the configuration");
        let fence = next_fence(&self.fence);
        let tried = Live {
            sequence,
            digest: wanted.digest,
        };
        self.known = None;
        let answer = match self.client(wanted) {
            Ok(client) => client.push(&revision, fence).await,
            Err(why) => return self.failed(wanted, State::Away { why }),
        };
        self.memory.highest = self.memory.highest.max(sequence);
        // A dry run harms nobody, and what was held back for the sake of one bad input is not to wait for it. Nor does a
        // change of partitions by RPC.
        let no_reconfigure = |pushed: &Pushed| {
            matches!(pushed.outcome, Outcome::Rejected(_) | Outcome::PartitionsInUse { .. })
                || pushed.action == Action::PartitionRpc
        };
        if !answer.as_ref().is_ok_and(no_reconfigure) {
            self.reconfigured = Some(Instant::now());
        }
        match answer {
            Ok(pushed) => self.pushed(wish, tried, &pushed),
            Err(error) => self.not_carried_out(wish, tried, error),
        }
    }

    fn not_carried_out(&mut self, wish: &Wish, tried: Live, error: Error) -> Duration {
        let wanted = &wish.wanted;
        match error {
            Error::Refused(Refusal::Busy { .. }) => IMPATIENCE,
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
                self.end(wish, tried, Course::default(), Some(rejection));
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
                // The agent may have it all the same.
                self.memory.open = Some(tried).filter(|_| wanted.goal == Goal::Live);
                self.metrics.failed(&self.reporter.key);
                self.failed(wanted, State::Away { why: error.to_string() })
            }
        }
    }

    /// What a dry run waits for may never come. It counts as refused for a while, so that it holds up nothing else.
    fn set_aside(&mut self, digest: Digest, why: &str) {
        let times = self.memory.stuck.entry(digest).or_default();
        *times = times.saturating_add(1);
        if *times >= STUCK {
            self.set_aside = Some(Instant::now());
            let why = format!("{why}; it is tried again every minute");
            self.reporter.report(|report| report.note_refusal(digest, &why));
        }
    }

    fn pushed(&mut self, wish: &Wish, tried: Live, pushed: &Pushed) -> Duration {
        let wanted = &wish.wanted;
        let live = pushed.status.live.as_ref().map(Live::from);
        self.failures = 0;
        self.know(&pushed.status);
        let (refused, by) = match &pushed.outcome {
            Outcome::Applied | Outcome::Unchanged => {
                self.end(wish, tried, Course::of(pushed), None);
                self.say(wanted, live, State::Done);
                return RECHECK;
            }
            Outcome::Pending { reason } => {
                self.memory.open = Some(tried);
                self.say(wanted, live, State::Waiting { why: reason.clone() });
                return IMPATIENCE;
            }
            Outcome::Unknown => {
                self.memory.open = Some(tried);
                return IMPATIENCE;
            }
            // The reconciler keeps their lines, and the rest goes on.
            Outcome::PartitionsInUse { partitions } => {
                info!(controller = %self.reporter.key, ?partitions, "slurmctld does not let go of partitions");
                self.asked_to_let_go = Some(Instant::now());
                self.reporter.report(|report| report.in_use.clone_from(partitions));
                return LET_GO;
            }
            Outcome::Rejected(refused) => (refused, RejectedBy::DryRun),
            Outcome::RolledBack(refused) => (refused, RejectedBy::Slurmctld),
        };
        let rejection = rejection_of(refused, tried, by);
        self.end(wish, tried, Course::of(pushed), Some(rejection.clone()));
        self.say(wanted, live, State::Refused(rejection));
        RECHECK
    }

    /// A push that nobody waited for has come to its end, or a pod could not start with what lay there for it.
    fn close(&mut self, wish: &Wish, state: &State, told_before: bool) {
        let open = self.memory.open.take();
        let open = open.filter(|open| open.digest == wish.wanted.digest);
        match (state, open) {
            (State::Done, Some(open)) => self.end(wish, open, Course::default(), None),
            (State::Refused(rejection), open) => {
                let tried = Live {
                    sequence: rejection.sequence,
                    digest: rejection.digest,
                };
                let known = told_before
                    || self.memory.refused.contains_key(&tried.digest)
                    || wish.wanted.rejected == Some(tried);
                if open.is_some() || !known {
                    self.end(wish, tried, Course::default(), Some(rejection.clone()));
                }
            }
            (State::Done | State::Busy | State::Waiting { .. } | State::Failed { .. } | State::Away { .. }, _) => {}
        }
    }

    fn end(&mut self, wish: &Wish, tried: Live, course: Course, rejection: Option<Rejection>) {
        let Live { sequence, digest } = tried;
        let Course {
            action,
            way,
            milliseconds,
            steps,
        } = course;
        let (key, pod) = (&self.reporter.key, &wish.wanted.target.pod);
        let counts = &self.metrics;
        match &rejection {
            None => {
                let seen = wish.seen.elapsed();
                info!(controller = %key, %pod, sequence, milliseconds, ?seen, "slurmctld runs with the configuration");
                counts.accepted(key, action, seen.as_secs_f64());
            }
            Some(Rejection { by, why, .. }) => {
                warn!(controller = %key, %pod, sequence, milliseconds, %by, %why, "the configuration was refused");
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
        let ended = Ended {
            by_candidate,
            sequence,
            digest,
            files: Arc::clone(&wish.wanted.files),
            at: self.clock.now(),
            action,
            way,
            milliseconds,
            steps,
            rejection,
        };
        self.reporter.report(|report| report.remember(ended));
    }

    /// Says what went wrong and how long to wait before the next attempt.
    fn failed(&mut self, wanted: &Wanted, state: State) -> Duration {
        let backoff = SHORTEST_BACKOFF
            .saturating_mul(2_u32.saturating_pow(self.failures))
            .min(LONGEST_BACKOFF);
        self.known = None;
        self.failures = self.failures.saturating_add(1);
        if self.failures == 1 {
            warn!(controller = %self.reporter.key, pod = %wanted.target.pod, ?state, "the agent does not answer as it should, asking again");
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

    /// Whether it was last said that slurmctld runs with what this agent has: who wants something else says by itself that
    /// it is on its way, and another look at it would only take time from the push.
    fn is_at_rest(&self, wanted: &Wanted, live: Option<Live>) -> bool {
        let Report {
            pod, live: said, state, ..
        } = self.reporter.read();
        pod == wanted.target.uid && said == live && state == State::Done
    }

    fn say(&self, wanted: &Wanted, live: Option<Live>, state: State) {
        if let (State::Done, Some(live)) = (&state, live) {
            self.settle(wanted, live.sequence);
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

    /// The active slurmctld runs with it: from here on the standbys are to have it too.
    fn settle(&self, wanted: &Wanted, sequence: u64) {
        let settled = Settled {
            revision: revision_of(wanted, sequence),
            standbys: wanted.standbys.clone(),
            jwt_key: wanted.jwt_key.clone(),
        };
        self.settled.send_if_modified(|current| {
            if current.as_deref() == Some(&settled) {
                return false;
            }
            *current = Some(Arc::new(settled));
            true
        });
    }

    fn client(&mut self, wanted: &Wanted) -> Result<&Client, String> {
        let same = |(target, key, _): &(Target, JwtKey, Client)| *target == wanted.target && *key == wanted.jwt_key;
        if !self.client.as_ref().is_some_and(same) {
            let key = AgentKey::derive(&wanted.jwt_key.0).map_err(|error| error.to_string())?;
            let Target { uid, address, .. } = wanted.target.clone();
            let client = Client::new(host::Host::real(), address, uid, key, Options::default());
            self.client = Some((wanted.target.clone(), wanted.jwt_key.clone(), client));
            // What another pod, or another slurmctld, refused says nothing about this one.
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

fn revision_of(wanted: &Wanted, sequence: u64) -> Revision {
    Revision {
        sequence,
        controller: wanted.controller.clone(),
        files: (*wanted.files).clone(),
        closed_by_hand: (*wanted.closed_by_hand).clone(),
    }
}

/// How a push went, as far as it is known.
#[derive(Debug, Default)]
struct Course {
    action: Action,
    way: Way,
    milliseconds: u64,
    steps: Vec<StepTime>,
}

impl Course {
    fn of(pushed: &Pushed) -> Self {
        Self {
            action: pushed.action,
            way: pushed.way,
            milliseconds: pushed.milliseconds,
            steps: pushed.steps.clone(),
        }
    }
}
