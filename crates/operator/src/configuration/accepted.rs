//! The inputs of the accepted revision, stored with it in the bundle's ConfigMap, without the contents of files.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use slurm::{
    Revision,
    conf::AccountingStorage,
    revision::{Digest, FileName},
};

use super::content::{Content, NodeSetInput, Origin, UserFile};
use crate::partition::rules::{closing::RetainedLines, line::PartitionLine, manual_state::ManualStates};

/// The accepted inputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Accepted {
    pub(crate) content: Content,
    /// slurmctld has run with this revision, or with an earlier one: there may be jobs.
    pub(crate) served: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire {
    /// The digest of the revision.
    digest: Digest,
    served: bool,
    extra_conf: String,
    accounting: Option<(String, u16)>,
    node_sets: BTreeMap<String, NodeSetInput>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    partitions: BTreeMap<String, PartitionLine>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    kept: ManualStates,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    adopted: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    retained: RetainedLines,
    files: BTreeMap<FileName, Origin>,
}

impl Accepted {
    pub(crate) fn to_json(&self, revision: &Revision) -> String {
        let Self { content, served } = self;
        let Content {
            extra_conf,
            accounting,
            node_sets,
            partitions,
            manual_states,
            adopted,
            retained,
            files,
        } = content.clone();
        let wire = Wire {
            digest: revision.digest(),
            served: *served,
            extra_conf,
            accounting: accounting.map(|AccountingStorage { host, port }| (host, port)),
            node_sets,
            partitions,
            kept: manual_states,
            adopted,
            retained,
            files: files.into_iter().map(|(name, file)| (name, file.origin)).collect(),
        };
        serde_json::to_string(&wire).unwrap_or_default()
    }

    /// Returns `None` if the record belongs to another revision, or cannot be parsed.
    pub(crate) fn from_json(json: &str, revision: &Revision) -> Option<Self> {
        let wire: Wire = serde_json::from_str(json).ok()?;
        if wire.digest != revision.digest() {
            return None;
        }
        let file = |(name, origin): (FileName, Origin)| {
            let file = revision.files.get(&name)?.clone();
            Some((name, UserFile { file, origin }))
        };
        Some(Self {
            served: wire.served,
            content: Content {
                extra_conf: wire.extra_conf,
                accounting: wire.accounting.map(|(host, port)| AccountingStorage { host, port }),
                node_sets: wire.node_sets,
                partitions: wire.partitions,
                manual_states: wire.kept,
                adopted: wire.adopted,
                retained: wire.retained,
                files: wire.files.into_iter().map(file).collect::<Option<_>>()?,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use slurm::revision::{ControllerUid, File};

    use super::*;
    use crate::{
        configuration::content::Script,
        partition::rules::{closing::Retained, manual_state::ManualState},
    };

    fn accepted() -> (Accepted, Revision) {
        let name = FileName::new("p.sh").unwrap();
        let file = File::script("#!/bin/sh\n");
        let accepted = Accepted {
            content: Content {
                extra_conf: "SchedulerParameters=defer\n".to_owned(),
                accounting: Some(AccountingStorage {
                    host: "db".to_owned(),
                    port: 6819,
                }),
                node_sets: BTreeMap::from([(
                    "own".to_owned(),
                    NodeSetInput {
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
                        origin: Origin {
                            config_map: "scripts".to_owned(),
                            entry: "p.sh".to_owned(),
                            runs_as: BTreeSet::from([Script::Prolog, Script::Epilog]),
                        },
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
        let json = accepted.to_json(&revision);
        assert_eq!(Accepted::from_json(&json, &revision), Some(accepted));
        assert!(!json.contains("#!/bin/sh"), "{json}");
    }

    #[test]
    fn a_record_of_another_revision_is_ignored() {
        let (accepted, mut revision) = accepted();
        let json = accepted.to_json(&revision);
        revision.files.insert(FileName::new("x").unwrap(), File::config("x"));
        assert_eq!(Accepted::from_json(&json, &revision), None);
        assert_eq!(Accepted::from_json("nonsense", &revision), None);
    }
}
