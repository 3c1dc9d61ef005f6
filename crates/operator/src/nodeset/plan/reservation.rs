//! The Slurm reservation in which a scheduled update happens: whether there is one, and for which nodes.
//!
//! The status records that a reservation exists (`ReservationCreated`, `reservedStart`), and that one is about to be
//! created before it is, so that none is left behind. Slurm deletes no reserved node, so a worker that is about to be
//! removed leaves the reservation first; its successor joins it again.

use api::{Condition, ConditionStatus, NodeSet, conditions::RESERVATION_CREATED};
use jiff::{SignedDuration, Timestamp};
use slurm::{Hostlist, Node, Reservation, ReservationName, ReservationRequest, SingleLine, node::NodeFlag};

use super::{
    Effect, Plan, SOON, Situation,
    proof::{Evidence, Occupancy},
    schedule::{Schedule, recurrence},
};
use crate::{
    cluster::Seen,
    nodeset::observe::Observed,
    reason::{self, REPLACING},
    runtime::DesiredCondition,
    startup::startup_problem,
    unix_time::timestamp,
    worker::Worker,
};

/// The user that slurmctld runs as, as in upstream.
const USER: &str = "slurm";
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
pub(super) fn plan_reservation(situation: &Situation<'_>, plan: &mut Plan) {
    let nodeset = situation.observed.nodeset.as_ref();
    if !nodeset.may_have_reservation() {
        plan.reservation = ReservationReport::Absent;
        return;
    }
    let (Some(name), Some(evidence)) = (name(nodeset), &situation.evidence) else {
        return;
    };
    // The next poll reads the reservations.
    let Some(all) = &evidence.seen.reservations else {
        return;
    };
    let found = find(all, &name);
    let Some(schedule) = Schedule::of(&nodeset.spec).filter(|_| plan.desired > 0) else {
        match found {
            None => plan.reservation = ReservationReport::Absent,
            Some(_) => plan.effects.push(Effect::Unreserve { name }),
        }
        return;
    };
    let (nodes, has_going_nodes) = members(situation, evidence);
    let status = nodeset.status.as_ref();
    let planner = ReservationPlanner {
        now: situation.observed.now,
        made_for: status.and_then(|status| status.reserved_start.as_ref()?.instant()),
        schedule,
        nodes,
        name,
    };
    plan.reservation = match (found, nodeset.reservation_condition()) {
        (Some(_), _) if planner.nodes.is_empty() && has_going_nodes => {
            let name = planner.name;
            let message =
                format!("all nodes of reservation {name} are being replaced; it is created again for their successors");
            plan.effects.push(Effect::Unreserve { name });
            report(Some(planner.schedule.start), REPLACING, message)
        }
        (Some(found), _) => {
            let (name, nodes) = (&planner.name, &found.nodes);
            let (start, end) = (shown(found.start_time.finite()), shown(found.end_time.finite()));
            let message = format!("Slurm holds reservation {name} of {nodes} from {start} to {end}");
            ReservationReport::Reported {
                condition: DesiredCondition::true_(RESERVATION_CREATED, reason::CREATED, message),
                start: planner.plan_change(found, plan),
            }
        }
        (None, Some(before)) => planner.make(before, plan),
        (None, None) => {
            plan.requeue = Some(SOON);
            let message = format!("reservation {} is about to be created", planner.name);
            report(None, reason::CREATING, message)
        }
    };
}

/// Reports that there is no reservation; `start` is that of the last one.
fn report(start: Option<Timestamp>, reason: &'static str, message: String) -> ReservationReport {
    let condition = DesiredCondition::false_(RESERVATION_CREATED, reason, message);
    ReservationReport::Reported { condition, start }
}

/// Deletes the reservation of a deleted NodeSet. Returns false while it may exist.
pub(super) fn plan_release(observed: &Observed, plan: &mut Plan) -> bool {
    let nodeset = observed.nodeset.as_ref();
    let (Some(_), Some(name)) = (nodeset.reservation_condition(), name(nodeset)) else {
        return true;
    };
    plan.wait_for_slurm(observed);
    let seen = observed.knowledge.known();
    let Some(all) = seen.and_then(|seen| seen.reservations.as_ref()) else {
        return false;
    };
    let found = find(all, &name).is_some();
    plan.effects.extend(found.then_some(Effect::Unreserve { name }));
    !found
}

/// Whether a scheduled update replaces an old worker now: its node is in the active reservation, or it will never start.
pub(super) fn replaces(observed: &Observed, seen: &Seen, worker: Worker<'_>, is_chosen: bool) -> bool {
    let nodeset = observed.nodeset.as_ref();
    let Some(name) = name(nodeset) else { return false };
    let found = find(seen.reservations.as_deref().unwrap_or_default(), &name);
    let before = nodeset.reservation_condition();
    let lasts = found.is_some_and(|found| found.is_active(seconds(observed.now)))
        || before.is_some_and(|condition| condition.reason == REPLACING);
    let is_inside = |node: &Node| node.state.has(NodeFlag::Maintenance) && node.reservation == name.as_str();
    observed.slurm_node(worker).is_some_and(is_inside) || (lasts && is_chosen) || startup_problem(worker.0).is_some()
}

/// Returns why Slurm does not delete this node, if it is reserved.
pub(super) fn explain_holder(nodeset: &NodeSet, node: &Node) -> Option<String> {
    let holder = &node.reservation;
    let is_reserved = node.state.has(NodeFlag::Reserved) || node.state.has(NodeFlag::Maintenance);
    (is_reserved && !holder.is_empty()).then(|| {
        if nodeset.child_names().reservation() == *holder {
            format!("it is leaving reservation {holder}")
        } else {
            format!("Slurm deletes no reserved node; remove it from reservation {holder}, or wait until that ends")
        }
    })
}

/// Returns the nodes that belong into the reservation, and whether further nodes are about to be deleted.
fn members(situation: &Situation<'_>, evidence: &Evidence<'_>) -> (Hostlist, bool) {
    let staying = situation.stay.iter().map(|worker| (worker, false));
    let leaving = situation
        .leave
        .iter()
        .map(|(worker, _)| (worker, worker.leaving().is_some()));
    let (mut names, mut has_going_nodes) = (Vec::new(), false);
    for (worker, is_marked) in staying.chain(leaving) {
        let name = worker.slurm_name().unwrap_or_default();
        if is_marked && matches!(evidence.occupancy(name), Occupancy::Free { .. }) {
            has_going_nodes = true;
        } else if evidence.seen.nodes.contains_key(name) {
            names.push(name);
        }
    }
    // Slurm has nodes of these names, so they are valid.
    (Hostlist::of_names(names).unwrap_or_default(), has_going_nodes)
}

/// The facts that decide about the reservation.
struct ReservationPlanner {
    now: Timestamp,
    /// `startTime` in the spec that the last reservation was created for.
    made_for: Option<Timestamp>,
    schedule: Schedule,
    nodes: Hostlist,
    name: ReservationName,
}

impl ReservationPlanner {
    /// Changes an existing reservation, once it is active only its nodes. Returns the `startTime` that it is for.
    fn plan_change(self, found: &Reservation, plan: &mut Plan) -> Option<Timestamp> {
        let schedule = &self.schedule;
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
            let flags = &schedule.flags;
            if recurrence(&found.flags) != schedule.recurrence || has_other_flag(found, flags) {
                // Slurm keeps the recurrence, and adds requested flags to those that are set, so it is created anew.
                plan.effects.push(Effect::Unreserve { name: self.name });
                return None;
            }
            request.start = self.other_start(found);
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
                request.flags = lines(flags.iter().cloned());
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
    fn other_start(&self, found: &Reservation) -> Option<u64> {
        let schedule = &self.schedule;
        let start = seconds(match schedule.recurrence {
            None => schedule.beginning(self.now)?.0,
            Some(_) if self.made_for.is_none_or(|made_for| made_for == schedule.start) => return None,
            Some(_) => schedule.next(self.now)?,
        });
        (found.start_time.finite() != Some(start)).then_some(start)
    }

    /// Plans for a missing reservation; `before` is what the status said about it.
    fn make(&self, before: &Condition, plan: &mut Plan) -> ReservationReport {
        let (now, schedule, name) = (self.now, &self.schedule, &self.name);
        let report = |reason, message| report(self.made_for, reason, message);
        let is_replacing = before.reason == REPLACING;
        let unless_replacing = |reason| if is_replacing { REPLACING } else { reason };
        if self.nodes.is_empty() {
            let message = format!("reservation {name} is created when the first node of the NodeSet has registered");
            return report(unless_replacing(reason::NO_NODES), message);
        }
        // slurmctld may have been killed before it saved the reservation.
        let since = before.last_transition_time.instant();
        let may_be_lost = before.status == ConditionStatus::True
            && since.is_some_and(|since| now.duration_since(since) <= DURABLE_AFTER);
        let was_made = self.made_for == Some(schedule.start);
        let time = if !was_made || may_be_lost {
            schedule.beginning(now)
        } else if is_replacing {
            schedule.again(now)
        } else {
            None
        };
        let field = "spec.updateStrategy.scheduledUpdate.startTime";
        match time {
            Some((start, length)) => {
                let request = ReservationRequest {
                    start: Some(seconds(start)),
                    minutes: Some(minutes(length)),
                    nodes: lines([self.nodes.to_string()]),
                    users: lines([USER.to_owned()]),
                    flags: lines(schedule.flags.iter().cloned()),
                    ..ReservationRequest::new(name.clone())
                };
                plan.effects.push(Effect::Reserve { request, new: true });
                let message = format!("reservation {name} is about to be created");
                report(unless_replacing(reason::CREATING), message)
            }
            None if was_made => {
                let ended = "it has ended, or an administrator deleted it";
                let message = format!("reservation {name} no longer exists: {ended}; change {field} to get another");
                report(reason::NOT_EXISTS, message)
            }
            None => {
                let message = format!("{field} has passed; set a future time, or a flag such as DAILY");
                report(reason::START_PASSED, message)
            }
        }
    }
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
    let lines = texts.into_iter().map(SingleLine::new);
    lines.filter_map(Result::ok).collect()
}

fn minutes(length: SignedDuration) -> u32 {
    u32::try_from(length.as_mins()).unwrap_or(u32::MAX)
}

fn seconds(time: Timestamp) -> u64 {
    u64::try_from(time.as_second()).unwrap_or(0)
}

fn shown(seconds: Option<u64>) -> String {
    let time = seconds.and_then(timestamp);
    time.map_or_else(|| "an unknown time".to_owned(), |time| format!("{time:.0}"))
}

#[cfg(test)]
mod tests;
