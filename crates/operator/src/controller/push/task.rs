//! The task of one cluster: it asks, pushes and waits as [`judge`] says.

use std::{sync::Arc, time::Duration};

use slurm::{
    Revision,
    agent::{AgentKey, Client, Error, Options, Outcome, Pushed, Refusal, Status},
};
use tokio::{sync::watch, time::Instant};
use tracing::{info, warn};

use super::{
    JwtKey, Live, Report, State, Teller, Wanted,
    judge::{Memory, Next, judge, refusal_of},
};
use crate::{controller::pods::Target, runtime::Fence};

/// Reconfigures of one slurmctld are at least this far apart, so that a burst of edits is one of them.
const REST: Duration = Duration::from_secs(1);
/// While slurmctld takes its time with a revision it has.
const IMPATIENCE: Duration = Duration::from_millis(500);
/// After a failure, doubled each time up to [`LONGEST_BACKOFF`].
const SHORTEST_BACKOFF: Duration = Duration::from_millis(250);
const LONGEST_BACKOFF: Duration = Duration::from_secs(15);
/// How often an agent that has what is wanted is asked again: somebody may have changed files in the pod by hand.
const RECHECK: Duration = Duration::from_mins(1);

pub(super) struct Task {
    teller: Teller,
    fence: Fence,
    memory: Memory,
    client: Option<(Target, JwtKey, Client)>,
    failures: u32,
}

impl Task {
    pub(super) fn new(teller: Teller, fence: Fence) -> Self {
        Self {
            teller,
            fence,
            memory: Memory::default(),
            client: None,
            failures: 0,
        }
    }

    pub(super) async fn run(mut self, mut wishes: watch::Receiver<Option<Arc<Wanted>>>) {
        let mut rested: Option<Instant> = None;
        loop {
            let wish = wishes.borrow_and_update().clone();
            let pause = if let Some(wanted) = wish {
                Some(self.step(&wanted, &mut rested, &mut wishes).await)
            } else {
                self.client = None;
                self.teller.tell(Report::forget_agent);
                None
            };
            let changed = match pause {
                Some(pause) => tokio::time::timeout(pause, wishes.changed()).await.unwrap_or(Ok(())),
                None => wishes.changed().await,
            };
            if changed.is_err() {
                return;
            }
        }
    }

    /// One question, and one push if it takes one. The result is when to ask again if nothing else is wanted.
    async fn step(
        &mut self,
        wanted: &Wanted,
        rested: &mut Option<Instant>,
        wishes: &mut watch::Receiver<Option<Arc<Wanted>>>,
    ) -> Duration {
        let status = match self.ask(wanted).await {
            Ok(status) => status,
            Err(why) => return self.failed(wanted, why),
        };
        self.failures = 0;
        let live = status.live.as_ref().map(Live::from);
        match judge(wanted, &status, &self.memory) {
            Next::Rest(state) => {
                self.say(wanted, live, state);
                RECHECK
            }
            Next::Ask(state) => {
                self.say(wanted, live, state);
                IMPATIENCE
            }
            Next::Push { sequence } => {
                self.say(wanted, live, State::Busy);
                if let Some(last) = *rested
                    && last.elapsed() < REST
                    && tokio::time::timeout_at(last + REST, wishes.changed()).await.is_ok()
                {
                    // Something newer is wanted meanwhile.
                    return Duration::ZERO;
                }
                if self.fence.remaining().is_none() {
                    return LONGEST_BACKOFF;
                }
                let pause = self.push(wanted, sequence).await;
                *rested = Some(Instant::now());
                pause
            }
        }
    }

    async fn ask(&mut self, wanted: &Wanted) -> Result<Status, String> {
        let client = self.client(wanted)?;
        client.status().await.map_err(|error| error.to_string())
    }

    async fn push(&mut self, wanted: &Wanted, sequence: u64) -> Duration {
        let revision = Revision {
            sequence,
            controller: wanted.controller.clone(),
            files: (*wanted.files).clone(),
        };
        info!(cluster = %self.teller.key, pod = %wanted.target.pod, sequence, digest = %wanted.digest, "pushing the configuration");
        let fence = self.fence.next();
        let answer = match self.client(wanted) {
            Ok(client) => client.push(&revision, fence).await,
            Err(why) => return self.failed(wanted, why),
        };
        self.memory.highest = self.memory.highest.max(sequence);
        match answer {
            Ok(pushed) => self.pushed(wanted, &pushed),
            Err(Error::Refused(Refusal::Busy { .. })) => IMPATIENCE,
            Err(Error::Refused(Refusal::StaleSequence { live })) => {
                self.memory.highest = self.memory.highest.max(live.sequence);
                SHORTEST_BACKOFF
            }
            Err(Error::Refused(Refusal::Malformed { detail })) => {
                self.memory.refused = Some((wanted.digest, detail));
                Duration::ZERO
            }
            Err(error) => self.failed(wanted, error.to_string()),
        }
    }

    fn pushed(&mut self, wanted: &Wanted, pushed: &Pushed) -> Duration {
        let live = pushed.status.live.as_ref().map(Live::from);
        let milliseconds = pushed.milliseconds;
        match &pushed.outcome {
            Outcome::Applied | Outcome::Unchanged => {
                info!(cluster = %self.teller.key, pod = %wanted.target.pod, milliseconds, "slurmctld runs with the configuration");
                self.memory.refused = None;
                self.say(wanted, live, State::Done);
                RECHECK
            }
            Outcome::Rejected(refused) | Outcome::RolledBack(refused) => {
                let why = refusal_of(refused);
                warn!(cluster = %self.teller.key, pod = %wanted.target.pod, milliseconds, %why, "slurmctld refused the configuration");
                self.memory.refused = Some((wanted.digest, why.clone()));
                let digest = wanted.digest;
                self.say(wanted, live, State::Refused { digest, why });
                RECHECK
            }
            Outcome::Pending { reason } => {
                self.say(wanted, live, State::Waiting { why: reason.clone() });
                IMPATIENCE
            }
            Outcome::Unknown => IMPATIENCE,
        }
    }

    fn failed(&mut self, wanted: &Wanted, why: String) -> Duration {
        let backoff = SHORTEST_BACKOFF
            .saturating_mul(2_u32.saturating_pow(self.failures))
            .min(LONGEST_BACKOFF);
        self.failures = self.failures.saturating_add(1);
        if self.failures == 1 {
            warn!(cluster = %self.teller.key, pod = %wanted.target.pod, error = %why, "the agent does not answer as it should, asking again");
        }
        self.teller.tell(|report| {
            if report.pod != wanted.target.uid {
                report.live = None;
            }
            report.pod.clone_from(&wanted.target.uid);
            report.state = State::Away { why };
        });
        backoff
    }

    fn say(&self, wanted: &Wanted, live: Option<Live>, state: State) {
        self.teller.tell(|report| {
            report.pod.clone_from(&wanted.target.uid);
            report.live = live;
            report.state = state;
        });
    }

    fn client(&mut self, wanted: &Wanted) -> Result<&Client, String> {
        let same = |(target, key, _): &(Target, JwtKey, Client)| *target == wanted.target && *key == wanted.jwt_key;
        if !self.client.as_ref().is_some_and(same) {
            let key = AgentKey::derive(&wanted.jwt_key.0).map_err(|error| error.to_string())?;
            let Target { pod: _, uid, address } = wanted.target.clone();
            let client = Client::new(address, uid, key, Options::default());
            self.client = Some((wanted.target.clone(), wanted.jwt_key.clone(), client));
            // What another pod, or another slurmctld, refused says nothing about this one.
            self.memory.refused = None;
        }
        match &self.client {
            Some((_, _, client)) => Ok(client),
            None => Err("there is no agent".to_owned()),
        }
    }
}
