//! `slurm-operator run`.

use anyhow::Context as _;
use host::Host;
use jiff::SignedDuration;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::filter::Targets;

use super::{
    block_on,
    flags::{Address, parse_address, parse_lifetime, parse_log_level},
};
use crate::{
    accounting::AccountingReconciler,
    controller::ControllerReconciler,
    defaults::{Defaults, Images, TokenPolicy},
    loginset::LoginSetReconciler,
    nodeset::NodeSetReconciler,
    partition::PartitionReconciler,
    restapi::RestApiReconciler,
    runtime::{Caches, Clients, Contender, Context, Operator, Options},
    token::TokenReconciler,
};

/// The default name of the Lease.
pub(super) const LEASE_NAME: &str = "slurm-operator.slinky.slurm.net";

/// Flags of `run`; each can also be given by the environment.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Address to serve metrics on, at /metrics: `:8080`, `127.0.0.1:8080`, or 0 for none.
    #[arg(long, env = "METRICS_ADDRESS", default_value = ":8080", value_parser = parse_address)]
    pub metrics_address: Address,

    /// Serve metrics over HTTPS, to callers whom the API server authorizes to read /metrics.
    #[arg(long, env = "METRICS_SECURE")]
    pub metrics_secure: bool,

    /// Audiences of which a caller's token must have one if metrics are secure, separated by commas; the API server's if empty.
    #[arg(long, env = "METRICS_AUDIENCES", value_delimiter = ',')]
    pub metrics_audiences: Vec<String>,

    /// Address to serve health on, at /healthz and /readyz.
    #[arg(long, env = "HEALTH_ADDRESS", default_value = ":8081", value_parser = parse_address)]
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

    /// The name of this process in the Lease and in events: the pod's name.
    #[arg(long, env = "POD_NAME", default_value = "slurm-operator")]
    pub pod_name: String,

    /// Namespaces to watch, separated by commas; all if empty.
    #[arg(long, env = "WATCH_NAMESPACES", value_delimiter = ',')]
    pub namespaces: Vec<String>,

    /// Types of conditions of a Kubernetes node whose message becomes part of the reason when the workers on it are
    /// drained, separated by commas.
    #[arg(long, env = "PROPAGATED_NODE_CONDITIONS", value_delimiter = ',')]
    pub propagated_node_conditions: Vec<String>,

    /// Users with all rights in Slurm (root, slurm, or a UID) for whom Tokens may be created, separated by commas.
    #[arg(long, env = "PRIVILEGED_TOKEN_USERS", value_delimiter = ',')]
    pub privileged_token_users: Vec<String>,

    /// The longest lifetime of a token: `24h`, `1h30m`. A Token with a longer one gets tokens of this lifetime.
    #[arg(long, env = "MAX_TOKEN_LIFETIME", default_value = "24h", value_parser = parse_lifetime)]
    pub max_token_lifetime: SignedDuration,

    /// Log level: a level, levels by module, or a number as in upstream's chart.
    #[arg(long, env = "LOG_LEVEL", default_value = "info", value_parser = parse_log_level)]
    pub log_level: Targets,

    #[command(flatten)]
    pub images: Images,
}

impl Arguments {
    fn options(&self, host: &Host) -> Options {
        let lease = self.leader_elect.then(|| Contender {
            namespace: self.leader_elect_namespace.clone(),
            name: self.leader_elect_name.clone(),
            // A restarted pod keeps its name, and its predecessor may still hold the lease.
            identity: format!("{}_{:016x}", self.pod_name, host.random().u64()),
        });
        Options {
            namespaces: listed(&self.namespaces),
            lease,
            metrics_address: self.metrics_address,
            metrics_secure: self.metrics_secure,
            metrics_audiences: listed(&self.metrics_audiences),
            health_address: self.health_address,
            instance: self.pod_name.clone(),
        }
    }
}

/// The non-empty items of a list. An empty list is given as one empty item.
pub(super) fn listed(words: &[String]) -> Vec<String> {
    let words = words.iter().map(|word| word.trim());
    words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// Runs the operator until SIGTERM.
pub fn run(arguments: Arguments) -> anyhow::Result<()> {
    let log_level = arguments.log_level.clone();
    block_on(&log_level, |clients| operate(clients, arguments))
}

async fn operate(clients: Clients, arguments: Arguments) -> anyhow::Result<()> {
    let host = Host::real();
    let options = arguments.options(&host);
    let defaults = Defaults {
        propagated_node_conditions: listed(&arguments.propagated_node_conditions),
        tokens: TokenPolicy {
            privileged_users: listed(&arguments.privileged_token_users),
            max_lifetime: arguments.max_token_lifetime,
        },
        images: arguments.images.or_defaults(),
    };
    let stop = stop_signal()?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "starting");
    Box::pin(assemble(clients, options, defaults, host).run(stop)).await
}

/// An operator with all its kinds, on this host.
pub fn assemble(clients: Clients, options: Options, defaults: Defaults, host: Host) -> Operator {
    let caches = Caches::default();
    let mut operator = Operator::new(clients, options, caches.registry().clone(), host);
    let context = Context::new(operator.context(), caches, defaults);
    operator.add(ControllerReconciler::new(context.clone()));
    operator.add(RestApiReconciler::new(context.clone()));
    operator.add(PartitionReconciler::new(context.clone()));
    operator.add(AccountingReconciler::new(context.clone()));
    operator.add(LoginSetReconciler::new(context.clone()));
    operator.add(TokenReconciler::new(context.clone()));
    operator.add(NodeSetReconciler::new(context));
    operator
}

/// Waits for SIGTERM, which the kubelet sends, or for SIGINT, from a person at a terminal.
pub(super) fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
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
    fn without_flags_it_elects_a_leader_and_watches_all_namespaces() {
        let options = parse(&[]).options(&Host::real());
        assert!(options.lease.is_some());
        assert!(options.namespaces.is_empty());
    }

    #[test]
    fn two_starts_of_one_pod_are_two_candidates() {
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
        let images = arguments.images.or_defaults();
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
    fn tokens_live_a_day_at_most_unless_told_otherwise() {
        let lifetime = |arguments: &[&str]| parse(arguments).max_token_lifetime;
        assert_eq!(lifetime(&[]), SignedDuration::from_hours(24));
        assert_eq!(lifetime(&["--max-token-lifetime", "90s"]).as_secs(), 90);
        for wrong in ["a while", "0", "-1h", ""] {
            let flag = format!("--max-token-lifetime={wrong}");
            assert!(
                Cli::try_parse_from(["slurm-operator", "run", &flag]).is_err(),
                "{wrong}"
            );
        }
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
