//! Checks of a LoginSet.

use kube::ResourceExt;
use serde_json::{Value, json};

use super::{
    Problems, Validate,
    fields::{check_container, check_ref, check_replicas, check_secret_key, check_service, check_template},
    names::check_service_parent,
};
use crate::{
    items::items,
    loginset::{LoginSet, LoginSetSpec},
};

impl Validate for LoginSet {
    fn find_problems(&self, problems: &mut Problems) {
        // Without `..`, so that a new field does not compile until its checks are decided.
        let LoginSetSpec {
            controller_ref,
            replicas,
            login,
            initconf,
            template,
            root_ssh_authorized_keys,
            extra_sshd_config: _,
            sssd_conf_ref,
            strategy,
            service,
        } = &self.spec;
        let own = self.metadata.namespace.as_deref();

        check_service_parent(problems, "LoginSet", &self.name_any(), "");
        check_ref(problems, "spec.controllerRef", "Controller", controller_ref, own);
        check_secret_key(problems, "spec.sssdConfRef", sssd_conf_ref);
        check_replicas(problems, *replicas);
        let strategy = strategy
            .as_ref()
            .and_then(|strategy| strategy.type_.as_deref())
            .unwrap_or_default();
        if !matches!(strategy, "" | "RollingUpdate" | "Recreate") {
            problems.bad_value(
                "spec.strategy.type",
                format!("is {strategy:?}"),
                "use RollingUpdate or Recreate",
            );
        }
        check_authorized_keys(problems, root_ssh_authorized_keys.as_deref().unwrap_or_default());
        check_container(problems, "spec.login", login.as_ref());
        check_container(problems, "spec.initconf", initconf.as_ref());
        check_template(problems, template.as_ref());
        check_service(problems, service.as_ref());
    }

    fn immutable(&self) -> Vec<(&'static str, Value, &'static str)> {
        vec![(
            "spec.controllerRef.name",
            json!(self.spec.controller_ref.name),
            "users who are logged in would change the cluster; create another LoginSet",
        )]
    }
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
