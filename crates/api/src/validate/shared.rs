//! Rules that several kinds have.

use kube::{Resource, ResourceExt};

use super::{
    Cel, Check, Reason, Rule,
    cel::{self, is_external, is_name},
    fields::{
        bad_port, check_container, check_name, check_namespace, check_replicas, check_service_spec, check_template,
    },
    names::is_label,
};
use crate::{
    external::ExternalConfig,
    overlay::ContainerOverlay,
    references::ObjectRef,
    templates::{PodTemplate, ServiceTemplate},
};

/// Fields that several kinds have.
pub(super) trait Fields: Resource<DynamicType = ()> + 'static {
    /// `spec.controllerRef`
    fn controller_ref(&self) -> &ObjectRef {
        const NONE: &ObjectRef = &ObjectRef {
            name: String::new(),
            namespace: None,
        };
        NONE
    }

    /// `spec.replicas`
    fn replicas(&self) -> Option<i32> {
        None
    }

    /// The overlays of containers, with their fields.
    fn containers(&self) -> Vec<(&'static str, &Option<ContainerOverlay>)>;

    /// `spec.template`
    fn template(&self) -> Option<&PodTemplate>;

    /// `spec.service`
    fn service(&self) -> Option<&ServiceTemplate> {
        None
    }

    /// Whether `spec.jwtKeyRef` and its older name are set and differ.
    fn has_two_jwt_keys(&self) -> bool {
        false
    }

    /// The daemon that may run outside Kubernetes.
    const DAEMON: &'static str = "";

    /// Whether that daemon runs outside Kubernetes.
    fn is_external(&self) -> bool {
        false
    }

    /// `spec.externalConfig`
    fn external_config(&self) -> Option<&ExternalConfig> {
        None
    }
}

pub(super) const fn name_starts_with_digit<K: Fields>() -> Rule<K> {
    Rule {
        id: "name-digit",
        field: "metadata.name",
        holds: "should not start with a digit: older releases of Kubernetes reject such a name of a Service",
        remedy: "if its Service is rejected, give the object a name that starts with a letter",
        cel: cel::WARNING,
        check: Check::Problems(|object, problems| {
            let (kind, name) = (K::kind(&()), object.name_any());
            if is_label(&name) && name.starts_with(|c: char| c.is_ascii_digit()) {
                problems.warn(
                    Reason::BadName,
                    "metadata.name",
                    format!(
                        "is {name:?}, and older releases of Kubernetes reject Services whose name starts with a digit"
                    ),
                    format!("if its Service is rejected, give the {kind} a name that starts with a letter"),
                );
            }
        }),
        good: &["metadata: {name: a1}"],
        bad: &["metadata: {name: 1a}"],
    }
}

pub(super) const fn controller_name<K: Fields>() -> Rule<K> {
    Rule {
        id: "controller-name",
        field: "spec.controllerRef.name",
        holds: "must be the name of a Controller",
        remedy: "use the name that `kubectl get controllers` shows",
        cel: Cel::Value(is_name!("{}")),
        check: Check::Problems(|object, problems| {
            let ObjectRef { name, namespace: _ } = object.controller_ref();
            check_name(problems, "spec.controllerRef.name", "Controller", name);
        }),
        good: &["spec: {controllerRef: {name: slurm-2}}"],
        bad: &[
            "spec: {controllerRef: {name: ''}}",
            "spec: {controllerRef: {name: Slurm}}",
        ],
    }
}

pub(super) const fn controller_namespace<K: Fields>() -> Rule<K> {
    Rule {
        id: "controller-namespace",
        field: "spec.controllerRef.namespace",
        holds: "must be the namespace of the object",
        remedy: "remove it, and create the object in the namespace of its Controller",
        cel: cel::NAMESPACE,
        check: Check::Problems(|object, problems| {
            let ObjectRef { name: _, namespace } = object.controller_ref();
            let own = object.meta().namespace.as_deref();
            check_namespace(problems, "spec.controllerRef.namespace", namespace.as_deref(), own);
        }),
        good: &["spec: {controllerRef: {name: slurm, namespace: slurm}}"],
        bad: &["spec: {controllerRef: {name: slurm, namespace: other}}"],
    }
}

pub(super) const fn controller_immutable<K: Fields>(remedy: &'static str) -> Rule<K> {
    Rule {
        id: "controller-immutable",
        field: "spec.controllerRef.name",
        holds: "cannot be changed",
        remedy,
        cel: Cel::Constant("self.spec.controllerRef.name"),
        check: Check::Unchanged(|old, new| old.controller_ref().name == new.controller_ref().name),
        good: &[
            "spec: {controllerRef: {name: slurm}}",
            "spec: {controllerRef: {name: slurm, namespace: slurm}}",
        ],
        bad: &["spec: {controllerRef: {name: other}}"],
    }
}

pub(super) const fn replicas<K: Fields>() -> Rule<K> {
    Rule {
        id: "replicas",
        field: "spec.replicas",
        holds: "must be from 0 to 65536",
        remedy: "set 65536 or less",
        cel: Cel::Value("{} >= 0 && {} <= 65536"),
        check: Check::Problems(|object, problems| check_replicas(problems, object.replicas())),
        good: &["spec: {replicas: 0}", "spec: {replicas: 65536}"],
        bad: &["spec: {replicas: 65537}", "spec: {replicas: 70000}"],
    }
}

pub(super) const fn overlays<K: Fields>(field: &'static str, bad: &'static [&'static str]) -> Rule<K> {
    Rule {
        id: "overlay-types",
        field,
        holds: "must have the types of core/v1, and should have no other fields",
        remedy: "see the Kubernetes API reference",
        cel: cel::OPEN,
        check: Check::Problems(|object, problems| {
            for (field, overlay) in object.containers() {
                check_container(problems, field, overlay.as_ref());
            }
            check_template(problems, object.template());
            check_service_spec(problems, object.service());
        }),
        good: &["spec: {template: {spec: {dnsPolicy: Default}}}"],
        bad,
    }
}

pub(super) const fn own_network<K: Fields>(remedy: &'static str) -> Rule<K> {
    Rule {
        id: "own-network",
        field: "spec.template.spec.hostNetwork",
        holds: "must not be true: others find the daemon by a DNS name",
        remedy,
        cel: cel::OPEN,
        check: Check::Fault(Reason::BadValue, |object| {
            let spec = object.template().and_then(|template| template.spec.as_ref());
            let is_set = !object.is_external() && spec.is_some_and(|spec| spec.is_set("hostNetwork"));
            let daemon = K::DAEMON;
            is_set.then(|| format!("is true, and {daemon} would be known by the name of the node it runs on"))
        }),
        good: &["spec: {template: {spec: {hostNetwork: false}}}"],
        bad: &["spec: {template: {spec: {hostNetwork: true}}}"],
    }
}

const PORT_REMEDY: &str = "set a port from 1 to 65535, or remove the field";

pub(super) const fn service_port<K: Fields>() -> Rule<K> {
    Rule {
        id: "service-port",
        field: "spec.service.port",
        holds: "must be a port from 1 to 65535, or 0 for the default",
        remedy: PORT_REMEDY,
        cel: Cel::Value("{} >= 0 && {} <= 65535"),
        check: Check::Fault(Reason::BadValue, |object| {
            bad_service_port(object.service().and_then(|service| service.port))
        }),
        good: &["spec: {service: {port: 0}}", "spec: {service: {port: 65535}}"],
        bad: &["spec: {service: {port: 65536}}", "spec: {service: {port: -1}}"],
    }
}

pub(super) const fn service_node_port<K: Fields>() -> Rule<K> {
    Rule {
        id: "service-node-port",
        field: "spec.service.nodePort",
        holds: "must be a port from 1 to 65535, or 0 for any",
        remedy: PORT_REMEDY,
        cel: Cel::Value("{} >= 0 && {} <= 65535"),
        check: Check::Fault(Reason::BadValue, |object| {
            bad_service_port(object.service().and_then(|service| service.node_port))
        }),
        good: &["spec: {service: {nodePort: 30022}}"],
        bad: &["spec: {service: {nodePort: 70000}}", "spec: {service: {nodePort: -1}}"],
    }
}

fn bad_service_port(port: Option<i64>) -> Option<String> {
    port.filter(|port| !(0..=65535).contains(port))
        .map(|port| format!("is {port}"))
}

pub(super) const fn external_ips<K: Fields>() -> Rule<K> {
    Rule {
        id: "service-external-ips",
        field: "spec.service.spec.externalIPs",
        holds: "is ignored",
        remedy: "use a Service of type LoadBalancer or NodePort",
        cel: cel::WARNING,
        check: Check::Warning(Reason::Ignored, |object| {
            let ips = object.service()?.spec.as_ref()?.get("externalIPs")?.as_array()?;
            (!ips.is_empty()).then(|| {
                "is ignored, because it would let the owner of the Service intercept other traffic (CVE-2020-8554)"
                    .into()
            })
        }),
        good: &["spec: {service: {spec: {type: NodePort}}}"],
        bad: &["spec: {service: {spec: {externalIPs: [10.0.0.1]}}}"],
    }
}

pub(super) const fn jwt_names<K: Fields>() -> Rule<K> {
    Rule {
        id: "jwt-key-names",
        field: "spec.jwtHs256KeyRef",
        holds: "is ignored if spec.jwtKeyRef is set",
        remedy: "remove one of them",
        cel: cel::WARNING,
        check: Check::Warning(Reason::Ignored, |object| {
            object
                .has_two_jwt_keys()
                .then(|| "is ignored, because spec.jwtKeyRef is set and differs".into())
        }),
        good: &["spec: {jwtKeyRef: {name: a, key: k}, jwtHs256KeyRef: {name: a, key: k}}"],
        bad: &["spec: {jwtKeyRef: {name: a, key: k}, jwtHs256KeyRef: {name: b, key: k}}"],
    }
}

/// The rule that a reference in the spec names an entry of a Secret or ConfigMap.
macro_rules! entry_rule {
    ($id:literal, $field:literal, $kind:literal, $of:ident => $reference:expr, $good:literal, [$($bad:literal),+]) => {
        Rule {
            id: $id,
            field: concat!("spec.", $field),
            holds: concat!("must name a ", $kind, " and a key of its data"),
            remedy: "use letters, digits, dashes, dots, and in the key underscores",
            cel: Cel::Value(is_entry!("{}")),
            check: Check::Problems(|$of, problems| {
                if let Some(reference) = $reference {
                    check_entry(problems, concat!("spec.", $field), $kind, &reference.name, &reference.key);
                }
            }),
            good: &[$good],
            bad: &[$($bad),+],
        }
    };
}

pub(super) use entry_rule;

pub(super) const fn external_config<K: Fields>(remedy: &'static str) -> Rule<K> {
    Rule {
        id: "external-config",
        field: "spec.externalConfig",
        holds: "is required if spec.external is true",
        remedy,
        cel: Cel::Object {
            reads: &["spec.external", "spec.externalConfig"],
            holds: concat!("!", is_external!(), " || has(self.spec.externalConfig)"),
        },
        check: Check::Fault(Reason::Missing, |object| {
            let is_absent = object.is_external() && object.external_config().is_none();
            is_absent.then(|| "is absent although spec.external is true".into())
        }),
        good: &["spec: {external: true, externalConfig: {host: head, port: 6800}}"],
        bad: &["spec: {external: true}"],
    }
}

/// The address of the daemon, if it runs outside Kubernetes.
fn address<K: Fields>(object: &K) -> Option<&ExternalConfig> {
    object.external_config().filter(|_| object.is_external())
}

/// The host becomes part of a line in slurm.conf and of arguments that the images' entrypoints pass to a shell.
pub(super) const fn external_host<K: Fields>(remedy: &'static str) -> Rule<K> {
    Rule {
        id: "external-host",
        field: "spec.externalConfig.host",
        holds: "must be a host name or an address",
        remedy,
        cel: Cel::Object {
            reads: &["spec.external", "spec.externalConfig.host"],
            holds: concat!(
                "!",
                is_external!(),
                " || !has(self.spec.externalConfig) || ",
                r"self.spec.externalConfig.host.matches(r'^[-.\w:\[\]%]+$')"
            ),
        },
        check: Check::Fault(Reason::BadValue, |object| {
            let host = &address(object)?.host;
            // Brackets, colons and percent signs occur in IPv6 addresses.
            let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']' | '%');
            (host.is_empty() || !host.chars().all(allowed))
                .then(|| format!("is {host:?}, which is not a host name or address"))
        }),
        good: &["spec: {external: true, externalConfig: {host: '[fe80::1%eth0]', port: 6800}}"],
        bad: &[
            "spec: {external: true, externalConfig: {host: a b, port: 6800}}",
            "spec: {external: true, externalConfig: {host: '', port: 6800}}",
        ],
    }
}

pub(super) const fn external_port<K: Fields>(remedy: &'static str) -> Rule<K> {
    Rule {
        id: "external-port",
        field: "spec.externalConfig.port",
        holds: "must be from 1 to 65535",
        remedy,
        cel: Cel::Object {
            reads: &["spec.external", "spec.externalConfig.port"],
            holds: concat!(
                "!",
                is_external!(),
                " || !has(self.spec.externalConfig) || !has(self.spec.externalConfig.port) || ",
                "(self.spec.externalConfig.port >= 1 && self.spec.externalConfig.port <= 65535)"
            ),
        },
        check: Check::Fault(Reason::BadValue, |object| bad_port(address(object)?.port)),
        good: &["spec: {external: true, externalConfig: {host: a, port: 1}}"],
        bad: &["spec: {external: true, externalConfig: {host: a, port: 0}}"],
    }
}
