//! Every effect of a scenario is a crash point: the process that did it dies right after it, and the world comes to the same end.

mod scenario;
mod snapshot;

use std::{
    collections::BTreeMap,
    panic::AssertUnwindSafe,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use futures::FutureExt as _;
use tokio::time::sleep;

use self::{scenario::settle, snapshot::snapshot};
use crate::{
    log, oracles, panics, script,
    world::{World, crash},
};

pub use self::scenario::Scenario;

/// Then everything is written.
const QUIET: Duration = Duration::from_mins(1);

/// The end of a scenario.
#[derive(Debug)]
struct Played {
    /// One line per field.
    end: Result<Vec<String>, String>,
    plan: crash::Plan,
    story: Vec<String>,
}

/// Plays a scenario in which the process that does the n-th effect dies.
fn play(scenario: Scenario, deadly: Option<u64>) -> Played {
    panics::collect();
    let mut played = crate::world::run(async || {
        let world = World::new(1, 3);
        log::tell(&world);
        let run = async {
            if scenario != Scenario::Install {
                script::install(&world, 2).await;
                sleep(QUIET).await;
            }
            crash::begin(deadly);
            scenario.play(&world).await;
            let plan = crash::end();
            sleep(QUIET).await;
            settle(&world).await;
            let problems = [oracles::problems(&world), oracles::judge_writers(&world)].concat();
            assert!(problems.is_empty(), "{problems:?}");
            for job in &world.slurm().ledger.jobs {
                assert_eq!(job.runs.len(), 1, "{job:?}");
            }
            (plan, snapshot(&world))
        };
        match AssertUnwindSafe(run).catch_unwind().await {
            Ok((plan, end)) => Played {
                end: Ok(end),
                plan,
                story: world.story(),
            },
            Err(_) => Played {
                end: Err(String::new()),
                plan: crash::end(),
                story: world.story(),
            },
        }
    });
    let panics = panics::take();
    if !panics.is_empty() {
        played.end = Err(panics.join("\n"));
    }
    played
}

/// What one scenario showed.
#[derive(Debug, Default)]
pub struct Report {
    /// Effects by kind.
    pub counts: BTreeMap<&'static str, u64>,
    pub played: usize,
    pub failures: Vec<String>,
}

/// Plays a scenario once for every n-th effect, on several threads.
pub fn check(scenario: Scenario, every: u64, threads: usize) -> Report {
    check_points(scenario, threads, |points| {
        (1..=points).step_by(every.max(1).try_into().unwrap_or(1)).collect()
    })
}

/// Plays a scenario with so many deaths, spread over its effects.
pub fn sample(scenario: Scenario, deaths: u64) -> Report {
    check_points(scenario, 1, |points| {
        let point = |number: u64| (2 * number + 1) * points / (2 * deaths) + 1;
        (0..deaths).map(point).filter(|point| *point <= points).collect()
    })
}

fn check_points(scenario: Scenario, threads: usize, choose: impl FnOnce(u64) -> Vec<u64>) -> Report {
    let whole = play(scenario, None);
    let end = match whole.end {
        Ok(end) => end,
        Err(why) => {
            return Report {
                failures: vec![format!("{} without a death: {why}", scenario.name())],
                ..Report::default()
            };
        }
    };
    let chosen = choose(whole.plan.counts.values().sum());
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let work = || {
        while let Some(&point) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            let played = play(scenario, Some(point));
            let missed = played.plan.struck.is_none().then(|| "no process died".to_owned());
            if let Some(why) = missed.or_else(|| difference(&end, &played.end)) {
                let struck = played.plan.struck.unwrap_or_default();
                let text = format!("{}, point {point} ({struck}): {why}", scenario.name());
                failures.lock().unwrap().insert(point, text);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(work);
        }
    });
    Report {
        counts: whole.plan.counts,
        played: chosen.len(),
        failures: failures.into_inner().unwrap().into_values().collect(),
    }
}

/// The story of a scenario with one death.
pub fn tell(scenario: Scenario, point: u64) -> Vec<String> {
    play(scenario, Some(point)).story
}

fn difference(wanted: &[String], end: &Result<Vec<String>, String>) -> Option<String> {
    let end = match end {
        Ok(end) => end,
        Err(why) => return Some(why.clone()),
    };
    let lacks = wanted.iter().find(|line| !end.contains(line));
    let extra = end.iter().find(|line| !wanted.contains(line));
    (lacks.is_some() || extra.is_some()).then(|| format!("lacks {lacks:?}, has {extra:?}"))
}
