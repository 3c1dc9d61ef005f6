//! Checks of a RestApi.

use kube::ResourceExt;

use super::{
    Problems, Validate,
    fields::{check_container, check_ref, check_replicas, check_service, check_template},
    names::check_service_parent,
};
use crate::restapi::{RestApi, RestApiSpec};

/// A RestApi keeps no state, so every change is accepted: it may be pointed at another Controller.
impl Validate for RestApi {
    fn find_problems(&self, problems: &mut Problems) {
        // Without `..`, so that a new field does not compile until its checks are decided.
        let RestApiSpec {
            controller_ref,
            replicas,
            slurmrestd,
            template,
            service,
        } = &self.spec;
        let own = self.metadata.namespace.as_deref();

        check_service_parent(problems, "RestApi", &self.name_any(), "-restapi");
        check_ref(problems, "spec.controllerRef", "Controller", controller_ref, own);
        check_replicas(problems, *replicas);
        check_container(problems, "spec.slurmrestd", slurmrestd.as_ref());
        check_template(problems, template.as_ref());
        check_service(problems, service.as_ref());
    }
}
