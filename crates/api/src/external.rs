//! Where a component that runs outside Kubernetes is found.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// Address of a daemon outside Kubernetes.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExternalConfig {
    /// Host name or address of the daemon.
    pub host: String,

    /// Port of the daemon, if it is not Slurm's own: 6817 of slurmctld, 6819 of slurmdbd.
    #[serde(default)]
    pub port: Option<i64>,
}

impl ExternalConfig {
    /// Host and port, where this is the port that Slurm has for such a daemon.
    pub(crate) fn address(&self, usual: u16) -> (&str, i64) {
        (&self.host, self.port.unwrap_or(usual.into()))
    }
}
