//! Carries a plan out.

use std::collections::BTreeSet;

use api::Accounting;
use kube::ResourceExt as _;

use super::plan::Plan;
use crate::runtime::{Applied, Context, Error, Writer};

pub(super) async fn apply(context: &Context, writer: &Writer, accounting: &Accounting, plan: &Plan) -> Applied {
    let Plan {
        faults: _,
        service,
        config,
        stateful_set,
        external,
    } = plan;
    let mut applied = Applied::default();
    if let Some(service) = service {
        applied.note(writer.apply(service).await);
    }
    // The pod that is started anew for it finds it there.
    let config_is_there = match config {
        Some(config) => applied.note(writer.apply(config).await),
        None => true,
    };
    if let Some(stateful_set) = stateful_set.as_ref().filter(|_| config_is_there) {
        applied.note(writer.apply(stateful_set).await);
    }
    if *external {
        applied.note(prune(context, writer, accounting).await);
    }
    applied
}

/// Takes away the daemon of an Accounting that has become somebody else's.
async fn prune(context: &Context, writer: &Writer, accounting: &Accounting) -> Result<(), Error> {
    let Some(uid) = accounting.uid() else { return Ok(()) };
    let none = BTreeSet::new();
    writer.prune(&context.caches.stateful_sets, &uid, &none).await?;
    writer.prune(&context.caches.services, &uid, &none).await?;
    Ok(())
}
