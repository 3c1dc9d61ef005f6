//! Token: a JSON web token for a Slurm user, kept fresh in a Secret.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use api::{Condition, Controller, Token, TokenStatus, references::SecretKeyRef};
use host::Host;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::ResourceExt as _;
use slurm::token::{Claims, SigningKey};

use crate::{
    defaults::TokenPolicy,
    finding::{Blocks, Finding},
    kind::{Kind, KindReconciler, Progress, Report},
    reason,
    references::{References, select},
    runtime::{Applied, Caches, Context, Error, Writer},
    secret::{entry, missing},
    template::metadata::{Marks, owner},
    unix_time::timestamp,
};

/// The shortest interval between two reconciles, however short the lifetime is.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) type TokenReconciler = KindReconciler<Token>;

/// Everything that a plan is made from.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    token: Arc<Token>,
    /// The Secret with the key.
    key: Option<Arc<Secret>>,
    /// The Secret that holds the token.
    secret: Option<Arc<Secret>>,
    /// The key is that of a Controller in the Token's namespace.
    is_key_of_controller: bool,
    policy: TokenPolicy,
    now: Timestamp,
}

impl Observed {
    /// The lifetime of a new token.
    fn lifetime(&self) -> SignedDuration {
        self.token.spec.lifetime().min(self.policy.max_lifetime)
    }

    /// Whether the lifetime in the spec is above the operator's limit.
    fn is_capped(&self) -> bool {
        self.token.spec.lifetime() > self.policy.max_lifetime
    }

    /// Whether the token is renewed. With a shorter lifetime than its owner wanted, it would expire too early.
    fn refreshes(&self) -> bool {
        self.token.spec.refreshes() || self.is_capped()
    }
}

/// The token to issue.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    /// Signs the token to store, if there is one to issue.
    issue: Option<SigningKey>,
    /// The UID of a Secret to delete first: upstream made the key's Secret its owner, so it would outlive its Token.
    replace: Option<String>,
    /// The claims of the stored token, or of the one to issue.
    claims: Option<Claims>,
    /// When to renew the token.
    renew_after: Option<Duration>,
}

impl Kind for Token {
    const NAME: &'static str = "token";
    type Observed = Observed;
    type Plan = Plan;
    type Status = TokenStatus;

    fn references() -> References<Self> {
        References::new()
            .names::<Secret>(|token: &Self, _| {
                let key = token.spec.effective_jwt_key_ref().map(|key| key.name.clone());
                key.into_iter().chain([token.secret_name()]).collect()
            })
            // The key of a Token is that of a Controller.
            .on::<Controller>(|delta, caches| {
                let namespace = delta.key().map(|key| key.namespace).unwrap_or_default();
                select(caches, &namespace, |_: &Self| true)
            })
    }

    async fn observe(token: Arc<Self>, context: &Context) -> Observed {
        let policy = context.defaults.tokens.clone();
        observe(token, &context.caches, policy, context.clock.now())
    }

    fn object(observed: &Observed) -> &Arc<Self> {
        &observed.token
    }

    fn plan(observed: &Observed, findings: &mut Vec<Finding>) -> Plan {
        let (token, now) = (observed.token.as_ref(), observed.now);
        if let Some(finding) = check_user(observed) {
            findings.push(finding);
            return Plan::default();
        }
        let (key, replace) = match (find_key(observed), find_replaced(observed)) {
            (Ok(key), Ok(replace)) => (key, replace),
            (key, replace) => {
                findings.extend(key.err().into_iter().chain(replace.err()));
                return Plan::default();
            }
        };
        let stored = stored(observed, &key).filter(|_| replace.is_none());
        let seconds = u64::try_from(now.as_second()).unwrap_or_default();
        let (claims, issue) = match stored {
            Some(claims) if !needs_renewal(observed, &claims, seconds) => (claims, None),
            _ => {
                let lifetime = Duration::try_from(observed.lifetime()).unwrap_or_default();
                let mut claims = Claims::new(token.spec.username(), SystemTime::from(now), lifetime);
                claims.not_before = Some(claims.issued_at);
                claims.issuer = Some("slurm-operator".to_owned());
                (claims, Some(key))
            }
        };
        Plan {
            issue,
            replace,
            renew_after: observed.refreshes().then(|| {
                let left = claims.renewal().saturating_sub(seconds);
                Duration::from_secs(left).max(MIN_INTERVAL)
            }),
            claims: Some(claims),
        }
    }

    async fn apply(context: &Context, writer: &Writer, observed: &Observed, plan: &Plan) -> Applied {
        let token = observed.token.as_ref();
        let mut applied = Applied::default();
        if let Some(uid) = &plan.replace {
            let namespace = token.namespace().unwrap_or_default();
            let deleted = writer.delete::<Secret>(&namespace, &token.secret_name(), uid).await;
            // The deletion wakes this Token, which is then issued.
            applied.note(deleted);
        } else if let (Some(key), Some(claims)) = (&plan.issue, plan.claims.clone()) {
            applied.note(issue(context.clock.host(), writer, token, key, claims).await);
        }
        applied
    }

    fn progress(observed: &Observed, plan: &Plan) -> Progress {
        let until = plan.claims.as_ref().and_then(|claims| timestamp(claims.expires_at));
        Progress {
            ready: plan.claims.is_some() && plan.replace.is_none(),
            message: match until {
                Some(until) if plan.renew_after.is_some() => {
                    format!("the token is valid until {until} and is renewed before")
                }
                Some(until) => format!("the token is valid until {until} and is not renewed: spec.refresh is false"),
                None => "the token is being issued".to_owned(),
            },
            trouble: observed.is_capped().then(|| {
                let (wanted, limit) = (observed.token.spec.lifetime(), observed.policy.max_lifetime);
                Finding::new(
                    Blocks::Nothing,
                    reason::LIFETIME_CAPPED,
                    format!(
                        "spec.lifetime is {wanted:#}, and this operator issues tokens for {limit:#} at most (--max-token-lifetime), which it \
                         renews; programs have to read the Secret again; set a shorter lifetime"
                    ),
                )
            }),
        }
    }

    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |status| &status.conditions)
    }

    fn status(observed: &Observed, plan: &Plan, report: Report) -> TokenStatus {
        let before = observed.token.status.as_ref();
        let claims = plan.claims.as_ref().filter(|_| !report.has_failed);
        let issued_at = claims.and_then(|claims| timestamp(claims.issued_at));
        TokenStatus {
            issued_at: issued_at
                .map(Into::into)
                .or_else(|| before.and_then(|before| before.issued_at.clone())),
            conditions: report.conditions,
            observed_generation: report.observed_generation,
        }
    }

    fn requeue(_: &Observed, plan: &Plan) -> Option<Duration> {
        plan.renew_after
    }
}

/// Reads what concerns this Token from the caches.
fn observe(token: Arc<Token>, caches: &Caches, policy: TokenPolicy, now: Timestamp) -> Observed {
    let namespace = token.namespace().unwrap_or_default();
    let key = token.spec.effective_jwt_key_ref();
    let controllers = caches.controllers.list(&namespace);
    let is_key = |of: SecretKeyRef| key.is_some_and(|key| key.name == of.name && key.key == of.key);
    Observed {
        is_key_of_controller: controllers
            .iter()
            .any(|controller| controller.jwt_key().is_some_and(is_key)),
        policy,
        key: key.and_then(|key| caches.secrets.get(&namespace, &key.name)),
        secret: caches.secrets.get(&namespace, &token.secret_name()),
        token,
        now,
    }
}

/// Whoever holds a token of a user with privileges can change everything in Slurm and run jobs as any user.
fn check_user(observed: &Observed) -> Option<Finding> {
    let user = observed.token.spec.username();
    (!observed.policy.allows(user)).then(|| {
        Finding::blocking(
            reason::USER_NOT_ALLOWED,
            format!(
                "spec.username is {user:?}, a user with all rights in Slurm or a number, and this operator issues no tokens for it; name \
                 another user, or start the operator with --privileged-token-users={user}"
            ),
        )
    })
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
    // Otherwise the operator would sign with any entry of any Secret in the namespace.
    if !observed.is_key_of_controller {
        let SecretKeyRef { name, key, .. } = &reference;
        return Err(Finding::blocking(
            reason::CONTROLLER_MISSING,
            format!(
                "spec.jwtKeyRef names entry {key:?} of Secret {name:?}, which is not the JWT key of a Controller in this namespace; name the \
                 one that the cluster's Controller uses, or create the Controller"
            ),
        ));
    }
    SigningKey::new(bytes).map_err(|_| missing())
}

/// The UID of the Secret that has to hold the token, if upstream's operator created it for this Token. A foreign Secret is not
/// overwritten.
fn find_replaced(observed: &Observed) -> Result<Option<String>, Finding> {
    let Some(secret) = observed.secret.as_deref() else {
        return Ok(None);
    };
    let owners = secret.metadata.owner_references.iter().flatten();
    let controller = owners.into_iter().find(|owner| owner.controller == Some(true));
    let key = observed.key.as_deref().and_then(|key| key.metadata.uid.as_ref());
    match controller {
        Some(owner) if observed.token.metadata.uid.as_ref() == Some(&owner.uid) => Ok(None),
        Some(owner) if owner.kind == "Secret" && Some(&owner.uid) == key => Ok(Some(secret.uid().unwrap_or_default())),
        _ => Err(Finding::blocking(
            reason::NAME_TAKEN,
            format!(
                "Secret {:?} exists and was not created for this Token; delete it if it is not needed, or name another one in spec.secretRef.name",
                secret.name_any()
            ),
        )),
    }
}

/// The claims of the stored token, if it was signed with the current key.
fn stored(observed: &Observed, key: &SigningKey) -> Option<Claims> {
    let bytes = entry(observed.secret.as_deref(), observed.token.spec.secret_key())?;
    key.read(std::str::from_utf8(bytes).ok()?)
}

/// Whether the stored token does not match the spec or has to be renewed. Without `spec.refresh` it may expire.
fn needs_renewal(observed: &Observed, claims: &Claims, now: u64) -> bool {
    let lifetime = claims.lifetime().as_secs();
    let wanted = u64::try_from(observed.lifetime().as_secs()).unwrap_or_default();
    let is_other = claims.user != observed.token.spec.username();
    is_other || (observed.refreshes() && (claims.is_stale(now) || lifetime != wanted))
}

/// Signs a token and stores it.
async fn issue(host: &Host, writer: &Writer, token: &Token, key: &SigningKey, mut claims: Claims) -> Result<(), Error> {
    let random = host.random();
    claims.id = Some(format!("{:016x}{:016x}", random.u64(), random.u64()));
    let signed = key.sign(&claims).map_err(Error::other)?;
    writer.apply(&build_secret(token, signed.secret())).await.map(drop)
}

fn build_secret(token: &Token, text: &str) -> Secret {
    let entry = (token.spec.secret_key().to_owned(), ByteString(text.as_bytes().to_vec()));
    Secret {
        metadata: Marks::of_for_pods(&token.metadata).into_meta(
            &token.namespace().unwrap_or_default(),
            token.secret_name(),
            owner(token),
        ),
        type_: Some("Opaque".to_owned()),
        data: Some(BTreeMap::from([entry])),
        ..Secret::default()
    }
}
