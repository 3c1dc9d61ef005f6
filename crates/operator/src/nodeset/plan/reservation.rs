//! The Slurm reservation in which a scheduled update happens: whether there is to be one, and for which nodes.
//!
//! What is known to have been made stands in the status (`ReservationCreated`, `reservedStart`), and the intention is
//! written there before the reservation is made, so that none is left behind. Slurm lets no node go that is reserved, so
//! a worker that is about to go is taken out of the reservation first; its successor comes into it again.

use api::{Condition, ConditionStatus, NodeSet, conditions::RESERVATION_CREATED};
use jiff::{SignedDuration, Timestamp};
use slurm::{Hostlist, Line, Node, Reservation, ReservationName, ReservationRequest, node::NodeFlag};

use super::{
    Effect, Plan, SOON, Wait,
    fates::Fates,
    proof::{Evidence, Standing},
    schedule::{Recurrence, Schedule},
};
use crate::{
    cluster::{Knowledge, Seen},
    nodeset::observe::Observed,
    runtime::Wanted,
    worker::Worker,
};

/// As upstream has it: the user slurmctld runs as.
const USER: &str = "slurm";
/// Every reservation of ours has these.
const ALWAYS: [&str; 2] = ["MAINT", "IGNORE_JOBS"];
/// What users add to that. Of what else it finds on a reservation, Slurm gives it much by itself, such as `SPEC_NODES`.
const OF_USERS: [&str; 7] = [
    "FLEX",
    "MAGNETIC",
    "NO_HOLD_JOBS_AFTER_END",
    "OVERLAP",
    "PURGE_COMP",
    "TIME_FLOAT",
    "USER_DELETE",
];
/// Slurm writes its state down every five seconds. A reservation that was there for longer than this and is gone is over,
/// or was deleted by somebody.
const DURABLE_AFTER: SignedDuration = SignedDuration::from_secs(15);
/// Reason of the condition while there is no reservation because all its nodes are being replaced.
const REPLACING: &str = "Replacing";

/// What is to be said about the reservation.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Booking {
    /// What was said stands.
    #[default]
    AsBefore,
    /// There is none, and none is wanted.
    Nothing,
    Told {
        condition: Wanted,
        /// The start, as the spec has it, that the last reservation was made for.
        start: Option<Timestamp>,
    },
}

/// Name of the reservation of this NodeSet.
fn name(nodeset: &NodeSet) -> Option<ReservationName> {
    ReservationName::new(nodeset.child_names().reservation()).ok()
}

/// Among reservations that were read.
fn find<'s>(all: &'s [Reservation], name: &ReservationName) -> Option<&'s Reservation> {
    all.iter().find(|reservation| reservation.name == name.as_str())
}

/// Makes, changes or removes the reservation.
pub(super) fn plan_reservation(
    observed: &Observed,
    fates: &Fates<'_>,
    evidence: Option<&Evidence<'_>>,
    desired: u32,
    plan: &mut Plan,
) {
    let nodeset = observed.nodeset.as_ref();
    if !nodeset.may_have_reservation() {
        plan.reservation = Booking::Nothing;
        return;
    }
    let (Some(name), Some(evidence), Knowledge::Known(seen)) = (name(nodeset), evidence, &observed.knowledge) else {
        return;
    };
    // Not read yet: the next look brings them.
    let Some(all) = &seen.reservations else { return };
    let found = find(all, &name);
    let case = Case {
        now: observed.now,
        before: nodeset.reservation_condition(),
        made_for: nodeset
            .status
            .as_ref()
            .and_then(|status| status.reserved_start.as_ref()?.instant()),
        nodes: Nodes::of(seen, fates, evidence),
        name,
    };
    let schedule = Schedule::of(&nodeset.spec).filter(|_| desired > 0);
    plan.reservation = match (schedule, found) {
        (None, None) => Booking::Nothing,
        (None, Some(_)) => {
            plan.effects.push(Effect::Unreserve { name: case.name });
            Booking::AsBefore
        }
        (Some(schedule), Some(found)) => case.keep(&schedule, found, plan),
        (Some(schedule), None) => case.make(&schedule, plan),
    };
}

/// Removes the reservation of a NodeSet that is deleted. False as long as it may be there.
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

/// Old workers that a scheduled update replaces now: all whose nodes are in the reservation while it lasts, and those that
/// will never start.
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
        .filter(|worker| inside(worker) || (lasts && is_chosen(worker)) || super::trouble(*worker).is_some())
        .collect()
}

/// The reservation that keeps Slurm from deleting this node, if there is one.
pub(super) fn holder(node: &Node) -> Option<&str> {
    let reserved = node.state.has(NodeFlag::Reserved) || node.state.has(NodeFlag::Maintenance);
    (reserved && !node.reservation.is_empty()).then_some(node.reservation.as_str())
}

/// Why a node cannot be deleted while that reservation holds it.
pub(super) fn held(nodeset: &NodeSet, holder: &str) -> String {
    if nodeset.child_names().reservation() == holder {
        return format!("it is being taken out of reservation {holder}");
    }
    format!("Slurm deletes no node that is reserved; take it out of reservation {holder}, or wait for its end")
}

/// The set's nodes that belong into the reservation.
#[derive(Debug)]
struct Nodes {
    inside: Hostlist,
    /// There are others, which are about to be deleted.
    going: bool,
}

impl Nodes {
    fn of(seen: &Seen, fates: &Fates<'_>, evidence: &Evidence<'_>) -> Self {
        let registered = |worker: &Worker<'_>| seen.nodes.contains_key(worker.slurm_name().unwrap_or_default());
        let goes = |worker: &Worker<'_>| {
            let node = worker.slurm_name().unwrap_or_default();
            worker.leaving().is_some() && matches!(evidence.standing(node), Standing::Proven { .. })
        };
        let leaving: Vec<Worker<'_>> = fates
            .leave
            .iter()
            .map(|(worker, _)| *worker)
            .filter(registered)
            .collect();
        let going = leaving.iter().any(goes);
        let staying = fates.stay.iter().copied().filter(registered);
        let names = staying.chain(leaving.into_iter().filter(|worker| !goes(worker)));
        Self {
            // Their names are those of nodes that Slurm has, so it can read them.
            inside: Hostlist::of_names(names.filter_map(Worker::slurm_name)).unwrap_or_default(),
            going,
        }
    }
}

/// What a decision about the reservation is made on.
struct Case<'a> {
    now: Timestamp,
    before: Option<&'a Condition>,
    made_for: Option<Timestamp>,
    nodes: Nodes,
    name: ReservationName,
}

impl Case<'_> {
    fn told(condition: Wanted, start: Option<Timestamp>) -> Booking {
        Booking::Told { condition, start }
    }

    /// The reservation is there.
    fn keep(self, schedule: &Schedule, found: &Reservation, plan: &mut Plan) -> Booking {
        if self.nodes.inside.is_empty() && self.nodes.going {
            let message = format!(
                "all nodes of reservation {} are being replaced; it is made again for those that come",
                self.name
            );
            plan.effects.push(Effect::Unreserve { name: self.name });
            return Self::told(
                Wanted::fails(RESERVATION_CREATED, REPLACING, message),
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
        Self::told(Wanted::holds(RESERVATION_CREATED, "Created", message), made_for)
    }

    /// Brings the reservation to what is wanted. Once it has begun only its nodes can change.
    fn plan_change(self, schedule: &Schedule, found: &Reservation, plan: &mut Plan) -> Option<Timestamp> {
        let mut made_for = Some(schedule.start);
        let mut request = ReservationRequest::new(self.name.clone());
        let other_nodes = found.node_list().ok().as_ref() != Some(&self.nodes.inside);
        if other_nodes && !self.nodes.inside.is_empty() {
            request.nodes = lines([self.nodes.inside.to_string()]);
        }
        let now = seconds(self.now);
        if found.end_time.finite().is_some_and(|end| end <= now) {
            // It is over, and Slurm is about to forget it or to move it on.
            return made_for;
        }
        if !found.is_active(now) {
            let flags = flags(schedule);
            if Recurrence::among(&found.flags) != schedule.recurrence || has_other_flag(found, &flags) {
                // Slurm does not let one that comes again become one that comes otherwise, and flags that are sent are
                // added to those that are there. So it is made anew.
                plan.effects.push(Effect::Unreserve { name: self.name });
                return None;
            }
            request.start = self.other_start(schedule, found);
            if request.start.is_some() && schedule.recurrence.is_some() {
                // Only when it is seen to have happened: later, Slurm has moved the start on.
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

    /// Another start, if the user wrote another. Of one that comes again, Slurm moves the start on by itself.
    fn other_start(&self, schedule: &Schedule, found: &Reservation) -> Option<u64> {
        let start = match schedule.recurrence {
            None => schedule.beginning(self.now)?.0,
            Some(_) if self.made_for.is_none_or(|made_for| made_for == schedule.start) => return None,
            Some(_) => schedule.next(self.now)?,
        };
        let start = seconds(start);
        (found.start_time.finite() != Some(start)).then_some(start)
    }

    /// The reservation is not there.
    fn make(self, schedule: &Schedule, plan: &mut Plan) -> Booking {
        let wanted = |reason: &'static str, message: String| Wanted::fails(RESERVATION_CREATED, reason, message);
        let Some(before) = self.before else {
            plan.requeue = Some(SOON);
            let message = format!("reservation {} is about to be made", self.name);
            return Self::told(wanted("Creating", message), None);
        };
        if self.nodes.inside.is_empty() {
            let reason = if before.reason == REPLACING {
                REPLACING
            } else {
                "NoNodes"
            };
            let message = format!(
                "reservation {} is made as soon as Slurm has a node of the set",
                self.name
            );
            return Self::told(wanted(reason, message), self.made_for);
        }
        let was_made = self.made_for == Some(schedule.start);
        let time = if !was_made || self.is_forgotten(before) {
            schedule.beginning(self.now)
        } else if before.reason == REPLACING {
            schedule.again(self.now)
        } else {
            None
        };
        let Some((start, length)) = time else {
            let field = "spec.updateStrategy.scheduledUpdate.startTime";
            return Self::told(
                if was_made {
                    let message = format!(
                        "Slurm has reservation {} no longer: it is over, or somebody deleted it; change {field} for another",
                        self.name
                    );
                    wanted("NotExists", message)
                } else {
                    let message = format!("{field} has passed; give one that is to come, or a flag such as DAILY");
                    wanted("StartPassed", message)
                },
                self.made_for,
            );
        };
        let message = format!("reservation {} is about to be made", self.name);
        plan.effects.push(Effect::Reserve {
            request: ReservationRequest {
                start: Some(seconds(start)),
                minutes: Some(minutes(length)),
                nodes: lines([self.nodes.inside.to_string()]),
                users: lines([USER.to_owned()]),
                flags: lines(flags(schedule)),
                ..ReservationRequest::new(self.name)
            },
            new: true,
        });
        let reason = if before.reason == REPLACING {
            REPLACING
        } else {
            "Creating"
        };
        Self::told(wanted(reason, message), self.made_for)
    }

    /// Slurm was killed before it had written the reservation down.
    fn is_forgotten(&self, before: &Condition) -> bool {
        let since = before.last_transition_time.instant();
        before.status == ConditionStatus::True
            && since.is_some_and(|since| self.now.duration_since(since) <= DURABLE_AFTER)
    }
}

fn flags(schedule: &Schedule) -> Vec<String> {
    let mut flags: Vec<String> = ALWAYS.iter().map(|flag| (*flag).to_owned()).collect();
    for flag in &schedule.flags {
        if !flags.contains(flag) {
            flags.push(flag.clone());
        }
    }
    flags
}

/// It has a flag of a user's that is not wanted.
fn has_other_flag(found: &Reservation, wanted: &[String]) -> bool {
    // scontrol takes abbreviations, and values after a name.
    let is_meant = |wanted: &String, flag: &str| wanted.starts_with(flag) || flag.starts_with(wanted.as_str());
    let has = |flag: &&&str| found.flags.iter().any(|other| other.eq_ignore_ascii_case(flag));
    let mut users = OF_USERS.iter().filter(has);
    users.any(|flag| !wanted.iter().any(|wanted| is_meant(wanted, flag)))
}

/// Texts for Slurm. What is no single line cannot be part of a request.
fn lines(texts: impl IntoIterator<Item = String>) -> Vec<Line> {
    texts.into_iter().filter_map(|text| Line::new(text).ok()).collect()
}

fn minutes(length: SignedDuration) -> u32 {
    u32::try_from(length.as_mins()).unwrap_or(u32::MAX)
}

fn seconds(time: Timestamp) -> u64 {
    u64::try_from(time.as_second()).unwrap_or(0)
}

fn shown(seconds: Option<u64>) -> String {
    let time = seconds
        .and_then(|seconds| i64::try_from(seconds).ok())
        .and_then(|seconds| Timestamp::from_second(seconds).ok());
    time.map_or_else(|| "an unknown time".to_owned(), |time| format!("{time:.0}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use slurm::rest::{Observation, Process};

    use super::super::{Plan, plan, tests::steps};
    use super::*;
    use crate::nodeset::{
        fixture::{NOW, controller, nodeset, now, observed, planned, slurm_key, terminating, unknown, with, worker},
        status::status,
    };

    const MAINT: &[&str] = &["IDLE", "DYNAMIC_NORM", "MAINTENANCE", "RESERVED"];
    const OPEN: &[&str] = &["IDLE", "DYNAMIC_NORM"];
    const NAME: &str = "SlurmOperatorMaint-compute";
    const LATER: &str = "2026-01-01T02:00:00Z";

    fn unix(time: &str) -> i64 {
        time.parse::<Timestamp>().unwrap().as_second()
    }

    fn reservation(start: &str, minutes: i64, nodes: &str, flags: &[&str]) -> Value {
        json!({
            "name": NAME, "users": "slurm", "node_list": nodes, "flags": flags,
            "start_time": { "set": true, "number": unix(start) },
            "end_time": { "set": true, "number": unix(start) + minutes * 60 },
        })
    }

    fn usual(start: &str) -> Value {
        reservation(start, 30, "compute-[0-1]", &["MAINT", "IGNORE_JOBS", "SPEC_NODES"])
    }

    /// Slurm with these nodes, each drained by us or not, and these reservations.
    fn slurm(state: &[&str], drained: &[&str], reservations: Vec<Value>) -> Knowledge {
        let held = if state == MAINT { NAME } else { "" };
        let node = |name: &str| {
            let mut states = state.to_vec();
            if drained.contains(&name) {
                states.push("DRAIN");
            }
            let reason = format!("slurm-operator: Pod (slurm/{name}) is pending termination for an update");
            json!({ "name": name, "state": states, "reservation": held, "reason": reason })
        };
        let observation = Observation {
            nodes: serde_json::from_value(json!([node("compute-0"), node("compute-1")])).unwrap(),
            jobs: Vec::new(),
            process: Some(Process { boot_time: 1 }),
        };
        let mut seen = Seen::new(observation, now());
        seen.reservations = Some(serde_json::from_value(reservations.into()).unwrap());
        Knowledge::Known(seen.into())
    }

    fn scheduled(start: &str, flags: &[&str]) -> Value {
        json!({ "replicas": 2, "updateStrategy": {
            "type": "ScheduledUpdate", "scheduledUpdate": { "startTime": start, "duration": "30m", "flags": flags },
        } })
    }

    /// What the status says from before: the condition, and the start that the reservation was made for.
    fn remembered(status: &str, reason: &str, since: &str, start: Option<&str>) -> Value {
        let condition = json!({ "type": "ReservationCreated", "status": status, "reason": reason, "message": "",
            "lastTransitionTime": since });
        json!({ "nodeSetHash": "", "selector": "", "conditions": [condition], "reservedStart": start })
    }

    fn planned_after(spec: &Value, before: Value, pods: Vec<Value>, knowledge: Knowledge) -> (Plan, Observed) {
        let set = with(nodeset(spec), &[("/status", before)]);
        let objects = [controller(), slurm_key(), set].into_iter().chain(pods).collect();
        let observed = observed(objects, knowledge);
        (plan(&observed), observed)
    }

    fn reason(plan: &Plan) -> &str {
        match &plan.reservation {
            Booking::Told { condition, .. } => condition.reason,
            other => panic!("{other:?}"),
        }
    }

    fn sorted(plan: &Plan) -> Vec<String> {
        let mut steps = steps(plan);
        steps.sort();
        steps
    }

    fn two() -> Vec<Value> {
        vec![worker(0), worker(1)]
    }

    #[test]
    fn the_intention_is_written_down_before_a_reservation_is_made() {
        let spec = scheduled(LATER, &["flex"]);
        let first = planned(&spec, two(), slurm(OPEN, &[], vec![]));
        assert_eq!((steps(&first), reason(&first)), (vec![], "Creating"));
        assert_eq!(first.requeue, Some(SOON));
        let creating = remembered("False", "Creating", NOW, None);
        let (second, _) = planned_after(&spec, creating, two(), slurm(OPEN, &[], vec![]));
        let [Effect::Reserve { request, new: true }] = second.effects.as_slice() else {
            panic!("{:?}", second.effects)
        };
        let texts = |lines: &[Line]| lines.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(request.name.as_str(), NAME);
        assert_eq!(request.start, Some(u64::try_from(unix(LATER)).unwrap()));
        assert_eq!(request.minutes, Some(30));
        assert_eq!(texts(&request.nodes), ["compute-[0-1]"]);
        assert_eq!(texts(&request.users), ["slurm"]);
        assert_eq!(texts(&request.flags), ["MAINT", "IGNORE_JOBS", "FLEX"]);
    }

    fn made(start: &str) -> Value {
        remembered("True", "Created", "2026-01-01T00:00:00Z", Some(start))
    }

    /// The rows tell what differs, the spec, what the status says, what Slurm holds, and what is done.
    fn check_changes(rows: Vec<(&str, Value, Value, Value, Option<&str>)>) {
        for (what, spec, before, found, expected) in rows {
            let (plan, _) = planned_after(&spec, before, two(), slurm(OPEN, &[], vec![found]));
            let expected: Vec<String> = expected.iter().map(|verb| format!("{verb} {NAME}")).collect();
            assert_eq!(steps(&plan), expected, "{what}");
            assert_eq!(reason(&plan), "Created", "{what}");
        }
    }

    #[test]
    fn what_is_there_is_changed_only_where_the_user_wants_it_otherwise() {
        let spec = |flags: &[&str]| scheduled(LATER, flags);
        let short = |minutes: i64, nodes: &str| reservation(LATER, minutes, nodes, &["MAINT", "IGNORE_JOBS"]);
        let flexible = |start: &str| {
            let flags = ["MAINT", "IGNORE_JOBS", "SPEC_NODES", "FLEX", "MAGNETIC"];
            reservation(start, 30, "compute-[0-1]", &flags)
        };
        let begun = |minutes: i64, nodes: &str| reservation(BEGUN, minutes, nodes, &["MAINT"]);
        let early = "2026-01-01T00:00:00Z";
        let late = "2026-01-01T03:00:00Z";
        let over = reservation(early, 20, "compute-0", &["MAINT"]);
        let all = "compute-[0-1]";
        let change = Some("change");
        check_changes(vec![
            ("nothing", spec(&[]), made(LATER), usual(LATER), None),
            ("its start", scheduled(late, &[]), made(LATER), usual(LATER), change),
            (
                "a start in the past",
                scheduled(early, &[]),
                made(LATER),
                usual(LATER),
                None,
            ),
            ("its length", spec(&[]), made(LATER), short(20, all), change),
            ("a flag", spec(&["FLEX"]), made(LATER), usual(LATER), change),
            (
                "a flag fewer",
                spec(&["magnetic"]),
                made(LATER),
                flexible(LATER),
                Some("unreserve"),
            ),
            (
                "a flag fewer, but it has begun",
                spec(&[]),
                made(LATER),
                flexible(BEGUN),
                None,
            ),
            (
                "nothing, in other words",
                spec(&["FLE", "MAGNETIC=1"]),
                made(LATER),
                flexible(LATER),
                change,
            ),
            ("a node", spec(&[]), made(LATER), short(30, "compute-0"), change),
            (
                "all, but it has begun",
                spec(&["FLEX"]),
                made(LATER),
                begun(20, all),
                None,
            ),
            (
                "a node, and it has begun",
                spec(&[]),
                made(LATER),
                begun(30, "compute-0"),
                change,
            ),
            ("all, but it is over", scheduled(early, &[]), made(early), over, None),
        ]);
    }

    #[test]
    fn one_that_comes_again_is_moved_on_by_slurm_and_not_moved_back() {
        let first = "2025-12-31T00:50:00Z";
        let daily = |start: &str| {
            let flags = &["MAINT", "IGNORE_JOBS", "DAILY", "SPEC_NODES"];
            reservation(start, 30, "compute-[0-1]", flags)
        };
        let next = || daily("2026-01-02T00:50:00Z");
        let spec = |start: &str| scheduled(start, &["DAILY"]);
        let upstreams = remembered("True", "Created", NOW, None);
        let other_time = "2025-12-31T05:50:00Z";
        let remove = Some("unreserve");
        check_changes(vec![
            ("nothing", spec(first), made(first), next(), None),
            ("made by upstream", spec(first), upstreams, next(), None),
            ("the time of day", spec(other_time), made(first), next(), Some("change")),
            (
                "weekly",
                scheduled(LATER, &["WEEKLY"]),
                made(LATER),
                daily(LATER),
                remove,
            ),
            ("once", scheduled(LATER, &[]), made(LATER), daily(LATER), remove),
        ]);
    }

    #[test]
    fn one_that_is_gone_is_made_again_only_if_slurm_forgot_it_or_the_user_wants_another() {
        let past = "2026-01-01T00:30:00Z";
        for (what, start, before, made, said) in [
            (
                "it is over",
                past,
                remembered("True", "Created", past, Some(past)),
                false,
                "NotExists",
            ),
            (
                "it is over for long",
                past,
                remembered("False", "NotExists", past, Some(past)),
                false,
                "NotExists",
            ),
            (
                "somebody deleted it",
                LATER,
                remembered("True", "Created", "2026-01-01T00:50:00Z", Some(LATER)),
                false,
                "NotExists",
            ),
            (
                "Slurm was killed",
                LATER,
                remembered("True", "Created", "2026-01-01T00:59:50Z", Some(LATER)),
                true,
                "Creating",
            ),
            (
                "another start",
                LATER,
                remembered("False", "NotExists", past, Some(past)),
                true,
                "Creating",
            ),
            (
                "too late",
                past,
                remembered("False", "Creating", past, None),
                false,
                "StartPassed",
            ),
            (
                "its nodes were replaced",
                "2026-01-01T00:45:00Z",
                remembered("False", "Replacing", NOW, Some("2026-01-01T00:45:00Z")),
                true,
                "Replacing",
            ),
            (
                "they took too long",
                past,
                remembered("False", "Replacing", NOW, Some(past)),
                false,
                "NotExists",
            ),
        ] {
            let (plan, _) = planned_after(&scheduled(start, &[]), before, two(), slurm(OPEN, &[], vec![]));
            assert_eq!(!steps(&plan).is_empty(), made, "{what}: {:?}", steps(&plan));
            assert_eq!(reason(&plan), said, "{what}");
        }
        // For the rest of its time, so that nothing is held for longer than was said.
        let replaced = remembered("False", "Replacing", NOW, Some("2026-01-01T00:45:00Z"));
        let spec = scheduled("2026-01-01T00:45:00Z", &[]);
        let (plan, _) = planned_after(&spec, replaced, two(), slurm(OPEN, &[], vec![]));
        let Some(Effect::Reserve { request, .. }) = plan.effects.first() else {
            panic!("{:?}", plan.effects)
        };
        assert_eq!(
            (request.minutes, request.start),
            (Some(15), Some(u64::try_from(unix(NOW)).unwrap()))
        );
    }

    #[test]
    fn nobody_keeps_a_reservation_that_is_not_wanted() {
        let made = || remembered("True", "Created", NOW, Some(LATER));
        let found = || slurm(OPEN, &[], vec![usual(LATER)]);
        let gone = [format!("unreserve {NAME}")];
        let (other, _) = planned_after(&json!({ "replicas": 2 }), made(), two(), found());
        assert_eq!(steps(&other), gone);
        let mut zero = scheduled(LATER, &[]);
        zero["replicas"] = json!(0);
        let (zero, _) = planned_after(&zero, made(), vec![], found());
        assert_eq!(steps(&zero), gone);
        let deleted = |before: Value, knowledge: Knowledge| {
            let set = terminating(with(nodeset(&scheduled(LATER, &[])), &[("/status", before)]));
            steps(&plan(&observed(vec![controller(), slurm_key(), set], knowledge)))
        };
        assert_eq!(deleted(made(), found()), gone);
        assert_eq!(deleted(made(), unknown()), [""; 0]);
        assert_eq!(deleted(made(), slurm(OPEN, &[], vec![])), ["let go"]);

        let (settled, observed) = planned_after(&json!({ "replicas": 2 }), made(), two(), slurm(OPEN, &[], vec![]));
        assert_eq!(steps(&settled), [""; 0]);
        let said = status(&observed, &settled, None);
        assert!(
            said.conditions
                .iter()
                .all(|condition| condition.type_ != RESERVATION_CREATED)
        );
        assert_eq!(said.reserved_start, None);
    }

    #[test]
    fn while_slurm_is_unknown_nothing_is_done_and_what_was_said_stands() {
        let made = remembered("True", "Created", "2026-01-01T00:00:00Z", Some(LATER));
        let (plan, observed) = planned_after(&scheduled("2026-01-01T05:00:00Z", &[]), made, two(), unknown());
        assert_eq!(steps(&plan), [""; 0]);
        let said = status(&observed, &plan, None);
        let condition = said
            .conditions
            .iter()
            .find(|condition| condition.type_ == RESERVATION_CREATED)
            .unwrap();
        assert_eq!(condition.last_transition_time.as_str(), "2026-01-01T00:00:00Z");
        assert_eq!(said.reserved_start.unwrap().as_str(), LATER);
    }

    fn old(pod: Value) -> Value {
        with(
            pod,
            &[("/metadata/labels/controller.kubernetes.io~1hash", json!("old"))],
        )
    }

    fn leaving(pod: Value) -> Value {
        let mark = json!("update 2026-01-01T00:59:00Z");
        with(
            old(pod),
            &[("/metadata/annotations/nodeset.slinky.slurm.net~1leaving", mark)],
        )
    }

    const BEGUN: &str = "2026-01-01T00:50:00Z";

    fn inside(pods: Vec<Value>, drained: &[&str], nodes: &str) -> Plan {
        let made = remembered("True", "Created", BEGUN, Some(BEGUN));
        let found = reservation(BEGUN, 30, nodes, &["MAINT", "IGNORE_JOBS"]);
        planned_after(&scheduled(BEGUN, &[]), made, pods, slurm(MAINT, drained, vec![found])).0
    }

    #[test]
    fn all_old_workers_inside_the_reservation_are_replaced_at_once() {
        let plan = inside(vec![old(worker(0)), old(worker(1))], &[], "compute-[0-1]");
        assert_eq!(
            sorted(&plan),
            ["mark compute-0 for update", "mark compute-1 for update"]
        );
        let made = remembered("True", "Created", NOW, Some(LATER));
        let pods = vec![old(worker(0)), leaving(worker(1))];
        let (before, _) = planned_after(&scheduled(LATER, &[]), made, pods, slurm(OPEN, &[], vec![usual(LATER)]));
        assert_eq!(
            steps(&before),
            ["spare compute-1"],
            "not before it begins, and not after it has ended"
        );
    }

    #[test]
    fn a_worker_leaves_the_reservation_before_it_goes() {
        let plan = inside(
            vec![leaving(worker(0)), leaving(worker(1))],
            &["compute-0"],
            "compute-[0-1]",
        );
        assert_eq!(steps(&plan), [&format!("change {NAME}"), "drain compute-1"]);
        let [Effect::Reserve { request, .. }, ..] = plan.effects.as_slice() else {
            panic!()
        };
        assert_eq!(request.nodes.first().unwrap().as_str(), "compute-1");
        // The last ones take it along, since none can be without a node.
        let plan = inside(
            vec![leaving(worker(0)), leaving(worker(1))],
            &["compute-0", "compute-1"],
            "compute-[0-1]",
        );
        assert_eq!(
            (steps(&plan), reason(&plan)),
            (vec![format!("unreserve {NAME}")], "Replacing")
        );
        // Then they go.
        let replacing = remembered("False", "Replacing", NOW, Some(BEGUN));
        let pods = vec![leaving(worker(0)), leaving(worker(1))];
        let free = slurm(OPEN, &["compute-0", "compute-1"], vec![]);
        let (plan, _) = planned_after(&scheduled(BEGUN, &[]), replacing, pods, free);
        assert_eq!(sorted(&plan), ["remove compute-0", "remove compute-1"]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

        /// Whatever the strategy, the reservation and the state of the nodes.
        #[test]
        fn with_paused_nothing_leaves_for_an_update(
            kind in prop_oneof![Just("RollingUpdate"), Just("OnDelete"), Just("ScheduledUpdate")],
            state in prop_oneof![Just(MAINT), Just(OPEN)],
            drained in any::<[bool; 2]>(),
            marked in any::<[bool; 2]>(),
            begun in any::<bool>(),
            reason in prop_oneof![Just("Created"), Just("Replacing"), Just("Creating")],
        ) {
            let start = if begun { BEGUN } else { LATER };
            let mut spec = scheduled(start, &[]);
            spec["updateStrategy"]["type"] = json!(kind);
            spec["updateStrategy"]["paused"] = json!(true);
            let pods = marked.iter().zip(0..).map(|(marked, n)| if *marked { leaving(worker(n)) } else { old(worker(n)) });
            let drained: Vec<&str> =
                ["compute-0", "compute-1"].into_iter().zip(drained).filter(|(_, drained)| *drained).map(|(name, _)| name).collect();
            let before = remembered("True", reason, start, Some(start));
            let (plan, _) = planned_after(&spec, before, pods.collect(), slurm(state, &drained, vec![usual(start)]));
            for step in steps(&plan) {
                let harmless = ["spare", "undrain", "unreserve", "change"].iter().any(|verb| step.starts_with(verb));
                prop_assert!(harmless, "{step}");
            }
        }
    }
}
