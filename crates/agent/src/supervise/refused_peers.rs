//! The peers that sign with another `slurm.key` than the daemon's, according to the daemon's log. No system calls.
//!
//! Every daemon of the cluster sends messages to slurmctld, so its log names all whose key differs. With auth/slurm it writes two
//! lines for each (24.11 to 26.05):
//!
//! ```text
//! error: decode_jwt: jwt_decode (with key) failure: Invalid argument
//! error: slurm_unpack_received_msg: [10.244.1.5:54321] auth_g_verify: REQUEST_CONFIG has authentication error: …
//! ```
//! The first line stands for a wrong signature, and not for a token that has expired or is an auth/jwt one. The second names the
//! peer, after a name lookup, and its message.

use std::collections::BTreeMap;
use std::time::Duration;

use slurm::agent::{KeyDigest, RefusedPeer};
use tokio::time::Instant;

const SIGNATURE: [&str; 2] = ["decode_jwt: jwt_decode (with key", "decode_jwt: could not find kid="];
const PEER_END: &str = "] auth_g_verify: ";
const REFUSED: &str = " has authentication error";

/// Between the two lines is a DNS lookup, which times out after ten seconds by default.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(15);
/// In seconds. slurmctld pings a node that does not respond every 100 s, and a kubelet restarts a crashing container every
/// 5 min.
const RETENTION: u64 = 600;
/// More than a person reads; the response to the operator stays small.
const MAX_PEERS: usize = 500;

#[derive(Debug, Default)]
pub struct RefusedPeers {
    /// The daemon's own key.
    key: Option<KeyDigest>,
    bad_signature: Option<Instant>,
    /// When each was last refused, in seconds since 1970.
    hosts: BTreeMap<String, u64>,
}

impl RefusedPeers {
    /// Takes the key that the daemon has read. A new key refuses other peers.
    pub fn set_key(&mut self, key: Option<KeyDigest>) {
        if self.key != key {
            self.key = key;
            self.hosts.clear();
        }
    }

    /// Takes a line of the daemon's log. `unix` is the time in seconds since 1970.
    pub fn observe(&mut self, line: &str, now: Instant, unix: u64) {
        if SIGNATURE.iter().any(|words| line.contains(words)) {
            self.bad_signature = Some(now);
            return;
        }
        let recent = |at: Instant| now.saturating_duration_since(at) < LOOKUP_TIMEOUT;
        if !self.bad_signature.is_some_and(recent) {
            return;
        }
        let Some(host) = refused_host(line) else { return };
        self.hosts.retain(|_, last| unix.saturating_sub(*last) < RETENTION);
        if self.hosts.len() < MAX_PEERS || self.hosts.contains_key(host) {
            self.hosts.insert(host.to_owned(), unix);
        }
    }

    pub fn key(&self) -> Option<KeyDigest> {
        self.key.clone()
    }

    pub fn list(&self, unix: u64) -> Vec<RefusedPeer> {
        let recent = self
            .hosts
            .iter()
            .filter(|(_, last)| unix.saturating_sub(**last) < RETENTION);
        recent
            .map(|(host, last)| RefusedPeer {
                host: host.clone(),
                last: *last,
            })
            .collect()
    }
}

/// The host in a line that reports a refusal: `[HOST:PORT]`, or `[[HOST]:PORT]` up to 25.11 and for IPv6.
fn refused_host(line: &str) -> Option<&str> {
    let (before, after) = line.split_once(PEER_END)?;
    if !after.contains(REFUSED) {
        return None;
    }
    let (_, peer) = before.split_once(": [")?;
    let (host, _port) = peer.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    (!host.is_empty()).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRONG_SIGNATURE: &str =
        "[2026-11-16T12:00:00.000] error: decode_jwt: jwt_decode (with key) failure: Invalid argument";
    const EXPIRED: &str = "[2026-11-16T12:00:00.000] error: decode_jwt: token expired at 1763294400";

    fn refusal(peer: &str) -> String {
        format!(
            "[2026-11-16T12:00:00.010] error: slurm_unpack_received_msg: [{peer}] auth_g_verify: REQUEST_CONFIG has authentication error: Unspecified error"
        )
    }

    fn hosts(peers: &RefusedPeers, unix: u64) -> Vec<String> {
        peers.list(unix).into_iter().map(|peer| peer.host).collect()
    }

    #[test]
    fn a_peer_that_signs_with_another_key_is_reported() {
        for (peer, host) in [
            ("10.244.1.5:54321", "10.244.1.5"),
            ("[10.244.1.5]:54321", "10.244.1.5"),
            ("[fd00::5]:54321", "fd00::5"),
            (
                "w-0.slurm-workers.hpc.svc.cluster.local:6818",
                "w-0.slurm-workers.hpc.svc.cluster.local",
            ),
        ] {
            let mut peers = RefusedPeers::default();
            let now = Instant::now();
            peers.observe(WRONG_SIGNATURE, now, 1000);
            peers.observe(&refusal(peer), now, 1000);
            assert_eq!(hosts(&peers, 1000), [host], "{peer}");
        }
    }

    #[test]
    fn an_expired_token_or_a_user_token_is_not_another_key() {
        let mut peers = RefusedPeers::default();
        let now = Instant::now();
        peers.observe(EXPIRED, now, 1000);
        peers.observe(&refusal("10.244.1.5:54321"), now, 1000);
        assert_eq!(hosts(&peers, 1000), Vec::<String>::new());
        peers.observe(WRONG_SIGNATURE, now, 1000);
        peers.observe(&refusal("10.244.1.6:54321"), now + LOOKUP_TIMEOUT, 1015);
        assert_eq!(hosts(&peers, 1015), Vec::<String>::new(), "too late to belong to it");
        peers.observe("error: slurm_receive_msg: [10.244.1.7:1] nothing", now, 1000);
        peers.observe("error: x] auth_g_verify: y has authentication error", now, 1000);
        assert_eq!(hosts(&peers, 1000), Vec::<String>::new(), "not such a line");
    }

    #[test]
    fn a_peer_is_dropped_after_a_while_and_with_another_key() {
        let mut peers = RefusedPeers::default();
        let now = Instant::now();
        let key = |bytes: &[u8]| Some(KeyDigest::of(bytes));
        peers.set_key(key(b"one"));
        peers.observe(WRONG_SIGNATURE, now, 1000);
        peers.observe(&refusal("10.244.1.5:54321"), now, 1000);
        peers.set_key(key(b"one"));
        assert_eq!(hosts(&peers, 1000 + RETENTION - 1), ["10.244.1.5"]);
        assert_eq!(hosts(&peers, 1000 + RETENTION), Vec::<String>::new());
        peers.set_key(key(b"other"));
        assert_eq!(hosts(&peers, 1000), Vec::<String>::new());
    }

    #[test]
    fn the_number_of_peers_is_limited() {
        let mut peers = RefusedPeers::default();
        let now = Instant::now();
        peers.observe(WRONG_SIGNATURE, now, 1000);
        for number in 0..2 * MAX_PEERS {
            peers.observe(&refusal(&format!("w-{number}:6818")), now, 1000);
        }
        assert_eq!(hosts(&peers, 1000).len(), MAX_PEERS);
    }
}
