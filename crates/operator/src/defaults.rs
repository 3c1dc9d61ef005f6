//! The values of fields that an object omits, as set by the operator's flags.

/// Images for objects that name none. Each field is a flag of `run`.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct Images {
    /// The operator's own image, from which pods get slurm-agent.
    #[arg(
        long = "operator-image",
        env = "OPERATOR_IMAGE",
        default_value = "",
        hide_default_value = true
    )]
    pub operator: String,
    #[arg(
        long = "slurmctld-image",
        env = "SLURMCTLD_IMAGE",
        default_value = "",
        hide_default_value = true
    )]
    pub slurmctld: String,
    #[arg(
        long = "slurmd-image",
        env = "SLURMD_IMAGE",
        default_value = "",
        hide_default_value = true
    )]
    pub slurmd: String,
    #[arg(
        long = "slurmrestd-image",
        env = "SLURMRESTD_IMAGE",
        default_value = "",
        hide_default_value = true
    )]
    pub slurmrestd: String,
    #[arg(
        long = "slurmdbd-image",
        env = "SLURMDBD_IMAGE",
        default_value = "",
        hide_default_value = true
    )]
    pub slurmdbd: String,
    #[arg(
        long = "login-image",
        env = "LOGIN_IMAGE",
        default_value = "",
        hide_default_value = true
    )]
    pub login: String,
    /// Prints the daemons' log files.
    #[arg(
        long = "logfile-image",
        env = "LOGFILE_IMAGE",
        default_value = "",
        hide_default_value = true
    )]
    pub logfile: String,
    /// Prepares configuration in login and slurmdbd pods.
    #[arg(
        long = "initconf-image",
        env = "INITCONF_IMAGE",
        default_value = "",
        hide_default_value = true
    )]
    pub initconf: String,
}

impl Images {
    /// Replaces empty images by the defaults. A chart sets a variable without a value to an empty text.
    #[must_use]
    pub fn or_defaults(self) -> Self {
        let or = |given: String, default: String| if given.is_empty() { default } else { given };
        let defaults = Self::default();
        Self {
            operator: or(self.operator, defaults.operator),
            slurmctld: or(self.slurmctld, defaults.slurmctld),
            slurmd: or(self.slurmd, defaults.slurmd),
            slurmrestd: or(self.slurmrestd, defaults.slurmrestd),
            slurmdbd: or(self.slurmdbd, defaults.slurmdbd),
            login: or(self.login, defaults.login),
            logfile: or(self.logfile, defaults.logfile),
            initconf: or(self.initconf, defaults.initconf),
        }
    }
}

/// The tag in the charts and in upstream's documentation.
pub const SLURM_TAG: &str = "26.05-ubuntu26.04";
const REGISTRY: &str = "ghcr.io/slinkyproject";
/// As in the chart. Under upstream's name a node would pull and run upstream's operator.
const OPERATOR_REPOSITORY: &str = "localhost/slurm-operator";
const ALPINE: &str = "docker.io/library/alpine:latest";

impl Default for Images {
    fn default() -> Self {
        let stock = |name: &str| format!("{REGISTRY}/{name}:{SLURM_TAG}");
        Self {
            operator: format!("{OPERATOR_REPOSITORY}:{}", env!("CARGO_PKG_VERSION")),
            slurmctld: stock("slurmctld"),
            slurmd: stock("slurmd"),
            slurmrestd: stock("slurmrestd"),
            slurmdbd: stock("slurmdbd"),
            login: stock("login"),
            logfile: ALPINE.to_owned(),
            initconf: ALPINE.to_owned(),
        }
    }
}

/// The values of all fields that an object may omit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Defaults {
    pub images: Images,
    /// Types of conditions of a Kubernetes node that explain why the workers on a cordoned node are drained.
    pub propagated_node_conditions: Vec<String>,
}
