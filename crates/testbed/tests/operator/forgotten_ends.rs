//! slurmctld is killed before it has saved the ends of jobs.

use testbed::harness::{Namespace, cluster, eventually, expect};

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
