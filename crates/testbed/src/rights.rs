//! Compares the rights that the operator's chart grants with the requests in the API servers' audit logs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::command::output;
use crate::kubernetes;
use crate::paths::{self, Layout};

/// The namespace in which tests install the operator.
const NAMESPACE: &str = "slinky";

/// A right of one of the operator's accounts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    account: String,
    verb: String,
    group: String,
    /// With its subresource.
    resource: String,
}

impl fmt::Display for Right {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            account,
            verb,
            group,
            resource,
        } = self;
        write!(formatter, "{account}: {verb} {resource} ({group:?})")
    }
}

/// Rights that no test has to use: verb, resource and reason.
const UNUSED: &[(&str, &str, &str)] = &[
    (
        "update",
        "*/finalizers",
        "checked with a write of an ownerReference, where OwnerReferencesPermissionEnforcement is on; never requested by itself",
    ),
    (
        "delete",
        "persistentvolumeclaims",
        "as above, to change the owner of a claim; claims are deleted by the garbage collector",
    ),
    (
        "*",
        "servicemonitors",
        "only where the kind is installed, which few tests do",
    ),
    (
        "delete",
        "secrets",
        "a Token replaces the Secret that upstream's operator made for it; its unit tests show it",
    ),
    (
        "delete",
        "services",
        "of an Accounting that becomes external, and those that an older release made for a Controller",
    ),
    (
        "delete",
        "statefulsets",
        "of an Accounting that becomes external, and of a Controller whose Service has another name now",
    ),
];

/// The account of the webhook, and its own objects. Helm deletes its Deployment and its roles at the same time, and last the
/// webhook configuration, with which the certificate goes. A pod that has not ended yet may see that the certificate is
/// deleted before it sees the same of the configuration, and creates it again, or its watches may just be due.
const WEBHOOK: &str = "slurm-operator-webhook";
const OF_WEBHOOK: [&str; 3] = [
    "secrets",
    "validatingwebhookconfigurations",
    "mutatingwebhookconfigurations",
];

/// The policy of the audit log: one line for each request of the operator's accounts.
pub fn policy() -> Value {
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived", "ResponseStarted"],
        "rules": [
            { "level": "Metadata", "userGroups": [format!("system:serviceaccounts:{NAMESPACE}")], "omitManagedFields": true },
            { "level": "None" },
        ],
    })
}

/// The audit logs of clusters whose names begin with `prefix`, also those that the API server rotated.
fn logs(prefix: &str) -> Result<Vec<PathBuf>> {
    let own = Layout::of(prefix)?.audit_log();
    let folder = own.parent().context("the audit log has no folder")?;
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let found = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_log = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with(prefix) && name.contains(".audit")
    };
    Ok(found.filter(is_log).collect())
}

/// Removes the audit logs of the tests' clusters.
pub fn forget() -> Result<()> {
    for log in logs(&Layout::test_cluster())? {
        fs::remove_file(&log).with_context(|| format!("cannot remove {}", log.display()))?;
    }
    Ok(())
}

/// The requests in an audit log.
#[derive(Debug, Default)]
struct Requests {
    used: BTreeSet<Right>,
    /// Each with the number of times it was denied.
    denied: BTreeMap<Denial, usize>,
}

/// A request that was denied.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Denial {
    right: Right,
    /// Of the object.
    namespace: String,
}

impl Denial {
    /// Whether the webhook was denied what its roles grant, about its own objects: the roles were being removed.
    fn is_expected(&self, granted: &BTreeSet<Right>) -> bool {
        let is_own =
            OF_WEBHOOK.contains(&self.right.resource.as_str()) && ["", NAMESPACE].contains(&self.namespace.as_str());
        self.right.account == WEBHOOK && is_own && granted.contains(&self.right)
    }
}

impl Requests {
    fn read(&mut self, log: &Path) -> Result<()> {
        let file = fs::File::open(log).with_context(|| format!("cannot read {}", log.display()))?;
        for line in BufReader::new(file).lines() {
            // The last line of a server that was killed may be cut off.
            if let Ok(event) = serde_json::from_str::<Value>(&line?) {
                self.add(&event);
            }
        }
        Ok(())
    }

    fn add(&mut self, event: &Value) {
        let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (verb, resource) = (text("/verb"), text("/objectRef/resource"));
        if resource.is_empty() {
            return;
        }
        let resource = match text("/objectRef/subresource") {
            "" => resource.to_owned(),
            subresource => format!("{resource}/{subresource}"),
        };
        let user = text("/user/username");
        let right = |verb: &str| Right {
            account: user.rsplit(':').next().unwrap_or(user).to_owned(),
            verb: verb.to_owned(),
            group: text("/objectRef/apiGroup").to_owned(),
            resource: resource.clone(),
        };
        if text("/annotations/authorization.k8s.io~1decision") == "forbid" {
            let denial = Denial {
                right: right(verb),
                namespace: text("/objectRef/namespace").to_owned(),
            };
            *self.denied.entry(denial).or_default() += 1;
            return;
        }
        self.used.insert(right(verb));
        // A server-side apply of a new object needs both.
        if verb == "patch" && event.pointer("/responseStatus/code").is_some_and(|code| code == 201) {
            self.used.insert(right("create"));
        }
    }
}

/// What the chart grants to its accounts: the operator, the webhook, and the Job that runs before they are uninstalled.
fn granted() -> Result<BTreeSet<Right>> {
    let mut template = Command::new(kubernetes::binaries()?.path("helm"));
    template.args(["template", "slurm-operator", "--namespace", NAMESPACE]);
    let rendered = output(template.arg(paths::repository().join("charts/slurm-operator")))?;
    let objects: Vec<Value> = serde_saphyr::from_multiple(&rendered)?;
    let granted = rights_of(&objects);
    if granted.is_empty() {
        bail!("the chart grants no right");
    }
    Ok(granted)
}

/// The rights that the bindings among these objects give to accounts.
fn rights_of(objects: &[Value]) -> BTreeSet<Right> {
    let text = |object: &Value, pointer: &str| {
        object
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let list = |rule: &Value, field: &str| -> Vec<String> {
        let words = rule.get(field).and_then(Value::as_array).into_iter().flatten();
        words.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let role_of = |binding: &Value| {
        let (kind, name) = (text(binding, "/roleRef/kind"), text(binding, "/roleRef/name"));
        let is_it = |role: &&Value| text(role, "/kind") == kind && text(role, "/metadata/name") == name;
        objects.iter().find(is_it)
    };
    let mut rights = BTreeSet::new();
    for binding in objects.iter().filter(|object| object.get("roleRef").is_some()) {
        let account = text(binding, "/subjects/0/name");
        let rules = role_of(binding).and_then(|role| role.get("rules")?.as_array());
        for rule in rules.into_iter().flatten() {
            for group in list(rule, "apiGroups") {
                for resource in list(rule, "resources") {
                    for verb in list(rule, "verbs") {
                        rights.insert(Right {
                            account: account.clone(),
                            verb,
                            group: group.clone(),
                            resource: resource.clone(),
                        });
                    }
                }
            }
        }
    }
    rights
}

fn is_excused(Right { verb, resource, .. }: &Right) -> bool {
    UNUSED.iter().any(|(verbs, resources, _)| {
        let of_resource = match resources.strip_prefix('*') {
            Some(end) => resource.ends_with(end),
            None => resource == resources,
        };
        of_resource && (*verbs == "*" || verbs == verb)
    })
}

/// Fails if the API servers of the tests denied a request of the operator, or if a granted right was not used in any of them.
pub fn check() -> Result<()> {
    let mut requests = Requests::default();
    for log in logs(&Layout::test_cluster())? {
        requests.read(&log)?;
    }
    if requests.used.is_empty() {
        bail!("there is no request of the operator in the audit logs");
    }
    let granted = granted()?;
    let denied = requests.denied.iter();
    let denied = denied.filter(|(denial, _)| !denial.is_expected(&granted));
    let denied = denied.map(|(Denial { right, namespace }, times)| {
        format!("denied {times} times: {right} in namespace {namespace:?}")
    });
    let (excused, unused): (Vec<_>, Vec<_>) = granted.difference(&requests.used).partition(|right| is_excused(right));
    let unused = unused
        .into_iter()
        .map(|right| format!("granted and never used: {right}"));
    let wrong: Vec<String> = denied.chain(unused).collect();
    if !wrong.is_empty() {
        bail!(
            "the operator's rights are not those that it uses:\n  {}",
            wrong.join("\n  ")
        );
    }
    println!(
        "the operator's accounts used all of their {} rights but {} with a reason, and were denied none",
        granted.len(),
        excused.len()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_apply_that_creates_needs_both_verbs() {
        let mut requests = Requests::default();
        requests.add(&json!({
            "verb": "patch", "objectRef": { "resource": "services", "apiVersion": "v1" }, "responseStatus": { "code": 201 },
        }));
        let verbs: Vec<&str> = requests.used.iter().map(|right| right.verb.as_str()).collect();
        assert_eq!(verbs, ["create", "patch"]);
    }

    #[test]
    fn only_what_the_authorizer_denied_counts() {
        let mut requests = Requests::default();
        let status = json!({ "resource": "nodesets", "apiGroup": "slinky.slurm.net", "subresource": "status" });
        // The namespace is being deleted.
        requests.add(
            &json!({ "verb": "patch", "objectRef": status, "responseStatus": { "code": 403 },
            "annotations": { "authorization.k8s.io/decision": "allow" } }),
        );
        assert!(requests.denied.is_empty());
        requests.add(
            &json!({ "verb": "patch", "objectRef": status, "responseStatus": { "code": 403 },
            "annotations": { "authorization.k8s.io/decision": "forbid" } }),
        );
        let denials: Vec<_> = requests
            .denied
            .iter()
            .map(|(denial, times)| (denial.right.resource.as_str(), *times))
            .collect();
        assert_eq!(denials, [("nodesets/status", 1)]);
    }

    fn right(account: &str, verb: &str, resource: &str) -> Right {
        Right {
            account: account.to_owned(),
            verb: verb.to_owned(),
            group: String::new(),
            resource: resource.to_owned(),
        }
    }

    #[test]
    fn only_the_webhook_may_be_denied_its_certificate() {
        let granted = BTreeSet::from([
            right(WEBHOOK, "create", "secrets"),
            right("slurm-operator", "create", "secrets"),
        ]);
        let expected = |account: &str, verb: &str, namespace: &str| {
            let mut requests = Requests::default();
            requests.add(&json!({
                "verb": verb, "objectRef": { "resource": "secrets", "namespace": namespace },
                "user": { "username": format!("system:serviceaccount:{NAMESPACE}:{account}") },
                "annotations": { "authorization.k8s.io/decision": "forbid" },
            }));
            requests.denied.keys().all(|denial| denial.is_expected(&granted))
        };
        assert!(expected(WEBHOOK, "create", NAMESPACE));
        assert!(!expected(WEBHOOK, "delete", NAMESPACE), "no role grants that");
        assert!(!expected("slurm-operator", "create", NAMESPACE));
        assert!(!expected(WEBHOOK, "create", "team-a"));
    }

    #[test]
    fn a_right_of_one_account_is_not_used_by_another() {
        let role = |name: &str, verb: &str| {
            json!({ "kind": "Role", "metadata": { "name": name },
            "rules": [{ "apiGroups": [""], "resources": ["pods"], "verbs": [verb] }] })
        };
        let binding = |name: &str| {
            json!({ "kind": "RoleBinding", "subjects": [{ "name": name }],
            "roleRef": { "kind": "Role", "name": name } })
        };
        let objects = [role("a", "get"), role("b", "get"), binding("a"), binding("b")];
        let mut requests = Requests::default();
        requests.add(&json!({ "verb": "get", "objectRef": { "resource": "pods" }, "user": { "username": "system:serviceaccount:x:a" } }));
        let granted = rights_of(&objects);
        let unused: Vec<_> = granted.difference(&requests.used).collect();
        assert_eq!(unused, [&right("b", "get", "pods")]);
    }
}
