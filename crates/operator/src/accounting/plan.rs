//! Decides what to do about an Accounting. Pure.

use api::keys::apps;
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Secret, Service},
};
use slurm::{
    conf::{SlurmdbdConf, Storage, render_slurmdbd_conf},
    revision::Digest,
};

use super::{
    build::{Ingredients, build_config, build_service, build_stateful_set},
    observe::{Found, Observed},
};
use crate::{
    finding::Finding,
    reason,
    secret::{entry, missing},
    template::{container::image_to_run, service::plan_service},
};

/// The children to apply.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    pub(super) service: Option<Service>,
    /// slurmdbd.conf, which has the password in it.
    pub(super) config: Option<Secret>,
    pub(super) stateful_set: Option<StatefulSet>,
    /// slurmdbd is external: children of ours are deleted.
    pub(super) external: bool,
}

pub(super) fn plan(observed: &Observed, findings: &mut Vec<Finding>) -> Plan {
    let accounting = observed.accounting.as_ref();
    if accounting.spec.is_external() {
        return Plan {
            external: true,
            ..Plan::default()
        };
    }
    let service = plan_service(build_service(accounting), findings);
    let (config, stateful_set) = plan_slurmdbd(observed, findings).unzip();
    Plan {
        service,
        config,
        stateful_set,
        external: false,
    }
}

/// slurmdbd.conf and the pod that reads it. They are not changed while something that they need is missing.
fn plan_slurmdbd(observed: &Observed, findings: &mut Vec<Finding>) -> Option<(Secret, StatefulSet)> {
    let accounting = observed.accounting.as_ref();
    let spec = &accounting.spec;
    let slurm_key = find(&observed.slurm_key, "spec.slurmKeyRef", findings);
    let jwt_key = find(&observed.jwt_key, "spec.jwtKeyRef", findings);
    let password = find(&observed.password, "spec.storageConfig.passwordKeyRef", findings);
    if let Some(jwks) = &spec.jwks_key_ref {
        let data = observed.jwks.as_ref().and_then(|config_map| config_map.data.as_ref());
        if data.and_then(|data| data.get(&jwks.key)).is_none() {
            findings.push(Finding::blocking(
                reason::CONFIG_MAP_MISSING,
                format!(
                    "spec.jwksKeyRef names entry {:?} of ConfigMap {:?}, which does not exist; create it, or remove the reference",
                    jwks.key, jwks.name
                ),
            ));
        }
    }
    let (slurm_key, jwt_key, password) = (slurm_key?, jwt_key?, password?);
    let text = render(observed, &password)
        .map_err(|finding| findings.push(finding))
        .ok()?;
    if !findings.is_empty() {
        return None;
    }
    let config = build_config(accounting, &text);
    let set = observed.stateful_set.as_ref();
    let running = set.and_then(|set| set.spec.as_ref()?.template.spec.as_ref());
    let ingredients = Ingredients {
        slurm_key: (observed.slurm_key.reference.as_ref()?, Digest::of(&slurm_key)),
        jwt_key: (observed.jwt_key.reference.as_ref()?, Digest::of(&jwt_key)),
        config: Digest::of(text.as_bytes()),
        image: image_to_run(
            spec.slurmdbd.as_ref(),
            running,
            apps::SLURMDBD,
            &observed.images.slurmdbd,
        ),
    };
    match build_stateful_set(accounting, &ingredients) {
        Ok(stateful_set) => Some((config, stateful_set)),
        Err(error) => {
            findings.push(Finding::invalid(format!(
                "spec.template.spec or spec.slurmdbd does not fit the PodSpec schema: {error}; correct it"
            )));
            None
        }
    }
}

/// slurmdbd.conf.
fn render(observed: &Observed, password: &[u8]) -> Result<String, Finding> {
    let field = "spec.storageConfig.passwordKeyRef";
    let accounting = observed.accounting.as_ref();
    let storage = accounting.spec.storage_config.clone().unwrap_or_default();
    let password = std::str::from_utf8(password).map_err(|_| {
        Finding::invalid(format!(
            "{field} names a password that is not text; give the database's user another one"
        ))
    })?;
    let conf = SlurmdbdConf {
        host: accounting.child_names().pod(),
        jwks: accounting.spec.jwks_key_ref.is_some(),
        storage: Storage {
            port: u16::try_from(storage.port()).unwrap_or_default(),
            user: storage.username.clone().filter(|user| !user.is_empty()),
            database: storage.database().to_owned(),
            // `kubectl create secret --from-file` keeps the end of the line.
            password: password.trim_end_matches(['\r', '\n']).to_owned(),
            host: storage.host,
        },
        extra: accounting.spec.extra_conf.clone().unwrap_or_default(),
    };
    render_slurmdbd_conf(&conf).map_err(|error| {
        Finding::invalid(format!(
            "{field} names a password that {error}, which slurmdbd.conf cannot hold; give the database's user another one"
        ))
    })
}

/// The bytes of a Secret's entry.
fn find(found: &Found, field: &str, findings: &mut Vec<Finding>) -> Option<Vec<u8>> {
    let Some(reference) = &found.reference else {
        findings.push(Finding::blocking(
            reason::CONTROLLER_MISSING,
            format!("{field} is absent, and no Controller whose key could be used refers to this object; set it, or name this object in a Controller's spec.accountingRef"),
        ));
        return None;
    };
    let bytes = entry(found.secret.as_deref(), &reference.key);
    if bytes.is_none() {
        findings.push(missing(
            &format!("{field} names"),
            reference,
            found.secret.as_deref(),
            "create it, or name another",
        ));
    }
    bytes.map(<[u8]>::to_vec)
}
