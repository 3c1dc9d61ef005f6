//! Creates Slurm's records of nodes that power saving starts and stops.

use slurm::NodeDescription;
use tracing::info;

use super::{ApplyResult, COMMANDS_AT_ONCE, Executor, StepError};
use crate::{
    cluster::{CommandError, NodeOrder},
    nodeset::plan::{Effect, Plan, RecordCreation},
    reason,
    runtime::Error,
};

/// Records created in one reconcile; more would exceed its time.
const BURST: usize = 200;

impl Executor<'_> {
    pub(super) async fn create_records(&self, plan: &Plan, applied: &mut ApplyResult) {
        let creations = plan.effects.iter().filter_map(|effect| match effect {
            Effect::CreateRecord(creation) => Some(creation),
            _ => None,
        });
        let mut creations: Vec<&RecordCreation> = creations.collect();
        creations.truncate(BURST);
        let Some((first, others)) = creations.split_first() else {
            return;
        };
        // A general refusal costs one order.
        let mut created = applied.run(vec![self.create_record(first)], 1).await;
        if created > 0 {
            let steps = others.iter().map(|creation| self.create_record(creation)).collect();
            created += applied.run(steps, COMMANDS_AT_ONCE).await;
            applied.ordered = true;
        }
        let is_new = creations.iter().any(|creation| creation.settings.is_some());
        if created > 0 && is_new {
            let message = format!("Created {created} node(s) in Slurm, which its power saving starts and stops");
            self.event(reason::NODES_CREATED, message);
        }
    }

    async fn create_record(&self, creation: &RecordCreation) -> Result<(), StepError> {
        let RecordCreation {
            node,
            settings,
            comment,
        } = creation;
        let create = settings.clone().map(|settings| NodeOrder::Create { settings });
        let describe = NodeOrder::Describe(NodeDescription {
            comment: Some(comment.clone()),
            ..NodeDescription::default()
        });
        for order in create.into_iter().chain([describe]) {
            info!(nodeset = %self.key, node, ?order, "sending node order");
            let sent = self.ctx.clusters.command(self.cluster, node, &order, None).await;
            sent.map_err(|error| {
                let message = Error::other(format!("cannot create node {node} in Slurm: {error}"));
                match error {
                    CommandError::Unclear(_) => StepError::Unclear(message),
                    _ => StepError::Failed(message),
                }
            })?;
        }
        Ok(())
    }
}
