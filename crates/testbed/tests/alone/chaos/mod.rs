//! Faults and orders in random order while jobs run: docs/testing.md.

mod act;
mod history;
mod jobs;
mod judge;
mod orders;
mod schedule;
mod stage;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use testbed::harness::{alone, eventually};

use crate::common::nodes::RestoreNodes;

use act::{Actor, Heal};
use history::History;
use jobs::Jobs;
use judge::Verdict;
use orders::Ledger;
use schedule::Step;
use stage::Stage;

/// After the last fault.
const SETTLED: Duration = Duration::from_mins(1);
/// A fault is healed by a few commands, which another fault may delay.
const HEALED: Duration = Duration::from_mins(1);

/// Ends the other threads also when this one panics.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn setting(name: &str, default: u64) -> u64 {
    let set = std::env::var(name).ok().filter(|set| !set.is_empty());
    set.map_or(default, |set| set.parse().unwrap())
}

#[test]
#[ignore = "make chaos"]
fn every_job_ends_once_and_every_order_stands_whatever_fails() {
    let seed = setting("CHAOS_SEED", 2);
    let minutes = setting("CHAOS_MINUTES", 1);
    let alone = alone();
    let _restored = RestoreNodes(alone.cluster);
    let history = History::new();
    history.say(&format!("chaos with seed {seed} for {minutes} minutes"));
    let stage = Stage::set(alone.cluster);
    let (jobs, ledger, mut verdict) = (Jobs::new(seed), Ledger::default(), Verdict::default());
    let steps = schedule::plan(seed, Duration::from_mins(minutes));
    history.say(&format!("the cluster is ready; {} faults and orders", steps.len()));
    let actor = Actor {
        stage: &stage,
        history: &history,
        ledger: &ledger,
        jobs: &jobs,
    };
    let over = AtomicBool::new(false);
    let struck = scope(|scope| {
        let _over = Over(&over);
        scope.spawn(|| jobs.submit_until(&over, &stage, &history));
        scope.spawn(|| ledger.look_until(&over, &stage, &history));
        carry_out(actor, &steps)
    });
    let last = Instant::now();
    let settled = eventually("everything has settled", SETTLED, || {
        judge::end_ghosts(&stage, &history, &mut verdict)?;
        judge::resume_duplicates(&stage, &history)?;
        stage.expect_settled()
    });
    match &settled {
        Ok(()) => history.say(&format!(
            "settled {:.1} s after the last fault",
            last.elapsed().as_secs_f64()
        )),
        Err(error) => {
            history.say(&format!("NOT SETTLED: {error:#}"));
            history.say(&stage.conditions());
        }
    }
    let emptied = judge::empty_queue(&stage, &history, &mut verdict);
    ledger.look(&stage, &history);
    let judged = judge::judge(&stage, &history, &jobs, &mut verdict);
    let at_rest = eventually("everything is at rest", SETTLED, || stage.expect_settled());
    history.say(&format!(
        "seed {seed}: {struck} of {} faults and orders struck, {} looks at orders, {} jobs, {} ran again, {} submissions lost or rejected, {} cancelled, {} unrecorded",
        steps.len(),
        ledger.looks(),
        verdict.jobs,
        verdict.restarts.len(),
        verdict.lost.len(),
        verdict.cancelled.len(),
        verdict.unrecorded.len(),
    ));
    for line in &verdict.restarts {
        history.say(line);
    }
    let mut wrong = verdict.wrong;
    wrong.extend(ledger.broken());
    let steps = [
        ("settled", settled),
        ("queue", emptied),
        ("judge", judged),
        ("rest", at_rest),
    ];
    wrong.extend(
        steps
            .into_iter()
            .filter_map(|(what, done)| Some(format!("{what}: {:#}", done.err()?))),
    );
    assert!(wrong.is_empty(), "seed {seed}: {wrong:#?}");
}

/// What is to be healed, by its time and the number of its step.
type Ends<'a> = BTreeMap<(Duration, usize), Heal<'a>>;

/// Carries out all steps, each at its time, and returns how many of them struck.
fn carry_out<'a>(actor: Actor<'a>, steps: &'a [Step]) -> usize {
    let begin = Instant::now();
    let mut ends: Ends<'a> = BTreeMap::new();
    // An action that took long delays all later ones, so that they overlap as planned.
    let (mut struck, mut delay) = (0, Duration::ZERO);
    scope(|scope| {
        let heal_until = |ends: &mut Ends<'a>, until: Duration| {
            while let Some(entry) = ends.first_entry().filter(|entry| entry.key().0 <= until) {
                let ((at, number), heal) = entry.remove_entry();
                sleep(at.saturating_sub(begin.elapsed()));
                actor.history.say(&format!("end {number}: {}", steps[number].action));
                scope.spawn(move || finish(actor, number, heal));
            }
        };
        for (number, step) in steps.iter().enumerate() {
            heal_until(&mut ends, step.at + delay);
            sleep((step.at + delay).saturating_sub(begin.elapsed()));
            let lasts = step.lasts.as_secs_f64();
            actor
                .history
                .say(&format!("begin {number}: {} ({lasts:.1} s)", step.action));
            match actor.begin(number, step.action) {
                Ok(heal) => {
                    struck += 1;
                    ends.insert((begin.elapsed() + step.lasts, number), heal);
                }
                Err(error) => actor.history.say(&format!("{number} did not strike: {error:#}")),
            }
            delay = delay.max(begin.elapsed().saturating_sub(step.at));
        }
        heal_until(&mut ends, Duration::MAX);
    });
    struck
}

fn finish(actor: Actor<'_>, number: usize, heal: Heal<'_>) {
    let since = Instant::now();
    if let Err(error) = heal() {
        actor.history.say(&format!("{number} could not be ended: {error:#}"));
    }
    if since.elapsed() > HEALED {
        actor
            .history
            .say(&format!("{number} took {:?} to end", since.elapsed()));
    }
}
