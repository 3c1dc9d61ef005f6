//! What is compared: nodes, jobs and partitions, as the same JSON shows them.

use std::collections::BTreeMap;

use serde_json::Value;
use slurm::Hostlist;

use crate::slurm::{ControllerId, Slurm};

/// Between the outputs of the programs.
const SEPARATOR: &str = "=====\n";

/// Flags that say what the scheduler intends.
const IGNORED: [&str; 2] = ["DYNAMIC_NORM", "PLANNED"];

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct View(BTreeMap<String, String>);

impl View {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut view = Self::default();
        for part in text.split(SEPARATOR) {
            let json: Value = serde_json::from_str(part).map_err(|error| format!("{error}: {part}"))?;
            for (field, describe) in [
                ("nodes", node as fn(&Value) -> (String, String)),
                ("jobs", job),
                ("partitions", partition),
                ("reservations", reservation),
            ] {
                let entries = json.get(field).and_then(Value::as_array).into_iter().flatten();
                view.0.extend(entries.map(describe));
            }
        }
        Ok(view)
    }

    pub(super) fn of_model(slurm: &mut Slurm, controller: ControllerId) -> Result<Self, String> {
        let programs = [
            &["scontrol", "--all", "--json", "show", "nodes"][..],
            &["squeue", "--all", "--states=all", "--json"],
            &["scontrol", "--all", "--json", "show", "partitions"],
            &["scontrol", "--all", "--json", "show", "reservations"],
        ];
        let shown = programs.map(|argv| slurm.run(controller, "replay", argv).stdout);
        Self::parse(&shown.join(SEPARATOR)).map_err(|error| format!("the model: {error}"))
    }

    pub(super) fn differences(&self, model: &Self) -> Vec<String> {
        let keys: std::collections::BTreeSet<&String> = self.0.keys().chain(model.0.keys()).collect();
        let none = "(none)".to_owned();
        let lines = keys.into_iter().filter_map(|key| {
            let (real, expected) = (self.0.get(key), model.0.get(key));
            let (shown, modelled) = (real.unwrap_or(&none), expected.unwrap_or(&none));
            (real != expected).then(|| format!("{key}\n  Slurm: {shown}\n  model: {modelled}"))
        });
        lines.collect()
    }
}

fn text<'a>(entry: &'a Value, place: &str) -> &'a str {
    entry.pointer(place).and_then(Value::as_str).unwrap_or_default()
}

fn words(entry: &Value, place: &str) -> String {
    let list = entry.pointer(place).and_then(Value::as_array).into_iter().flatten();
    let mut words: Vec<&str> = list
        .filter_map(Value::as_str)
        .filter(|word| !IGNORED.contains(word))
        .collect();
    words.sort_unstable();
    words.join("+")
}

fn node(entry: &Value) -> (String, String) {
    let shown = format!(
        "{} reason={:?} comment={:?} features={} partitions={}",
        words(entry, "/state"),
        text(entry, "/reason"),
        text(entry, "/comment"),
        words(entry, "/features"),
        words(entry, "/partitions"),
    );
    (format!("node {}", text(entry, "/name")), shown)
}

fn job(entry: &Value) -> (String, String) {
    let state = words(entry, "/job_state");
    let held = state == "PENDING" && entry.pointer("/priority/number") == Some(&Value::from(0));
    // A job that has ended may show the batch host of its last start, or none.
    let batch_host = if state == "RUNNING" {
        text(entry, "/batch_host")
    } else {
        ""
    };
    let nodes = Hostlist::parse(text(entry, "/nodes")).map_or(String::new(), |nodes| nodes.to_string());
    let limit = match &entry["time_limit"] {
        // The backfill scheduler writes a year in place of no limit.
        limit if limit["infinite"] == true || limit["number"] == 365 * 24 * 60 => "none".to_owned(),
        limit => limit["number"].to_string(),
    };
    let shown = format!(
        "{state} nodes={nodes} script={batch_host} restarts={} held={held} limit={limit} comment={:?}",
        entry["restart_cnt"],
        text(entry, "/admin_comment"),
    );
    (format!("job {}", entry["job_id"]), shown)
}

fn partition(entry: &Value) -> (String, String) {
    let shown = format!(
        "{} nodes={} sets={}",
        words(entry, "/partition/state"),
        text(entry, "/nodes/configured"),
        text(entry, "/node_sets"),
    );
    (format!("partition {}", text(entry, "/name")), shown)
}

fn reservation(entry: &Value) -> (String, String) {
    let shown = format!(
        "nodes={} users={} {}",
        text(entry, "/node_list"),
        text(entry, "/users"),
        words(entry, "/flags"),
    );
    (format!("reservation {}", text(entry, "/name")), shown)
}
