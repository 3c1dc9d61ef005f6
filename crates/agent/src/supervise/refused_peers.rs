//! Who signs with another `slurm.key` than the daemon has, by the daemon's own log. No system calls.
//!
//! slurmctld hears from every daemon of the cluster, so its log names all whose key differs. With auth/slurm it writes two lines
//! for each (24.11 to 26.05):
//!
//! ```text
//! error: decode_jwt: jwt_decode (with key) failure: Invalid argument
//! error: slurm_unpack_received_msg: [10.244.1.5:54321] auth_g_verify: REQUEST_CONFIG has authentication error: …
//! ```
//! The first is there for a wrong signature, and not for a token that has expired or is an auth/jwt one. The second names the
//! peer, whose name it looks up before, and what it sent or answered.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use slurm::agent::{KeyDigest, RefusedPeer};

const SIGNATURE: [&str; 2] = ["decode_jwt: jwt_decode (with key", "decode_jwt: could not find kid="];
const PEER_END: &str = "] auth_g_verify: ";
const REFUSED: &str = " has authentication error";

/// Between the two lines is a lookup in DNS, which gives up after ten seconds by default.
const LOOKUP: Duration = Duration::from_secs(15);
/// One that has not been heard of for so long is forgotten. slurmctld asks a node that does not respond every 100 s, and a
/// kubelet starts a container that keeps ending every 5 min.
const FORGOTTEN: u64 = 600;
/// More than a person reads; the answer to the operator stays small.
const MOST: usize = 500;

#[derive(Debug, Default)]
pub struct RefusedPeers {
    /// The daemon's own key.
    key: Option<KeyDigest>,
    bad_signature: Option<Instant>,
    /// When each was refused last, in seconds since 1970.
    hosts: BTreeMap<String, u64>,
}

impl RefusedPeers {
    /// The daemon has read its key. With another one than before, others are refused.
    pub fn has_read(&mut self, key: Option<KeyDigest>) {
        if self.key != key {
            self.key = key;
            self.hosts.clear();
        }
    }

    /// The daemon wrote a line to its log. `unix` is the time in seconds since 1970.
    pub fn hear(&mut self, line: &str, now: Instant, unix: u64) {
        if SIGNATURE.iter().any(|words| line.contains(words)) {
            self.bad_signature = Some(now);
            return;
        }
        let recent = |at: Instant| now.saturating_duration_since(at) < LOOKUP;
        if !self.bad_signature.is_some_and(recent) {
            return;
        }
        let Some(host) = refused_host(line) else { return };
        self.hosts.retain(|_, last| unix.saturating_sub(*last) < FORGOTTEN);
        if self.hosts.len() < MOST || self.hosts.contains_key(host) {
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
            .filter(|(_, last)| unix.saturating_sub(**last) < FORGOTTEN);
        recent
            .map(|(host, last)| RefusedPeer {
                host: host.clone(),
                last: *last,
            })
            .collect()
    }
}

/// The host in a line that tells of a refusal: `[HOST:PORT]`, or `[[HOST]:PORT]` up to 25.11 and for IPv6.
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

    const SIGNED_OTHERWISE: &str =
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
    fn a_peer_that_signs_with_another_key_is_named() {
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
            peers.hear(SIGNED_OTHERWISE, now, 1000);
            peers.hear(&refusal(peer), now, 1000);
            assert_eq!(hosts(&peers, 1000), [host], "{peer}");
        }
    }

    #[test]
    fn an_expired_token_or_a_users_own_is_no_other_key() {
        let mut peers = RefusedPeers::default();
        let now = Instant::now();
        peers.hear(EXPIRED, now, 1000);
        peers.hear(&refusal("10.244.1.5:54321"), now, 1000);
        assert_eq!(hosts(&peers, 1000), Vec::<String>::new());
        peers.hear(SIGNED_OTHERWISE, now, 1000);
        peers.hear(&refusal("10.244.1.6:54321"), now + LOOKUP, 1015);
        assert_eq!(hosts(&peers, 1015), Vec::<String>::new(), "too late to belong to it");
        peers.hear("error: slurm_receive_msg: [10.244.1.7:1] nothing", now, 1000);
        peers.hear("error: x] auth_g_verify: y has authentication error", now, 1000);
        assert_eq!(hosts(&peers, 1000), Vec::<String>::new(), "no such line");
    }

    #[test]
    fn a_peer_is_forgotten_after_a_while_and_with_another_key() {
        let mut peers = RefusedPeers::default();
        let now = Instant::now();
        let key = |bytes: &[u8]| Some(KeyDigest::of(bytes));
        peers.has_read(key(b"one"));
        peers.hear(SIGNED_OTHERWISE, now, 1000);
        peers.hear(&refusal("10.244.1.5:54321"), now, 1000);
        peers.has_read(key(b"one"));
        assert_eq!(hosts(&peers, 1000 + FORGOTTEN - 1), ["10.244.1.5"]);
        assert_eq!(hosts(&peers, 1000 + FORGOTTEN), Vec::<String>::new());
        peers.has_read(key(b"other"));
        assert_eq!(hosts(&peers, 1000), Vec::<String>::new());
    }

    #[test]
    fn not_all_of_a_large_cluster_are_kept() {
        let mut peers = RefusedPeers::default();
        let now = Instant::now();
        peers.hear(SIGNED_OTHERWISE, now, 1000);
        for number in 0..2 * MOST {
            peers.hear(&refusal(&format!("w-{number}:6818")), now, 1000);
        }
        assert_eq!(hosts(&peers, 1000).len(), MOST);
    }
}
