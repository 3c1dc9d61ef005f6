//! Finds which of several slurmctlds is active: a standby does not respond on `/readyz`.

use std::{net::SocketAddr, time::Duration};

use futures::future::join_all;
use host::Host;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};

use super::Cluster;

/// A failover must end within 15 s of the active slurmctld's end, of which Slurm takes 10.
const INTERVAL: Duration = Duration::from_secs(2);
/// While no slurmctld is active: clients find the new one through this report.
const FAILOVER_INTERVAL: Duration = Duration::from_millis(500);
/// slurmctld responds within a millisecond, if it does.
const TIMEOUT: Duration = Duration::from_secs(1);

/// A pod whose slurmctld may be the active one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlurmctldPod {
    pub(crate) pod: String,
    pub(crate) address: SocketAddr,
}

/// Polls the candidates, and reports when another one is active.
pub(super) async fn follow(cluster: &Cluster) {
    let mut candidates = cluster.delivery.candidates.subscribe();
    loop {
        let polled = candidates.borrow_and_update().clone();
        if polled.is_empty() {
            drop(candidates.changed().await);
            continue;
        }
        // All at once: a candidate that hangs must not delay the others.
        let answers = join_all(polled.iter().map(|candidate| serves(cluster.host(), candidate.address))).await;
        let mut serving = polled.into_iter().zip(answers).filter(|(_, serves)| *serves);
        let pause = match serving.next() {
            Some((SlurmctldPod { pod, .. }, _)) => {
                cluster.update_report(|report| report.active = Some(pod));
                INTERVAL
            }
            None => FAILOVER_INTERVAL,
        };
        drop(timeout(pause, candidates.changed()).await);
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
