//! Jobs as in the guides, and the reasons why they wait.

use anyhow::Result;
use serde_json::json;
use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::clusters::{install_chart, operator_namespace, wait_said};
use crate::common::slurm::{SOON, slurm, wait_done, wait_idle, wait_job};

const VALUES: &str = include_str!("../../../../examples/gpu/values.yaml");
const SHARED: &str = include_str!("../../../../examples/gpu/shared.yaml");

/// The six lines of the guide in one script.
const HEADER: &str = "#!/bin/bash
#SBATCH --nodes=2          # 節點數
#SBATCH --ntasks=4         # 任務數
#SBATCH --cpus-per-task=2  # 每個任務的 CPU
#SBATCH --mem=4G           # 記憶體
#SBATCH --time=01:00:00    # 時間限制
#SBATCH --gres=gpu:1       # GPU 數量（如果有）
";

fn submit(namespace: &Namespace, arguments: &str) -> String {
    let line = format!("sbatch --parsable --chdir=/tmp -o /dev/null {arguments}");
    slurm(namespace, &line).unwrap().trim().to_owned()
}

/// Waits until the `squeue` of the guide shows this reason for a job.
fn wait_reason(namespace: &Namespace, job: &str, reason: &str) {
    eventually(&format!("job {job} waits: {reason}"), SOON, || {
        let jobs = slurm(namespace, r#"squeue -o "%i %j %T %r""#)?;
        let words = format!("{job} wrap PENDING {reason}");
        expect(jobs.lines().any(|line| line == words), jobs)
    })
    .unwrap();
}

fn shown(namespace: &Namespace, job: &str) -> Result<String> {
    slurm(namespace, &format!("scontrol show job {job}"))
}

#[test]
fn jobs_of_all_kinds_run_and_show_why_they_wait() {
    let namespace = operator_namespace(cluster(), "jobs");
    namespace.apply(SHARED).unwrap();
    // Devices and cores that this machine does not have.
    let values = VALUES
        .replace("/dev/nvidia0", "/dev/zero")
        .replace("GresTypes=gpu", "GresTypes=gpu\n    SlurmdParameters=config_overrides")
        .replace("Gres=gpu:1", "Gres=gpu:1 CPUs=4");
    install_chart(&namespace, &values).unwrap();
    wait_idle(&namespace, 2).unwrap();
    // As an administrator of a shared file system does once.
    namespace
        .exec("slurm-worker-gpu-0 -c slurmd", "chmod 1777 /shared")
        .unwrap();

    the_guides_header_as_one_script(&namespace);
    output_is_in_the_pod_and_on_shared_storage(&namespace);
    arrays_requeues_cancels_and_memory(&namespace);
    reasons_to_wait(&namespace);
    devices_that_no_job_would_get_are_told(&namespace);
}

fn the_guides_header_as_one_script(namespace: &Namespace) {
    let script = format!("{HEADER}srun sh -c 'echo $SLURM_PROCID $CUDA_VISIBLE_DEVICES $(hostname) >>/shared/ranks'\n");
    let write = format!("cat >/tmp/header.sh <<'END'\n{script}END");
    slurm(namespace, &write).unwrap();
    let job = submit(namespace, "/tmp/header.sh");
    wait_done(namespace, &job).unwrap();
    let mut ranks: Vec<String> = namespace
        .exec("slurm-worker-gpu-0 -c slurmd", "cat /shared/ranks")
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect();
    ranks.sort();
    let at = |host: &str| ranks.iter().filter(|rank| rank.ends_with(host)).count();
    assert_eq!(
        (ranks.len(), at(" 0 gpu-0") > 0, at(" 0 gpu-1") > 0),
        (4, true, true),
        "{ranks:?}"
    );
}

fn output_is_in_the_pod_and_on_shared_storage(namespace: &Namespace) {
    // As root, the owner of the home directory.
    let job = namespace.exec(
        "slurm-worker-gpu-1 -c slurmd",
        "sbatch --parsable --chdir=/root -o output.txt --nodelist=gpu-0 --wrap 'echo here'",
    );
    wait_done(namespace, job.unwrap().trim()).unwrap();
    let to = tempfile::tempdir().unwrap();
    let copy = to.path().join("output.txt").display().to_string();
    let from = format!("{}/slurm-worker-gpu-0:/root/output.txt", namespace.name);
    namespace.ask(&["cp", &from, &copy, "-c", "slurmd"]).unwrap();
    assert_eq!(std::fs::read_to_string(copy).unwrap(), "here\n");

    let job = slurm(
        namespace,
        "sbatch --parsable --chdir=/shared -o %j.txt --nodelist=gpu-1 --wrap 'echo there'",
    );
    let job = job.unwrap();
    wait_done(namespace, job.trim()).unwrap();
    let read = format!("cat /shared/{}.txt", job.trim());
    assert_eq!(
        namespace.exec("slurm-worker-gpu-0 -c slurmd", &read).unwrap(),
        "there\n"
    );
}

fn arrays_requeues_cancels_and_memory(namespace: &Namespace) {
    let run = slurm(
        namespace,
        "srun --chdir=/tmp --nodes=2 --ntasks-per-node=1 hostname | sort",
    );
    assert_eq!(run.unwrap(), "gpu-0\ngpu-1\n");

    let array = submit(
        namespace,
        "--array=1-4 --mem=100M --wrap 'echo $SLURM_ARRAY_TASK_ID >>/shared/array'",
    );
    for task in 1..=4 {
        wait_done(namespace, &format!("{array}_{task}")).unwrap();
    }
    let tasks = namespace.exec("slurm-worker-gpu-1 -c slurmd", "sort /shared/array");
    assert_eq!(tasks.unwrap(), "1\n2\n3\n4\n");

    let job = submit(namespace, "--mem=100M --wrap 'sleep 600'");
    wait_job(namespace, &job, "RUNNING").unwrap();
    slurm(namespace, &format!("scontrol requeue {job}")).unwrap();
    eventually("it waits for its restart", SOON, || {
        let shown = shown(namespace, &job)?;
        expect(shown.contains("Restarts=1"), shown)
    })
    .unwrap();
    slurm(namespace, &format!("scancel {job}")).unwrap();
    wait_job(namespace, &job, "CANCELLED").unwrap();

    let greedy = submit(
        namespace,
        "--mem=50M --wrap 'head -c 300M /dev/zero | tail -c 300M | sleep 600'",
    );
    // slurmd kills the job. Where cgroups limit memory, the kernel does, and the state is OUT_OF_MEMORY.
    eventually("it is killed", SOON, || {
        let shown = shown(namespace, &greedy)?;
        expect(
            shown.contains("JobState=FAILED") && shown.contains("ExitCode=0:9"),
            shown,
        )
    })
    .unwrap();
}

/// `GresTypes` names gpu only.
fn devices_that_no_job_would_get_are_told(namespace: &Namespace) {
    let set = json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "metadata": { "name": "shards" },
        "spec": { "controllerRef": { "name": "slurm" }, "replicas": 0, "extraConf": "Gres=gpu:1,shard:8" },
    });
    namespace.apply(&set.to_string()).unwrap();
    let words = [
        r#"True ConfigDoubtful NodeSet "shards" has shard in Gres="#,
        "add shard to GresTypes",
    ];
    wait_said(namespace, "controller/slurm", "ConfigDoubtful", &words);
}

fn reasons_to_wait(namespace: &Namespace) {
    let first = submit(namespace, "--nodes=2 --exclusive --wrap 'sleep 600'");
    wait_job(namespace, &first, "RUNNING").unwrap();
    let second = submit(namespace, "--nodes=1 --exclusive --time=10 --wrap true");
    let third = submit(namespace, "--nodes=1 --exclusive --time=10 --wrap true");
    wait_reason(namespace, &second, "Resources");
    wait_reason(namespace, &third, "Priority");
    let more = ["scale", "nodeset/slurm-worker-gpu", "--replicas=3"];
    namespace.ask(&more).unwrap();
    wait_done(namespace, &second).unwrap();
    wait_done(namespace, &third).unwrap();
    wait_job(namespace, &first, "RUNNING").unwrap();
    slurm(namespace, &format!("scancel {first}")).unwrap();

    slurm(namespace, "scontrol update partitionname=all state=down").unwrap();
    let shut_out = submit(namespace, "--mem=100M --wrap true");
    wait_reason(namespace, &shut_out, "PartitionDown");
    slurm(namespace, "scontrol update partitionname=all state=up").unwrap();
    wait_done(namespace, &shut_out).unwrap();
}
