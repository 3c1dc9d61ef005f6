//! Rules for a LoginSet.

use kube::ResourceExt;

use super::{
    Cel, Check, Problems, Reason, Rule, Validate,
    cel::{is_entry, is_label},
    fields::check_entry,
    names::check_service_parent,
    shared::{
        Fields, controller_immutable, controller_name, controller_namespace, entry_rule, external_ips,
        name_starts_with_digit, overlays, replicas, service_node_port, service_port,
    },
};
use crate::{
    items::items,
    loginset::LoginSet,
    overlay::ContainerOverlay,
    references::ObjectRef,
    templates::{PodTemplate, ServiceTemplate},
};

impl Fields for LoginSet {
    fn controller_ref(&self) -> &ObjectRef {
        &self.spec.controller_ref
    }

    fn replicas(&self) -> Option<i32> {
        self.spec.replicas
    }

    fn containers(&self) -> Vec<(&'static str, &Option<ContainerOverlay>)> {
        vec![("spec.login", &self.spec.login), ("spec.initconf", &self.spec.initconf)]
    }

    fn template(&self) -> Option<&PodTemplate> {
        self.spec.template.as_ref()
    }

    fn service(&self) -> Option<&ServiceTemplate> {
        self.spec.service.as_ref()
    }
}

impl Validate for LoginSet {
    const SMALLEST: &'static str = "spec: {controllerRef: {name: slurm}, sssdConfRef: {name: sssd, key: sssd.conf}}";

    const FREE: &'static [&'static str] = &["extraSshdConfig"];

    const RULES: &'static [Rule<Self>] = &[
        Rule {
            id: "name",
            field: "metadata.name",
            holds: "must have at most 63 characters and no dots: the Service has that name",
            remedy: "give the LoginSet a name of at most 63 lower-case letters, digits and dashes",
            cel: Cel::Object {
                reads: &[],
                holds: is_label!(63),
            },
            check: Check::Problems(|set, problems| check_service_parent(problems, "LoginSet", &set.name_any(), "")),
            good: &["metadata: {name: my-login}"],
            bad: &["metadata: {name: my.login}"],
        },
        name_starts_with_digit(),
        controller_name(),
        controller_namespace(),
        entry_rule!(
            "sssd-conf-entry", "sssdConfRef", "Secret", set => Some(&set.spec.sssd_conf_ref),
            "spec: {sssdConfRef: {name: a, key: k}}",
            ["spec: {sssdConfRef: {name: '', key: k}}", "spec: {sssdConfRef: {name: a, key: ''}}"]
        ),
        replicas(),
        Rule {
            id: "strategy-type",
            field: "spec.strategy.type",
            holds: "must be RollingUpdate or Recreate",
            remedy: "use RollingUpdate or Recreate",
            cel: Cel::Value("{} in ['', 'RollingUpdate', 'Recreate']"),
            check: Check::Fault(Reason::BadValue, |set| {
                let strategy = set.spec.strategy.as_ref()?.type_.as_deref()?;
                let is_known = matches!(strategy, "" | "RollingUpdate" | "Recreate");
                (!is_known).then(|| format!("is {strategy:?}"))
            }),
            good: &["spec: {strategy: {type: Recreate}}"],
            bad: &["spec: {strategy: {type: Never}}"],
        },
        Rule {
            id: "authorized-keys",
            field: "spec.rootSshAuthorizedKeys",
            holds: "must have one public key in a line",
            remedy: "write one line per key as in a .pub file: options (if any), algorithm, key, comment",
            cel: Cel::No("it needs a parser"),
            check: Check::Problems(|set, problems| {
                check_authorized_keys(
                    problems,
                    set.spec.root_ssh_authorized_keys.as_deref().unwrap_or_default(),
                );
            }),
            good: &["spec: {rootSshAuthorizedKeys: '# none'}"],
            bad: &["spec: {rootSshAuthorizedKeys: mine}"],
        },
        service_port(),
        service_node_port(),
        overlays(
            "spec.login, spec.initconf, spec.template.spec, spec.service.spec",
            &["spec: {login: {args: -v}}", "spec: {service: {spec: {ports: 22}}}"],
        ),
        external_ips(),
        controller_immutable("users who are logged in would change the cluster; create another LoginSet"),
    ];
}

/// Prefixes of the algorithm names of public keys.
const ALGORITHMS: [&str; 5] = ["ssh-", "ecdsa-sha2-", "sk-ssh-", "sk-ecdsa-", "webauthn-sk-"];
/// A public key starts with the length of its algorithm's name, which is below 256.
const BLOB_START: &str = "AAAA";

/// sshd silently ignores lines that it cannot parse, and their owner could not log in.
fn check_authorized_keys(problems: &mut Problems, keys: &str) {
    for (line, number) in keys.lines().zip(1..) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') || has_key(line) {
            continue;
        }
        let start: String = line.chars().take(20).collect();
        problems.bad_value(
            "spec.rootSshAuthorizedKeys",
            format!("has {start:?} in line {number}, which is not a public key"),
            "write one line per key as in a .pub file: options (if any), algorithm, key, comment",
        );
    }
}

/// Whether a line has an algorithm followed by a key, possibly after options.
fn has_key(line: &str) -> bool {
    let words: Vec<&str> = items(line).collect();
    let is_base64 = |word: &str| {
        let digits = word.trim_end_matches('=');
        digits.len() >= 40
            && word.starts_with(BLOB_START)
            && word.len().is_multiple_of(4)
            && digits
                .chars()
                .all(|digit| digit.is_ascii_alphanumeric() || "+/".contains(digit))
    };
    words
        .iter()
        .zip(words.iter().skip(1))
        .take(2)
        .any(|(algorithm, key)| ALGORITHMS.iter().any(|start| algorithm.starts_with(start)) && is_base64(key))
}

#[cfg(test)]
mod tests {
    use super::has_key;

    const KEY: &str = "AAAAC3NzaC1lZDI1NTE5AAAAIGq9ZC3sp0vuvkPbJzPVwYYU0WW2mHxTC9mB8R0nxM3C";

    #[test]
    fn a_public_key_may_have_options_and_a_comment() {
        for line in [
            "ssh-ed25519 KEY",
            "ssh-ed25519 KEY me at home",
            "from=\"10.0.0.1, x\",no-pty ssh-ed25519 KEY",
        ] {
            assert!(has_key(&line.replace("KEY", KEY)), "{line}");
        }
        for line in [
            "KEY",
            "ssh-ed25519",
            "ssh-ed25519 AAAA",
            "rsa KEY",
            "-----BEGIN OPENSSH PRIVATE KEY-----",
            "ssh-ed25519 KEY$",
        ] {
            assert!(!has_key(&line.replace("KEY", KEY)), "{line}");
        }
    }
}
