//! A job of slurmctld.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Deserializer};
use serde_with::apply;

use crate::answer::null_as_default;
use crate::hostlist::{Hostlist, HostlistError};
use crate::names::slurm_names;
use crate::number::Number;

slurm_names! {
    /// The states of a job. A job has one of the first twelve and any number of the others.
    pub enum JobStateName {
        Pending = "PENDING",
        Running = "RUNNING",
        Suspended = "SUSPENDED",
        Completed = "COMPLETED",
        Cancelled = "CANCELLED",
        Failed = "FAILED",
        Timeout = "TIMEOUT",
        NodeFail = "NODE_FAIL",
        Preempted = "PREEMPTED",
        BootFail = "BOOT_FAIL",
        Deadline = "DEADLINE",
        OutOfMemory = "OUT_OF_MEMORY",
        LaunchFailed = "LAUNCH_FAILED",
        Requeued = "REQUEUED",
        RequeueHold = "REQUEUE_HOLD",
        SpecialExit = "SPECIAL_EXIT",
        Resizing = "RESIZING",
        Configuring = "CONFIGURING",
        Completing = "COMPLETING",
        Stopped = "STOPPED",
        ReconfigFail = "RECONFIG_FAIL",
        PowerUpNode = "POWER_UP_NODE",
        Revoked = "REVOKED",
        RequeueFed = "REQUEUE_FED",
        ResvDelHold = "RESV_DEL_HOLD",
        Signaling = "SIGNALING",
        StageOut = "STAGE_OUT",
        Expediting = "EXPEDITING",
    }
}

use JobStateName::{
    BootFail, Cancelled, Completed, Completing, Configuring, Deadline, Failed, NodeFail, OutOfMemory, Pending,
    PowerUpNode, Preempted, Resizing, Running, Signaling, StageOut, Stopped, Suspended, Timeout,
};

impl JobStateName {
    /// Whether it is a state of the life cycle, of which a job has exactly one.
    const fn is_base(self) -> bool {
        matches!(self, Pending | Running | Suspended) || self.is_end()
    }

    const fn is_end(self) -> bool {
        matches!(
            self,
            Completed | Cancelled | Failed | Timeout | NodeFail | Preempted | BootFail | Deadline | OutOfMemory
        )
    }

    /// Whether the job may have processes on its nodes, or will have soon.
    const fn is_on_nodes(self) -> bool {
        matches!(
            self,
            Running | Suspended | Configuring | Completing | Stopped | Signaling | StageOut | Resizing | PowerUpNode
        )
    }
}

/// A state such as `["RUNNING","CONFIGURING"]`. Unknown names are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobState {
    pub names: BTreeSet<JobStateName>,
    pub unknown: BTreeSet<String>,
}

impl JobState {
    pub fn of_names<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Self {
        let mut state = Self::default();
        for name in names {
            let name = name.as_ref();
            match JobStateName::from_name(name) {
                Some(known) => drop(state.names.insert(known)),
                None => drop(state.unknown.insert(name.to_owned())),
            }
        }
        state
    }

    pub fn has(&self, name: JobStateName) -> bool {
        self.names.contains(&name)
    }

    pub fn is_running(&self) -> bool {
        self.has(Running)
    }

    /// Whether the job has ended for good. A completing job still is on its nodes, so it has not.
    pub fn is_finished(&self) -> bool {
        self.is_known() && self.names.iter().any(|name| name.is_end()) && !self.may_be_on_nodes()
    }

    /// Whether the job may occupy its nodes. True for an unknown state, since this decides whether a worker may be deleted.
    pub fn may_be_on_nodes(&self) -> bool {
        !self.is_known() || self.names.iter().any(|name| name.is_on_nodes())
    }

    fn is_known(&self) -> bool {
        self.unknown.is_empty() && self.names.iter().filter(|name| name.is_base()).count() == 1
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.names.iter().map(|name| name.name());
        let names: Vec<&str> = known.chain(self.unknown.iter().map(String::as_str)).collect();
        f.write_str(&names.join("+"))
    }
}

impl<'de> Deserialize<'de> for JobState {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::<String>::deserialize(deserializer).map(Self::of_names)
    }
}

/// Number, state and nodes are required: a job without a list of nodes could be anywhere.
#[apply(
    String => #[serde(default, deserialize_with = "null_as_default")],
    Number => #[serde(default)],
)]
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Job {
    #[serde(rename = "job_id")]
    pub id: u64,
    #[serde(rename = "job_state")]
    pub state: JobState,
    /// The nodes it has, or had, as a hostlist; empty while it is pending.
    #[serde_with(skip_apply)]
    pub nodes: String,
    /// The nodes it requires by name, as a hostlist.
    pub required_nodes: String,
    pub name: String,
    /// Several, separated by commas, while it is pending.
    pub partition: String,
    /// Its submission, or its last requeue.
    pub submit_time: Number,
    /// Its last start.
    pub start_time: Number,
    /// When its nodes last changed while it ran; 0 if never.
    pub resize_time: Number,
    /// Minutes.
    pub time_limit: Number,
    /// 0 if it is not part of an array.
    pub array_job_id: Number,
    pub array_task_id: Number,
    /// 0 if it is not part of a heterogeneous job, else the number of the first part.
    pub het_job_id: Number,
    /// Whether its owner allows a requeue.
    pub requeue: Option<bool>,
    /// Whether it has a script, which Slurm can start again.
    pub batch_flag: Option<bool>,
}

checked_text! {
    /// The name of one job in a command: `7`, or `7_3` for a task of an array.
    JobHandle: is_handle,
    InvalidJobHandle: "{0:?} is not the number of one job, such as 7 or 7_3"
}

fn is_handle(handle: &str) -> bool {
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u32>().is_ok();
    match handle.split_once('_') {
        Some((job, task)) => is_number(job) && is_number(task),
        None => is_number(handle),
    }
}

impl Job {
    /// Expanded on demand only: thousands of jobs on thousands of nodes would take gigabytes.
    pub fn node_list(&self) -> Result<Hostlist, HostlistError> {
        Hostlist::parse(&self.nodes)
    }

    /// Returns when its time limit ends, in seconds since 1970. `None` if it does not run or has no limit.
    pub fn latest_end(&self) -> Option<u64> {
        let start = self.start_time.finite().filter(|_| self.state.is_running())?;
        start.checked_add(self.time_limit.finite()?.checked_mul(60)?)
    }

    /// Returns since when it has had its current nodes, in seconds since 1970. `None` while it starts or ends, or if that is
    /// unknown.
    pub fn on_its_nodes_since(&self) -> Option<u64> {
        let state = &self.state;
        let settled = |name: &JobStateName| matches!(name, Running | Suspended | Stopped | Signaling);
        let is_there = state.is_known() && !state.names.is_empty() && state.names.iter().all(settled);
        let began = self.start_time.finite().filter(|began| is_there && *began != 0)?;
        Some(began.max(self.resize_time.finite().unwrap_or_default()))
    }

    /// Returns the name of this job alone: the number of one task of an array is that of the whole array too.
    pub fn handle(&self) -> JobHandle {
        let array = self.array_job_id.finite().filter(|id| *id != 0);
        let whole = self.het_job_id.finite().filter(|id| *id != 0);
        JobHandle(match (array, self.array_task_id.finite(), whole) {
            (Some(array), Some(task), _) => format!("{array}_{task}"),
            (_, _, Some(whole)) => whole.to_string(),
            _ => self.id.to_string(),
        })
    }

    /// Whether Slurm can requeue it.
    pub fn can_be_requeued(&self) -> bool {
        self.requeue.unwrap_or(true) && self.batch_flag.unwrap_or(true)
    }

    pub fn partitions(&self) -> impl Iterator<Item = &str> {
        self.partition.split(',').filter(|partition| !partition.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::{Hostlist, HostlistError, InvalidJobHandle, Job, JobHandle, JobState, JobStateName};

    fn state(names: &[&str]) -> JobState {
        JobState::of_names(names)
    }

    fn job(json: &str) -> Job {
        serde_json::from_str(json).unwrap()
    }

    fn may_be_on(job: &Job, node: &str) -> Result<bool, HostlistError> {
        Ok(job.state.may_be_on_nodes() && job.node_list()?.contains(node))
    }

    fn waits_for(job: &Job, node: &str) -> Result<bool, HostlistError> {
        Ok(!job.state.is_finished() && Hostlist::parse(&job.required_nodes)?.contains(node))
    }

    #[test]
    fn active_jobs_occupy_their_nodes() {
        for names in [
            &["RUNNING"][..],
            &["SUSPENDED"],
            &["RUNNING", "CONFIGURING"],
            &["COMPLETED", "COMPLETING"],
            &["CANCELLED", "COMPLETING"],
            &["PENDING", "REQUEUED", "COMPLETING"],
            &["RUNNING", "STOPPED"],
            &["RUNNING", "SIGNALING"],
            &["COMPLETED", "STAGE_OUT"],
        ] {
            assert!(
                state(names).may_be_on_nodes() && !state(names).is_finished(),
                "{names:?}"
            );
        }
    }

    #[test]
    fn pending_and_finished_jobs_occupy_no_nodes() {
        for names in [
            &["PENDING"][..],
            &["PENDING", "REQUEUE_HOLD"],
            &["COMPLETED"],
            &["NODE_FAIL"],
            &["CANCELLED"],
        ] {
            assert!(!state(names).may_be_on_nodes(), "{names:?}");
        }
        assert!(!state(&["PENDING"]).is_finished());
        assert!(state(&["TIMEOUT"]).is_finished());
    }

    #[test]
    fn a_job_in_an_unknown_state_occupies_its_nodes() {
        for names in [
            &[][..],
            &["LEVITATING"],
            &["COMPLETED", "LEVITATING"],
            &["COMPLETING"],
            &["PENDING", "COMPLETED"],
        ] {
            assert!(
                state(names).may_be_on_nodes() && !state(names).is_finished(),
                "{names:?}"
            );
        }
        assert_eq!(state(&["COMPLETED", "LEVITATING"]).to_string(), "COMPLETED+LEVITATING");
    }

    #[test]
    fn a_job_is_on_the_nodes_of_its_list() {
        let job = job(r#"{"job_id":7,"job_state":["SUSPENDED"],"nodes":"n[1-3]","something_new":{}}"#);
        assert_eq!(may_be_on(&job, "n2"), Ok(true));
        assert_eq!(may_be_on(&job, "n4"), Ok(false));
    }

    #[test]
    fn an_invalid_list_of_nodes_is_an_error() {
        let job = job(r#"{"job_id":7,"job_state":["RUNNING"],"nodes":"n[1-"}"#);
        assert!(may_be_on(&job, "n4").is_err());
    }

    #[test]
    fn a_pending_job_waits_for_the_nodes_it_requires() {
        let waiting = job(r#"{"job_id":7,"job_state":["PENDING"],"nodes":"","required_nodes":"n[4-5]"}"#);
        assert_eq!(waits_for(&waiting, "n5"), Ok(true));
        let done = Job {
            state: state(&["COMPLETED"]),
            ..waiting
        };
        assert_eq!(waits_for(&done, "n5"), Ok(false));
    }

    #[test]
    fn a_job_without_nodes_or_state_is_rejected() {
        for json in [
            r#"{"job_id":7,"job_state":["RUNNING"]}"#,
            r#"{"job_id":7,"nodes":""}"#,
            r#"{"job_state":[],"nodes":""}"#,
        ] {
            assert!(serde_json::from_str::<Job>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn a_job_has_its_nodes_since_its_start_or_last_resize() {
        let on_nodes = |state: &str, began: u64, resized: u64| {
            let number = |seconds| format!(r#"{{"set":true,"infinite":false,"number":{seconds}}}"#);
            let (began, resized) = (number(began), number(resized));
            let text = format!(
                r#"{{"job_id":7,"job_state":[{state}],"nodes":"n1","start_time":{began},"resize_time":{resized}}}"#
            );
            job(&text).on_its_nodes_since()
        };
        assert_eq!(on_nodes(r#""RUNNING""#, 1000, 0), Some(1000));
        assert_eq!(on_nodes(r#""SUSPENDED""#, 1000, 0), Some(1000));
        assert_eq!(on_nodes(r#""RUNNING""#, 1000, 1500), Some(1500));
        assert_eq!(on_nodes(r#""RUNNING""#, 0, 0), None);
        for state in [
            r#""RUNNING","CONFIGURING""#,
            r#""RUNNING","POWER_UP_NODE""#,
            r#""RUNNING","RESIZING""#,
            r#""COMPLETED","COMPLETING""#,
            r#""PENDING""#,
            r#""RUNNING","SOMETHING_NEW""#,
            "",
        ] {
            assert_eq!(on_nodes(state, 1000, 0), None, "{state}");
        }
    }

    #[test]
    fn the_latest_end_needs_a_start_and_a_limit() {
        let running = job(
            r#"{"job_id":7,"job_state":["RUNNING"],"nodes":"n1","start_time":{"set":true,"number":1000},"time_limit":{"set":true,"number":2}}"#,
        );
        assert_eq!(running.latest_end(), Some(1120));
        assert_eq!(
            Job {
                time_limit: crate::Number::Infinite,
                ..running.clone()
            }
            .latest_end(),
            None
        );
        assert_eq!(
            Job {
                state: state(&["PENDING"]),
                ..running
            }
            .latest_end(),
            None
        );
    }

    #[test]
    fn a_task_of_an_array_is_not_the_whole_array() {
        let handle = |json: &str| job(json).handle().to_string();
        assert_eq!(handle(r#"{"job_id":7,"job_state":["RUNNING"],"nodes":"n1"}"#), "7");
        assert_eq!(
            handle(
                r#"{"job_id":7,"job_state":["RUNNING"],"nodes":"n1","array_job_id":{"set":true,"number":0},"array_task_id":{"set":false},"het_job_id":{"set":true,"number":0}}"#
            ),
            "7"
        );
        assert_eq!(
            handle(
                r#"{"job_id":7,"job_state":["RUNNING"],"nodes":"n1","array_job_id":{"set":true,"number":7},"array_task_id":{"set":true,"number":3}}"#
            ),
            "7_3"
        );
        assert_eq!(
            handle(r#"{"job_id":8,"job_state":["RUNNING"],"nodes":"n1","het_job_id":{"set":true,"number":7}}"#),
            "7"
        );
    }

    #[test]
    fn only_batch_jobs_that_allow_it_can_be_requeued() {
        for (fields, can) in [
            ("", true),
            (r#","requeue":true,"batch_flag":true"#, true),
            (r#","requeue":false,"batch_flag":true"#, false),
            (r#","requeue":true,"batch_flag":false"#, false),
        ] {
            let job = job(&format!(
                r#"{{"job_id":7,"job_state":["RUNNING"],"nodes":"n1"{fields}}}"#
            ));
            assert_eq!(job.can_be_requeued(), can, "{fields}");
        }
    }

    #[test]
    fn a_handle_names_one_job() {
        for handle in ["7", "7_0", "4294967295"] {
            assert_eq!(JobHandle::new(handle).unwrap().as_str(), handle);
        }
        for handle in ["", "-1", "7_", "_3", "7_[1-3]", "7+1", "7.0", "+7", " 7", "99999999999"] {
            assert_eq!(JobHandle::new(handle), Err(InvalidJobHandle(handle.to_owned())));
        }
    }

    #[test]
    fn names_and_values_agree() {
        assert!(
            JobStateName::ALL
                .iter()
                .all(|name| JobStateName::from_name(name.name()) == Some(*name))
        );
        assert_eq!(JobStateName::ALL.iter().filter(|name| name.is_base()).count(), 12);
    }
}
