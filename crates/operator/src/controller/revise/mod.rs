//! Which version of each input goes into the next revision. One that is bad, or that must wait, is held at the last
//! version that was good, and the others go live without it. Pure.
//!
//! Bad is what the checker refuses ([`judge`]) and what slurmctld refused ([`Refusals`]); what could end jobs waits for them
//! ([`jobs`]). slurmctld's opinion takes a push, so it is found out one push at a time: each either makes more of the
//! inputs live or adds a refusal, and the same function is asked again with what is known then ([`choose`]).

mod accepted;
mod choose;
mod jobs;
mod judge;
mod node_count;
mod records;
mod source;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use slurm::{
    Revision,
    agent::PartitionInUse,
    revision::{Digest, FileName},
};

pub(super) use self::{accepted::Accepted, node_count::max_node_count};
use self::{
    choose::{Choice, Verdict, choose},
    judge::{Candidate, Judge},
    source::{Source, compose, differing, entry_label},
};
use super::{
    build::{Parent, config::Files},
    fault::{Blocks, Fault},
    inputs::{Concerns, Inputs, Trouble},
    reason,
};
use crate::{access::Knowledge, partition::line::stands_alone};

/// An input that is not live as its owner wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// The field it stands in: `spec.extraConf`, `NodeSet "a" spec.partition`, `ConfigMap "b" entry "gres.conf"`.
    pub(super) source: String,
    /// One of [`super::reason`].
    pub(super) reason: &'static str,
    /// What is wrong and what to do, or what it waits for.
    pub(super) why: String,
    /// The name of the Partition it is, if it is one.
    pub(super) partition: Option<String>,
    /// It waits for a look that is under way: nobody needs to hear of it.
    pub(super) soon: bool,
}

impl Held {
    /// A Partition that stays as it was.
    pub(super) fn partition(own: &str, reason: &'static str, why: String) -> Self {
        Self {
            source: format!("Partition {own:?}"),
            reason,
            why,
            partition: Some(own.to_owned()),
            soon: reason == reason::WAITS_FOR_NODES,
        }
    }

    /// The same as something that is told of the Controller.
    pub(super) fn fault(&self) -> Fault {
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
        Fault::new(blocks, reason, message)
    }
}

/// What slurmctld refused, and its words.
pub(super) type Refusals = BTreeMap<Digest, String>;

/// What the next revision starts from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Before<'a> {
    /// Nothing has ever run.
    Nothing,
    /// What was accepted, and what it was made from.
    Accepted(&'a Revision, &'a Accepted),
    /// Something runs, and what it was made from is not known: all inputs go live, or none.
    Unrecorded(Option<&'a Revision>),
}

/// Everything that decides over a revision.
#[derive(Clone, Copy, Debug)]
pub(super) struct Surroundings<'a> {
    pub(super) parent: &'a Parent<'a>,
    pub(super) before: Before<'a>,
    pub(super) knowledge: &'a Knowledge,
    pub(super) refusals: &'a Refusals,
    /// Partitions that slurmctld did not let go a moment ago.
    pub(super) in_use: &'a [PartitionInUse],
    pub(super) max_node_count: u32,
}

/// The next revision.
#[derive(Clone, Debug)]
pub(super) struct Revised {
    pub(super) inputs: Inputs,
    pub(super) files: Files,
    pub(super) held: Vec<Held>,
    /// What Slurm takes and nobody can have meant.
    pub(super) warnings: Vec<String>,
    /// What Slurm says of jobs, or of QOS, decides over a change.
    pub(super) needs_answers: bool,
}

/// Why something is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Why {
    reason: &'static str,
    words: String,
    soon: bool,
}

/// Decides what the next revision is made of; or says why there is none.
pub(super) fn revise(surroundings: &Surroundings<'_>, wanted: &Inputs) -> Result<Revised, Fault> {
    let nothing = Inputs::default();
    let before = match surroundings.before {
        Before::Nothing => &nothing,
        Before::Accepted(_, accepted) => &accepted.inputs,
        Before::Unrecorded(_) => return take_all(surroundings, wanted),
    };
    let judge = Judge::new(surroundings, before, wanted);
    let mut looked = Looked {
        judge: &judge,
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
        inputs,
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
        inputs,
        files,
        held: sound.held.into_iter().map(told).collect(),
        warnings,
        needs_answers: judge.needs_answers(),
    })
}

/// What came of the last look: the usual change is good as a whole, and is asked for at every step.
struct Looked<'a> {
    judge: &'a Judge<'a>,
    before: &'a Inputs,
    wanted: &'a Inputs,
    last: Option<(BTreeSet<Source>, Result<Candidate, Why>)>,
}

impl Looked<'_> {
    /// What is thought of it if these changes are made and no others.
    fn at(&mut self, taken: &BTreeSet<Source>) -> &Result<Candidate, Why> {
        let last = self.last.take().filter(|(before, _)| before == taken);
        let look = || {
            let inputs = compose(self.before, self.wanted, taken);
            (taken.clone(), self.judge.judge(inputs))
        };
        &self.last.insert(last.unwrap_or_else(look)).1
    }

    /// The files with these changes, whatever is thought of them.
    fn into_candidate(self, taken: &BTreeSet<Source>) -> Candidate {
        match self.last {
            Some((before, Ok(candidate))) if before == *taken => candidate,
            _ => self.judge.build(compose(self.before, self.wanted, taken)),
        }
    }
}

fn take_all(surroundings: &Surroundings<'_>, wanted: &Inputs) -> Result<Revised, Fault> {
    let judge = Judge::new(surroundings, wanted, wanted);
    match judge.judge(wanted.clone()) {
        Ok(Candidate {
            inputs,
            files,
            warnings,
            ..
        }) => Ok(Revised {
            inputs,
            files,
            held: Vec::new(),
            warnings,
            needs_answers: judge.needs_answers(),
        }),
        Err(Why { reason, words, .. }) => Err(Fault::new(Blocks::Configuration, reason, words)),
    }
}

/// Holds what cannot be read at its accepted version.
pub(super) fn hold_unreadable(wanted: &mut Inputs, before: &Inputs, troubles: &[Trouble]) -> Vec<Held> {
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
                        accepted.filter(|settings| stands_alone(&format!("PartitionName={own} {settings}")));
                }
            }
        }
    }
    let held = |Trouble { concerns, fault }: &Trouble| Held {
        source: match concerns {
            Concerns::ConfigMap(config_map) => format!("ConfigMap {config_map:?}"),
            Concerns::Entry { config_map, entry, .. } => entry_label(config_map, entry),
            Concerns::Accounting => "spec.accountingRef".to_owned(),
            Concerns::Partition(own) => Source::Partition(own.clone()).label(before, wanted),
        },
        reason: fault.reason,
        why: fault.message.clone(),
        partition: None,
        soon: false,
    };
    troubles.iter().map(held).collect()
}

fn hold_file(wanted: &mut Inputs, before: &Inputs, name: Option<&FileName>) {
    let Some(name) = name else { return };
    match before.files.get(name) {
        Some(file) => wanted.files.insert(name.clone(), file.clone()),
        None => wanted.files.remove(name),
    };
}
