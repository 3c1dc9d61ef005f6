//! The volumes and paths of a slurmctld pod. The agent's half of this contract is `crates/agent/README.md`.

use api::{Controller, wellknown};

/// The configuration slurmctld runs with; the agent writes it. Upstream's `slurm-etc` is another kind of volume, and a
/// volume that changes its kind under the same name cannot be adopted.
pub(crate) const LIVE_VOLUME: &str = "slurm-conf";
/// slurm.conf, cgroup.conf and the keys as the kubelet projects them, under upstream's name: containers that users add
/// mount it.
pub(crate) const ETC_VOLUME: &str = "slurm-etc";
pub(crate) const KEYS_VOLUME: &str = "slurm-keys";
pub(crate) const KEYS_DIR: &str = "/etc/slurm-keys";
pub(crate) const BUNDLE_VOLUME: &str = "slurm-bundle";
pub(crate) const BUNDLE_DIR: &str = "/etc/slurm-bundle";
/// The entry of the bundle's ConfigMap, and its file name.
pub(crate) const BUNDLE_FILE: &str = "bundle";
/// The entry that records the inputs of the revision. Only the operator reads it.
pub(crate) const INPUTS_FILE: &str = "inputs";
/// A revision for an agent that cannot be reached.
pub(crate) const CANDIDATE_VOLUME: &str = "slurm-candidate";
pub(crate) const CANDIDATE_DIR: &str = "/etc/slurm-candidate";
pub(crate) const AGENT_VOLUME: &str = "slurm-agent";
pub(crate) const AGENT_DIR: &str = "/opt/slurm-agent";
pub(crate) const AGENT: &str = "/opt/slurm-agent/slurm-agent";
/// A directory in every image's PATH, for people who type `slurm-agent check`.
pub(crate) const AGENT_COMMAND: &str = "/usr/local/bin/slurm-agent";
/// The agent's file name in its volume.
pub(crate) const AGENT_FILE: &str = "slurm-agent";
pub(crate) const RUN_VOLUME: &str = "run";
pub(crate) const RUN_DIR: &str = "/run";
/// Where `supervise` listens for `serve`, in the volume the two containers share.
pub(crate) const CONTROL_SOCKET: &str = "/run/slurm-agent.sock";
pub(crate) const AUTH_SOCKET_VOLUME: &str = "slurm-authsocket";
pub(crate) const AUTH_SOCKET_DIR: &str = "/run/slurmctld";
pub(crate) const LOG_VOLUME: &str = "slurm-logfile";
pub(crate) const LOG_FILE: &str = "/var/log/slurm/slurmctld.log";

/// Mode of upstream's projected files: the group may execute the scripts among them.
pub(crate) const PROJECTED_MODE: i32 = 0o610;

/// Mode of the keys: slurmctld's group reads them.
pub(crate) const KEYS_MODE: i32 = 0o440;

/// slurmctld's state directory, which also contains the revisions.
pub(crate) fn state_dir(cluster_name: &str) -> String {
    format!("{}/{cluster_name}", wellknown::STATE_DIR)
}

/// Where the state volume is mounted. An emptyDir is world-writable, which slurmctld warns about, so it contains the
/// directory that `slurm-agent prepare` creates.
pub(crate) fn state_mount(controller: &Controller) -> String {
    if controller.spec.is_persistent() {
        state_dir(&controller.cluster_name())
    } else {
        wellknown::STATE_DIR.to_owned()
    }
}

/// Container names.
pub(crate) mod name {
    pub(crate) const SLURMCTLD: &str = api::keys::apps::SLURMCTLD;
    pub(crate) const RECONFIGURE: &str = "reconfigure";
    pub(crate) const LOGFILE: &str = "logfile";
    pub(crate) const INSTALL: &str = "install-agent";
    pub(crate) const PREPARE: &str = "prepare";
}

/// The agent's environment variables.
pub(crate) mod variable {
    pub(crate) const KEYS_DIR: &str = "SLURM_AGENT_KEYS_DIR";
    pub(crate) const STATE_DIR: &str = "SLURM_AGENT_STATE_DIR";
    pub(crate) const CONTROLLER_UID: &str = "SLURM_AGENT_CONTROLLER_UID";
    pub(crate) const KEY_DIGEST: &str = "SLURM_AGENT_KEY_DIGEST";
    pub(crate) const BUNDLE: &str = "SLURM_AGENT_BUNDLE";
    pub(crate) const CANDIDATE: &str = "SLURM_AGENT_CANDIDATE";
    pub(crate) const CONTROL: &str = "SLURM_AGENT_CONTROL";
    pub(crate) const POD_UID: &str = "SLURM_AGENT_POD_UID";
    pub(crate) const POD_NAME: &str = "SLURM_AGENT_POD_NAME";
}
