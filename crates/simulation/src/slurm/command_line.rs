//! Slurm's programs, as far as the agent runs them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

use super::engine::Slurm;
use super::ids::ControllerId;
use super::json;
use super::request::{Code, Failure, NodeOrder, NodeUpdate, PartitionUpdate, Request, ReservationUpdate};
use super::settings::MESSAGE_TIMEOUT;
use super::state::Job;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
    /// How long the program runs.
    pub takes: Duration,
}

impl Output {
    fn ok(stdout: String) -> Self {
        Self {
            code: 0,
            stdout,
            stderr: String::new(),
            takes: Duration::from_millis(10),
        }
    }

    fn failed(introduction: &str, failure: Failure) -> Self {
        let (text, takes) = match failure {
            Failure::Unreachable => ("Unable to contact slurm controller (connect failure)", MESSAGE_TIMEOUT),
            Failure::NoAnswer => ("Socket timed out on send/recv operation", MESSAGE_TIMEOUT),
            Failure::Refused(code) => (code.text(), Duration::from_millis(10)),
        };
        Self {
            code: 1,
            stdout: String::new(),
            stderr: format!("{introduction}{text}\n"),
            takes,
        }
    }
}

impl Slurm {
    /// Runs a program that reaches this slurmctld.
    pub fn run(&mut self, to: ControllerId, sender: &str, argv: &[&str]) -> Output {
        let is_option = |word: &&&str| word.starts_with("--");
        let words: Vec<&str> = argv.iter().filter(|word| !is_option(word)).copied().collect();
        let option = |name: &str| argv.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        match words.as_slice() {
            ["env", _, "sacct"] | ["sacct"] => self.sacct(option("--jobs").unwrap_or_default()),
            ["sacctmgr", "show", "qos"] => Output::ok(json::answer("qos", json!([{ "name": "normal" }])).to_string()),
            ["squeue"] => self.squeue(to, option("--states").unwrap_or("pending,running,suspended,completing")),
            ["scontrol", "show", what @ ..] => self.show(to, what),
            ["scontrol", "requeue", id] => {
                let done = self.request(to, sender, Request::Requeue(id.parse().unwrap_or(0)));
                finish("", done.map(drop))
            }
            ["scancel", id] => {
                let done = self.request(to, sender, Request::Cancel(id.parse().unwrap_or(0)));
                finish(
                    &format!("scancel: error: Kill job error on job id {id}: "),
                    done.map(drop),
                )
            }
            ["scontrol", verb @ ("update" | "create" | "delete"), settings @ ..] => {
                self.change(to, sender, verb, settings)
            }
            _ => Output {
                code: 1,
                stderr: format!("invalid entity: {}\n", argv.join(" ")),
                ..Output::ok(String::new())
            },
        }
    }

    fn show(&self, to: ControllerId, what: &[&str]) -> Output {
        let (state, conf) = match (self.state(to), self.conf(to)) {
            (Ok(state), Ok(conf)) => (state, conf),
            (Err(failure), _) | (_, Err(failure)) => return Output::failed("slurm_load error: ", failure),
        };
        let shown = match what {
            ["nodes" | "node"] => json::answer("nodes", json::nodes(state, state.nodes.values(), self.now())),
            ["node", name] => {
                let Some(node) = state.nodes.get(*name) else {
                    return Output::failed("slurm_load_node error: ", Failure::Refused(Code::InvalidNodeName));
                };
                json::answer("nodes", json::nodes(state, std::iter::once(node), self.now()))
            }
            ["partitions"] => json::answer("partitions", json::partitions(state, conf)),
            ["reservations"] => json::answer("reservations", json::reservations(state)),
            ["config"] => json::configuration(conf, self.booted(to).unwrap_or_default(), self.now()),
            _ => {
                return Output {
                    code: 1,
                    ..Output::ok(String::new())
                };
            }
        };
        Output::ok(shown.to_string())
    }

    fn squeue(&self, to: ControllerId, states: &str) -> Output {
        match self.state(to) {
            Err(failure) => Output::failed("slurm_load_jobs error: ", failure),
            Ok(state) => {
                let wanted = |job: &&Job| {
                    let has = |name: &str| states.split(',').any(|wanted| wanted.eq_ignore_ascii_case(name));
                    states == "all" || job.state_names().into_iter().any(has)
                };
                let jobs = state.jobs.values().filter(wanted);
                Output::ok(json::answer("jobs", json::jobs(state, jobs, self.clock_behind)).to_string())
            }
        }
    }

    /// `JobIDRaw,State,ExitCode,Submit,Start,End`, in seconds since 1970.
    fn sacct(&self, jobs: &str) -> Output {
        if !self.slurmdbd.running {
            return Output {
                code: 1,
                stderr: "sacct: error: Problem talking to the database: Connection refused\n".to_owned(),
                ..Output::ok(String::new())
            };
        }
        let time = |time: Option<Duration>| time.map_or("Unknown".to_owned(), |time| json::unix(time).to_string());
        let wanted = |id: u32| jobs.split(',').any(|job| job.parse() == Ok(id));
        let lines = self
            .slurmdbd
            .records
            .iter()
            .filter(|record| wanted(record.id))
            .map(|record| {
                let (submitted, started, ended) = (Some(record.submitted), record.started, record.ended);
                let state = json::sacct_state(record.phase);
                let (id, code) = (record.id, record.exit_code);
                let (code, signal) = (code.max(0), (-code).max(0));
                format!(
                    "{id}|{state}|{code}:{signal}|{}|{}|{}\n",
                    time(submitted),
                    time(started),
                    time(ended)
                )
            });
        Output::ok(lines.collect())
    }

    fn change(&mut self, to: ControllerId, sender: &str, verb: &str, settings: &[&str]) -> Output {
        match parse_change(verb, settings) {
            Some((introduction, request)) => finish(&introduction, self.request(to, sender, request).map(drop)),
            None => Output {
                code: 1,
                ..Output::ok(String::new())
            },
        }
    }
}

/// Returns the request of `scontrol update`, `create` or `delete`, and how scontrol introduces an error.
pub(super) fn parse_change(verb: &str, settings: &[&str]) -> Option<(String, Request)> {
    let mut given: BTreeMap<String, String> = BTreeMap::new();
    for (key, value) in settings.iter().filter_map(|setting| setting.split_once('=')) {
        given.insert(key.to_ascii_lowercase(), value.to_owned());
    }
    let named = |key: &str| given.get(key).cloned();
    Some(if let Some(node) = named("nodename") {
        match verb {
            "delete" => (format!("delete_node NodeName={node}: "), Request::DeleteNode(node)),
            _ => (
                UPDATE.to_owned(),
                Request::UpdateNode {
                    node,
                    update: node_update(&given),
                },
            ),
        }
    } else if let Some(name) = named("partitionname") {
        let update = partition_update(settings);
        match verb {
            "delete" => (
                format!("delete_partition PartitionName={name}: "),
                Request::DeletePartition(name),
            ),
            "create" => (
                "Error creating the partition: ".to_owned(),
                Request::CreatePartition { name, update },
            ),
            _ => (UPDATE.to_owned(), Request::UpdatePartition { name, update }),
        }
    } else if let Some(name) = named("reservationname") {
        let update = reservation_update(&given);
        match verb {
            "delete" => (
                format!("delete_reservation ReservationName={name}: "),
                Request::DeleteReservation(name),
            ),
            "create" => (
                "Error creating the reservation: ".to_owned(),
                Request::CreateReservation(update),
            ),
            _ => (UPDATE.to_owned(), Request::UpdateReservation(update)),
        }
    } else if let Some(job) = named("jobid") {
        let hold = named("priority").map(|priority| priority == "0");
        let job = job.parse().unwrap_or(0);
        let admin_comment = named("admincomment");
        (
            UPDATE.to_owned(),
            Request::UpdateJob {
                job,
                hold,
                admin_comment,
            },
        )
    } else {
        return None;
    })
}

const UPDATE: &str = "slurm_update error: ";

fn finish(introduction: &str, done: Result<(), Failure>) -> Output {
    match done {
        Ok(()) => Output::ok(String::new()),
        Err(failure) => Output::failed(introduction, failure),
    }
}

fn node_update(given: &BTreeMap<String, String>) -> NodeUpdate {
    let text = |key: &str| given.get(key).cloned();
    let names = |key: &str| {
        let list = given.get(key)?.split(',').filter(|name| !name.is_empty());
        Some(list.map(str::to_owned).collect())
    };
    NodeUpdate {
        state: given.get("state").and_then(|name| NodeOrder::parse(name)),
        reason: text("reason"),
        comment: text("comment"),
        extra: text("extra"),
        features: names("availablefeatures"),
        active_features: names("activefeatures"),
        topology: text("topology"),
        address: text("nodeaddr"),
        resume_after: given.get("resumeafter").and_then(|seconds| seconds.parse().ok()),
    }
}

fn reservation_update(given: &BTreeMap<String, String>) -> ReservationUpdate {
    let text = |key: &str| given.get(key).cloned();
    let start = given
        .get("starttime")
        .and_then(|start| start.strip_prefix("uts")?.parse().ok());
    let flags = given.get("flags").into_iter().flat_map(|flags| flags.split(','));
    ReservationUpdate {
        name: text("reservationname").unwrap_or_default(),
        start: start.map(json::since_start),
        minutes: given.get("duration").and_then(|minutes| minutes.parse().ok()),
        nodes: text("nodes"),
        users: text("users"),
        flags: flags.map(str::to_ascii_uppercase).collect(),
    }
}

pub(super) fn partition_update(settings: &[&str]) -> PartitionUpdate {
    let mut update = PartitionUpdate::default();
    for (key, value) in settings.iter().filter_map(|setting| setting.split_once('=')) {
        match key.to_ascii_lowercase().as_str() {
            "partitionname" => {}
            "nodes" => update.nodes = Some(value.to_owned()),
            "state" => update.state = Some(value.to_ascii_uppercase()),
            _ => drop(update.settings.insert(json::setting_key(key), value.to_owned())),
        }
    }
    update
}
