//! Makes slurmctld run with the live files, step by step.

use std::time::Duration;

use slurm::agent::{Action, DaemonState, Outcome, Phase};
use slurm::rpc;
use tracing::{info, warn};

use super::super::legacy_log::{self, Event};
use super::super::plan::{Next, RESTARTING, plan_action, plan_next};
use super::super::rollout::Rollout;
use super::super::slurmctld::{Mismatch, ReadError, Role};
use super::{ConfigWriter, PUSH_TIMEOUT};
use crate::config_dir::Files;
use crate::control::{self, Reconfigured, State};
use crate::dry_run::configuration_of;

/// Above the minute for which a missing `Include` delays slurmctld. The reconfigure continues after that.
const RECONFIGURE_TIMEOUT: Duration = Duration::from_secs(90);

impl ConfigWriter {
    /// Does one step and returns the wait before the next one.
    pub(super) async fn converge(&mut self, mut rollout: Rollout) -> Duration {
        let Some(live) = self.services.config.live() else {
            return self.wait(rollout, "there is no revision in the configuration directory");
        };
        let state = match self.services.supervisor.state().await {
            Ok(state) => state,
            Err(error) => return self.wait(rollout, &error.to_string()),
        };
        let process = (state.daemon.pid, state.daemon.restarts);
        if self.process.replace(process) != Some(process) {
            // A new process may have read the previous files after the live update.
            rollout.partitions.remaining = None;
        }
        let action = match rollout.action {
            Some(action) => action,
            None => match self.plan_action(&live).await {
                Ok(action) => action,
                Err(error) if state.daemon.state == DaemonState::Ready => {
                    return self.wait(rollout, &error.to_string());
                }
                Err(_) => Action::Reconfigure,
            },
        };
        rollout.action = Some(action);
        let mut next = plan_next(&state, &live.name, &rollout, action, self.services.host.instant());
        if matches!(next, Next::Verify | Next::Partitions) && rollout.partitions.must_reconfigure {
            next = Next::Reconfigure;
        }
        if matches!(next, Next::Reconfigure | Next::Partitions) {
            match self.role(&live).await {
                Role::Primary => {}
                // A standby ignores the signal, and its restart interrupts nothing.
                Role::Standby => {
                    rollout.action = Some(Action::Restart);
                    next = Next::Restart;
                }
                // A reconfigure begins with saving all state. Two slurmctld that save at once lose nodes and their jobs
                // (measured).
                Role::NoResponse(reason) => return self.wait(rollout, &reason),
            }
        }
        if matches!(next, Next::Reconfigure | Next::Restart) && !rollout.partitions.safe_to_reconfigure {
            if let Err(in_use) = self.release_before_reconfigure(&live).await {
                return self.wait(rollout, &in_use.to_string());
            }
            rollout.partitions.safe_to_reconfigure = true;
        }
        if matches!(next, Next::Reconfigure)
            && rollout.partitions.states_unread
            && let Err(reason) = self.read_manual_states(&mut rollout, &live).await
        {
            return self.wait(rollout, &reason);
        }
        let sequence = live.summary.sequence;
        match next {
            Next::Partitions => self.converge_partitions(rollout, live).await,
            Next::Verify => self.verify(rollout, live).await,
            Next::RollBack => self.handle_refusal(rollout, &live, state.daemon.last_words).await,
            Next::Wait(reason) => self.wait(rollout, reason),
            Next::Start => {
                info!(sequence, "starting slurmctld with the new files");
                rollout.started = true;
                let started = self.services.supervisor.start().await;
                self.wait_for_start(rollout, started, "slurmctld is starting")
            }
            Next::Restart => {
                info!(sequence, "restarting slurmctld, which the change needs");
                self.enter_reconfiguring(&mut rollout, &live).await;
                rollout.restarted = Some(self.services.host.instant());
                let restarted = self.services.supervisor.restart().await;
                self.wait_for_start(rollout, restarted, RESTARTING)
            }
            Next::Reconfigure => self.reconfigure(rollout, live).await,
        }
    }

    fn wait_for_start(&mut self, rollout: Rollout, requested: Result<State, control::Error>, reason: &str) -> Duration {
        match requested {
            Ok(_) => self.wait(rollout, reason),
            Err(error) => self.wait(rollout, &error.to_string()),
        }
    }

    async fn role(&self, live: &Files) -> Role {
        match self.services.config.configuration(live) {
            Some(configuration) => self.services.channels.slurmctld.role(&configuration).await,
            None => Role::Primary,
        }
    }

    /// Compares the live files with those that slurmctld has read last, according to itself or to what was live before. Fails while
    /// slurmctld may yet respond.
    async fn plan_action(&self, live: &Files) -> Result<Action, rpc::Error> {
        let config = &self.services.config;
        let Some(revision) = config.read(live) else {
            return Ok(Action::Reconfigure);
        };
        let configuration = configuration_of(&revision.files);
        let before = config.before(live).and_then(|before| config.configuration(&before));
        let loaded = match (self.services.channels.slurmctld.loaded_config(&revision).await, before) {
            (Ok(Some(loaded)), _) => Some(loaded),
            (Err(error), None) => return Err(error),
            (Ok(None) | Err(_), before) => before,
        };
        Ok(plan_action(loaded.as_ref().map(|loaded| (loaded, &configuration))))
    }

    /// The supervisor has seen slurmctld read files since these are live, and slurmctld confirms which. A manual reconfigure at
    /// the time of ours can look like ours.
    async fn verify(&mut self, mut rollout: Rollout, live: Files) -> Duration {
        let Some(revision) = self.services.config.read(&live) else {
            return self.wait(rollout, "the live files cannot be read");
        };
        let sequence = live.summary.sequence;
        match self.services.channels.slurmctld.verify(&revision).await {
            Ok(None) => {}
            Err(ReadError::NoResponse(error)) => return self.wait(rollout, &error.to_string()),
            Err(error) => info!(sequence, %error, "cannot verify slurmctld's configuration"),
            Ok(Some(mismatch)) if rollout.mismatch.is_none() => {
                warn!(
                    sequence,
                    ?mismatch,
                    "slurmctld does not run with the live files, reconfiguring again"
                );
                rollout.mismatch = Some(mismatch);
                return self.reconfigure(rollout, live).await;
            }
            Ok(Some(Mismatch::File(name))) => {
                let reason =
                    format!("slurmctld serves another {name} than the live one, also after a second reconfigure");
                return self.wait(rollout, &reason);
            }
            // A new process that has just read these files: our hash must be wrong.
            Ok(Some(Mismatch::Hash)) => {
                warn!(sequence, "config hash differs although all files match; accepting");
            }
        }
        self.complete(rollout, &live).await;
        Duration::ZERO
    }

    async fn enter_reconfiguring(&mut self, rollout: &mut Rollout, live: &Files) {
        if !self.is_rolling_back() {
            self.show(Phase::Reconfiguring, true);
            self.note(&live.summary, Phase::Reconfiguring, None).await;
        }
        rollout.log_reconfiguring();
        rollout.healthy_before = true;
    }

    async fn reconfigure(&mut self, mut rollout: Rollout, live: Files) -> Duration {
        self.show_waiting("slurmctld is busy with the reconfigure");
        self.enter_reconfiguring(&mut rollout, &live).await;
        rollout.partitions.must_reconfigure = false;
        let rolling_back = self.is_rolling_back();
        info!(
            sequence = live.summary.sequence,
            rolling_back, "reconfiguring slurmctld"
        );
        let process = self.services.process().await;
        match self.services.supervisor.reconfigure(RECONFIGURE_TIMEOUT).await {
            Ok(Reconfigured::Done) => {
                self.services.carry_over_states(process).await;
                self.rollout = Some(rollout);
                Duration::ZERO
            }
            Ok(Reconfigured::Failed { last_words }) => self.handle_refusal(rollout, &live, last_words).await,
            Ok(Reconfigured::Died) => self.wait(rollout, "slurmctld died and is restarted"),
            Ok(Reconfigured::NotReady) => self.wait(rollout, "slurmctld is not ready for a reconfigure"),
            // After a timeout the reconfigure may still succeed.
            Err(error) => self.wait(rollout, &error.to_string()),
        }
    }

    /// slurmctld runs with the live files.
    pub(super) async fn complete(&mut self, mut rollout: Rollout, live: &Files) {
        self.set_manual_states(&mut rollout, live).await;
        if let Err(file) = self.services.config.check(live) {
            warn!(%file, "a live file has a manual change");
        }
        self.record_verified(live).await;
        self.note(&live.summary, Phase::Verified, rollout.rolled_back.clone())
            .await;
        self.services.config.remove_all_but(live);
        self.progress.send_modify(|progress| {
            progress.phase = Phase::Verified;
            progress.waiting.clear();
            progress.rolled_back.clone_from(&rollout.rolled_back);
        });
        let (sequence, took) = (live.summary.sequence, rollout.age());
        info!(sequence, ?took, "slurmctld runs with this revision");
        if rollout.logged {
            legacy_log::print(&self.services.host, &Event::Success);
        }
        rollout.steps.reach(Phase::Verified);
        rollout.respond(&Outcome::Applied);
    }

    /// Keeps the rollout for the next step, and responds to its callers once they have waited long enough.
    pub(super) fn wait(&mut self, mut rollout: Rollout, reason: &str) -> Duration {
        let timed_out = rollout.age() >= PUSH_TIMEOUT;
        self.progress.send_modify(|progress| {
            // Another push may replace old files that slurmctld does not start with, either.
            if progress.phase != Phase::RollingBack || timed_out {
                progress.phase = Phase::Swapped;
            }
            reason.clone_into(&mut progress.waiting);
        });
        if rollout.should_log() {
            warn!(reason, "slurmctld does not run with the live files yet");
            if rollout.logged {
                legacy_log::print(&self.services.host, &Event::Failed);
            }
        }
        if timed_out {
            let reason = reason.to_owned();
            rollout.respond(&Outcome::Pending { reason });
        }
        let interval = rollout.poll_interval();
        self.rollout = Some(rollout);
        interval
    }
}
