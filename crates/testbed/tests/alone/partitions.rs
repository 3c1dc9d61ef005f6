//! Whoever takes part in making, changing and deleting Partitions dies in the middle of it.
//!
//! Each round makes two, changes their settings and their members, and deletes them while a job is in one of them.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use testbed::cluster::Cluster;
use testbed::faults::Pod;
use testbed::harness::{Namespace, alone, eventually, expect};

use crate::common::operator::{
    SOON, change_spec, install, install_chart, kill_container, kill_operator, slurm, start_job, wait_done, wait_idle,
    wait_saved,
};

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

/// Who dies at the making, at the change of settings, at that of members and at the deletion, and how many milliseconds after the edit:
/// a change is live after some tens of them. Kubernetes brings what dies often back ever later, hence the pod in between;
/// slurmctld alone is brought back by its supervisor.
const ROUNDS: [[(Victim, u64); 4]; 5] = [
    [
        (Victim::Slurmctld, 0),
        (Victim::Slurmctld, 20),
        (Victim::Slurmctld, 40),
        (Victim::Slurmctld, 60),
    ],
    [
        (Victim::Slurmctld, 30),
        (Victim::Slurmctld, 60),
        (Victim::Slurmctld, 10),
        (Victim::Slurmctld, 20),
    ],
    [
        (Victim::Slurmctld, 80),
        (Victim::Slurmctld, 120),
        (Victim::Slurmctld, 150),
        (Victim::Slurmctld, 120),
    ],
    [
        (Victim::Agent, 20),
        (Victim::Operator, 20),
        (Victim::Agent, 60),
        (Victim::Operator, 40),
    ],
    [
        (Victim::Operator, 0),
        (Victim::Pod, 50),
        (Victim::Operator, 60),
        (Victim::Agent, 30),
    ],
];

#[derive(Clone, Copy, Debug)]
enum Victim {
    Agent,
    Slurmctld,
    /// slurmctld's, with all that is in it.
    Pod,
    Operator,
}

struct Ground<'a> {
    cluster: &'a Cluster,
    namespace: &'a Namespace,
}

/// What a Partition is to be: minutes, and its nodes in Slurm's words.
#[derive(Clone, Copy)]
struct Wanted {
    minutes: u32,
    nodes: &'static str,
    state: &'static str,
}

impl Ground<'_> {
    /// Who is killed with kubectl's help is so after about the time that the edit takes.
    fn kill_at(&self, (victim, after): (Victim, u64), edit: impl FnOnce() + Send) {
        std::thread::scope(|scope| {
            let editing = scope.spawn(edit);
            if matches!(victim, Victim::Slurmctld) {
                editing.join().unwrap();
            }
            std::thread::sleep(Duration::from_millis(after));
            self.kill(victim);
        });
    }

    fn kill(&self, victim: Victim) {
        match victim {
            Victim::Agent => kill_container(self.cluster, self.namespace, "reconfigure").unwrap(),
            Victim::Slurmctld => {
                // Right after another kill there may be nobody yet.
                eventually("slurmctld is killed", SOON, || self.slurm("kill -9 $(pidof slurmctld)")).unwrap();
            }
            Victim::Pod => {
                let now = ["delete", "pod", POD, "--force", "--grace-period=0"];
                self.namespace.ask(&now).unwrap();
            }
            Victim::Operator => self.kill_operator(),
        }
    }

    /// The process at once, and then its pod, so that the next one does not have to wait.
    fn kill_operator(&self) {
        let pods = ["get", "pods", "--namespace=slinky", "-o", "name"];
        let selector = "--selector=app.kubernetes.io/name=slurm-operator";
        let pods = self.cluster.ask(&[&pods[..], &[selector]].concat()).unwrap();
        let killed = pods
            .lines()
            .filter_map(|line| line.strip_prefix("pod/"))
            .filter(|name| {
                let pod = Pod {
                    namespace: "slinky",
                    name,
                };
                // One before it may be on its way out.
                self.cluster.kill_container(pod, "slurm-operator").is_ok()
            });
        assert_eq!(killed.count(), 1, "{pods}");
        kill_operator(self.cluster).unwrap();
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

    /// What slurmctld says, what its file says and what Kubernetes has for the next pod are the same.
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
        let file = self.file()?;
        expect(file.lines().any(|found| found == line), (line, file))
    }

    /// The live file, once it is also what the next pod would start from.
    fn file(&self) -> Result<String> {
        let file = self.slurm("cat /etc/slurm/slurm.conf")?;
        let object = self.namespace.field("configmap/slurm-config", ".data.slurm\\.conf")?;
        expect(object == file, (object, &file))?;
        Ok(file)
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
            let file = self.file()?;
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
        // Or the next kill would have the job run again, in Slurm's memory.
        wait_saved(self.namespace).unwrap();
    }
}

#[test]
fn partitions_are_whole_or_gone_everywhere_in_the_end_whoever_dies_meanwhile_and_jobs_go_on() {
    let alone = alone();
    let cluster = alone.cluster;
    install(cluster);
    let namespace = Namespace::create(cluster, "partition-deaths").unwrap();
    install_chart(cluster, &namespace, VALUES).unwrap();
    wait_idle(&namespace, 1).unwrap();
    // Slurm forgets who joined a moment before it is killed.
    wait_saved(&namespace).unwrap();
    let ground = Ground {
        cluster,
        namespace: &namespace,
    };
    for (number, round) in ROUNDS.into_iter().enumerate() {
        namespace.wait_new("condition=Ready", &format!("pod/{POD}")).unwrap();
        ground.round(number, round);
    }
    wait_idle(&namespace, 1).unwrap();
}
