//! Daemons are killed while Partitions are created, changed and deleted.
//!
//! Each round creates two Partitions, changes their settings and their members, and deletes them while a job runs in
//! one of them.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use testbed::harness::{Namespace, alone, eventually, expect};

use crate::common::clusters::{change_spec, chart_cluster};
use crate::common::kills::Victim;
use crate::common::slurm::{SOON, slurm, slurm_conf, start_job, wait_done, wait_idle, wait_saved};

const VALUES: &str = "nodesets:
  slinky:
    replicas: 1
  second:
    replicas: 0
partitions:
  all:
    enabled: true
";
const POD: &str = "slurm-controller-0";
const NAMES: [&str; 2] = ["busy", "free"];

/// What is killed at the creation, the change of settings, the change of members and the deletion, and how many
/// milliseconds after the edit. A change is live after some tens of milliseconds. Kubernetes restarts a container with
/// a growing back-off, hence the pod in between; slurmctld alone is restarted by its supervisor.
const ROUNDS: [[(Victim, u64); 4]; 5] = [
    [
        (Victim::SlurmctldProcess, 0),
        (Victim::SlurmctldProcess, 20),
        (Victim::SlurmctldProcess, 40),
        (Victim::SlurmctldProcess, 60),
    ],
    [
        (Victim::SlurmctldProcess, 30),
        (Victim::SlurmctldProcess, 60),
        (Victim::SlurmctldProcess, 10),
        (Victim::SlurmctldProcess, 20),
    ],
    [
        (Victim::SlurmctldProcess, 80),
        (Victim::SlurmctldProcess, 120),
        (Victim::SlurmctldProcess, 150),
        (Victim::SlurmctldProcess, 120),
    ],
    [
        (Victim::Agent, 20),
        (Victim::OperatorProcess, 20),
        (Victim::Agent, 60),
        (Victim::OperatorProcess, 40),
    ],
    [
        (Victim::OperatorProcess, 0),
        (Victim::Pod, 50),
        (Victim::OperatorProcess, 60),
        (Victim::Agent, 30),
    ],
];

struct Ground<'a> {
    namespace: &'a Namespace,
}

/// The desired state of a Partition: its time limit in minutes, its nodes and its state, as Slurm writes them.
#[derive(Clone, Copy)]
struct Wanted {
    minutes: u32,
    nodes: &'static str,
    state: &'static str,
}

impl Ground<'_> {
    /// A kill by kubectl takes about as long as the edit, so both start together.
    fn kill_at(&self, (victim, after): (Victim, u64), edit: impl FnOnce() + Send) {
        std::thread::scope(|scope| {
            let editing = scope.spawn(edit);
            if matches!(victim, Victim::SlurmctldProcess) {
                editing.join().unwrap();
            }
            std::thread::sleep(Duration::from_millis(after));
            victim.kill(self.namespace);
        });
    }

    fn slurm(&self, line: &str) -> Result<String> {
        slurm(self.namespace, line)
    }

    fn change(&self, spec: &Value) {
        for name in NAMES {
            change_spec(self.namespace, &format!("partition.slinky.slurm.net/{name}"), spec).unwrap();
        }
    }

    fn make(&self, minutes: u32) {
        let manifest = |name: &str| {
            json!({
                "apiVersion": "slinky.slurm.net/v1alpha1", "kind": "Partition", "metadata": { "name": name },
                "spec": { "controllerRef": { "name": "slurm" }, "nodeSets": ["slinky"], "maxTime": minutes },
            })
        };
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": NAMES.map(manifest) });
        self.namespace.apply(&list.to_string()).unwrap();
    }

    fn delete(&self) {
        let delete = ["delete", "partition.slinky.slurm.net", "--all", "--wait=false"];
        self.namespace.ask(&delete).unwrap();
    }

    /// Expects the same in slurmctld, in its file and in the ConfigMap for the next pod.
    fn agrees(&self, name: &str, wanted: Wanted) -> Result<()> {
        let Wanted { minutes, nodes, state } = wanted;
        let shown = self.slurm(&format!("scontrol --oneliner show partition {name}"))?;
        let words = [
            format!("NodeSets={nodes} "),
            format!("MaxTime=00:{minutes:02}:00 "),
            format!("State={state} "),
        ];
        expect(words.iter().all(|word| shown.contains(word)), shown)?;
        let line = format!("PartitionName={name} Nodes={nodes} State={state} MaxTime={minutes}");
        let file = slurm_conf(self.namespace)?;
        expect(file.lines().any(|found| found == line), (line, file))
    }

    fn ready(&self, name: &str) -> Result<()> {
        let object = format!("partition.slinky.slurm.net/{name}");
        let generation = self.namespace.field(&object, ".metadata.generation")?;
        let path = ".status.conditions[?(@.type==\"Ready\")]";
        let said = self
            .namespace
            .field(&object, &format!("{path}.status}} {{{path}.observedGeneration"))?;
        expect(said == format!("True {generation}"), (said, generation))
    }

    fn all_are(&self, case: &str, wanted: Wanted) {
        for name in NAMES {
            eventually(&format!("{case}: {name}"), SOON, || {
                self.agrees(name, wanted)?;
                self.ready(name)
            })
            .unwrap();
        }
    }

    fn gone(&self, case: &str, name: &str) {
        eventually(&format!("{case}: {name} is gone"), SOON, || {
            let get = [
                "get",
                "partition.slinky.slurm.net",
                "--ignore-not-found",
                name,
                "-o",
                "yaml",
            ];
            let object = self.namespace.ask(&get)?;
            expect(object.is_empty(), object)?;
            let live = self.slurm("scontrol --oneliner show partitions")?;
            expect(!live.contains(&format!("PartitionName={name} ")), live)?;
            let file = slurm_conf(self.namespace)?;
            expect(!file.contains(&format!("PartitionName={name} ")), file)
        })
        .unwrap();
    }

    fn runs_undisturbed(&self, case: &str, job: &str) {
        eventually(&format!("{case}: job {job} runs"), SOON, || {
            let shown = self.slurm(&format!("scontrol show job {job}"))?;
            expect(
                shown.contains("JobState=RUNNING") && shown.contains("Restarts=0"),
                shown,
            )
        })
        .unwrap();
    }

    fn round(&self, number: usize, [making, settings, members, deletion]: [(Victim, u64); 4]) {
        let case = |what: &str, (victim, after): (Victim, u64)| {
            format!("round {number}, {victim:?} killed {after} ms after {what}")
        };
        let mut wanted = Wanted {
            minutes: 20,
            nodes: "slinky",
            state: "UP",
        };
        self.kill_at(making, || self.make(wanted.minutes));
        self.all_are(&case("the making", making), wanted);
        let until_told = format!("until [ -e /tmp/enough-{number} ]; do sleep 1; done");
        let job = start_job(self.namespace, "--partition=busy", &until_told).unwrap();
        wait_saved(self.namespace).unwrap();

        wanted.minutes += 10;
        self.kill_at(settings, || self.change(&json!({ "maxTime": wanted.minutes })));
        self.all_are(&case("the change of settings", settings), wanted);
        wanted.nodes = "second,slinky";
        self.kill_at(members, || self.change(&json!({ "nodeSets": ["second", "slinky"] })));
        self.all_are(&case("the change of members", members), wanted);
        self.runs_undisturbed(&case("the change of members", members), &job);

        let case = case("the deletion", deletion);
        self.kill_at(deletion, || self.delete());
        self.gone(&case, "free");
        wanted.state = "DRAIN";
        eventually(&case, SOON, || self.agrees("busy", wanted)).unwrap();
        self.runs_undisturbed(&case, &job);
        let end = format!("touch /tmp/enough-{number}");
        self.namespace.inside("slurm-worker-slinky-0", "slurmd", &end).unwrap();
        wait_done(self.namespace, &job).unwrap();
        self.gone(&case, "busy");
        // Otherwise slurmctld would restore the job as running after the next kill.
        wait_saved(self.namespace).unwrap();
    }
}

#[test]
fn partitions_are_complete_or_deleted_everywhere_whatever_is_killed_and_jobs_continue() {
    let alone = alone();
    let cluster = alone.cluster;
    let namespace = chart_cluster(cluster, "partition-deaths", VALUES, 1);
    // Slurm loses nodes that joined just before it is killed.
    wait_saved(&namespace).unwrap();
    let ground = Ground { namespace: &namespace };
    for (number, round) in ROUNDS.into_iter().enumerate() {
        namespace.wait_new("condition=Ready", &format!("pod/{POD}")).unwrap();
        ground.round(number, round);
    }
    wait_idle(&namespace, 1).unwrap();
}
