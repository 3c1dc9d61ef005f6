//! A NodeSet whose workers follow Slurm's queue.

use jiff::SignedDuration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{
    nodeset::{MAX_REPLICAS, NodeSetSpec},
    time::GoDuration,
};

/// Default of [`Autoscaling::idle_time`].
const IDLE_TIME: SignedDuration = SignedDuration::from_mins(10);
/// Default of [`Autoscaling::boot_timeout`].
const BOOT_TIMEOUT: SignedDuration = SignedDuration::from_mins(15);
/// Slurm's longest `ResumeTimeout` is 65534 s; the operator adds five minutes.
pub const MAX_BOOT_TIMEOUT: SignedDuration = SignedDuration::from_hours(18);

/// Workers that Slurm's power saving starts and stops. Slurm has a node record for each of `maxReplicas` ordinals, and a pod
/// exists while Slurm has its node powered up. Needs Slurm 26.05.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Autoscaling {
    /// Whether the number of workers follows Slurm's queue. `spec.replicas` then has no effect.
    #[schemars(extend("default" = false))]
    pub enabled: Option<bool>,

    /// Number of workers that are kept without jobs.
    #[schemars(extend("default" = 0))]
    pub min_replicas: Option<i32>,

    /// Maximum number of workers: the nodes that Slurm knows. Required if autoscaling is enabled.
    pub max_replicas: Option<i32>,

    /// How long a worker without a job stays: `10m`, `1h`. At least one second.
    #[schemars(extend("default" = "10m"))]
    pub idle_time: Option<GoDuration>,

    /// How long a worker may take from Slurm's request to its registration, at most 18 hours.
    #[schemars(extend("default" = "15m"))]
    pub boot_timeout: Option<GoDuration>,

    /// Resources of one worker, as in slurm.conf: `CPUs=4 RealMemory=15000 Gres=gpu:1`. Jobs that need more are not given to
    /// these nodes. A worker that registers with less is not used. Required if autoscaling is enabled.
    pub shape: Option<String>,
}

impl Autoscaling {
    pub fn is_enabled(&self) -> bool {
        self.enabled.unwrap_or(false)
    }

    pub fn min_replicas(&self) -> u32 {
        count(self.min_replicas)
    }

    pub fn max_replicas(&self) -> u32 {
        count(self.max_replicas)
    }

    /// How long a worker without a job stays.
    pub fn idle_time(&self) -> SignedDuration {
        length_or(self.idle_time.as_ref(), IDLE_TIME)
    }

    /// How long a worker may take to register.
    pub fn boot_timeout(&self) -> SignedDuration {
        length_or(self.boot_timeout.as_ref(), BOOT_TIMEOUT).min(MAX_BOOT_TIMEOUT)
    }

    /// Resources of one worker, as in slurm.conf.
    pub fn shape(&self) -> &str {
        self.shape.as_deref().unwrap_or_default()
    }
}

impl NodeSetSpec {
    /// The settings of autoscaling, if it is enabled.
    pub fn autoscaling(&self) -> Option<&Autoscaling> {
        self.autoscaling.as_ref().filter(|autoscaling| autoscaling.is_enabled())
    }

    /// Number of ordinals that pods may have, unless their nodes name them.
    pub fn ordinals(&self) -> u32 {
        self.autoscaling()
            .map_or_else(|| self.replicas(), Autoscaling::max_replicas)
    }
}

/// Clamped because the installed definitions may have no limits.
fn count(given: Option<i32>) -> u32 {
    u32::try_from(given.unwrap_or(0).clamp(0, MAX_REPLICAS)).unwrap_or(0)
}

fn length_or(given: Option<&GoDuration>, default: SignedDuration) -> SignedDuration {
    let length = given.and_then(GoDuration::length);
    length
        .filter(|length| *length >= SignedDuration::from_secs(1))
        .unwrap_or(default)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_and_unreadable_values_have_the_defaults_of_the_schema() {
        for autoscaling in [
            Autoscaling::default(),
            Autoscaling {
                idle_time: Some("soon".into()),
                boot_timeout: Some("0s".into()),
                min_replicas: Some(-1),
                ..Autoscaling::default()
            },
        ] {
            assert!(!autoscaling.is_enabled());
            assert_eq!((autoscaling.min_replicas(), autoscaling.max_replicas()), (0, 0));
            assert_eq!(autoscaling.idle_time(), SignedDuration::from_mins(10));
            assert_eq!(autoscaling.boot_timeout(), SignedDuration::from_mins(15));
        }
    }
}
