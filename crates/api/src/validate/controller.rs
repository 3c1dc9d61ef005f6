//! Rules for a Controller.

use kube::ResourceExt;

use super::{
    Cel, Check, Problems, Reason, Rule, Validate,
    cel::{self, is_entry, is_external, is_label, is_name},
    fields::{check_at_most, check_entry, check_known, check_name, check_namespace, check_ref},
    names::{check_stateful_set_parent, is_subdomain},
    shared::{
        Fields, entry_rule, external_config, external_host, external_ips, external_port, jwt_names,
        name_starts_with_digit, overlays, own_network, service_node_port, service_port,
    },
};
use crate::{
    controller::{ConfigUpdate, Controller, MAX_BACKUPS},
    external::ExternalConfig,
    overlay::ContainerOverlay,
    templates::{PodTemplate, ServiceTemplate},
    wellknown,
};

/// Maximum length of a cluster name: upstream's limit, which it has because of slurmdbd.
const CLUSTER_NAME_LIMIT: usize = 40;

const LOST_STATE: &str = "the cluster would lose its state; create another Controller";
const ABSENT_KEY: &str = "is absent, and the operator cannot generate a key for an external slurmctld";

impl Fields for Controller {
    const DAEMON: &'static str = "slurmctld";

    fn containers(&self) -> Vec<(&'static str, &Option<ContainerOverlay>)> {
        vec![
            ("spec.slurmctld", &self.spec.slurmctld),
            ("spec.reconfigure", &self.spec.reconfigure),
            ("spec.logfile", &self.spec.logfile),
        ]
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

/// Whether slurmctld stores its state on a volume.
macro_rules! is_persistent {
    ($object:literal) => {
        concat!(
            "(!has(",
            $object,
            ".spec.persistence) || !has(",
            $object,
            ".spec.persistence.enabled) || ",
            $object,
            ".spec.persistence.enabled)"
        )
    };
}

/// The claim of a persistent Controller, or an empty text.
macro_rules! claim {
    ($object:literal) => {
        concat!(
            "(has(",
            $object,
            ".spec.persistence) && has(",
            $object,
            ".spec.persistence.existingClaim) && ",
            is_persistent!($object),
            " ? ",
            $object,
            ".spec.persistence.existingClaim : '')"
        )
    };
}

impl Validate for Controller {
    const SMALLEST: &'static str = "spec: {}";

    const FREE: &'static [&'static str] = &["external", "extraConf", "inplaceReconfigure", "metrics"];

    const RULES: &'static [Rule<Self>] = &[
        Rule {
            id: "name",
            field: "metadata.name",
            holds: "must have at most 41 characters and no dots: the StatefulSet has that name and -controller",
            remedy: "give the Controller a name of at most 41 lower-case letters, digits and dashes",
            cel: Cel::Object {
                reads: &[],
                holds: is_label!(41),
            },
            check: Check::Problems(|controller, problems| {
                check_stateful_set_parent(problems, "Controller", &controller.name_any(), "-controller");
            }),
            good: &["metadata: {name: my-cluster}"],
            bad: &["metadata: {name: my.cluster}"],
        },
        name_starts_with_digit(),
        Rule {
            id: "cluster-name",
            // The name is part of a line in slurm.conf and of a path.
            field: "spec.clusterName",
            holds: "must be one word that can be written to slurm.conf",
            remedy: "use letters, digits, dashes, underscores and dots",
            cel: Cel::Value(r"{}.matches(r'^[^/#=\x22\x27\\\s\pZ\p{Cc}]*$') && !({} in ['.', '..'])"),
            check: Check::Fault(Reason::BadName, |controller| {
                let name = controller.cluster_name();
                let harmful =
                    |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | '#' | '=' | '"' | '\'' | '\\');
                (name.contains(harmful) || matches!(name.as_str(), "." | ".."))
                    .then(|| format!("is {name:?}, which cannot be written to slurm.conf"))
            }),
            good: &["spec: {clusterName: big_1}"],
            bad: &[
                "spec: {clusterName: ../x}",
                "spec: {clusterName: a b}",
                "spec: {clusterName: ..}",
                "spec: {clusterName: \"a\\nSlurmUser=root\"}",
            ],
        },
        entry_rule!(
            "slurm-key-entry", "slurmKeyRef", "Secret", controller => &controller.spec.slurm_key_ref,
            "spec: {slurmKeyRef: {name: a, key: k}}", ["spec: {slurmKeyRef: {name: '', key: k}}"]
        ),
        entry_rule!(
            "jwt-key-entry", "jwtKeyRef", "Secret", controller => &controller.spec.jwt_key_ref,
            "spec: {jwtKeyRef: {name: a, key: k}}", ["spec: {jwtKeyRef: {name: a, key: ''}}"]
        ),
        entry_rule!(
            "old-jwt-key-entry", "jwtHs256KeyRef", "Secret", controller => &controller.spec.jwt_hs256_key_ref,
            "spec: {jwtHs256KeyRef: {name: a, key: k}}", ["spec: {jwtHs256KeyRef: {name: A, key: k}}"]
        ),
        jwt_names(),
        entry_rule!(
            "jwks-entry", "jwksKeyRef", "ConfigMap", controller => &controller.spec.jwks_key_ref,
            "spec: {jwksKeyRef: {name: a, key: k}}", ["spec: {jwksKeyRef: {name: a, key: a/b}}"]
        ),
        Rule {
            id: "accounting-empty",
            field: "spec.accountingRef.name",
            holds: "should not be empty",
            remedy: "name the Accounting, or remove the reference",
            cel: cel::WARNING,
            check: Check::Warning(Reason::Ignored, |controller| {
                let is_empty = controller.spec.accounting_ref.as_ref()?.name.is_empty();
                is_empty.then(|| "is empty, and the cluster runs without accounting".into())
            }),
            good: &["spec: {accountingRef: {name: a}}"],
            bad: &["spec: {accountingRef: {name: ''}}"],
        },
        Rule {
            id: "accounting-name",
            field: "spec.accountingRef.name",
            holds: "must be the name of an Accounting",
            remedy: "use the name that `kubectl get accountings` shows",
            cel: Cel::Value(concat!("{} == '' || (", is_name!("{}"), ")")),
            check: Check::Problems(|controller, problems| {
                if let Some(name) = controller.spec.accounting_name() {
                    check_name(problems, "spec.accountingRef.name", "Accounting", name);
                }
            }),
            good: &["spec: {accountingRef: {name: a}}"],
            bad: &["spec: {accountingRef: {name: A}}"],
        },
        Rule {
            id: "accounting-namespace",
            field: "spec.accountingRef.namespace",
            holds: "must be the namespace of the Controller",
            remedy: "remove it, and create the Accounting in the namespace of the Controller",
            cel: cel::NAMESPACE,
            check: Check::Problems(|controller, problems| {
                let reference = controller.spec.accounting_ref.as_ref();
                let named = reference.filter(|reference| !reference.name.is_empty());
                let namespace = named.and_then(|reference| reference.namespace.as_deref());
                let own = controller.metadata.namespace.as_deref();
                check_namespace(problems, "spec.accountingRef.namespace", namespace, own);
            }),
            good: &["spec: {accountingRef: {name: a, namespace: slurm}}"],
            bad: &["spec: {accountingRef: {name: a, namespace: other}}"],
        },
        Rule {
            id: "file-refs",
            field: "spec.configFileRefs, spec.prologScriptRefs, spec.epilogScriptRefs, spec.prologSlurmctldScriptRefs, \
                    spec.epilogSlurmctldScriptRefs",
            holds: "must name ConfigMaps of the namespace",
            remedy: "use the names that `kubectl get configmaps` shows, without a namespace",
            cel: cel::LIST,
            check: Check::Problems(|controller, problems| {
                for (field, references) in controller.spec.file_refs() {
                    for (index, reference) in references.iter().enumerate() {
                        let field = format!("spec.{field}[{index}]");
                        let own = controller.metadata.namespace.as_deref();
                        check_ref(problems, &field, "ConfigMap", reference, own);
                    }
                }
            }),
            good: &["spec: {configFileRefs: [{name: a}]}"],
            bad: &[
                "spec: {configFileRefs: [{name: ''}]}",
                "spec: {prologScriptRefs: [{name: a, namespace: b}]}",
            ],
        },
        Rule {
            id: "config-update",
            field: "spec.configUpdate",
            holds: "must be InPlace or Restart",
            remedy: "use one of InPlace, Restart",
            cel: Cel::Schema,
            check: Check::Problems(|controller, problems| {
                if let Some(word) = &controller.spec.config_update {
                    check_known(problems, "spec.configUpdate", word.as_str(), ConfigUpdate::KNOWN);
                }
            }),
            good: &["spec: {configUpdate: Restart}"],
            bad: &["spec: {configUpdate: Sometimes}"],
        },
        Rule {
            id: "backups",
            field: "spec.ha.backups",
            holds: "must be from 1 to 8",
            remedy: "set 8 or less",
            // The schema has the minimum, as upstream's.
            cel: Cel::Value("{} <= 8"),
            check: Check::Problems(|controller, problems| {
                let backups = controller.spec.ha.as_ref().and_then(|ha| ha.backups);
                if let Some(backups) = backups.filter(|backups| *backups < 1) {
                    problems.bad_value("spec.ha.backups", format!("is {backups}"), "set 1 or more");
                }
                check_at_most(problems, "spec.ha.backups", backups, MAX_BACKUPS);
            }),
            good: &["spec: {ha: {backups: 8}}"],
            bad: &["spec: {ha: {backups: 9}}", "spec: {ha: {backups: 99}}"],
        },
        external_config("set host and port of slurmctld"),
        external_host("set the name or address of the host of slurmctld"),
        external_port("set the port of slurmctld, from 1 to 65535"),
        Rule {
            id: "external-slurm-key",
            field: "spec.slurmKeyRef",
            holds: "should be set if spec.external is true",
            remedy: "write the cluster's auth/slurm key to a Secret and refer to it",
            cel: cel::WARNING,
            check: Check::Warning(Reason::Missing, |controller| {
                let is_absent = controller.spec.is_external() && controller.spec.slurm_key_ref.is_none();
                is_absent.then(|| ABSENT_KEY.into())
            }),
            good: &["spec: {external: true, externalConfig: {host: a}, slurmKeyRef: {name: a, key: k}}"],
            bad: &["spec: {external: true, externalConfig: {host: a}, jwtKeyRef: {name: a, key: k}}"],
        },
        Rule {
            id: "external-jwt-key",
            field: "spec.jwtKeyRef",
            holds: "should be set if spec.external is true",
            remedy: "write the cluster's auth/jwt key to a Secret and refer to it",
            cel: cel::WARNING,
            check: Check::Warning(Reason::Missing, |controller| {
                let is_absent = controller.spec.is_external() && controller.spec.effective_jwt_key_ref().is_none();
                is_absent.then(|| ABSENT_KEY.into())
            }),
            good: &["spec: {external: true, externalConfig: {host: a}, jwtKeyRef: {name: a, key: k}}"],
            bad: &["spec: {external: true, externalConfig: {host: a}, slurmKeyRef: {name: a, key: k}}"],
        },
        Rule {
            id: "claim-name",
            field: "spec.persistence.existingClaim",
            holds: "must be the name of a claim",
            remedy: "use the name that `kubectl get pvc` shows",
            cel: Cel::Value(concat!("{} == '' || (", is_name!("{}"), ")")),
            check: Check::Fault(Reason::BadName, |controller| {
                let claim = controller.spec.persistence.as_ref()?.existing_claim.as_deref()?;
                (!claim.is_empty() && !is_subdomain(claim))
                    .then(|| format!("is {claim:?}, which is not a valid name of a claim"))
            }),
            good: &["spec: {persistence: {existingClaim: state-1}}"],
            bad: &["spec: {persistence: {existingClaim: A B}}"],
        },
        Rule {
            id: "ha-claim",
            field: "spec.persistence.existingClaim",
            holds: "is required if spec.ha.enabled is true, and spec.persistence.enabled too: all slurmctld share one claim",
            remedy: "create a ReadWriteMany claim and name it here",
            cel: Cel::Object {
                reads: &["spec.external", "spec.ha", "spec.persistence"],
                holds: concat!(
                    is_external!(),
                    " || !has(self.spec.ha) || !has(self.spec.ha.enabled) || !self.spec.ha.enabled || ",
                    claim!("self"),
                    " != ''"
                ),
            },
            check: Check::Fault(Reason::Missing, |controller| {
                let is_absent = controller.spec.is_highly_available() && controller.spec.existing_claim().is_none();
                is_absent.then(|| {
                    "is absent although spec.ha.enabled is true, but all slurmctld must share one claim".into()
                })
            }),
            good: &["spec: {ha: {enabled: true}, persistence: {existingClaim: state}}"],
            bad: &[
                "spec: {ha: {enabled: true}}",
                "spec: {ha: {enabled: true}, persistence: {enabled: false, existingClaim: state}}",
            ],
        },
        overlays(
            "spec.slurmctld, spec.reconfigure, spec.logfile, spec.template.spec, spec.service.spec",
            &["spec: {slurmctld: {args: -v}}"],
        ),
        own_network("remove it; only workers and login pods can use the host network"),
        service_port(),
        service_node_port(),
        external_ips(),
        Rule {
            id: "cluster-name-length",
            field: "spec.clusterName",
            holds: "must have at most 40 characters",
            remedy: "set a shorter one",
            cel: Cel::Value("size({}) <= 40"),
            // Existing objects are not checked: a cluster that runs under a longer name must not be stopped.
            check: Check::New(Reason::BadName, |controller| {
                let name = controller.cluster_name();
                (name.chars().count() > CLUSTER_NAME_LIMIT)
                    .then(|| format!("is {name:?}, which is longer than {CLUSTER_NAME_LIMIT} characters"))
            }),
            good: &["spec: {clusterName: abcdefghijklmnopqrstuvwxyz-abcdefghijklm}"],
            bad: &["spec: {clusterName: abcdefghijklmnopqrstuvwxyz-abcdefghijklmn}"],
        },
        Rule {
            id: "cluster-name-immutable",
            field: "spec.clusterName",
            holds: "cannot be changed",
            remedy: "state and accounting are stored under the name; create another Controller",
            // The default has the namespace in it, which CEL does not see.
            cel: Cel::Change(
                "!has(self.spec.clusterName) || self.spec.clusterName == '' || !has(oldSelf.spec.clusterName) || \
                 oldSelf.spec.clusterName == '' || self.spec.clusterName == oldSelf.spec.clusterName",
            ),
            check: Check::Unchanged(|old, new| old.cluster_name() == new.cluster_name()),
            good: &["spec: {clusterName: slurm_compute}", "spec: {}"],
            bad: &["spec: {clusterName: other}"],
        },
        Rule {
            id: "slurm-key-immutable",
            field: "spec.slurmKeyRef.name",
            holds: "cannot be changed",
            remedy: "every daemon of the cluster uses the key; write the new key to the same Secret",
            cel: Cel::Constant(concat!(
                "has(self.spec.slurmKeyRef) ? self.spec.slurmKeyRef.name : ",
                is_external!(),
                " ? '' : self.metadata.name + '-auth-slurm'"
            )),
            check: Check::Unchanged(|old, new| {
                old.slurm_key().map(|key| key.name) == new.slurm_key().map(|key| key.name)
            }),
            good: &["spec: {slurmKeyRef: {name: compute-auth-slurm, key: k}}", "spec: {}"],
            bad: &["spec: {slurmKeyRef: {name: other, key: k}}"],
        },
        Rule {
            id: "jwt-key-immutable",
            field: "spec.jwtKeyRef",
            holds: "cannot be changed",
            remedy: "write the new key to the same Secret",
            cel: Cel::Constant(concat!(
                "has(self.spec.jwtKeyRef) ? [self.spec.jwtKeyRef.name, self.spec.jwtKeyRef.key] : ",
                "has(self.spec.jwtHs256KeyRef) ? [self.spec.jwtHs256KeyRef.name, self.spec.jwtHs256KeyRef.key] : ",
                is_external!(),
                " ? [] : [self.metadata.name + '-auth-jwt', 'jwt.key']"
            )),
            check: Check::Unchanged(|old, new| {
                let entry = |controller: &Self| controller.jwt_key().map(|key| (key.name, key.key));
                entry(old) == entry(new)
            }),
            good: &[
                "spec: {jwtKeyRef: {name: compute-auth-jwt, key: jwt.key}}",
                "spec: {jwtHs256KeyRef: {name: compute-auth-jwt, key: jwt.key}}",
                "spec: {}",
            ],
            bad: &["spec: {jwtKeyRef: {name: compute-auth-jwt, key: other}}"],
        },
        Rule {
            id: "persistence-immutable",
            field: "spec.persistence.enabled",
            holds: "cannot be changed",
            remedy: LOST_STATE,
            cel: Cel::Constant(is_persistent!("self")),
            check: Check::Unchanged(|old, new| old.spec.is_persistent() == new.spec.is_persistent()),
            good: &["spec: {}", "spec: {persistence: {enabled: true}}"],
            bad: &["spec: {persistence: {enabled: false}}"],
        },
        Rule {
            id: "claim-immutable",
            field: "spec.persistence.existingClaim",
            holds: "cannot be changed",
            remedy: LOST_STATE,
            cel: Cel::Change(concat!(
                "!",
                is_persistent!("self"),
                " || ",
                claim!("self"),
                " == ",
                claim!("oldSelf")
            )),
            check: Check::Unchanged(|old, new| {
                !new.spec.is_persistent() || old.spec.existing_claim() == new.spec.existing_claim()
            }),
            good: &[
                "spec: {persistence: {existingClaim: a}}",
                "spec: {persistence: {enabled: true, existingClaim: a}}",
            ],
            bad: &["spec: {persistence: {existingClaim: b}}", "spec: {}"],
        },
    ];
}

/// Checks one entry of a ConfigMap that `spec.configFileRefs` names.
pub fn check_config_file(config_map: &str, file: &str) -> Problems {
    let mut problems = Problems::default();
    if matches!(file, wellknown::SLURM_CONF_FILE | wellknown::SLURMDBD_CONF_FILE) {
        problems.bad_name(
            "spec.configFileRefs",
            format!("names ConfigMap {config_map:?}, but the operator writes its entry {file:?} itself"),
            "move its lines to extraConf and remove the entry",
        );
    } else if !wellknown::KNOWN_CONFIG_FILES.contains(&file) {
        problems.warn(
            Reason::Ignored,
            "spec.configFileRefs",
            format!("names ConfigMap {config_map:?}, but Slurm does not read its entry {file:?} by itself"),
            "check the spelling, unless another file includes it",
        );
    }
    problems
}

/// Checks the claim that `spec.persistence.existingClaim` names, for a Controller with standbys.
pub fn check_shared_claim(controller: &Controller, access_modes: &[String]) -> Problems {
    let mut problems = Problems::default();
    if controller.spec.is_highly_available() && !access_modes.iter().any(|mode| mode == "ReadWriteMany") {
        let claim = controller.spec.existing_claim().unwrap_or_default();
        problems.bad_value(
            "spec.persistence.existingClaim",
            format!("names claim {claim:?}, which only one node can mount"),
            "name a claim with access mode ReadWriteMany: every slurmctld mounts it",
        );
    }
    problems
}
