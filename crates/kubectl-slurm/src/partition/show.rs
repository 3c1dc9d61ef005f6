//! Partitions as text for people. Pure.

use std::fmt::Write as _;

use super::view::PartitionView;
use crate::output::{Cell, Table, Tone};

const UNKNOWN: &str = "?";

/// `with_cluster` adds namespace and cluster.
pub(crate) fn partition_table(views: &[PartitionView], with_cluster: bool) -> Table {
    const COLUMNS: [&str; 12] = [
        "NAMESPACE",
        "CLUSTER",
        "NAME",
        "KIND",
        "OBJECT",
        "STATE",
        "DEFAULT",
        "NODES",
        "TIMELIMIT",
        "RUNNING",
        "PENDING",
        "READY",
    ];
    let shown = if with_cluster { 0 } else { 2 };
    let mut table = Table::new(
        COLUMNS.get(shown..).unwrap_or_default(),
        &["CPUS", "MEMBERS", "SETTINGS", "MESSAGE"],
    );
    for view in views {
        let mut cells = row(view);
        cells.drain(..shown);
        table.row(cells);
    }
    table
}

fn row(view: &PartitionView) -> Vec<Cell> {
    let live =
        |text: &dyn Fn(&super::view::LiveView) -> String| view.live.as_ref().map_or_else(|| UNKNOWN.to_owned(), text);
    let settings: Vec<String> = view
        .settings
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let default = |live: &super::view::LiveView| match live.default {
        Some(true) => "yes".to_owned(),
        Some(false) => "no".to_owned(),
        None => UNKNOWN.to_owned(),
    };
    vec![
        view.namespace.as_str().into(),
        view.cluster.as_str().into(),
        view.name.as_str().into(),
        view.kind.word().into(),
        short(&view.object).into(),
        state_cell(view),
        live(&default).into(),
        live(&|live| live.nodes.to_string()).into(),
        live(&|live| live.max_time.clone()).into(),
        live(&|live| live.running.to_string()).into(),
        live(&|live| live.pending.to_string()).into(),
        Cell::ready(view.ready, Tone::Bad),
        live(&|live| live.cpus.to_string()).into(),
        view.members.as_deref().unwrap_or_default().into(),
        settings.join(" ").into(),
        view.message.as_deref().unwrap_or_default().into(),
    ]
}

/// Shortens `nodesets.slinky.slurm.net/compute` to `nodeset/compute`.
fn short(object: &str) -> String {
    match object.split_once("s.slinky.slurm.net/") {
        Some((kind, name)) => format!("{kind}/{name}"),
        None => object.to_owned(),
    }
}

/// The state in slurmctld, and the wanted one if it differs.
fn state_cell(view: &PartitionView) -> Cell {
    let Some(live) = &view.live else {
        return view.wanted_state.as_str().into();
    };
    let differs = !view.wanted_state.is_empty() && view.wanted_state != live.state;
    let text = if differs {
        format!("{} (wanted {})", live.state, view.wanted_state)
    } else {
        live.state.clone()
    };
    let tone = if live.state == "UP" && !differs {
        Tone::Good
    } else {
        Tone::Doubtful
    };
    Cell::toned(text, tone)
}

/// Describes one partition.
pub(super) fn describe(view: &PartitionView) -> String {
    let mut text = String::new();
    let mut line = |key: &str, value: &str| {
        if !value.is_empty() {
            let _ = writeln!(text, "{key:<12}{value}");
        }
    };
    line("Name:", &view.name);
    line("Cluster:", &format!("{} (namespace {})", view.cluster, view.namespace));
    line("Kind:", view.kind.word());
    line("Object:", &view.object);
    line("State:", &state_cell(view).text);
    line("Members:", view.members.as_deref().unwrap_or_default());
    if let Some(live) = &view.live {
        line("Nodes:", &format!("{} ({})", live.nodes, live.node_list));
        line("CPUs:", &live.cpus.to_string());
        line("Time limit:", &live.max_time);
        line("Jobs:", &format!("{} running, {} pending", live.running, live.pending));
    }
    line("Ready:", &Cell::ready(view.ready, Tone::Bad).text);
    line("Message:", view.message.as_deref().unwrap_or_default());
    if !view.settings.is_empty() {
        let _ = writeln!(text, "Settings:");
        for (key, value) in &view.settings {
            let _ = writeln!(text, "  {key}={value}");
        }
    }
    if !view.drift.is_empty() {
        let _ = writeln!(text, "Manual changes in Slurm:");
        for drift in &view.drift {
            let _ = writeln!(text, "  {drift}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use api::{Controller, NodeSet, Partition};
    use serde_json::{Value, json};

    use super::super::view::view_partitions;
    use super::*;
    use crate::access::Live;
    use crate::cluster::Cluster;

    fn live(name: &str, state: &str) -> slurm::Partition {
        serde_json::from_value(json!({
            "name": name, "partition": { "state": [state] }, "nodes": { "configured": "n[1-2]", "total": 2 },
            "cpus": { "total": 8 }, "maximums": { "time": { "set": true, "number": 1500 } }, "flags": [],
        }))
        .unwrap()
    }

    fn cluster(status: Value) -> Cluster {
        let extra = "PartitionName=DEFAULT MaxTime=5\nPartitionName=all Nodes=ALL\nPartitionName=new Nodes=ALL\n";
        let controller = Controller::new("slurm", serde_json::from_value(json!({ "extraConf": extra })).unwrap());
        let own = json!({ "name": "slurm" });
        let set = json!({ "controllerRef": own, "partition": { "config": "Default=YES" } });
        let mut partition = Partition::new(
            "gpu",
            serde_json::from_value(json!({ "controllerRef": own, "nodeSets": ["compute"] })).unwrap(),
        );
        partition.status = Some(serde_json::from_value(status).unwrap());
        Cluster {
            controller,
            node_sets: vec![NodeSet::new("compute", serde_json::from_value(set).unwrap())],
            partitions: vec![partition],
            slurm_conf: Some(
                "PartitionName=compute Nodes=compute State=DRAIN Default=YES\nPartitionName=all Nodes=ALL\n".into(),
            ),
        }
    }

    #[test]
    fn all_kinds_are_in_one_table() {
        let ready =
            json!({ "type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "" });
        let cluster = cluster(json!({ "conditions": [ready] }));
        let seen = Live {
            partitions: vec![
                live("all", "UP"),
                live("compute", "DRAIN"),
                live("gpu", "UP"),
                live("mine", "UP"),
            ],
            ..Live::default()
        };
        let views = view_partitions(&cluster, Some(&seen));
        assert_eq!(
            partition_table(&views, false).render(false, false),
            "\
NAME      KIND        OBJECT             STATE               DEFAULT   NODES   TIMELIMIT    RUNNING   PENDING   READY
all       extraConf   controller/slurm   UP                  no        2       1-01:00:00   0         0         True
compute   NodeSet     nodeset/compute    DRAIN (wanted UP)   no        2       1-01:00:00   0         0         True
gpu       Partition   partition/gpu      UP                  no        2       1-01:00:00   0         0         True
mine      live        controller/slurm   UP                  no        2       1-01:00:00   0         0         True
new       extraConf   controller/slurm   UP                  ?         ?       ?            ?         ?         False
"
        );
        let messages: Vec<&str> = views.iter().filter_map(|view| view.message.as_deref()).collect();
        assert!(
            messages[0].contains("kubectl slurm partition resume compute"),
            "{messages:?}"
        );
        assert!(messages[1].contains("in no object"), "{messages:?}");
        assert!(messages[2].contains("config diff"), "{messages:?}");
    }

    #[test]
    fn without_slurmctld_its_state_is_unknown_and_not_empty() {
        let drift = json!([{ "key": "State", "wanted": "UP", "live": "DRAIN", "since": "", "settled": "Kept" }]);
        let views = view_partitions(&cluster(json!({ "drift": drift, "members": "compute" })), None);
        let gpu = views.iter().find(|view| view.name == "gpu").unwrap();
        assert!(partition_table(&views, true).render(true, false).contains(" ? "));
        let text = describe(gpu);
        for words in [
            "Kind:       Partition\n",
            "Members:    compute\n",
            "Ready:      False\n",
            "  State: DRAIN in Slurm, UP wanted (Kept)\n",
        ] {
            assert!(text.contains(words), "{words:?} in\n{text}");
        }
        assert!(!text.contains("Jobs:"), "{text}");
    }
}
