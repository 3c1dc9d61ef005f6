//! People who drain nodes by hand.

use std::thread::{scope, sleep};
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use testbed::harness::{Namespace, eventually};

use super::slurm::{SOON, slurm};

/// How long before and after somebody else's order they do so.
pub const SPREAD: Duration = Duration::from_secs(6);

/// Drains all of them, one after the other from now until twice [`SPREAD`].
pub fn drain_by_hand(namespace: &Namespace, nodes: &[String]) -> Result<()> {
    let step = SPREAD * 2 / u32::try_from(nodes.len().max(2) - 1)?;
    scope(|scope| {
        let drained: Vec<_> = nodes
            .iter()
            .zip(0..)
            .map(|(node, number)| {
                scope.spawn(move || {
                    sleep(step * number);
                    let drain = format!("scontrol update nodename={node} state=drain reason=RMA");
                    // A worker that is being replaced is back in a moment.
                    eventually(&format!("{node} is drained by hand"), SOON, || slurm(namespace, &drain))
                })
            })
            .collect();
        for drained in drained {
            drained.join().map_err(|_| anyhow!("a drain by hand panicked"))??;
        }
        Ok(())
    })
}

/// All of them are drained, with the words that people gave.
pub fn expect_drained_by_hand(namespace: &Namespace, nodes: &[String]) -> Result<()> {
    for node in nodes {
        let shown = slurm(namespace, &format!("scontrol show node {node} --oneliner"))?;
        if !shown.contains("DRAIN") || !shown.contains("Reason=RMA ") {
            bail!("{node} is no longer drained by hand: {shown}");
        }
    }
    Ok(())
}

pub fn resume_by_hand(namespace: &Namespace, nodes: &[String]) -> Result<()> {
    let resume = format!("scontrol update nodename={} state=resume", nodes.join(","));
    slurm(namespace, &resume).map(drop)
}
