//! Carries a plan out.

use api::Token;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;

use super::{
    build::build_secret,
    plan::{Issue, Plan},
};
use crate::runtime::{Applied, Error, Writer};

pub(super) async fn apply(writer: &Writer, token: &Token, plan: &Plan) -> Applied {
    let mut applied = Applied::default();
    if let Some(uid) = &plan.replace {
        let namespace = token.namespace().unwrap_or_default();
        let deleted = writer.delete::<Secret>(&namespace, &token.secret_name(), uid).await;
        // Its disappearance wakes us, and then there is room.
        applied.note(deleted);
        return applied;
    }
    if let Some(issue) = &plan.issue {
        applied.note(write(writer, token, issue).await);
    }
    applied
}

async fn write(writer: &Writer, token: &Token, issue: &Issue) -> Result<(), Error> {
    let mut claims = issue.claims.clone();
    claims.id = Some(format!("{:032x}", fastrand::u128(..)));
    let signed = issue.key.sign(&claims).map_err(Error::other)?;
    writer.apply(&build_secret(token, signed.secret())).await.map(drop)
}
