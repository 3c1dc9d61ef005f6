//! The address of a daemon outside Kubernetes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// Address of a daemon outside Kubernetes.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExternalConfig {
    /// Host name or address of the daemon.
    pub host: String,

    /// Port of the daemon. Defaults to 6817 for slurmctld and 6819 for slurmdbd.
    #[serde(default)]
    pub port: Option<i64>,
}

impl ExternalConfig {
    /// Host and port; `usual` is Slurm's default port of the daemon.
    pub(crate) fn address(&self, usual: u16) -> (&str, i64) {
        (&self.host, self.port.unwrap_or(usual.into()))
    }
}
