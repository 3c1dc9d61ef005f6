//! Rules for an Accounting.

use kube::ResourceExt;

use super::{
    Cel, Check, Reason, Rule, Validate,
    cel::{is_entry, is_external, is_label},
    fields::{bad_port, check_entry},
    lines::is_word,
    names::check_stateful_set_parent,
    shared::{
        Fields, entry_rule, external_config, external_host, external_ips, external_port, jwt_names,
        name_starts_with_digit, overlays, own_network, service_node_port, service_port,
    },
};
use crate::{
    accounting::{Accounting, StorageConfig},
    external::ExternalConfig,
    overlay::ContainerOverlay,
    templates::{PodTemplate, ServiceTemplate},
};

impl Fields for Accounting {
    const DAEMON: &'static str = "slurmdbd";

    fn containers(&self) -> Vec<(&'static str, &Option<ContainerOverlay>)> {
        vec![("spec.slurmdbd", &self.spec.slurmdbd)]
    }

    fn template(&self) -> Option<&PodTemplate> {
        self.spec.template.as_ref()
    }

    fn service(&self) -> Option<&ServiceTemplate> {
        self.spec.service.as_ref()
    }

    fn has_two_jwt_keys(&self) -> bool {
        let (new, old) = (&self.spec.jwt_key_ref, &self.spec.jwt_hs256_key_ref);
        new.is_some() && old.is_some() && new != old
    }

    fn is_external(&self) -> bool {
        self.spec.is_external()
    }

    fn external_config(&self) -> Option<&ExternalConfig> {
        self.spec.external_config.as_ref()
    }
}

/// The rule for a text that becomes a value in slurmdbd.conf.
macro_rules! word_rule {
    ($id:literal, $field:literal, $storage:ident => $value:expr) => {
        Rule {
            id: $id,
            field: concat!("spec.storageConfig.", $field),
            holds: "must be one word that can be written to slurmdbd.conf",
            remedy: "write it without blanks, quotes, backslashes and number signs",
            cel: Cel::Object {
                reads: &["spec.external", concat!("spec.storageConfig.", $field)],
                holds: concat!(
                    is_external!(),
                    " || !has(self.spec.storageConfig) || !has(self.spec.storageConfig.",
                    $field,
                    ") || self.spec.storageConfig.",
                    $field,
                    r".matches(r'^[^\s\pZ\p{Cc}#\x22\\]*$')"
                ),
            },
            check: Check::Fault(Reason::BadValue, |accounting| {
                let $storage = storage(accounting)?;
                let value = $value.filter(|value| !value.is_empty() && !is_word(value))?;
                Some(format!("is {value:?}, which cannot be written to slurmdbd.conf"))
            }),
            good: &[concat!("spec: {storageConfig: {", $field, ": a-1}}")],
            bad: &[
                concat!("spec: {storageConfig: {", $field, ": a b}}"),
                concat!("spec: {storageConfig: {", $field, ": 'a#'}}"),
            ],
        }
    };
}

impl Validate for Accounting {
    const SMALLEST: &'static str = "spec: {storageConfig: {host: db, passwordKeyRef: {name: db, key: password}}}";

    const FREE: &'static [&'static str] = &["external", "extraConf"];

    const RULES: &'static [Rule<Self>] = &[
        Rule {
            id: "name",
            field: "metadata.name",
            holds: "must have at most 41 characters and no dots: the StatefulSet has that name and -accounting",
            remedy: "give the Accounting a name of at most 41 lower-case letters, digits and dashes",
            cel: Cel::Object {
                reads: &[],
                holds: is_label!(41),
            },
            check: Check::Problems(|accounting, problems| {
                check_stateful_set_parent(problems, "Accounting", &accounting.name_any(), "-accounting");
            }),
            good: &["metadata: {name: my-db}"],
            bad: &["metadata: {name: my.db}"],
        },
        name_starts_with_digit(),
        entry_rule!(
            "slurm-key-entry", "slurmKeyRef", "Secret", accounting => &accounting.spec.slurm_key_ref,
            "spec: {slurmKeyRef: {name: a, key: k}}", ["spec: {slurmKeyRef: {name: '', key: k}}"]
        ),
        entry_rule!(
            "jwt-key-entry", "jwtKeyRef", "Secret", accounting => &accounting.spec.jwt_key_ref,
            "spec: {jwtKeyRef: {name: a, key: k}}", ["spec: {jwtKeyRef: {name: a, key: ''}}"]
        ),
        entry_rule!(
            "old-jwt-key-entry", "jwtHs256KeyRef", "Secret", accounting => &accounting.spec.jwt_hs256_key_ref,
            "spec: {jwtHs256KeyRef: {name: a, key: k}}", ["spec: {jwtHs256KeyRef: {name: A, key: k}}"]
        ),
        jwt_names(),
        entry_rule!(
            "jwks-entry", "jwksKeyRef", "ConfigMap", accounting => &accounting.spec.jwks_key_ref,
            "spec: {jwksKeyRef: {name: a, key: k}}", ["spec: {jwksKeyRef: {name: a, key: a/b}}"]
        ),
        external_config("set host and port of slurmdbd"),
        external_host("set the name or address of the host of slurmdbd"),
        external_port("set the port of slurmdbd, from 1 to 65535"),
        Rule {
            id: "storage",
            field: "spec.storageConfig",
            holds: "is required unless spec.external is true: slurmdbd needs a database",
            remedy: "set host, username and passwordKeyRef of a MySQL or MariaDB server",
            cel: Cel::Object {
                reads: &["spec.external", "spec.storageConfig"],
                holds: concat!(is_external!(), " || has(self.spec.storageConfig)"),
            },
            check: Check::Fault(Reason::Missing, |accounting| {
                let is_absent = !accounting.spec.is_external() && accounting.spec.storage_config.is_none();
                is_absent.then(|| "is absent, but slurmdbd needs a database".into())
            }),
            good: &["spec: {external: true, externalConfig: {host: a, port: 1}, storageConfig: null}"],
            bad: &["spec: {storageConfig: null}"],
        },
        Rule {
            id: "storage-host",
            field: "spec.storageConfig.host",
            holds: "must not be empty",
            remedy: "set the host of the database server",
            cel: Cel::Object {
                reads: &["spec.external", "spec.storageConfig.host"],
                holds: concat!(
                    is_external!(),
                    " || !has(self.spec.storageConfig) || self.spec.storageConfig.host != ''"
                ),
            },
            check: Check::Fault(Reason::Missing, |accounting| {
                storage(accounting)?.host.is_empty().then(|| "is empty".into())
            }),
            good: &["spec: {storageConfig: {host: mariadb.db}}"],
            bad: &["spec: {storageConfig: {host: ''}}"],
        },
        word_rule!("storage-host-word", "host", storage => Some(&storage.host)),
        word_rule!("storage-database-word", "database", storage => storage.database.as_ref()),
        word_rule!("storage-username-word", "username", storage => storage.username.as_ref()),
        Rule {
            id: "storage-port",
            field: "spec.storageConfig.port",
            holds: "must be a port from 1 to 65535, or 0 for the default",
            remedy: "set the port of the database server, from 1 to 65535",
            cel: Cel::Object {
                reads: &["spec.external", "spec.storageConfig.port"],
                holds: concat!(
                    is_external!(),
                    " || !has(self.spec.storageConfig) || !has(self.spec.storageConfig.port) || ",
                    "(self.spec.storageConfig.port >= 0 && self.spec.storageConfig.port <= 65535)"
                ),
            },
            check: Check::Fault(Reason::BadValue, |accounting| {
                bad_port(storage(accounting)?.port.filter(|port| *port != 0))
            }),
            good: &["spec: {storageConfig: {port: 0}}"],
            bad: &["spec: {storageConfig: {port: 70000}}"],
        },
        Rule {
            id: "storage-password-entry",
            field: "spec.storageConfig.passwordKeyRef",
            holds: "must name a Secret and a key of its data",
            remedy: "use letters, digits, dashes, dots, and in the key underscores",
            cel: Cel::Object {
                reads: &["spec.external", "spec.storageConfig.passwordKeyRef"],
                holds: concat!(
                    is_external!(),
                    " || !has(self.spec.storageConfig) || ",
                    is_entry!("self.spec.storageConfig.passwordKeyRef")
                ),
            },
            check: Check::Problems(|accounting, problems| {
                if let Some(StorageConfig { password_key_ref, .. }) = storage(accounting) {
                    let field = "spec.storageConfig.passwordKeyRef";
                    check_entry(problems, field, "Secret", &password_key_ref.name, &password_key_ref.key);
                }
            }),
            good: &["spec: {storageConfig: {passwordKeyRef: {name: a, key: k}}}"],
            bad: &["spec: {storageConfig: {passwordKeyRef: {name: '', key: k}}}"],
        },
        overlays(
            "spec.slurmdbd, spec.template.spec, spec.service.spec",
            &["spec: {slurmdbd: {args: -v}}"],
        ),
        own_network("remove it; only workers and login pods can use the host network"),
        service_port(),
        service_node_port(),
        external_ips(),
        Rule {
            id: "jwt-key-immutable",
            field: "spec.jwtKeyRef",
            holds: "cannot be changed",
            remedy: "write the new key to the same Secret",
            cel: Cel::Constant(
                "has(self.spec.jwtKeyRef) ? [dyn(self.spec.jwtKeyRef)] : \
                 has(self.spec.jwtHs256KeyRef) ? [dyn(self.spec.jwtHs256KeyRef)] : []",
            ),
            check: Check::Unchanged(|old, new| old.spec.effective_jwt_key_ref() == new.spec.effective_jwt_key_ref()),
            good: &[
                "spec: {jwtKeyRef: {name: a, key: k}}",
                "spec: {jwtKeyRef: null, jwtHs256KeyRef: {name: a, key: k}}",
            ],
            bad: &["spec: {jwtKeyRef: {name: b, key: k}}", "spec: {jwtKeyRef: null}"],
        },
    ];
}

/// The database, unless slurmdbd runs outside Kubernetes.
fn storage(accounting: &Accounting) -> Option<&StorageConfig> {
    let storage = accounting.spec.storage_config.as_ref();
    storage.filter(|_| !accounting.spec.is_external())
}
