//! Finds which of several slurmctlds is active: a standby does not respond on `/readyz`.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use api::{Controller, wellknown::SLURMCTLD_PORT};
use futures::future::join_all;
use host::Host;
use kube::ResourceExt as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::{sleep, timeout},
};

use super::Cluster;
use crate::cluster::pods::{address, slurmctld_pods};

/// A failover must end within 15 s of the active slurmctld's end, of which Slurm takes 10.
const INTERVAL: Duration = Duration::from_secs(2);
/// While no slurmctld is active: clients find the new one through this report.
const FAILOVER_INTERVAL: Duration = Duration::from_millis(500);
/// slurmctld responds within a millisecond, if it does.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Polls the slurmctlds of a Controller that has several, and reports when another one is active.
pub(super) async fn follow(cluster: &Cluster) {
    loop {
        let has_several = |controller: Arc<Controller>| controller.spec.replicas() > 1;
        let pause = if cluster.controller().is_some_and(has_several) {
            find_active(cluster).await
        } else {
            INTERVAL
        };
        sleep(pause).await;
    }
}

/// Returns when to poll again.
async fn find_active(cluster: &Cluster) -> Duration {
    // All at once: a pod that hangs must not delay the others.
    let pods = slurmctld_pods(&cluster.shared.caches, &cluster.key);
    let answers = join_all(pods.iter().map(|pod| async {
        let address = address(pod, SLURMCTLD_PORT)?;
        serves(cluster.host(), address).await.then(|| pod.name_any())
    }));
    match answers.await.into_iter().flatten().next() {
        Some(active) => {
            cluster.update_report(|report| report.active = Some(active));
            INTERVAL
        }
        None => FAILOVER_INTERVAL,
    }
}

async fn serves(host: &Host, address: SocketAddr) -> bool {
    let response = timeout(TIMEOUT, async {
        let mut stream = host.connect(address.to_string()).await?;
        stream
            .write_all(b"GET /readyz HTTP/1.1\r\nHost: slurmctld\r\nConnection: close\r\n\r\n")
            .await?;
        let mut status = [0; 12];
        stream.read_exact(&mut status).await?;
        Ok::<_, std::io::Error>(is_success(&status))
    });
    matches!(response.await, Ok(Ok(true)))
}

fn is_success(status_line: &[u8]) -> bool {
    status_line.starts_with(b"HTTP/1.") && status_line.get(9) == Some(&b'2')
}

#[cfg(test)]
mod tests {
    use super::is_success;

    #[test]
    fn only_a_2xx_status_counts_as_active() {
        assert!(is_success(b"HTTP/1.1 200"));
        assert!(is_success(b"HTTP/1.0 204"));
        for line in [&b"HTTP/1.1 503"[..], b"HTTP/1.1 ", b"", b"SSH-2.0-2222"] {
            assert!(!is_success(line));
        }
    }
}
