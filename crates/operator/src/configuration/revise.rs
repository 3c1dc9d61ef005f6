//! Decides which version of each input goes into the next revision. An input that is bad, or that must wait, is held at
//! its last good version, and the others go live without it. Pure.
//!
//! An input is bad if the checker ([`super::check`]) or slurmctld (`Report::refusals`) rejects it; an input that could
//! end jobs waits for them ([`super::jobs`]). Only a push shows whether slurmctld accepts an input: each push either
//! makes more inputs live or adds a rejection, and the function is called again with the new facts ([`super::choose`]).

use std::collections::BTreeSet;

use super::{
    Facts,
    check::{Checker, Draft},
    choose::{CheckResult, Choice, choose},
    content::Content,
    delivery::Method,
    source::{Source, compose, differing},
};
use crate::{
    finding::{Blocks, Finding},
    reason,
};

/// An input that is not live as its owner wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// Its field: `spec.extraConf`, `NodeSet "a" spec.partition`, `ConfigMap "b" entry "gres.conf"`.
    pub(crate) source: String,
    /// One of [`crate::reason`].
    pub(crate) reason: &'static str,
    /// The problem and its remedy, or what it waits for.
    pub(crate) why: String,
    /// The name of the Partition, if the input is one.
    pub(crate) partition: Option<String>,
    /// It waits for a poll in progress: no event is needed.
    pub(crate) soon: bool,
}

impl Held {
    /// An input that cannot be read.
    pub(crate) fn unreadable(source: String, reason: &'static str, why: String) -> Self {
        Self {
            source,
            reason,
            why,
            partition: None,
            soon: false,
        }
    }

    /// A Partition that is kept as it was.
    pub(crate) fn partition(own: &str, reason: &'static str, why: String) -> Self {
        Self {
            partition: Some(own.to_owned()),
            soon: reason == reason::WAITS_FOR_NODES,
            ..Self::unreadable(format!("Partition {own:?}"), reason, why)
        }
    }

    /// The finding about this input for the Controller.
    pub(crate) fn finding(&self) -> Finding {
        let Self {
            source,
            reason,
            why,
            partition,
            soon: _,
        } = self;
        let waits = [
            reason::WAITS_FOR_JOBS,
            reason::WAITS_FOR_ACCOUNTING,
            reason::WAITS_FOR_NODES,
        ]
        .contains(reason);
        // The status of a Partition reports its own problems.
        let blocks = if waits || partition.is_some() {
            Blocks::Nothing
        } else {
            Blocks::Input
        };
        let message = if why.starts_with(source.as_str()) {
            why.clone()
        } else {
            format!("{source}: {why}")
        };
        Finding::new(blocks, reason, message)
    }
}

/// The next revision.
pub(crate) struct Revised {
    pub(crate) newest: Draft,
    pub(crate) held: Vec<Held>,
    /// Warnings about content that Slurm accepts but that is probably a mistake.
    pub(crate) warnings: Vec<String>,
    /// A decision depended on jobs or QOS in Slurm.
    pub(crate) depends_on_slurm: bool,
    /// Only slurmrestd has shown that no job is in the way.
    pub(crate) is_unconfirmed: bool,
}

/// Why an input is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HoldReason {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// It only waits for the poll in progress.
    pub(crate) soon: bool,
}

/// Decides the content of the next revision, or returns why there is none.
pub(crate) fn revise(facts: &Facts<'_>, wanted: &Content) -> Result<Revised, Finding> {
    // slurmctld runs, and its inputs are not known: all inputs go live, or none.
    let before = facts.former.known_content();
    let checker = Checker::new(facts, before.unwrap_or(wanted), wanted);
    let (newest, held) = if before.is_some() {
        choose_inputs(facts, &checker)
    } else {
        let all = checker.draft(wanted.clone());
        let blocking = |why: HoldReason| Finding::new(Blocks::Configuration, why.reason, why.message);
        checker.check(&all).map_err(blocking)?;
        (all, Vec::new())
    };
    Ok(Revised {
        warnings: checker.warnings(&newest),
        is_unconfirmed: checker.is_unconfirmed(&newest),
        newest,
        held,
        depends_on_slurm: checker.depends_on_slurm(),
    })
}

/// Returns the files of the inputs that go live, or that slurmctld tries next, and the other inputs.
fn choose_inputs(facts: &Facts<'_>, checker: &Checker<'_>) -> (Draft, Vec<Held>) {
    let Checker { before, wanted, .. } = checker;
    let mut last_check = LastCheck { checker, last: None };
    let differing = differing(before, wanted);
    let mut sound = choose(&differing, |taken| match last_check.at(taken) {
        (_, Ok(())) => CheckResult::Good,
        (_, Err(why)) => CheckResult::Bad(why.clone()),
    });
    let Choice { taken, held } = choose(&sound.taken, |taken| match last_check.at(taken) {
        (_, Err(why)) => CheckResult::Bad(why.clone()),
        (draft, Ok(())) => match facts.snapshot.report.refusals.get(&draft.digest) {
            Some(message) => CheckResult::Bad(HoldReason {
                reason: reason::CONFIG_REJECTED,
                message: format!("slurmctld refused it: {message}; correct it"),
                soon: false,
            }),
            None if Some(draft.digest) == facts.former.digest => CheckResult::Good,
            None => CheckResult::Untried,
        },
    });
    sound.held.extend(held);
    let to_held = |(source, why): (Source, HoldReason)| Held {
        source: source.label(before, wanted),
        reason: why.reason,
        why: why.message,
        soon: why.soon,
        partition: match source {
            Source::PartitionObject(own) => Some(own),
            _ => None,
        },
    };
    let held = sound.held.into_iter().map(to_held).collect();
    let states = draft_states(facts, checker, &differing);
    (states.unwrap_or_else(|| last_check.into_draft(&taken)), held)
}

/// Returns the accepted files with the states that people have set in Slurm since, if they did. These go first and alone, since
/// slurmctld has them already and takes them at once. Other changes may be rejected, or need a reconfigure that has to wait; if
/// slurmctld is killed meanwhile, it starts with the states in its files.
fn draft_states(facts: &Facts<'_>, checker: &Checker<'_>, differing: &BTreeSet<Source>) -> Option<Draft> {
    let Checker { before, wanted, .. } = checker;
    if facts.method != Method::InPlace || before.manual_states == wanted.manual_states {
        return None;
    }
    let live = facts
        .snapshot
        .knowledge
        .known()
        .and_then(|seen| seen.partitions.as_ref());
    // A state is lifted by its owner, too. slurmctld then still has it, and gets the owner's next one with the other changes.
    let is_lifted_in_slurm = |source: &&Source| match source {
        Source::ManualState(name) => {
            let live = live.and_then(|live| live.get(name));
            let manual = before.manual_states.get(name);
            live.zip(manual)
                .is_some_and(|(live, manual)| live.state.to_string() != manual.state)
        }
        _ => false,
    };
    let lifted = differing.iter().filter(is_lifted_in_slurm).cloned().collect();
    let draft = checker.draft(compose(before, wanted, &lifted));
    let is_new = Some(draft.digest) != facts.former.digest;
    let is_refused = facts.snapshot.report.refusals.contains_key(&draft.digest);
    // A partition in use gets a line with the other changes.
    let is_possible = is_new && !is_refused && facts.snapshot.report.in_use.is_empty();
    (is_possible && checker.check(&draft).is_ok()).then_some(draft)
}

/// Files, and why they may not be sent to slurmctld.
type CheckedDraft = (Draft, Result<(), HoldReason>);

/// The result of the last check: the usual change is good as a whole, and is checked at every step.
struct LastCheck<'a> {
    checker: &'a Checker<'a>,
    last: Option<(BTreeSet<Source>, CheckedDraft)>,
}

impl LastCheck<'_> {
    /// Checks the files with these changes and no others.
    fn at(&mut self, taken: &BTreeSet<Source>) -> &CheckedDraft {
        let last = self.last.take().filter(|(before, _)| before == taken);
        let check = || {
            let draft = self.draft(taken);
            let result = self.checker.check(&draft);
            (taken.clone(), (draft, result))
        };
        let last = last.unwrap_or_else(check);
        &self.last.insert(last).1
    }

    /// Returns the files with these changes, whatever the check says.
    fn into_draft(mut self, taken: &BTreeSet<Source>) -> Draft {
        match self.last.take() {
            Some((before, (draft, _))) if before == *taken => draft,
            _ => self.draft(taken),
        }
    }

    fn draft(&self, taken: &BTreeSet<Source>) -> Draft {
        let Checker { before, wanted, .. } = self.checker;
        self.checker.draft(compose(before, wanted, taken))
    }
}
