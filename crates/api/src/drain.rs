//! How long a worker that is to be removed waits for its jobs.

use jiff::SignedDuration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::time::GoDuration;

open_enum! {
    /// What happens to the jobs that run on a worker when the drain times out.
    pub enum OnDrainTimeout {
        /// The operator waits for them.
        #[default]
        Wait,
        /// The operator requeues them.
        Requeue,
        /// The operator cancels them.
        Cancel,
    }
}

/// How long a worker that is to be removed waits for its jobs.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Drain {
    /// Time from the decision to remove the worker to the timeout: `30m`, `12h`. If absent, there is no timeout.
    pub timeout: Option<GoDuration>,

    /// What happens to jobs that run on the worker then. `Wait`: the operator waits for them. `Requeue`: it requeues
    /// them, and waits for those that cannot be requeued. `Cancel`: it cancels them.
    #[schemars(extend("default" = "Wait"))]
    pub on_timeout: Option<OnDrainTimeout>,
}

impl Drain {
    /// The timeout, if there is one.
    pub fn timeout(&self) -> Option<SignedDuration> {
        self.timeout.as_ref()?.length().filter(SignedDuration::is_positive)
    }

    /// What happens to jobs that still run at the timeout.
    pub fn on_timeout(&self) -> OnDrainTimeout {
        self.on_timeout.clone().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_default_a_drain_waits_for_jobs() {
        let drain = Drain::default();
        assert_eq!((drain.timeout(), drain.on_timeout()), (None, OnDrainTimeout::Wait));
        for no_length in ["0s", "-5m", "a while"] {
            let drain: Drain = serde_json::from_value(serde_json::json!({ "timeout": no_length })).unwrap();
            assert_eq!(drain.timeout(), None, "{no_length}");
        }
    }
}
