//! Which of several slurmctld serves. A standby answers nothing on `/readyz`, so the one that does is the active one.

use std::{net::SocketAddr, time::Duration};

use futures::future::join_all;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::watch,
    time::timeout,
};

use super::Reporter;

/// A failover is to be over within 15 s of the active slurmctld's end, of which Slurm takes 10.
const INTERVAL: Duration = Duration::from_secs(2);
/// While nobody serves: clients find who takes over by what is said here.
const IMTIMEOUT: Duration = Duration::from_millis(500);
/// slurmctld answers in a millisecond, if it does.
const TIMEOUT: Duration = Duration::from_secs(1);

/// A pod whose slurmctld may be the active one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) pod: String,
    pub(crate) address: SocketAddr,
}

/// Asks the candidates again and again, and tells when another one serves.
pub(crate) async fn follow(mut candidates: watch::Receiver<Vec<Candidate>>, reporter: Reporter) {
    loop {
        let asked = candidates.borrow_and_update().clone();
        if asked.is_empty() {
            if candidates.changed().await.is_err() {
                return;
            }
            continue;
        }
        // All at once: one that hangs keeps nobody from hearing of another.
        let answers = join_all(asked.iter().map(|candidate| serves(candidate.address))).await;
        let mut serving = asked.into_iter().zip(answers).filter(|(_, serves)| *serves);
        let pause = match serving.next() {
            Some((Candidate { pod, .. }, _)) => {
                reporter.report(|report| report.active = Some(pod));
                INTERVAL
            }
            None => IMTIMEOUT,
        };
        if let Ok(Err(_)) = timeout(pause, candidates.changed()).await {
            return;
        }
    }
}

async fn serves(address: SocketAddr) -> bool {
    let asked = timeout(TIMEOUT, async {
        let mut stream = TcpStream::connect(address).await?;
        stream
            .write_all(b"GET /readyz HTTP/1.1\r\nHost: slurmctld\r\nConnection: close\r\n\r\n")
            .await?;
        let mut status = [0; 12];
        stream.read_exact(&mut status).await?;
        Ok::<_, std::io::Error>(is_success(&status))
    });
    matches!(asked.await, Ok(Ok(true)))
}

fn is_success(status_line: &[u8]) -> bool {
    status_line.starts_with(b"HTTP/1.") && status_line.get(9) == Some(&b'2')
}

#[cfg(test)]
mod tests {
    use super::is_success;

    #[test]
    fn only_an_answer_of_success_is_one() {
        assert!(is_success(b"HTTP/1.1 200"));
        assert!(is_success(b"HTTP/1.0 204"));
        for line in [&b"HTTP/1.1 503"[..], b"HTTP/1.1 ", b"", b"SSH-2.0-2222"] {
            assert!(!is_success(line));
        }
    }
}
