//! How a NodeSet replaces pods of an older revision.

use jiff::SignedDuration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{
    int_or_string::IntOrString,
    time::{GoDuration, Timestamp},
};

/// Default of `maxUnavailable`.
pub const DEFAULT_MAX_UNAVAILABLE: &str = "25%";
/// Default duration of a scheduled update.
pub const DEFAULT_SCHEDULED_DURATION: &str = "30m";

open_enum! {
    /// How pods of an older revision are replaced.
    pub enum UpdateStrategyType {
        /// A few at a time.
        #[default]
        RollingUpdate,
        /// When a user deletes them.
        OnDelete,
        /// In a Slurm reservation.
        ScheduledUpdate,
    }
}

/// How pods of an older revision are replaced.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpdateStrategy {
    /// `RollingUpdate`: a few pods at a time. `OnDelete`: when a user deletes them. `ScheduledUpdate`: in a Slurm
    /// reservation.
    #[serde(rename = "type")]
    #[schemars(extend("default" = "RollingUpdate"))]
    pub type_: Option<UpdateStrategyType>,

    /// Settings of `RollingUpdate`.
    pub rolling_update: Option<RollingUpdate>,

    /// Settings of `ScheduledUpdate`.
    pub scheduled_update: Option<ScheduledUpdate>,

    /// Whether the update is paused. No further pod is replaced, and pods that were drained for the update accept jobs
    /// again.
    #[schemars(extend("default" = false))]
    pub paused: Option<bool>,
}

/// Settings of a rolling update.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RollingUpdate {
    /// Maximum number of pods that are unavailable at a time, as a number or as a percentage that is rounded up.
    #[schemars(extend("default" = DEFAULT_MAX_UNAVAILABLE))]
    pub max_unavailable: Option<IntOrString>,
}

/// Settings of a scheduled update.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduledUpdate {
    /// When the reservation begins.
    pub start_time: Option<Timestamp>,

    /// Duration of the reservation, at least a minute: `30m`, `1h30m`.
    #[schemars(extend("default" = DEFAULT_SCHEDULED_DURATION))]
    pub duration: Option<GoDuration>,

    /// Flags of the reservation in addition to `MAINT` and `IGNORE_JOBS`.
    #[schemars(extend("nullable" = true))]
    pub flags: Option<Vec<String>>,
}

impl ScheduledUpdate {
    /// Duration of the reservation. Zero counts as absent, as in upstream.
    pub fn length(&self) -> SignedDuration {
        let given = self.duration.as_ref().and_then(GoDuration::length);
        let default = || {
            GoDuration::from(DEFAULT_SCHEDULED_DURATION)
                .length()
                .unwrap_or_default()
        };
        given.filter(SignedDuration::is_positive).unwrap_or_else(default)
    }
}

impl UpdateStrategy {
    /// How pods of an older revision are replaced.
    pub fn kind(&self) -> UpdateStrategyType {
        self.type_.clone().unwrap_or_default()
    }

    /// Whether the update is paused.
    pub fn is_paused(&self) -> bool {
        self.paused.unwrap_or(false)
    }

    /// Maximum number of pods out of `total` that a rolling update makes unavailable. Text without a number counts as
    /// 1, as in upstream.
    pub fn max_unavailable(&self, total: u32) -> u32 {
        let given = self
            .rolling_update
            .as_ref()
            .and_then(|rolling| rolling.max_unavailable.clone());
        let given = given.unwrap_or_else(|| IntOrString::String(DEFAULT_MAX_UNAVAILABLE.into()));
        given
            .out_of(total)
            .map_or(1, |number| u32::try_from(number.max(0)).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_field_has_the_default_of_the_schema() {
        let strategy = UpdateStrategy::default();
        assert_eq!(strategy.kind(), UpdateStrategyType::RollingUpdate);
        assert_eq!(strategy.max_unavailable(8), 2);
        assert!(!strategy.is_paused());
    }

    #[test]
    fn text_without_a_number_counts_as_one_pod() {
        let strategy: UpdateStrategy =
            serde_json::from_value(serde_json::json!({ "rollingUpdate": { "maxUnavailable": "many" } })).unwrap();
        assert_eq!(strategy.max_unavailable(8), 1);
    }
}
