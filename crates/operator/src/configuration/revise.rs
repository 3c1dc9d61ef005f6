//! Which version of each input goes into the next revision. One that is bad, or that must wait, is held at the last
//! version that was good, and the others go live without it. Pure.
//!
//! Bad is what the checker refuses ([`super::check`]) and what slurmctld refused ([`Refusals`]); what could end jobs waits for them
//! ([`super::jobs`]). slurmctld's opinion takes a push, so it is found out one push at a time: each either makes more of the
//! inputs live or adds a refusal, and the same function is asked again with what is known then ([`super::choose`]).

use std::collections::BTreeSet;

use slurm::{Revision, agent::PartitionInUse, revision::FileName};

use super::{
    accepted::Accepted,
    check::{Candidate, Checker},
    choose::{Choice, Verdict, choose},
    content::Content,
    gather::{Concerns, Trouble},
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
    /// The field it stands in: `spec.extraConf`, `NodeSet "a" spec.partition`, `ConfigMap "b" entry "gres.conf"`.
    pub(crate) source: String,
    /// One of [`crate::reason`].
    pub(crate) reason: &'static str,
    /// What is wrong and what to do, or what it waits for.
    pub(crate) why: String,
    /// The name of the Partition it is, if it is one.
    pub(crate) partition: Option<String>,
    /// It waits for a look that is under way: nobody needs to hear of it.
    pub(crate) soon: bool,
}

impl Held {
    /// A Partition that stays as it was.
    pub(crate) fn partition(own: &str, reason: &'static str, why: String) -> Self {
        Self {
            source: format!("Partition {own:?}"),
            reason,
            why,
            partition: Some(own.to_owned()),
            soon: reason == reason::WAITS_FOR_NODES,
        }
    }

    /// The same as something that is told of the Controller.
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
        // A Partition says itself what is wrong with it.
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

/// What the next revision starts from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Before<'a> {
    /// Nothing has ever run.
    Nothing,
    /// What was accepted, and what it was made from.
    Accepted(&'a Revision, &'a Accepted),
    /// Something runs, and what it was made from is not known: all inputs go live, or none.
    Unrecorded(Option<&'a Revision>),
}

/// Everything that decides over a revision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Surroundings<'a> {
    pub(crate) parent: &'a Parent<'a>,
    pub(crate) before: Before<'a>,
    pub(crate) knowledge: &'a Knowledge,
    pub(crate) refusals: &'a Refusals,
    /// Partitions that slurmctld did not let go a moment ago.
    pub(crate) in_use: &'a [PartitionInUse],
    pub(crate) max_node_count: u32,
}

/// The next revision.
#[derive(Clone, Debug)]
pub(crate) struct Revised {
    pub(crate) content: Content,
    pub(crate) files: Files,
    pub(crate) held: Vec<Held>,
    /// What Slurm takes and nobody can have meant.
    pub(crate) warnings: Vec<String>,
    /// What Slurm says of jobs, or of QOS, decides over a change.
    pub(crate) needs_answers: bool,
}

/// Why something is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Why {
    pub(crate) reason: &'static str,
    pub(crate) words: String,
    pub(crate) soon: bool,
}

/// Decides what the next revision is made of; or says why there is none.
pub(crate) fn revise(surroundings: &Surroundings<'_>, wanted: &Content) -> Result<Revised, Finding> {
    let nothing = Content::default();
    let before = match surroundings.before {
        Before::Nothing => &nothing,
        Before::Accepted(_, accepted) => &accepted.content,
        Before::Unrecorded(_) => return take_all(surroundings, wanted),
    };
    let checker = Checker::new(surroundings, before, wanted);
    let mut looked = Looked {
        checker: &checker,
        before,
        wanted,
        last: None,
    };
    let changed = differing(before, wanted);

    let mut sound = choose(&changed, |taken| match looked.at(taken) {
        Ok(_) => Verdict::Good,
        Err(why) => Verdict::Bad(why.clone()),
    });
    let accepted = match surroundings.before {
        Before::Accepted(revision, _) => Some(revision.digest()),
        Before::Nothing | Before::Unrecorded(_) => None,
    };
    let Choice { taken, held } = choose(&sound.taken, |taken| match looked.at(taken) {
        Err(why) => Verdict::Bad(why.clone()),
        Ok(candidate) => match surroundings.refusals.get(&candidate.digest) {
            Some(words) => Verdict::Bad(Why {
                reason: reason::CONFIG_REJECTED,
                words: format!("slurmctld refused it: {words}; correct it"),
                soon: false,
            }),
            None if Some(candidate.digest) == accepted => Verdict::Good,
            None => Verdict::Untried,
        },
    });
    sound.held.extend(held);
    let Candidate {
        content,
        files,
        warnings,
        ..
    } = looked.into_candidate(&taken);
    let told = |(source, why): (Source, Why)| Held {
        source: source.label(before, wanted),
        reason: why.reason,
        why: why.words,
        soon: why.soon,
        partition: match source {
            Source::PartitionObject(own) => Some(own),
            _ => None,
        },
    };
    Ok(Revised {
        content,
        files,
        held: sound.held.into_iter().map(told).collect(),
        warnings,
        needs_answers: checker.needs_answers(),
    })
}

/// What came of the last look: the usual change is good as a whole, and is asked for at every step.
struct Looked<'a> {
    checker: &'a Checker<'a>,
    before: &'a Content,
    wanted: &'a Content,
    last: Option<(BTreeSet<Source>, Result<Candidate, Why>)>,
}

impl Looked<'_> {
    /// What is thought of it if these changes are made and no others.
    fn at(&mut self, taken: &BTreeSet<Source>) -> &Result<Candidate, Why> {
        let last = self.last.take().filter(|(before, _)| before == taken);
        let look = || {
            let content = compose(self.before, self.wanted, taken);
            (taken.clone(), self.checker.check_candidate(content))
        };
        &self.last.insert(last.unwrap_or_else(look)).1
    }

    /// The files with these changes, whatever is thought of them.
    fn into_candidate(self, taken: &BTreeSet<Source>) -> Candidate {
        match self.last {
            Some((before, Ok(candidate))) if before == *taken => candidate,
            _ => self.checker.build(compose(self.before, self.wanted, taken)),
        }
    }
}

fn take_all(surroundings: &Surroundings<'_>, wanted: &Content) -> Result<Revised, Finding> {
    let checker = Checker::new(surroundings, wanted, wanted);
    match checker.check_candidate(wanted.clone()) {
        Ok(Candidate {
            content,
            files,
            warnings,
            ..
        }) => Ok(Revised {
            content,
            files,
            held: Vec::new(),
            warnings,
            needs_answers: checker.needs_answers(),
        }),
        Err(Why { reason, words, .. }) => Err(Finding::new(Blocks::Configuration, reason, words)),
    }
}

/// Holds what cannot be read at its accepted version.
pub(crate) fn hold_unreadable(wanted: &mut Content, before: &Content, troubles: &[Trouble]) -> Vec<Held> {
    for Trouble { concerns, .. } in troubles {
        match concerns {
            Concerns::ConfigMap(config_map) => {
                let lost = before
                    .files
                    .iter()
                    .filter(|(_, file)| file.origin.config_map == *config_map);
                for (name, file) in lost {
                    wanted.files.entry(name.clone()).or_insert_with(|| file.clone());
                }
            }
            Concerns::Entry { file, .. } => hold_file(wanted, before, file.as_ref()),
            Concerns::Accounting => wanted.accounting.clone_from(&before.accounting),
            Concerns::Partition(own) => {
                if let Some(node_set) = wanted.node_sets.get_mut(own) {
                    let accepted = before.node_sets.get(own).and_then(|before| before.partition.clone());
                    // An older operator may have accepted one that takes the next line along.
                    node_set.partition =
                        accepted.filter(|settings| is_self_contained(&format!("PartitionName={own} {settings}")));
                }
            }
        }
    }
    let held = |Trouble { concerns, finding }: &Trouble| Held {
        source: match concerns {
            Concerns::ConfigMap(config_map) => format!("ConfigMap {config_map:?}"),
            Concerns::Entry { config_map, entry, .. } => entry_label(config_map, entry),
            Concerns::Accounting => "spec.accountingRef".to_owned(),
            Concerns::Partition(own) => Source::Partition(own.clone()).label(before, wanted),
        },
        reason: finding.reason,
        why: finding.message.clone(),
        partition: None,
        soon: false,
    };
    troubles.iter().map(held).collect()
}

fn hold_file(wanted: &mut Content, before: &Content, name: Option<&FileName>) {
    let Some(name) = name else { return };
    match before.files.get(name) {
        Some(file) => wanted.files.insert(name.clone(), file.clone()),
        None => wanted.files.remove(name),
    };
}
