//! Applies the plan of a Token.

use api::Token;
use host::Host;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;

use super::{
    build::build_secret,
    plan::{Issue, Plan},
};
use crate::runtime::{Applied, Context, Error, Writer};

pub(super) async fn apply(context: &Context, writer: &Writer, token: &Token, plan: &Plan) -> Applied {
    let mut applied = Applied::default();
    if let Some(uid) = &plan.replace {
        let namespace = token.namespace().unwrap_or_default();
        let deleted = writer.delete::<Secret>(&namespace, &token.secret_name(), uid).await;
        // The deletion wakes this Token, which is then issued.
        applied.note(deleted);
        return applied;
    }
    if let Some(issue) = &plan.issue {
        applied.note(write(context.clock.host(), writer, token, issue).await);
    }
    applied
}

async fn write(host: &Host, writer: &Writer, token: &Token, issue: &Issue) -> Result<(), Error> {
    let mut claims = issue.claims.clone();
    let random = host.random();
    claims.id = Some(format!("{:016x}{:016x}", random.u64(), random.u64()));
    let signed = issue.key.sign(&claims).map_err(Error::other)?;
    writer.apply(&build_secret(token, signed.secret())).await.map(drop)
}
