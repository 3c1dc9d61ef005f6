//! Decides what to do about a Token. Pure.

use std::time::{Duration, SystemTime};

use api::references::SecretKeyRef;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use slurm::token::{Claims, SigningKey};

use super::observe::Observed;
use crate::{
    finding::Finding,
    reason,
    secret::{entry, missing},
};

/// The shortest interval between two reconciles, however short the lifetime is.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// The token to issue.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    /// A token to sign and to store.
    pub(super) issue: Option<Issue>,
    /// The UID of a Secret to delete first: upstream made the key's Secret its owner, so it would outlive its Token.
    pub(super) replace: Option<String>,
    /// The claims of the stored token, or of the one to issue.
    pub(super) claims: Option<Claims>,
    /// When to renew the token.
    pub(super) renew_after: Option<Duration>,
}

/// A token to sign.
#[derive(Clone, Debug)]
pub(super) struct Issue {
    pub(super) key: SigningKey,
    pub(super) claims: Claims,
}

pub(super) fn plan(observed: &Observed, findings: &mut Vec<Finding>) -> Plan {
    let (token, now) = (observed.token.as_ref(), observed.now);
    let (key, ownership) = match (find_key(observed), find_owner(observed)) {
        (Ok(key), Ok(ownership)) => (key, ownership),
        (key, ownership) => {
            findings.extend(key.err().into_iter().chain(ownership.err()));
            return Plan::default();
        }
    };
    let stored = stored(observed, &key).filter(|_| ownership == Ownership::Ours);
    let seconds = u64::try_from(now.as_second()).unwrap_or_default();
    let (claims, issue) = match stored {
        Some(claims) if !needs_renewal(observed, &claims, seconds) => (claims, None),
        _ => {
            let lifetime = Duration::try_from(token.spec.lifetime()).unwrap_or_default();
            let mut claims = Claims::new(token.spec.username(), SystemTime::from(now), lifetime);
            claims.not_before = Some(claims.issued_at);
            claims.issuer = Some("slurm-operator".to_owned());
            (claims.clone(), Some(Issue { key, claims }))
        }
    };
    Plan {
        issue,
        replace: match ownership {
            Ownership::Upstreams { uid } => Some(uid),
            Ownership::Ours => None,
        },
        renew_after: token.spec.refreshes().then(|| {
            let left = claims.renewal().saturating_sub(seconds);
            Duration::from_secs(left).max(MIN_INTERVAL)
        }),
        claims: Some(claims),
    }
}

fn find_key(observed: &Observed) -> Result<SigningKey, Finding> {
    // A Token without a reference is invalid and has no plan.
    let reference = observed.token.spec.effective_jwt_key_ref().cloned().unwrap_or_default();
    let reference = SecretKeyRef {
        name: reference.name,
        key: reference.key,
        ..SecretKeyRef::default()
    };
    let missing = || {
        let remedy = "name the one that the cluster's Controller uses";
        missing("spec.jwtKeyRef names", &reference, observed.key.as_deref(), remedy)
    };
    let bytes = entry(observed.key.as_deref(), &reference.key).ok_or_else(missing)?;
    SigningKey::new(bytes).map_err(|_| missing())
}

#[derive(Debug, PartialEq, Eq)]
enum Ownership {
    /// It was created for this Token, or does not exist yet.
    Ours,
    /// The upstream operator created it for this Token.
    Upstreams { uid: String },
}

/// The owner of the Secret that has to hold the token. A foreign Secret is not overwritten.
fn find_owner(observed: &Observed) -> Result<Ownership, Finding> {
    let token = observed.token.as_ref();
    let Some(secret) = observed.secret.as_deref() else {
        return Ok(Ownership::Ours);
    };
    let owners = secret.metadata.owner_references.iter().flatten();
    let controller = owners.into_iter().find(|owner| owner.controller == Some(true));
    let key = observed.key.as_deref().and_then(|key| key.metadata.uid.as_ref());
    match controller {
        Some(owner) if token.metadata.uid.as_ref() == Some(&owner.uid) => Ok(Ownership::Ours),
        Some(owner) if owner.kind == "Secret" && Some(&owner.uid) == key => Ok(Ownership::Upstreams {
            uid: secret.uid().unwrap_or_default(),
        }),
        _ => Err(taken(secret)),
    }
}

fn taken(secret: &Secret) -> Finding {
    Finding::blocking(
        reason::NAME_TAKEN,
        format!(
            "Secret {:?} exists and was not created for this Token; delete it if it is not needed, or name another one in spec.secretRef.name",
            secret.name_any()
        ),
    )
}

/// The claims of the stored token, if it was signed with the current key.
fn stored(observed: &Observed, key: &SigningKey) -> Option<Claims> {
    let bytes = entry(observed.secret.as_deref(), observed.token.spec.secret_key())?;
    key.read(std::str::from_utf8(bytes).ok()?)
}

/// Whether the stored token does not match the spec or has to be renewed. Without `spec.refresh` it may expire.
fn needs_renewal(observed: &Observed, claims: &Claims, now: u64) -> bool {
    let spec = &observed.token.spec;
    let lifetime = claims.lifetime().as_secs();
    let wanted = u64::try_from(spec.lifetime().as_secs()).unwrap_or_default();
    claims.user != spec.username() || (spec.refreshes() && (claims.is_stale(now) || lifetime != wanted))
}
