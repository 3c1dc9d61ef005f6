//! The client of slurmrestd against correct and faulty servers.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "clippy.toml allows them in tests, but does not see that the functions beside them are tests too"
)]

mod commands;
mod faults;
mod jobs_and_reservations;
mod observation;
mod partitions;
mod slurmrestd;
mod version;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use slurm::agent::{JobAction, JobCommand, NodeAction, NodeCommand, NodeName, Reason, ReservationCommand};
use slurm::rest::{Error, Process};
use slurm::transport::Error::{Malformed, Unreachable};
use slurm::{JobHandle, ReservationName, ReservationRequest, SingleLine};
use slurmrestd::{Act, Fake, Seen, client, ok};

fn answer(field: &str, value: &Value, release: &str) -> Act {
    ok(json!({ field: value, "meta": {"slurm": {"release": release}}, "errors": [], "warnings": [] }).to_string())
}

fn ping(release: &str) -> Act {
    answer(
        "pings",
        &json!([{"hostname": "ctl", "responding": true, "primary": true}]),
        release,
    )
}

fn error(status: u16, number: i64, text: &str) -> Act {
    Act::Answer(
        status,
        json!({"errors": [{"error_number": number, "error": text, "description": "", "source": ""}]}).to_string(),
    )
}

/// Answers pings as 26.05 does, and everything else as the test defines.
async fn after_ping(act: impl Fn(&Seen) -> Act + Send + Sync + 'static) -> Fake {
    Fake::start(move |seen| {
        if seen.line.ends_with("/ping/") {
            ping("26.05.5")
        } else {
            act(seen)
        }
    })
    .await
}

/// A slurmrestd of 25.11, which answers pings only.
async fn older() -> Fake {
    Fake::start(|seen| {
        if seen.line.contains("v0.0.45") {
            Act::Answer(404, "Unable to find requested URL".to_owned())
        } else {
            ping("25.11.3")
        }
    })
    .await
}

#[tokio::test]
async fn nodes_are_read_with_the_newest_version_and_a_token() {
    let fake = after_ping(|_| answer("nodes", &json!([{"name": "n1", "state": ["IDLE", "DRAIN"]}]), "26.05.5")).await;
    let client = fake.client();
    assert!(client.nodes().await.unwrap().value[0].state.is_drained());
    client.nodes().await.unwrap();
    let nodes = "GET /slurm/v0.0.45/nodes/";
    assert_eq!(fake.lines(), ["GET /slurm/v0.0.45/ping/", nodes, nodes]);
    assert!(
        fake.seen()
            .iter()
            .all(|seen| seen.token.starts_with("eyJ") && seen.token.split('.').count() == 3)
    );
}
