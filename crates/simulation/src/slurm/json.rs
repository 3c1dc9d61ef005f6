//! Slurm's JSON, which slurmrestd and `scontrol --json` have in common.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use slurm::{Hostlist, Number};

use super::request::{PartitionUpdate, ReservationUpdate};
use super::settings::{Conf, EPOCH};
use super::state::{Job, JobPhase, Node, Partition, State, minutes};

pub(super) fn unix(time: Duration) -> u64 {
    EPOCH + time.as_secs()
}

pub(super) fn since_start(unix: u64) -> Duration {
    Duration::from_secs(unix.saturating_sub(EPOCH))
}

fn number(value: u64) -> Value {
    json!(Number::Finite(value))
}

/// Zero means never.
fn time(time: Option<Duration>) -> Value {
    number(time.map_or(0, unix))
}

pub(super) fn meta() -> Value {
    json!({ "plugin": {}, "client": {}, "command": [], "slurm": { "release": "26.05.5", "cluster": "simulation" } })
}

/// A response with its content in one field.
pub(super) fn answer(field: &str, content: Value) -> Value {
    let mut answer = json!({ "meta": meta(), "errors": [], "warnings": [] });
    answer[field] = content;
    answer
}

pub(super) fn complaint(code: u32, text: &str, description: &str) -> Value {
    let error = json!({ "error_number": code, "error": text, "description": description, "source": "slurmctld" });
    json!({ "meta": meta(), "errors": [error], "warnings": [] })
}

pub(super) fn nodes<'a>(state: &State, nodes: impl Iterator<Item = &'a Node>, now: Duration) -> Value {
    let shown = nodes.map(|node| {
        let partitions = state.partitions.values();
        let names = partitions.filter(|partition| partition.members.contains(&node.name));
        let partitions: Vec<&str> = names.map(|partition| partition.name.as_str()).collect();
        let reason_time = (!node.reason.is_empty()).then_some(node.reason_time);
        json!({
            "name": node.name,
            "hostname": node.name,
            "address": node.address,
            "state": state.node_state_names(node, now),
            "reason": node.reason,
            "reason_changed_at": time(reason_time),
            "comment": node.comment,
            "extra": node.extra,
            "features": node.features,
            "active_features": node.active_features,
            "partitions": partitions,
            "reservation": state.reserved(&node.name, now, now).next().map_or("", |reservation| &reservation.name),
            "topology": node.topology,
            "cpus": node.cpus,
            "alloc_cpus": state.allocated_cpus(node),
            "boot_time": time(node.boot_time),
            "slurmd_start_time": time(Some(node.slurmd_start_time)),
            "resume_after": time(node.resume_after),
        })
    });
    shown.collect()
}

/// The clock of slurmctld is behind the others by a time.
pub(super) fn jobs<'a>(state: &State, jobs: impl Iterator<Item = &'a Job>, behind: Duration) -> Value {
    let time = |at: Option<Duration>| time(at.map(|at| at.saturating_sub(behind)));
    let list =
        |names: &mut dyn Iterator<Item = &String>| Hostlist::of_names(names).map_or(String::new(), |l| l.to_string());
    let shown = jobs.map(|job| {
        json!({
            "job_id": job.id,
            "job_state": job.state_names(),
            "nodes": list(&mut job.nodes.iter()),
            "batch_host": job.batch_host().unwrap_or_default(),
            "required_nodes": list(&mut job.spec.required.iter()),
            "name": job.spec.name,
            "partition": job.partition,
            "submit_time": time(Some(job.submitted)),
            "eligible_time": time(Some(job.eligible)),
            "start_time": time(job.started),
            "end_time": time(job.ended),
            "resize_time": number(0),
            "time_limit": state.time_limit(job),
            "array_job_id": number(0),
            "array_task_id": Number::Unset,
            "het_job_id": number(0),
            "requeue": job.spec.requeue,
            "batch_flag": true,
            "hold": job.held,
            "priority": number(u64::from(!job.held)),
            "admin_comment": job.admin_comment,
            "restart_cnt": job.restarts,
        })
    });
    shown.collect()
}

pub(super) fn reservations(state: &State) -> Value {
    let shown = state.reservations.values().map(|reservation| {
        let nodes = Hostlist::of_names(&reservation.nodes).map_or(String::new(), |list| list.to_string());
        json!({
            "name": reservation.name,
            "start_time": time(Some(reservation.start)),
            "end_time": time(Some(reservation.end)),
            "node_list": nodes,
            "flags": reservation.flags,
            "users": reservation.users,
        })
    });
    shown.collect()
}

/// Reads the body of `POST reservation`.
pub(super) fn reservation_update(body: &Value) -> ReservationUpdate {
    let list = |key: &str| {
        let names = body.get(key)?.as_array()?.iter().filter_map(Value::as_str);
        Some(names.collect::<Vec<_>>().join(","))
    };
    let number = |key: &str| body[key]["number"].as_u64();
    ReservationUpdate {
        name: body["name"].as_str().unwrap_or_default().to_owned(),
        start: number("start_time").map(since_start),
        minutes: number("duration"),
        nodes: list("node_list"),
        users: list("users"),
        flags: list("flags")
            .into_iter()
            .flat_map(|flags| flags.split(',').map(str::to_owned).collect::<Vec<_>>())
            .collect(),
    }
}

/// How a setting is shown.
#[derive(Debug, Clone, Copy)]
enum Form {
    Text,
    Plain,
    Number,
    Words,
}

/// The settings of a partition: the key of slurm.conf, and the place in JSON.
const SETTINGS: [(&str, &str, Form); 24] = [
    ("MaxTime", "/maximums/time", Form::Number),
    ("DefaultTime", "/defaults/time", Form::Number),
    ("MaxNodes", "/maximums/nodes", Form::Number),
    ("MinNodes", "/minimums/nodes", Form::Plain),
    ("PriorityTier", "/priority/tier", Form::Plain),
    ("PriorityJobFactor", "/priority/job_factor", Form::Plain),
    ("AllowAccounts", "/accounts/allowed", Form::Text),
    ("DenyAccounts", "/accounts/deny", Form::Text),
    ("AllowGroups", "/groups/allowed", Form::Text),
    ("AllowQos", "/qos/allowed", Form::Text),
    ("DenyQos", "/qos/deny", Form::Text),
    ("QOS", "/qos/assigned", Form::Text),
    ("Alternate", "/alternate", Form::Text),
    ("TRESBillingWeights", "/tres/billing_weights", Form::Text),
    ("GraceTime", "/grace_time", Form::Plain),
    ("MaxCPUsPerNode", "/maximums/cpus_per_node", Form::Number),
    ("MaxCPUsPerSocket", "/maximums/cpus_per_socket", Form::Number),
    ("OverTimeLimit", "/maximums/over_time_limit", Form::Number),
    ("DefMemPerCPU", "/defaults/partition_memory_per_cpu", Form::Number),
    ("DefMemPerNode", "/defaults/partition_memory_per_node", Form::Number),
    ("MaxMemPerCPU", "/maximums/partition_memory_per_cpu", Form::Number),
    ("MaxMemPerNode", "/maximums/partition_memory_per_node", Form::Number),
    ("OverSubscribe", "/partition/oversubscribe", Form::Text),
    ("PreemptMode", "/preempt_mode", Form::Words),
];

const FLAGS: [(&str, &str); 5] = [
    ("Default", "DEFAULT"),
    ("Hidden", "HIDDEN"),
    ("LLN", "LLN"),
    ("ReqResv", "REQ_RESV"),
    ("RootOnly", "ROOT_ONLY"),
];

/// Returns a key as the model stores it.
pub(super) fn setting_key(key: &str) -> String {
    let keys = SETTINGS
        .iter()
        .map(|(key, ..)| *key)
        .chain(FLAGS.iter().map(|(key, _)| *key));
    let known = keys.into_iter().find(|known| known.eq_ignore_ascii_case(key));
    known.unwrap_or(key).to_owned()
}

pub(super) fn partitions(state: &State, conf: &Conf) -> Value {
    let shown = state.partitions.values();
    shown.map(|partition| partition_json(state, conf, partition)).collect()
}

/// A partition without any setting, as slurmrestd 26.05.5 shows it.
fn plain_partition() -> Value {
    let (unset, infinite) = (json!(Number::Unset), json!(Number::Infinite));
    json!({
        "nodes": { "allowed_allocation": "" }, "accounts": { "allowed": "", "deny": "" }, "groups": { "allowed": "" },
        "qos": { "allowed": "", "deny": "", "assigned": "" }, "alternate": "", "tres": { "billing_weights": "" },
        "cpus": { "task_binding": [] },
        "defaults": { "partition_memory_per_cpu": unset, "partition_memory_per_node": number(0), "time": unset },
        "maximums": {
            "cpus_per_node": infinite, "cpus_per_socket": infinite, "partition_memory_per_cpu": unset,
            "partition_memory_per_node": number(0), "nodes": infinite, "time": infinite, "over_time_limit": unset,
        },
        "minimums": { "nodes": 0 }, "grace_time": 0, "priority": { "job_factor": 1, "tier": 1 },
        "partition": { "exclusive": "NO", "oversubscribe": "NO" }, "preempt_mode": ["CLUSTER_GLOBAL"],
    })
}

fn partition_json(state: &State, conf: &Conf, partition: &Partition) -> Value {
    let mut shown = plain_partition();
    for (key, place, form) in SETTINGS {
        if let (Some(value), Some(field)) = (partition.settings.get(key), shown.pointer_mut(place)) {
            *field = setting_json(value, form);
        }
    }
    let is_set = |key: &str| {
        partition
            .settings
            .get(key)
            .is_some_and(|value| value.eq_ignore_ascii_case("YES"))
    };
    let flags: Vec<&str> = FLAGS
        .iter()
        .filter(|(key, _)| is_set(key))
        .map(|(_, name)| *name)
        .collect();
    let cpus: u32 = partition
        .members
        .iter()
        .filter_map(|name| state.nodes.get(name))
        .map(|node| node.cpus)
        .sum();
    let configured = Hostlist::of_names(&partition.members).map_or(String::new(), |list| list.to_string());
    shown["name"] = json!(partition.name);
    shown["flags"] = json!(flags);
    shown["partition"]["state"] = json!([partition.state]);
    shown["nodes"]["configured"] = json!(configured);
    shown["nodes"]["total"] = json!(partition.members.len());
    shown["node_sets"] = json!(partition.node_sets(conf).join(","));
    shown["cpus"]["total"] = json!(cpus);
    shown
}

fn setting_json(value: &str, form: Form) -> Value {
    match form {
        // "ALL" is the default, which Slurm does not show.
        Form::Text if value.eq_ignore_ascii_case("ALL") => json!(""),
        Form::Text => json!(value),
        Form::Plain => json!(value.parse::<u64>().unwrap_or_default()),
        Form::Words => json!(value.split(',').collect::<Vec<_>>()),
        Form::Number => json!(match value.to_ascii_uppercase().as_str() {
            "UNLIMITED" | "INFINITE" => Number::Infinite,
            "NONE" | "" => Number::Unset,
            _ => minutes(value).map_or(Number::Unset, Number::Finite),
        }),
    }
}

/// Reads the body of `POST partitions/`.
pub(super) fn partition_update(body: &Value) -> (String, PartitionUpdate) {
    let text = |value: &Value| match value {
        Value::Array(words) => words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
        Value::String(text) => text.clone(),
        Value::Object(_) if value["infinite"] == json!(true) => "UNLIMITED".to_owned(),
        Value::Object(_) => value["number"].to_string(),
        other => other.to_string(),
    };
    let mut settings: BTreeMap<String, String> = SETTINGS
        .iter()
        .filter_map(|(key, place, _)| Some(((*key).to_owned(), text(body.pointer(place)?))))
        .collect();
    for flag in body["flags"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        let (name, word) = flag.strip_suffix("_CLEAR").map_or((flag, "YES"), |name| (name, "NO"));
        if let Some((key, _)) = FLAGS.iter().find(|(_, own)| *own == name) {
            settings.insert((*key).to_owned(), word.to_owned());
        }
    }
    let update = PartitionUpdate {
        nodes: body.pointer("/nodes/configured").map(text),
        state: body.pointer("/partition/state").map(text),
        settings,
    };
    (body["name"].as_str().unwrap_or_default().to_owned(), update)
}

pub(super) fn configuration(conf: &Conf, booted: Duration, now: Duration) -> Value {
    let mut shown = answer("slurm_conf", json!({ "ReconfigFlags": [] }));
    shown["slurm_conf_meta"] = json!({
        "BOOT_TIME": unix(booted), "LastUpdate": unix(now), "HashValue": conf.hash,
    });
    shown
}

pub(super) fn sacct_state(phase: JobPhase) -> &'static str {
    match phase {
        JobPhase::Cancelled => "CANCELLED by 0",
        other => other.name(),
    }
}
