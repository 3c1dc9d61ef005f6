//! A world that executes all writes, and random events in it.

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    MirrorMemory, PodChange, TopologyRequest, mirror,
    tests::{FEATURES, TOPOLOGY, host, known, node, seconds},
};
use crate::{
    cluster::{Knowledge, Seen},
    nodeset::{
        fixture::{controller, nodeset, now, observed, slurm_key, unknown, worker},
        observe::Observed,
    },
};

/// What happens to a pod and its node.
#[derive(Clone, Debug)]
enum Event {
    State(&'static [&'static str]),
    Annotation(Option<&'static str>, Option<&'static str>),
    Wait(i64),
    Silence,
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        prop::sample::select(vec![
            &["IDLE"][..],
            &["MIXED"],
            &["DOWN", "NOT_RESPONDING"],
            &["IDLE", "DRAIN"]
        ])
        .prop_map(Event::State),
        (
            prop::option::of(prop::sample::select(vec!["a", "b,a"])),
            prop::option::of(prop::sample::select(vec!["t:1", "t:2"]))
        )
            .prop_map(|(features, topology)| Event::Annotation(features, topology)),
        (0..8_i64).prop_map(Event::Wait),
        Just(Event::Silence),
    ]
}

proptest! {
    /// The world settles, and no pod is written too often.
    #[test]
    fn it_comes_to_rest_and_writes_no_pod_too_often(events in prop::collection::vec(events(), 0..12)) {
        let mut world = World::default();
        for event in events {
            match event {
                Event::State(state) => world.node["state"] = json!(state),
                Event::Annotation(features, topology) => {
                    let mut annotations = json!({});
                    if let Some(features) = features { annotations[FEATURES] = json!(features); }
                    if let Some(topology) = topology { annotations[TOPOLOGY] = json!(topology); }
                    world.host = host(&annotations);
                }
                Event::Wait(count) => world.now += seconds(count),
                Event::Silence => { mirror(&world.look(&unknown()), &world.memory); }
            }
            world.turn();
        }
        for _ in 0..8 {
            world.now += seconds(6);
            world.turn();
        }
        prop_assert_eq!(world.turn(), 0);
        for pair in world.writes.windows(2) {
            prop_assert!(pair[1].duration_since(pair[0]) >= seconds(5));
        }
        let topology = world.host["metadata"]["annotations"][TOPOLOGY].as_str().unwrap_or_default();
        prop_assert_eq!(world.node["topology"].as_str().unwrap_or_default(), topology);
        prop_assert_eq!(world.pod["metadata"]["annotations"][TOPOLOGY].as_str().unwrap_or_default(), topology);
    }
}

struct World {
    now: Timestamp,
    pod: Value,
    host: Value,
    node: Value,
    memory: MirrorMemory,
    writes: Vec<Timestamp>,
}

impl Default for World {
    fn default() -> Self {
        Self {
            now: now(),
            pod: worker(0),
            host: host(&json!({})),
            node: node(&json!({ "comment": "" })),
            memory: MirrorMemory::default(),
            writes: Vec::new(),
        }
    }
}

impl World {
    fn look(&self, knowledge: &Knowledge) -> Observed {
        let spec = json!({ "replicas": 1 });
        let objects = vec![
            controller(),
            slurm_key(),
            nodeset(&spec),
            self.pod.clone(),
            self.host.clone(),
        ];
        let mut observed = observed(objects, knowledge.clone());
        observed.now = self.now;
        observed
    }

    /// Plans and executes; returns the number of writes.
    fn turn(&mut self) -> usize {
        let Knowledge::Known(seen) = known(vec![self.node.clone()], vec![]) else {
            panic!()
        };
        let seen = Seen {
            at: self.now,
            ..Seen::clone(&seen)
        };
        let observed = self.look(&Knowledge::Known(std::sync::Arc::new(seen)));
        let mirror = mirror(&observed, &self.memory);
        self.now += SignedDuration::from_millis(10);
        for (worker, change) in &mirror.pod_writes {
            self.memory.entry(worker.uid().to_owned()).or_default().written = Some(self.now);
            self.writes.push(self.now);
            match change {
                PodChange::Annotations(marks) => {
                    let annotations = self.pod["metadata"]["annotations"].as_object_mut().unwrap();
                    for (key, value) in marks {
                        match value {
                            Some(value) => drop(annotations.insert(key.clone(), json!(value))),
                            None => drop(annotations.remove(key)),
                        }
                    }
                }
                PodChange::Conditions(conditions) => {
                    let list = self.pod["status"]["conditions"].as_array_mut().unwrap();
                    list.retain(|condition| condition["type"] == "Ready");
                    list.extend(
                        conditions
                            .iter()
                            .map(|condition| serde_json::to_value(condition).unwrap()),
                    );
                }
            }
        }
        for (worker, description) in &mirror.node_updates {
            let memory = self.memory.entry(worker.uid().to_owned()).or_default();
            memory.updated = Some(self.now);
            if let Some(place) = &description.topology {
                self.node["topology"] = json!(place.as_str());
                memory.topology = Some(TopologyRequest {
                    place: place.to_string(),
                    at: self.now,
                    refused: None,
                });
            }
            if let Some(comment) = &description.comment {
                self.node["comment"] = json!(comment.as_str());
            }
            if let Some(features) = &description.features {
                self.node["features"] = json!(features.available);
                self.node["active_features"] = json!(features.active);
            }
        }
        mirror.pod_writes.len() + mirror.node_updates.len()
    }
}
