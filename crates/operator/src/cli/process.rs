//! The async runtime and the clients of commands that use the API server.

use anyhow::Context as _;

use super::LogLevel;
use crate::runtime::Clients;

/// Runs a command with logs at this level.
pub(super) fn block_on(log_level: &LogLevel, work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    crate::logs::start(&log_level.0);
    rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("a TLS provider is installed already"))?;
    let runtime = tokio::runtime::Runtime::new().context("cannot start the async runtime")?;
    let result = runtime.block_on(work);
    // A task that has not ended by now hangs, and a process without its lease must not wait for it.
    runtime.shutdown_background();
    result
}

/// Clients of the API server of this pod or of the kubeconfig.
pub(super) async fn clients() -> anyhow::Result<Clients> {
    let config = kube::Config::infer()
        .await
        .context("no API server: neither in a pod nor with a kubeconfig")?;
    Clients::new(config).context("cannot make a client for the API server")
}
