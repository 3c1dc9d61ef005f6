//! A setting of the cluster edited on its Controller, until slurmctld serves it: on a quiet cluster and under circumstances.

use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use serde_json::json;
use testbed::cluster::Cluster;
use testbed::command::output;
use testbed::harness::{Namespace, eventually, expect};
use testbed::steps::long_step;
use tokio::runtime::Runtime;

use super::api;
use super::effort::Effort;
use super::observer::Observer;
use super::table::{Row, Table, percentile};
use crate::common::clusters::set_extra_conf;
use crate::common::slurm::slurm;

/// The operator waits a second between reconfigures. An edit is measured that does not wait for the previous one.
const APART: Duration = Duration::from_millis(1200);
const TIMEOUT: Duration = Duration::from_mins(2);

const LIMIT: &str = "`scontrol reconfigure` alone";

/// Durations of edits, and of Slurm's own reconfigures at that time.
#[derive(Debug)]
pub(crate) struct Edits {
    ours: Vec<Duration>,
    limit: Vec<Duration>,
}

pub(crate) struct Bench<'a> {
    namespace: &'a Namespace,
    effort: Effort,
    runtime: Runtime,
    controllers: Api<DynamicObject>,
    observer: Observer,
    /// The last value, so that each edit sets another one.
    seconds: u32,
    /// The rest of extraConf.
    extra: String,
}

impl<'a> Bench<'a> {
    pub(crate) fn new(cluster: &Cluster, namespace: &'a Namespace, effort: &Effort) -> Result<Self> {
        let line = "scontrol show config | grep KillWait";
        let observer = Observer::start(namespace, "slurm-controller-0 -c slurmctld", line, 0.01)?;
        let runtime = Runtime::new()?;
        let client = runtime.block_on(api::client(cluster))?;
        let controllers = Api::namespaced_with(client, &namespace.name, &api::controllers());
        Ok(Self {
            namespace,
            effort: *effort,
            runtime,
            controllers,
            observer,
            seconds: 30,
            extra: String::new(),
        })
    }

    /// On an idle cluster.
    pub(crate) fn quiet(&mut self) -> Result<Edits> {
        long_step("edits of a quiet cluster", || self.edit_often(self.effort.edits))
    }

    /// Circumstances that slow Slurm itself down, each with Slurm's own duration as the lower bound.
    pub(crate) fn under_circumstances(&mut self, table: &mut Table) -> Result<()> {
        let Effort {
            hindered_edits: few,
            further,
            ..
        } = self.effort;
        let hold =
            format!("sbatch --hold --partition=slinky --array=1-{further} --chdir=/tmp -o /dev/null --wrap true");
        slurm(self.namespace, &hold)?;
        let edits = long_step("edits with 1,000 pending jobs", || self.edit_often(few))?;
        slurm(
            self.namespace,
            "scancel --state=PENDING --user=root; scancel --state=PENDING --user=slurm",
        )?;
        edits.report("configuration edit with 1,000 pending jobs, p50, s", 50, table);
        edits.report("configuration edit with 1,000 pending jobs, p90, s", 90, table);

        // Nothing listens there, which Slurm notices at once.
        self.add_nodes(
            &format!("NodeName=far[1-{further}] NodeAddr=127.0.0.1 Port=1 State=DOWN Reason=bench"),
            &format!("far{further}"),
        )?;
        let edits = long_step("edits with 1,000 further nodes", || self.edit_often(few))?;
        edits.report("configuration edit with 1,000 nodes more, p50, s", 50, table);
        edits.report("configuration edit with 1,000 nodes more, p90, s", 90, table);

        // An unused address, which Slurm notices only after a timeout.
        self.add_nodes("NodeName=away NodeAddr=10.244.1.253", "away")?;
        let edits = long_step("edits with an unreachable node", || self.edit_often(few))?;
        edits.report("configuration edit with a node out of reach, p50, s", 50, table);
        edits.report("configuration edit with a node out of reach, p90, s", 90, table);
        self.set_extra("")
    }

    /// How often slurmctld reads its files for a burst of edits.
    pub(crate) fn burst(&mut self, table: &mut Table) -> Result<()> {
        thread::sleep(APART);
        let before = reconfigures(self.namespace)?;
        let begun = Instant::now();
        for _ in 0..self.effort.burst {
            self.edit()?;
        }
        let took = begun.elapsed();
        let last = self.shown();
        self.observer.wait_for(&last, TIMEOUT)?;
        thread::sleep(APART);
        let read = reconfigures(self.namespace)? - before;
        table.add(Row::alone(
            "100 edits in a burst, all sent after, s",
            took.as_secs_f64(),
        ));
        table.add(Row {
            what: "100 edits in a burst, reconfigures",
            ours: f64::from(read),
            baseline: Some(("one for each edit", f64::from(self.effort.burst))),
            upstream: None,
        });
        Ok(())
    }

    fn edit_often(&mut self, edits: u32) -> Result<Edits> {
        let mut ours = Vec::new();
        let mut limit = Vec::new();
        for edit in 0..edits {
            thread::sleep(APART);
            let sent = SystemTime::now();
            self.edit()?;
            let served = self.observer.wait_for(&self.shown(), TIMEOUT)?;
            ours.push(served.duration_since(sent)?);
            if edit % 5 == 0 {
                thread::sleep(APART);
                limit.push(self.reconfigure()?);
            }
        }
        Ok(Edits { ours, limit })
    }

    fn edit(&mut self) -> Result<()> {
        self.seconds = 30 + (self.seconds - 29) % 1_000;
        let text = format!("{}\nKillWait={}", self.extra, self.seconds);
        let patch = Patch::Merge(json!({ "spec": { "extraConf": text } }));
        let parameters = PatchParams::default();
        self.runtime
            .block_on(self.controllers.patch("slurm", &parameters, &patch))?;
        Ok(())
    }

    /// As scontrol writes the value.
    fn shown(&self) -> String {
        format!("KillWait                = {} sec", self.seconds)
    }

    /// The duration of `scontrol reconfigure`, by the clock of the pod.
    fn reconfigure(&self) -> Result<Duration> {
        let line = "begun=$EPOCHREALTIME; scontrol reconfigure; echo $begun $EPOCHREALTIME";
        let said = slurm(self.namespace, line)?;
        let mut times = said.split_whitespace().map(str::parse::<f64>);
        let mut next = || times.next().context("no time")?.context("no number");
        let (begun, ended) = (next()?, next()?);
        Ok(Duration::try_from_secs_f64(ended - begun)?)
    }

    fn add_nodes(&mut self, line: &str, last: &str) -> Result<()> {
        self.set_extra(line)?;
        eventually(&format!("node {last}"), TIMEOUT, || {
            slurm(self.namespace, &format!("scontrol show node {last}"))
        })
        .map(drop)
    }

    fn set_extra(&mut self, line: &str) -> Result<()> {
        line.clone_into(&mut self.extra);
        set_extra_conf(self.namespace, line)?;
        eventually("it is in the file", TIMEOUT, || {
            let conf = slurm(self.namespace, "cat /etc/slurm/slurm.conf")?;
            expect(conf.contains(line), "not yet")
        })
    }
}

/// Number of times slurmctld has read its files. The log lines of the legacy script appear for a change by RPC too.
pub(crate) fn reconfigures(namespace: &Namespace) -> Result<u32> {
    let logs = ["logs", "slurm-controller-0", "-c", "reconfigure"];
    let said = output(&mut namespace.kubectl(&logs))?;
    Ok(u32::try_from(said.matches(" reconfiguring slurmctld ").count())?)
}

impl Edits {
    pub(crate) fn report(&self, what: &'static str, percent: usize, table: &mut Table) {
        table.add(Row {
            what,
            ours: percentile(&self.ours, percent),
            baseline: Some((LIMIT, percentile(&self.limit, percent))),
            upstream: None,
        });
    }

    pub(crate) fn report_against(&self, alone: &[Duration], table: &mut Table) {
        for (what, percent) in [
            ("configuration edit to live, p50, s", 50),
            ("configuration edit to live, p99, s", 99),
        ] {
            let kubelet = (
                "a ConfigMap into a pod, by the kubelet alone",
                percentile(alone, percent),
            );
            table.add(Row {
                what,
                ours: percentile(&self.ours, percent),
                baseline: Some(kubelet),
                upstream: None,
            });
            self.report(what, percent, table);
        }
    }
}
