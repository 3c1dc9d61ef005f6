//! Measures slurmctld in its own protocol from the cluster's network, without the start time of a program: when a
//! partition changes (`watch`), and how long a change takes (`update`).
//!
//! The key of auth/jwt is in `JWT_KEY`, encoded as in a Secret.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use slurm::rpc::{Client, Options, PartitionUpdate};
use slurm::token::{Issuer, SigningKey};

/// Poll interval.
const PAUSE: Duration = Duration::from_millis(1);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, address, partition] = arguments.as_slice() else {
        bail!("watch|update ADDRESS PARTITION")
    };
    let key = STANDARD.decode(std::env::var("JWT_KEY").context("no JWT_KEY")?)?;
    let issuer = Issuer::new(SigningKey::new(&key)?, "slurm", Duration::from_mins(10));
    let client = Client::new(host::Host::real(), address, issuer, Options::default());
    match what.as_str() {
        "watch" => watch(&client, partition).await,
        "update" => update(&client, partition).await,
        other => bail!("nothing is called {other:?}"),
    }
}

/// Prints the time and `MaxTime nodes` whenever they change.
async fn watch(client: &Client, name: &str) -> Result<()> {
    let mut last = String::new();
    loop {
        let partitions = client.partitions().await.unwrap_or_default();
        let found = partitions.iter().find(|partition| partition.name == name);
        let now = found.map(|partition| format!("{} {}", partition.max_time, partition.node_sets));
        if let Some(now) = now.filter(|now| *now != last) {
            let at = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
            println!("{at:.6} {now}");
            last = now;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Changes the partition a hundred times and prints the duration of each change in seconds.
async fn update(client: &Client, name: &str) -> Result<()> {
    for minutes in 1..=100 {
        let mut update = PartitionUpdate::new(name);
        update.max_time = Some(minutes);
        let begun = Instant::now();
        client.update_partition(&update).await?;
        println!("{:.6}", begun.elapsed().as_secs_f64());
    }
    Ok(())
}
