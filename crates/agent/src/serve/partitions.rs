//! Plans the change of partitions from one configuration to another. Pure.

use std::collections::{BTreeMap, BTreeSet};

use slurm::Hostlist;
use slurm::agent::KeptState;
use slurm::conf::keys::Needs;
use slurm::conf::{Changes, Configuration, RecordKind, Settings};
use slurm::partition::PartitionStateName;
use slurm::rpc::{LivePartition, PartitionUpdate, plan_partition, plan_partition_update};

use super::shown_states::States;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PartitionPlan {
    /// Partitions that have no line any more.
    pub(super) removed: Vec<String>,
    /// The other changes, if only partitions change and RPCs can express all of it.
    pub(super) live_update: Option<LiveUpdate>,
    /// States that are the same in both files, or manual ones that slurmctld has had already.
    states: BTreeMap<String, PartitionStateName>,
    /// All names in the new configuration.
    names: BTreeSet<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LiveUpdate {
    pub(super) created: Vec<Created>,
    pub(super) updated: Vec<Updated>,
}

/// What remains to be checked and sent once the files are live.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Remaining {
    pub(super) updates: Vec<PartitionUpdate>,
    /// A slurmctld that restarted after it deleted them has read the old files, and has them again.
    pub(super) removed: Vec<String>,
}

/// Manual states in the running slurmctld, which have to be set again after slurmctld has read its files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ManualStates {
    /// Stricter than in the file. They are saved for the next agent.
    pub(super) closed: Vec<KeptState>,
    /// Less strict than in the file, where the file's state is an earlier manual one. They are not saved: the next agent could not
    /// tell whether a person has closed the partition again since, and in doubt it stays closed.
    pub(super) opened: Vec<KeptState>,
}

impl ManualStates {
    pub(super) fn is_empty(&self) -> bool {
        self.closed.is_empty() && self.opened.is_empty()
    }

    fn names(&self, partition: &str) -> bool {
        let mut all = self.closed.iter().chain(&self.opened);
        all.any(|kept| kept.partition == partition)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Created {
    /// The settings of the line, and always its state. Slurm's defaults apply to the rest.
    pub(super) line: PartitionUpdate,
    /// All settings, for a partition of that name that exists already.
    pub(super) complete: PartitionUpdate,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Updated {
    pub(super) update: PartitionUpdate,
    /// `None` if only a reconfigure can undo the update.
    pub(super) revert: Option<PartitionUpdate>,
}

impl PartitionPlan {
    pub(super) fn between(old: &Configuration, new: &Configuration) -> Self {
        Self::for_slurmctld(old, new, &States::new())
    }

    /// For a slurmctld that has had these manual states already.
    pub(super) fn for_slurmctld(old: &Configuration, new: &Configuration, had: &States) -> Self {
        let (old_document, new_document) = (old.slurm_conf_document(), new.slurm_conf_document());
        let old_partitions = Partitions::of(old_document.effective(RecordKind::Partition));
        let new_partitions = Partitions::of(new_document.effective(RecordKind::Partition));
        let removed = old_partitions.names().filter(|name| !new_partitions.has(name));
        let has_had = |name: &String, state| had.get(name).is_some_and(|states| states.contains(&state));
        let states = new_partitions.by_name.iter().filter_map(|(name, settings)| {
            let state = state_of(settings)?;
            let before = state_of(old_partitions.by_name.get(name)?)?;
            (state == before || has_had(name, state)).then(|| (name.clone(), state))
        });
        // With this a partition without DisableRootJobs disables root jobs, too, which an RPC cannot express.
        let no_root_by_default = new
            .value("DisableRootJobs")
            .is_some_and(|value| value.eq_ignore_ascii_case("YES"));
        let only_partitions = Changes::between(old, new).needs() == Needs::PartitionRpc;
        let mut live_update = only_partitions
            .then(|| plan_live_update(&old_partitions, &new_partitions, no_root_by_default))
            .flatten();
        for Updated { update, revert } in live_update.iter_mut().flat_map(|update| &mut update.updated) {
            if update.state.is_some_and(|state| has_had(&update.name, state)) {
                update.state = None;
                if let Some(revert) = revert {
                    revert.state = None;
                }
            }
        }
        Self {
            removed: removed.map(str::to_owned).collect(),
            live_update,
            states: states.collect(),
            names: new_partitions.names().map(str::to_owned).collect(),
        }
    }

    /// What remains after a live update: new partitions are closed until then.
    pub(super) fn remaining(&self) -> Remaining {
        let created = self.live_update.iter().flat_map(|live_update| &live_update.created);
        Remaining {
            updates: created.map(|created| created.line.clone()).collect(),
            removed: self.removed.clone(),
        }
    }

    /// What remains where it is unknown which updates slurmctld got.
    pub(super) fn all(&self) -> Remaining {
        let updated = self.live_update.iter().flat_map(|live_update| &live_update.updated);
        let mut all = self.remaining();
        all.updates.extend(updated.map(|updated| updated.update.clone()));
        all
    }

    /// The partitions that slurmctld would lose by reading the new file.
    pub(super) fn lost_by_reconfigure<'a>(&self, live: &'a [LivePartition]) -> Vec<&'a LivePartition> {
        live.iter()
            .filter(|partition| !self.names.contains(&partition.name))
            .collect()
    }

    /// Returns whether a person created the partition, as opposed to a line of the old file.
    pub(super) fn is_manual(&self, partition: &str) -> bool {
        !self.removed.iter().any(|name| name == partition)
    }

    /// Returns the manual states that a reconfigure would undo. `manual_in_file` are the partitions whose state in the file is a
    /// manual one, too: there the last manual state counts. All others are opened by the files only.
    pub(super) fn manual_states(&self, live: &[LivePartition], manual_in_file: &BTreeSet<String>) -> ManualStates {
        let mut states = ManualStates::default();
        for LivePartition { name, state, .. } in live {
            let (Some(file), Some(state)) = (self.states.get(name), state.name()) else {
                continue;
            };
            let kept = KeptState {
                partition: name.clone(),
                state: state.to_string(),
            };
            if state.strictness() > file.strictness() {
                states.closed.push(kept);
            } else if state != *file && manual_in_file.contains(name) {
                states.opened.push(kept);
            }
        }
        states
    }

    /// Adds the states that an earlier change has not set again yet, unless this change sets the state itself.
    pub(super) fn carry_over(&self, earlier: &ManualStates, mut now: ManualStates) -> ManualStates {
        let is_left = |kept: &&KeptState| self.states.contains_key(&kept.partition) && !now.names(&kept.partition);
        let closed: Vec<KeptState> = earlier.closed.iter().filter(is_left).cloned().collect();
        let opened: Vec<KeptState> = earlier.opened.iter().filter(is_left).cloned().collect();
        now.closed.extend(closed);
        now.opened.extend(opened);
        now
    }
}

fn state_of(settings: &Settings) -> Option<PartitionStateName> {
    match settings.iter().find(|(key, _)| **key == *"State") {
        None => Some(PartitionStateName::Up),
        Some((_, value)) => PartitionStateName::from_name(&value.to_ascii_uppercase()),
    }
}

fn is_default(settings: &Settings) -> bool {
    let value = settings.iter().find(|(key, _)| **key == *"Default");
    value.is_some_and(|(_, value)| value.eq_ignore_ascii_case("YES"))
}

struct Partitions {
    by_name: BTreeMap<String, Settings>,
    /// Each line defines one partition, and each partition has one line.
    plain: bool,
}

impl Partitions {
    fn of(lines: Vec<(&str, Settings)>) -> Self {
        let mut partitions = Self {
            by_name: BTreeMap::new(),
            plain: true,
        };
        for (name, settings) in lines {
            let names = Hostlist::parse(name).map(|names| names.names().collect::<Vec<_>>());
            let names = names.unwrap_or_else(|_| vec![name.to_owned()]);
            partitions.plain &= names == [name];
            for name in names {
                partitions.plain &= partitions.by_name.insert(name, settings.clone()).is_none();
            }
        }
        partitions
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    fn defaults(&self) -> Vec<&str> {
        let defaults = self.by_name.iter().filter(|(_, settings)| is_default(settings));
        defaults.map(|(name, _)| name.as_str()).collect()
    }
}

fn plan_live_update(old: &Partitions, new: &Partitions, no_root_by_default: bool) -> Option<LiveUpdate> {
    if !old.plain || !new.plain {
        return None;
    }
    // Of several defaults the last one in the file counts, and the last one that an RPC sets.
    if new.defaults().len() > 1 && new.defaults() != old.defaults() {
        return None;
    }
    let sets_root = |settings: &Settings| settings.keys().any(|key| *key == *"DisableRootJobs");
    let mut plan = LiveUpdate::default();
    for (name, settings) in &new.by_name {
        match old.by_name.get(name) {
            Some(before) if before == settings => {}
            Some(before) if no_root_by_default && sets_root(before) && !sets_root(settings) => return None,
            Some(before) => plan.updated.push(Updated {
                update: readable(plan_partition_update(name, before, settings).ok()?)?,
                revert: plan_partition_update(name, settings, before).ok(),
            }),
            None => plan.created.push(Created {
                line: PartitionUpdate {
                    state: Some(state_of(settings)?),
                    ..readable(plan_partition_update(name, &Settings::new(), settings).ok()?)?
                },
                complete: plan_partition(name, settings).ok()?,
            }),
        }
    }
    Some(plan)
}

/// slurmctld does not report a partition's topology, so that the update could not be verified.
fn readable(update: PartitionUpdate) -> Option<PartitionUpdate> {
    update.topology.is_none().then_some(update)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(old: &str, new: &str) -> PartitionPlan {
        let conf = |text: &str| Configuration::parse([("slurm.conf", text.as_bytes())]);
        PartitionPlan::between(&conf(old), &conf(new))
    }

    fn live(name: &str, state: PartitionStateName) -> LivePartition {
        LivePartition {
            name: name.to_owned(),
            state: state.into(),
            ..LivePartition::default()
        }
    }

    #[test]
    fn a_change_of_partitions_alone_is_a_live_update() {
        let plan = plan(
            "NodeSet=s Feature=f\nPartitionName=a Nodes=s MaxTime=5\nPartitionName=b Nodes=s\nPartitionName=c Nodes=s",
            "NodeSet=s Feature=f\nPartitionName=a Nodes=s MaxTime=9\nPartitionName=b Nodes=s\nPartitionName=d Nodes=s",
        );
        assert_eq!(plan.removed, ["c"]);
        let live_update = plan.live_update.unwrap();
        assert_eq!(live_update.updated.len(), 1, "the others are left alone");
        assert_eq!(live_update.updated[0].update.max_time, Some(9));
        assert_eq!(live_update.updated[0].revert.as_ref().unwrap().max_time, Some(5));
        assert_eq!(live_update.created.len(), 1);
        let Created { line, complete } = &live_update.created[0];
        assert_eq!((line.name.as_str(), line.nodes.as_deref()), ("d", Some("s")));
        assert_eq!((line.state, line.max_time), (Some(PartitionStateName::Up), None));
        assert_eq!(complete.max_time, Some(u32::MAX), "whatever the existing one had");
    }

    #[test]
    fn a_partition_setting_that_a_global_key_implies_needs_a_reconfigure() {
        let (old, new) = ("PartitionName=a DisableRootJobs=NO\n", "PartitionName=a\n");
        assert!(plan(old, new).live_update.is_some());
        let global = |text: &str| format!("DisableRootJobs=YES\n{text}");
        assert_eq!(plan(&global(old), &global(new)).live_update, None);
        assert!(plan(&global(new), &global(old)).live_update.is_some());
    }

    #[test]
    fn settings_of_default_lines_count() {
        let plan = plan(
            "PartitionName=DEFAULT MaxTime=5\nPartitionName=a Nodes=n",
            "PartitionName=DEFAULT MaxTime=7\nPartitionName=a Nodes=n",
        );
        assert_eq!(plan.live_update.unwrap().updated[0].update.max_time, Some(7));
    }

    #[test]
    fn any_other_change_takes_a_reconfigure_and_removed_partitions_are_still_known() {
        for (old, new) in [
            ("PartitionName=a Nodes=n\nMaxJobCount=5", "MaxJobCount=6"),
            (
                "NodeSet=s Feature=f\nPartitionName=a Nodes=s",
                "NodeSet=s Feature=g\nPartitionName=b Nodes=s",
            ),
            ("PartitionName=a Nodes=n", "PartitionName=b Nodes=n AllocNodes=x"),
            ("PartitionName=a Nodes=n", "PartitionName=b Nodes=n Topology=t"),
            ("PartitionName=a Nodes=n", "PartitionName=b[1-2] Nodes=n"),
        ] {
            let plan = plan(old, new);
            assert_eq!(plan.live_update, None, "{new}");
            assert_eq!(plan.removed, ["a"], "{new}");
        }
        assert_eq!(
            plan("PartitionName=a Nodes=n", "# why\nPartitionName=a Nodes=n").live_update,
            None
        );
    }

    #[test]
    fn several_defaults_need_a_reconfigure() {
        let one = "PartitionName=a\nPartitionName=b Default=YES\n";
        let two = "PartitionName=a Default=YES\nPartitionName=b Default=YES\n";
        assert_eq!(plan(one, two).live_update, None);
        assert!(plan(two, one).live_update.is_some());
        assert!(plan(two, &two.replace("b ", "b MaxTime=5 ")).live_update.is_some());
    }

    #[test]
    fn an_update_that_cannot_be_reverted_is_known() {
        let plan = plan("PartitionName=a Nodes=n", "PartitionName=a Nodes=n DefaultTime=5");
        let updated = &plan.live_update.unwrap().updated[0];
        assert_eq!(updated.update.default_time, Some(5));
        assert_eq!(updated.revert, None);
    }

    #[test]
    fn partitions_without_a_line_are_lost_by_a_reconfigure() {
        let plan = plan("PartitionName=a\nPartitionName=b", "PartitionName=b\nMaxJobCount=5");
        let up = PartitionStateName::Up;
        let partitions = [live("a", up), live("b", up), live("hand", up)];
        let names: Vec<&str> = plan
            .lost_by_reconfigure(&partitions)
            .iter()
            .map(|partition| partition.name.as_str())
            .collect();
        assert_eq!(names, ["a", "hand"]);
        assert!(plan.is_manual("hand"));
        assert!(!plan.is_manual("a"));
    }

    #[test]
    fn a_manually_closed_partition_is_found_unless_the_files_change_its_state() {
        use PartitionStateName::{Down, Drain, Inactive, Up};
        for (old, new, state, kept) in [
            ("", "", Drain, true),
            ("", "", Down, true),
            ("", "", Inactive, true),
            ("", "", Up, false),
            ("State=DRAIN", "State=DRAIN", Inactive, true),
            ("State=DRAIN", "State=DRAIN", Drain, false),
            ("State=DRAIN", "State=DRAIN", Up, false),
            ("State=DRAIN", "State=UP", Drain, false),
            ("", "State=UP", Drain, true),
        ] {
            let conf = |state: &str| format!("PartitionName=a {state}\n");
            let plan = plan(&conf(old), &conf(new));
            let states = plan.manual_states(&[live("a", state)], &BTreeSet::new());
            assert_eq!(!states.closed.is_empty(), kept, "{old} to {new}, {state}");
            assert_eq!(states.opened, [], "the state in the file is not a manual one");
        }
    }

    #[test]
    fn a_manually_opened_partition_is_found_where_it_was_closed_manually() {
        use PartitionStateName::{Down, Drain, Inactive, Up};
        for (old, new, state, expected) in [
            ("State=DRAIN", "State=DRAIN", Up, "opened"),
            ("State=DOWN", "State=DOWN", Drain, "opened"),
            ("State=INACTIVE", "State=INACTIVE", Drain, "opened"),
            ("State=DRAIN", "State=DRAIN", Drain, ""),
            ("State=DRAIN", "State=DRAIN", Inactive, "closed"),
            // slurmctld may not have closed it yet when it was read.
            ("", "State=DRAIN", Up, ""),
            ("", "State=DRAIN", Down, ""),
            ("State=DRAIN", "", Up, ""),
            // Its line cannot be changed, so that only slurmctld has the manual state.
            ("", "", Drain, "closed"),
            ("", "", Up, ""),
        ] {
            let conf = |state: &str| format!("PartitionName=a {state}\nPartitionName=b State=DRAIN\n");
            let plan = plan(&conf(old), &conf(new));
            let manual_in_file = BTreeSet::from(["a".to_owned()]);
            let states = plan.manual_states(&[live("a", state), live("b", Up)], &manual_in_file);
            let kept = KeptState {
                partition: "a".to_owned(),
                state: state.to_string(),
            };
            let only = |list: &str| if list == expected { vec![kept.clone()] } else { vec![] };
            let case = format!("{old} to {new}, {state}");
            assert_eq!(
                (states.closed, states.opened),
                (only("closed"), only("opened")),
                "{case}"
            );
        }
    }

    #[test]
    fn states_that_were_not_set_again_yet_are_carried_over_to_the_next_change() {
        let kept = |partition: &str, state: &str| KeptState {
            partition: partition.to_owned(),
            state: state.to_owned(),
        };
        let old = "PartitionName=a\nPartitionName=b\nPartitionName=c\nPartitionName=d State=DRAIN\n";
        let new = old.replace("=b", "=b State=DRAIN");
        let earlier = ManualStates {
            closed: vec![kept("a", "DOWN"), kept("b", "DRAIN"), kept("c", "DRAIN")],
            opened: vec![kept("d", "UP")],
        };
        let now = ManualStates {
            closed: vec![kept("a", "INACTIVE")],
            opened: vec![],
        };
        assert_eq!(
            plan(old, &new).carry_over(&earlier, now),
            ManualStates {
                closed: vec![kept("a", "INACTIVE"), kept("c", "DRAIN")],
                opened: vec![kept("d", "UP")],
            },
            "a has a newer state, and the files set the state of b"
        );
    }
}
