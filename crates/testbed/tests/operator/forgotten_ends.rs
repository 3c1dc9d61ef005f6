//! slurmctld is killed before it has saved the ends of jobs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use testbed::harness::{Namespace, cluster, eventually, expect, rounds};

use crate::accounting::{MARIADB, VALUES, set_password};
use crate::common::clusters::{install_chart, operator_namespace};
use crate::common::kills::{Victim, kill_container};
use crate::common::slurm::{SOON, hold_state, release_state, slurm, wait_idle, wait_job, wait_saved};

/// The end of each job, one per worker: how it comes, and its record.
const ENDS: [(&str, &str); 3] = [
    ("exit 3", "FAILED|3:0"),
    ("scancel", "CANCELLED"),
    ("srun", "COMPLETED|0:0"),
];

/// Starts a job on the worker of this number that lasts until there is a file on the worker.
fn start(namespace: &Namespace, worker: usize, end: &str) -> String {
    let exit = end.strip_prefix("exit ").unwrap_or("0");
    let script = format!("echo run >>/tmp/runs; until [ -e /tmp/end ]; do sleep 0.1; done; exit {exit}");
    let place = format!("--chdir=/tmp --output=/dev/null --partition=all --job-name=job-{worker} -w slinky-{worker}");
    let submit = match end {
        "srun" => format!("nohup srun {place} sh -c '{script}' >/dev/null 2>&1 &"),
        _ => format!("sbatch {place} --wrap '{script}'"),
    };
    slurm(namespace, &submit).unwrap();
    let ask = format!("squeue --noheader --name=job-{worker} --format=%i");
    let numbers = eventually("the job has a number", SOON, || {
        let numbers = slurm(namespace, &ask)?;
        expect(!numbers.trim().is_empty(), &numbers)?;
        Ok(numbers)
    });
    let job = numbers.unwrap().trim().to_owned();
    wait_job(namespace, &job, "RUNNING").unwrap();
    job
}

fn records_of(namespace: &Namespace, job: &str) -> String {
    let ask = "sacct --noheader --parsable2 --allocations --duplicates --format=State,ExitCode --jobs";
    slurm(namespace, &format!("{ask}={job}")).unwrap_or_default()
}

fn records(namespace: &Namespace, jobs: &[String]) -> Vec<String> {
    jobs.iter().map(|job| records_of(namespace, job)).collect()
}

fn have_ended(records: &[String]) -> bool {
    let ended = |(record, (_, end)): (&String, &(&str, &str))| record.starts_with(end) && record.lines().count() == 1;
    records.iter().zip(&ENDS).all(ended)
}

fn on_worker(namespace: &Namespace, worker: usize, command: &str) -> String {
    let pod = format!("slurm-worker-slinky-{worker}");
    namespace
        .ask(&["exec", &pod, "-c", "slurmd", "--", "sh", "-c", command])
        .unwrap()
}

fn install(namespace: &Namespace) {
    set_password(namespace, "password");
    namespace.apply(MARIADB).unwrap();
    install_chart(namespace, &VALUES.replace("replicas: 1", "replicas: 3")).unwrap();
    wait_idle(namespace, ENDS.len()).unwrap();
    namespace.wait("condition=Ready", "accounting/slurm").unwrap();
    // slurmctld must not forget the workers.
    wait_saved(namespace).unwrap();
}

#[test]
fn jobs_whose_ends_slurmctld_forgot_end_as_they_did_and_run_once() {
    let namespace = operator_namespace(cluster(), "ends");
    install(&namespace);
    let jobs: Vec<String> = ENDS
        .iter()
        .enumerate()
        .map(|(worker, (end, _))| start(&namespace, worker, end))
        .collect();
    let place = "--chdir=/tmp --output=/dev/null --partition=all --nodelist=slinky-0 --exclusive";
    let submit = format!("sbatch --parsable {place} --wrap 'echo next >>/tmp/runs; exit 5'");
    let next = slurm(&namespace, &submit).unwrap().trim().to_owned();
    hold_state(&namespace, &["job", "node"]).unwrap();
    slurm(&namespace, &format!("scancel {}", jobs[1])).unwrap();
    for worker in [0, 2] {
        on_worker(&namespace, worker, "touch /tmp/end");
    }
    eventually("slurmdbd has all ends", SOON, || {
        let records = records(&namespace, &jobs);
        expect(have_ended(&records), records)?;
        let record = records_of(&namespace, &next);
        expect(record == "FAILED|5:0\n", record)?;
        // The node of a completing job still reports its end.
        let left = slurm(&namespace, "squeue --noheader")?;
        expect(left.trim().is_empty(), left)
    })
    .unwrap();

    kill_container(&namespace, "slurmctld").unwrap();
    release_state(&namespace).unwrap();
    eventually("slurmctld has the ends again", SOON, || {
        let log = namespace.ask(&["logs", "slurm-controller-0", "-c", "reconfigure"])?;
        let forgotten = log.lines().filter(|line| line.contains("forgot the end of a job"));
        expect(forgotten.count() >= jobs.len(), log)?;
        let left = slurm(&namespace, "squeue --noheader --format=\"%i %r\"")?;
        expect(left.trim() == format!("{next} JobHeldAdmin"), left)
    })
    .unwrap();
    let shown = slurm(&namespace, &format!("scontrol show job {next}")).unwrap();
    assert!(shown.contains("has run and ended (FAILED 5:0)"), "{shown}");
    let record = records_of(&namespace, &next);
    assert_eq!(record, "FAILED|5:0\n");
    wait_idle(&namespace, ENDS.len()).unwrap();
    let records = records(&namespace, &jobs);
    assert!(have_ended(&records), "{records:?}");
    for worker in 0..ENDS.len() {
        assert_eq!(
            on_worker(&namespace, worker, "cat /tmp/runs"),
            if worker == 0 { "run\nnext\n" } else { "run\n" },
            "worker {worker}"
        );
    }
}

/// A copy of a job on a worker, in seconds since 1970.
#[derive(Debug, Default)]
struct Copy {
    first: f64,
    last: f64,
    has_ended: bool,
}

/// What the jobs wrote on their workers, by job: each copy writes one line when it starts, ten each second, and one
/// before it ends.
fn copies(namespace: &Namespace) -> BTreeMap<String, Vec<Copy>> {
    let mut jobs: BTreeMap<String, BTreeMap<String, Copy>> = BTreeMap::new();
    for worker in 0..ENDS.len() {
        for line in on_worker(namespace, worker, "cat /tmp/copies").lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [name, process, what, time] = words[..] else {
                panic!("{line}")
            };
            let copy = jobs.entry(name.to_owned()).or_default();
            let copy = copy.entry(format!("{worker}/{process}")).or_default();
            copy.last = time.parse().unwrap();
            if what == "start" {
                copy.first = copy.last;
            }
            copy.has_ended |= what == "end";
        }
    }
    let by_start = |copies: BTreeMap<String, Copy>| {
        let mut copies: Vec<Copy> = copies.into_values().collect();
        copies.sort_by(|a, b| a.first.total_cmp(&b.first));
        copies
    };
    let by_start = jobs.into_iter().map(|(name, copies)| (name, by_start(copies)));
    by_start.collect()
}

/// A job of a round, and whether it exits with 3.
struct Job {
    name: String,
    fails: bool,
    /// When slurmctld was killed.
    killed: f64,
    /// Whether slurmctld knew the job afterwards.
    is_known: bool,
}

/// Submits two jobs per worker: one that runs until there is a file `/tmp/go-ROUND` on its worker, and one that then runs
/// for up to four seconds.
fn submit(namespace: &Namespace, round: usize) -> Vec<(String, bool)> {
    let submit = |job: usize| {
        let (name, fails) = (format!("kill-{round}-{job}"), job % 2 == 1);
        let say = |what: &str| format!("echo \"{name} $$ {what} $(date +%s.%N)\" >>/tmp/copies");
        let lasts = if job < ENDS.len() {
            format!("until [ -e /tmp/go-{round} ]")
        } else {
            format!("for i in $(seq {})", 10 * ((round + 2 * job) % 5))
        };
        let script = format!(
            "{}; {lasts}; do sleep 0.1; {}; done; {}; exit {}",
            say("start"),
            say("beat"),
            say("end"),
            if fails { 3 } else { 0 },
        );
        let submit = "sbatch --exclusive --chdir=/tmp --output=/dev/null --partition=all";
        slurm(namespace, &format!("{submit} --job-name={name} --wrap '{script}'")).unwrap();
        (name, fails)
    };
    (0..2 * ENDS.len()).map(submit).collect()
}

/// What kills of slurmctld around starts and ends of jobs did to the jobs.
#[derive(Debug, Default)]
struct Harm {
    /// Jobs of slurmctld's queue 60 s after its return that no worker runs.
    ghosts: usize,
    /// Jobs that the agent held, since slurmctld forgot both their start and their end.
    held: Vec<String>,
    /// Jobs that a worker rejected because their first copy was still there. Slurm holds them and drains the worker.
    rejected: usize,
    /// Submissions that slurmctld forgot.
    lost: usize,
    /// Jobs that started again because slurmctld forgot their start, or because they ended while it was down.
    restarted: usize,
    /// Jobs that started again although slurmdbd had their end.
    second_runs: Vec<String>,
    /// Jobs of which two copies ran at the same time.
    side_by_side: Vec<String>,
    /// Jobs whose record differs from what they did.
    wrong_records: Vec<String>,
}

/// Waits up to a minute until slurmctld's queue is empty, and cancels what is left.
fn empty_queue(namespace: &Namespace, harm: &mut Harm) {
    let (since, mut last) = (Instant::now(), String::new());
    let queue = "squeue --noheader --format=\"%i %j %r\" | grep ' kill-' || true";
    while since.elapsed() < Duration::from_mins(1) {
        std::thread::sleep(Duration::from_millis(500));
        // While slurmctld is down there is no answer.
        let Ok(left) = slurm(namespace, queue) else { continue };
        last = left;
        for line in last.lines() {
            let (job, rest) = line.split_once(' ').unwrap();
            let (name, reason) = rest.split_once(' ').unwrap();
            let is_rejected = reason == "launch failed requeued held";
            if (is_rejected || reason == "JobHeldAdmin") && slurm(namespace, &format!("scancel {job}")).is_ok() {
                harm.rejected += usize::from(is_rejected);
                harm.held.push(name.to_owned());
            }
            // Slurm starts a job that it requeued after two minutes.
            if reason == "BeginTime" {
                let _ = slurm(namespace, &format!("scontrol update jobid={job} starttime=now"));
            }
        }
        if last.is_empty() {
            return;
        }
    }
    harm.ghosts += last.lines().count();
    eprintln!("after a minute: {last}");
    slurm(namespace, "scancel $(squeue --noheader --format=%i)").unwrap();
    eventually("the queue is empty", SOON, || {
        let left = slurm(namespace, queue)?;
        expect(left.is_empty(), left)
    })
    .unwrap();
}

/// Kills slurmctld up to five seconds after starts and ends of jobs.
fn kill_around_jobs(namespace: &Namespace, rounds: usize) -> Harm {
    let (mut jobs, mut harm) = (Vec::new(), Harm::default());
    for round in 0..rounds {
        let submitted = submit(namespace, round);
        eventually("a job runs on each worker", SOON, || {
            let running = slurm(namespace, "squeue --noheader --states=running --format=%j")?;
            expect(running.lines().count() == ENDS.len(), running)
        })
        .unwrap();
        // Of every other round slurmctld may forget even the submissions.
        if round % 2 == 0 {
            wait_saved(namespace).unwrap();
        }
        for worker in 0..ENDS.len() {
            on_worker(namespace, worker, &format!("touch /tmp/go-{round}"));
        }
        std::thread::sleep(Duration::from_millis((round as u64 * 700) % 5500));
        let killed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        Victim::SlurmctldProcess.kill(namespace);
        empty_queue(namespace, &mut harm);
        // The number of a lost job is used again, and a worker that still has the lost one rejects the new one.
        eventually("no worker runs a lost job", SOON, || {
            let steps = |worker| on_worker(namespace, worker, "pidof slurmstepd || true");
            let steps: String = (0..ENDS.len()).map(steps).collect();
            expect(steps.is_empty(), steps)
        })
        .unwrap();
        let resume = "for node in $(sinfo --noheader --states=drain --Node --format=%N); do scontrol update nodename=$node state=resume; done";
        slurm(namespace, resume).unwrap();
        wait_idle(namespace, ENDS.len()).unwrap();
        let known = slurm(namespace, "squeue --noheader --states=all --format=%j").unwrap();
        jobs.extend(submitted.into_iter().map(|(name, fails)| Job {
            is_known: known.lines().any(|known| known == name),
            name,
            fails,
            killed,
        }));
    }
    let copies = copies(namespace);
    for job in jobs {
        let Job {
            name,
            fails,
            killed,
            is_known,
        } = job;
        // The record of a job whose submission slurmctld forgot stays as it was.
        if !is_known {
            harm.lost += 1;
            continue;
        }
        let copies = copies.get(&name).map_or(&[][..], Vec::as_slice);
        for pair in copies.windows(2) {
            // The node reports the end to slurmctld, and slurmctld sends it to slurmdbd, within half a second.
            let second = pair[0].has_ended && pair[0].last < killed - 0.5;
            let list = match (pair[0].last < pair[1].first, second) {
                (false, _) => &mut harm.side_by_side,
                (true, true) => &mut harm.second_runs,
                (true, false) => {
                    harm.restarted += 1;
                    continue;
                }
            };
            list.push(format!("{name}: {copies:?}"));
        }
        // The record of a job that was held and cancelled says so.
        if harm.held.contains(&name) {
            continue;
        }
        let ask = "sacct --noheader --parsable2 --allocations --format=State,ExitCode --name";
        let record = slurm(namespace, &format!("{ask}={name}")).unwrap();
        let expected = if fails { "FAILED|3:0" } else { "COMPLETED|0:0" };
        if record.trim() != expected {
            harm.wrong_records.push(format!("{name}: {record}, {copies:?}"));
        }
    }
    harm
}

#[test]
fn no_kill_makes_a_finished_job_run_again_or_two_copies_run_side_by_side() {
    let namespace = operator_namespace(cluster(), "kills");
    install(&namespace);
    let harm = kill_around_jobs(&namespace, rounds(2));
    eprintln!("{harm:?}");
    assert_eq!((harm.ghosts, harm.rejected), (0, 0), "{harm:?}");
    let lists = [&harm.second_runs, &harm.side_by_side, &harm.wrong_records];
    assert!(lists.iter().all(|list| list.is_empty()), "{harm:?}");
}

/// For comparison: the same kills with an agent that reports nothing. See docs/reliability.md.
#[test]
#[ignore = "measures plain Slurm"]
fn kills_without_the_agent() {
    let namespace = operator_namespace(cluster(), "plain");
    install(&namespace);
    let agent = cluster().pause_container(namespace.pod("slurm-controller-0"), "reconfigure");
    let harm = kill_around_jobs(&namespace, rounds(10));
    agent.unwrap().heal().unwrap();
    eprintln!("{harm:?}");
    // Else the agent is not needed.
    assert!(harm.ghosts > 0, "{harm:?}");
}
