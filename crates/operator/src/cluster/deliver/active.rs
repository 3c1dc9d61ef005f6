//! Finds which of several slurmctlds is active: a standby does not respond on `/readyz`, and before 25.11 rejects requests.

use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    time::Duration,
};

use api::{Controller, wellknown::SLURMCTLD_PORT};
use futures::future::join_all;
use host::Host;
use kube::ResourceExt as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::{sleep, timeout},
};

use super::Cluster;
use crate::{
    cluster::{
        external::client_of,
        pods::{address, slurmctld_pods},
        route::jwt_key,
    },
    slurm_release::has_http,
};

/// A failover must end within 15 s of the active slurmctld's end, of which Slurm takes 10.
const INTERVAL: Duration = Duration::from_secs(2);
/// While no slurmctld is active: clients find the new one through this report.
const FAILOVER_INTERVAL: Duration = Duration::from_millis(500);
/// slurmctld responds within a millisecond, if it does.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Polls the slurmctlds of a Controller that has several, and reports when another one is active.
pub(super) async fn follow(cluster: &Cluster) {
    loop {
        let controller = cluster.controller();
        let pause = match controller.filter(|controller| controller.spec.replicas() > 1) {
            Some(controller) => find_active(cluster, &controller).await,
            None => INTERVAL,
        };
        sleep(pause).await;
    }
}

/// Returns when to poll again.
async fn find_active(cluster: &Cluster, controller: &Controller) -> Duration {
    // All at once: a pod that hangs must not delay the others.
    let pods = slurmctld_pods(&cluster.shared.caches, &cluster.key);
    let answers = join_all(pods.iter().map(|pod| async {
        let address = address(pod, SLURMCTLD_PORT)?;
        serves(cluster, controller, address).await.then(|| pod.name_any())
    }));
    match answers.await.into_iter().flatten().next() {
        Some(active) => {
            cluster.update_report(|report| report.active = Some(active));
            INTERVAL
        }
        None => FAILOVER_INTERVAL,
    }
}

/// Whether the slurmctld at this address is active.
async fn serves(cluster: &Cluster, controller: &Controller, address: SocketAddr) -> bool {
    let release = cluster.release();
    if release.is_some() && !has_http(release) {
        return accepts_requests(cluster, controller, address).await;
    }
    match timeout(TIMEOUT, readyz(cluster.host(), address)).await {
        Ok(Ok(status)) => is_success(&status),
        // A slurmctld before 25.11 takes the request for a message of its own protocol, and closes the connection.
        Ok(Err(error)) if is_closed(&error) => accepts_requests(cluster, controller, address).await,
        Ok(Err(_)) | Err(_) => false,
    }
}

async fn readyz(host: &Host, address: SocketAddr) -> io::Result<[u8; 12]> {
    let mut stream = host.connect(address.to_string()).await?;
    stream
        .write_all(b"GET /readyz HTTP/1.1\r\nHost: slurmctld\r\nConnection: close\r\n\r\n")
        .await?;
    let mut status = [0; 12];
    stream.read_exact(&mut status).await?;
    Ok(status)
}

fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset)
}

/// Sends a request of Slurm's own protocol, which a standby rejects.
async fn accepts_requests(cluster: &Cluster, controller: &Controller, address: SocketAddr) -> bool {
    let Ok(key) = jwt_key(&cluster.shared.caches, controller) else {
        return false;
    };
    let Some(client) = client_of(cluster.host(), address.to_string(), &key.0) else {
        return false;
    };
    matches!(timeout(TIMEOUT, client.live_conf()).await, Ok(Ok(_)))
}

fn is_success(status_line: &[u8]) -> bool {
    status_line.starts_with(b"HTTP/1.") && status_line.get(9) == Some(&b'2')
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::{is_closed, is_success};

    #[test]
    fn only_a_connection_that_slurmctld_closed_is_of_an_older_release() {
        assert!(is_closed(&Error::from(ErrorKind::UnexpectedEof)));
        assert!(!is_closed(&Error::from(ErrorKind::ConnectionRefused)));
        assert!(!is_closed(&Error::from(ErrorKind::HostUnreachable)));
    }

    #[test]
    fn only_a_2xx_status_counts_as_active() {
        assert!(is_success(b"HTTP/1.1 200"));
        assert!(is_success(b"HTTP/1.0 204"));
        for line in [&b"HTTP/1.1 503"[..], b"HTTP/1.1 ", b"", b"SSH-2.0-2222"] {
            assert!(!is_success(line));
        }
    }
}
