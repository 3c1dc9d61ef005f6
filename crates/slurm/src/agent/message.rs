//! The responses of the agent.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::fence::Fence;
use super::key::KeyDigest;
use crate::node::AdminState;
use crate::revision::{Digest, Summary};

/// Raised when an operator has to know of a new capability before it uses it. An agent of protocol 1 neither compares a node with
/// the state an order was planned on, nor keeps its reason, nor reports keys.
pub const PROTOCOL: u32 = 2;

/// How long operator and agent remember that a dry run rejected a revision. After that it is tried again, in case something else
/// than its content was the cause. A dry run disturbs nothing.
pub const RETRY_DRY_RUN: Duration = Duration::from_mins(10);

/// The state of the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// See [`PROTOCOL`].
    pub protocol: u32,
    /// The agent's own release.
    pub agent: String,
    /// The revision in /etc/slurm. `None` if the files there are no revision, or were changed.
    pub live: Option<Summary>,
    pub phase: Phase,
    /// `None` if its supervisor does not respond.
    pub slurmctld: Option<Daemon>,
    /// The last push that was rolled back, until another is accepted.
    #[serde(default)]
    pub rolled_back: Option<Refused>,
    /// The last revisions that dry runs refused within [`RETRY_DRY_RUN`], oldest first. Older agents do not send it, or remember
    /// longer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Refused>,
    /// The highest fence seen. A new leader has to be above it.
    pub fence: Fence,
}

/// The result of the dry run of a revision that is not to become live.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Checked {
    /// `None` if slurmctld would run with it.
    pub refused: Option<Refused>,
}

/// The progress of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// Received; its dry run is running.
    Staged,
    /// The dry run succeeded; the revision is written to the state volume.
    Checked,
    /// slurmctld has its partitions by RPC; the files are still the previous ones.
    PartitionsLive,
    /// In /etc/slurm. It stays in this phase while slurmctld is down, whose next start reads the files.
    Swapped,
    Reconfiguring,
    /// slurmctld runs with these files; no push is running.
    Verified,
    /// Refused by slurmctld; the previous files are being restored.
    RollingBack,
    #[serde(other)]
    Unknown,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Staged => "staged",
            Self::Checked => "checked",
            Self::PartitionsLive => "partitions live",
            Self::Swapped => "swapped",
            Self::Reconfiguring => "reconfiguring",
            Self::Verified => "verified",
            Self::RollingBack => "rolling back",
            Self::Unknown => "unknown",
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Daemon {
    pub state: DaemonState,
    /// In its container. It changes with every reconfigure.
    pub pid: Option<i32>,
    /// When it was started, in seconds since 1970; a reconfigure is no start.
    pub since: Option<u64>,
    /// How often it crashed and was restarted.
    pub restarts: u64,
    /// The last lines it wrote to standard error, oldest first.
    pub last_words: Vec<String>,
    /// The `slurm.key` it has read. Older agents do not send it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyDigest>,
    /// Peers with another `slurm.key`. Older agents do not send it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused_peers: Vec<RefusedPeer>,
    /// A later pod of this name: it does not run and is not started again. Older agents do not send it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub superseded: Option<Superseded>,
}

/// A pod that began later than another one of its name, on the same state volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Superseded {
    /// The UID of the later pod.
    pub by: String,
    /// Whether the later pod is alive, as far as the volume shows.
    pub responds: bool,
}

/// A peer whose messages slurmctld refused because they are signed with another `slurm.key`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusedPeer {
    /// As in slurmctld's log: an address, or its name in DNS.
    pub host: String,
    /// The last refusal, in seconds since 1970.
    pub last: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DaemonState {
    /// Not ready yet.
    Starting,
    Ready,
    /// Not running, waiting for a restart.
    Down,
    /// Terminating.
    Stopping,
    #[serde(other)]
    Unknown,
}

/// The result of a push.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pushed {
    #[serde(flatten)]
    pub outcome: Outcome,
    /// From the arrival of the last byte to this response.
    pub milliseconds: u64,
    /// The duration of each step, in order. Older agents do not send it.
    #[serde(default)]
    pub steps: Vec<StepTime>,
    /// What slurmctld had to do.
    #[serde(default)]
    pub action: Action,
    /// The channel by which partitions were changed. Older agents do not send it.
    #[serde(default)]
    pub way: UpdateChannel,
    /// Partitions whose manual state was kept although the file has another.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept_states: Vec<KeptState>,
    /// The status after the push.
    pub status: Status,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "camelCase")]
pub enum Outcome {
    /// slurmctld runs with it.
    Applied,
    /// Nothing had to be done: slurmctld runs with the same bytes.
    Unchanged,
    /// Durable and in /etc/slurm, but not live yet: slurmctld is down or slow. The agent continues, and the status shows the
    /// outcome.
    Pending { reason: String },
    /// The dry run refused it: nothing has changed.
    Rejected(Refused),
    /// slurmctld refused it and runs with the previous revision.
    RolledBack(Refused),
    /// It removes partitions with jobs, which slurmctld does not delete: nothing has changed. A push that keeps their lines succeeds.
    PartitionsInUse { partitions: Vec<PartitionInUse> },
    /// An outcome of a later agent. The status shows more.
    #[serde(other)]
    Unknown,
}

/// A partition that the pushed slurm.conf lacks and that cannot be deleted now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PartitionInUse {
    pub name: String,
    pub why: String,
    /// It was created manually in the running slurmctld: the live slurm.conf lacks it too.
    #[serde(default)]
    pub made_by_hand: bool,
    /// A line of slurm.conf with its current settings. Empty if slurmctld could not be read.
    #[serde(default)]
    pub line: String,
}

/// A partition with a manual state that was set again after slurmctld had read a file with another state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeptState {
    pub partition: String,
    /// As in slurm.conf.
    pub state: String,
}

/// The duration of one step of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepTime {
    pub step: Phase,
    pub milliseconds: u64,
}

/// The smallest action that makes a revision live.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Action {
    #[default]
    Nothing,
    /// Changes the partitions that differ, without a reconfigure.
    PartitionRpc,
    Reconfigure,
    /// slurmctld saves its state and restarts; jobs continue.
    Restart,
    #[serde(other)]
    Unknown,
}

/// The response to a command that was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Commanded {
    /// Older agents do not send it.
    #[serde(default)]
    pub way: UpdateChannel,
}

/// The result of reverting settings of a partition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Restored {
    /// The keys that still differ from the files, each with the reason.
    pub left: BTreeMap<String, String>,
    /// The keys that already had the value of the files: the caller had outdated information.
    pub same: Vec<String>,
}

impl Restored {
    /// No key was reverted, for this reason.
    pub fn none_of(keys: &[String], why: &str) -> Self {
        Self {
            left: keys.iter().map(|key| (key.clone(), why.to_owned())).collect(),
            same: Vec::new(),
        }
    }
}

/// The channel of a command to slurmctld.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum UpdateChannel {
    /// Slurm's own protocol.
    Rpc,
    /// Slurm's own program, if slurmctld does not understand the protocol.
    Scontrol,
    #[default]
    #[serde(other)]
    Unknown,
}

impl fmt::Display for UpdateChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rpc => "RPC",
            Self::Scontrol => "scontrol",
            Self::Unknown => "unknown",
        })
    }
}

/// A revision whose content was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refused {
    pub sequence: u64,
    /// The digest of its files. Older agents do not send it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    pub reason: String,
    /// The last lines of slurmctld's log in this attempt.
    pub last_words: Vec<String>,
}

/// Why a request was rejected. Nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "refused", rename_all = "camelCase")]
pub enum Refusal {
    Token {
        detail: String,
    },
    /// A command with a higher fence was received: the sender is no longer the leader, or was overtaken.
    StaleFence {
        highest: Fence,
    },
    /// The push is not newer than what is live.
    StaleSequence {
        live: Box<Summary>,
    },
    /// The pod belongs to another Controller object.
    OtherController {
        detail: String,
    },
    /// Another push is running.
    Busy {
        phase: Phase,
    },
    Malformed {
        detail: String,
    },
    /// Slurm has no node of this name.
    NoSuchNode,
    /// The node was changed since the order was planned.
    Changed {
        now: AdminState,
    },
    /// Slurm has no such job or reservation.
    NoSuchThing,
    /// Slurm refused, or did not respond.
    Slurm {
        detail: String,
    },
    /// A dry run did not end: it waits for something that the files name, such as a host.
    Stuck {
        detail: String,
    },
    /// A failure in the pod, such as a full disk or a missing program.
    Failed {
        detail: String,
    },
    NotFound,
    #[serde(other)]
    Unknown,
}

impl Refusal {
    pub fn token(detail: impl fmt::Display) -> Self {
        let detail = detail.to_string();
        Self::Token { detail }
    }

    pub fn malformed(detail: impl fmt::Display) -> Self {
        let detail = detail.to_string();
        Self::Malformed { detail }
    }

    pub fn slurm(detail: impl fmt::Display) -> Self {
        let detail = detail.to_string();
        Self::Slurm { detail }
    }

    pub fn failed(detail: impl fmt::Display) -> Self {
        let detail = detail.to_string();
        Self::Failed { detail }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token { detail } => write!(f, "it does not accept the token: {detail}"),
            Self::StaleFence { highest } => write!(f, "it has received a command with a higher fence ({highest})"),
            Self::StaleSequence { live } => write!(f, "revision {} is live already", live.sequence),
            Self::OtherController { detail } | Self::Malformed { detail } => f.write_str(detail),
            Self::Busy { phase } => write!(f, "another revision is being pushed ({phase})"),
            Self::NoSuchNode => f.write_str("Slurm has no such node"),
            Self::Changed { now } => write!(f, "the node was changed in the meantime; it is {now}"),
            Self::NoSuchThing => f.write_str("Slurm has no such job or reservation"),
            Self::Slurm { detail } => write!(f, "Slurm reports: {detail}"),
            Self::Failed { detail } | Self::Stuck { detail } => write!(f, "it failed: {detail}"),
            Self::NotFound => f.write_str("it has no such path; it may be older than the operator supports"),
            Self::Unknown => f.write_str("for a reason that this release does not know"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Status {
        Status {
            protocol: PROTOCOL,
            agent: "0.1.0".to_owned(),
            live: None,
            phase: Phase::Verified,
            slurmctld: Some(Daemon {
                state: DaemonState::Ready,
                pid: Some(12),
                since: Some(1000),
                restarts: 0,
                last_words: vec!["slurmctld: ok".to_owned()],
                key: None,
                refused_peers: vec![],
                superseded: None,
            }),
            rolled_back: None,
            refused: vec![],
            fence: Fence { term: 1, sequence: 2 },
        }
    }

    #[test]
    fn outcomes_have_this_wire_format() {
        let pushed = Pushed {
            outcome: Outcome::RolledBack(Refused {
                sequence: 3,
                digest: None,
                reason: "no".to_owned(),
                last_words: vec![],
            }),
            milliseconds: 90,
            steps: vec![StepTime {
                step: Phase::Checked,
                milliseconds: 21,
            }],
            action: Action::Reconfigure,
            way: UpdateChannel::Rpc,
            kept_states: vec![],
            status: status(),
        };
        let json = serde_json::to_string(&pushed).unwrap();
        assert_eq!(
            json,
            concat!(
                r#"{"outcome":"rolledBack","sequence":3,"reason":"no","lastWords":[],"milliseconds":90,"#,
                r#""steps":[{"step":"checked","milliseconds":21}],"action":"reconfigure","way":"rpc","status":"#,
                r#"{"protocol":2,"agent":"0.1.0","live":null,"phase":"verified","slurmctld":{"state":"ready","pid":12,"#,
                r#""since":1000,"restarts":0,"lastWords":["slurmctld: ok"]},"rolledBack":null,"#,
                r#""fence":{"term":1,"sequence":2}}}"#
            )
        );
        assert_eq!(serde_json::from_str::<Pushed>(&json).unwrap(), pushed);
    }

    #[test]
    fn an_older_agent_sends_neither_steps_nor_action() {
        let json = serde_json::to_string(&status()).unwrap();
        let pushed = format!(r#"{{"outcome":"applied","milliseconds":1,"status":{json}}}"#);
        let pushed: Pushed = serde_json::from_str(&pushed).unwrap();
        assert_eq!(pushed.steps, []);
        assert_eq!(pushed.action, Action::Nothing);
    }

    #[test]
    fn an_older_agent_does_not_send_the_channel() {
        assert_eq!(
            serde_json::from_str::<Commanded>("{}").unwrap().way,
            UpdateChannel::Unknown
        );
        let json = r#"{"way":"rpc"}"#;
        assert_eq!(
            serde_json::to_string(&Commanded {
                way: UpdateChannel::Rpc
            })
            .unwrap(),
            json
        );
        assert_eq!(serde_json::from_str::<Commanded>(json).unwrap().way, UpdateChannel::Rpc);
    }

    #[test]
    fn values_of_a_later_version_are_unknown_and_no_error() {
        let json = serde_json::to_string(&status()).unwrap();
        let later = json
            .replace("verified", "levitating")
            .replace(r#""ready""#, r#""dreaming""#)
            .replacen('{', r#"{"mood":{"x":1},"#, 1);
        let later: Status = serde_json::from_str(&later).unwrap();
        assert_eq!(later.phase, Phase::Unknown);
        assert_eq!(later.slurmctld.unwrap().state, DaemonState::Unknown);
        let pushed = format!(r#"{{"outcome":"transcended","how":1,"milliseconds":1,"status":{json}}}"#);
        assert_eq!(
            serde_json::from_str::<Pushed>(&pushed).unwrap().outcome,
            Outcome::Unknown
        );
        assert_eq!(
            serde_json::from_str::<Refusal>(r#"{"refused":"tired","detail":1}"#).unwrap(),
            Refusal::Unknown
        );
    }
}
