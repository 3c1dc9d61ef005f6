//! Partitions as text for people. Pure.

use std::fmt::Write as _;

use super::view::PartitionView;
use crate::output::{Cell, Table, Tone};

/// What is not known.
const UNKNOWN: &str = "?";

/// With the namespace where there are several.
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
        ready_cell(view.ready),
        live(&|live| live.cpus.to_string()).into(),
        view.members.as_deref().unwrap_or_default().into(),
        settings.join(" ").into(),
        view.message.as_deref().unwrap_or_default().into(),
    ]
}

/// `nodesets.slinky.slurm.net/compute` is what kubectl needs; people read `nodeset/compute`.
fn short(object: &str) -> String {
    match object.split_once("s.slinky.slurm.net/") {
        Some((kind, name)) => format!("{kind}/{name}"),
        None => object.to_owned(),
    }
}

/// What slurmctld has, and beside it what is asked for if that is something else.
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

pub(crate) fn ready_cell(ready: bool) -> Cell {
    if ready {
        Cell::toned("True", Tone::Good)
    } else {
        Cell::toned("False", Tone::Bad)
    }
}

/// Everything about one.
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
    line("Ready:", &ready_cell(view.ready).text);
    line("Message:", view.message.as_deref().unwrap_or_default());
    if !view.settings.is_empty() {
        let _ = writeln!(text, "Settings:");
        for (key, value) in &view.settings {
            let _ = writeln!(text, "  {key}={value}");
        }
    }
    if !view.drift.is_empty() {
        let _ = writeln!(text, "Changed in Slurm by hand:");
        for drift in &view.drift {
            let _ = writeln!(text, "  {drift}");
        }
    }
    text
}
