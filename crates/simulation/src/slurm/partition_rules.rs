//! What slurmctld does with partitions at run time. Nothing of it survives a reconfigure or a restart.

use std::collections::BTreeSet;
use std::time::Duration;

use super::controller::Controller;
use super::request::{Code, PartitionUpdate};
use super::settings::PartitionLine;
use super::state::Partition;

const STATES: [&str; 4] = ["UP", "DOWN", "DRAIN", "INACTIVE"];

impl Controller {
    pub(super) fn create_partition(&mut self, name: &str, update: &PartitionUpdate, now: Duration) -> Result<(), Code> {
        if self.state.partitions.contains_key(name) {
            return Err(Code::InvalidPartitionName);
        }
        let nodes = update.nodes.clone().unwrap_or_default();
        let members = self.expand(&nodes)?;
        let mut partition = Partition::of_line(name, &PartitionLine::default());
        partition.nodes = nodes;
        partition.members = members;
        self.state.partitions.insert(name.to_owned(), partition);
        let rest = PartitionUpdate {
            nodes: None,
            ..update.clone()
        };
        self.update_partition(name, &rest, now)
    }

    /// An error leaves the settings before it changed.
    pub(super) fn update_partition(&mut self, name: &str, update: &PartitionUpdate, now: Duration) -> Result<(), Code> {
        if update.settings.get("Default").is_some_and(|value| value == "YES") {
            for other in self.state.partitions.values_mut() {
                other.settings.remove("Default");
            }
        }
        let partition = self.state.partitions.get_mut(name).ok_or(Code::InvalidPartitionName)?;
        let settings = update.settings.iter().map(|(key, value)| (key.clone(), value.clone()));
        partition.settings.extend(settings);
        if let Some(state) = &update.state {
            let known = STATES.contains(&state.as_str());
            partition.state = if known { state.clone() } else { "UNKNOWN".to_owned() };
        }
        if let Some(nodes) = &update.nodes {
            self.set_nodes(name, nodes)?;
        }
        self.dirty.partitions = true;
        self.plan_save(now);
        self.plan_schedule(now);
        Ok(())
    }

    /// `+n1` and `-n1` make a partition a plain list, without its NodeSets.
    fn set_nodes(&mut self, name: &str, nodes: &str) -> Result<(), Code> {
        let mut members = self.state.partitions[name].members.clone();
        let relative = nodes.starts_with(['+', '-']);
        let (list, members) = if relative {
            for item in nodes.split(',') {
                let listed = self.expand(item.trim_start_matches(['+', '-']));
                if item.starts_with('-') {
                    // Measured: a node that does not exist can be removed.
                    let removed = listed.unwrap_or_default();
                    members.retain(|member| !removed.contains(member));
                } else {
                    members.extend(listed?);
                }
            }
            (members.iter().cloned().collect::<Vec<_>>().join(","), members)
        } else {
            (nodes.to_owned(), self.expand(nodes)?)
        };
        let partition = self.state.partitions.get_mut(name).expect("the caller has it");
        partition.nodes = list;
        partition.members = members;
        Ok(())
    }

    pub(super) fn expand(&self, nodes: &str) -> Result<BTreeSet<String>, Code> {
        if nodes.is_empty() {
            return Ok(BTreeSet::new());
        }
        self.state.expand(nodes, &self.conf).ok_or(Code::InvalidNodeName)
    }

    /// A job that is completing does not count as a user.
    pub(super) fn delete_partition(&mut self, name: &str) -> Result<(), Code> {
        if !self.state.partitions.contains_key(name) {
            return Err(Code::InvalidPartitionName);
        }
        let uses = |partition: &str| partition.split(',').any(|own| own == name);
        if self
            .state
            .jobs
            .values()
            .any(|job| job.is_active() && uses(&job.partition))
        {
            return Err(Code::PartitionInUse);
        }
        self.state.partitions.remove(name);
        Ok(())
    }
}
