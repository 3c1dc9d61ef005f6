//! Decides which commands are stale. See [`Fence`].

use std::collections::BTreeMap;

use slurm::ReservationName;
use slurm::agent::{Fence, NodeName};

/// The subject of a command. Commands on different subjects may overtake each other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    /// A new leader announces itself.
    Leadership,
    Configuration,
    Node(NodeName),
    /// A command to a job is final, so that only the leader's term counts. Each is carried out once (`answers.rs`).
    Job,
    /// A partition is only restored to the live files, so that only the leader's term counts. As for jobs.
    Partition,
    Reservation(ReservationName),
}

#[derive(Debug)]
pub(super) struct Fences {
    term: u64,
    /// The last sequence of each subject whose commands are ordered.
    sequences: BTreeMap<Subject, u64>,
    /// The highest sequence of any subject, for the status and for the leader's next number.
    highest: u64,
}

/// The command is stale: this fence is in force.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stale(pub(super) Fence);

impl Fences {
    /// Starts at a term that an earlier agent saved. The sequences within it are not known; its tokens expire after a minute,
    /// and an old revision is rejected by its number.
    pub(super) fn since(term: u64) -> Self {
        Self {
            term,
            sequences: BTreeMap::new(),
            highest: 0,
        }
    }

    pub(super) fn highest(&self) -> Fence {
        Fence {
            term: self.term,
            sequence: self.highest,
        }
    }

    /// Returns whether the term has to be saved before the command is accepted.
    pub(super) fn is_new(&self, fence: Fence) -> bool {
        fence.term > self.term
    }

    /// Makes older terms stale.
    pub(super) fn raise(&mut self, term: u64) {
        if term > self.term {
            *self = Self::since(term);
        }
    }

    pub(super) fn admit(&mut self, fence: Fence, subject: &Subject) -> Result<(), Stale> {
        self.check(fence, subject)?;
        self.raise(fence.term);
        if !matches!(subject, Subject::Leadership | Subject::Job | Subject::Partition) {
            self.sequences.insert(subject.clone(), fence.sequence);
        }
        self.highest = self.highest.max(fence.sequence);
        Ok(())
    }

    /// Returns whether the command would be accepted or, after it was, has not become stale since.
    pub(super) fn check(&self, fence: Fence, subject: &Subject) -> Result<(), Stale> {
        let last = self.sequences.get(subject).copied().unwrap_or(0);
        let is_stale = fence.term < self.term || fence.sequence < last;
        if is_stale && !self.is_new(fence) {
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
    fn a_replaced_leader_is_rejected_on_every_subject() {
        let mut fences = Fences::since(0);
        let n1 = node("n1");
        fences.admit(fence(3, 100), &Subject::Configuration).unwrap();
        assert!(fences.is_new(fence(4, 1)));
        fences.admit(fence(4, 1), &Subject::Leadership).unwrap();
        for subject in [
            &Subject::Leadership,
            &Subject::Configuration,
            &Subject::Node(n1.clone()),
        ] {
            assert_eq!(fences.admit(fence(3, 101), subject), Err(Stale(fence(4, 1))));
        }
        assert!(!fences.is_new(fence(4, 2)));
        fences.admit(fence(4, 2), &Subject::Node(n1.clone())).unwrap();
    }

    #[test]
    fn an_overtaken_command_is_rejected_and_a_repeated_one_is_not() {
        let mut fences = Fences::since(0);
        fences.admit(fence(1, 5), &Subject::Configuration).unwrap();
        assert_eq!(
            fences.admit(fence(1, 4), &Subject::Configuration),
            Err(Stale(fence(1, 5)))
        );
        fences.admit(fence(1, 5), &Subject::Configuration).unwrap();
        fences.admit(fence(1, 6), &Subject::Configuration).unwrap();
    }

    #[test]
    fn commands_on_different_subjects_may_overtake_each_other() {
        let mut fences = Fences::since(0);
        let (n1, n2) = (node("n1"), node("n2"));
        fences.admit(fence(1, 9), &Subject::Node(n1.clone())).unwrap();
        fences.admit(fence(1, 8), &Subject::Node(n2.clone())).unwrap();
        fences.admit(fence(1, 7), &Subject::Configuration).unwrap();
        fences.admit(fence(1, 8), &Subject::Node(n1.clone())).unwrap_err();
        assert_eq!(fences.highest(), fence(1, 9));
    }

    #[test]
    fn an_accepted_command_can_become_stale_while_it_waits() {
        let mut fences = Fences::since(0);
        fences.admit(fence(1, 5), &Subject::Configuration).unwrap();
        fences.check(fence(1, 5), &Subject::Configuration).unwrap();
        fences.admit(fence(2, 0), &Subject::Leadership).unwrap();
        fences.check(fence(1, 5), &Subject::Configuration).unwrap_err();
    }

    #[test]
    fn a_term_from_before_this_process_counts() {
        let mut fences = Fences::since(7);
        fences.admit(fence(6, 100), &Subject::Configuration).unwrap_err();
        fences.admit(fence(7, 1), &Subject::Configuration).unwrap();
    }
}
