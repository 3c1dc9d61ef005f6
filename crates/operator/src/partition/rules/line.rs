//! A Partition's line in slurm.conf. Pure.

use api::{PartitionSpec, items::items};
use serde::{Deserialize, Serialize};
use slurm::{
    conf::{Document, RecordKind, Settings},
    partition::PartitionStateName,
};

use super::{default::is_yes, mark::Mark};

/// The parts of a Partition's line, as they were accepted into a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PartitionLine {
    /// The name in Slurm.
    pub(crate) name: String,
    /// The value of `Nodes=`.
    pub(crate) nodes: String,
    /// The wanted state, as Slurm writes it.
    pub(crate) state: String,
    /// All other settings, as in the line.
    pub(crate) settings: String,
    /// The generation of the object.
    pub(crate) generation: i64,
    /// The mark of the members, if nodes of NodeSets are excluded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mark: Option<Mark>,
}

/// How few jobs a partition in this state accepts and starts. `None` for an unknown state.
pub(crate) fn strictness(state: &str) -> Option<u8> {
    PartitionStateName::from_name(&state.to_ascii_uppercase()).map(PartitionStateName::strictness)
}

impl PartitionLine {
    /// The same line with this state.
    pub(crate) fn with_state(&self, state: &str) -> Self {
        Self {
            state: state.to_owned(),
            ..self.clone()
        }
    }

    /// Whether this is the partition of jobs without a partition.
    pub(crate) fn is_default(&self) -> bool {
        is_default(&self.settings)
    }

    /// The same line without `Default=`.
    pub(crate) fn without_default(&self) -> Self {
        let kept: Vec<&str> = items(&self.settings).filter(|item| !is_default(item)).collect();
        Self {
            settings: kept.join(" "),
            ..self.clone()
        }
    }

    /// The members by their names, where the line may have a mark: NodeSets and nodes, and what is excluded.
    pub(crate) fn members(&self) -> String {
        let Some(mark) = &self.mark else {
            return self.nodes.clone();
        };
        let (node_sets, excluded) = mark.names();
        let listed = self.nodes.strip_prefix(&mark.name).unwrap_or_default();
        format!("{node_sets}{listed} except {excluded}")
    }

    /// The line in slurm.conf.
    pub(crate) fn whole(&self) -> String {
        format!("PartitionName={}", self.text())
    }

    /// Parses a line that [`Self::whole`] wrote.
    pub(crate) fn read(whole: &str, generation: i64) -> Option<Self> {
        let rest = whole.strip_prefix("PartitionName=")?;
        let mut items = items(rest);
        let name = items.next()?;
        let nodes = items.next()?.strip_prefix("Nodes=")?;
        let state = items.next()?.strip_prefix("State=")?;
        Some(Self {
            name: name.to_owned(),
            nodes: nodes.to_owned(),
            state: state.to_owned(),
            settings: items.collect::<Vec<_>>().join(" "),
            generation,
            mark: None,
        })
    }

    /// The text after `PartitionName=`.
    pub(crate) fn text(&self) -> String {
        let Self {
            name,
            nodes,
            state,
            settings,
            generation: _,
            mark: _,
        } = self;
        let mut text = format!("{name} Nodes={nodes} State={state}");
        if !settings.is_empty() {
            text.push(' ');
            text.push_str(settings);
        }
        text
    }
}

/// Whether a line is one record and does not continue into the next line, as lines of an older operator may.
pub(crate) fn is_self_contained(line: &str) -> bool {
    const NEXT: &str = "PartitionName=next";
    let document = Document::parse(&format!("{line}\n{NEXT}\n"));
    let [first, second] = document.lines() else {
        return false;
    };
    let is_record = document.records(RecordKind::Partition).count() == 2;
    is_record && first.raw().trim_end() == line.trim_end() && second.raw().trim_end() == NEXT
}

/// The settings in a line of slurm.conf.
pub(crate) fn settings_in(line: &str) -> Settings {
    let document = Document::parse(line);
    let mut partitions = document.effective(RecordKind::Partition).into_iter();
    partitions.next().map(|(_, settings)| settings).unwrap_or_default()
}

/// Whether a partition with these settings is the default one.
pub(crate) fn is_default(settings: &str) -> bool {
    items(settings).any(|item| {
        item.split_once('=')
            .is_some_and(|(key, value)| key.eq_ignore_ascii_case("Default") && is_yes(value))
    })
}

/// The settings of a spec except members and state, as in a line.
pub(crate) fn render_settings(spec: &PartitionSpec) -> String {
    let typed = spec.settings();
    let typed = typed.iter().map(|setting| format!("{}={}", setting.key, setting.value));
    let config = spec.config.as_deref().unwrap_or_default();
    let all: Vec<String> = typed.chain(items(config).map(str::to_owned)).collect();
    all.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_with_blanks_stays_whole() {
        let spec: PartitionSpec = serde_json::from_value(serde_json::json!({
            "controllerRef": { "name": "slurm" }, "config": "Default=\"YES\"  Topology=\"a  Default=NO b\"",
        }))
        .unwrap();
        let line = PartitionLine {
            name: "long".to_owned(),
            nodes: "a".to_owned(),
            state: "UP".to_owned(),
            settings: render_settings(&spec),
            generation: 3,
            mark: None,
        };
        assert_eq!(line.settings, "Default=\"YES\" Topology=\"a  Default=NO b\"");
        assert!(line.is_default() && is_self_contained(&line.whole()));
        assert_eq!(line.without_default().settings, "Topology=\"a  Default=NO b\"");
        assert_eq!(PartitionLine::read(&line.whole(), 3), Some(line));
    }

    #[test]
    fn members_are_told_by_their_names() {
        let members = |others: &str, excluded: &str| {
            let excluded = slurm::Hostlist::parse(excluded).unwrap();
            let mark = Mark::new("long", vec!["cpu".to_owned(), "gpu".to_owned()], &excluded);
            let line = PartitionLine {
                name: "long".to_owned(),
                nodes: format!("{}{others}", mark.name),
                state: "UP".to_owned(),
                settings: String::new(),
                generation: 3,
                mark: Some(mark),
            };
            line.members()
        };
        assert_eq!(members("", "cpu-[0-1]"), "cpu,gpu except cpu-[0-1]");
        assert_eq!(members(",ext[1,3]", "cpu-1,ext2"), "cpu,gpu,ext[1,3] except cpu-1,ext2");
    }

    #[test]
    fn a_line_is_self_contained_unless_it_continues_into_the_next_one() {
        for line in [
            "PartitionName=a",
            "PartitionName=a Nodes=b ",
            "PartitionName=a Topology=\"b c\"",
        ] {
            assert!(is_self_contained(line), "{line:?}");
        }
        for line in [
            "PartitionName=a AllowGroups=x,\\",
            "PartitionName=a State=UP \\ #",
            "PartitionName=a\nSlurmUser=root",
            "PartitionName=a nonsense",
            "# PartitionName=a",
            "",
        ] {
            assert!(!is_self_contained(line), "{line:?}");
        }
    }

    #[test]
    fn typed_fields_come_first_and_the_rest_as_written() {
        let spec: PartitionSpec = serde_json::from_value(serde_json::json!({
            "controllerRef": { "name": "slurm" }, "maxTime": 60, "config": "  SuspendTime=5   ResumeTimeout=9 ",
        }))
        .unwrap();
        let line = PartitionLine {
            name: "long".to_owned(),
            nodes: "a,b".to_owned(),
            state: "UP".to_owned(),
            settings: render_settings(&spec),
            generation: 3,
            mark: None,
        };
        assert_eq!(
            line.text(),
            "long Nodes=a,b State=UP MaxTime=60 SuspendTime=5 ResumeTimeout=9"
        );
        assert_eq!(PartitionLine::read(&line.whole(), 3), Some(line.clone()));
        let plain = PartitionLine {
            settings: String::new(),
            ..line
        };
        assert_eq!(plain.text(), "long Nodes=a,b State=UP");
    }
}
