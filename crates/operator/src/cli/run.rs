//! `slurm-operator run`.

use anyhow::Context as _;
use host::Host;
use tokio::signal::unix::{SignalKind, signal};

use super::{Address, LogLevel, process};
use crate::{
    accounting::AccountingReconciler,
    controller::ControllerReconciler,
    defaults::{Defaults, Images},
    loginset::LoginSetReconciler,
    nodeset::NodeSetReconciler,
    partition::PartitionReconciler,
    restapi::RestApiReconciler,
    runtime::{Caches, Candidate, Context, Operator, Options, Stop, Stopper},
    token::TokenReconciler,
};

/// What the Lease is called unless told otherwise.
pub(super) const LEASE_NAME: &str = "slurm-operator.slinky.slurm.net";

/// Flags of `run`; each can also be given by the environment.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Where metrics are served, at /metrics: `:8080`, `127.0.0.1:8080`, or 0 for nowhere.
    #[arg(long, env = "METRICS_ADDRESS", default_value = ":8080")]
    pub metrics_address: Address,

    /// Serve metrics by HTTPS, to those whom the API server lets read /metrics.
    #[arg(long, env = "METRICS_SECURE")]
    pub metrics_secure: bool,

    /// Where health is served, at /healthz and /readyz; likewise.
    #[arg(long, env = "HEALTH_ADDRESS", default_value = ":8081")]
    pub health_address: Address,

    /// Hold a Lease before writing anything, so that several replicas can run.
    #[arg(long, env = "LEADER_ELECT", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub leader_elect: bool,

    /// Namespace of the Lease: the operator's own.
    #[arg(long, env = "POD_NAMESPACE", default_value = "default")]
    pub leader_elect_namespace: String,

    /// Name of the Lease.
    #[arg(long, env = "LEADER_ELECT_NAME", default_value = LEASE_NAME)]
    pub leader_elect_name: String,

    /// What this process is called in the Lease and in events: the pod's name.
    #[arg(long, env = "POD_NAME", default_value = "slurm-operator")]
    pub pod_name: String,

    /// Namespaces to look after, with commas between them; all if empty.
    #[arg(long, env = "WATCH_NAMESPACES", value_delimiter = ',')]
    pub namespaces: Vec<String>,

    /// Types of conditions of a Kubernetes node whose message becomes part of the reason when the workers on it are
    /// drained, with commas between them.
    #[arg(long, env = "PROPAGATED_NODE_CONDITIONS", value_delimiter = ',')]
    pub propagated_node_conditions: Vec<String>,

    /// What is logged: a level, levels by module, or a number as upstream has it.
    #[arg(long, env = "LOG_LEVEL", default_value = "info")]
    pub log_level: LogLevel,

    #[command(flatten)]
    pub images: ImageArguments,
}

/// Images for objects that name none.
#[allow(clippy::struct_field_names, reason = "a field is a flag")]
#[derive(Debug, Default, clap::Args)]
pub struct ImageArguments {
    /// The operator's own image, from which pods get slurm-agent.
    #[arg(long, env = "OPERATOR_IMAGE")]
    pub operator_image: Option<String>,
    #[arg(long, env = "SLURMCTLD_IMAGE")]
    pub slurmctld_image: Option<String>,
    #[arg(long, env = "SLURMD_IMAGE")]
    pub slurmd_image: Option<String>,
    #[arg(long, env = "SLURMRESTD_IMAGE")]
    pub slurmrestd_image: Option<String>,
    #[arg(long, env = "SLURMDBD_IMAGE")]
    pub slurmdbd_image: Option<String>,
    #[arg(long, env = "LOGIN_IMAGE")]
    pub login_image: Option<String>,
    #[arg(long, env = "LOGFILE_IMAGE")]
    pub logfile_image: Option<String>,
    #[arg(long, env = "INITCONF_IMAGE")]
    pub initconf_image: Option<String>,
}

impl From<ImageArguments> for Images {
    fn from(arguments: ImageArguments) -> Self {
        let ImageArguments {
            operator_image,
            slurmctld_image,
            slurmd_image,
            slurmrestd_image,
            slurmdbd_image,
            login_image,
            logfile_image,
            initconf_image,
        } = arguments;
        // A chart sets a variable it has no value for to nothing.
        let or = |given: Option<String>, default: String| given.filter(|image| !image.is_empty()).unwrap_or(default);
        let defaults = Self::default();
        Self {
            operator: or(operator_image, defaults.operator),
            slurmctld: or(slurmctld_image, defaults.slurmctld),
            slurmd: or(slurmd_image, defaults.slurmd),
            slurmrestd: or(slurmrestd_image, defaults.slurmrestd),
            slurmdbd: or(slurmdbd_image, defaults.slurmdbd),
            login: or(login_image, defaults.login),
            logfile: or(logfile_image, defaults.logfile),
            initconf: or(initconf_image, defaults.initconf),
        }
    }
}

impl Arguments {
    fn options(&self, host: &Host) -> Options {
        let lease = self.leader_elect.then(|| Candidate {
            namespace: self.leader_elect_namespace.clone(),
            name: self.leader_elect_name.clone(),
            // A restarted pod keeps its name, and its predecessor may still hold the lease.
            identity: format!("{}_{:016x}", self.pod_name, host.random().u64()),
        });
        Options {
            namespaces: listed(&self.namespaces),
            lease,
            metrics_address: self.metrics_address.0,
            metrics_secure: self.metrics_secure,
            health_address: self.health_address.0,
            instance: self.pod_name.clone(),
        }
    }
}

/// An empty list is given as one empty word.
pub(super) fn listed(words: &[String]) -> Vec<String> {
    let words = words.iter().map(|word| word.trim());
    words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// Runs the operator until SIGTERM.
pub fn run(arguments: Arguments) -> anyhow::Result<()> {
    let log_level = arguments.log_level.clone();
    process::block_on(&log_level, operate(arguments))
}

async fn operate(arguments: Arguments) -> anyhow::Result<()> {
    let clients = process::clients().await?;
    let host = Host::real();
    let options = arguments.options(&host);
    let defaults = Defaults {
        propagated_node_conditions: listed(&arguments.propagated_node_conditions),
        images: arguments.images.into(),
    };
    let caches = Caches::default();
    let stop = stop_on_signal(&host)?;
    let mut operator = Operator::new(clients, options, caches.registry().clone(), host);
    let context = Context::new(operator.context(), caches, defaults);
    operator.add(ControllerReconciler::new(context.clone()));
    operator.add(RestApiReconciler::new(context.clone()));
    operator.add(PartitionReconciler::new(context.clone()));
    operator.add(AccountingReconciler::new(context.clone()));
    operator.add(LoginSetReconciler::new(context.clone()));
    operator.add(TokenReconciler::new(context.clone()));
    operator.add(NodeSetReconciler::new(context));
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "starting");
    operator.run(stop).await?;
    Ok(())
}

/// Stops on SIGTERM, which the kubelet sends, and on SIGINT, for a person at a terminal.
fn stop_on_signal(host: &Host) -> anyhow::Result<Stop> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let (stopper, stop) = Stopper::new();
    let wait = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stopper.stop();
    };
    host.spawn("signals", wait).detach();
    Ok(stop)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn parse(arguments: &[&str]) -> Arguments {
        let cli = Cli::try_parse_from(["slurm-operator", "run"].iter().chain(arguments)).unwrap();
        match cli.command {
            Command::Run(arguments) => *arguments,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn without_flags_it_elects_a_leader_and_looks_after_all_namespaces() {
        let options = parse(&[]).options(&Host::real());
        assert!(options.lease.is_some());
        assert!(options.namespaces.is_empty());
    }

    #[test]
    fn two_lives_of_one_pod_are_two_candidates() {
        let identity = || {
            parse(&["--pod-name", "a"])
                .options(&Host::real())
                .lease
                .unwrap()
                .identity
        };
        assert_ne!(identity(), identity());
    }

    #[test]
    fn flags_are_followed() {
        let arguments = parse(&[
            "--leader-elect=false",
            "--namespaces",
            "a,b",
            "--slurmd-image",
            "x",
            "--slurmctld-image",
            "",
            "--log-level",
            "warn,operator=debug",
        ]);
        let options = arguments.options(&Host::real());
        assert!(options.lease.is_none());
        assert_eq!(options.namespaces, ["a", "b"]);
        let images = Images::from(arguments.images);
        assert_eq!(images.slurmd, "x");
        assert_eq!(images.slurmctld, Images::default().slurmctld);
    }

    #[test]
    fn an_empty_list_of_namespaces_is_all() {
        assert!(
            parse(&["--namespaces", ""])
                .options(&Host::real())
                .namespaces
                .is_empty()
        );
    }

    #[test]
    fn lists_have_commas() {
        let arguments = parse(&["--propagated-node-conditions", "DiskPressure, KubeletUnhealthy,"]);
        assert_eq!(
            listed(&arguments.propagated_node_conditions),
            ["DiskPressure", "KubeletUnhealthy"]
        );
    }
}
