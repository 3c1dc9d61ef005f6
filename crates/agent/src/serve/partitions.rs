//! What the change from one configuration to another means for partitions. Pure.

use std::collections::{BTreeMap, BTreeSet};

use slurm::Hostlist;
use slurm::agent::KeptState;
use slurm::conf::keys::Needs;
use slurm::conf::{Changes, Configuration, RecordKind, Settings};
use slurm::partition::PartitionStateName;
use slurm::rpc::{LivePartition, PartitionUpdate, plan_partition, plan_partition_update};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PartitionPlan {
    /// Whose lines are gone.
    pub(super) removed: Vec<String>,
    /// The rest, if that is all there is to the change and each of it can be said to a running slurmctld.
    pub(super) by_rpc: Option<ByRpc>,
    /// The same in both files, so that nobody has asked for a change of that.
    states: BTreeMap<String, PartitionStateName>,
    /// All names of the new one.
    names: BTreeSet<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ByRpc {
    pub(super) created: Vec<Created>,
    pub(super) updated: Vec<Updated>,
}

/// What there is to see to once the files are live.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Rest {
    pub(super) wanted: Vec<PartitionUpdate>,
    /// A slurmctld that died since it let them go has read the old files, and has them again.
    pub(super) gone: Vec<String>,
}

/// States that people have set in the running slurmctld, and that it has to have again when it has read its files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ByHand {
    /// Closed, or closed more than in the file. The next agent knows of them, too.
    pub(super) closed: Vec<KeptState>,
    /// Opened, where the file has an earlier closing by hand. The next agent could not tell whether somebody has closed one of them
    /// again since, so it is not told: what is closed in doubt is opened by whoever opens it again.
    pub(super) opened: Vec<KeptState>,
}

impl ByHand {
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
    /// What the line says, and its state in any case. All else is as Slurm makes it.
    pub(super) line: PartitionUpdate,
    /// What makes one of that name so that is there already.
    pub(super) whole: PartitionUpdate,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Updated {
    pub(super) there: PartitionUpdate,
    /// `None` if only a reconfigure leads back.
    pub(super) back: Option<PartitionUpdate>,
}

impl PartitionPlan {
    pub(super) fn between(old: &Configuration, new: &Configuration) -> Self {
        let (old_document, new_document) = (old.slurm_conf_document(), new.slurm_conf_document());
        let old_partitions = Partitions::of(old_document.effective(RecordKind::Partition));
        let new_partitions = Partitions::of(new_document.effective(RecordKind::Partition));
        let removed = old_partitions.names().filter(|name| !new_partitions.has(name));
        let states = new_partitions.by_name.iter().filter_map(|(name, settings)| {
            let state = state_of(settings)?;
            let before = state_of(old_partitions.by_name.get(name)?)?;
            (state == before).then(|| (name.clone(), state))
        });
        // Then a partition that does not say DisableRootJobs has it all the same, which an RPC does not know.
        let no_root_by_default = new
            .value("DisableRootJobs")
            .is_some_and(|value| value.eq_ignore_ascii_case("YES"));
        let only_partitions = Changes::between(old, new).needs() == Needs::PartitionRpc;
        Self {
            removed: removed.map(str::to_owned).collect(),
            by_rpc: only_partitions
                .then(|| plan_by_rpc(&old_partitions, &new_partitions, no_root_by_default))
                .flatten(),
            states: states.collect(),
            names: new_partitions.names().map(str::to_owned).collect(),
        }
    }

    /// After all has been told: new partitions are closed until then.
    pub(super) fn rest(&self) -> Rest {
        let created = self.by_rpc.iter().flat_map(|by_rpc| &by_rpc.created);
        Rest {
            wanted: created.map(|created| created.line.clone()).collect(),
            gone: self.removed.clone(),
        }
    }

    /// The same where nobody knows what has been told.
    pub(super) fn all(&self) -> Rest {
        let updated = self.by_rpc.iter().flat_map(|by_rpc| &by_rpc.updated);
        let mut all = self.rest();
        all.wanted.extend(updated.map(|updated| updated.there.clone()));
        all
    }

    /// What slurmctld has and would have no more after it has read the new file.
    pub(super) fn would_vanish<'a>(&self, live: &'a [LivePartition]) -> Vec<&'a LivePartition> {
        live.iter()
            .filter(|partition| !self.names.contains(&partition.name))
            .collect()
    }

    /// Whether somebody made it by hand, as opposed to a line of the old file.
    pub(super) fn is_made_by_hand(&self, partition: &str) -> bool {
        !self.removed.iter().any(|name| name == partition)
    }

    /// Partitions whose state somebody has set by hand, which a reconfigure would undo. `lifted` are those whose state in the file is
    /// somebody's, too: there the last hand counts. All others are opened by whoever writes the files, and by nobody else.
    pub(super) fn set_by_hand(&self, live: &[LivePartition], lifted: &BTreeSet<String>) -> ByHand {
        let mut by_hand = ByHand::default();
        for LivePartition { name, state, .. } in live {
            let (Some(file), Some(state)) = (self.states.get(name), state.name()) else {
                continue;
            };
            let kept = KeptState {
                partition: name.clone(),
                state: state.to_string(),
            };
            if state.strictness() > file.strictness() {
                by_hand.closed.push(kept);
            } else if state != *file && lifted.contains(name) {
                by_hand.opened.push(kept);
            }
        }
        by_hand
    }

    /// What an earlier change has yet to set again, as far as this one leaves the state to people, too.
    pub(super) fn still_by_hand(&self, earlier: &ByHand, mut now: ByHand) -> ByHand {
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
    /// Each line is of one partition, and each partition of one line.
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

fn plan_by_rpc(old: &Partitions, new: &Partitions, no_root_by_default: bool) -> Option<ByRpc> {
    if !old.plain || !new.plain {
        return None;
    }
    // Of several in a file the last one is the default, of several that are told the one told last.
    if new.defaults().len() > 1 && new.defaults() != old.defaults() {
        return None;
    }
    let says_root = |settings: &Settings| settings.keys().any(|key| *key == *"DisableRootJobs");
    let mut plan = ByRpc::default();
    for (name, settings) in &new.by_name {
        match old.by_name.get(name) {
            Some(before) if before == settings => {}
            Some(before) if no_root_by_default && says_root(before) && !says_root(settings) => return None,
            Some(before) => plan.updated.push(Updated {
                there: readable(plan_partition_update(name, before, settings).ok()?)?,
                back: plan_partition_update(name, settings, before).ok(),
            }),
            None => plan.created.push(Created {
                line: PartitionUpdate {
                    state: Some(state_of(settings)?),
                    ..readable(plan_partition_update(name, &Settings::new(), settings).ok()?)?
                },
                whole: plan_partition(name, settings).ok()?,
            }),
        }
    }
    Some(plan)
}

/// slurmctld does not tell a partition's topology, so nobody could know whether it was taken.
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
    fn a_change_of_partitions_alone_can_be_said() {
        let plan = plan(
            "NodeSet=s Feature=f\nPartitionName=a Nodes=s MaxTime=5\nPartitionName=b Nodes=s\nPartitionName=c Nodes=s",
            "NodeSet=s Feature=f\nPartitionName=a Nodes=s MaxTime=9\nPartitionName=b Nodes=s\nPartitionName=d Nodes=s",
        );
        assert_eq!(plan.removed, ["c"]);
        let by_rpc = plan.by_rpc.unwrap();
        assert_eq!(by_rpc.updated.len(), 1, "the others are left alone");
        assert_eq!(by_rpc.updated[0].there.max_time, Some(9));
        assert_eq!(by_rpc.updated[0].back.as_ref().unwrap().max_time, Some(5));
        assert_eq!(by_rpc.created.len(), 1);
        let Created { line, whole } = &by_rpc.created[0];
        assert_eq!((line.name.as_str(), line.nodes.as_deref()), ("d", Some("s")));
        assert_eq!((line.state, line.max_time), (Some(PartitionStateName::Up), None));
        assert_eq!(whole.max_time, Some(u32::MAX), "whatever it had before");
    }

    #[test]
    fn what_a_key_of_the_cluster_gives_to_partitions_is_no_matter_for_an_rpc() {
        let (old, new) = ("PartitionName=a DisableRootJobs=NO\n", "PartitionName=a\n");
        assert!(plan(old, new).by_rpc.is_some());
        let global = |text: &str| format!("DisableRootJobs=YES\n{text}");
        assert_eq!(plan(&global(old), &global(new)).by_rpc, None);
        assert!(plan(&global(new), &global(old)).by_rpc.is_some());
    }

    #[test]
    fn defaults_of_other_lines_count() {
        let plan = plan(
            "PartitionName=DEFAULT MaxTime=5\nPartitionName=a Nodes=n",
            "PartitionName=DEFAULT MaxTime=7\nPartitionName=a Nodes=n",
        );
        assert_eq!(plan.by_rpc.unwrap().updated[0].there.max_time, Some(7));
    }

    #[test]
    fn anything_else_takes_a_reconfigure_and_the_removed_are_still_known() {
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
            assert_eq!(plan.by_rpc, None, "{new}");
            assert_eq!(plan.removed, ["a"], "{new}");
        }
        assert_eq!(
            plan("PartitionName=a Nodes=n", "# why\nPartitionName=a Nodes=n").by_rpc,
            None
        );
    }

    #[test]
    fn which_of_several_is_the_default_is_up_to_the_file() {
        let one = "PartitionName=a\nPartitionName=b Default=YES\n";
        let two = "PartitionName=a Default=YES\nPartitionName=b Default=YES\n";
        assert_eq!(plan(one, two).by_rpc, None);
        assert!(plan(two, one).by_rpc.is_some());
        assert!(plan(two, &two.replace("b ", "b MaxTime=5 ")).by_rpc.is_some());
    }

    #[test]
    fn a_way_without_a_way_back_is_known() {
        let plan = plan("PartitionName=a Nodes=n", "PartitionName=a Nodes=n DefaultTime=5");
        let updated = &plan.by_rpc.unwrap().updated[0];
        assert_eq!(updated.there.default_time, Some(5));
        assert_eq!(updated.back, None);
    }

    #[test]
    fn what_no_file_has_would_vanish() {
        let plan = plan("PartitionName=a\nPartitionName=b", "PartitionName=b\nMaxJobCount=5");
        let up = PartitionStateName::Up;
        let partitions = [live("a", up), live("b", up), live("hand", up)];
        let names: Vec<&str> = plan
            .would_vanish(&partitions)
            .iter()
            .map(|partition| partition.name.as_str())
            .collect();
        assert_eq!(names, ["a", "hand"]);
        assert!(plan.is_made_by_hand("hand"));
        assert!(!plan.is_made_by_hand("a"));
    }

    #[test]
    fn a_partition_closed_by_hand_is_seen_unless_the_files_change_its_state() {
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
            let by_hand = plan.set_by_hand(&[live("a", state)], &BTreeSet::new());
            assert_eq!(!by_hand.closed.is_empty(), kept, "{old} to {new}, {state}");
            assert_eq!(by_hand.opened, [], "it is not known to be anybody's");
        }
    }

    #[test]
    fn a_partition_opened_by_hand_is_seen_where_its_closing_was_by_hand() {
        use PartitionStateName::{Down, Drain, Inactive, Up};
        for (old, new, state, expected) in [
            ("State=DRAIN", "State=DRAIN", Up, "opened"),
            ("State=DOWN", "State=DOWN", Drain, "opened"),
            ("State=INACTIVE", "State=INACTIVE", Drain, "opened"),
            ("State=DRAIN", "State=DRAIN", Drain, ""),
            ("State=DRAIN", "State=DRAIN", Inactive, "closed"),
            // slurmctld may not have been closed yet when it was looked at.
            ("", "State=DRAIN", Up, ""),
            ("", "State=DRAIN", Down, ""),
            ("State=DRAIN", "", Up, ""),
            // Its line cannot be written to, so that only slurmctld has the closing.
            ("", "", Drain, "closed"),
            ("", "", Up, ""),
        ] {
            let conf = |state: &str| format!("PartitionName=a {state}\nPartitionName=b State=DRAIN\n");
            let plan = plan(&conf(old), &conf(new));
            let lifted = BTreeSet::from(["a".to_owned()]);
            let by_hand = plan.set_by_hand(&[live("a", state), live("b", Up)], &lifted);
            let kept = KeptState {
                partition: "a".to_owned(),
                state: state.to_string(),
            };
            let only = |list: &str| if list == expected { vec![kept.clone()] } else { vec![] };
            let case = format!("{old} to {new}, {state}");
            assert_eq!(
                (by_hand.closed, by_hand.opened),
                (only("closed"), only("opened")),
                "{case}"
            );
        }
    }

    #[test]
    fn what_has_yet_to_be_set_again_is_not_forgotten_for_the_next_change() {
        let kept = |partition: &str, state: &str| KeptState {
            partition: partition.to_owned(),
            state: state.to_owned(),
        };
        let old = "PartitionName=a\nPartitionName=b\nPartitionName=c\nPartitionName=d State=DRAIN\n";
        let new = old.replace("=b", "=b State=DRAIN");
        let earlier = ByHand {
            closed: vec![kept("a", "DOWN"), kept("b", "DRAIN"), kept("c", "DRAIN")],
            opened: vec![kept("d", "UP")],
        };
        let now = ByHand {
            closed: vec![kept("a", "INACTIVE")],
            opened: vec![],
        };
        assert_eq!(
            plan(old, &new).still_by_hand(&earlier, now),
            ByHand {
                closed: vec![kept("a", "INACTIVE"), kept("c", "DRAIN")],
                opened: vec![kept("d", "UP")],
            },
            "of a there is newer word, and b is what the files say"
        );
    }
}
