//! `status`: one screen about a cluster.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use api::{Condition, ConditionStatus, conditions::READY};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde::Serialize;

use crate::access::{Access, Live};
use crate::cli::{Common, Format, Watch};
use crate::cluster::{Cluster, action_word};
use crate::failure::Outcome;
use crate::node::{NodeView, list_pods, view_nodes};
use crate::output::{Cell, Listed, Table, Tone, colours, print, print_list};
use crate::partition::{PartitionView, live, partition_table, view_partitions};

/// The refresh interval of `--watch`.
const PAUSE: Duration = Duration::from_secs(2);
/// Moves the cursor home and clears the terminal.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

/// Conditions that are problems when they are true; all others are when they are false.
const WRONG_WHEN_TRUE: [&str; 8] = [
    "Degraded",
    "Drifted",
    "PartitionRetained",
    "CRDsOutdated",
    "UnknownFields",
    "ConfigDoubtful",
    "NotPersistent",
    "Paused",
];
/// Conditions that are never problems.
const NEUTRAL: [&str; 2] = ["Progressing", "ReservationCreated"];

/// Reasons why a Controller is not ready although its slurmctld serves, with the last good configuration.
const HELD: [&str; 4] = ["ConfigRejected", "WaitsForJobs", "WaitsForAccounting", "WaitsForNodes"];

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Status {
    namespace: String,
    cluster: String,
    cluster_name: String,
    ready: bool,
    /// Changes of the configuration that are held, if nothing else keeps the cluster from being ready.
    held: usize,
    message: String,
    configuration: Vec<(String, String)>,
    node_sets: Vec<NodeSetView>,
    partitions: Vec<PartitionView>,
    /// Nodes by state.
    nodes: BTreeMap<String, usize>,
    /// Running and pending jobs; absent if slurmctld is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    jobs: Option<(usize, usize)>,
    troubles: Vec<Trouble>,
}

#[derive(Clone, Debug, Serialize)]
struct NodeSetView {
    name: String,
    desired: i32,
    ready: i32,
    updated: i32,
    idle: Option<i32>,
    allocated: Option<i32>,
    drain: Option<i32>,
    down: Option<i32>,
}

/// A condition that is a problem, with its remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Trouble {
    object: String,
    condition: String,
    reason: String,
    message: String,
}

impl Listed for Status {
    fn object(&self) -> String {
        format!("controllers.slinky.slurm.net/{}", self.cluster)
    }
}

pub(crate) async fn run(access: &Access, common: &Common, watch: &Watch) -> Outcome {
    loop {
        let pods = list_pods(access, common).await?;
        let mut statuses = Vec::new();
        for cluster in access.clusters().await? {
            let live = live(access, &cluster).await;
            statuses.push(build_status(&cluster, live.as_ref(), &pods));
        }
        let screen = watch.watch && colours();
        match common.output {
            Format::Table | Format::Wide => {
                let wide = common.output == Format::Wide;
                let texts: Vec<String> = statuses.iter().map(|status| render(status, wide, colours())).collect();
                print(&format!("{}{}", if screen { CLEAR } else { "" }, texts.join("\n")))?;
            }
            format => print_list(format, &statuses, |_| Table::default())?,
        }
        if !watch.watch {
            return Ok(());
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn build_status(cluster: &Cluster, live: Option<&Live>, pods: &[Pod]) -> Status {
    let status = cluster.controller.status.clone().unwrap_or_default();
    let own = |view: &NodeView| view.cluster == cluster.name() && view.namespace == cluster.namespace();
    let mut nodes = BTreeMap::new();
    for view in view_nodes(pods).into_iter().filter(own) {
        *nodes
            .entry(view.state.unwrap_or_else(|| "unknown to Slurm".to_owned()))
            .or_default() += 1;
    }
    let ready = status.conditions.iter().find(|condition| condition.type_ == READY);
    let is_held = |ready: &Condition| ready.status == ConditionStatus::False && HELD.contains(&ready.reason.as_str());
    let configuration_status = status.configuration.as_ref();
    let applied = configuration_status.filter(|it| it.applied.is_some() && ready.is_some_and(is_held));
    let held = applied.map_or(0, |configuration| configuration.held_inputs.len());
    Status {
        namespace: cluster.namespace(),
        cluster: cluster.name(),
        cluster_name: cluster.controller.cluster_name(),
        ready: ready.is_some_and(|ready| ready.status == ConditionStatus::True),
        held,
        message: match ready {
            None => "the operator has not reported on it yet; does it run?".to_owned(),
            Some(_) if held > 0 => "serves with the last good configuration".to_owned(),
            Some(ready) => ready.message.clone(),
        },
        configuration: configuration(cluster),
        node_sets: cluster.node_sets.iter().map(view_node_set).collect(),
        partitions: view_partitions(cluster, live),
        nodes,
        jobs: live.map(|live| (live.jobs.running, live.jobs.pending)),
        troubles: troubles(cluster),
    }
}

fn view_node_set(set: &api::NodeSet) -> NodeSetView {
    let status = set.status.clone().unwrap_or_default();
    NodeSetView {
        name: set.name_any(),
        desired: status.desired,
        ready: status.ready_replicas,
        updated: status.updated_replicas,
        idle: status.slurm_idle,
        allocated: status.slurm_allocated,
        drain: status.slurm_drain,
        down: status.slurm_down,
    }
}

/// Returns facts about the configuration.
fn configuration(cluster: &Cluster) -> Vec<(String, String)> {
    let Some(configuration) = cluster.controller.configuration() else {
        return Vec::new();
    };
    let mut facts = Vec::new();
    if let Some(applied) = &configuration.applied {
        facts.push((
            "configuration".to_owned(),
            format!(
                "revision {} ({}) since {}",
                applied.sequence,
                short(&applied.digest),
                applied.time
            ),
        ));
    }
    let wanted = configuration.wanted.as_ref().map(|wanted| &wanted.digest);
    if let Some(wanted) = wanted.filter(|wanted| {
        configuration
            .applied
            .as_ref()
            .is_none_or(|applied| applied.digest != **wanted)
    }) {
        facts.push(("wanted".to_owned(), format!("{} (not live yet)", short(wanted))));
    }
    if let Some(change) = &configuration.last_change {
        let action = action_word(change.action.as_ref());
        facts.push((
            "last change".to_owned(),
            format!("revision {}, {action}, {} ms", change.sequence, change.milliseconds),
        ));
    }
    for held in &configuration.held_inputs {
        facts.push(("held".to_owned(), format!("{}: {}", held.source, held.message)));
    }
    if let Some(nodes) = &configuration.lagging_nodes {
        facts.push(("lagging nodes".to_owned(), nodes.clone()));
    }
    facts
}

fn short(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}

fn troubles(cluster: &Cluster) -> Vec<Trouble> {
    let conditions = cluster.controller.status.as_ref().map(|status| &status.conditions);
    let controller = (format!("controller/{}", cluster.name()), conditions);
    let sets = cluster.node_sets.iter().map(|set| {
        let conditions = set.status.as_ref().map(|status| &status.conditions);
        (format!("nodeset/{}", set.name_any()), conditions)
    });
    let partitions = cluster.partitions.iter().map(|partition| {
        let conditions = partition.status.as_ref().map(|status| &status.conditions);
        (format!("partition/{}", partition.name_any()), conditions)
    });
    let mut all: Vec<Trouble> = Vec::new();
    for (object, conditions) in std::iter::once(controller).chain(sets).chain(partitions) {
        for condition in conditions
            .into_iter()
            .flatten()
            .filter(|condition| is_trouble(condition))
        {
            // Several conditions of an object often have the same message.
            let is_known = |known: &Trouble| known.object == object && known.message == condition.message;
            if !all.iter().any(is_known) {
                all.push(Trouble {
                    object: object.clone(),
                    condition: condition.type_.clone(),
                    reason: condition.reason.clone(),
                    message: condition.message.clone(),
                });
            }
        }
    }
    all
}

fn is_trouble(condition: &Condition) -> bool {
    let type_ = condition.type_.as_str();
    match condition.status {
        _ if NEUTRAL.contains(&type_) => false,
        ConditionStatus::True => WRONG_WHEN_TRUE.contains(&type_),
        ConditionStatus::False => !WRONG_WHEN_TRUE.contains(&type_),
        ConditionStatus::Unknown | ConditionStatus::Other(_) => condition.reason != "External",
    }
}

fn render(status: &Status, wide: bool, colours: bool) -> String {
    let mut text = String::new();
    let (tone, ready) = match status.held {
        0 if status.ready => (Tone::Good, "Ready".to_owned()),
        0 => (Tone::Bad, "not ready".to_owned()),
        1 => (Tone::Doubtful, "Ready, 1 change held".to_owned()),
        held => (Tone::Doubtful, format!("Ready, {held} changes held")),
    };
    let ready = tone.paint(&ready, colours);
    let _ = writeln!(
        text,
        "Cluster {} (namespace {}, in Slurm {}): {ready}",
        status.cluster, status.namespace, status.cluster_name
    );
    let mut fact = |key: &str, value: &str| {
        let _ = writeln!(text, "  {key:<15}{}", value.replace('\n', "\n                 "));
    };
    fact("slurmctld", &status.message);
    for (key, value) in &status.configuration {
        fact(key, value);
    }
    let nodes: Vec<String> = status
        .nodes
        .iter()
        .map(|(state, count)| format!("{count} {state}"))
        .collect();
    fact(
        "nodes",
        &if nodes.is_empty() {
            "none".to_owned()
        } else {
            nodes.join(", ")
        },
    );
    let jobs = status.jobs.map_or_else(
        || "unknown".to_owned(),
        |(running, pending)| format!("{running} running, {pending} pending"),
    );
    fact("jobs", &jobs);
    let sets = node_set_table(&status.node_sets);
    if !sets.is_empty() {
        let _ = write!(text, "\n{}", sets.render(wide, colours));
    }
    let partitions = partition_table(&status.partitions, false);
    if !partitions.is_empty() {
        let _ = write!(text, "\n{}", partitions.render(wide, colours));
    }
    for trouble in &status.troubles {
        let head = format!("{} {} ({})", trouble.object, trouble.condition, trouble.reason);
        let _ = writeln!(
            text,
            "\n{}\n  {}",
            Tone::Bad.paint(&head, colours),
            trouble.message.replace('\n', "\n  ")
        );
    }
    text
}

fn node_set_table(sets: &[NodeSetView]) -> Table {
    let mut table = Table::new(
        &[
            "NODESET",
            "DESIRED",
            "READY",
            "UPDATED",
            "IDLE",
            "ALLOCATED",
            "DRAIN",
            "DOWN",
        ],
        &[],
    );
    let count = |count: Option<i32>| count.map_or_else(|| "?".to_owned(), |count| count.to_string());
    for set in sets {
        let tone = if set.ready < set.desired {
            Tone::Doubtful
        } else {
            Tone::Good
        };
        table.row(vec![
            set.name.as_str().into(),
            set.desired.to_string().into(),
            Cell::toned(set.ready.to_string(), tone),
            set.updated.to_string().into(),
            count(set.idle).into(),
            count(set.allocated).into(),
            count(set.drain).into(),
            count(set.down).into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use api::{Controller, NodeSet};
    use serde_json::{Value, json};

    use super::*;

    fn condition(type_: &str, status: &str, message: &str) -> Value {
        json!({ "type": type_, "status": status, "reason": "Why", "message": message, "lastTransitionTime": "" })
    }

    fn cluster() -> Cluster {
        let mut controller = Controller::new(
            "slurm",
            serde_json::from_value(json!({ "extraConf": "PartitionName=all Nodes=ALL\n" })).unwrap(),
        );
        controller.metadata.namespace = Some("hpc".into());
        controller.status = Some(
            serde_json::from_value(json!({
                "conditions": [
                    condition("Ready", "True", "slurmctld serves"),
                    condition("Progressing", "False", ""),
                    condition("Degraded", "True", "spec.extraConf is held"),
                    condition("ConfigurationApplied", "False", "spec.extraConf is held"),
                    condition("Supervised", "True", "fine"),
                ],
                "configuration": {
                    "wanted": { "digest": "0123456789abcdef" },
                    "applied": { "sequence": 4, "digest": "0123456789abcdef", "time": "2026-11-15T10:00:00Z" },
                },
            }))
            .unwrap(),
        );
        let mut set = NodeSet::new(
            "compute",
            serde_json::from_value(json!({ "controllerRef": { "name": "slurm" } })).unwrap(),
        );
        set.status = Some(serde_json::from_value(json!({ "desired": 2, "readyReplicas": 1, "slurmIdle": 1 })).unwrap());
        Cluster {
            controller,
            node_sets: vec![set],
            slurm_conf: Some("PartitionName=all Nodes=ALL\n".into()),
            ..Cluster::default()
        }
    }

    #[test]
    fn the_status_has_facts_and_problems() {
        let status = build_status(&cluster(), None, &[]);
        let text = render(&status, false, false);
        for words in [
            "Cluster slurm (namespace hpc, in Slurm hpc_slurm): Ready\n",
            "  slurmctld      slurmctld serves\n",
            "  configuration  revision 4 (0123456789ab) since 2026-11-15T10:00:00Z\n",
            "  jobs           unknown\n",
            "compute   2         1       0         1      ?",
            "all    extraConf   controller/slurm   UP",
            "controller/slurm Degraded (Why)\n  spec.extraConf is held\n",
        ] {
            assert!(text.contains(words), "{words:?} is not in\n{text}");
        }
        // Two conditions with one message are one problem.
        assert_eq!(status.troubles.len(), 1, "{:?}", status.troubles);
    }

    #[test]
    fn a_cluster_that_serves_is_ready_although_a_change_is_held() {
        let head = |reason: &str, held: Value| {
            let mut cluster = cluster();
            let status = cluster.controller.status.as_mut().unwrap();
            let ready = json!({ "type": "Ready", "status": "False", "reason": reason, "message": "line 1: MaxJobCuont is no key",
                "lastTransitionTime": "" });
            status.conditions[0] = serde_json::from_value(ready).unwrap();
            let configuration = status.configuration.as_mut().unwrap();
            configuration.held_inputs = serde_json::from_value(held).unwrap();
            let text = render(&build_status(&cluster, None, &[]), false, false);
            text.lines().take(2).collect::<Vec<_>>().join("\n")
        };
        let one = json!([{ "source": "spec.extraConf", "reason": "ConfigRejected", "message": "line 1" }]);
        let cluster = "Cluster slurm (namespace hpc, in Slurm hpc_slurm)";
        assert_eq!(
            head("ConfigRejected", one.clone()),
            format!("{cluster}: Ready, 1 change held\n  slurmctld      serves with the last good configuration")
        );
        let away = head("SlurmctldAway", one);
        assert_eq!(
            away,
            format!("{cluster}: not ready\n  slurmctld      line 1: MaxJobCuont is no key")
        );
        assert!(head("ConfigRejected", json!([])).contains("not ready"));
    }

    #[test]
    fn conditions_are_problems_or_not() {
        for (type_, status, trouble) in [
            ("Ready", "True", false),
            ("Ready", "False", true),
            ("Ready", "Unknown", true),
            ("Degraded", "True", true),
            ("Degraded", "False", false),
            ("Progressing", "True", false),
            ("Drifted", "True", true),
            ("SlurmReachable", "False", true),
        ] {
            let condition: Condition = serde_json::from_value(condition(type_, status, "")).unwrap();
            assert_eq!(is_trouble(&condition), trouble, "{type_} {status}");
        }
    }
}
