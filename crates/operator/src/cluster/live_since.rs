//! Since when slurmctld runs with its last revisions. An earlier response of Slurm may describe an earlier revision.
//!
//! A decision based on Slurm's response must stay the same until the revision it led to is accepted; otherwise it would
//! be reverted halfway. It is therefore based on the revision that is accepted at the time, according to Kubernetes or
//! because slurmctld runs with it ([`super::sent_revisions`]), and not on the newest one.

use jiff::Timestamp;
use slurm::revision::Digest;

use super::deliver::Report;

/// More revisions than can be live before the first of them is accepted.
const REMEMBERED: usize = 4;

/// The last revisions slurmctld ran with, each with the time since when that is known, newest last.
pub(crate) type Lives = Vec<(Digest, Timestamp)>;

#[derive(Debug, Default)]
pub(crate) struct LiveSince(Lives);

impl LiveSince {
    /// Records the live revision, unless a delivery is in progress.
    pub(crate) fn note(&mut self, report: &Report, now: Timestamp) -> Lives {
        let Self(lives) = self;
        if let Some(live) = report.live_at_rest()
            && lives.last().is_none_or(|(digest, _)| *digest != live.digest)
        {
            lives.retain(|(digest, _)| *digest != live.digest);
            lives.push((live.digest, now));
            let surplus = lives.len().saturating_sub(REMEMBERED);
            lives.drain(..surplus);
        }
        lives.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::deliver::{LiveRevision, State};

    #[test]
    fn a_revision_is_live_since_its_last_report_and_earlier_ones_are_remembered() {
        let mut since = LiveSince::default();
        let at = |second| Timestamp::from_second(second).unwrap();
        let of = |files: &str| Digest::of(files.as_bytes());
        let report = |files: &str, state: State| Report {
            live: Some(LiveRevision {
                sequence: 1,
                digest: of(files),
            }),
            state,
            ..Report::default()
        };
        assert_eq!(since.note(&report("a", State::Busy), at(1)), []);
        assert_eq!(since.note(&report("a", State::Done), at(2)), [(of("a"), at(2))]);
        assert_eq!(since.note(&report("a", State::Done), at(3)), [(of("a"), at(2))]);
        let both = [(of("a"), at(2)), (of("b"), at(4))];
        assert_eq!(since.note(&report("b", State::Done), at(4)), both);
        assert_eq!(since.note(&report("a", State::Busy), at(5)), both);
        assert_eq!(
            since.note(&report("a", State::Done), at(6)),
            [(of("b"), at(4)), (of("a"), at(6))]
        );
    }
}
