//! Applies the plan of an Accounting.

use std::collections::BTreeSet;

use api::Accounting;
use kube::ResourceExt as _;

use super::plan::Plan;
use crate::runtime::{Applied, Context, Error, Writer};

pub(super) async fn apply(context: &Context, writer: &Writer, accounting: &Accounting, plan: &Plan) -> Applied {
    let Plan {
        service,
        config,
        stateful_set,
        external,
    } = plan;
    let mut applied = Applied::default();
    applied.apply(writer, service.as_ref()).await;
    // The pod reads the configuration when it starts, so the configuration is applied first.
    let is_configured = applied.apply(writer, config.as_ref()).await;
    applied
        .apply(writer, stateful_set.as_ref().filter(|_| is_configured))
        .await;
    if *external {
        applied.note(prune(context, writer, accounting).await);
    }
    applied
}

/// Deletes the daemon of an Accounting that has become external.
async fn prune(context: &Context, writer: &Writer, accounting: &Accounting) -> Result<(), Error> {
    let Some(uid) = accounting.uid() else { return Ok(()) };
    let none = BTreeSet::new();
    writer.prune(&context.caches.stateful_sets, &uid, &none).await?;
    writer.prune(&context.caches.services, &uid, &none).await?;
    Ok(())
}
