//! Requests of users, operators and agents to slurmctld, whichever interface they used.

use std::collections::BTreeMap;
use std::time::Duration;

use super::state::Submission;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    Submit(Submission),
    Cancel(u32),
    Requeue(u32),
    Suspend(u32),
    Continue(u32),
    UpdateJob {
        job: u32,
        hold: Option<bool>,
        admin_comment: Option<String>,
    },
    /// A second report of a job's end, as its node sends it.
    CompleteJob {
        job: u32,
        /// `None` for a job that was cancelled.
        exit_code: Option<i32>,
    },
    UpdateNode {
        node: String,
        update: NodeUpdate,
    },
    DeleteNode(String),
    CreatePartition {
        name: String,
        update: PartitionUpdate,
    },
    UpdatePartition {
        name: String,
        update: PartitionUpdate,
    },
    DeletePartition(String),
    CreateReservation(ReservationUpdate),
    UpdateReservation(ReservationUpdate),
    DeleteReservation(String),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeUpdate {
    pub state: Option<NodeOrder>,
    pub reason: Option<String>,
    pub comment: Option<String>,
    pub extra: Option<String>,
    pub features: Option<Vec<String>>,
    pub active_features: Option<Vec<String>>,
    pub topology: Option<String>,
    pub address: Option<String>,
    /// Seconds.
    pub resume_after: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeOrder {
    Drain,
    Undrain,
    Resume,
    Down,
    Fail,
    Idle,
}

impl NodeOrder {
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name.to_ascii_uppercase().as_str() {
            "DRAIN" => Self::Drain,
            "UNDRAIN" => Self::Undrain,
            "RESUME" => Self::Resume,
            "DOWN" => Self::Down,
            "FAIL" => Self::Fail,
            "IDLE" => Self::Idle,
            _ => return None,
        })
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartitionUpdate {
    /// Names and NodeSets, or a relative `+n1` or `-n1`.
    pub nodes: Option<String>,
    pub state: Option<String>,
    pub settings: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReservationUpdate {
    pub name: String,
    pub start: Option<Duration>,
    pub minutes: Option<u64>,
    pub nodes: Option<String>,
    pub users: Option<String>,
    /// They are added to those of an existing reservation.
    pub flags: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    Done,
    Submitted(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// No process listens, or the network is cut.
    Unreachable,
    /// The process is frozen: the request stays in its queue and is carried out when it thaws.
    NoAnswer,
    Refused(Code),
}

/// Slurm's numbers of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    InvalidPartitionName = 2000,
    NodeConfigUnavailable = 2014,
    PartConfigUnavailable = 2015,
    NodesBusy = 2016,
    InvalidJobId = 2017,
    InvalidNodeName = 2018,
    AlreadyDone = 2021,
    JobPending = 2024,
    InvalidNodeState = 2028,
    InvalidFeature = 2029,
    ActiveFeaturesNotSubset = 2031,
    Disabled = 2037,
    ReservationInvalid = 2053,
    InvalidTime = 2054,
    ReservationOverlap = 2058,
    PartitionNotAvailable = 2070,
    PartitionInUse = 2075,
    ReservationEmpty = 2080,
    DuplicateReservation = 2082,
    JobFinished = 2084,
    JobNotSuspended = 2087,
    InvalidNodeStateTransition = 2180,
}

impl Code {
    pub const fn number(self) -> u32 {
        self as u32
    }

    pub const fn text(self) -> &'static str {
        match self {
            Self::InvalidPartitionName => "Invalid partition name specified",
            Self::InvalidFeature => "Invalid feature specification",
            Self::NodeConfigUnavailable => "Requested node configuration is not available",
            Self::PartConfigUnavailable => "Requested partition configuration not available now",
            Self::NodesBusy => "Requested nodes are busy",
            Self::InvalidJobId => "Invalid job id specified",
            Self::InvalidNodeName => "Invalid node name specified",
            Self::AlreadyDone => "Job/step already completing or completed",
            Self::JobPending => "Job is pending execution",
            Self::InvalidNodeState => "Invalid node state specified",
            Self::ActiveFeaturesNotSubset => "Active features not subset of available features",
            Self::Disabled => "Requested operation is presently disabled",
            Self::PartitionNotAvailable => "Required partition not available (inactive or drain)",
            Self::PartitionInUse => "Partition is in use",
            Self::ReservationInvalid => "Requested reservation is invalid",
            Self::ReservationOverlap => "Requested reservation overlaps with another reservation",
            Self::InvalidTime => "Invalid time specified",
            Self::ReservationEmpty => "Reservation request lacks users, groups or accounts",
            Self::DuplicateReservation => "Duplicate reservation name",
            Self::JobFinished => "Job has already finished",
            Self::JobNotSuspended => "Job is not suspended",
            Self::InvalidNodeStateTransition => "Invalid node state transition",
        }
    }
}
