//! What became of the jobs, by their own marks and by sacct, compared with what happened.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use testbed::harness::{eventually, expect};

use super::history::{Effect, Happened, History, UNSAVED, now};
use super::jobs::{Copy, Job, Jobs, copies};
use super::stage::Stage;

/// A requeued job waits for two minutes.
const EMPTY: Duration = Duration::from_mins(5);
/// Time in which slurmctld learns of an end and tells slurmdbd.
const REPORTED: f64 = 1.0;
/// A job that has not written for this long has no process: nothing is frozen any more. The agent makes Slurm look for the processes
/// of jobs half a minute after each start of slurmctld and of a worker, which may take some seconds itself.
const SILENT: f64 = 50.0;
/// Time in which slurmctld receives a report of a worker, and notices that one is missing.
const NOTICED: f64 = 5.0;

#[derive(Debug, Default)]
pub(super) struct Verdict {
    pub jobs: usize,
    /// Copies that ran again for a reason that is nobody's fault but the fault's.
    pub restarts: Vec<String>,
    /// Submissions that slurmctld had not saved when it was killed, or never acknowledged.
    pub lost: Vec<String>,
    /// Jobs that have ended, and whose records slurmctld still kept for slurmdbd when it was killed.
    pub unrecorded: Vec<String>,
    /// Jobs that have ended and that a person cancelled, since slurmctld forgot their start and end.
    pub cancelled: Vec<String>,
    /// The last mark of running jobs, and since when it is the last.
    suspects: BTreeMap<String, (f64, f64)>,
    /// Jobs that Slurm showed as running without a process.
    pub ghosts: Vec<String>,
    pub wrong: Vec<String>,
}

/// Cancels jobs that run in Slurm without a process. Each of them is an error.
pub(super) fn end_ghosts(stage: &Stage, history: &History, verdict: &mut Verdict) -> Result<()> {
    let running = stage.ask("squeue --noheader --states=RUNNING --format='%i|%j|%N'")?;
    let copies = copies(stage)?;
    let runs = |name: &str| running.lines().any(|line| line.split('|').nth(1) == Some(name));
    verdict.suspects.retain(|name, _| runs(name));
    for line in running.lines() {
        let words: Vec<&str> = line.split('|').collect();
        let [number, name, nodes] = words[..] else { continue };
        let last = copies.get(name).and_then(|copies| copies.last());
        let mark = last.map_or(0.0, |copy| copy.last);
        // A job that has just started again has not written yet.
        let suspect = verdict.suspects.entry(name.to_owned()).or_insert((mark, now()));
        if suspect.0 < mark {
            *suspect = (mark, now());
        }
        if suspect.1 < now() - SILENT && !verdict.ghosts.contains(&name.to_owned()) {
            let end = match last {
                None => "never started".to_owned(),
                Some(copy) if copy.has_ended => format!("ended at {}", history.shown(mark)),
                Some(_) => format!("was killed at {}", history.shown(mark)),
            };
            let ghost = format!("{name} (job {number}) is RUNNING on {nodes}, but {end}");
            history.say(&format!("GHOST: {ghost}"));
            verdict.wrong.push(format!("ghost: {ghost}"));
            verdict.ghosts.push(name.to_owned());
            stage.ask(&format!("scancel {number}"))?;
        }
    }
    Ok(())
}

/// Resumes nodes that Slurm drained because they still had a job of a number that is used again: docs/reliability.md leaves that to a person.
pub(super) fn resume_duplicates(stage: &Stage, history: &History) -> Result<()> {
    let shown = stage.ask("scontrol --oneliner show nodes")?;
    for line in shown.lines().filter(|line| line.contains(" Reason=Duplicate jobid")) {
        let node = line.split(' ').next().unwrap_or_default();
        history.say(&format!("a person resumes {node}, which rejected a job"));
        stage.ask(&format!("scontrol update {node} state=resume"))?;
    }
    Ok(())
}

/// Waits until the queue is empty. Meanwhile a person does what docs/reliability.md leaves to a person.
pub(super) fn empty_queue(stage: &Stage, history: &History, verdict: &mut Verdict) -> Result<()> {
    eventually("the queue is empty", EMPTY, || {
        end_ghosts(stage, history, verdict)?;
        let queue = stage.ask("squeue --noheader --format='%i|%j|%T|%r'")?;
        for line in queue.lines() {
            let words: Vec<&str> = line.split('|').collect();
            let [number, name, _, reason] = words[..] else { continue };
            if reason == "JobHeldAdmin" {
                let shown = stage.ask(&format!("scontrol show job {number}"))?;
                if shown.contains("has run and ended") {
                    history.say(&format!("a person cancels {name}, which has run and ended"));
                    stage.ask(&format!("scancel {number}"))?;
                    verdict.cancelled.push(name.to_owned());
                }
            } else if reason.contains("launch failed requeued held") {
                history.say(&format!("a person releases {name}, whose number a lost job had"));
                stage.ask(&format!("scontrol release {number}"))?;
            }
        }
        expect(queue.trim().is_empty(), queue)
    })
}

/// The states and exit codes of all jobs in sacct, by name.
fn records(stage: &Stage) -> Result<BTreeMap<String, Vec<String>>> {
    let format = "--noheader --parsable2 --allocations --duplicates --format=JobName,JobID,State,ExitCode,NodeList";
    let shown = stage.ask(&format!("sacct --allusers --starttime=now-3hours {format}"))?;
    let mut records: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, record) in shown.lines().filter_map(|line| line.split_once('|')) {
        records.entry(name.to_owned()).or_default().push(record.to_owned());
    }
    Ok(records)
}

/// Whether the last record of a job is what its script did.
fn is_recorded(job: &Job, records: &BTreeMap<String, Vec<String>>) -> bool {
    let end = if job.fails { "|FAILED|3:0|" } else { "|COMPLETED|0:0|" };
    let last = records.get(&job.name).and_then(|records| records.last());
    last.is_some_and(|last| last.contains(end))
}

pub(super) fn judge(stage: &Stage, history: &History, jobs: &Jobs, verdict: &mut Verdict) -> Result<()> {
    let jobs = jobs.all();
    verdict.jobs = jobs.len();
    let copies = copies(stage)?;
    let none = Vec::new();
    let of = |job: &Job| copies.get(&job.name).unwrap_or(&none);
    let happened = history.all();
    // slurmctld sends what it has kept for slurmdbd when it is connected again.
    let excused = |job: &Job, verdict: &Verdict| {
        let ended_by_us = verdict.cancelled.contains(&job.name) || verdict.ghosts.contains(&job.name);
        ended_by_us || job.number.is_none() || history.forgot(job.asked, job.accepted)
    };
    let recorded = eventually("all jobs are recorded", Duration::from_mins(1), || {
        let records = records(stage)?;
        let missing = |job: &&Job| {
            !excused(job, verdict) && !is_unrecorded(job, of(job), &happened) && !is_recorded(job, &records)
        };
        expect(!jobs.iter().any(|job| missing(&job)), "records are missing")
    });
    let records = records(stage)?;
    if recorded.is_err() {
        history.say("records are missing after a minute");
    }
    for job in &jobs {
        let copies = of(job);
        runs_again(job, copies, history, verdict);
        if verdict.cancelled.contains(&job.name) {
            if !copies.iter().any(|copy| copy.has_ended) {
                verdict
                    .wrong
                    .push(format!("{} was held, but has not ended: {copies:?}", job.name));
            }
        } else if is_recorded(job, &records) {
            if !copies.last().is_some_and(|copy| copy.has_ended) {
                verdict
                    .wrong
                    .push(format!("{} is recorded as ended, but has not: {copies:?}", job.name));
            }
        } else if excused(job, verdict) {
            verdict.lost.push(job.name.clone());
        } else if is_unrecorded(job, copies, &happened) {
            verdict.unrecorded.push(job.name.clone());
        } else {
            let said = records.get(&job.name);
            let asked = history.shown(job.accepted);
            verdict.wrong.push(format!(
                "{job:?} of {asked} has the records {said:?}, and these copies: {copies:?}"
            ));
        }
    }
    Ok(())
}

/// Whether slurmctld was killed with records of a job that has ended. It keeps what slurmdbd does not take in memory: the end of the
/// job, or its submission, without which sacct does not know its name.
fn is_unrecorded(job: &Job, copies: &[Copy], happened: &[Happened]) -> bool {
    let Some(last) = copies.last().filter(|copy| copy.has_ended) else {
        return false;
    };
    let away = while_away(happened);
    let is_kept = |killed: f64| {
        let away = away.iter().filter(|(from, to)| *from <= killed && killed <= *to);
        away.into_iter().any(|(from, _)| {
            let is_kept = |recorded: f64| from - REPORTED <= recorded;
            is_kept(last.last) && last.first <= killed || is_kept(job.accepted) && job.accepted <= killed
        })
    };
    let killed = happened.iter().filter(|it| it.effect == Effect::SlurmctldKilled);
    killed.into_iter().any(|kill| is_kept(kill.from))
}

/// When slurmdbd did not take records. What was not stored at the end of one outage waits for the end of the next.
fn while_away(happened: &[Happened]) -> Vec<(f64, f64)> {
    let mut all: Vec<(f64, f64)> = happened
        .iter()
        .filter(|it| it.effect == Effect::AccountingAway)
        .map(|it| (it.from, it.to))
        .collect();
    all.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut away: Vec<(f64, f64)> = Vec::new();
    for (from, to) in all {
        match away.last_mut().filter(|before| from <= before.1) {
            Some(before) => before.1 = before.1.max(to),
            None => away.push((from, to)),
        }
    }
    away
}

/// Judges each copy that followed another one.
fn runs_again(job: &Job, copies: &[Copy], history: &History, verdict: &mut Verdict) {
    for pair in copies.windows(2) {
        let (old, new) = (&pair[0], &pair[1]);
        let times = format!(
            "{} on {:?} from {} to {}{}, again at {} on {:?}",
            job.name,
            old.nodes,
            history.shown(old.first),
            history.shown(old.last),
            if old.has_ended { " (ended)" } else { "" },
            history.shown(new.first),
            new.nodes
        );
        if old.last >= new.first {
            verdict.wrong.push(format!("side by side: {times}"));
        } else if let Some(why) = excuse(job, old, &history.all()) {
            verdict.restarts.push(format!("{times}: {why}"));
        } else {
            verdict.wrong.push(format!("ran again without cause: {times}"));
        }
    }
}

/// Why a job runs again after this copy, if there is a reason.
fn excuse(job: &Job, old: &Copy, happened: &[Happened]) -> Option<String> {
    let killed = |from: f64| {
        let unsaved =
            |it: &&Happened| it.effect == Effect::SlurmctldKilled && it.to >= from - 1.0 && it.from <= from + UNSAVED;
        happened.iter().find(unsaved)
    };
    let start = killed(old.first).or_else(|| killed(job.accepted));
    let away =
        |it: &Happened| it.effect == Effect::AccountingAway && it.from <= old.last + UNSAVED && it.to >= old.last;
    let is_unrecorded = happened.iter().any(away) || start.is_some_and(|kill| old.last > kill.from - REPORTED);
    if start.is_some() && (!old.has_ended || is_unrecorded) {
        return Some("slurmctld was killed before it had saved the start".to_owned());
    }
    if old.has_ended && killed(old.last).is_some() && is_unrecorded {
        return Some("slurmctld was killed before it had saved the end, which slurmdbd had not received".to_owned());
    }
    let known = known_by(old.last, happened);
    let died = |it: &&Happened| match &it.effect {
        Effect::WorkerDied(node) | Effect::DownByHand(node) => {
            old.nodes.contains(node) && it.to >= old.first && it.from <= known
        }
        _ => false,
    };
    happened.iter().find(died).map(|it| format!("{:?}", it.effect))
}

/// When slurmctld has learned of what a worker reported at a time.
fn known_by(time: f64, happened: &[Happened]) -> f64 {
    let mut known = time + NOTICED;
    loop {
        let away = |it: &&Happened| it.effect == Effect::SlurmctldAway && it.from <= known && it.to > known;
        match happened.iter().find(away) {
            Some(away) => known = away.to,
            None => return known,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excused(effects: &[(Effect, f64, f64)], has_ended: bool) -> bool {
        excused_copy((100.0, 110.0), effects, has_ended)
    }

    fn job() -> Job {
        Job {
            name: "job-0".to_owned(),
            number: Some("1".to_owned()),
            fails: false,
            asked: 49.0,
            accepted: 50.0,
        }
    }

    fn excused_copy((first, last): (f64, f64), effects: &[(Effect, f64, f64)], has_ended: bool) -> bool {
        let job = job();
        let copy = Copy {
            first,
            last,
            has_ended,
            nodes: vec!["batch-0".to_owned()],
        };
        let happened: Vec<Happened> = effects
            .iter()
            .map(|(effect, from, to)| Happened {
                effect: effect.clone(),
                from: *from,
                to: *to,
            })
            .collect();
        excuse(&job, &copy, &happened).is_some()
    }

    fn died(worker: &str, from: f64) -> (Effect, f64, f64) {
        (Effect::WorkerDied(worker.to_owned()), from, from + 1.0)
    }

    #[test]
    fn only_a_death_of_its_own_worker_excuses_a_second_run() {
        assert!(excused(&[died("batch-0", 109.0)], false));
        assert!(!excused(&[died("batch-1", 109.0)], false));
        assert!(!excused(&[died("batch-0", 90.0)], false));
        assert!(!excused(&[died("batch-0", 130.0)], true));
        assert!(!excused(&[], false));
    }

    #[test]
    fn a_death_after_the_end_excuses_it_if_slurmctld_could_not_know_the_end() {
        let away = (Effect::SlurmctldAway, 105.0, 128.0);
        assert!(excused(&[away.clone(), died("batch-0", 126.0)], true));
        assert!(!excused(&[away, died("batch-0", 140.0)], true));
    }

    #[test]
    fn only_records_that_slurmdbd_did_not_take_die_with_slurmctld() {
        let copy = |has_ended| Copy {
            first: 100.0,
            last: 110.0,
            has_ended,
            nodes: Vec::new(),
        };
        let is_unrecorded = |copies: &[Copy], away: &[(f64, f64)], killed: f64| {
            let it = |effect, (from, to)| Happened { effect, from, to };
            let away = away.iter().map(|times| it(Effect::AccountingAway, *times));
            let happened: Vec<Happened> = away.chain([it(Effect::SlurmctldKilled, (killed, killed))]).collect();
            is_unrecorded(&job(), copies, &happened)
        };
        let away = [(105.0, 130.0)];
        let ended = [copy(true)];
        assert!(is_unrecorded(&ended, &away, 120.0));
        assert!(!is_unrecorded(&[copy(false)], &away, 120.0), "it has not ended");
        assert!(!is_unrecorded(&ended, &away, 131.0), "slurmdbd was back");
        assert!(!is_unrecorded(&ended, &[(115.0, 130.0)], 120.0), "it had the record");
        assert!(!is_unrecorded(&ended, &away, 99.0), "it started afterwards");
        assert!(!is_unrecorded(&[], &away, 120.0));
        let again = [(105.0, 116.0), (115.0, 130.0)];
        assert!(is_unrecorded(&ended, &again, 120.0), "one outage followed another");
        assert!(is_unrecorded(&ended, &[(49.0, 90.0)], 60.0), "the submission was kept");
        assert!(!is_unrecorded(&ended, &[(52.0, 90.0)], 60.0), "it had the submission");
    }

    #[test]
    fn a_kill_of_slurmctld_excuses_what_it_had_not_saved() {
        let killed = |at: f64| (Effect::SlurmctldKilled, at, at);
        assert!(excused(&[killed(104.0)], false));
        assert!(!excused(&[killed(108.0)], false));
        let short = |killed_at: f64| {
            let happened = [(Effect::SlurmctldKilled, killed_at, killed_at)];
            excused_copy((100.0, 102.0), &happened, true)
        };
        assert!(short(102.5), "slurmctld had no time to tell slurmdbd");
        assert!(!short(105.0), "the agent holds it");
        assert!(!excused(&[killed(112.0)], true), "slurmdbd has the end");
        let away = (Effect::AccountingAway, 109.0, 120.0);
        assert!(excused(&[killed(112.0), away], true));
    }
}
