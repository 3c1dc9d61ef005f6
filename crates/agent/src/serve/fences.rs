//! Who may still command. See [`Fence`].

use std::collections::BTreeMap;

use slurm::ReservationName;
use slurm::agent::{Fence, NodeName};

/// What a command is about. Commands on different subjects may overtake each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject<'a> {
    /// Nothing yet: a new leader makes itself known.
    Leadership,
    Configuration,
    Node(&'a NodeName),
    /// A job is commanded once and for all, so that only the leader's term counts.
    Job,
    /// Likewise: it is only brought back to what the live files say.
    Partition,
    Reservation(&'a ReservationName),
}

#[derive(Debug)]
pub(super) struct Fences {
    term: u64,
    configuration: u64,
    nodes: BTreeMap<NodeName, u64>,
    reservations: BTreeMap<ReservationName, u64>,
    /// The highest sequence of any subject, for people and for the leader's next number.
    highest: u64,
}

/// A command that comes too late, and what it comes too late after.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stale(pub(super) Fence);

impl Fences {
    /// Since a term that was heard by an agent before this one. What its leader said within it is forgotten; its tokens
    /// last a minute, and an old revision is refused by its number.
    pub(super) fn since(term: u64) -> Self {
        Self {
            term,
            configuration: 0,
            nodes: BTreeMap::new(),
            reservations: BTreeMap::new(),
            highest: 0,
        }
    }

    pub(super) fn highest(&self) -> Fence {
        Fence {
            term: self.term,
            sequence: self.highest,
        }
    }

    /// Whether its term has to be saved before it may be admitted.
    pub(super) fn is_new(&self, fence: Fence) -> bool {
        fence.term > self.term
    }

    /// From here on older terms are stale.
    pub(super) fn raise(&mut self, term: u64) {
        if term > self.term {
            *self = Self::since(term);
        }
    }

    pub(super) fn admit(&mut self, fence: Fence, subject: Subject<'_>) -> Result<(), Stale> {
        self.check(fence, subject)?;
        self.raise(fence.term);
        match subject {
            Subject::Leadership | Subject::Job | Subject::Partition => {}
            Subject::Configuration => self.configuration = fence.sequence,
            Subject::Reservation(name) => {
                self.reservations.insert(name.clone(), fence.sequence);
            }
            Subject::Node(name) => {
                self.nodes.insert(name.clone(), fence.sequence);
            }
        }
        self.highest = self.highest.max(fence.sequence);
        Ok(())
    }

    /// Whether it would be admitted, or, after it was, has not been overtaken since.
    pub(super) fn check(&self, fence: Fence, subject: Subject<'_>) -> Result<(), Stale> {
        let floor = match subject {
            _ if self.is_new(fence) => return Ok(()),
            Subject::Leadership | Subject::Job | Subject::Partition => 0,
            Subject::Reservation(name) => self.reservations.get(name).copied().unwrap_or(0),
            Subject::Configuration => self.configuration,
            Subject::Node(name) => self.nodes.get(name).copied().unwrap_or(0),
        };
        if fence.term < self.term || fence.sequence < floor {
            return Err(Stale(self.highest()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fence(term: u64, sequence: u64) -> Fence {
        Fence { term, sequence }
    }

    fn node(name: &str) -> NodeName {
        NodeName::new(name).unwrap()
    }

    #[test]
    fn a_leader_that_was_replaced_is_refused_on_every_subject() {
        let mut fences = Fences::since(0);
        let n1 = node("n1");
        fences.admit(fence(3, 100), Subject::Configuration).unwrap();
        assert!(fences.is_new(fence(4, 1)));
        fences.admit(fence(4, 1), Subject::Leadership).unwrap();
        for subject in [Subject::Leadership, Subject::Configuration, Subject::Node(&n1)] {
            assert_eq!(fences.admit(fence(3, 101), subject), Err(Stale(fence(4, 1))));
        }
        assert!(!fences.is_new(fence(4, 2)));
        fences.admit(fence(4, 2), Subject::Node(&n1)).unwrap();
    }

    #[test]
    fn a_command_that_was_overtaken_is_refused_and_one_sent_twice_is_not() {
        let mut fences = Fences::since(0);
        fences.admit(fence(1, 5), Subject::Configuration).unwrap();
        assert_eq!(
            fences.admit(fence(1, 4), Subject::Configuration),
            Err(Stale(fence(1, 5)))
        );
        fences.admit(fence(1, 5), Subject::Configuration).unwrap();
        fences.admit(fence(1, 6), Subject::Configuration).unwrap();
    }

    #[test]
    fn commands_on_different_subjects_may_overtake_each_other() {
        let mut fences = Fences::since(0);
        let (n1, n2) = (node("n1"), node("n2"));
        fences.admit(fence(1, 9), Subject::Node(&n1)).unwrap();
        fences.admit(fence(1, 8), Subject::Node(&n2)).unwrap();
        fences.admit(fence(1, 7), Subject::Configuration).unwrap();
        fences.admit(fence(1, 8), Subject::Node(&n1)).unwrap_err();
        assert_eq!(fences.highest(), fence(1, 9));
    }

    #[test]
    fn an_admitted_command_can_be_overtaken_while_it_waits() {
        let mut fences = Fences::since(0);
        fences.admit(fence(1, 5), Subject::Configuration).unwrap();
        fences.check(fence(1, 5), Subject::Configuration).unwrap();
        fences.admit(fence(2, 0), Subject::Leadership).unwrap();
        fences.check(fence(1, 5), Subject::Configuration).unwrap_err();
    }

    #[test]
    fn a_term_of_before_this_process_counts() {
        let mut fences = Fences::since(7);
        fences.admit(fence(6, 100), Subject::Configuration).unwrap_err();
        fences.admit(fence(7, 1), Subject::Configuration).unwrap();
    }
}
