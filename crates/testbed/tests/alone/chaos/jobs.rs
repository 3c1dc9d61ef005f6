//! Jobs of one to three nodes, submitted all the time, and the marks they make: each copy of a job writes a line when it starts,
//! four each second, and one before it ends. So what ran is known without Slurm.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};

use super::history::{History, now};
use super::schedule::Random;
use super::stage::Stage;

/// Jobs that wait or run at a time. More would wait for longer than a run may take to settle.
const AT_A_TIME: usize = 6;

#[derive(Clone, Debug)]
pub(super) struct Job {
    pub name: String,
    /// Unknown if sbatch did not return.
    pub number: Option<String>,
    pub fails: bool,
    /// When sbatch was called, and when it returned.
    pub asked: f64,
    pub accepted: f64,
}

/// A process of a job.
#[derive(Clone, Debug)]
pub(super) struct Copy {
    pub first: f64,
    pub last: f64,
    pub has_ended: bool,
    /// All nodes of the job.
    pub nodes: Vec<String>,
}

#[derive(Debug)]
pub(super) struct Jobs {
    /// How many jobs have a name.
    named: AtomicUsize,
    submitted: Mutex<Vec<Job>>,
    random: Mutex<Random>,
}

impl Jobs {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            named: AtomicUsize::new(0),
            submitted: Mutex::default(),
            random: Mutex::new(Random(seed ^ 0x6a6f_6273)),
        }
    }

    /// Submits jobs until the end of the faults.
    pub(super) fn submit_until(&self, over: &AtomicBool, stage: &Stage, history: &History) {
        while !over.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(self.random.lock().unwrap().within(300, 1500)));
            let queue = stage.ask("squeue --noheader --format='%j %r'");
            let waits = |line: &&str| !line.contains("BeginTime") && !line.contains("JobHeld");
            if queue.is_ok_and(|queue| queue.lines().filter(waits).count() < AT_A_TIME) {
                self.submit(stage, history, "");
            }
        }
    }

    /// Submits a job and returns it.
    pub(super) fn submit(&self, stage: &Stage, history: &History, options: &str) -> Job {
        let (nodes, seconds, fails, side) = {
            let mut random = self.random.lock().unwrap();
            let nodes = [1, 1, 1, 2, 2, 3][usize::try_from(random.within(0, 6)).unwrap()];
            let fails = random.within(0, 4) == 0;
            (nodes, random.within(1, 10), fails, random.within(0, 4) == 0)
        };
        let name = format!("job-{}", self.named.fetch_add(1, Ordering::Relaxed));
        let partition = if side { "side" } else { "all" };
        // A job without a limit of its own has the partition's, and waits for ever if that is lowered before it runs again.
        let place = format!(
            "--nodes={nodes} --mem=50M --time=5 --partition={partition} --chdir=/tmp --output=/dev/null {options}"
        );
        let script = script(&name, seconds, if fails { 3 } else { 0 });
        let asked = now();
        let answer = stage.ask(&format!(
            "sbatch --parsable --job-name={name} {place} <<'EOF'\n{script}EOF"
        ));
        let accepted = now();
        let number = answer.as_ref().ok().map(|number| number.trim().to_owned());
        match (&number, answer) {
            (_, Err(error)) => history.say(&format!(
                "{name} was not acknowledged: {}",
                format!("{error:#}").lines().last().unwrap_or_default()
            )),
            (number, Ok(_)) => history.say(&format!(
                "{name} is job {}: {nodes} nodes for {seconds} s in {partition}",
                number.as_deref().unwrap_or_default()
            )),
        }
        let job = Job {
            name,
            number,
            fails,
            asked,
            accepted,
        };
        self.submitted.lock().unwrap().push(job.clone());
        job
    }

    pub(super) fn all(&self) -> Vec<Job> {
        self.submitted.lock().unwrap().clone()
    }
}

fn script(name: &str, seconds: u64, exit: u32) -> String {
    format!(
        "#!/bin/bash
nodes=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | tr '\\n' ,)
copy=$HOSTNAME/$$/$EPOCHREALTIME
say() {{ echo \"$copy $1 $EPOCHREALTIME $nodes\" >>/marks/{name}; }}
say start
for ((i = 0; i < {beats}; i++)); do sleep 0.25; say beat; done
say end
exit {exit}
",
        beats = seconds * 4
    )
}

/// All copies of all jobs by the job's name, in order of their start.
pub(super) fn copies(stage: &Stage) -> Result<BTreeMap<String, Vec<Copy>>> {
    let mut jobs: BTreeMap<String, BTreeMap<String, Copy>> = BTreeMap::new();
    for line in stage.on_marks("grep -H '' job-* || true")?.lines() {
        let (name, mark) = line.split_once(':').context("no name")?;
        let words: Vec<&str> = mark.split(' ').collect();
        // A process that is killed while it writes leaves half a line.
        let [process, what, time, nodes] = words[..] else {
            continue;
        };
        let Ok(time) = time.parse() else { continue };
        let copy = Copy {
            first: time,
            last: time,
            has_ended: false,
            nodes: nodes.split_terminator(',').map(str::to_owned).collect(),
        };
        let copies = jobs.entry(name.to_owned()).or_default();
        let copy = copies.entry(process.to_owned()).or_insert(copy);
        copy.last = time;
        copy.has_ended |= what == "end";
    }
    let by_start = |copies: BTreeMap<String, Copy>| {
        let mut copies: Vec<Copy> = copies.into_values().collect();
        copies.sort_by(|a, b| a.first.total_cmp(&b.first));
        copies
    };
    Ok(jobs
        .into_iter()
        .map(|(name, copies)| (name, by_start(copies)))
        .collect())
}
