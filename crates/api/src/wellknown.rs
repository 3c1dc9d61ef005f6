//! Ports, users, directories and files that images, charts and users' scripts rely on.

/// Port of slurmctld.
pub const SLURMCTLD_PORT: u16 = 6817;
/// Port of slurmd.
pub const SLURMD_PORT: u16 = 6818;
/// Port of slurmdbd.
pub const SLURMDBD_PORT: u16 = 6819;
/// Port of slurmrestd.
pub const SLURMRESTD_PORT: u16 = 6820;
/// Port of sshd.
pub const SSH_PORT: u16 = 22;

/// User of slurmctld and slurmdbd.
pub const SLURM_USER: &str = "slurm";
/// User and group ID of `slurm` in the stock images.
pub const SLURM_UID: i64 = 401;
/// User and group ID of slurmrestd: those of `nobody`.
pub const SLURMRESTD_UID: i64 = 65534;

/// The configuration.
pub const SLURM_ETC_DIR: &str = "/etc/slurm";
/// slurmctld's state, one directory per cluster name.
pub const STATE_DIR: &str = "/var/spool/slurmctld";
/// The daemons' logs.
pub const LOG_DIR: &str = "/var/log/slurm";

/// File of the auth/slurm key, and its key in a generated Secret.
pub const SLURM_KEY_FILE: &str = "slurm.key";
/// File of the auth/jwt key, and its key in a generated Secret.
pub const JWT_KEY_FILE: &str = "jwt.key";
/// File of the JSON web key set.
pub const JWKS_FILE: &str = "jwks.json";
/// Slurm's configuration.
pub const SLURM_CONF_FILE: &str = "slurm.conf";
/// The cgroup configuration.
pub const CGROUP_CONF_FILE: &str = "cgroup.conf";
/// slurmdbd's configuration.
pub const SLURMDBD_CONF_FILE: &str = "slurmdbd.conf";
/// sshd's configuration.
pub const SSHD_CONFIG_FILE: &str = "sshd_config";

/// Volume and claim template of slurmctld's state.
pub const STATE_VOLUME: &str = "statesave";
/// Default Secret entry of a Token.
pub const TOKEN_SECRET_KEY: &str = "SLURM_JWT";

/// Files beside slurm.conf that Slurm reads. Another name in a ConfigMap may be a typo.
pub const KNOWN_CONFIG_FILES: &[&str] = &[
    "acct_gather.conf",
    "burst_buffer.conf",
    "cgroup.conf",
    "cli_filter.lua",
    "gres.conf",
    "helpers.conf",
    "job_container.conf",
    "job_submit.lua",
    "mpi.conf",
    "namespace.yaml",
    "oci.conf",
    "plugstack.conf",
    "topology.conf",
    "topology.yaml",
];
