//! Where a component that runs outside Kubernetes is found.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Address of a daemon outside Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExternalConfig {
    /// Host name or address of the daemon.
    pub host: String,

    /// Port of the daemon.
    pub port: i64,
}
