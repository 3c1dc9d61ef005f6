//! Creates, changes and deletes the reservation of a scheduled update.

use std::time::Duration;

use slurm::{ReservationName, ReservationRequest, SingleLine, agent::ReservationCommand};
use tokio::time::Instant;
use tracing::info;

use super::{ApplyResult, Executor};
use crate::{
    cluster::CommandError,
    nodeset::plan::{Effect, Plan},
    runtime::Error,
    unix_time::timestamp,
};

/// Slurm may store a request differently from how it was sent. The same request is not repeated sooner than this.
const RETRY_AFTER: Duration = Duration::from_mins(1);

/// The last request and its time.
#[derive(Debug, Default)]
pub(in crate::nodeset) struct LastReservation(Option<(ReservationRequest, Instant)>);

impl LastReservation {
    fn is_due(&self, request: &ReservationRequest, now: Instant) -> bool {
        let Self(last) = self;
        last.as_ref()
            .is_none_or(|(last, at)| last != request || now.duration_since(*at) >= RETRY_AFTER)
    }
}

impl Executor<'_> {
    pub(super) async fn apply_reservation(&self, plan: &Plan, last: &mut LastReservation, applied: &mut ApplyResult) {
        for effect in &plan.effects {
            let step = match effect {
                Effect::Unreserve { name } => {
                    last.0 = None;
                    self.unreserve(name).await
                }
                Effect::Reserve { request, new } if last.is_due(request, self.instant()) => {
                    let step = self.reserve(request, *new).await;
                    if step.is_ok() {
                        last.0 = Some((request.clone(), self.instant()));
                    }
                    step
                }
                _ => continue,
            };
            applied.ordered |= applied.take(step).is_some();
        }
    }

    async fn reserve(&self, request: &ReservationRequest, new: bool) -> Result<(), Error> {
        let name = &request.name;
        info!(nodeset = %self.key(), ?request, new, "sending reservation");
        let command = ReservationCommand::Reserve(request.clone());
        let sent = self.ctx.clusters.command_reservation(&self.cluster(), &command).await;
        sent.map_err(|error| Error::other(format!("cannot create or change reservation {name}: {error}")))?;
        let (reason, verb) = if new {
            ("ReservationCreated", "Created")
        } else {
            ("ReservationUpdated", "Changed")
        };
        self.event(reason, format!("{verb} reservation {name}: {}", shown(request)));
        Ok(())
    }

    async fn unreserve(&self, name: &ReservationName) -> Result<(), Error> {
        info!(nodeset = %self.key(), %name, "deleting reservation");
        let command = ReservationCommand::Unreserve { name: name.clone() };
        match self.ctx.clusters.command_reservation(&self.cluster(), &command).await {
            Ok(()) => {
                self.event("ReservationDeleted", format!("Deleted reservation {name}"));
                Ok(())
            }
            Err(CommandError::NotFound(_)) => Ok(()),
            Err(error) => Err(Error::other(format!("cannot delete reservation {name}: {error}"))),
        }
    }
}

fn shown(request: &ReservationRequest) -> String {
    let ReservationRequest {
        name: _,
        start,
        minutes,
        nodes,
        users: _,
        flags,
    } = request;
    let start = start.and_then(timestamp);
    let list = |lines: &[SingleLine]| lines.iter().map(SingleLine::as_str).collect::<Vec<_>>().join(",");
    [
        start.map(|start| format!("from {start:.0}")),
        minutes.map(|minutes| format!("{minutes} minutes")),
        (!nodes.is_empty()).then(|| format!("nodes {}", list(nodes))),
        (!flags.is_empty()).then(|| format!("flags {}", list(flags))),
    ]
    .into_iter()
    .flatten()
    .collect::<Vec<_>>()
    .join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_same_request_is_not_repeated_within_a_minute() {
        let mut last = LastReservation::default();
        let request = ReservationRequest::new(ReservationName::new("r").unwrap());
        let other = ReservationRequest {
            minutes: Some(3),
            ..request.clone()
        };
        assert!(last.is_due(&request, Instant::now()));
        last.0 = Some((request.clone(), Instant::now()));
        assert!(!last.is_due(&request, Instant::now()));
        assert!(last.is_due(&other, Instant::now()));
        tokio::time::advance(RETRY_AFTER).await;
        assert!(last.is_due(&request, Instant::now()));
        last.0 = Some((request.clone(), Instant::now()));
        // After a deletion the same request is sent at once.
        last.0 = None;
        assert!(last.is_due(&request, Instant::now()));
    }
}
