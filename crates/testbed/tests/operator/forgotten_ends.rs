//! slurmctld is killed before it has saved the ends of jobs.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use testbed::harness::{Namespace, cluster, eventually, expect, rounds};

use crate::accounting::{MARIADB, VALUES, set_password};
use crate::common::clusters::{install_chart, operator_namespace};
use crate::common::kills::kill_container;
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

fn records(namespace: &Namespace, jobs: &[String]) -> Vec<String> {
    let ask = "sacct --noheader --parsable2 --allocations --duplicates --format=State,ExitCode --jobs";
    let read = |job: &String| slurm(namespace, &format!("{ask}={job}")).unwrap_or_default();
    jobs.iter().map(read).collect()
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
    hold_state(&namespace, &["job", "node"]).unwrap();
    slurm(&namespace, &format!("scancel {}", jobs[1])).unwrap();
    for worker in [0, 2] {
        on_worker(&namespace, worker, "touch /tmp/end");
    }
    eventually("slurmdbd has all ends", SOON, || {
        let records = records(&namespace, &jobs);
        expect(have_ended(&records), records)?;
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
        let left = slurm(&namespace, "squeue --noheader")?;
        expect(left.trim().is_empty(), left)
    })
    .unwrap();
    wait_idle(&namespace, ENDS.len()).unwrap();
    let records = records(&namespace, &jobs);
    assert!(have_ended(&records), "{records:?}");
    for worker in 0..ENDS.len() {
        assert_eq!(
            on_worker(&namespace, worker, "cat /tmp/runs"),
            "run\n",
            "worker {worker}"
        );
    }
}

/// What a job wrote on its worker: one line when it started, ten each second, and one before it ended.
fn runs(namespace: &Namespace) -> BTreeMap<String, Vec<Run>> {
    let mut runs: BTreeMap<String, BTreeMap<String, Run>> = BTreeMap::new();
    for worker in 0..ENDS.len() {
        for line in on_worker(namespace, worker, "cat /tmp/runs").lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [name, process, what, time] = words[..] else {
                panic!("{line}")
            };
            let copies = runs.entry(name.to_owned()).or_default();
            let run = copies.entry(format!("{worker}/{process}")).or_default();
            let time = time.parse().unwrap();
            run.first = run.first.or(Some(time));
            run.last = Some(time);
            run.ended |= what == "end";
        }
    }
    let by_start = |copies: BTreeMap<String, Run>| {
        let mut copies: Vec<Run> = copies.into_values().collect();
        copies.sort_by(|a, b| a.first.partial_cmp(&b.first).unwrap());
        copies
    };
    runs.into_iter()
        .map(|(name, copies)| (name, by_start(copies)))
        .collect()
}

#[derive(Debug, Default)]
struct Run {
    first: Option<f64>,
    last: Option<f64>,
    ended: bool,
}

/// Kills slurmctld up to five seconds after starts and ends. What it forgets about jobs that it still knows does no harm.
#[test]
fn no_kill_makes_a_finished_job_run_again_or_two_copies_run_side_by_side() {
    let namespace = operator_namespace(cluster(), "kills");
    install(&namespace);
    let (mut submitted, mut kills, mut held) = (Vec::new(), Vec::new(), 0);
    for round in 0..rounds(2) {
        for job in 0..ENDS.len() {
            let (name, exit) = (format!("kill-{round}-{job}"), 3 * (job % 2));
            let line = format!("{name} $$ %s $(date +%s.%N)");
            let say = |what: &str| format!("echo \"{}\" >>/tmp/runs", line.replacen("%s", what, 1));
            let script = format!(
                "{}; for i in $(seq {}); do sleep 0.1; {}; done; {}; exit {exit}",
                say("start"),
                10 * (1 + (round + 2 * job) % 5),
                say("beat"),
                say("end"),
            );
            let submit = "sbatch --chdir=/tmp --output=/dev/null --partition=all";
            slurm(&namespace, &format!("{submit} --job-name={name} --wrap '{script}'")).unwrap();
            submitted.push((name, exit, round));
        }
        std::thread::sleep(Duration::from_millis((round as u64 * 1700) % 6000));
        // slurmctld learns of a job's end, and tells slurmdbd, some tenths of a second later.
        let told = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64() - 0.5;
        kills.push(told);
        kill_container(&namespace, "slurmctld").unwrap();
        eventually("all jobs are over", 3 * SOON, || {
            let left = slurm(&namespace, "squeue --noheader --format=\"%i %r\"")?;
            for job in left.lines().filter_map(|line| line.strip_suffix(" JobHeldAdmin")) {
                slurm(&namespace, &format!("scancel {job}"))?;
                held += 1;
            }
            expect(left.trim().is_empty(), left)
        })
        .unwrap();
        wait_idle(&namespace, ENDS.len()).unwrap();
    }
    let runs = runs(&namespace);
    let (mut restarted, mut forgotten) = (0, 0);
    for (name, exit, round) in submitted {
        let ask = "sacct --noheader --parsable2 --allocations --format=State,ExitCode --name";
        let record = slurm(&namespace, &format!("{ask}={name}")).unwrap();
        let copies = runs.get(&name).map_or(&[][..], Vec::as_slice);
        restarted += copies.len().saturating_sub(1);
        for pair in copies.windows(2) {
            // Nobody keeps the end of a job whose start slurmctld forgot, while slurmctld is down.
            let was_told = pair[0].ended && pair[0].last < Some(kills[round]);
            assert!(!was_told, "{name} ran again after its end: {copies:?}");
            assert!(pair[0].last < pair[1].first, "{name} ran side by side: {copies:?}");
        }
        // slurmctld forgot the submission, so nobody ever ends the record.
        if !copies.last().is_some_and(|run| run.ended) {
            forgotten += 1;
            continue;
        }
        let expected = if exit == 0 { "COMPLETED|0:0" } else { "FAILED|3:0" };
        let is_held = record.starts_with("CANCELLED");
        assert!(record.trim() == expected || is_held, "{name}: {record} {copies:?}");
    }
    eprintln!("{restarted} jobs restarted, {held} held, {forgotten} submissions forgotten");
}
