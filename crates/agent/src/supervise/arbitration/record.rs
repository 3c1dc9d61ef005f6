//! The record of each supervisor, and the decisions that follow from all of them. Pure.
//!
//! Every host has one record, which only its own supervisor writes. A slurmctld that becomes primary takes the next *term*: of
//! two that believe to be primary, the one with the higher term is. No clocks are compared.

use std::cmp::Reverse;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::heartbeat::Heartbeat;
use super::succession::Succession;

/// For a supervisor to notice a request: it polls four times a second. One that does not is dead, and the first host must not
/// wait for it.
pub const NOTICE_TIMEOUT: Duration = Duration::from_secs(5);

/// For a slurmctld to save its state and exit. Slurm itself waits as long for a hand-over.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// For a supervisor that has noticed a request: it kills its slurmctld after [`STOP_TIMEOUT`].
pub const YIELD_TIMEOUT: Duration = Duration::from_secs(40);

/// For the first host to become primary once all others have yielded. A standby does not respond in its first five seconds,
/// and the first host would wait for that response.
pub const START_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// A supervisor runs, or was killed.
    #[serde(rename = "here")]
    pub present: bool,
    /// Its slurmctld became primary, and has neither exited nor become a standby since.
    #[serde(rename = "inCharge")]
    pub primary: bool,
    /// The term of its last takeover.
    pub term: u64,
    /// The number of its last request to the others to yield. 0 is none.
    #[serde(rename = "asks")]
    pub request: u64,
    /// The last request that it has noticed.
    #[serde(rename = "heard")]
    pub noticed: u64,
    /// The last request that it has fulfilled: the slurmctld that ran here then has exited.
    pub yielded: u64,
}

/// Another host, with its record if it ever had one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    pub index: usize,
    pub host: String,
    pub record: Option<Record>,
}

/// All records as they were last read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    pub index: usize,
    pub own: Record,
    /// The takeover that the own term belongs to.
    pub takeover: u64,
    /// Slurm's own heartbeat.
    pub heartbeat: Option<Heartbeat>,
    pub peers: Vec<Peer>,
    pub succession: Succession,
    /// The number of the last overrun: a slurmctld ran on after another one had started, and was killed. What it wrote last may have
    /// replaced the state of the other one.
    pub overrun: Option<u64>,
}

/// How the previous run of the daemon ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PreviousRun {
    pub primary: bool,
    /// It was restarted on request.
    pub restarted: bool,
}

/// Returns whether the others have to yield before a start. Not for a restart on request, which is faster than any takeover,
/// and not after a run that never became primary: a slurmctld that cannot start must not keep the others from serving.
pub fn must_request(own: usize, previous: Option<PreviousRun>) -> bool {
    own == 0 && previous.is_none_or(|previous| previous.primary && !previous.restarted)
}

impl Snapshot {
    /// The record of the first host, if that is another one.
    pub fn first(&self) -> Option<&Record> {
        self.peers.iter().find(|peer| peer.index == 0)?.record.as_ref()
    }

    /// The number of a request that this host has to fulfil.
    pub fn open_request(&self) -> Option<u64> {
        let request = self.first()?.request;
        let is_open = request != 0 && ![self.own.noticed, self.own.yielded].contains(&request);
        is_open.then_some(request)
    }

    /// How much longer to wait for the others to yield; `None` if there is nothing left to wait for.
    pub fn remaining_wait(&self, request: u64, waited: Duration) -> Option<Duration> {
        self.silent(request)
            .map(|(_, limit)| limit.saturating_sub(waited))
            .max()
            .filter(|left| !left.is_zero())
    }

    /// The hosts, and the pod of the same name, that have not yielded, each with the time to wait for it.
    pub fn silent(&self, request: u64) -> impl Iterator<Item = (&str, Duration)> {
        // Only the first host may request.
        let hosts = self.peers.iter().filter(|_| self.index == 0);
        let hosts = hosts.filter_map(move |peer| {
            let record = peer.record.as_ref()?;
            if !record.present || record.yielded == request {
                return None;
            }
            let noticed = record.noticed == request;
            Some((peer.host.as_str(), if noticed { YIELD_TIMEOUT } else { NOTICE_TIMEOUT }))
        });
        hosts.chain(self.succession.predecessor())
    }

    /// Returns whether the first host became primary after this request.
    pub fn is_first_primary_since(&self, request: u64) -> bool {
        self.first()
            .is_some_and(|first| first.request == request && first.primary)
    }

    /// The host that became primary after this one did.
    pub fn successor(&self) -> Option<&str> {
        let own = (self.own.term, Reverse(self.index));
        let is_later = |peer: &&Peer| {
            let record = peer.record.as_ref();
            record.is_some_and(|record| record.primary && (record.term, Reverse(peer.index)) > own)
        };
        let successor = self.peers.iter().find(is_later)?;
        self.own.primary.then_some(successor.host.as_str())
    }

    /// The term of a slurmctld that becomes primary now.
    pub fn next_term(&self) -> u64 {
        let terms = self.peers.iter().filter_map(|peer| Some(peer.record.as_ref()?.term));
        terms.fold(self.own.term, u64::max).saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn primary(term: u64) -> Record {
        Record {
            present: true,
            primary: true,
            term,
            ..Record::default()
        }
    }

    fn present() -> Record {
        Record {
            present: true,
            ..Record::default()
        }
    }

    /// The snapshot of the host at `index`.
    fn seen(index: usize, all: &[Option<Record>]) -> Snapshot {
        let peer = |(index, record): (usize, &Option<Record>)| Peer {
            index,
            host: format!("c-{index}"),
            record: record.clone(),
        };
        Snapshot {
            index,
            own: all[index].clone().unwrap_or_default(),
            takeover: 1,
            heartbeat: None,
            peers: all
                .iter()
                .enumerate()
                .map(peer)
                .filter(|peer| peer.index != index)
                .collect(),
            succession: Succession::default(),
            overrun: None,
        }
    }

    #[test]
    fn the_last_takeover_wins() {
        let all = [Some(primary(4)), Some(primary(5))];
        assert_eq!(seen(0, &all).successor(), Some("c-1"));
        assert_eq!(seen(1, &all).successor(), None);
        assert_eq!(seen(0, &all).next_term(), 6);
    }

    #[test]
    fn of_two_with_the_same_term_the_first_in_order_wins() {
        let all = [Some(primary(5)), Some(primary(5))];
        assert_eq!(seen(0, &all).successor(), None);
        assert_eq!(seen(1, &all).successor(), Some("c-0"));
    }

    #[test]
    fn a_standby_is_not_superseded_and_neither_is_a_primary_whose_successor_has_ended() {
        let past = |term| Record { term, ..present() };
        assert_eq!(
            seen(1, &[Some(primary(7)), Some(past(6))]).successor(),
            None,
            "a standby"
        );
        assert_eq!(seen(0, &[Some(primary(4)), Some(past(5))]).successor(), None);
        assert_eq!(seen(0, &[Some(primary(4)), None]).successor(), None);
        // A killed supervisor leaves its claim behind.
        assert_eq!(seen(0, &[Some(primary(6)), Some(primary(5))]).successor(), None);
    }

    #[test]
    fn only_the_first_host_requests_and_never_after_a_run_that_did_not_become_primary() {
        let previous = |primary, restarted| Some(PreviousRun { primary, restarted });
        assert!(must_request(0, None), "a new pod");
        assert!(
            must_request(0, previous(true, false)),
            "it died or was killed as primary"
        );
        assert!(!must_request(0, previous(true, true)), "a restart");
        assert!(!must_request(0, previous(false, false)), "it dies at every start");
        assert!(!must_request(1, None), "a host that starts as a standby");
    }

    #[test]
    fn a_request_is_fulfilled_once() {
        let first = Record {
            request: 9,
            ..present()
        };
        let open = |own: Record| seen(1, &[Some(first.clone()), Some(own)]).open_request();
        assert_eq!(open(present()), Some(9));
        assert_eq!(
            open(Record {
                noticed: 9,
                ..present()
            }),
            None,
            "under way"
        );
        assert_eq!(
            open(Record {
                yielded: 9,
                ..present()
            }),
            None,
            "done"
        );
        assert_eq!(
            open(Record {
                yielded: 8,
                noticed: 8,
                ..present()
            }),
            Some(9)
        );
        assert_eq!(
            seen(1, &[Some(present()), Some(present())]).open_request(),
            None,
            "there is no request"
        );
        assert_eq!(seen(1, &[None, Some(present())]).open_request(), None);
        let other = [Some(present()), Some(present()), Some(first.clone())];
        assert_eq!(seen(1, &other).open_request(), None, "only the first host may request");
    }

    #[test]
    fn a_request_is_over_when_the_first_host_is_primary() {
        let settled = |first: Option<Record>| seen(1, &[first, Some(present())]).is_first_primary_since(9);
        assert!(settled(Some(Record {
            request: 9,
            ..primary(2)
        })));
        assert!(
            !settled(Some(Record {
                request: 9,
                ..present()
            })),
            "it starts"
        );
        assert!(
            !settled(Some(Record {
                request: 8,
                ..primary(2)
            })),
            "another one"
        );
        assert!(!settled(None));
    }

    #[test]
    fn the_first_host_waits_for_live_supervisors_only() {
        let second = Duration::from_secs(1);
        let wait = |other: Option<Record>, waited| seen(0, &[Some(present()), other]).remaining_wait(9, waited);
        assert_eq!(wait(None, Duration::ZERO), None, "it has no record");
        assert_eq!(wait(Some(Record::default()), Duration::ZERO), None, "it has ended");
        let yielded = Record {
            yielded: 9,
            ..primary(1)
        };
        assert_eq!(wait(Some(yielded), Duration::ZERO), None);
        assert_eq!(
            wait(Some(primary(1)), second),
            Some(NOTICE_TIMEOUT.saturating_sub(second))
        );
        assert_eq!(wait(Some(primary(1)), NOTICE_TIMEOUT), None, "it was killed");
        let noticed = Record {
            noticed: 9,
            ..primary(1)
        };
        assert_eq!(
            wait(Some(noticed.clone()), NOTICE_TIMEOUT),
            Some(YIELD_TIMEOUT.saturating_sub(NOTICE_TIMEOUT))
        );
        assert_eq!(wait(Some(noticed), YIELD_TIMEOUT), None);
    }
}
