//! Compares the rights that the operator's chart grants with the requests in the API servers' audit logs.

use std::collections::{BTreeMap, BTreeSet};
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

/// Verb, API group and resource with its subresource.
type Right = (String, String, String);

/// Rights that no test has to use.
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

/// Requests that may be denied: account, verb and resource in the operator's own namespace.
const DENIED: &[(&str, &str, &str, &str)] = &[(
    "slurm-operator-webhook",
    "create",
    "secrets",
    "helm removes the role before the pod ends; the pod may see that its certificate is deleted before it sees that nothing calls it",
)];

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
    account: String,
    right: Right,
    /// Of the object.
    namespace: String,
}

impl Denial {
    fn is_expected(&self) -> bool {
        let (verb, _, resource) = &self.right;
        let is_it = |(account, verbs, resources, _): &(&str, &str, &str, &str)| {
            self.account == *account && verb == verbs && resource == resources && self.namespace == NAMESPACE
        };
        DENIED.iter().any(is_it)
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
        let right = |verb: &str| {
            (
                verb.to_owned(),
                text("/objectRef/apiGroup").to_owned(),
                resource.clone(),
            )
        };
        if text("/annotations/authorization.k8s.io~1decision") == "forbid" {
            let user = text("/user/username");
            let denial = Denial {
                account: user.rsplit(':').next().unwrap_or(user).to_owned(),
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

/// What the chart grants to the operator and to the Job that runs before it is uninstalled.
fn granted() -> Result<BTreeSet<Right>> {
    let mut template = Command::new(kubernetes::binaries()?.path("helm"));
    template.args(["template", "slurm-operator", "--namespace", NAMESPACE]);
    let rendered = output(template.arg(paths::repository().join("charts/slurm-operator")))?;
    let objects: Vec<Value> = serde_saphyr::from_multiple(&rendered)?;
    let roles = objects.iter().filter(|object| {
        let kind = object.get("kind").and_then(Value::as_str);
        matches!(kind, Some("Role" | "ClusterRole"))
    });
    let list = |rule: &Value, field: &str| -> Vec<String> {
        let words = rule.get(field).and_then(Value::as_array).into_iter().flatten();
        words.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let mut granted = BTreeSet::new();
    for rule in roles.filter_map(|role| role.get("rules")?.as_array()).flatten() {
        for group in list(rule, "apiGroups") {
            for resource in list(rule, "resources") {
                for verb in list(rule, "verbs") {
                    granted.insert((verb, group.clone(), resource.clone()));
                }
            }
        }
    }
    Ok(granted)
}

fn is_excused((verb, _, resource): &Right) -> bool {
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
    let say = |(verb, group, resource): &Right| format!("{verb} {resource} ({group:?})");
    let denied = requests.denied.iter().filter(|(denial, _)| !denial.is_expected());
    let denied = denied.map(|(denial, times)| {
        let Denial {
            account,
            right,
            namespace,
        } = denial;
        format!(
            "denied {times} times: {} in namespace {namespace:?} to {account}",
            say(right)
        )
    });
    let granted = granted()?;
    let unused = granted.difference(&requests.used).filter(|right| !is_excused(right));
    let unused = unused.map(|right| format!("granted and never used: {}", say(right)));
    let wrong: Vec<String> = denied.chain(unused).collect();
    if !wrong.is_empty() {
        bail!(
            "the operator's rights are not those that it uses:\n  {}",
            wrong.join("\n  ")
        );
    }
    println!(
        "the operator used each of its {} rights, and was denied none",
        granted.len()
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
        let verbs: Vec<&str> = requests.used.iter().map(|(verb, ..)| verb.as_str()).collect();
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
            .map(|(denial, times)| (denial.right.2.as_str(), *times))
            .collect();
        assert_eq!(denials, [("nodesets/status", 1)]);
    }

    #[test]
    fn only_the_webhook_may_be_denied_its_certificate() {
        let expected = |account: &str, namespace: &str| {
            let mut requests = Requests::default();
            requests.add(&json!({
                "verb": "create", "objectRef": { "resource": "secrets", "namespace": namespace },
                "user": { "username": format!("system:serviceaccount:{NAMESPACE}:{account}") },
                "annotations": { "authorization.k8s.io/decision": "forbid" },
            }));
            requests.denied.keys().all(Denial::is_expected)
        };
        assert!(expected("slurm-operator-webhook", NAMESPACE));
        assert!(!expected("slurm-operator", NAMESPACE));
        assert!(!expected("slurm-operator-webhook", "team-a"));
    }
}
