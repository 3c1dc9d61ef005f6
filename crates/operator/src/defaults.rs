//! What an object means that leaves something out, as the operator was told by its flags.

/// Images for objects that name none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Images {
    /// The operator's own image, which carries `slurm-agent` and installs it into pods.
    pub operator: String,
    pub slurmctld: String,
    pub slurmd: String,
    pub slurmrestd: String,
    pub slurmdbd: String,
    pub login: String,
    /// Prints the daemons' log files.
    pub logfile: String,
    /// Prepares configuration in login and slurmdbd pods.
    pub initconf: String,
}

/// The tag the charts and upstream's documents use today.
pub const SLURM_TAG: &str = "26.05-ubuntu26.04";
const REGISTRY: &str = "ghcr.io/slinkyproject";
/// As in the chart. The name is nobody's: under upstream's, a node would pull upstream's operator and run that.
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

/// Everything an object may leave out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Defaults {
    pub images: Images,
    /// Types of conditions of a Kubernetes node that say why the workers on it are drained when it is cordoned.
    pub propagated_node_conditions: Vec<String>,
}
