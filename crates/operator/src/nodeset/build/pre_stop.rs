//! The preStop hook of a worker: it runs after an eviction, a manual deletion, or an eviction by the kubelet.
//!
//! It drains the node, waits for running jobs as long as the grace period allows, and then sets the node down, so that
//! Slurm requeues the remaining jobs at once. When the operator removes a worker there is neither a job nor a record, and
//! the hook ends at once. It is a shell script, because it has to run in every slurmd image.

use api::{NodeSet, keys, node_reason::TERMINATING};

/// Kubernetes' default of `terminationGracePeriodSeconds`.
const DEFAULT_GRACE: i64 = 30;
/// The kubelet kills the script at the end of the grace period; the last order needs up to 4 s before that.
const RESERVE: i64 = 4;

/// `slurmstepd infinity` is no job: slurmd keeps it for its cgroup. The record may be a successor's, if this pod was
/// wrongly considered dead; the address tells. A reason of the operator explains why the worker leaves, and stays.
const SCRIPT: &str = r#"ask() { timeout 5 "$@" 2>/dev/null; }
tell() { ask scontrol update nodename="$node" state="$1" reason="$reason"; }
look() {
  record=$(ask scontrol --oneliner show node "$node")
  address=${record#* NodeAddr=}
  case " $node $(hostname -i) " in *" ${address%% *} "*) ;; *) record= ;; esac
  state=${record#* State=}
  state=${state%% *}
}
busy() {
  for comm in /proc/[0-9]*/comm; do
    read -r name <"$comm" && [ "$name" = slurmstepd ] || continue
    grep -q infinity "${comm%comm}cmdline" || return 0
  done 2>/dev/null
  [ -n "$record" ] && ask squeue --noheader --nodelist="$node" | grep -q .
}
while
  look
  case $state in '' | *DRAIN* | *DOWN*) ;; *) tell drain ;; esac
  busy && [ "$(date +%s)" -lt "$end" ]
do sleep 1; done
look
case $record in *" Reason=$ours"*)
  reason=${record##* Reason=}
  reason=${reason%% \[*}
  tell down ;;
esac
exit 0
"#;

/// Renders the script for the grace period of this NodeSet.
pub(super) fn render(nodeset: &NodeSet) -> String {
    let template = nodeset.spec.pod_spec();
    let grace = template
        .and_then(|spec| spec.get("terminationGracePeriodSeconds")?.as_i64())
        .unwrap_or(DEFAULT_GRACE);
    let ours = keys::NODE_REASON_PREFIX;
    let time = grace.saturating_sub(RESERVE).max(0);
    // The record of a node that power saving starts or stops is not this worker's any more.
    let script = match nodeset.spec.autoscaling() {
        Some(_) => SCRIPT.replace("*DOWN*)", "*DOWN* | *POWER*)"),
        None => SCRIPT.to_owned(),
    };
    format!("node=$(hostname) ours='{ours}' reason='{ours}{TERMINATING}' end=$(($(date +%s) + {time}))\n{script}")
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

    use serde_json::json;

    use super::*;
    use crate::nodeset::fixture::nodeset;

    /// Runs the script with these shell lines as Slurm's commands. Returns the orders that Slurm got.
    fn told(grace: i64, scontrol_show: &str, squeue: &str) -> String {
        told_beside(&[], grace, scontrol_show, squeue)
    }

    /// Like [`told`], with these command lines as running processes.
    fn told_beside(processes: &[&str], grace: i64, scontrol_show: &str, squeue: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let play = |name: &str, lines: &str| {
            let path = dir.path().join(name);
            fs::write(&path, format!("#!/bin/sh\n{lines}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        };
        let at = |name: &str| dir.path().join(name).display().to_string();
        play(
            "scontrol",
            &format!(
                "case $* in *show*) {scontrol_show} ;; *) echo \"$3 $4\" >>{} ;; esac",
                at("told")
            ),
        );
        for (pid, cmdline) in processes.iter().enumerate() {
            let process = dir.path().join(format!("proc/{}", pid + 1));
            fs::create_dir_all(&process).unwrap();
            let name = cmdline.split([' ', ':']).next().unwrap();
            fs::write(process.join("comm"), format!("{name}\n")).unwrap();
            fs::write(process.join("cmdline"), cmdline.replace(' ', "\0")).unwrap();
        }
        play("squeue", squeue);
        play("hostname", "if [ \"$1\" = -i ]; then echo 10.0.0.7; else echo n-0; fi");
        let spec = json!({ "template": { "spec": { "terminationGracePeriodSeconds": grace } } });
        // Keeps the script away from the processes of this machine.
        let script = render(&serde_json::from_value(nodeset(&spec)).unwrap()).replace("/proc/", &at("proc/"));
        let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
        let status = Command::new("sh").args(["-c", &script]).env("PATH", path).status();
        assert!(status.unwrap().success());
        fs::read_to_string(Path::new(&at("told"))).unwrap_or_default()
    }

    fn record(state: &str, reason: &str) -> String {
        format!("echo 'NodeName=n-0 NodeAddr=10.0.0.7 State={state} Boot=1{reason}'")
    }

    const DRAIN: &str = "state=drain reason=slurm-operator: Pod is terminating\n";
    const DOWN: &str = "state=down reason=slurm-operator: Pod is terminating\n";

    #[test]
    fn an_idle_node_is_drained_and_then_down() {
        // After the drain Slurm shows its reason.
        let dir = tempfile::tempdir().unwrap();
        let seen = dir.path().join("seen").display().to_string();
        let show = format!(
            "if [ -e {seen} ]; then {}; else touch {seen}; {}; fi",
            record("IDLE+DRAIN", " Reason=slurm-operator: Pod is terminating [slurm@x]"),
            record("IDLE", "")
        );
        assert_eq!(told(30, &show, "true"), format!("{DRAIN}{DOWN}"));
    }

    #[test]
    fn jobs_are_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let looks = dir.path().join("looks").display().to_string();
        let squeue = format!("echo >>{looks}; [ $(wc -l <{looks}) -lt 3 ] && echo job");
        let ours = record("MIXED+DRAIN", " Reason=slurm-operator: x [slurm@x]");
        let down = "state=down reason=slurm-operator: x\n";
        assert_eq!(told(30, &ours, &squeue), down);
        assert_eq!(fs::read_to_string(looks).unwrap().lines().count(), 3);
        // The wait ends with the grace period.
        assert_eq!(told(5, &ours, "echo job"), down);
    }

    #[test]
    fn steps_are_waited_for_though_slurm_is_away() {
        let looks = |processes: &[&str]| {
            let dir = tempfile::tempdir().unwrap();
            let looks = dir.path().join("looks").display().to_string();
            told_beside(processes, 8, &format!("echo >>{looks}; exit 1"), "exit 1");
            fs::read_to_string(looks).unwrap().lines().count()
        };
        assert_eq!(looks(&["slurmd --systemd", "slurmstepd infinity"]), 2);
        assert!(looks(&["slurmstepd: [7.batch]"]) > 2);
    }

    #[test]
    fn a_manual_reason_is_kept() {
        for state in ["IDLE+DRAIN", "DOWN", "DOWN*+DRAIN"] {
            assert_eq!(told(30, &record(state, " Reason=broken fan [root@x]"), "true"), "");
        }
    }

    #[test]
    fn without_a_record_there_is_nothing_to_say() {
        assert_eq!(told(30, "exit 1", "exit 1"), "");
        // A successor with the same name has another address.
        let others = record("IDLE", "").replace("10.0.0.7", "10.0.0.8");
        assert_eq!(told(30, &others, "echo job"), "");
    }
}
