//! Carries a plan out.

use super::{plan::Plan, status::Failure};
use crate::runtime::{Error, Writer};

/// What became of a plan.
#[derive(Debug, Default)]
pub(super) struct Applied {
    failures: Vec<Error>,
}

impl Applied {
    /// For the status.
    pub(super) fn failure(&self) -> Option<Failure> {
        let error = self.failures.first()?;
        Some(Failure {
            message: error.to_string(),
            refused: matches!(
                error,
                Error::Immutable { .. } | Error::Taken { .. } | Error::Refused { .. }
            ),
        })
    }

    /// The first failure, to be tried again.
    pub(super) fn into_result(self) -> Result<(), Error> {
        self.failures.into_iter().next().map_or(Ok(()), Err)
    }
}

pub(super) async fn apply(writer: &Writer, plan: &Plan) -> Applied {
    let Plan {
        faults: _,
        service,
        deployment,
    } = plan;
    let mut applied = Applied::default();
    if let Some(service) = service
        && let Err(error) = writer.apply(service).await
    {
        applied.failures.push(error);
    }
    if let Some(deployment) = deployment
        && let Err(error) = writer.apply(deployment).await
    {
        applied.failures.push(error);
    }
    applied
}
