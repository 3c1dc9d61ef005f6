//! Takes over fields that an update or a create wrote: those of the upstream operator, and our own new ones.
//!
//! An apply removes a field only if no other manager owns it. Upstream writes by updates and owns every field of its
//! objects, so unwanted fields would stay for ever (its `maxUnavailable` beside our `minAvailable`, which the API server
//! rejects). Therefore these fields become ours before our first apply to an object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use serde_json::json;

use super::{CONFLICT_RETRIES, Error, Key, Writer, Written, if_there};

/// Upstream's field manager: the name of its program.
const PREDECESSOR: &str = "manager";

impl Writer {
    /// Takes over upstream's fields, and those of our own create, of the object with this UID. `found` is the object if it
    /// has just been read.
    pub(super) async fn take_over<K: Written>(
        &self,
        key: &Key,
        uid: Option<&str>,
        mut found: Option<K>,
    ) -> Result<(), Error> {
        let mut retries = 1..=CONFLICT_RETRIES;
        loop {
            let object = match found.take() {
                Some(object) => Some(object),
                None => if_there(self.get::<K>(&key.namespace, &key.name).await)?,
            };
            // The apply will report that the object is gone or was replaced.
            let Some(object) = object.filter(|object| object.meta().uid.as_deref() == uid) else {
                return Ok(());
            };
            let meta = object.meta();
            let managed = meta.managed_fields.as_deref().unwrap_or_default();
            let Some(inherited) = inherited(managed, &K::api_version(&()), &self.manager) else {
                return Ok(());
            };
            tracing::debug!(kind = %K::kind(&()), object = %key, "taking over the fields of updates");
            let change = json!({"op": "replace", "path": "/metadata/managedFields", "value": inherited});
            let version = meta.resource_version.as_deref();
            match self.patch_version::<K>(key, version, vec![change]).await {
                Err(Error::Conflict { .. }) if retries.next().is_some() => {}
                result => return result.map(drop),
            }
        }
    }
}

/// The managed fields with those of upstream, or of our own create, as if we had applied them. `None` if there are none, or
/// if we have applied before.
fn inherited(managed: &[ManagedFieldsEntry], api_version: &str, heir: &str) -> Option<Vec<ManagedFieldsEntry>> {
    let is = |entry: &ManagedFieldsEntry, manager: &str, operation: &str| {
        entry.manager.as_deref() == Some(manager)
            && entry.operation.as_deref() == Some(operation)
            && entry.api_version.as_deref() == Some(api_version)
            && entry.subresource.as_deref().is_none_or(str::is_empty)
    };
    if managed.iter().any(|entry| is(entry, heir, "Apply")) {
        return None;
    }
    let mut managed = managed.to_vec();
    let is_inherited = |entry: &&mut ManagedFieldsEntry| is(entry, PREDECESSOR, "Update") || is(entry, heir, "Update");
    let entry = managed.iter_mut().find(is_inherited)?;
    entry.manager = Some(heir.to_owned());
    entry.operation = Some("Apply".to_owned());
    Some(managed)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn entries(entries: &[(&str, &str, &str)]) -> Vec<ManagedFieldsEntry> {
        let made = entries.iter().map(|(manager, operation, subresource)| {
            let mut entry = json!({
                "manager": manager, "operation": operation, "apiVersion": "apps/v1",
                "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {}},
            });
            if !subresource.is_empty() {
                entry["subresource"] = Value::from(*subresource);
            }
            serde_json::from_value(entry).unwrap()
        });
        made.collect()
    }

    #[test]
    fn only_upstreams_fields_become_ours() {
        let us = "slurm-operator/controller";
        let (upstreams, its_status) = (("manager", "Update", ""), ("manager", "Update", "status"));
        let (kubectls, ours) = (("kubectl-edit", "Update", ""), (us, "Apply", ""));
        for (case, before, after) in [
            ("nobody's", vec![], None),
            (
                "upstream's",
                vec![kubectls, upstreams, its_status],
                Some(vec![kubectls, ours, its_status]),
            ),
            ("somebody else's", vec![kubectls, its_status], None),
            ("ours already", vec![upstreams, ours], None),
        ] {
            let found = inherited(&entries(&before), "apps/v1", us);
            assert_eq!(found, after.map(|after| entries(&after)), "{case}");
        }
        assert_eq!(
            inherited(&entries(&[upstreams]), "v1", us),
            None,
            "fields of another version"
        );
    }
}
