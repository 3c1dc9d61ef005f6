//! Checks of a LoginSet.

use kube::ResourceExt;

use super::{
    Problems, Reason, Validate,
    fields::{
        check_container, check_not_negative, check_ref, check_secret_key, check_service, check_template,
        check_unchanged,
    },
    names::check_service_parent,
};
use crate::loginset::{LoginSet, LoginSetSpec};

impl Validate for LoginSet {
    fn check(&self) -> Problems {
        // Without `..`: a new field does not compile until somebody has thought about its checks.
        let LoginSetSpec {
            controller_ref,
            replicas,
            login,
            initconf,
            template,
            root_ssh_authorized_keys: _,
            extra_sshd_config: _,
            sssd_conf_ref,
            strategy,
            service,
        } = &self.spec;
        let own = self.metadata.namespace.as_deref();
        let mut problems = Problems::default();

        check_service_parent(&mut problems, "LoginSet", &self.name_any(), "");
        check_ref(&mut problems, "spec.controllerRef", "Controller", controller_ref, own);
        check_secret_key(&mut problems, "spec.sssdConfRef", sssd_conf_ref);
        check_not_negative(&mut problems, "spec.replicas", *replicas);
        let strategy = strategy
            .as_ref()
            .and_then(|strategy| strategy.type_.as_deref())
            .unwrap_or_default();
        if !matches!(strategy, "" | "RollingUpdate" | "Recreate") {
            problems.error(
                Reason::BadValue,
                "spec.strategy.type",
                format!("is {strategy:?}"),
                "use RollingUpdate or Recreate",
            );
        }
        check_container(&mut problems, "spec.login", login.as_ref());
        check_container(&mut problems, "spec.initconf", initconf.as_ref());
        check_template(&mut problems, template.as_ref());
        check_service(&mut problems, service.as_ref());
        problems
    }

    fn check_change(&self, old: &Self) -> Problems {
        let mut problems = Problems::default();
        check_unchanged(
            &mut problems,
            "spec.controllerRef.name",
            &old.spec.controller_ref.name,
            &self.spec.controller_ref.name,
            "people logged in would find themselves in another cluster; make another LoginSet",
        );
        problems
    }
}
