//! Manual drains of nodes.

use std::thread::{scope, sleep};
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use testbed::harness::{Namespace, eventually};

use super::slurm::{SOON, slurm};

/// Time before and after another order in which the drains happen.
pub const SPREAD: Duration = Duration::from_secs(6);

/// Drains all nodes one after the other, over twice [`SPREAD`].
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
                    // A worker that is being replaced returns in a moment.
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

/// Expects that all nodes are drained with the manual reason.
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
