//! What is to be done about a Token. Pure.

use std::time::{Duration, SystemTime};

use api::Validate as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use slurm::token::{Claims, SigningKey};

use super::observe::Observed;
use crate::{
    fault::{self, Fault},
    secret::entry,
};

/// The Secret that is named belongs to somebody else.
const SECRET_TAKEN: &str = "SecretTaken";
/// Nobody looks more often than this, however short a life is.
const SHORTEST: Duration = Duration::from_secs(1);

/// What is to be done, and what is wrong.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    pub(super) faults: Vec<Fault>,
    /// A token to be signed and kept.
    pub(super) issue: Option<Issue>,
    /// The UID of a Secret that goes first: upstream gave it to the key's Secret, and it would outlive its Token.
    pub(super) replace: Option<String>,
    /// What the token says that is kept, or will be.
    pub(super) claims: Option<Claims>,
    /// When to look again.
    pub(super) renew_after: Option<Duration>,
}

/// A token to be signed.
#[derive(Clone, Debug)]
pub(super) struct Issue {
    pub(super) key: SigningKey,
    pub(super) claims: Claims,
}

pub(super) fn plan(observed: &Observed, now: Timestamp) -> Plan {
    let token = observed.token.as_ref();
    if token.metadata.deletion_timestamp.is_some() {
        // Its Secret goes with it.
        return Plan::default();
    }
    let faults = Fault::of(&token.check());
    if !faults.is_empty() {
        return Plan {
            faults,
            ..Plan::default()
        };
    }
    let (key, ownership) = match (find_key(observed), find_owner(observed)) {
        (Ok(key), Ok(ownership)) => (key, ownership),
        (key, ownership) => {
            return Plan {
                faults: key.err().into_iter().chain(ownership.err()).collect(),
                ..Plan::default()
            };
        }
    };
    let kept = kept(observed, &key).filter(|_| ownership == Ownership::Ours);
    let seconds = u64::try_from(now.as_second()).unwrap_or_default();
    let (claims, issue) = match kept {
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
        faults: Vec::new(),
        issue,
        replace: match ownership {
            Ownership::Upstreams { uid } => Some(uid),
            Ownership::Ours => None,
        },
        renew_after: token.spec.refreshes().then(|| {
            let left = claims.renewal().saturating_sub(seconds);
            Duration::from_secs(left).max(SHORTEST)
        }),
        claims: Some(claims),
    }
}

fn find_key(observed: &Observed) -> Result<SigningKey, Fault> {
    // `check` has refused a Token without a reference.
    let reference = observed.token.spec.effective_jwt_key_ref().cloned().unwrap_or_default();
    let what = if observed.key.is_some() {
        "which is absent or empty there"
    } else {
        "which does not exist"
    };
    let missing = || {
        Fault::new(
            fault::SECRET_MISSING,
            format!(
                "spec.jwtKeyRef names entry {:?} of Secret {:?}, {what}; name the one that the cluster's Controller uses",
                reference.key, reference.name
            ),
        )
    };
    let bytes = entry(observed.key.as_deref(), &reference.key).ok_or_else(missing)?;
    SigningKey::new(bytes).map_err(|_| missing())
}

#[derive(Debug, PartialEq, Eq)]
enum Ownership {
    /// Made for this Token, or not there yet.
    Ours,
    /// Made for this Token by upstream's operator.
    Upstreams { uid: String },
}

/// Whose the Secret is that the token is to be kept in. What somebody else keeps there is not overwritten.
fn find_owner(observed: &Observed) -> Result<Ownership, Fault> {
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

fn taken(secret: &Secret) -> Fault {
    Fault::new(
        SECRET_TAKEN,
        format!(
            "Secret {:?} exists and was not made for this Token; delete it if it is not needed, or name another one in spec.secretRef.name",
            secret.name_any()
        ),
    )
}

/// What the kept token says, if it was signed with the key that is now in use.
fn kept(observed: &Observed, key: &SigningKey) -> Option<Claims> {
    let bytes = entry(observed.secret.as_deref(), observed.token.spec.secret_key())?;
    key.read(std::str::from_utf8(bytes).ok()?)
}

/// Whether the kept token is no longer what the spec asks for. One that is made once may end.
fn needs_renewal(observed: &Observed, claims: &Claims, now: u64) -> bool {
    let spec = &observed.token.spec;
    let lifetime = claims.lifetime().as_secs();
    let wanted = u64::try_from(spec.lifetime().as_secs()).unwrap_or_default();
    claims.user != spec.username() || (spec.refreshes() && (claims.is_stale(now) || lifetime != wanted))
}
