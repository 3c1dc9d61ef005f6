//! Chooses which of several changes can be made, if not all of them together. Independent of what the changes are.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
};

/// The verdict about a set of changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CheckResult<W> {
    Good,
    Bad(W),
    /// Only slurmctld can decide.
    Untried,
}

/// The result of the search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice<S, W> {
    /// Changes to make, or to try now.
    pub(crate) taken: BTreeSet<S>,
    /// Changes that are bad in combination with those taken. Changes in neither set wait for a try.
    pub(crate) held: BTreeMap<S, W>,
}

/// Takes all changes if they are good together. Otherwise it splits them into halves, down to single changes, each
/// combined with those taken already; a single bad change is held. As some changes may require others, held changes are
/// checked again as long as more are taken. Stops at the first set that must be tried.
pub(crate) fn choose<S: Clone + Ord, W>(
    changes: &BTreeSet<S>,
    judge: impl FnMut(&BTreeSet<S>) -> CheckResult<W>,
) -> Choice<S, W> {
    let mut search = Search {
        choice: Choice {
            taken: BTreeSet::new(),
            held: BTreeMap::new(),
        },
        judge,
    };
    let mut left: Vec<S> = changes.iter().cloned().collect();
    loop {
        let before = search.choice.taken.len();
        search.choice.held.clear();
        let tried = search.add(&left).is_break();
        left = search.choice.held.keys().cloned().collect();
        if tried || left.is_empty() || search.choice.taken.len() == before {
            return search.choice;
        }
    }
}

struct Search<S, W, J> {
    choice: Choice<S, W>,
    judge: J,
}

impl<S: Clone + Ord, W, J: FnMut(&BTreeSet<S>) -> CheckResult<W>> Search<S, W, J> {
    fn with(&self, some: &[S]) -> BTreeSet<S> {
        let mut with = self.choice.taken.clone();
        with.extend(some.iter().cloned());
        with
    }

    fn is_bad(&mut self, some: &[S]) -> bool {
        let with = self.with(some);
        matches!((self.judge)(&with), CheckResult::Bad(_))
    }

    fn add(&mut self, some: &[S]) -> ControlFlow<()> {
        if some.is_empty() {
            return ControlFlow::Continue(());
        }
        let with = self.with(some);
        match (self.judge)(&with) {
            CheckResult::Good => self.choice.taken = with,
            CheckResult::Untried => {
                self.choice.taken = with;
                return ControlFlow::Break(());
            }
            CheckResult::Bad(why) => match some {
                [only] => {
                    self.choice.held.insert(only.clone(), why);
                }
                several => {
                    let (mut one, mut other) = several.split_at(several.len() / 2);
                    // The half that may be good comes first: this is faster if only few changes are bad.
                    if self.is_bad(one) {
                        (one, other) = (other, one);
                    }
                    self.add(one)?;
                    self.add(other)?;
                }
            },
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Set = BTreeSet<u8>;

    /// Whether a set contains a bad change, or one without another that it requires.
    fn is_bad(bad: &Set, needs: &BTreeMap<u8, u8>, set: &Set) -> bool {
        let lacks = |one: &u8| needs.get(one).is_some_and(|other| !set.contains(other));
        set.iter().any(|one| bad.contains(one) || lacks(one))
    }

    fn at_once(changes: &Set, bad: &Set, needs: &BTreeMap<u8, u8>) -> Choice<u8, ()> {
        choose(changes, |set| {
            if is_bad(bad, needs, set) {
                CheckResult::Bad(())
            } else {
                CheckResult::Good
            }
        })
    }

    /// Simulates slurmctld: the live set grows, rejected sets are remembered. Returns the final live set, the held
    /// changes and the number of tries.
    fn by_trying(changes: &Set, bad: &Set, needs: &BTreeMap<u8, u8>) -> (Set, Set, usize) {
        let mut live = Set::new();
        let mut refused: BTreeSet<Set> = BTreeSet::new();
        let mut tries = 0;
        loop {
            let left: Set = changes.difference(&live).copied().collect();
            let choice = choose(&left, |set| {
                let all: Set = live.union(set).copied().collect();
                if refused.contains(&all) {
                    CheckResult::Bad(())
                } else {
                    CheckResult::Untried
                }
            });
            let candidate: Set = live.union(&choice.taken).copied().collect();
            if candidate == live {
                return (live, choice.held.into_keys().collect(), tries);
            }
            tries += 1;
            if is_bad(bad, needs, &candidate) {
                refused.insert(candidate);
            } else {
                live = candidate;
            }
        }
    }

    #[test]
    fn good_changes_take_one_try() {
        let all = Set::from([1, 2, 3]);
        assert_eq!(by_trying(&all, &Set::new(), &BTreeMap::new()), (all, Set::new(), 1));
    }

    #[test]
    fn one_bad_change_of_two_takes_at_most_three_tries() {
        for bad in [1, 2] {
            let (live, held, tries) = by_trying(&Set::from([1, 2]), &Set::from([bad]), &BTreeMap::new());
            assert_eq!((live, held), (Set::from([3 - bad]), Set::from([bad])));
            assert!(tries <= 3, "{tries}");
        }
    }

    #[test]
    fn one_bad_change_of_many_is_found_in_few_tries() {
        let all: Set = (0..64).collect();
        for bad in 0..64 {
            let (live, _, tries) = by_trying(&all, &Set::from([bad]), &BTreeMap::new());
            assert_eq!(live.len(), 63);
            assert!(tries <= 13, "{tries} for {bad}");
        }
    }

    proptest! {
        #[test]
        fn all_good_changes_and_no_bad_ones_are_taken(changes in any::<u16>(), bad in any::<u16>()) {
            let set = |bits: u16| -> Set { (0..16).filter(|bit| bits & (1 << bit) != 0).collect() };
            let (changes, bad) = (set(changes), set(bad));
            let good: Set = changes.difference(&bad).copied().collect();
            let held: Set = changes.intersection(&bad).copied().collect();
            let choice = at_once(&changes, &bad, &BTreeMap::new());
            prop_assert_eq!(&choice.taken, &good);
            prop_assert_eq!(choice.held.into_keys().collect::<Set>(), held.clone());
            let (live, reported, tries) = by_trying(&changes, &bad, &BTreeMap::new());
            prop_assert_eq!(live, good);
            prop_assert_eq!(reported, held);
            prop_assert!(tries <= 16 * 32, "{}", tries);
        }

        #[test]
        fn a_change_that_requires_another_is_taken_with_it(
            bad in any::<u8>(),
            needs in prop::collection::btree_map(0..8_u8, 0..8_u8, 0..8),
        ) {
            let changes: Set = (0..8).collect();
            let bad: Set = (0..8).filter(|bit| bad & (1 << bit) != 0).collect();
            // Requirements are acyclic, as with a partition and its node set.
            let needs: BTreeMap<u8, u8> = needs.into_iter().filter(|(one, other)| other < one).collect();
            let mut good: Set = changes.difference(&bad).copied().collect();
            while let Some(lost) = good.iter().copied().find(|one| needs.get(one).is_some_and(|other| !good.contains(other))) {
                good.remove(&lost);
            }
            prop_assert_eq!(at_once(&changes, &bad, &needs).taken, good.clone());
            prop_assert_eq!(by_trying(&changes, &bad, &needs).0, good);
        }
    }
}
