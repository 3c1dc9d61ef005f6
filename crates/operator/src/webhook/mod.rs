//! The rules of the admission webhook: those of `api`, and those that need other objects or the checker of Slurm's files.
//!
//! The webhook reports problems earlier than the operator, which checks every rule again before it acts on an object. A
//! request that cannot be judged because something could not be read is therefore accepted with a warning.

mod binding;
mod preview;
mod reads;
#[cfg(test)]
mod tests;

use api::{Accounting, Controller, LoginSet, NodeSet, Partition, RestApi, Token, Validate};
use kube::Client;
use runtime::admission::{Request, Rules, Verdict};
use serde::de::DeserializeOwned;
use serde_json::Value;

use self::{preview::Previewed, reads::Reads};

/// All rules.
#[derive(Clone)]
pub(crate) struct Admission {
    reads: Reads,
}

impl Rules for Admission {
    async fn review(&self, path: &str, request: &Request) -> Option<Verdict> {
        Some(match path {
            "validate-slinky-slurm-net-v1beta1-accounting" => judge::<Accounting>(request),
            "validate-slinky-slurm-net-v1beta1-loginset" => judge::<LoginSet>(request),
            "validate-slinky-slurm-net-v1beta1-restapi" => judge::<RestApi>(request),
            "validate-slinky-slurm-net-v1beta1-token" => judge::<Token>(request),
            "validate-slinky-slurm-net-v1beta1-controller" => self.judge_with_others::<Controller>(request).await,
            "validate-slinky-slurm-net-v1beta1-nodeset" => self.judge_with_others::<NodeSet>(request).await,
            "validate-slinky-slurm-net-v1alpha1-partition" => self.judge_with_others::<Partition>(request).await,
            "mutate--v1-binding" => binding::copy_topology(&self.reads.client, request).await,
            _ => return None,
        })
    }
}

impl Admission {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            reads: Reads::new(client),
        }
    }

    /// Judges an object by itself, and then by the files that slurmctld would get.
    async fn judge_with_others<K: Validate + Previewed>(&self, request: &Request) -> Verdict {
        let change = match Change::<K>::of(request) {
            Ok(change) => change,
            Err(verdict) => return verdict,
        };
        let mut verdict = change.judge();
        if verdict.errors.is_empty() {
            let found = preview::preview(&self.reads, &request.namespace, &change).await;
            verdict.errors.extend(found.errors);
            verdict.warnings.extend(found.warnings);
        }
        verdict
    }
}

/// Judges an object by itself.
fn judge<K: Validate + DeserializeOwned>(request: &Request) -> Verdict {
    Change::<K>::of(request).map_or_else(|verdict| verdict, |change| change.judge())
}

/// A new object, or a change of one.
struct Change<K> {
    old: Option<K>,
    new: K,
}

impl<K: Validate + DeserializeOwned> Change<K> {
    /// The change of a request, or the verdict if there is nothing to judge.
    fn of(request: &Request) -> Result<Self, Verdict> {
        let is_deleted = request.object.pointer("/metadata/deletionTimestamp").is_some();
        let spec = |object: &Value| object.get("spec").cloned();
        let is_same = request.is_update() && spec(&request.object) == spec(&request.old_object);
        if is_deleted || is_same {
            return Err(Verdict::default());
        }
        let old = request.is_update().then(|| decode::<K>(&request.old_object, request));
        let new = decode::<K>(&request.object, request);
        match (new, old) {
            (Ok(new), old) => Ok(Self {
                old: old.and_then(Result::ok),
                new,
            }),
            // It was stored before this release could have an opinion.
            (Err(error), Some(Err(_))) => Err(Verdict::warn(undecodable(&error))),
            (Err(error), _) => Err(Verdict::reject(undecodable(&error))),
        }
    }

    fn judge(&self) -> Verdict {
        let problems = match &self.old {
            Some(old) => self.new.admit_update(old),
            None => self.new.admit_create(),
        };
        Verdict {
            errors: problems.errors().map(ToString::to_string).collect(),
            warnings: problems.warnings().map(ToString::to_string).collect(),
        }
    }
}

fn decode<K: Validate + DeserializeOwned>(object: &Value, request: &Request) -> Result<K, serde_json::Error> {
    let mut object: K = serde_json::from_value(object.clone())?;
    let metadata = object.meta_mut();
    if metadata.namespace.is_none() {
        metadata.namespace = Some(request.namespace.clone());
    }
    if metadata.name.is_none() {
        // The API server appends five characters after admission.
        metadata.name = metadata.generate_name.as_ref().map(|prefix| format!("{prefix}aaaaa"));
    }
    Ok(object)
}

fn undecodable(error: &serde_json::Error) -> String {
    format!("it cannot be decoded: {error}; correct this field")
}
