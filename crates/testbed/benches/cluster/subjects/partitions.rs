//! A Partition edited until slurmctld has it: alone, among a thousand, across NodeSets, and while a reconfigure is in flight.

use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testbed::cluster::Cluster;
use testbed::command::output;
use testbed::harness::{Namespace, eventually, expect};
use testbed::steps::long_step;
use tokio::runtime::Runtime;

use super::api;
use super::configuration::reconfigures;
use super::effort::Effort;
use super::observer::Observer;
use super::table::{Row, Table, percentile};
use crate::common::clusters::set_extra_conf;
use crate::common::slurm::slurm;

/// An edit is measured after the previous one is live.
const APART: Duration = Duration::from_millis(200);
const TIMEOUT: Duration = Duration::from_mins(5);
/// The object, and the partition.
const NAME: &str = "bench";
const SETS: [&str; 3] = ["slurm-worker-slinky", "slurm-worker-second", "slurm-worker-third"];

pub(crate) struct Bench<'a> {
    cluster: &'a Cluster,
    effort: Effort,
    namespace: &'a Namespace,
    runtime: Runtime,
    partitions: Api<DynamicObject>,
    observer: Observer,
    /// The last value, so that each edit sets another one.
    minutes: u32,
}

impl<'a> Bench<'a> {
    pub(crate) fn new(cluster: &'a Cluster, namespace: &'a Namespace, effort: &Effort) -> Result<Self> {
        let runtime = Runtime::new()?;
        let client = runtime.block_on(api::client(cluster))?;
        let partitions = Api::namespaced_with(client, &namespace.name, &api::partitions());
        let made = partition(NAME);
        let made: DynamicObject = serde_json::from_value(made)?;
        runtime.block_on(partitions.create(&PostParams::default(), &made))?;
        eventually("the partition", TIMEOUT, || {
            slurm(namespace, "scontrol show partition bench")
        })?;
        let observer = Observer::of(ask(cluster, namespace, "watch", NAME)?)?;
        Ok(Self {
            cluster,
            effort: *effort,
            namespace,
            runtime,
            partitions,
            observer,
            minutes: 1,
        })
    }

    pub(crate) fn measure(&mut self, table: &mut Table) -> Result<()> {
        let scontrol = self.scontrol()?;
        let raw = self.raw()?;
        let edits = long_step("edits of a Partition", || self.edit_often(self.effort.edits, || Ok(())))?;
        for (what, percent) in [
            ("Partition edit to live, p50, ms", 50),
            ("Partition edit to live, p99, ms", 99),
        ] {
            for (name, baseline) in [("`scontrol update` in the pod", &scontrol), ("the RPC alone", &raw)] {
                table.add(row(what, percent, &edits, Some((name, baseline))));
            }
        }

        let members = long_step("members of a Partition", || self.move_often())?;
        table.add(row("a NodeSet in or out of a Partition, p50, ms", 50, &members, None));
        table.add(row("a NodeSet in or out of a Partition, p99, ms", 99, &members, None));

        let namespace = self.namespace;
        let mut wait = 30;
        let beside = long_step("edits while a reconfigure is in flight", || {
            self.edit_often(self.effort.hindered_partition_edits, || {
                wait = 30 + wait % 60;
                thread::sleep(Duration::from_secs(1));
                set_extra_conf(namespace, &format!("KillWait={wait}"))
            })
        })?;
        table.add(row("Partition edit beside a reconfigure, p50, ms", 50, &beside, None));
        table.add(row("Partition edit beside a reconfigure, p90, ms", 90, &beside, None));
        self.among_many(table)
    }

    /// One of a thousand.
    fn among_many(&mut self, table: &mut Table) -> Result<()> {
        let begun = SystemTime::now();
        let made = (0..self.effort.further).map(|number| partition(&format!("many{number}")));
        let partitions = &self.partitions;
        self.runtime.block_on(
            stream::iter(made)
                .map(|made| async move {
                    let made: DynamicObject = serde_json::from_value(made)?;
                    partitions.create(&PostParams::default(), &made).await?;
                    anyhow::Ok(())
                })
                .buffer_unordered(16)
                .try_collect::<()>(),
        )?;
        eventually("a thousand partitions", TIMEOUT, || {
            let said = slurm(
                self.namespace,
                "scontrol --oneliner show partitions | grep -c PartitionName=many",
            )?;
            expect(said.trim() == self.effort.further.to_string(), said)
        })?;
        table.add(Row::alone(
            "1,000 Partitions made and live, s",
            begun.elapsed()?.as_secs_f64(),
        ));
        thread::sleep(self.effort.rest);

        let before = (self.updates()?, reconfigures(self.namespace)?);
        let edits = long_step("edits among 1,000 Partitions", || {
            self.edit_often(self.effort.hindered_partition_edits, || Ok(()))
        })?;
        let after = (self.updates()?, reconfigures(self.namespace)?);
        table.add(row("edit of one Partition of 1,001, p50, ms", 50, &edits, None));
        table.add(row("edit of one Partition of 1,001, p90, ms", 90, &edits, None));
        let each = f64::from(after.0 - before.0) / f64::from(self.effort.hindered_partition_edits);
        table.add(Row::alone("… RPCs for each", each));
        table.add(Row::alone("… reconfigures in all", f64::from(after.1 - before.1)));
        Ok(())
    }

    fn edit_often(&mut self, edits: u32, mut before: impl FnMut() -> Result<()>) -> Result<Vec<Duration>> {
        let mut took = Vec::new();
        for _ in 0..edits {
            thread::sleep(APART);
            before()?;
            self.minutes = self.minutes % 1_000 + 1;
            let sent = SystemTime::now();
            self.patch(&json!({ "maxTime": self.minutes }))?;
            took.push(self.wait_for(&format!("{} ", self.minutes))?.duration_since(sent)?);
        }
        Ok(took)
    }

    /// The last NodeSet leaves and comes back. Slurm shows them sorted.
    fn move_often(&mut self) -> Result<Vec<Duration>> {
        let mut took = Vec::new();
        for edit in 0..self.effort.hindered_partition_edits {
            thread::sleep(APART);
            let (sets, seen) = if edit % 2 == 0 {
                (&SETS[..2], "second,slinky")
            } else {
                (&SETS[..], "second,slinky,third")
            };
            let sent = SystemTime::now();
            self.patch(&json!({ "nodeSets": sets }))?;
            took.push(
                self.wait_for(&format!("{} {seen}", self.minutes))?
                    .duration_since(sent)?,
            );
        }
        Ok(took)
    }

    fn wait_for(&self, beginning: &str) -> Result<SystemTime> {
        self.observer
            .wait_until(beginning, TIMEOUT, |seen| seen.starts_with(beginning))
    }

    fn patch(&self, spec: &Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "spec": spec }));
        let parameters = PatchParams::default();
        self.runtime
            .block_on(self.partitions.patch(NAME, &parameters, &patch))?;
        Ok(())
    }

    /// The duration of `scontrol` in the pod, by the clock of the pod. Its values are not used afterwards.
    fn scontrol(&self) -> Result<Vec<Duration>> {
        let line = "for i in $(seq 50); do begun=$EPOCHREALTIME; scontrol update PartitionName=slinky MaxTime=$i; \
                    echo $begun $EPOCHREALTIME; done";
        let mut took = Vec::new();
        for times in slurm(self.namespace, line)?.lines() {
            let (begun, ended) = times.split_once(' ').context("no times")?;
            took.push(Duration::try_from_secs_f64(
                ended.parse::<f64>()? - begun.parse::<f64>()?,
            )?);
        }
        Ok(took)
    }

    fn raw(&self) -> Result<Vec<Duration>> {
        let said = output(&mut ask(self.cluster, self.namespace, "update", "slinky")?)?;
        let seconds = said.lines().map(str::parse::<f64>);
        seconds
            .map(|seconds| Ok(Duration::try_from_secs_f64(seconds?)?))
            .collect()
    }

    /// Number of changes of a partition that were sent to slurmctld.
    fn updates(&self) -> Result<u32> {
        let said = slurm(
            self.namespace,
            "sdiag | grep REQUEST_UPDATE_PARTITION | grep -o 'count:[0-9]*' | head -1",
        )?;
        Ok(said.trim().trim_start_matches("count:").parse().unwrap_or_default())
    }
}

fn partition(name: &str) -> Value {
    json!({
        "apiVersion": "slinky.slurm.net/v1alpha1", "kind": "Partition", "metadata": { "name": name },
        "spec": { "controllerRef": { "name": "slurm" }, "nodeSets": SETS, "maxTime": 1 },
    })
}

fn row(what: &'static str, percent: usize, ours: &[Duration], baseline: Option<(&'static str, &Vec<Duration>)>) -> Row {
    let milliseconds = |times: &[Duration]| percentile(times, percent) * 1_000.0;
    Row {
        what,
        ours: milliseconds(ours),
        baseline: baseline.map(|(name, times)| (name, milliseconds(times))),
        upstream: None,
    }
}

/// The program that talks to slurmctld in its own protocol, in the cluster's network.
fn ask(cluster: &Cluster, namespace: &Namespace, what: &str, partition: &str) -> Result<Command> {
    let key = namespace.field("secret/slurm-auth-jwt", ".data.jwt\\.key")?;
    let address = namespace.field("pod/slurm-controller-0", ".status.podIP")?;
    let program = testbed::sibling("examples/slurmctld")?;
    let mut command = cluster.machine()?.network_command(&program.display().to_string());
    command
        .env("JWT_KEY", key)
        .args([what, &format!("{address}:6817"), partition]);
    Ok(command)
}
