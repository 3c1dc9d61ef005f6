//! Checks of a Controller.

use kube::ResourceExt;
use serde_json::{Value, json};

use super::{
    Problems, Reason, Validate,
    fields::{
        check_at_most, check_container, check_external, check_keys, check_known, check_own_network, check_ref,
        check_service, check_template,
    },
    names::{check_stateful_set_parent, is_subdomain},
};
use crate::{
    controller::{ConfigUpdate, Controller, ControllerSpec, MAX_BACKUPS},
    wellknown,
};

/// Maximum length of a cluster name: upstream's limit, which it has because of slurmdbd.
const CLUSTER_NAME_LIMIT: usize = 40;

impl Validate for Controller {
    fn find_problems(&self, problems: &mut Problems) {
        // Without `..`, so that a new field does not compile until its checks are decided.
        let ControllerSpec {
            cluster_name: _,
            slurm_key_ref,
            jwt_hs256_key_ref,
            jwt_key_ref,
            jwks_key_ref,
            accounting_ref,
            external: _,
            external_config,
            ha,
            slurmctld,
            inplace_reconfigure: _,
            config_update,
            reconfigure,
            logfile,
            template,
            extra_conf: _,
            config_file_refs: _,
            prolog_script_refs: _,
            epilog_script_refs: _,
            prolog_slurmctld_script_refs: _,
            epilog_slurmctld_script_refs: _,
            persistence: _,
            service,
            metrics: _,
        } = &self.spec;
        let own = self.metadata.namespace.as_deref();

        check_stateful_set_parent(problems, "Controller", &self.name_any(), "-controller");
        check_cluster_name(problems, &self.cluster_name());
        check_keys(
            problems,
            [slurm_key_ref, jwt_key_ref, jwt_hs256_key_ref],
            jwks_key_ref.as_ref(),
        );
        match accounting_ref {
            Some(reference) if reference.name.is_empty() => problems.warn(
                Reason::Ignored,
                "spec.accountingRef.name",
                "is empty, and the cluster runs without accounting",
                "name the Accounting, or remove the reference",
            ),
            Some(reference) => check_ref(problems, "spec.accountingRef", "Accounting", reference, own),
            None => {}
        }
        for (field, references) in self.spec.file_refs() {
            for (index, reference) in references.iter().enumerate() {
                check_ref(problems, &format!("spec.{field}[{index}]"), "ConfigMap", reference, own);
            }
        }
        if let Some(word) = config_update {
            check_known(problems, "spec.configUpdate", word.as_str(), ConfigUpdate::KNOWN);
        }
        check_backups(problems, ha.as_ref().and_then(|ha| ha.backups));
        if self.spec.is_external() {
            check_external(problems, "slurmctld", external_config.as_ref());
            check_keys_of_external(problems, &self.spec);
        }
        check_storage(problems, &self.spec);
        check_container(problems, "spec.slurmctld", slurmctld.as_ref());
        check_container(problems, "spec.reconfigure", reconfigure.as_ref());
        check_container(problems, "spec.logfile", logfile.as_ref());
        check_template(problems, template.as_ref());
        if !self.spec.is_external() {
            check_own_network(problems, "slurmctld", template.as_ref());
        }
        check_service(problems, service.as_ref());
    }

    fn admit_create(&self) -> Problems {
        let mut problems = self.check();
        let name = self.cluster_name();
        // Existing objects are not checked: a cluster that runs under a longer name must not be stopped.
        if name.chars().count() > CLUSTER_NAME_LIMIT {
            problems.bad_name(
                "spec.clusterName",
                format!("is {name:?}, which is longer than {CLUSTER_NAME_LIMIT} characters"),
                "set a shorter one",
            );
        }
        problems
    }

    fn immutable(&self) -> Vec<(&'static str, Value, &'static str)> {
        let jwt_key = self.jwt_key().map(|key| (key.name, key.key));
        let state = "the cluster would lose its state; create another Controller";
        let mut fields = vec![
            (
                "spec.clusterName",
                json!(self.cluster_name()),
                "state and accounting are stored under the name; create another Controller",
            ),
            (
                "spec.slurmKeyRef.name",
                json!(self.slurm_key().map(|key| key.name)),
                "every daemon of the cluster uses the key; write the new key to the same Secret",
            ),
            ("spec.jwtKeyRef", json!(jwt_key), "write the new key to the same Secret"),
            ("spec.persistence.enabled", json!(self.spec.is_persistent()), state),
        ];
        if self.spec.is_persistent() {
            fields.push((
                "spec.persistence.existingClaim",
                json!(self.spec.existing_claim()),
                state,
            ));
        }
        fields
    }
}

fn check_backups(problems: &mut Problems, backups: Option<i32>) {
    let field = "spec.ha.backups";
    if let Some(backups) = backups.filter(|backups| *backups < 1) {
        problems.bad_value(field, format!("is {backups}"), "set 1 or more");
    }
    check_at_most(problems, field, backups, MAX_BACKUPS);
}

/// The name is part of a line in slurm.conf and of a path.
fn check_cluster_name(problems: &mut Problems, name: &str) {
    let harmful = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | '#' | '=' | '"' | '\'' | '\\');
    if name.contains(harmful) || matches!(name, "." | "..") {
        problems.bad_name(
            "spec.clusterName",
            format!("is {name:?}, which cannot be written to slurm.conf"),
            "use letters, digits, dashes, underscores and dots",
        );
    }
}

fn check_keys_of_external(problems: &mut Problems, spec: &ControllerSpec) {
    let keys = [
        ("spec.slurmKeyRef", "auth/slurm", spec.slurm_key_ref.is_none()),
        ("spec.jwtKeyRef", "auth/jwt", spec.effective_jwt_key_ref().is_none()),
    ];
    for (field, plugin, absent) in keys {
        if absent {
            problems.warn(
                Reason::Missing,
                field,
                "is absent, and the operator cannot generate a key for an external slurmctld",
                format!("write the cluster's {plugin} key to a Secret and refer to it"),
            );
        }
    }
}

fn check_storage(problems: &mut Problems, spec: &ControllerSpec) {
    let claim = spec
        .persistence
        .as_ref()
        .and_then(|persistence| persistence.existing_claim.as_deref());
    if let Some(claim) = claim.filter(|claim| !claim.is_empty() && !is_subdomain(claim)) {
        problems.bad_name(
            "spec.persistence.existingClaim",
            format!("is {claim:?}, which is not a valid name of a claim"),
            "use the name that `kubectl get pvc` shows",
        );
    }
    if spec.is_highly_available() && spec.existing_claim().is_none() {
        problems.missing(
            "spec.persistence.existingClaim",
            "is absent although spec.ha.enabled is true, but all slurmctld must share one claim",
            "create a ReadWriteMany claim and name it here",
        );
    }
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
