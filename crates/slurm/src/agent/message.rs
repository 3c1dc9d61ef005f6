//! What the agent answers.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::fence::Fence;
use super::key::KeyDigest;
use crate::node::AdminState;
use crate::revision::{Digest, Summary};

/// Raised when a new agent can do what an operator has to know of before it asks.
pub const PROTOCOL: u32 = 2;

/// What is live.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// See [`PROTOCOL`].
    pub protocol: u32,
    /// The agent's own release.
    pub agent: String,
    /// The revision in /etc/slurm. `None` if what lies there is none, or was changed by somebody else.
    pub live: Option<Summary>,
    pub phase: Phase,
    /// `None` if its supervisor does not answer.
    pub slurmctld: Option<Daemon>,
    /// The last push that was rolled back, until another is accepted.
    #[serde(default)]
    pub rolled_back: Option<Refused>,
    /// What dry runs refused since the agent started, the last few, oldest first. An agent of before tells none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Refused>,
    /// The highest fence seen. A new leader is above it, or it is none.
    pub fence: Fence,
}

/// What a dry run said of a revision that is not to go live here and now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Checked {
    /// `None`: slurmctld would run with it.
    pub refused: Option<Refused>,
}

/// How far the live revision has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// Taken, and not yet in anybody's way: its dry run is under way.
    Staged,
    /// Its dry run went well; it goes onto the state volume.
    Checked,
    /// slurmctld has its partitions, by RPC; the files are those of before.
    PartitionsLive,
    /// In /etc/slurm. It stays here as long as slurmctld does not run: its next start takes the files.
    Swapped,
    Reconfiguring,
    /// slurmctld runs with these files: nothing is under way.
    Verified,
    /// Refused by slurmctld; the files of before are going back.
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
    /// In its container. Another after every reconfigure.
    pub pid: Option<i32>,
    /// When this life of it began, in seconds since 1970; a reconfigure begins none.
    pub since: Option<u64>,
    /// How often it died and was started again.
    pub restarts: u64,
    /// The last lines it wrote to standard error, oldest first.
    pub last_words: Vec<String>,
    /// Which `slurm.key` it has read. An agent of before does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyDigest>,
    /// Who signs with another `slurm.key`. An agent of before tells none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused_peers: Vec<RefusedPeer>,
}

/// Somebody whose messages or answers slurmctld refused because they are signed with another `slurm.key` than its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusedPeer {
    /// As slurmctld's log has it: an address, or the name that DNS has for it.
    pub host: String,
    /// When it was refused last, in seconds since 1970.
    pub last: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DaemonState {
    /// Not ready yet.
    Starting,
    Ready,
    /// Between two lives.
    Down,
    /// Told to end.
    Stopping,
    #[serde(other)]
    Unknown,
}

/// What became of a push.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pushed {
    #[serde(flatten)]
    pub outcome: Outcome,
    /// From the arrival of the last byte to this answer.
    pub milliseconds: u64,
    /// What took how long, in the order it was done. An agent of before says nothing.
    #[serde(default)]
    pub steps: Vec<StepTime>,
    /// What slurmctld was made to do.
    #[serde(default)]
    pub action: Action,
    /// By which way slurmctld was told, where it was told of partitions. An agent of before says nothing.
    #[serde(default)]
    pub way: Way,
    /// Partitions that are as somebody set them although the file has them otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept_states: Vec<KeptState>,
    /// As it is after the push.
    pub status: Status,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "camelCase")]
pub enum Outcome {
    /// slurmctld runs with it.
    Applied,
    /// Nothing had to be done: slurmctld ran with the very same bytes.
    Unchanged,
    /// Durable and in /etc/slurm, and not yet taken by slurmctld: it is away, or takes its time. The agent goes on; the
    /// status tells how it ends.
    Pending { reason: String },
    /// Its dry run refused it: nothing live was touched.
    Rejected(Refused),
    /// slurmctld refused it and runs with what it had.
    RolledBack(Refused),
    /// It takes partitions away that slurmctld does not let go, whose jobs would end: everything is as before. They go
    /// with a push that keeps their lines until slurmctld does.
    PartitionsInUse { partitions: Vec<PartitionInUse> },
    /// Of a later agent. The status tells more.
    #[serde(other)]
    Unknown,
}

/// A partition that the pushed slurm.conf has not, and that cannot go now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PartitionInUse {
    pub name: String,
    pub why: String,
    /// Somebody made it in the running slurmctld: the live slurm.conf has not got it, either.
    #[serde(default)]
    pub made_by_hand: bool,
    /// A line of slurm.conf that makes it as it is now. Empty if slurmctld could not be asked.
    #[serde(default)]
    pub line: String,
}

/// A partition whose state somebody had set in the running slurmctld, and that was given it again after slurmctld had read a file
/// that has another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeptState {
    pub partition: String,
    /// As in slurm.conf.
    pub state: String,
}

/// How long it took to reach a step from the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepTime {
    pub step: Phase,
    pub milliseconds: u64,
}

/// The smallest that makes a revision live.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Action {
    #[default]
    Nothing,
    /// The partitions that differ, one by one. Nothing is read again.
    PartitionRpc,
    Reconfigure,
    /// slurmctld saves its state, ends and starts again; jobs go on.
    Restart,
    #[serde(other)]
    Unknown,
}

/// A command that was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Commanded {
    /// An agent of before says nothing.
    #[serde(default)]
    pub way: Way,
}

/// What came of a partition's settings that were to be brought back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Restored {
    /// Those that are not as the files say, each with why.
    pub left: BTreeMap<String, String>,
    /// Those that were so already: whoever asked knew an older slurmctld or older files.
    pub same: Vec<String>,
}

impl Restored {
    /// Nothing was brought back, and why.
    pub fn none_of(keys: &[String], why: &str) -> Self {
        Self {
            left: keys.iter().map(|key| (key.clone(), why.to_owned())).collect(),
            same: Vec::new(),
        }
    }
}

/// How a command reached slurmctld.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Way {
    /// Slurm's own protocol.
    Rpc,
    /// Slurm's own program, where the protocol cannot be spoken.
    Scontrol,
    #[default]
    #[serde(other)]
    Unknown,
}

impl fmt::Display for Way {
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
    /// Of its files. An agent of before tells none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    pub reason: String,
    /// slurmctld's own: its last lines from the attempt.
    pub last_words: Vec<String>,
}

/// Why a request was not carried out. Nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "refused", rename_all = "camelCase")]
pub enum Refusal {
    Token {
        detail: String,
    },
    /// Something has been said with a higher fence: whoever is refused so is no longer the leader, or was overtaken.
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
    /// Another push is under way.
    Busy {
        phase: Phase,
    },
    Malformed {
        detail: String,
    },
    /// Slurm has no node of this name.
    NoSuchNode,
    /// The node is not as the order expects: somebody has changed it since the order was planned.
    Changed {
        now: AdminState,
    },
    /// Slurm has no such job or reservation.
    NoSuchThing,
    /// Slurm understood and said no, or could not be asked.
    Slurm {
        detail: String,
    },
    /// A dry run came to no end: it waits for something that the files name, such as a host.
    Stuck {
        detail: String,
    },
    /// Something in the pod: the disk is full, a program is missing.
    Failed {
        detail: String,
    },
    NotFound,
    #[serde(other)]
    Unknown,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token { detail } => write!(f, "it does not accept the token: {detail}"),
            Self::StaleFence { highest } => write!(f, "it has heard from a later leader or command ({highest})"),
            Self::StaleSequence { live } => write!(f, "revision {} is live already", live.sequence),
            Self::OtherController { detail } | Self::Malformed { detail } => f.write_str(detail),
            Self::Busy { phase } => write!(f, "another revision is under way ({phase})"),
            Self::NoSuchNode => f.write_str("Slurm has no such node"),
            Self::Changed { now } => write!(f, "somebody has changed the node in the meantime; it is {now}"),
            Self::NoSuchThing => f.write_str("Slurm has no such job or reservation"),
            Self::Slurm { detail } => write!(f, "Slurm says: {detail}"),
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
            }),
            rolled_back: None,
            refused: vec![],
            fence: Fence { term: 1, sequence: 2 },
        }
    }

    #[test]
    fn outcomes_look_like_this_on_the_wire() {
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
            way: Way::Rpc,
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
    fn an_agent_of_before_told_neither_steps_nor_action() {
        let json = serde_json::to_string(&status()).unwrap();
        let pushed = format!(r#"{{"outcome":"applied","milliseconds":1,"status":{json}}}"#);
        let pushed: Pushed = serde_json::from_str(&pushed).unwrap();
        assert_eq!(pushed.steps, []);
        assert_eq!(pushed.action, Action::Nothing);
    }

    #[test]
    fn an_agent_of_before_did_not_tell_the_way() {
        assert_eq!(serde_json::from_str::<Commanded>("{}").unwrap().way, Way::Unknown);
        let json = r#"{"way":"rpc"}"#;
        assert_eq!(serde_json::to_string(&Commanded { way: Way::Rpc }).unwrap(), json);
        assert_eq!(serde_json::from_str::<Commanded>(json).unwrap().way, Way::Rpc);
    }

    #[test]
    fn words_of_a_later_version_are_unknown_and_no_error() {
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
