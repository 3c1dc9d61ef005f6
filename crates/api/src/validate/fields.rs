//! Checks of fields that several kinds have.

use super::{Problems, Reason, core_fields, names::is_subdomain};
use crate::{
    external::ExternalConfig,
    nodeset::MAX_REPLICAS,
    overlay::ContainerOverlay,
    references::{ConfigMapKeyRef, ObjectRef, SecretKeyRef},
    templates::{PodTemplate, ServiceTemplate},
};

/// Checks the name of an object that is referred to.
pub(super) fn check_name(problems: &mut Problems, field: &str, kind: &str, name: &str) {
    if name.is_empty() {
        problems.error(Reason::Missing, field, "is empty", format!("name the {kind}"));
    } else if !is_subdomain(name) {
        problems.error(
            Reason::BadName,
            field,
            format!("is {name:?}, which no {kind} can be called"),
            format!("name the {kind} as `kubectl get` shows it"),
        );
    }
}

/// Checks that a reference stays in the namespace of the object it is in.
pub(super) fn check_namespace(problems: &mut Problems, field: &str, referred: Option<&str>, own: Option<&str>) {
    // An object without a namespace is one that was never sent to a server, and none can be compared with.
    if let (Some(referred), Some(own)) = (referred.filter(|namespace| !namespace.is_empty()), own)
        && referred != own
    {
        problems.error(
            Reason::OtherNamespace,
            field,
            format!("is {referred:?}, and references stay in the object's own namespace {own:?}"),
            format!("remove it, and make the object that is meant in {own:?}"),
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
        problems.error(
            Reason::Missing,
            format!("{field}.key"),
            "is empty",
            format!("name the entry of the {kind} that is meant"),
        );
    } else if !key.chars().all(allowed) {
        problems.error(
            Reason::BadName,
            format!("{field}.key"),
            format!("is {key:?}, which no entry of a {kind} can be called"),
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
            "is not looked at, since spec.jwtKeyRef is set and differs",
            "remove one of them",
        );
    }
}

/// Checks the address of a daemon outside Kubernetes.
pub(super) fn check_external(problems: &mut Problems, daemon: &str, config: Option<&ExternalConfig>) {
    let Some(ExternalConfig { host, port }) = config else {
        problems.error(
            Reason::Missing,
            "spec.externalConfig",
            "is absent while spec.external is true",
            format!("say host and port of {daemon}"),
        );
        return;
    };
    // The host becomes part of a line in slurm.conf, and of arguments that the images' entrypoints hand to a shell. Brackets, colons and
    // percent signs are those of IPv6 addresses.
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']' | '%');
    if host.is_empty() || !host.chars().all(allowed) {
        problems.error(
            Reason::BadValue,
            "spec.externalConfig.host",
            format!("is {host:?}, which is no host"),
            format!("give the name or address of the host {daemon} runs on"),
        );
    }
    let remedy = format!("give the port of {daemon}, from 1 to 65535");
    check_port(problems, "spec.externalConfig.port", *port, &remedy);
}

/// Checks a port number.
pub(super) fn check_port(problems: &mut Problems, field: &str, port: Option<i64>, remedy: &str) {
    if let Some(port) = port.filter(|port| !(1..=65535).contains(port)) {
        problems.error(Reason::BadValue, field, format!("is {port}"), remedy);
    }
}

/// Checks that a word is one of those that this release knows.
pub(super) fn check_known(problems: &mut Problems, field: &str, word: &str, known: &[&str]) {
    if !known.contains(&word) {
        let remedy = format!("use one of {}", known.join(", "));
        problems.error(Reason::BadValue, field, format!("is {word:?}"), remedy);
    }
}

/// Checks a number that must not be negative.
pub(super) fn check_not_negative(problems: &mut Problems, field: &str, number: Option<impl Into<i64>>) {
    if let Some(number) = number.map(Into::into).filter(|number| *number < 0) {
        problems.error(Reason::BadValue, field, format!("is {number}"), "give 0 or more");
    }
}

/// Checks a number of pods.
pub(super) fn check_replicas(problems: &mut Problems, replicas: Option<i32>) {
    check_not_negative(problems, "spec.replicas", replicas);
    check_at_most(problems, "spec.replicas", replicas, MAX_REPLICAS);
}

/// Checks a number that the operator counts to.
pub(super) fn check_at_most(problems: &mut Problems, field: &str, number: Option<i32>, most: i32) {
    if let Some(number) = number.filter(|number| *number > most) {
        problems.error(
            Reason::BadValue,
            field,
            format!("is {number}, which is more than {most}"),
            format!("give {most} or less"),
        );
    }
}

/// Checks what is to be laid over a container.
pub(super) fn check_container(problems: &mut Problems, field: &str, overlay: Option<&ContainerOverlay>) {
    if let Some(overlay) = overlay {
        core_fields::check(problems, field, overlay);
    }
}

/// Checks what is to be laid over a pod.
pub(super) fn check_template(problems: &mut Problems, template: Option<&PodTemplate>) {
    let Some(PodTemplate { metadata: _, spec }) = template else {
        return;
    };
    if let Some(spec) = spec {
        core_fields::check(problems, "spec.template.spec", spec);
    }
}

/// Checks that a daemon which others find by a name keeps a network of its own.
pub(super) fn check_own_network(problems: &mut Problems, daemon: &str, template: Option<&PodTemplate>) {
    let spec = template.and_then(|template| template.spec.as_ref());
    if spec.is_some_and(|spec| spec.is_set("hostNetwork")) {
        problems.error(
            Reason::BadValue,
            "spec.template.spec.hostNetwork",
            format!("is true, and {daemon} would answer under the name of whatever machine it runs on"),
            "remove it; workers and login pods can have it",
        );
    }
}

/// Checks what is to be laid over a Service.
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
        check_port(problems, field, port, "give a port from 1 to 65535, or none");
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
            "is left out of the Service, since it would let its owner catch other people's traffic (CVE-2020-8554)",
            "use a Service of type LoadBalancer or NodePort",
        );
    }
}

/// Checks that a field is what it was.
pub(super) fn check_unchanged<T: PartialEq>(problems: &mut Problems, field: &str, old: &T, new: &T, remedy: &str) {
    if old != new {
        problems.error(Reason::Immutable, field, "cannot be changed", remedy);
    }
}
