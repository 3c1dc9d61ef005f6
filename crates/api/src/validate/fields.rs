//! Checks of fields that several kinds have.

use super::{Problems, Reason, core_fields, names::is_subdomain};
use crate::{
    external::ExternalConfig,
    nodeset::MAX_REPLICAS,
    overlay::ContainerOverlay,
    references::{ConfigMapKeyRef, ObjectRef, SecretKeyRef},
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

/// Checks a reference to a Secret's entry.
pub(super) fn check_secret_key(problems: &mut Problems, field: &str, reference: &SecretKeyRef) {
    let SecretKeyRef { name, key, optional: _ } = reference;
    check_entry(problems, field, "Secret", name, key);
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

/// Checks the references to the keys of auth/slurm and auth/jwt, to the latter under its older name, and to the JSON web key set.
pub(super) fn check_keys(
    problems: &mut Problems,
    [slurm, jwt, old_jwt]: [&Option<SecretKeyRef>; 3],
    jwks: Option<&ConfigMapKeyRef>,
) {
    for (field, reference) in [
        ("spec.slurmKeyRef", slurm),
        ("spec.jwtKeyRef", jwt),
        ("spec.jwtHs256KeyRef", old_jwt),
    ] {
        if let Some(reference) = reference {
            check_secret_key(problems, field, reference);
        }
    }
    check_jwt_names(problems, jwt.as_ref(), old_jwt.as_ref());
    if let Some(ConfigMapKeyRef { name, key, optional: _ }) = jwks {
        check_entry(problems, "spec.jwksKeyRef", "ConfigMap", name, key);
    }
}

/// Warns that the key under the older name has no effect, if both names are set and differ.
pub(super) fn check_jwt_names<T: PartialEq>(problems: &mut Problems, new: Option<&T>, old: Option<&T>) {
    if let (Some(new), Some(old)) = (new, old)
        && new != old
    {
        problems.warn(
            Reason::Ignored,
            "spec.jwtHs256KeyRef",
            "is ignored, because spec.jwtKeyRef is set and differs",
            "remove one of them",
        );
    }
}

/// Checks the address of a daemon outside Kubernetes.
pub(super) fn check_external(problems: &mut Problems, daemon: &str, config: Option<&ExternalConfig>) {
    let Some(ExternalConfig { host, port }) = config else {
        problems.missing(
            "spec.externalConfig",
            "is absent although spec.external is true",
            format!("set host and port of {daemon}"),
        );
        return;
    };
    // The host becomes part of a line in slurm.conf and of arguments that the images' entrypoints pass to a shell.
    // Brackets, colons and percent signs occur in IPv6 addresses.
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']' | '%');
    if host.is_empty() || !host.chars().all(allowed) {
        problems.bad_value(
            "spec.externalConfig.host",
            format!("is {host:?}, which is not a host name or address"),
            format!("set the name or address of the host of {daemon}"),
        );
    }
    let remedy = format!("set the port of {daemon}, from 1 to 65535");
    check_port(problems, "spec.externalConfig.port", *port, &remedy);
}

/// Checks a port number.
pub(super) fn check_port(problems: &mut Problems, field: &str, port: Option<i64>, remedy: &str) {
    if let Some(port) = port.filter(|port| !(1..=65535).contains(port)) {
        problems.bad_value(field, format!("is {port}"), remedy);
    }
}

/// Checks that a word is one of those that this release knows.
pub(super) fn check_known(problems: &mut Problems, field: &str, word: &str, known: &[&str]) {
    if !known.contains(&word) {
        let remedy = format!("use one of {}", known.join(", "));
        problems.bad_value(field, format!("is {word:?}"), remedy);
    }
}

/// Checks a number that must not be negative.
pub(super) fn check_not_negative(problems: &mut Problems, field: &str, number: Option<impl Into<i64>>) {
    if let Some(number) = number.map(Into::into).filter(|number| *number < 0) {
        problems.bad_value(field, format!("is {number}"), "set 0 or more");
    }
}

/// Checks a number of pods.
pub(super) fn check_replicas(problems: &mut Problems, replicas: Option<i32>) {
    check_not_negative(problems, "spec.replicas", replicas);
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

/// Checks that a daemon that others find by its DNS name does not use the host network.
pub(super) fn check_own_network(problems: &mut Problems, daemon: &str, template: Option<&PodTemplate>) {
    let spec = template.and_then(|template| template.spec.as_ref());
    if spec.is_some_and(|spec| spec.is_set("hostNetwork")) {
        problems.bad_value(
            "spec.template.spec.hostNetwork",
            format!("is true, and {daemon} would be known by the name of the node it runs on"),
            "remove it; only workers and login pods can use the host network",
        );
    }
}

/// Checks the overlay of a Service.
pub(super) fn check_service(problems: &mut Problems, service: Option<&ServiceTemplate>) {
    let Some(ServiceTemplate {
        metadata: _,
        spec,
        port,
        node_port,
    }) = service
    else {
        return;
    };
    for (field, port) in [("spec.service.port", port), ("spec.service.nodePort", node_port)] {
        // 0 counts as absent.
        let port = port.filter(|port| *port != 0);
        check_port(problems, field, port, "set a port from 1 to 65535, or remove the field");
    }
    let Some(spec) = spec else { return };
    core_fields::check(problems, "spec.service.spec", spec);
    if spec
        .get("externalIPs")
        .and_then(|ips| ips.as_array())
        .is_some_and(|ips| !ips.is_empty())
    {
        problems.warn(
            Reason::Ignored,
            "spec.service.spec.externalIPs",
            "is ignored, because it would let the owner of the Service intercept other traffic (CVE-2020-8554)",
            "use a Service of type LoadBalancer or NodePort",
        );
    }
}
