//! Decides which version of each input goes into the next revision. An input that is bad, or that must wait, is held at
//! its last good version, and the others go live without it. Pure.
//!
//! An input is bad if the checker ([`super::check`]) or slurmctld ([`Refusals`]) rejects it; an input that could end
//! jobs waits for them ([`super::jobs`]). Only a push shows whether slurmctld accepts an input: each push either makes
//! more inputs live or adds a rejection, and the function is called again with the new facts ([`super::choose`]).

use std::collections::BTreeSet;

use slurm::{Revision, agent::PartitionInUse, revision::FileName};

use super::{
    accepted::Accepted,
    check::{CheckedFiles, Checker},
    choose::{CheckResult, Choice, choose},
    content::Content,
    gather::{AffectedInput, UnreadableInput},
    source::{Source, compose, differing, entry_label},
};
use crate::{
    cluster::{
        Knowledge,
        deliver::{Files, Refusals},
    },
    finding::{Blocks, Finding},
    parent::Parent,
    partition::rules::line::is_self_contained,
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
    /// A Partition that is kept as it was.
    pub(crate) fn partition(own: &str, reason: &'static str, why: String) -> Self {
        Self {
            source: format!("Partition {own:?}"),
            reason,
            why,
            partition: Some(own.to_owned()),
            soon: reason == reason::WAITS_FOR_NODES,
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

/// The starting point of the next revision.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StartingPoint<'a> {
    /// No slurmctld has ever run.
    Nothing,
    /// The accepted revision and its inputs.
    Accepted(&'a Revision, &'a Accepted),
    /// slurmctld runs, and its inputs are not known: all inputs go live, or none.
    Unrecorded(Option<&'a Revision>),
}

/// Everything that a revision is checked against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckContext<'a> {
    pub(crate) parent: &'a Parent<'a>,
    pub(crate) before: StartingPoint<'a>,
    pub(crate) knowledge: &'a Knowledge,
    pub(crate) refusals: &'a Refusals,
    /// Partitions that slurmctld recently refused to delete.
    pub(crate) in_use: &'a [PartitionInUse],
    pub(crate) max_node_count: u32,
}

/// The next revision.
#[derive(Clone, Debug)]
pub(crate) struct Revised {
    pub(crate) content: Content,
    pub(crate) files: Files,
    pub(crate) held: Vec<Held>,
    /// Warnings about content that Slurm accepts but that is probably a mistake.
    pub(crate) warnings: Vec<String>,
    /// A decision depended on jobs or QOS in Slurm.
    pub(crate) depends_on_slurm: bool,
}

/// Why an input is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HoldReason {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) soon: bool,
}

/// Decides the content of the next revision, or returns why there is none.
pub(crate) fn revise(context: &CheckContext<'_>, wanted: &Content) -> Result<Revised, Finding> {
    let nothing = Content::default();
    let before = match context.before {
        StartingPoint::Nothing => &nothing,
        StartingPoint::Accepted(_, accepted) => &accepted.content,
        StartingPoint::Unrecorded(_) => return take_all(context, wanted),
    };
    let checker = Checker::new(context, before, wanted);
    let mut last_check = CheckedChoice {
        checker: &checker,
        before,
        wanted,
        last: None,
    };
    let changed = differing(before, wanted);

    let mut sound = choose(&changed, |taken| match last_check.at(taken) {
        Ok(_) => CheckResult::Good,
        Err(why) => CheckResult::Bad(why.clone()),
    });
    let accepted = match context.before {
        StartingPoint::Accepted(revision, _) => Some(revision.digest()),
        StartingPoint::Nothing | StartingPoint::Unrecorded(_) => None,
    };
    let Choice { taken, held } = choose(&sound.taken, |taken| match last_check.at(taken) {
        Err(why) => CheckResult::Bad(why.clone()),
        Ok(candidate) => match context.refusals.get(&candidate.digest) {
            Some(message) => CheckResult::Bad(HoldReason {
                reason: reason::CONFIG_REJECTED,
                message: format!("slurmctld refused it: {message}; correct it"),
                soon: false,
            }),
            None if Some(candidate.digest) == accepted => CheckResult::Good,
            None => CheckResult::Untried,
        },
    });
    sound.held.extend(held);
    let CheckedFiles {
        content,
        files,
        warnings,
        ..
    } = last_check.into_candidate(&taken);
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
    Ok(Revised {
        content,
        files,
        held: sound.held.into_iter().map(to_held).collect(),
        warnings,
        depends_on_slurm: checker.depends_on_slurm(),
    })
}

/// The result of the last check: the usual change is good as a whole, and is checked at every step.
struct CheckedChoice<'a> {
    checker: &'a Checker<'a>,
    before: &'a Content,
    wanted: &'a Content,
    last: Option<(BTreeSet<Source>, Result<CheckedFiles, HoldReason>)>,
}

impl CheckedChoice<'_> {
    /// Checks the files with these changes and no others.
    fn at(&mut self, taken: &BTreeSet<Source>) -> &Result<CheckedFiles, HoldReason> {
        let last = self.last.take().filter(|(before, _)| before == taken);
        let check = || {
            let content = compose(self.before, self.wanted, taken);
            (taken.clone(), self.checker.check_candidate(content))
        };
        &self.last.insert(last.unwrap_or_else(check)).1
    }

    /// Returns the files with these changes, whatever the check says.
    fn into_candidate(self, taken: &BTreeSet<Source>) -> CheckedFiles {
        match self.last {
            Some((before, Ok(candidate))) if before == *taken => candidate,
            _ => self.checker.build(compose(self.before, self.wanted, taken)),
        }
    }
}

fn take_all(context: &CheckContext<'_>, wanted: &Content) -> Result<Revised, Finding> {
    let checker = Checker::new(context, wanted, wanted);
    match checker.check_candidate(wanted.clone()) {
        Ok(CheckedFiles {
            content,
            files,
            warnings,
            ..
        }) => Ok(Revised {
            content,
            files,
            held: Vec::new(),
            warnings,
            depends_on_slurm: checker.depends_on_slurm(),
        }),
        Err(HoldReason { reason, message, .. }) => Err(Finding::new(Blocks::Configuration, reason, message)),
    }
}

/// Holds unreadable inputs at their accepted version.
pub(crate) fn hold_unreadable(wanted: &mut Content, before: &Content, unreadable: &[UnreadableInput]) -> Vec<Held> {
    for UnreadableInput { affects, .. } in unreadable {
        match affects {
            AffectedInput::ConfigMap(config_map) => {
                let lost = before
                    .files
                    .iter()
                    .filter(|(_, file)| file.origin.config_map == *config_map);
                for (name, file) in lost {
                    wanted.files.entry(name.clone()).or_insert_with(|| file.clone());
                }
            }
            AffectedInput::Entry { file, .. } => hold_file(wanted, before, file.as_ref()),
            AffectedInput::Accounting => wanted.accounting.clone_from(&before.accounting),
            AffectedInput::Partition(own) => {
                if let Some(node_set) = wanted.node_sets.get_mut(own) {
                    let accepted = before.node_sets.get(own).and_then(|before| before.partition.clone());
                    // An older operator may have accepted one that continues into the next line.
                    node_set.partition =
                        accepted.filter(|settings| is_self_contained(&format!("PartitionName={own} {settings}")));
                }
            }
        }
    }
    let held = |UnreadableInput { affects, finding }: &UnreadableInput| Held {
        source: match affects {
            AffectedInput::ConfigMap(config_map) => format!("ConfigMap {config_map:?}"),
            AffectedInput::Entry { config_map, entry, .. } => entry_label(config_map, entry),
            AffectedInput::Accounting => "spec.accountingRef".to_owned(),
            AffectedInput::Partition(own) => Source::Partition(own.clone()).label(before, wanted),
        },
        reason: finding.reason,
        why: finding.message.clone(),
        partition: None,
        soon: false,
    };
    unreadable.iter().map(held).collect()
}

fn hold_file(wanted: &mut Content, before: &Content, name: Option<&FileName>) {
    let Some(name) = name else { return };
    match before.files.get(name) {
        Some(file) => wanted.files.insert(name.clone(), file.clone()),
        None => wanted.files.remove(name),
    };
}
