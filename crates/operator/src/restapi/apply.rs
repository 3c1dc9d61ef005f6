//! Carries a plan out.

use super::plan::Plan;
use crate::runtime::{Applied, Writer};

pub(super) async fn apply(writer: &Writer, plan: &Plan) -> Applied {
    let Plan {
        faults: _,
        service,
        deployment,
    } = plan;
    let mut applied = Applied::default();
    if let Some(service) = service {
        applied.note(writer.apply(service).await);
    }
    if let Some(deployment) = deployment {
        applied.note(writer.apply(deployment).await);
    }
    applied
}
