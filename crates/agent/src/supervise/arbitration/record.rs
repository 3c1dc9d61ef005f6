//! What the supervisor of each slurmctld says to the others, and what follows from it. Pure.
//!
//! Every host has one record, which only its own supervisor writes. Whoever takes charge takes the next *term*: of two that
//! believe to be in charge, the one with the higher term is. No clocks are compared.

use std::cmp::Reverse;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::heartbeat::Heartbeat;

/// For a supervisor to notice that it is asked: it looks four times a second. One that does not is dead, and the first must
/// not wait for the dead.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// For a slurmctld to end once it was told to; it writes all its state then. Slurm itself waits as long for a hand-over.
pub const LONGEST_END: Duration = Duration::from_secs(30);

/// For a supervisor that has noticed: its slurmctld is killed after [`LONGEST_END`].
pub const LONGEST_YIELD: Duration = Duration::from_secs(40);

/// For the first to take charge when all others have stood back. A standby does not answer in its first five seconds, and the
/// first would wait for that answer; one that does not come is replaced no later for these.
pub const LONGEST_START: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Record {
    /// There is a supervisor. One that was killed could not take it back.
    pub here: bool,
    /// Its slurmctld said that it is in charge, and has not ended or stood back since.
    pub in_charge: bool,
    /// The last one it had.
    pub term: u64,
    /// The number of its last question to the others to stand back. 0 is none.
    pub asks: u64,
    /// The last such question that it has noticed, and the last it has followed: no slurmctld that ran here then does now.
    pub heard: u64,
    pub yielded: u64,
}

/// The record of one of the others, `None` if it never was there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Other {
    pub index: usize,
    pub host: String,
    pub record: Option<Record>,
}

/// All records, as they were last read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub index: usize,
    pub own: Record,
    /// Which taking of charge the own term is of.
    pub charge: u64,
    /// Slurm's own.
    pub heartbeat: Option<Heartbeat>,
    pub others: Vec<Other>,
}

/// How the last life of the daemon ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastLife {
    pub in_charge: bool,
    /// It was told to end, to begin anew.
    pub wanted: bool,
}

/// Whether the others have to stand back before the next life begins. Only the first in Slurm's order takes charge by starting.
///
/// Not after a restart that was wanted: nobody takes over that fast. Not after a life that never came to be in charge: one
/// that cannot start must not keep the others from serving.
pub fn must_ask(own: usize, last: Option<LastLife>) -> bool {
    own == 0 && last.is_none_or(|last| last.in_charge && !last.wanted)
}

impl Seen {
    /// The number of a question that has to be followed.
    pub fn asked(&self) -> Option<u64> {
        let first = self.others.iter().find(|other| other.index == 0)?.record.as_ref()?;
        let open = first.asks != 0 && ![self.own.heard, self.own.yielded].contains(&first.asks);
        open.then_some(first.asks)
    }

    /// How much longer to wait for those that were asked. `None` when there is nobody left to wait for.
    pub fn wait(&self, question: u64, waited: Duration) -> Option<Duration> {
        self.silent(question)
            .map(|(_, limit)| limit.saturating_sub(waited))
            .max()
            .filter(|left| !left.is_zero())
    }

    /// Those that were asked and have not followed.
    pub fn silent(&self, question: u64) -> impl Iterator<Item = (&str, Duration)> {
        self.others.iter().filter_map(move |other| {
            let record = other.record.as_ref()?;
            if !record.here || record.yielded == question {
                return None;
            }
            let limit = if record.heard == question {
                LONGEST_YIELD
            } else {
                PATIENCE
            };
            Some((other.host.as_str(), limit))
        })
    }

    /// Whether the first has taken charge since it asked this.
    pub fn is_settled(&self, question: u64) -> bool {
        let first = self.others.iter().find(|other| other.index == 0);
        first
            .and_then(|first| first.record.as_ref())
            .is_some_and(|first| first.asks == question && first.in_charge)
    }

    /// Who took charge after this one did.
    pub fn successor(&self) -> Option<&str> {
        let own = (self.own.term, Reverse(self.index));
        let is_later = |other: &&Other| {
            other
                .record
                .as_ref()
                .is_some_and(|record| record.in_charge && (record.term, Reverse(other.index)) > own)
        };
        let successor = self.others.iter().find(is_later)?;
        self.own.in_charge.then_some(successor.host.as_str())
    }

    /// The term of who takes charge now.
    pub fn next_term(&self) -> u64 {
        let others = self.others.iter().filter_map(|other| Some(other.record.as_ref()?.term));
        others.fold(self.own.term, u64::max).saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn charge(term: u64) -> Record {
        Record {
            here: true,
            in_charge: true,
            term,
            ..Record::default()
        }
    }

    fn here() -> Record {
        Record {
            here: true,
            ..Record::default()
        }
    }

    /// What the one at `index` of all sees.
    fn seen(index: usize, all: &[Option<Record>]) -> Seen {
        let other = |(index, record): (usize, &Option<Record>)| Other {
            index,
            host: format!("c-{index}"),
            record: record.clone(),
        };
        Seen {
            index,
            own: all[index].clone().unwrap_or_default(),
            charge: 1,
            heartbeat: None,
            others: all
                .iter()
                .enumerate()
                .map(other)
                .filter(|other| other.index != index)
                .collect(),
        }
    }

    #[test]
    fn the_one_that_took_charge_last_is_in_charge() {
        let all = [Some(charge(4)), Some(charge(5))];
        assert_eq!(seen(0, &all).successor(), Some("c-1"));
        assert_eq!(seen(1, &all).successor(), None);
        assert_eq!(seen(0, &all).next_term(), 6);
    }

    #[test]
    fn of_two_that_took_the_same_term_the_first_in_order_stays() {
        let all = [Some(charge(5)), Some(charge(5))];
        assert_eq!(seen(0, &all).successor(), None);
        assert_eq!(seen(1, &all).successor(), Some("c-0"));
    }

    #[test]
    fn neither_a_standby_nor_one_whose_successor_has_ended_is_superseded() {
        let past = |term| Record { term, ..here() };
        assert_eq!(
            seen(1, &[Some(charge(7)), Some(past(6))]).successor(),
            None,
            "a standby"
        );
        assert_eq!(seen(0, &[Some(charge(4)), Some(past(5))]).successor(), None);
        assert_eq!(seen(0, &[Some(charge(4)), None]).successor(), None);
        // Whoever was killed left its claim behind.
        assert_eq!(seen(0, &[Some(charge(6)), Some(charge(5))]).successor(), None);
    }

    #[test]
    fn only_the_first_asks_and_never_for_a_life_that_would_not_begin() {
        let life = |in_charge, wanted| Some(LastLife { in_charge, wanted });
        assert!(must_ask(0, None), "a new pod");
        assert!(must_ask(0, life(true, false)), "it died or was killed in charge");
        assert!(!must_ask(0, life(true, true)), "a restart");
        assert!(!must_ask(0, life(false, false)), "it dies at every start");
        assert!(!must_ask(1, None), "a standby takes charge of nothing by starting");
    }

    #[test]
    fn a_question_is_followed_once() {
        let first = Record { asks: 9, ..here() };
        let asked = |own: Record| seen(1, &[Some(first.clone()), Some(own)]).asked();
        assert_eq!(asked(here()), Some(9));
        assert_eq!(asked(Record { heard: 9, ..here() }), None, "under way");
        assert_eq!(asked(Record { yielded: 9, ..here() }), None, "done");
        assert_eq!(
            asked(Record {
                yielded: 8,
                heard: 8,
                ..here()
            }),
            Some(9)
        );
        assert_eq!(seen(1, &[Some(here()), Some(here())]).asked(), None, "there is none");
        assert_eq!(seen(1, &[None, Some(here())]).asked(), None);
        let other = [Some(here()), Some(here()), Some(first.clone())];
        assert_eq!(seen(1, &other).asked(), None, "only the first may ask");
    }

    #[test]
    fn a_question_is_settled_when_the_first_has_taken_charge() {
        let settled = |first: Option<Record>| seen(1, &[first, Some(here())]).is_settled(9);
        assert!(settled(Some(Record { asks: 9, ..charge(2) })));
        assert!(!settled(Some(Record { asks: 9, ..here() })), "it starts");
        assert!(!settled(Some(Record { asks: 8, ..charge(2) })), "another one");
        assert!(!settled(None));
    }

    #[test]
    fn the_first_waits_for_the_living_and_not_for_the_dead() {
        let second = Duration::from_secs(1);
        let wait = |other: Option<Record>, waited| seen(0, &[Some(here()), other]).wait(9, waited);
        assert_eq!(wait(None, Duration::ZERO), None, "it never was there");
        assert_eq!(wait(Some(Record::default()), Duration::ZERO), None, "it has ended");
        let yielded = Record {
            yielded: 9,
            ..charge(1)
        };
        assert_eq!(wait(Some(yielded), Duration::ZERO), None);
        assert_eq!(wait(Some(charge(1)), second), Some(PATIENCE.saturating_sub(second)));
        assert_eq!(wait(Some(charge(1)), PATIENCE), None, "it was killed");
        let heard = Record { heard: 9, ..charge(1) };
        assert_eq!(
            wait(Some(heard.clone()), PATIENCE),
            Some(LONGEST_YIELD.saturating_sub(PATIENCE))
        );
        assert_eq!(wait(Some(heard), LONGEST_YIELD), None);
    }
}
