//! Checks of fields that several kinds have.

use super::{Problems, Reason, core_fields, names::is_subdomain};
use crate::{
    nodeset::MAX_REPLICAS,
    overlay::ContainerOverlay,
    references::ObjectRef,
    templates::{PodTemplate, ServiceTemplate},
};

/// Checks the name of a referenced object.
pub(super) fn check_name(problems: &mut Problems, field: &str, kind: &str, name: &str) {
    if name.is_empty() {
        problems.missing(field, "is empty", format!("name the {kind}"));
    } else if !is_subdomain(name) {
        problems.bad_name(
            field,
            format!("is {name:?}, which is not a valid name of a {kind}"),
            "use the name that `kubectl get` shows",
        );
    }
}

/// Checks that a reference stays in the namespace of the object it is in.
pub(super) fn check_namespace(problems: &mut Problems, field: &str, referred: Option<&str>, own: Option<&str>) {
    // An object without a namespace was never sent to an API server, so there is nothing to compare.
    if let (Some(referred), Some(own)) = (referred.filter(|namespace| !namespace.is_empty()), own)
        && referred != own
    {
        problems.error(
            Reason::OtherNamespace,
            field,
            format!("is {referred:?}, but references must stay in the object's own namespace {own:?}"),
            format!("remove the namespace, and create the object in {own:?}"),
        );
    }
}

/// Checks a reference to an object.
pub(super) fn check_ref(problems: &mut Problems, field: &str, kind: &str, reference: &ObjectRef, own: Option<&str>) {
    let ObjectRef { name, namespace } = reference;
    check_name(problems, &format!("{field}.name"), kind, name);
    check_namespace(problems, &format!("{field}.namespace"), namespace.as_deref(), own);
}

/// Checks the name and the key of an entry of a Secret or ConfigMap.
pub(super) fn check_entry(problems: &mut Problems, field: &str, kind: &str, name: &str, key: &str) {
    check_name(problems, &format!("{field}.name"), kind, name);
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if key.is_empty() {
        problems.missing(
            format!("{field}.key"),
            "is empty",
            format!("name the entry of the {kind}"),
        );
    } else if !key.chars().all(allowed) {
        problems.bad_name(
            format!("{field}.key"),
            format!("is {key:?}, which is not a valid key of a {kind}"),
            "use letters, digits, dashes, underscores and dots",
        );
    }
}

/// The fault of a port number.
pub(super) fn bad_port(port: Option<i64>) -> Option<String> {
    port.filter(|port| !(1..=65535).contains(port))
        .map(|port| format!("is {port}"))
}

/// Checks that a word is one of those that this release knows.
pub(super) fn check_known(problems: &mut Problems, field: &str, word: &str, known: &[&str]) {
    if !known.contains(&word) {
        let remedy = format!("use one of {}", known.join(", "));
        problems.bad_value(field, format!("is {word:?}"), remedy);
    }
}

/// The fault of a number that must not be negative.
pub(super) fn negative(number: Option<impl Into<i64>>) -> Option<String> {
    number
        .map(Into::into)
        .filter(|number: &i64| *number < 0)
        .map(|number| format!("is {number}"))
}

/// Checks a number of pods.
pub(super) fn check_replicas(problems: &mut Problems, replicas: Option<i32>) {
    if let Some(fault) = negative(replicas) {
        problems.bad_value("spec.replicas", fault, "set 0 or more");
    }
    check_at_most(problems, "spec.replicas", replicas, MAX_REPLICAS);
}

/// Checks a number that has a maximum.
pub(super) fn check_at_most(problems: &mut Problems, field: &str, number: Option<i32>, most: i32) {
    if let Some(number) = number.filter(|number| *number > most) {
        problems.bad_value(
            field,
            format!("is {number}, which is more than {most}"),
            format!("set {most} or less"),
        );
    }
}

/// Checks the overlay of a container.
pub(super) fn check_container(problems: &mut Problems, field: &str, overlay: Option<&ContainerOverlay>) {
    if let Some(overlay) = overlay {
        core_fields::check(problems, field, overlay);
    }
}

/// Checks the overlay of a pod.
pub(super) fn check_template(problems: &mut Problems, template: Option<&PodTemplate>) {
    let Some(PodTemplate { metadata: _, spec }) = template else {
        return;
    };
    if let Some(spec) = spec {
        core_fields::check(problems, "spec.template.spec", spec);
    }
}

/// Checks the overlay of a Service.
pub(super) fn check_service_spec(problems: &mut Problems, service: Option<&ServiceTemplate>) {
    if let Some(spec) = service.and_then(|service| service.spec.as_ref()) {
        core_fields::check(problems, "spec.service.spec", spec);
    }
}
