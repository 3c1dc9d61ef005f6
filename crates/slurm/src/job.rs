//! A job as slurmctld sees it.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;

use crate::answer::null_as_default;
use crate::hostlist::{Hostlist, HostlistError};
use crate::names::slurm_names;
use crate::number::Number;

slurm_names! {
    /// The names Slurm has for the state of a job. A job has one of the first twelve and any number of the others.
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
    /// Where the job is in its life, as opposed to what else is true of it.
    const fn is_base(self) -> bool {
        matches!(self, Pending | Running | Suspended) || self.is_end()
    }

    const fn is_end(self) -> bool {
        matches!(
            self,
            Completed | Cancelled | Failed | Timeout | NodeFail | Preempted | BootFail | Deadline | OutOfMemory
        )
    }

    /// Processes or leftovers of the job may be on its nodes, or are about to be.
    const fn is_on_nodes(self) -> bool {
        matches!(
            self,
            Running | Suspended | Configuring | Completing | Stopped | Signaling | StageOut | Resizing | PowerUpNode
        )
    }
}

/// `["RUNNING","CONFIGURING"]` taken apart. A name we do not know is kept.
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

    pub fn is_pending(&self) -> bool {
        self.has(Pending)
    }

    pub fn is_running(&self) -> bool {
        self.has(Running)
    }

    /// The job is over and will not come back. A job being cleared away still is on its nodes, so it is not.
    pub fn is_finished(&self) -> bool {
        self.is_understood() && self.names.iter().any(|name| name.is_end()) && !self.may_be_on_nodes()
    }

    /// Whether the nodes of the job must be left alone. A state we do not understand counts as yes: the answer
    /// decides whether a worker may be deleted.
    pub fn may_be_on_nodes(&self) -> bool {
        !self.is_understood() || self.names.iter().any(|name| name.is_on_nodes())
    }

    fn is_understood(&self) -> bool {
        self.unknown.is_empty() && self.names.iter().filter(|name| name.is_base()).count() == 1
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self
            .names
            .iter()
            .map(|name| name.name())
            .chain(self.unknown.iter().map(String::as_str));
        for (at, name) in names.enumerate() {
            if at > 0 {
                f.write_str("+")?;
            }
            f.write_str(name)?;
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for JobState {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::<String>::deserialize(deserializer).map(Self::of_names)
    }
}

/// Number, state and nodes must be there: a job whose nodes were left out could be anywhere.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Job {
    #[serde(rename = "job_id")]
    pub id: u64,
    #[serde(rename = "job_state")]
    pub state: JobState,
    /// The nodes it has, or had, as a hostlist; empty while it waits.
    pub nodes: String,
    /// The nodes it asked for by name, as a hostlist.
    #[serde(default, deserialize_with = "null_as_default")]
    pub required_nodes: String,
    #[serde(default, deserialize_with = "null_as_default")]
    pub name: String,
    #[serde(default, deserialize_with = "null_as_default")]
    pub user_name: String,
    /// Several with commas while it waits for the first that will have it.
    #[serde(default, deserialize_with = "null_as_default")]
    pub partition: String,
    /// Why it waits.
    #[serde(default, deserialize_with = "null_as_default")]
    pub state_reason: String,
    /// When it began, the last time.
    #[serde(default)]
    pub start_time: Number,
    /// When it was last given nodes, or lost some, while it ran; 0 if never.
    #[serde(default)]
    pub resize_time: Number,
    /// Minutes.
    #[serde(default)]
    pub time_limit: Number,
    /// 0 if it is no part of an array.
    #[serde(default)]
    pub array_job_id: Number,
    #[serde(default)]
    pub array_task_id: Number,
    /// 0 if it is no part of a heterogeneous job, else the number of the first part.
    #[serde(default)]
    pub het_job_id: Number,
    /// Its owner lets it be requeued.
    #[serde(default)]
    pub requeue: Option<bool>,
    /// It has a script, which Slurm can start again by itself.
    #[serde(default)]
    pub batch_flag: Option<bool>,
}

/// How a command names one job: `7`, or `7_3` for a task of an array.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobHandle(String);

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is not the number of one job, such as 7 or 7_3")]
pub struct InvalidJobHandle(pub String);

impl JobHandle {
    pub fn new(handle: impl Into<String>) -> Result<Self, InvalidJobHandle> {
        let handle = handle.into();
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u32>().is_ok();
        let good = match handle.split_once('_') {
            Some((job, task)) => is_number(job) && is_number(task),
            None => is_number(&handle),
        };
        if !good {
            return Err(InvalidJobHandle(handle));
        }
        Ok(Self(handle))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

checked_text!(JobHandle, InvalidJobHandle);

impl Job {
    /// The names are written out only when asked for: thousands of jobs on thousands of nodes would be gigabytes.
    pub fn node_list(&self) -> Result<Hostlist, HostlistError> {
        Hostlist::parse(&self.nodes)
    }

    /// Whether anything of the job may be on that node.
    pub fn may_be_on(&self, node: &str) -> Result<bool, HostlistError> {
        Ok(self.state.may_be_on_nodes() && self.node_list()?.contains(node))
    }

    /// The job will want that very node: Slurm fails such a job when the node's record goes.
    pub fn waits_for(&self, node: &str) -> Result<bool, HostlistError> {
        Ok(!self.state.is_finished() && Hostlist::parse(&self.required_nodes)?.contains(node))
    }

    /// When Slurm will end it at the latest, in seconds since 1970. `None` if it does not run or has no limit.
    pub fn latest_end(&self) -> Option<u64> {
        let start = self.start_time.finite().filter(|_| self.state.is_running())?;
        start.checked_add(self.time_limit.finite()?.checked_mul(60)?)
    }

    /// Since when it has been on the nodes it has, in seconds since 1970. `None` if it is on its way there or away from there,
    /// or if that cannot be told.
    pub fn on_its_nodes_since(&self) -> Option<u64> {
        let state = &self.state;
        let settled = |name: &JobStateName| matches!(name, Running | Suspended | Stopped | Signaling);
        let is_there = state.is_understood() && !state.names.is_empty() && state.names.iter().all(settled);
        let began = self.start_time.finite().filter(|began| is_there && *began != 0)?;
        Some(began.max(self.resize_time.finite().unwrap_or_default()))
    }

    /// What a command on this job and no other calls it. The number of one task of an array is that of the whole array too.
    pub fn handle(&self) -> JobHandle {
        let array = self.array_job_id.finite().filter(|id| *id != 0);
        let whole = self.het_job_id.finite().filter(|id| *id != 0);
        JobHandle(match (array, self.array_task_id.finite(), whole) {
            (Some(array), Some(task), _) => format!("{array}_{task}"),
            (_, _, Some(whole)) => whole.to_string(),
            _ => self.id.to_string(),
        })
    }

    /// Slurm puts it back into the queue if it is told to.
    pub fn can_be_requeued(&self) -> bool {
        self.requeue.unwrap_or(true) && self.batch_flag.unwrap_or(true)
    }

    pub fn partitions(&self) -> impl Iterator<Item = &str> {
        self.partition.split(',').filter(|partition| !partition.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::{InvalidJobHandle, Job, JobHandle, JobState, JobStateName};

    fn state(names: &[&str]) -> JobState {
        JobState::of_names(names)
    }

    fn job(json: &str) -> Job {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn these_jobs_hold_their_nodes() {
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
    fn waiting_and_finished_jobs_hold_nothing() {
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
    fn a_state_we_do_not_understand_holds_its_nodes() {
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
        assert_eq!(job.may_be_on("n2"), Ok(true));
        assert_eq!(job.may_be_on("n4"), Ok(false));
    }

    #[test]
    fn a_list_that_cannot_be_read_is_an_answer_of_its_own() {
        let job = job(r#"{"job_id":7,"job_state":["RUNNING"],"nodes":"n[1-"}"#);
        assert!(job.may_be_on("n4").is_err());
    }

    #[test]
    fn a_waiting_job_wants_the_nodes_it_named() {
        let waiting = job(r#"{"job_id":7,"job_state":["PENDING"],"nodes":"","required_nodes":"n[4-5]"}"#);
        assert_eq!(waiting.waits_for("n5"), Ok(true));
        let done = Job {
            state: state(&["COMPLETED"]),
            ..waiting
        };
        assert_eq!(done.waits_for("n5"), Ok(false));
    }

    #[test]
    fn a_job_without_nodes_or_state_is_not_read() {
        for json in [
            r#"{"job_id":7,"job_state":["RUNNING"]}"#,
            r#"{"job_id":7,"nodes":""}"#,
            r#"{"job_state":[],"nodes":""}"#,
        ] {
            assert!(serde_json::from_str::<Job>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn a_job_is_on_its_nodes_since_it_began_or_was_given_others() {
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
    fn the_end_needs_a_start_and_a_limit() {
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
    fn only_what_slurm_can_start_again_can_be_requeued() {
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
