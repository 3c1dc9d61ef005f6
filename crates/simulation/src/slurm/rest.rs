//! slurmrestd's API (v0.0.45), as far as the operator uses it.

use std::time::Duration;

use serde_json::{Value, json};

use super::engine::Slurm;
use super::ids::ControllerId;
use super::json;
use super::request::{Code, Failure, NodeOrder, NodeUpdate, Request};
use super::settings::MESSAGE_TIMEOUT;

/// A response of slurmrestd.
#[derive(Debug, Clone, PartialEq)]
pub struct RestAnswer {
    pub status: u16,
    pub body: Value,
    /// How long slurmrestd waits for slurmctld before it responds.
    pub takes: Duration,
}

const UNABLE_TO_CONTACT: u32 = 1800;
const TIMED_OUT: u32 = 5004;

impl RestAnswer {
    fn ok(body: Value) -> Self {
        Self {
            status: 200,
            body,
            takes: Duration::ZERO,
        }
    }

    fn of_failure(failure: Failure) -> Self {
        let answer = |status, number, text, takes| Self {
            status,
            body: json::complaint(number, text, "Failure to query"),
            takes,
        };
        match failure {
            Failure::Unreachable => {
                let text = "Unable to contact slurm controller (connect failure)";
                answer(500, UNABLE_TO_CONTACT, text, MESSAGE_TIMEOUT)
            }
            Failure::NoAnswer => {
                let text = "Socket timed out on send/recv operation";
                answer(500, TIMED_OUT, text, MESSAGE_TIMEOUT)
            }
            Failure::Refused(code) => answer(422, code.number(), code.text(), Duration::ZERO),
        }
    }
}

impl Slurm {
    /// Answers a request whose path is the part behind `/slurm/v0.0.45/` or `/slurmdb/v0.0.45/`. Its token was accepted.
    pub fn rest(&mut self, to: ControllerId, sender: &str, method: &str, path: &str, body: &Value) -> RestAnswer {
        let answer = self.rest_or_failure(to, sender, method, path, body);
        answer.unwrap_or_else(RestAnswer::of_failure)
    }

    fn rest_or_failure(
        &mut self,
        to: ControllerId,
        sender: &str,
        method: &str,
        path: &str,
        body: &Value,
    ) -> Result<RestAnswer, Failure> {
        let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
        let content = match (method, segments.as_slice()) {
            ("GET", ["ping"]) => {
                let responding = self.state(to).is_ok();
                let ping = json!([{ "hostname": "slurmctld", "responding": responding, "primary": true }]);
                json::answer("pings", ping)
            }
            ("GET", ["conf"]) => {
                let conf = self.conf(to)?;
                json::configuration(conf, self.booted(to).unwrap_or_default(), self.now())
            }
            ("GET", ["nodes"]) => {
                let state = self.state(to)?;
                json::answer("nodes", json::nodes(state, state.nodes.values(), self.now()))
            }
            ("GET", ["node", name]) => {
                let state = self.state(to)?;
                match state.nodes.get(*name) {
                    Some(node) => json::answer("nodes", json::nodes(state, std::iter::once(node), self.now())),
                    // Measured on 26.05.5: error 0 with HTTP 200.
                    None => json::complaint(0, "No error", "Failure to query node"),
                }
            }
            ("GET", ["jobs"]) => json::answer(
                "jobs",
                json::jobs(self.state(to)?, self.state(to)?.jobs.values(), self.clock_behind),
            ),
            ("GET", ["partitions"]) => json::answer("partitions", json::partitions(self.state(to)?, self.conf(to)?)),
            ("GET", ["reservations"]) => json::answer("reservations", json::reservations(self.state(to)?)),
            ("POST", ["reservation"]) => {
                let update = json::reservation_update(body);
                let exists = self.state(to)?.reservations.contains_key(&update.name);
                let request = if exists {
                    Request::UpdateReservation
                } else {
                    Request::CreateReservation
                };
                self.request(to, sender, request(update))?;
                json::answer("reservations", json!([]))
            }
            ("DELETE", ["reservation", name]) => {
                self.request(to, sender, Request::DeleteReservation((*name).to_owned()))?;
                json::answer("reservations", json!([]))
            }
            ("GET", ["qos"]) => json::answer("qos", json!([{ "name": "normal" }])),
            ("GET", ["job", id, "requeue"]) => {
                let done = self.request(to, sender, Request::Requeue(id.parse().unwrap_or(0)));
                let (code, text) = refusal(done.map(drop))?;
                json::answer("status", json!([{ "error_code": code, "error": text }]))
            }
            ("DELETE", ["job", id]) => {
                let done = self.request(to, sender, Request::Cancel(id.parse().unwrap_or(0)));
                let (code, text) = refusal(done.map(drop))?;
                json::answer("status", json!([{ "error": { "code": code, "string": text } }]))
            }
            ("POST", ["node", name]) => {
                let update = node_update(body);
                let node = (*name).to_owned();
                self.request(to, sender, Request::UpdateNode { node, update })?;
                json::answer("nodes", json!([]))
            }
            ("DELETE", ["node", name]) => {
                self.request(to, sender, Request::DeleteNode((*name).to_owned()))?;
                json::answer("nodes", json!([]))
            }
            ("POST", ["partitions"]) => {
                // Not atomic: those before an error stay.
                for item in body["partitions"].as_array().into_iter().flatten() {
                    self.write_partition(to, sender, item)?;
                }
                json::answer("partitions", json!([]))
            }
            ("DELETE", ["partition", name]) => {
                self.request(to, sender, Request::DeletePartition((*name).to_owned()))?;
                json::answer("partitions", json!([]))
            }
            _ => {
                let body = json::complaint(0, "Not found", "no such path");
                return Ok(RestAnswer {
                    status: 404,
                    ..RestAnswer::ok(body)
                });
            }
        };
        Ok(RestAnswer::ok(content))
    }

    fn write_partition(&mut self, to: ControllerId, sender: &str, item: &Value) -> Result<(), Failure> {
        let (name, update) = json::partition_update(item);
        let exists = self.state(to)?.partitions.contains_key(&name);
        let request = if exists {
            Request::UpdatePartition { name, update }
        } else {
            Request::CreatePartition { name, update }
        };
        self.request(to, sender, request).map(drop)
    }
}

/// Errors of jobs come with HTTP 200.
fn refusal(done: Result<(), Failure>) -> Result<(u32, &'static str), Failure> {
    match done {
        Ok(()) => Ok((0, "")),
        Err(Failure::Refused(code)) => Ok((Code::number(code), code.text())),
        Err(other) => Err(other),
    }
}

fn node_update(body: &Value) -> NodeUpdate {
    let text = |key: &str| body.get(key).and_then(Value::as_str).map(str::to_owned);
    // One empty name means none, an empty list "unchanged".
    let names = |key: &str| {
        let names = body.get(key)?.as_array().filter(|names| !names.is_empty())?;
        let names = names.iter().filter_map(Value::as_str).filter(|name| !name.is_empty());
        Some(names.map(str::to_owned).collect())
    };
    let first = |key: &str| {
        body.pointer(&format!("/{key}/0"))
            .and_then(Value::as_str)
            .map(str::to_owned)
    };
    NodeUpdate {
        state: first("state").and_then(|name| NodeOrder::parse(&name)),
        reason: text("reason"),
        comment: text("comment"),
        extra: text("extra"),
        features: names("features"),
        active_features: names("features_act"),
        topology: text("topology_str"),
        address: first("address"),
        resume_after: body.pointer("/resume_after/number").and_then(Value::as_u64),
    }
}
