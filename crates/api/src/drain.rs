//! How long a worker that is to leave waits for its jobs.

use jiff::SignedDuration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::time::GoDuration;

open_enum! {
    /// What becomes of the jobs that are still on a worker when its time is up.
    pub enum OnDrainTimeout {
        /// They are waited for.
        #[default]
        Wait,
        /// They are put back into the queue.
        Requeue,
        /// They are cancelled.
        Cancel,
    }
}

/// How long a worker that is to leave waits for its jobs.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Drain {
    /// How long, counted from when the worker was chosen to leave: `30m`, `12h`. Without it there is no end to it.
    pub timeout: Option<GoDuration>,

    /// What becomes of the jobs that are still there then. `Wait`: nothing. `Requeue`: they are put back into the queue;
    /// those that cannot be, are waited for. `Cancel`: they are cancelled.
    #[schemars(extend("default" = "Wait"))]
    pub on_timeout: Option<OnDrainTimeout>,
}

impl Drain {
    /// How long, if there is an end to it.
    pub fn timeout(&self) -> Option<SignedDuration> {
        self.timeout.as_ref()?.length().filter(SignedDuration::is_positive)
    }

    /// What becomes of the jobs that are still there then.
    pub fn on_timeout(&self) -> OnDrainTimeout {
        self.on_timeout.clone().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_done_to_jobs_unless_somebody_wrote_it() {
        let drain = Drain::default();
        assert_eq!((drain.timeout(), drain.on_timeout()), (None, OnDrainTimeout::Wait));
        for no_length in ["0s", "-5m", "a while"] {
            let drain: Drain = serde_json::from_value(serde_json::json!({ "timeout": no_length })).unwrap();
            assert_eq!(drain.timeout(), None, "{no_length}");
        }
    }
}
