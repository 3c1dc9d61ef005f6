//! The accepted revision, and the content it was made from. The bundle's ConfigMap has both.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use slurm::{Revision, conf::Document, revision::Digest};

use super::{
    Inputs,
    content::Content,
    render::{read_bundle, read_record, slurm_conf},
};
use crate::cluster::{
    Snapshot,
    deliver::{Files, LiveRevision},
    pods,
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
}

/// Stands in for unknown content.
static NOTHING: LazyLock<Content> = LazyLock::new(Content::default);

impl Former {
    pub(super) fn of(inputs: &Inputs, snapshot: &Snapshot) -> Self {
        let bundle = inputs.bundle.as_deref();
        let uid = inputs.controller.metadata.uid.as_deref();
        let is_own = |bundle: &Revision| Some(bundle.controller.as_str()) == uid;
        let written = bundle.and_then(read_bundle).filter(is_own);
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
            None => (written, bundle.and_then(read_record)),
        };
        let digest = revision.as_ref().map(Revision::digest);
        let files = revision.as_ref().map(|revision| &revision.files);
        let accepted = digest
            .zip(files)
            .and_then(|(digest, files)| Accepted::from_json(record?, digest, files))
            .map(|accepted| Accepted {
                served: accepted.served || served.is_some(),
                ..accepted
            });
        let has_started = inputs.pods.iter().any(|pod| pods::has_started(pod));
        Self {
            digest,
            slurm_conf: files.and_then(slurm_conf),
            is_new: revision.is_none() && inputs.config.is_none() && !has_started,
            revision,
            accepted,
        }
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
