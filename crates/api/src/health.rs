//! Which conditions of Kubernetes nodes drain the Slurm nodes on them.

use jiff::SignedDuration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{conditions::ConditionStatus, time::GoDuration};

/// Maximum number of conditions that drain.
pub const MAX_CONDITIONS: usize = 16;
/// Maximum length of the type of a condition, as in Kubernetes.
pub const MAX_CONDITION_TYPE: usize = 316;
/// Maximum length of a duration as text: more than any needs, for the cost of the API server's rules.
const MAX_DURATION_TEXT: usize = 32;
/// Longest time that a condition can be required to last.
pub const LONGEST_FOR: SignedDuration = SignedDuration::from_hours(24);

/// How the health of Kubernetes nodes affects the Slurm nodes on them.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    /// Conditions of a Kubernetes node that drain the Slurm nodes of the workers on it. Jobs that run there go on.
    #[schemars(extend(
        "maxItems" = MAX_CONDITIONS,
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["condition", "status"]
    ))]
    pub drain_on: Option<Vec<DrainOn>>,
}

/// A condition of a Kubernetes node that drains.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrainOn {
    /// Type of the condition, as `kubectl describe node` shows it.
    #[schemars(extend("pattern" = r"^[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?$", "maxLength" = MAX_CONDITION_TYPE))]
    pub condition: String,

    /// Status of the condition that drains.
    #[schemars(extend("default" = "True"))]
    pub status: Option<ConditionStatus>,

    /// How long the condition must have had that status: `30s`, `5m`, at most 24h. The operator measures from the
    /// condition's lastTransitionTime, or from when it first saw the status if that was earlier.
    #[serde(rename = "for")]
    #[schemars(extend("default" = "0s", "maxLength" = MAX_DURATION_TEXT))]
    pub lasting: Option<GoDuration>,

    /// Whether the operator reverts the drain when the condition has another status or is gone. A drain for `False` or
    /// `True` lasts while the status is `Unknown`. If false, a person has to resume the node.
    #[schemars(extend("default" = true))]
    pub undrain: Option<bool>,
}

impl Health {
    /// The conditions that drain.
    pub fn drain_on(&self) -> &[DrainOn] {
        self.drain_on.as_deref().unwrap_or_default()
    }
}

impl DrainOn {
    /// The status that drains.
    pub fn status(&self) -> ConditionStatus {
        self.status.clone().unwrap_or(ConditionStatus::True)
    }

    /// How long the condition must have had the status. `None` if the text is not a duration in the bounds.
    pub fn lasting(&self) -> Option<SignedDuration> {
        let Some(text) = &self.lasting else {
            return Some(SignedDuration::ZERO);
        };
        let length = text.length().filter(|_| text.as_str().len() <= MAX_DURATION_TEXT);
        length.filter(|length| (SignedDuration::ZERO..=LONGEST_FOR).contains(length))
    }

    /// Whether the drain is reverted when the condition is over.
    pub fn undrains(&self) -> bool {
        self.undrain.unwrap_or(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain_on(entry: serde_json::Value) -> DrainOn {
        serde_json::from_value(entry).unwrap()
    }

    #[test]
    fn an_entry_of_a_condition_alone_drains_at_once_and_undrains() {
        let entry = drain_on(serde_json::json!({ "condition": "GpuMemWatch" }));
        assert_eq!(entry.status(), ConditionStatus::True);
        assert_eq!(entry.lasting(), Some(SignedDuration::ZERO));
        assert!(entry.undrains());
    }

    #[test]
    fn a_time_is_a_duration_in_bounds() {
        for (text, seconds) in [
            ("0s", Some(0)),
            ("0", Some(0)),
            ("30s", Some(30)),
            ("1h30m", Some(5400)),
            ("24h", Some(86_400)),
            ("24h1s", None),
            ("-1s", None),
            ("1d", None),
            ("soon", None),
            ("", None),
        ] {
            let entry = drain_on(serde_json::json!({ "condition": "A", "for": text }));
            assert_eq!(entry.lasting().map(|time| time.as_secs()), seconds, "{text:?}");
        }
    }
}
