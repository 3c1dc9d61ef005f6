//! A node of slurmctld.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};
use serde_with::apply;

use crate::answer::null_as_default;
use crate::names::slurm_names;
use crate::number::Number;

slurm_names! {
    /// The base state of a node, which has exactly one.
    pub enum BaseState {
        Unknown = "UNKNOWN",
        Down = "DOWN",
        Idle = "IDLE",
        Allocated = "ALLOCATED",
        Error = "ERROR",
        Mixed = "MIXED",
        Future = "FUTURE",
    }
}

slurm_names! {
    /// A flag beside the base state; a node can have several.
    pub enum NodeFlag {
        Invalid = "INVALID",
        External = "EXTERNAL",
        Reserved = "RESERVED",
        Undrain = "UNDRAIN",
        Cloud = "CLOUD",
        Resume = "RESUME",
        Drain = "DRAIN",
        Completing = "COMPLETING",
        NotResponding = "NOT_RESPONDING",
        PoweredDown = "POWERED_DOWN",
        Fail = "FAIL",
        PoweringUp = "POWERING_UP",
        Maintenance = "MAINTENANCE",
        RebootRequested = "REBOOT_REQUESTED",
        RebootCanceled = "REBOOT_CANCELED",
        PoweringDown = "POWERING_DOWN",
        DynamicFuture = "DYNAMIC_FUTURE",
        RebootIssued = "REBOOT_ISSUED",
        Planned = "PLANNED",
        InvalidReg = "INVALID_REG",
        PowerDown = "POWER_DOWN",
        PowerUp = "POWER_UP",
        PowerDrain = "POWER_DRAIN",
        PowerDownAsap = "POWER_DOWN_ASAP",
        PowerDownForce = "POWER_DOWN_FORCE",
        DynamicNorm = "DYNAMIC_NORM",
        Blocked = "BLOCKED",
    }
}

/// A state such as `["IDLE","DRAIN","DYNAMIC_NORM"]`.
///
/// Unknown names are kept in [`Self::unknown`]. If there is not exactly one base state, there is none, and every predicate about
/// it is false.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeState {
    pub base: Option<BaseState>,
    pub flags: BTreeSet<NodeFlag>,
    pub unknown: BTreeSet<String>,
}

impl NodeState {
    pub fn of_names<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Self {
        let mut bases = BTreeSet::new();
        let mut state = Self::default();
        for name in names {
            let name = name.as_ref();
            if let Some(base) = BaseState::from_name(name) {
                bases.insert(base);
            } else if let Some(flag) = NodeFlag::from_name(name) {
                state.flags.insert(flag);
            } else {
                state.unknown.insert(name.to_owned());
            }
        }
        if bases.len() == 1 {
            state.base = bases.pop_first();
        } else {
            state
                .unknown
                .extend(bases.into_iter().map(|base| base.name().to_owned()));
        }
        state
    }

    pub fn has(&self, flag: NodeFlag) -> bool {
        self.flags.contains(&flag)
    }

    pub fn is_idle(&self) -> bool {
        self.base == Some(BaseState::Idle)
    }

    /// Whether jobs have some or all of its resources. A suspended job need not show here.
    pub fn is_allocated(&self) -> bool {
        matches!(self.base, Some(BaseState::Allocated | BaseState::Mixed))
    }

    pub fn is_down(&self) -> bool {
        self.base == Some(BaseState::Down)
    }

    /// Whether jobs run or complete on it.
    pub fn is_busy(&self) -> bool {
        self.is_allocated() || self.has(NodeFlag::Completing)
    }

    /// Whether no new job starts there.
    pub fn is_drain(&self) -> bool {
        // UNDRAIN beside DRAIN means that the drain is being lifted. FAIL, which only people set, keeps jobs away too.
        (self.has(NodeFlag::Drain) && !self.has(NodeFlag::Undrain)) || self.has(NodeFlag::Fail)
    }

    /// Whether the state of the node shows no jobs. A proof needs the list of jobs too.
    pub fn is_drained(&self) -> bool {
        self.is_drain() && self.base.is_some() && !self.is_busy()
    }

    /// Whether it gets no jobs until something is done about it: it is down, drained, failing, or does not respond. A node that is
    /// powered down, or on its way, waits for jobs.
    pub fn is_out_of_service(&self) -> bool {
        const POWER: [NodeFlag; 5] = [
            NodeFlag::PowerDown,
            NodeFlag::PowerUp,
            NodeFlag::PoweredDown,
            NodeFlag::PoweringDown,
            NodeFlag::PoweringUp,
        ];
        let is_silent = self.has(NodeFlag::NotResponding) || self.has(NodeFlag::InvalidReg);
        let is_broken = matches!(self.base, Some(BaseState::Down | BaseState::Error));
        self.is_drain() || is_broken || (is_silent && !POWER.iter().any(|flag| self.has(*flag)))
    }

    /// Returns the base state and the flags that matter for administrators, such as `IDLE+DRAIN`: without those that change with
    /// every job, and those that show only how the node was created.
    pub fn summary(&self) -> String {
        const LEFT_OUT: [NodeFlag; 5] = [
            NodeFlag::Completing,
            NodeFlag::Planned,
            NodeFlag::DynamicNorm,
            NodeFlag::DynamicFuture,
            NodeFlag::Cloud,
        ];
        let is_shown = |name: &&str| !LEFT_OUT.iter().any(|flag| flag.name() == *name);
        self.names().filter(is_shown).collect::<Vec<_>>().join("+")
    }

    pub fn is_responding(&self) -> bool {
        self.base.is_some() && !self.has(NodeFlag::NotResponding)
    }

    /// Whether it registered dynamically and may be deleted; a node of slurm.conf may not.
    pub fn is_dynamic(&self) -> bool {
        self.has(NodeFlag::DynamicNorm) || self.has(NodeFlag::DynamicFuture)
    }

    /// Whether power saving starts and stops it.
    pub fn is_cloud(&self) -> bool {
        self.has(NodeFlag::Cloud)
    }

    /// Whether power saving has stopped it, or is stopping it. Slurm starts no job there before it has started the node again.
    pub fn is_off(&self) -> bool {
        let is_stopped = self.has(NodeFlag::PoweredDown) && !self.has(NodeFlag::PoweringUp);
        self.has(NodeFlag::PoweringDown) || is_stopped
    }

    /// Whether power saving has started it and it has not registered since.
    pub fn is_starting(&self) -> bool {
        self.has(NodeFlag::PoweringUp) && !self.is_off()
    }

    /// Returns all names: the base state, the flags, then unknown ones.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.base
            .iter()
            .map(|base| base.name())
            .chain(self.flags.iter().map(|flag| flag.name()))
            .chain(self.unknown.iter().map(String::as_str))
    }
}

impl fmt::Display for NodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().collect::<Vec<_>>().join("+"))
    }
}

impl<'de> Deserialize<'de> for NodeState {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::<String>::deserialize(deserializer).map(Self::of_names)
    }
}

/// Name and state are required.
#[apply(
    String => #[serde(default, deserialize_with = "null_as_default")],
    Vec<String> => #[serde(default, deserialize_with = "null_as_default")],
    u64 => #[serde(default, deserialize_with = "null_as_default")],
    Number => #[serde(default)],
)]
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Node {
    #[serde_with(skip_apply)]
    pub name: String,
    pub state: NodeState,
    pub reason: String,
    pub reason_changed_at: Number,
    /// The user who set the reason.
    pub reason_set_by_user: String,
    pub comment: String,
    pub address: String,
    pub features: Vec<String>,
    pub active_features: Vec<String>,
    pub partitions: Vec<String>,
    /// The reservation it is in.
    pub reservation: String,
    pub topology: String,
    pub cpus: u64,
    pub alloc_cpus: u64,
    pub slurmd_start_time: Number,
}

impl Node {
    pub fn admin_state(&self) -> AdminState {
        AdminState {
            drain: self.state.is_drain(),
            down: self.state.is_down(),
            reason: self.reason.clone(),
            reason_since: if self.reason.is_empty() {
                0
            } else {
                self.reason_changed_at.finite().unwrap_or_default()
            },
        }
    }
}

/// The administrative part of a node's state. Every order that changes it names the state it was planned on: Slurm has no
/// compare-and-swap, so the sender reads the node again right before and gives up on any difference.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AdminState {
    pub drain: bool,
    pub down: bool,
    pub reason: String,
    /// When the reason was set, in seconds since 1970; 0 without a reason. Slurm updates it even for the same text.
    pub reason_since: u64,
}

impl fmt::Display for AdminState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match (self.down, self.drain) {
            (true, true) => "DOWN+DRAIN",
            (true, false) => "DOWN",
            (false, true) => "DRAIN",
            (false, false) => "in service",
        };
        f.write_str(state)?;
        if !self.reason.is_empty() {
            write!(f, " ({})", self.reason)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{AdminState, BaseState, Node, NodeFlag, NodeState};

    fn state(names: &[&str]) -> NodeState {
        NodeState::of_names(names)
    }

    #[test]
    fn base_state_and_flags_are_separated() {
        let state = state(&["IDLE", "DRAIN", "DYNAMIC_NORM"]);
        assert_eq!(state.base, Some(BaseState::Idle));
        assert_eq!(state.to_string(), "IDLE+DRAIN+DYNAMIC_NORM");
        assert!(state.is_idle() && state.is_drained() && state.is_dynamic() && state.is_responding());
        assert!(!state.is_busy() && !state.is_down());
    }

    #[test]
    fn a_node_with_jobs_is_draining_and_not_drained() {
        for names in [["ALLOCATED", "DRAIN"], ["MIXED", "DRAIN"]] {
            let state = state(&names);
            assert!(state.is_drain() && state.is_busy() && !state.is_drained(), "{names:?}");
        }
        let completing = state(&["IDLE", "DRAIN", "COMPLETING"]);
        assert!(completing.is_drain() && completing.is_busy() && !completing.is_drained());
    }

    #[test]
    fn a_drain_that_is_being_lifted_is_no_drain() {
        let state = state(&["IDLE", "DRAIN", "UNDRAIN"]);
        assert!(!state.is_drain() && !state.is_drained());
    }

    #[test]
    fn a_node_out_of_service_needs_somebody() {
        for (names, is_out, summary) in [
            (&["IDLE", "DYNAMIC_NORM"][..], false, "IDLE"),
            (&["MIXED", "COMPLETING", "PLANNED"], false, "MIXED"),
            (&["MIXED", "DRAIN", "COMPLETING", "DYNAMIC_NORM"], true, "MIXED+DRAIN"),
            (&["IDLE", "FAIL"], true, "IDLE+FAIL"),
            (&["DOWN", "NOT_RESPONDING"], true, "DOWN+NOT_RESPONDING"),
            (&["IDLE", "NOT_RESPONDING"], true, "IDLE+NOT_RESPONDING"),
            (&["IDLE", "INVALID_REG"], true, "IDLE+INVALID_REG"),
            (&["IDLE", "CLOUD", "POWERED_DOWN"], false, "IDLE+POWERED_DOWN"),
            (
                &["IDLE", "CLOUD", "POWERING_UP", "NOT_RESPONDING"],
                false,
                "IDLE+NOT_RESPONDING+POWERING_UP",
            ),
            (
                &["IDLE", "CLOUD", "POWERED_DOWN", "DRAIN"],
                true,
                "IDLE+DRAIN+POWERED_DOWN",
            ),
            (&["IDLE", "DRAIN", "UNDRAIN"], false, "IDLE+UNDRAIN+DRAIN"),
        ] {
            let state = state(names);
            assert_eq!(
                (state.is_out_of_service(), state.summary().as_str()),
                (is_out, summary),
                "{names:?}"
            );
        }
    }

    #[test]
    fn a_failing_node_counts_as_drained() {
        assert!(state(&["IDLE", "FAIL"]).is_drained());
        assert!(state(&["MIXED", "FAIL"]).is_drain() && state(&["MIXED", "FAIL"]).is_busy());
    }

    #[test]
    fn the_admin_state_does_not_depend_on_jobs() {
        let node = |state: &[&str], reason: &str| -> Node {
            let at = serde_json::json!({ "set": true, "infinite": false, "number": 7 });
            let node = serde_json::json!({ "name": "n", "state": state, "reason": reason, "reason_changed_at": at });
            serde_json::from_value(node).unwrap()
        };
        let idle = node(&["IDLE", "DYNAMIC_NORM"], "").admin_state();
        assert_eq!(idle, AdminState::default());
        assert_eq!(idle, node(&["MIXED", "COMPLETING"], "").admin_state());
        let drained = node(&["IDLE", "DRAIN"], "RMA").admin_state();
        assert_eq!((drained.to_string().as_str(), drained.reason_since), ("DRAIN (RMA)", 7));
        assert!(node(&["DOWN", "DRAIN"], "RMA").admin_state().down);
    }

    #[test]
    fn unknown_names_are_kept() {
        let state = state(&["IDLE", "SHINY", "DRAIN"]);
        assert!(state.is_idle() && state.unknown.contains("SHINY"));
        assert_eq!(state.to_string(), "IDLE+DRAIN+SHINY");
    }

    #[test]
    fn without_exactly_one_base_state_every_predicate_is_false() {
        for names in [&[][..], &["DRAIN"], &["IDLE", "DOWN", "DRAIN"], &["SLEEPING", "DRAIN"]] {
            let state = state(names);
            assert!(
                !state.is_idle() && !state.is_drained() && !state.is_down() && !state.is_responding(),
                "{names:?}"
            );
        }
        assert_eq!(state(&["IDLE", "DOWN"]).to_string(), "DOWN+IDLE");
    }

    proptest! {
        #[test]
        fn no_name_is_lost(names in prop::collection::btree_set("[A-Z_]{1,9}|DRAIN|NOT_RESPONDING|IDLE|DOWN", 0..8)) {
            let state = NodeState::of_names(&names);
            let kept: std::collections::BTreeSet<String> = state.names().map(str::to_owned).collect();
            prop_assert_eq!(kept, names);
        }
    }

    #[test]
    fn names_and_values_agree() {
        assert!(
            NodeFlag::ALL
                .iter()
                .all(|flag| NodeFlag::from_name(flag.name()) == Some(*flag))
        );
        assert!(
            BaseState::ALL
                .iter()
                .all(|base| BaseState::from_name(base.name()) == Some(*base))
        );
    }
}
