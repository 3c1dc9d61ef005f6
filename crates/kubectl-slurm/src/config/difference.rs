//! The differences between the objects and what slurmctld runs with. Pure.
//!
//! slurmctld runs with the slurm.conf that was last accepted: the operator stores it only then.

use std::fmt::Write as _;

use serde::Serialize;
use similar::TextDiff;
use slurm::conf::{Document, RecordKind};

use crate::cluster::Cluster;
use crate::output::{Listed, Tone};
use crate::partition::{settings_of_line, view_partitions};

/// The beginning and the end of the part of slurm.conf that repeats `spec.extraConf`.
const EXTRA: &str = "#\n### EXTRA CONFIG ###\n";
const MERGED: &str = "#\n### MERGED CONFIG ###\n";

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ConfigReport {
    pub(crate) namespace: String,
    pub(crate) cluster: String,
    /// The revision slurmctld runs with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) revision: Option<i64>,
    pub(crate) differences: Vec<Difference>,
    /// Nodes that lack the last change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lagging_nodes: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Difference {
    /// The field that has it.
    pub(crate) source: String,
    /// Why it is not live, if known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) why: String,
    /// The diff from the live value to the wanted one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) diff: String,
}

impl Listed for ConfigReport {
    fn object(&self) -> String {
        format!("controllers.slinky.slurm.net/{}", self.cluster)
    }
}

pub(crate) fn report_on(cluster: &Cluster) -> ConfigReport {
    let configuration = cluster.controller.configuration().cloned().unwrap_or_default();
    let mut differences = Vec::new();
    if !cluster.controller.spec.is_external() {
        differences.extend(of_extra_conf(cluster));
        differences.extend(of_node_sets(cluster));
        for held in &configuration.held_inputs {
            let known = differences
                .iter_mut()
                .find(|difference| difference.source == held.source);
            match known {
                Some(known) => known.why.clone_from(&held.message),
                None => differences.push(Difference {
                    source: held.source.clone(),
                    why: held.message.clone(),
                    diff: String::new(),
                }),
            }
        }
    }
    for view in view_partitions(cluster, None) {
        let Some((_, own)) = view.object.split_once("partitions.slinky.slurm.net/") else {
            continue;
        };
        let source = format!("Partition {own:?}");
        let known = differences.iter().any(|difference| difference.source == source);
        if !known && (!view.ready || !view.drift.is_empty()) {
            differences.push(Difference {
                source,
                why: view.message.unwrap_or_default(),
                diff: view.drift.join("\n"),
            });
        }
    }
    let wanted = configuration.wanted.as_ref().map(|wanted| &wanted.digest);
    let applied = configuration.applied.as_ref().map(|applied| &applied.digest);
    if differences.is_empty() && wanted != applied {
        differences.push(Difference {
            source: "the newest revision".to_owned(),
            why: "it is being applied; see `kubectl slurm status`".to_owned(),
            diff: String::new(),
        });
    }
    ConfigReport {
        namespace: cluster.namespace(),
        cluster: cluster.name(),
        revision: configuration.applied.map(|applied| applied.sequence),
        differences,
        lagging_nodes: configuration.lagging_nodes,
    }
}

fn of_extra_conf(cluster: &Cluster) -> Option<Difference> {
    let live = extra_section(cluster.slurm_conf.as_deref()?);
    let wanted = cluster.extra_conf();
    let same = live.trim_end_matches('\n') == wanted.trim_end_matches('\n');
    (!same).then(|| Difference {
        source: "spec.extraConf".to_owned(),
        why: String::new(),
        diff: unified(&live, wanted, "spec.extraConf"),
    })
}

/// Returns the part of slurm.conf that repeats extraConf.
fn extra_section(conf: &str) -> String {
    let Some((_, extra)) = conf.split_once(EXTRA) else {
        return String::new();
    };
    extra.rsplit_once(MERGED).map_or(extra, |(extra, _)| extra).to_owned()
}

fn of_node_sets(cluster: &Cluster) -> Vec<Difference> {
    let accepted = cluster.accepted();
    let mut differences = Vec::new();
    for set in &cluster.node_sets {
        let name = set.slurm_name();
        let own = set.metadata.name.clone().unwrap_or_default();
        let config = set.spec.wanted_partition();
        let wanted = config.map(|config| {
            format!("PartitionName={name} Nodes={name} {config}")
                .trim_end()
                .to_owned()
                + "\n"
        });
        let live = line_of(&accepted, &name).unwrap_or_default();
        let wanted = wanted.unwrap_or_default();
        // Another object that defines a partition of this name has its own entry.
        let is_object = || {
            cluster
                .partitions
                .iter()
                .any(|partition| partition.slurm_name() == name)
        };
        let in_extra_conf = || settings_of_line(cluster.extra_conf(), &name).is_some();
        let elsewhere = config.is_none() && (in_extra_conf() || is_object());
        if settings_of_line(&live, &name) != settings_of_line(&wanted, &name) && !elsewhere {
            let source = format!("NodeSet {own:?} spec.partition");
            differences.push(Difference {
                diff: unified(&live, &wanted, &source),
                source,
                why: String::new(),
            });
        }
    }
    differences
}

fn line_of(document: &Document, name: &str) -> Option<String> {
    let number = document.record(RecordKind::Partition, name)?.line;
    let line = document.lines().iter().find(|line| line.number == number)?;
    Some(line.raw().trim_end().to_owned() + "\n")
}

fn unified(live: &str, wanted: &str, source: &str) -> String {
    let diff = TextDiff::from_lines(live, wanted);
    let mut unified = diff.unified_diff();
    unified
        .context_radius(2)
        .header("slurm.conf (live)", source)
        .to_string()
}

pub(crate) fn render_report(report: &ConfigReport, colours: bool) -> String {
    let mut text = String::new();
    let revision = report
        .revision
        .map_or_else(|| "none".to_owned(), |revision| revision.to_string());
    if report.differences.is_empty() {
        let _ = writeln!(
            text,
            "{}: slurmctld runs with the settings of all objects, revision {revision}",
            report.cluster
        );
    }
    for difference in &report.differences {
        let _ = writeln!(
            text,
            "{}: {} is not live (slurmctld runs with revision {revision})",
            report.cluster, difference.source
        );
        if !difference.why.is_empty() {
            let _ = writeln!(text, "  {}", difference.why.replace('\n', "\n  "));
        }
        for line in difference.diff.lines() {
            let tone = match line.chars().next() {
                Some('+') => Tone::Good,
                Some('-') => Tone::Bad,
                _ => Tone::Plain,
            };
            let _ = writeln!(text, "{}", tone.paint(line, colours));
        }
    }
    if let Some(nodes) = &report.lagging_nodes {
        let _ = writeln!(text, "{}: nodes without the last change: {nodes}", report.cluster);
    }
    text
}

#[cfg(test)]
mod tests {
    use api::{Controller, NodeSet};
    use serde_json::json;

    use super::*;

    const CONF: &str = "#\n### GENERAL ###\nClusterName=a\n#\n### NODESET & PARTITION ###\nNodeSet=compute Feature=compute\nPartitionName=compute Nodes=compute Default=YES\n#\n### EXTRA CONFIG ###\nPartitionName=all Nodes=ALL\nDebugFlags=NO_CONF_HASH\n\n#\n### MERGED CONFIG ###\nAuthInfo=x\n";

    fn cluster(extra: &str, config: &str) -> Cluster {
        let mut controller = Controller::new("slurm", serde_json::from_value(json!({ "extraConf": extra })).unwrap());
        controller.status = Some(
            serde_json::from_value(json!({ "configuration": {
                "wanted": { "digest": "d" }, "applied": { "sequence": 4, "digest": "d", "time": "" },
            } }))
            .unwrap(),
        );
        let set = json!({ "controllerRef": { "name": "slurm" }, "partition": { "config": config } });
        Cluster {
            controller,
            node_sets: vec![NodeSet::new("compute", serde_json::from_value(set).unwrap())],
            slurm_conf: Some(CONF.to_owned()),
            ..Cluster::default()
        }
    }

    const EXTRA_CONF: &str = "PartitionName=all Nodes=ALL\nDebugFlags=NO_CONF_HASH\n";

    #[test]
    fn nothing_differs_when_everything_is_live() {
        let report = report_on(&cluster(EXTRA_CONF, "Default=YES"));
        assert_eq!(report.differences, []);
        assert_eq!(
            render_report(&report, false),
            "slurm: slurmctld runs with the settings of all objects, revision 4\n"
        );
    }

    #[test]
    fn a_change_that_is_not_live_is_shown_with_its_source_and_reason() {
        let mut changed = cluster(&EXTRA_CONF.replace("ALL", "ALL MaxTime=5"), "Default=YES State=DRAIN");
        let held = json!([{ "source": "spec.extraConf", "reason": "ConfigRejected", "message": "bad" }]);
        let status = changed.controller.status.as_mut().unwrap();
        status.configuration.as_mut().unwrap().held_inputs = serde_json::from_value(held).unwrap();
        let text = render_report(&report_on(&changed), false);
        for words in [
            "slurm: spec.extraConf is not live (slurmctld runs with revision 4)\n  bad\n",
            "-PartitionName=all Nodes=ALL\n+PartitionName=all Nodes=ALL MaxTime=5\n",
            "slurm: NodeSet \"compute\" spec.partition is not live",
            "+PartitionName=compute Nodes=compute Default=YES State=DRAIN\n",
        ] {
            assert!(text.contains(words), "{words}\n{text}");
        }
    }

    #[test]
    fn a_revision_that_is_being_applied_is_a_difference() {
        let mut pushing = cluster(EXTRA_CONF, "Default=YES");
        let configuration = pushing
            .controller
            .status
            .as_mut()
            .unwrap()
            .configuration
            .as_mut()
            .unwrap();
        configuration.wanted.as_mut().unwrap().digest = "e".into();
        assert!(report_on(&pushing).differences[0].why.contains("being applied"));
    }
}
