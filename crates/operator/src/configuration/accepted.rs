//! The accepted revision, and the content it was made from. The bundle's ConfigMap has both.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use slurm::{
    Revision,
    agent::BundleKey,
    conf::Document,
    revision::{Digest, check_jump, next_sequence},
};

use super::{
    Inputs,
    content::Content,
    node_count::max_node_count,
    render::{build_files, has_signature, read_bundle, read_record, read_signature, slurm_conf},
};
use crate::{
    cluster::{
        Snapshot,
        deliver::{Files, JwtKey, LiveRevision, Report, State},
        pods,
    },
    finding::{Blocks, Finding},
    parent::Parent,
    reason,
};

/// The accepted content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Accepted {
    pub(crate) content: Content,
    /// slurmctld has run with this revision, or with an earlier one: there may be jobs.
    pub(crate) served: bool,
}

/// What the record has in addition to the content.
#[derive(Serialize, Deserialize)]
struct RecordHead {
    /// The digest of the revision.
    digest: Digest,
    served: bool,
}

#[derive(Serialize)]
struct Record<'a> {
    #[serde(flatten)]
    head: RecordHead,
    #[serde(flatten)]
    content: &'a Content,
}

impl Accepted {
    /// The record of the revision with this digest.
    pub(crate) fn to_json(&self, digest: Digest) -> String {
        let Self { content, served } = self;
        let head = RecordHead {
            digest,
            served: *served,
        };
        serde_json::to_string(&Record { head, content }).unwrap_or_default()
    }

    /// Returns `None` if the record belongs to another revision, or cannot be parsed.
    pub(crate) fn from_json(json: &str, digest: Digest, files: &Files) -> Option<Self> {
        // The text is parsed twice, because serde would copy all of it to separate the two.
        let head: RecordHead = serde_json::from_str(json).ok()?;
        if head.digest != digest {
            return None;
        }
        let mut content: Content = serde_json::from_str(json).ok()?;
        for (name, file) in &mut content.files {
            file.file = files.get(name)?.clone();
        }
        let served = head.served;
        Some(Self { content, served })
    }
}

/// The accepted revision, from Kubernetes' record or because slurmctld runs with it already.
#[derive(Default)]
pub(crate) struct Former {
    pub(crate) revision: Option<Revision>,
    pub(crate) digest: Option<Digest>,
    /// Its slurm.conf, parsed.
    pub(crate) slurm_conf: Option<Document>,
    /// Its content, if that is known.
    pub(crate) accepted: Option<Accepted>,
    /// No slurmctld ever ran, also not under another operator: its jobs could be lost.
    pub(crate) is_new: bool,
    /// Whether the bundle's ConfigMap can be trusted.
    pub(crate) standing: Standing,
}

/// Whether the bundle's ConfigMap can be trusted: everybody who can write ConfigMaps may have changed it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Standing {
    /// There is none, or it is signed.
    #[default]
    Signed,
    /// It has no valid signature, but slurmctld runs with its files, as the agent proves. An older operator wrote it, or the
    /// JWT key was replaced.
    Proven,
    /// The key is not known. What was read is only reported, and nothing is written.
    Unjudged,
    /// It is ignored, or its record is. This is what it claims to be.
    Untrusted(LiveRevision),
}

/// What the bundle's ConfigMap is taken for.
#[derive(Default)]
struct Judged<'a> {
    revision: Option<Revision>,
    record: Option<&'a String>,
    standing: Standing,
}

impl<'a> Judged<'a> {
    fn of(inputs: &'a Inputs, snapshot: &Snapshot, jwt_key: Option<&JwtKey>) -> Self {
        let uid = inputs.controller.metadata.uid.as_deref();
        let is_own = |bundle: &Revision| Some(bundle.controller.as_str()) == uid;
        let Some(config_map) = inputs.bundle.as_deref() else {
            return Self::default();
        };
        let Some(revision) = read_bundle(config_map).filter(is_own) else {
            return Self::default();
        };
        let record = read_record(config_map);
        let Some(key) = jwt_key.and_then(|key| BundleKey::derive(&key.0).ok()) else {
            return Self {
                revision: Some(revision),
                record,
                standing: Standing::Unjudged,
            };
        };
        let claimed = LiveRevision {
            sequence: revision.sequence,
            digest: revision.digest(),
        };
        let live = snapshot.report.live;
        let is_plausible = next_sequence(claimed.sequence).is_ok()
            && live.is_none_or(|live| check_jump(claimed.sequence, live.sequence).is_ok());
        if let Some(signed) = read_signature(config_map, &key).filter(|_| is_plausible) {
            let is_complete = record.is_none_or(|record| signed.covers_inputs(record.as_bytes()));
            return Self {
                revision: Some(revision),
                record: record.filter(|_| is_complete),
                standing: if is_complete {
                    Standing::Signed
                } else {
                    Standing::Untrusted(claimed)
                },
            };
        }
        match live.filter(|live| live.digest == claimed.digest) {
            Some(live) => Self::proven(inputs, revision, record, live),
            None => Self {
                standing: Standing::Untrusted(claimed),
                ..Self::default()
            },
        }
    }

    /// The files are proven, and nothing else of the ConfigMap. The record is used if it leads to the same files.
    fn proven(inputs: &Inputs, revision: Revision, record: Option<&'a String>, live: LiveRevision) -> Self {
        let accepted = record.and_then(|record| Accepted::from_json(record, live.digest, &revision.files));
        let accepted = accepted.filter(|accepted| {
            let room = max_node_count(&inputs.node_sets, slurm_conf(&revision.files).as_ref());
            let files = build_files(&Parent::new(&inputs.controller), &accepted.content, room).files;
            files == revision.files
        });
        let states = accepted.as_ref().map(|accepted| &accepted.content.manual_states);
        Self {
            record: record.filter(|_| accepted.is_some()),
            revision: Some(Revision {
                sequence: live.sequence,
                closed_by_hand: states.into_iter().flat_map(|states| states.keys().cloned()).collect(),
                ..revision
            }),
            standing: Standing::Proven,
        }
    }
}

/// Stands in for unknown content.
static NOTHING: LazyLock<Content> = LazyLock::new(Content::default);

impl Former {
    /// `jwt_key` signs the bundle.
    pub(super) fn of(inputs: &Inputs, snapshot: &Snapshot, jwt_key: Option<&JwtKey>) -> Self {
        let Judged {
            revision: written,
            record: written_record,
            standing,
        } = Judged::of(inputs, snapshot, jwt_key);
        let sequence = written.as_ref().map_or(0, |revision| revision.sequence);
        let served = snapshot.served.as_ref().filter(|(live, _)| live.sequence > sequence);
        let (revision, record) = match served {
            Some((live, sent)) => {
                let revision = Revision {
                    sequence: live.sequence,
                    ..sent.revision.clone()
                };
                (Some(revision), Some(&sent.record))
            }
            None => (written, written_record),
        };
        let digest = revision.as_ref().map(Revision::digest);
        let files = revision.as_ref().map(|revision| &revision.files);
        let accepted = digest
            .zip(files)
            .and_then(|(digest, files)| Accepted::from_json(record?, digest, files))
            .map(|accepted| Accepted {
                // slurmctld runs with a revision that is proven.
                served: accepted.served || served.is_some() || standing == Standing::Proven,
                ..accepted
            });
        let has_started = inputs.pods.iter().any(|pod| pods::has_started(pod));
        Self {
            digest,
            slurm_conf: files.and_then(slurm_conf),
            is_new: revision.is_none() && inputs.config.is_none() && !has_started,
            revision,
            accepted,
            standing,
        }
    }

    /// Reports a bundle that is not used. While the agent has not been asked yet, one without a signature may be that of an
    /// older operator.
    pub(super) fn distrust(&self, inputs: &Inputs, report: &Report) -> Option<Finding> {
        let config_map = inputs.bundle.as_deref()?;
        let asks_agent = report.state == State::Busy
            && report.live.is_none()
            && inputs.pods.iter().any(|pod| pods::agent_of(pod).is_some());
        if !matches!(self.standing, Standing::Untrusted(_)) || asks_agent && !has_signature(config_map) {
            return None;
        }
        let name = config_map.metadata.name.as_deref().unwrap_or_default();
        Some(Finding::new(
            Blocks::Nothing,
            reason::BUNDLE_UNTRUSTED,
            format!(
                "ConfigMap {name:?} is not signed with the cluster's JWT key, or has an implausible sequence, and is not used: a person or \
                 program changed it, or the key was replaced; the operator writes it again from the objects and from slurmctld's files \
                 when slurmctld's agent responds or no slurmctld runs; check who can write ConfigMaps in this namespace"
            ),
        ))
    }

    /// The content of the accepted revision; empty if it is not known.
    pub(super) fn content(&self) -> &Content {
        self.accepted.as_ref().map_or(&NOTHING, |accepted| &accepted.content)
    }

    /// The same, if the content of every line that slurmctld runs with is known.
    pub(super) fn known_content(&self) -> Option<&Content> {
        (self.is_new || self.accepted.is_some()).then(|| self.content())
    }

    /// Its sequence and digest.
    pub(super) fn summary(&self) -> Option<LiveRevision> {
        let sequence = self.revision.as_ref()?.sequence;
        self.digest.map(|digest| LiveRevision { sequence, digest })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use slurm::{
        conf::NodeSetLines,
        revision::{ControllerUid, File, FileName},
    };

    use super::*;
    use crate::{
        configuration::content::{Script, UserFile},
        partition::rules::{
            closing::{Retained, RetainedLines},
            line::PartitionLine,
            manual_state::{ManualState, ManualStates},
        },
    };

    fn accepted() -> (Accepted, Revision) {
        let name = FileName::new("p.sh").unwrap();
        let file = File::script("#!/bin/sh\n");
        let accepted = Accepted {
            content: Content {
                extra_conf: "SchedulerParameters=defer\n".to_owned(),
                accounting: Some(("db".to_owned(), 6819)),
                power_saving: None,
                node_sets: BTreeMap::from([(
                    "own".to_owned(),
                    NodeSetLines {
                        name: "slurm".to_owned(),
                        partition: Some(String::new()),
                    },
                )]),
                partitions: BTreeMap::from([(
                    "long".to_owned(),
                    PartitionLine {
                        name: "Long".to_owned(),
                        nodes: "slurm".to_owned(),
                        state: "UP".to_owned(),
                        settings: "MaxTime=1".to_owned(),
                        generation: 4,
                        mark: None,
                    },
                )]),
                manual_states: ManualStates::from([(
                    "Long".to_owned(),
                    ManualState {
                        state: "DRAIN".to_owned(),
                        wanted: "UP".to_owned(),
                        since: "2026-01-01T00:00:00Z".to_owned(),
                    },
                )]),
                adopted: BTreeMap::from([("hand".to_owned(), "hand Nodes=ALL".to_owned())]),
                retained: RetainedLines::from([(
                    "old".to_owned(),
                    Retained {
                        line: "old Nodes=slurm State=DRAIN".to_owned(),
                        node_sets: BTreeSet::from(["slurm".to_owned()]),
                    },
                )]),
                files: BTreeMap::from([(
                    name.clone(),
                    UserFile {
                        file: file.clone(),
                        config_map: "scripts".to_owned(),
                        entry: "p.sh".to_owned(),
                        runs_as: BTreeSet::from([Script::Prolog, Script::Epilog]),
                    },
                )]),
            },
            served: true,
        };
        let revision = Revision {
            sequence: 3,
            controller: ControllerUid::new("uid").unwrap(),
            files: BTreeMap::from([(name, file), (FileName::new("slurm.conf").unwrap(), File::config("x"))]),
            closed_by_hand: BTreeSet::new(),
        };
        (accepted, revision)
    }

    #[test]
    fn the_record_is_read_back_unchanged() {
        let (accepted, revision) = accepted();
        let digest = revision.digest();
        let json = accepted.to_json(digest);
        assert_eq!(Accepted::from_json(&json, digest, &revision.files), Some(accepted));
        // Earlier operators read and write the same text.
        let fields = [
            r#""served":true,"extraConf":"SchedulerParameters=defer\n","accounting":["db",6819],"#,
            r#""nodeSets":{"own":{"name":"slurm","partition":""}},"#,
            r#""partitions":{"long":{"name":"Long","nodes":"slurm","state":"UP","settings":"MaxTime=1","generation":4}},"#,
            r#""kept":{"Long":{"state":"DRAIN","wanted":"UP","since":"2026-01-01T00:00:00Z"}},"#,
            r#""adopted":{"hand":"hand Nodes=ALL"},"#,
            r#""retained":{"old":{"line":"old Nodes=slurm State=DRAIN","nodeSets":["slurm"]}},"#,
            r#""files":{"p.sh":{"configMap":"scripts","entry":"p.sh","runsAs":["Prolog","Epilog"]}}"#,
        ];
        assert_eq!(json, format!("{{\"digest\":\"{digest}\",{}}}", fields.concat()));
    }

    #[test]
    fn a_record_of_another_revision_is_ignored() {
        let (accepted, mut revision) = accepted();
        let json = accepted.to_json(revision.digest());
        revision.files.insert(FileName::new("x").unwrap(), File::config("x"));
        let read = |json: &str| Accepted::from_json(json, revision.digest(), &revision.files);
        assert_eq!(read(&json), None);
        assert_eq!(read("nonsense"), None);
    }
}
