//! Which of several changes can be made, when all of them together cannot. Knows nothing of what they are.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
};

/// What is thought of a set of changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict<W> {
    Good,
    Bad(W),
    /// It takes a try to find out.
    Untried,
}

/// What came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice<S, W> {
    /// To be made, or to be tried now.
    pub(crate) taken: BTreeSet<S>,
    /// Bad beside those that are taken. What is in neither waits for a try.
    pub(crate) held: BTreeMap<S, W>,
}

/// Takes all changes if they are good together. Else halves of them, and so on down to single ones, each beside those that
/// are taken already; what is bad alone is held. As some may need others, what is held is looked at again for as long as
/// more are taken. Ends at the first set that takes a try.
pub(crate) fn choose<S: Clone + Ord, W>(
    changes: &BTreeSet<S>,
    judge: impl FnMut(&BTreeSet<S>) -> Verdict<W>,
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

impl<S: Clone + Ord, W, J: FnMut(&BTreeSet<S>) -> Verdict<W>> Search<S, W, J> {
    fn with(&self, some: &[S]) -> BTreeSet<S> {
        let mut with = self.choice.taken.clone();
        with.extend(some.iter().cloned());
        with
    }

    fn is_bad(&mut self, some: &[S]) -> bool {
        let with = self.with(some);
        matches!((self.judge)(&with), Verdict::Bad(_))
    }

    fn add(&mut self, some: &[S]) -> ControlFlow<()> {
        if some.is_empty() {
            return ControlFlow::Continue(());
        }
        let with = self.with(some);
        match (self.judge)(&with) {
            Verdict::Good => self.choice.taken = with,
            Verdict::Untried => {
                self.choice.taken = with;
                return ControlFlow::Break(());
            }
            Verdict::Bad(why) => match some {
                [only] => {
                    self.choice.held.insert(only.clone(), why);
                }
                several => {
                    let (mut one, mut other) = several.split_at(several.len() / 2);
                    // What may be good first: it is the shorter way if only few are bad.
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

    /// Bad if a bad one is among them, or one without another that it needs.
    fn is_bad(bad: &Set, needs: &BTreeMap<u8, u8>, set: &Set) -> bool {
        let lacks = |one: &u8| needs.get(one).is_some_and(|other| !set.contains(other));
        set.iter().any(|one| bad.contains(one) || lacks(one))
    }

    fn at_once(changes: &Set, bad: &Set, needs: &BTreeMap<u8, u8>) -> Choice<u8, ()> {
        choose(changes, |set| {
            if is_bad(bad, needs, set) {
                Verdict::Bad(())
            } else {
                Verdict::Good
            }
        })
    }

    /// As with slurmctld: what is live grows, what was refused is remembered. The result is what is live in the end, what
    /// is held, and how many tries it took.
    fn by_trying(changes: &Set, bad: &Set, needs: &BTreeMap<u8, u8>) -> (Set, Set, usize) {
        let mut live = Set::new();
        let mut refused: BTreeSet<Set> = BTreeSet::new();
        let mut tries = 0;
        loop {
            let left: Set = changes.difference(&live).copied().collect();
            let choice = choose(&left, |set| {
                let all: Set = live.union(set).copied().collect();
                if refused.contains(&all) {
                    Verdict::Bad(())
                } else {
                    Verdict::Untried
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
    fn what_is_good_together_takes_one_try() {
        let all = Set::from([1, 2, 3]);
        assert_eq!(by_trying(&all, &Set::new(), &BTreeMap::new()), (all, Set::new(), 1));
    }

    #[test]
    fn one_bad_of_two_takes_three_tries_at_most() {
        for bad in [1, 2] {
            let (live, held, tries) = by_trying(&Set::from([1, 2]), &Set::from([bad]), &BTreeMap::new());
            assert_eq!((live, held), (Set::from([3 - bad]), Set::from([bad])));
            assert!(tries <= 3, "{tries}");
        }
    }

    #[test]
    fn one_bad_of_many_is_found_in_few_tries() {
        let all: Set = (0..64).collect();
        for bad in 0..64 {
            let (live, _, tries) = by_trying(&all, &Set::from([bad]), &BTreeMap::new());
            assert_eq!(live.len(), 63);
            assert!(tries <= 13, "{tries} for {bad}");
        }
    }

    proptest! {
        #[test]
        fn everything_good_is_taken_and_nothing_bad_is(changes in any::<u16>(), bad in any::<u16>()) {
            let set = |bits: u16| -> Set { (0..16).filter(|bit| bits & (1 << bit) != 0).collect() };
            let (changes, bad) = (set(changes), set(bad));
            let good: Set = changes.difference(&bad).copied().collect();
            let held: Set = changes.intersection(&bad).copied().collect();
            let choice = at_once(&changes, &bad, &BTreeMap::new());
            prop_assert_eq!(&choice.taken, &good);
            prop_assert_eq!(choice.held.into_keys().collect::<Set>(), held.clone());
            let (live, told, tries) = by_trying(&changes, &bad, &BTreeMap::new());
            prop_assert_eq!(live, good);
            prop_assert_eq!(told, held);
            prop_assert!(tries <= 16 * 32, "{}", tries);
        }

        #[test]
        fn what_needs_another_is_taken_with_it(
            bad in any::<u8>(),
            needs in prop::collection::btree_map(0..8_u8, 0..8_u8, 0..8),
        ) {
            let changes: Set = (0..8).collect();
            let bad: Set = (0..8).filter(|bit| bad & (1 << bit) != 0).collect();
            // Needs go one way, as with a partition and its node set.
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
