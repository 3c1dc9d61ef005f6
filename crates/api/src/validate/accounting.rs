//! Checks of an Accounting.

use kube::ResourceExt;
use serde_json::{Value, json};

use super::{
    Problems, Validate,
    fields::{
        check_container, check_external, check_keys, check_own_network, check_port, check_secret_key, check_service,
        check_template,
    },
    lines::is_word,
    names::check_stateful_set_parent,
};
use crate::accounting::{Accounting, AccountingSpec, StorageConfig};

impl Validate for Accounting {
    fn find_problems(&self, problems: &mut Problems) {
        // Without `..`, so that a new field does not compile until its checks are decided.
        let AccountingSpec {
            slurm_key_ref,
            jwt_hs256_key_ref,
            jwt_key_ref,
            jwks_key_ref,
            external: _,
            external_config,
            slurmdbd,
            template,
            storage_config,
            extra_conf: _,
            service,
        } = &self.spec;

        check_stateful_set_parent(problems, "Accounting", &self.name_any(), "-accounting");
        check_keys(
            problems,
            [slurm_key_ref, jwt_key_ref, jwt_hs256_key_ref],
            jwks_key_ref.as_ref(),
        );
        if self.spec.is_external() {
            check_external(problems, "slurmdbd", external_config.as_ref());
        } else {
            check_storage(problems, storage_config.as_ref());
        }
        check_container(problems, "spec.slurmdbd", slurmdbd.as_ref());
        check_template(problems, template.as_ref());
        if !self.spec.is_external() {
            check_own_network(problems, "slurmdbd", template.as_ref());
        }
        check_service(problems, service.as_ref());
    }

    fn immutable(&self) -> Vec<(&'static str, Value, &'static str)> {
        let jwt_key = json!(self.spec.effective_jwt_key_ref());
        vec![("spec.jwtKeyRef", jwt_key, "write the new key to the same Secret")]
    }
}

fn check_storage(problems: &mut Problems, storage: Option<&StorageConfig>) {
    let Some(StorageConfig {
        host,
        port,
        database,
        username,
        password_key_ref,
    }) = storage
    else {
        problems.missing(
            "spec.storageConfig",
            "is absent, but slurmdbd needs a database",
            "set host, username and passwordKeyRef of a MySQL or MariaDB server",
        );
        return;
    };
    if host.is_empty() {
        problems.missing(
            "spec.storageConfig.host",
            "is empty",
            "set the host of the database server",
        );
    }
    // Each becomes a value in slurmdbd.conf.
    let lines = [
        ("host", Some(host)),
        ("database", database.as_ref()),
        ("username", username.as_ref()),
    ];
    for (name, value) in lines {
        if let Some(value) = value.filter(|value| !value.is_empty() && !is_word(value)) {
            problems.bad_value(
                format!("spec.storageConfig.{name}"),
                format!("is {value:?}, which cannot be written to slurmdbd.conf"),
                "write it without blanks, quotes, backslashes and number signs",
            );
        }
    }
    let remedy = "set the port of the database server, from 1 to 65535";
    check_port(
        problems,
        "spec.storageConfig.port",
        port.filter(|port| *port != 0),
        remedy,
    );
    check_secret_key(problems, "spec.storageConfig.passwordKeyRef", password_key_ref);
}
