//! What judges and histories see of the world.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use runtime::fake::{Path, Refusal};
use serde_json::Value;

use super::World;
use crate::slurm::State;

/// What is under way that no object shows, with how often. A clone is the same one.
#[derive(Debug, Clone, Default)]
pub(super) struct Activities(Arc<Mutex<BTreeMap<&'static str, u64>>>);

/// Something that is under way until this is dropped.
#[derive(Debug)]
pub(super) struct Activity {
    what: &'static str,
    all: Activities,
}

impl Drop for Activity {
    fn drop(&mut self) {
        *self.all.0.lock().unwrap().entry(self.what).or_default() -= 1;
    }
}

impl World {
    pub(super) fn begin(&self, what: &'static str) -> Activity {
        let all = self.activities.clone();
        *all.0.lock().unwrap().entry(what).or_default() += 1;
        Activity { what, all }
    }

    pub fn is_under_way(&self, what: &str) -> bool {
        self.activities
            .0
            .lock()
            .unwrap()
            .get(what)
            .is_some_and(|count| *count > 0)
    }

    /// Whether the lease names an operator that runs.
    pub fn has_leader(&self) -> bool {
        let leader = self.leader();
        let operators = self.operators.lock().unwrap();
        let runs = |(name, operator): (&String, &super::Operator)| leader.starts_with(name) && !operator.life.is_dead();
        operators.iter().any(runs)
    }

    /// Why the live slurm.conf is not as people want it.
    pub fn configuration_differs(&self) -> Option<String> {
        let controller = self.get("controllers", "slurm").unwrap_or_default();
        let wanted = controller["spec"]["extraConf"].as_str().unwrap_or_default().to_owned();
        let live = self.get("configmaps", "slurm-config").unwrap_or_default();
        let live = live["data"]["slurm.conf"].as_str().unwrap_or_default();
        (!live.contains(wanted.trim())).then(|| format!("slurm.conf lacks {wanted:?}"))
    }

    /// Whether slurmctld would forget something of nodes or jobs if it died now.
    pub fn has_unsaved(&self) -> bool {
        let slurm = self.slurm();
        let Some(state) = self.active().and_then(|active| slurm.state(active).ok()) else {
            return false;
        };
        let saved = slurm.saved(self.volume());
        let nodes = |state: &State| -> Vec<_> {
            let nodes = state.nodes.values();
            nodes
                .map(|node| (node.name.clone(), node.down, node.flags.clone()))
                .collect()
        };
        let jobs = |state: &State| -> Vec<_> { state.jobs.values().map(|job| (job.id, job.phase)).collect() };
        nodes(state) != nodes(saved) || jobs(state) != jobs(saved)
    }

    /// The kinds of all objects.
    pub fn plurals(&self) -> Vec<String> {
        self.access.server.store().plurals().into_iter().collect()
    }

    /// Creates an object at any path.
    pub fn create_at(&self, path: &str, object: Value) {
        let created = self.edit(|store| store.create(&Path::parse(path), object, "kubectl"));
        assert!(created.is_ok(), "{path}: {created:?}");
    }

    pub fn get_at(&self, path: &str) -> Result<Value, Refusal> {
        self.access.server.store().get(&Path::parse(path))
    }
}
