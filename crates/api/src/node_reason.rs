//! Who took a Slurm node out of service, according to the reason that Slurm shows for it. Pure; the operator decides by it whose
//! drain it is, and operator and plugin show it.
//!
//! Slurm records a user with each reason, but that is `slurm` or `root` for almost everything that happens in a cluster on
//! Kubernetes. So the text decides.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{keys::NODE_REASON_PREFIX, time::Timestamp};

/// Follows the pod in the operator's reason of a worker that is to be removed, before the purpose.
pub const LEAVING: &str = ") is pending termination for ";
/// The operator's reason, set by the pod's preStop hook.
pub const TERMINATING: &str = "Pod is terminating";
/// Begins the operator's reason of a worker that was lost.
pub const LOST: &str = "lost: ";
/// Follows the Kubernetes node in the operator's reason of a drain for its condition, before type and status of that.
pub const HAS_CONDITION: &str = ") has condition ";
/// The end of such a reason if the operator does not revert the drain.
pub const BY_HAND: &str = "; resume it by hand";

/// Reasons of Slurm for nodes that were unreachable. Slurm appends them to another reason, and lifts them itself.
const UNREACHABLE: &[&str] = &["Not responding", "Node unexpectedly rebooted"];
/// Further reasons of slurmctld and slurmd (26.05 and before), by their beginnings. An administrator has to resume these nodes.
const OF_SLURM: &[&str] = &[
    "CoreSpec differ",
    "Could not unpack gres data",
    "Duplicate jobid",
    "Failed to parse dynamic_conf nodeline",
    "Failed to set topology",
    "Job env setup error",
    "Kill task failed",
    "Low CPUs",
    "Low RealMemory",
    "Low TmpDisk",
    "Low socket*core*thread count",
    "NO NETWORK ADDRESS FOUND",
    "Reported active features",
    "RestrictedCoresPerGPU",
    "ResumeTimeout reached",
    "SlurmdSpoolDir is full",
    "batch job complete failure",
    "reboot complete",
    "reboot issued",
    "reboot requested",
    "reboot timed out",
];
/// In a reason of slurmctld, behind the name of the device: `gres/gpu count reported lower than configured (0 < 2)`.
const FEWER_DEVICES: &str = " count reported lower than configured";
/// Reasons that slurmctld sets because a Prolog or Epilog failed.
const OF_PROLOGS: &[&str] = &["Prolog error", "Epilog error", "Prolog/Epilog failure"];
/// The first words of reasons that a HealthCheckProgram sets, up to a colon: `NHC: …`, `check disk: …`.
const OF_CHECKS: &[&str] = &["check", "health", "health-check", "healthcheck", "nhc"];

open_enum! {
    /// Who took a Slurm node out of service.
    pub enum SetBy {
        /// An administrator in Slurm, or whoever cordoned the pod or the Kubernetes node.
        #[default]
        Person,
        /// A HealthCheckProgram, Prolog or Epilog.
        Check,
        /// A condition of the Kubernetes node.
        Condition,
        /// The operator, for a worker that is to be removed or was lost.
        Operator,
        /// Slurm itself.
        Slurm,
    }
}

/// A Slurm node that gets no jobs.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OutOfService {
    /// Slurm's name of the node.
    pub node: String,

    /// Its state in Slurm, such as `IDLE+DRAIN`.
    #[serde(default)]
    pub state: String,

    /// Slurm's reason.
    pub reason: Option<String>,

    /// When the reason was set.
    pub since: Option<Timestamp>,

    /// Who took it out of service. `Person`: an administrator in Slurm, or whoever cordoned the pod or the Kubernetes node.
    /// `Check`: a HealthCheckProgram, Prolog or Epilog. `Condition`: a condition of the Kubernetes node. `Operator`: the
    /// worker is to be removed or was lost. `Slurm`: Slurm itself.
    #[serde(default)]
    pub by: SetBy,

    /// The user that Slurm recorded, if a person or a check set the reason in Slurm.
    pub user: Option<String>,
}

impl SetBy {
    /// Returns who took a node out of service. Everyone may drain a node without a reason; Slurm gives one, except to a node that
    /// has not responded for less than its timeout.
    pub fn of_node(reason: &str, is_drained: bool) -> Self {
        Self::of_reason(reason).unwrap_or(if is_drained { Self::Person } else { Self::Slurm })
    }

    /// Returns who gave this reason. `None` without a reason.
    pub fn of_reason(reason: &str) -> Option<Self> {
        let given = as_given(reason);
        let begins = |known: &[&str]| known.iter().any(|words| given.starts_with(words));
        Some(if given.is_empty() {
            return None;
        } else if let Some(words) = given.strip_prefix(NODE_REASON_PREFIX) {
            of_words(words)
        } else if begins(OF_PROLOGS) || is_of_check(given) {
            Self::Check
        } else if begins(UNREACHABLE) || begins(OF_SLURM) || given.contains(FEWER_DEVICES) {
            Self::Slurm
        } else {
            Self::Person
        })
    }
}

/// Returns the user that Slurm recorded with a reason, if that says more than [`SetBy`]: the operator, slurmctld and slurmd all have
/// the same user.
pub fn author<'a>(reason: &str, user: &'a str) -> Option<&'a str> {
    let is_passed_on = reason.starts_with(NODE_REASON_PREFIX);
    let is_named = is_of_check(reason) || (SetBy::of_reason(reason) == Some(SetBy::Person) && !is_passed_on);
    Some(user).filter(|user| is_named && !user.is_empty())
}

/// Returns who is behind a reason that the operator set.
fn of_words(words: &str) -> SetBy {
    if words.starts_with('(') || names_condition(words) {
        // The conditions of a Kubernetes node, with a cordon or without.
        SetBy::Condition
    } else if is_removal(words) {
        SetBy::Operator
    } else {
        SetBy::Person
    }
}

fn is_of_check(reason: &str) -> bool {
    let subject = reason.split_once(':').map(|(subject, _)| subject);
    let first = subject.and_then(|subject| subject.split_whitespace().next());
    first.is_some_and(|first| OF_CHECKS.contains(&first.to_ascii_lowercase().as_str()))
}

/// Returns a reason without what Slurm appends to it when it sets the node down, as in `RMA : Not responding`. It stays there
/// when the node is back, as long as the node is drained.
pub fn as_given(reason: &str) -> &str {
    let without = |words: &&str| reason.strip_suffix(*words)?.strip_suffix(" : ");
    UNREACHABLE.iter().find_map(without).unwrap_or(reason)
}

/// Whether this is one of the operator's sentences, and not text that it passes on for a user.
pub fn is_of_operator(reason: &str) -> bool {
    let words = as_given(reason).strip_prefix(NODE_REASON_PREFIX);
    let is_own = |words| is_cordon(words) || is_removal(words) || names_condition(words);
    words.is_some_and(is_own) && !is_left_to_administrator(reason)
}

/// Whether the operator gave it for a condition of the Kubernetes node.
pub fn is_for_condition(reason: &str) -> bool {
    let words = as_given(reason).strip_prefix(NODE_REASON_PREFIX);
    words.is_some_and(names_condition)
}

/// Whether the operator gave it for a drain that only an administrator reverts, which counts as theirs.
pub fn is_left_to_administrator(reason: &str) -> bool {
    is_for_condition(reason) && as_given(reason).ends_with(BY_HAND)
}

/// Whether Slurm gave it to a node that was unreachable.
pub fn is_unreachable(reason: &str) -> bool {
    UNREACHABLE.iter().any(|words| reason.starts_with(words))
}

/// Whether the operator says that a pod or a Kubernetes node was cordoned, because whoever did it gave no reason.
fn is_cordon(words: &str) -> bool {
    let about_pod = words.starts_with("Pod (") && words.ends_with(") was cordoned");
    about_pod || (words.starts_with("Node (") && words.ends_with(") must be cordoned"))
}

fn names_condition(words: &str) -> bool {
    words.starts_with("Node (") && words.contains(HAS_CONDITION)
}

/// Whether the operator says that a worker leaves or was lost.
fn is_removal(words: &str) -> bool {
    let leaves = words.starts_with("Pod (") && words.contains(LEAVING);
    leaves || words == TERMINATING || words.starts_with(LOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_tells_who_gave_it() {
        for (reason, by) in [
            ("", None),
            ("broken fan", Some(SetBy::Person)),
            ("broken fan : Not responding", Some(SetBy::Person)),
            ("Low battery", Some(SetBy::Person)),
            // The operator passes on what a person did.
            ("slurm-operator: disk swap", Some(SetBy::Person)),
            ("slurm-operator: Pod (hpc/compute-0) was cordoned", Some(SetBy::Person)),
            (
                "slurm-operator: Node (k1) was cordoned, Pod (hpc/compute-0) must be cordoned",
                Some(SetBy::Person),
            ),
            ("slurm-operator: (Smart: sda fails)", Some(SetBy::Condition)),
            (
                "slurm-operator: Node (k1) has condition GpuMemWatch=True",
                Some(SetBy::Condition),
            ),
            (
                "slurm-operator: Pod (hpc/compute-0) is pending termination for scale-in",
                Some(SetBy::Operator),
            ),
            (
                "slurm-operator: Pod is terminating : Not responding",
                Some(SetBy::Operator),
            ),
            ("slurm-operator: lost: its node is gone", Some(SetBy::Operator)),
            ("Prolog error", Some(SetBy::Check)),
            ("Epilog error", Some(SetBy::Check)),
            ("NHC: check_fs_mount: /scratch not mounted", Some(SetBy::Check)),
            ("check disk: /scratch is full", Some(SetBy::Check)),
            ("check the fan", Some(SetBy::Person)),
            ("Not responding", Some(SetBy::Slurm)),
            ("Node unexpectedly rebooted", Some(SetBy::Slurm)),
            ("Kill task failed (JobId=7 StepId=0)", Some(SetBy::Slurm)),
            (
                "Low RealMemory (reported:1 < 100.00% of configured:2)",
                Some(SetBy::Slurm),
            ),
            (
                "gres/gpu count reported lower than configured (0 < 2)",
                Some(SetBy::Slurm),
            ),
        ] {
            assert_eq!(SetBy::of_reason(reason), by, "{reason:?}");
        }
    }

    #[test]
    fn a_drain_without_a_reason_is_a_persons() {
        assert_eq!(SetBy::of_node("", true), SetBy::Person);
        assert_eq!(SetBy::of_node("", false), SetBy::Slurm);
        assert_eq!(SetBy::of_node("NHC: disk", true), SetBy::Check);
    }

    #[test]
    fn the_user_is_named_where_that_tells_something() {
        assert_eq!(author("broken fan", "alice"), Some("alice"));
        assert_eq!(author("NHC: disk", "root"), Some("root"));
        assert_eq!(author("broken fan", ""), None);
        assert_eq!(author("slurm-operator: disk swap", "slurm"), None);
        assert_eq!(author("Not responding", "slurm"), None);
        assert_eq!(author("Prolog error", "slurm"), None);
    }

    #[test]
    fn only_reasons_that_slurm_lifts_itself_count_as_unreachable() {
        assert!(is_unreachable("Not responding"));
        assert!(!is_unreachable("Kill task failed") && !is_unreachable("RMA : Not responding"));
    }
}
