//! The Slurm reservation in which a scheduled update happens: whether there is one, and for which nodes.
//!
//! The status records that a reservation exists (`ReservationCreated`, `reservedStart`), and that one is about to be
//! created before it is, so that none is left behind. Slurm deletes no reserved node, so a worker that is about to be
//! removed leaves the reservation first; its successor joins it again.

use api::{Condition, ConditionStatus, NodeSet, conditions::RESERVATION_CREATED};
use jiff::{SignedDuration, Timestamp};
use slurm::{Hostlist, Node, Reservation, ReservationName, ReservationRequest, SingleLine, node::NodeFlag};

use super::{
    Effect, Plan, SOON, Wait,
    proof::{Evidence, Occupancy},
    schedule::{Recurrence, Schedule},
    selection::Selection,
};
use crate::{
    cluster::{Knowledge, Seen},
    nodeset::observe::Observed,
    runtime::DesiredCondition,
    unix_time::timestamp,
    worker::Worker,
};

/// The user that slurmctld runs as, as in upstream.
const USER: &str = "slurm";
/// Flags of every reservation of the operator.
const OPERATOR_FLAGS: [&str; 2] = ["MAINT", "IGNORE_JOBS"];
/// Flags that users may add. Slurm sets others by itself, such as `SPEC_NODES`.
const USER_FLAGS: [&str; 7] = [
    "FLEX",
    "MAGNETIC",
    "NO_HOLD_JOBS_AFTER_END",
    "OVERLAP",
    "PURGE_COMP",
    "TIME_FLOAT",
    "USER_DELETE",
];
/// slurmctld saves its state every 5 s. A reservation that existed for longer than this and is gone has ended, or was
/// deleted by an administrator.
const DURABLE_AFTER: SignedDuration = SignedDuration::from_secs(15);
/// Reason of the condition while no reservation exists because all its nodes are being replaced.
const REPLACING: &str = "Replacing";

/// What the status reports about the reservation.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ReservationReport {
    /// The status keeps what it has.
    #[default]
    Unchanged,
    /// There is no reservation, and none is wanted.
    Absent,
    Reported {
        condition: DesiredCondition,
        /// `startTime` in the spec that the last reservation was created for.
        start: Option<Timestamp>,
    },
}

fn name(nodeset: &NodeSet) -> Option<ReservationName> {
    ReservationName::new(nodeset.child_names().reservation()).ok()
}

fn find<'s>(all: &'s [Reservation], name: &ReservationName) -> Option<&'s Reservation> {
    all.iter().find(|reservation| reservation.name == name.as_str())
}

/// Creates, changes or deletes the reservation.
pub(super) fn plan_reservation(
    observed: &Observed,
    selection: &Selection<'_>,
    evidence: Option<&Evidence<'_>>,
    desired: u32,
    plan: &mut Plan,
) {
    let nodeset = observed.nodeset.as_ref();
    if !nodeset.may_have_reservation() {
        plan.reservation = ReservationReport::Absent;
        return;
    }
    let (Some(name), Some(evidence), Knowledge::Known(seen)) = (name(nodeset), evidence, &observed.knowledge) else {
        return;
    };
    // The next poll reads the reservations.
    let Some(all) = &seen.reservations else { return };
    let found = find(all, &name);
    let (nodes, has_going_nodes) = members(seen, selection, evidence);
    let planner = ReservationPlanner {
        now: observed.now,
        before: nodeset.reservation_condition(),
        made_for: nodeset
            .status
            .as_ref()
            .and_then(|status| status.reserved_start.as_ref()?.instant()),
        nodes,
        has_going_nodes,
        name,
    };
    let schedule = Schedule::of(&nodeset.spec).filter(|_| desired > 0);
    plan.reservation = match (schedule, found) {
        (None, None) => ReservationReport::Absent,
        (None, Some(_)) => {
            plan.effects.push(Effect::Unreserve { name: planner.name });
            ReservationReport::Unchanged
        }
        (Some(schedule), Some(found)) => planner.keep(&schedule, found, plan),
        (Some(schedule), None) => planner.make(&schedule, plan),
    };
}

/// Deletes the reservation of a deleted NodeSet. Returns false while it may exist.
pub(super) fn plan_release(observed: &Observed, plan: &mut Plan) -> bool {
    let nodeset = observed.nodeset.as_ref();
    let (Some(_), Some(name)) = (nodeset.reservation_condition(), name(nodeset)) else {
        return true;
    };
    match &observed.knowledge {
        Knowledge::Unknown { why } => {
            plan.waits.push(Wait::SlurmUnknown { why: why.clone() });
            false
        }
        Knowledge::Known(seen) => match &seen.reservations {
            None => false,
            Some(all) if find(all, &name).is_none() => true,
            Some(_) => {
                plan.effects.push(Effect::Unreserve { name });
                false
            }
        },
    }
}

/// Chooses the old workers that a scheduled update replaces now: those whose nodes are in the active reservation, and those
/// that will never start.
pub(super) fn choose<'a>(
    observed: &'a Observed,
    seen: &Seen,
    old: Vec<Worker<'a>>,
    is_chosen: impl Fn(&Worker<'a>) -> bool,
) -> Vec<Worker<'a>> {
    let nodeset = observed.nodeset.as_ref();
    let Some(name) = name(nodeset) else { return Vec::new() };
    let now = seconds(observed.now);
    let all = seen.reservations.as_deref().unwrap_or_default();
    let lasts = find(all, &name).is_some_and(|found| found.is_active(now));
    let lasts = lasts
        || nodeset
            .reservation_condition()
            .is_some_and(|condition| condition.reason == REPLACING);
    let inside = |worker: &Worker<'a>| {
        let node = worker.slurm_name().and_then(|name| seen.nodes.get(name));
        node.is_some_and(|node| node.state.has(NodeFlag::Maintenance) && node.reservation == name.as_str())
    };
    old.into_iter()
        .filter(|worker| inside(worker) || (lasts && is_chosen(worker)) || super::startup_problem(*worker).is_some())
        .collect()
}

/// Returns the reservation that prevents Slurm from deleting this node.
pub(super) fn holder(node: &Node) -> Option<&str> {
    let reserved = node.state.has(NodeFlag::Reserved) || node.state.has(NodeFlag::Maintenance);
    (reserved && !node.reservation.is_empty()).then_some(node.reservation.as_str())
}

/// Explains why a reserved node cannot be deleted.
pub(super) fn explain_holder(nodeset: &NodeSet, holder: &str) -> String {
    if nodeset.child_names().reservation() == holder {
        return format!("it is leaving reservation {holder}");
    }
    format!("Slurm deletes no reserved node; remove it from reservation {holder}, or wait until that ends")
}

/// Returns the nodes that belong into the reservation, and whether further nodes are about to be deleted.
fn members(seen: &Seen, selection: &Selection<'_>, evidence: &Evidence<'_>) -> (Hostlist, bool) {
    let registered = |worker: &Worker<'_>| seen.nodes.contains_key(worker.slurm_name().unwrap_or_default());
    let is_going = |worker: &Worker<'_>| {
        let node = worker.slurm_name().unwrap_or_default();
        worker.leaving().is_some() && matches!(evidence.occupancy(node), Occupancy::Free { .. })
    };
    let leaving = selection.leave.iter().map(|(worker, _)| *worker).filter(registered);
    let (going, leaving): (Vec<Worker<'_>>, Vec<Worker<'_>>) = leaving.partition(is_going);
    let staying = selection.stay.iter().copied().filter(registered);
    let names = staying.chain(leaving).filter_map(Worker::slurm_name);
    // Slurm has nodes of these names, so they are valid.
    (Hostlist::of_names(names).unwrap_or_default(), !going.is_empty())
}

/// The facts that decide about the reservation.
struct ReservationPlanner<'a> {
    now: Timestamp,
    before: Option<&'a Condition>,
    made_for: Option<Timestamp>,
    nodes: Hostlist,
    /// Further nodes are about to be deleted.
    has_going_nodes: bool,
    name: ReservationName,
}

impl ReservationPlanner<'_> {
    fn report(condition: DesiredCondition, start: Option<Timestamp>) -> ReservationReport {
        ReservationReport::Reported { condition, start }
    }

    /// Plans for an existing reservation.
    fn keep(self, schedule: &Schedule, found: &Reservation, plan: &mut Plan) -> ReservationReport {
        if self.nodes.is_empty() && self.has_going_nodes {
            let message = format!(
                "all nodes of reservation {} are being replaced; it is created again for their successors",
                self.name
            );
            plan.effects.push(Effect::Unreserve { name: self.name });
            return Self::report(
                DesiredCondition::false_(RESERVATION_CREATED, REPLACING, message),
                Some(schedule.start),
            );
        }
        let message = format!(
            "Slurm holds reservation {} of {} from {} to {}",
            self.name,
            found.nodes,
            shown(found.start_time.finite()),
            shown(found.end_time.finite()),
        );
        let made_for = self.plan_change(schedule, found, plan);
        Self::report(
            DesiredCondition::true_(RESERVATION_CREATED, "Created", message),
            made_for,
        )
    }

    /// Plans the changes of an existing reservation. Once it is active, only its nodes can change.
    fn plan_change(self, schedule: &Schedule, found: &Reservation, plan: &mut Plan) -> Option<Timestamp> {
        let mut made_for = Some(schedule.start);
        let mut request = ReservationRequest::new(self.name.clone());
        let other_nodes = found.node_list().ok().as_ref() != Some(&self.nodes);
        if other_nodes && !self.nodes.is_empty() {
            request.nodes = lines([self.nodes.to_string()]);
        }
        let now = seconds(self.now);
        if found.end_time.finite().is_some_and(|end| end <= now) {
            // It has ended, and Slurm is about to delete it or to move it to its next start.
            return made_for;
        }
        if !found.is_active(now) {
            let flags = flags(schedule);
            if Recurrence::among(&found.flags) != schedule.recurrence || has_other_flag(found, &flags) {
                // Slurm does not change the recurrence of a reservation, and adds requested flags to those that are set. So
                // the reservation is created anew.
                plan.effects.push(Effect::Unreserve { name: self.name });
                return None;
            }
            request.start = self.other_start(schedule, found);
            if request.start.is_some() && schedule.recurrence.is_some() {
                // Recorded only when the change is observed: later, Slurm has moved the start on.
                made_for = self.made_for;
            }
            let minutes = minutes(schedule.length);
            let lasts = found.end_time.finite().zip(found.start_time.finite());
            if lasts.is_none_or(|(end, start)| end.saturating_sub(start) != u64::from(minutes) * 60) {
                request.minutes = Some(minutes);
            }
            let has = |flag: &String| found.flags.iter().any(|other| other.eq_ignore_ascii_case(flag));
            if !flags.iter().all(has) {
                request.flags = lines(flags);
            }
            if found.users != USER {
                request.users = lines([USER.to_owned()]);
            }
        }
        if request != ReservationRequest::new(self.name) {
            plan.effects.push(Effect::Reserve { request, new: false });
        }
        made_for
    }

    /// Returns the new start, if the user changed it. Slurm itself moves the start of a recurring reservation on.
    fn other_start(&self, schedule: &Schedule, found: &Reservation) -> Option<u64> {
        let start = match schedule.recurrence {
            None => schedule.beginning(self.now)?.0,
            Some(_) if self.made_for.is_none_or(|made_for| made_for == schedule.start) => return None,
            Some(_) => schedule.next(self.now)?,
        };
        let start = seconds(start);
        (found.start_time.finite() != Some(start)).then_some(start)
    }

    /// Plans for a missing reservation.
    fn make(self, schedule: &Schedule, plan: &mut Plan) -> ReservationReport {
        let wanted =
            |reason: &'static str, message: String| DesiredCondition::false_(RESERVATION_CREATED, reason, message);
        let Some(before) = self.before else {
            plan.requeue = Some(SOON);
            let message = format!("reservation {} is about to be created", self.name);
            return Self::report(wanted("Creating", message), None);
        };
        let is_replacing = before.reason == REPLACING;
        let unless_replacing = |reason| if is_replacing { REPLACING } else { reason };
        if self.nodes.is_empty() {
            let message = format!(
                "reservation {} is created when the first node of the NodeSet has registered",
                self.name
            );
            return Self::report(wanted(unless_replacing("NoNodes"), message), self.made_for);
        }
        let was_made = self.made_for == Some(schedule.start);
        let time = if !was_made || self.may_be_lost(before) {
            schedule.beginning(self.now)
        } else if is_replacing {
            schedule.again(self.now)
        } else {
            None
        };
        let Some((start, length)) = time else {
            let field = "spec.updateStrategy.scheduledUpdate.startTime";
            return Self::report(
                if was_made {
                    let message = format!(
                        "reservation {} no longer exists: it has ended, or an administrator deleted it; change {field} to get another",
                        self.name
                    );
                    wanted("NotExists", message)
                } else {
                    let message = format!("{field} has passed; set a future time, or a flag such as DAILY");
                    wanted("StartPassed", message)
                },
                self.made_for,
            );
        };
        let message = format!("reservation {} is about to be created", self.name);
        plan.effects.push(Effect::Reserve {
            request: ReservationRequest {
                start: Some(seconds(start)),
                minutes: Some(minutes(length)),
                nodes: lines([self.nodes.to_string()]),
                users: lines([USER.to_owned()]),
                flags: lines(flags(schedule)),
                ..ReservationRequest::new(self.name)
            },
            new: true,
        });
        Self::report(wanted(unless_replacing("Creating"), message), self.made_for)
    }

    /// Whether slurmctld may have been killed before it saved the reservation.
    fn may_be_lost(&self, before: &Condition) -> bool {
        let since = before.last_transition_time.instant();
        before.status == ConditionStatus::True
            && since.is_some_and(|since| self.now.duration_since(since) <= DURABLE_AFTER)
    }
}

fn flags(schedule: &Schedule) -> Vec<String> {
    let mut flags: Vec<String> = OPERATOR_FLAGS.iter().map(|flag| (*flag).to_owned()).collect();
    for flag in &schedule.flags {
        if !flags.contains(flag) {
            flags.push(flag.clone());
        }
    }
    flags
}

/// Whether it has a user's flag that is no longer requested.
fn has_other_flag(found: &Reservation, wanted: &[String]) -> bool {
    // scontrol accepts abbreviated flags, and flags with values.
    let is_meant = |wanted: &String, flag: &str| wanted.starts_with(flag) || flag.starts_with(wanted.as_str());
    let has = |flag: &&&str| found.flags.iter().any(|other| other.eq_ignore_ascii_case(flag));
    let mut users = USER_FLAGS.iter().filter(has);
    users.any(|flag| !wanted.iter().any(|wanted| is_meant(wanted, flag)))
}

/// Text that is not one line cannot be part of a request and is left out.
fn lines(texts: impl IntoIterator<Item = String>) -> Vec<SingleLine> {
    texts
        .into_iter()
        .filter_map(|text| SingleLine::new(text).ok())
        .collect()
}

fn minutes(length: SignedDuration) -> u32 {
    u32::try_from(length.as_mins()).unwrap_or(u32::MAX)
}

fn seconds(time: Timestamp) -> u64 {
    u64::try_from(time.as_second()).unwrap_or(0)
}

fn shown(seconds: Option<u64>) -> String {
    seconds
        .and_then(timestamp)
        .map_or_else(|| "an unknown time".to_owned(), |time| format!("{time:.0}"))
}

#[cfg(test)]
mod tests;
