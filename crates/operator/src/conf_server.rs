//! The server from which daemons without configuration files get their configuration.

use api::{Controller, wellknown};
use kube::ResourceExt as _;

/// The value of `--conf-server`, for slurmd and sackd.
pub(crate) fn conf_server(controller: &Controller) -> String {
    if let Some((host, port)) = controller.spec.external_address() {
        return format!("{host}:{port}");
    }
    let service = controller.spec.service.as_ref();
    let port = service.and_then(|service| service.port).filter(|port| *port > 0);
    format!(
        "{}.{}:{}",
        controller.child_names().service(),
        controller.namespace().unwrap_or_default(),
        port.unwrap_or_else(|| wellknown::SLURMCTLD_PORT.into()),
    )
}
