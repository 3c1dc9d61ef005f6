//! `slurm-operator webhook`.

use anyhow::Context as _;
use host::Host;
use runtime::admission::{self, Certificates, Options};
use tracing_subscriber::filter::Targets;

use super::{
    block_on,
    flags::{Address, parse_address, parse_log_level},
    run::stop_signal,
};
use crate::webhook::Admission;

/// Flags of `webhook`; those without a variable are the ones of upstream's chart.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Address to serve reviews on, over HTTPS.
    #[arg(long, default_value = ":9443", value_parser = parse_address)]
    server_addr: Address,

    /// Address to serve health on, at /healthz and /readyz.
    #[arg(long, default_value = ":8081", value_parser = parse_address)]
    health_addr: Address,

    /// Address to serve metrics on, at /metrics, or 0 for none.
    #[arg(long, default_value = "0", value_parser = parse_address)]
    metrics_addr: Address,

    /// Serve metrics over HTTPS, to callers whom the API server authorizes to read /metrics.
    #[arg(long)]
    metrics_secure: bool,

    /// Namespace of the Service and of the Secret: the webhook's own.
    #[arg(long, env = "POD_NAMESPACE", default_value = "default")]
    namespace: String,

    /// Name of the Service, and of the webhook configurations that refer to it.
    #[arg(long, default_value = "slurm-operator-webhook")]
    service: String,

    /// Name of the Secret with the certificate.
    #[arg(long, default_value = "slurm-operator-webhook-ca")]
    certificate_secret: String,

    /// Make and renew the certificate; otherwise another program, such as cert-manager, writes the Secret.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    manage_certificate: bool,

    /// Log level: a level, levels by module, or a number as in upstream's chart.
    #[arg(long, env = "LOG_LEVEL", default_value = "info", value_parser = parse_log_level)]
    log_level: Targets,
}

/// Serves the webhook until SIGTERM.
pub fn serve_webhook(arguments: Arguments) -> anyhow::Result<()> {
    let log_level = arguments.log_level.clone();
    block_on(&log_level, async |clients| {
        let options = Options {
            address: arguments.server_addr.context("--server-addr must name a port")?,
            health_address: arguments.health_addr,
            metrics_address: arguments.metrics_addr,
            metrics_secure: arguments.metrics_secure,
            certificates: Certificates {
                namespace: arguments.namespace,
                secret: arguments.certificate_secret,
                service: arguments.service,
                managed: arguments.manage_certificate,
            },
        };
        let rules = Admission::new(clients.calls.clone());
        let stop = stop_signal()?;
        tracing::info!(version = env!("CARGO_PKG_VERSION"), "starting the webhook");
        Box::pin(admission::run(clients, options, rules, Host::real(), stop)).await
    })
}
