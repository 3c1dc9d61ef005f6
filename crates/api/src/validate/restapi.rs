//! Rules for a RestApi.
//!
//! A RestApi keeps no state, so every change is accepted: it may be pointed at another Controller.

use kube::ResourceExt;

use super::{
    Cel, Check, Rule, Validate,
    cel::is_label,
    names::check_service_parent,
    shared::{
        Fields, controller_name, controller_namespace, external_ips, name_starts_with_digit, overlays, replicas,
        service_node_port, service_port,
    },
};
use crate::{
    overlay::ContainerOverlay,
    references::ObjectRef,
    restapi::RestApi,
    templates::{PodTemplate, ServiceTemplate},
};

impl Fields for RestApi {
    fn controller_ref(&self) -> &ObjectRef {
        &self.spec.controller_ref
    }

    fn replicas(&self) -> Option<i32> {
        self.spec.replicas
    }

    fn containers(&self) -> Vec<(&'static str, &Option<ContainerOverlay>)> {
        vec![("spec.slurmrestd", &self.spec.slurmrestd)]
    }

    fn template(&self) -> Option<&PodTemplate> {
        self.spec.template.as_ref()
    }

    fn service(&self) -> Option<&ServiceTemplate> {
        self.spec.service.as_ref()
    }
}

impl Validate for RestApi {
    const SMALLEST: &'static str = "spec: {controllerRef: {name: slurm}}";

    const FREE: &'static [&'static str] = &[];

    const RULES: &'static [Rule<Self>] = &[
        Rule {
            id: "name",
            field: "metadata.name",
            holds: "must have at most 55 characters and no dots: the Service has that name and -restapi",
            remedy: "give the RestApi a name of at most 55 lower-case letters, digits and dashes",
            cel: Cel::Object {
                reads: &[],
                holds: is_label!(55),
            },
            check: Check::Problems(|api, problems| {
                check_service_parent(problems, "RestApi", &api.name_any(), "-restapi");
            }),
            good: &["metadata: {name: my-api}"],
            bad: &["metadata: {name: my.api}"],
        },
        name_starts_with_digit(),
        controller_name(),
        controller_namespace(),
        replicas(),
        service_port(),
        service_node_port(),
        overlays(
            "spec.slurmrestd, spec.template.spec, spec.service.spec",
            &["spec: {slurmrestd: {args: -v}}"],
        ),
        external_ips(),
    ];
}
