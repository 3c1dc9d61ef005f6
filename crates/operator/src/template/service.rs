//! A Service with the user's overlay.

use std::collections::BTreeSet;

use api::templates::ServiceTemplate;
use k8s_openapi::{api::core, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde_json::{Value, json};
use thiserror::Error;

use super::{fields, metadata::Words, set, tidy::tidy};
use crate::finding::Finding;

/// The type of a Service that is a DNS alias.
pub(crate) const EXTERNAL_NAME: &str = "ExternalName";

/// Two ports of a Service with the same name or number.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "spec.service.spec.ports has {0}, which the operator's own port has too or another port has; give each its own"
)]
pub(crate) struct PortClash(String);

/// The parts of a Service.
#[derive(Clone, Debug)]
pub(crate) struct Service<'a> {
    pub(crate) meta: ObjectMeta,
    pub(crate) selector: Words,
    /// The name of the Service's port and of the container's port.
    pub(crate) port_name: &'a str,
    pub(crate) port: u16,
}

impl Service<'_> {
    /// Merges `template` over the Service.
    pub(crate) fn with(self, template: Option<&ServiceTemplate>) -> Result<Value, PortClash> {
        let given = template.and_then(|template| template.spec.as_ref());
        let mut spec = given.map(|spec| spec.fields().clone()).unwrap_or_default();
        // With external addresses the owner could intercept the traffic of others (CVE-2020-8554).
        spec.remove("externalIPs");
        // The operator and Slurm's daemons would send their tokens wherever the name points to.
        if is_external_name(template) {
            spec.remove("type");
        }
        spec.remove("externalName");

        let positive = |port: Option<i64>| port.filter(|port| *port > 0);
        let mut port = fields(json!({
            "name": self.port_name,
            "port": positive(template.and_then(|template| template.port)).unwrap_or(i64::from(self.port)),
            "protocol": "TCP",
            "targetPort": self.port_name,
        }));
        if let Some(node_port) = positive(template.and_then(|template| template.node_port)) {
            set(&mut port, "nodePort", node_port);
        }
        let mut ports = match spec.remove("ports") {
            Some(Value::Array(ports)) => ports,
            _ => Vec::new(),
        };
        ports.push(port.into());
        check_ports(&ports)?;
        set(&mut spec, "ports", ports);

        let mut selector = fields(spec.remove("selector").unwrap_or_default());
        selector.extend(self.selector.into_iter().map(|(key, value)| (key, value.into())));
        set(&mut spec, "selector", selector);
        tidy(&mut spec);
        Ok(json!({ "apiVersion": "v1", "kind": "Service", "metadata": self.meta, "spec": spec }))
    }
}

/// Whether the overlay asks for a DNS alias instead of a Service of our pods.
fn is_external_name(template: Option<&ServiceTemplate>) -> bool {
    let spec = template.and_then(|template| template.spec.as_ref());
    spec.and_then(|spec| spec.get("type")).and_then(Value::as_str) == Some(EXTERNAL_NAME)
}

/// The Service, and the findings about the user's overlay. A Service that was of type ExternalName becomes one of our pods.
pub(crate) fn plan_service(
    template: Option<&ServiceTemplate>,
    built: Result<Value, PortClash>,
    findings: &mut Vec<Finding>,
) -> Option<core::v1::Service> {
    if is_external_name(template) {
        findings.push(Finding::invalid(
            "spec.service.spec.type is ExternalName, which would send Slurm's tokens to another server, so the Service is \
             of type ClusterIP; remove the field, or set ClusterIP, NodePort or LoadBalancer",
        ));
    }
    let read = built.map_err(|clash| clash.to_string()).and_then(|service| {
        serde_json::from_value(service)
            .map_err(|error| format!("spec.service.spec does not fit the ServiceSpec schema: {error}; correct it"))
    });
    read.map_err(|message| findings.push(Finding::invalid(message))).ok()
}

fn check_ports(ports: &[Value]) -> Result<(), PortClash> {
    for field in ["name", "port"] {
        let mut seen = BTreeSet::new();
        for value in ports.iter().filter_map(|port| port.get(field)) {
            if !seen.insert(value.to_string()) {
                return Err(PortClash(format!("{field} {value} twice")));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(template: Value) -> Result<Value, PortClash> {
        Service {
            meta: ObjectMeta::default(),
            selector: Words::from([("a".to_owned(), "b".to_owned())]),
            port_name: "slurmctld",
            port: 6817,
        }
        .with(Some(&serde_json::from_value(template).unwrap()))
    }

    #[test]
    fn our_port_follows_the_users_and_our_selector_wins() {
        let made = service(json!({
            "port": 7000, "nodePort": 30817,
            "spec": {
                "type": "NodePort", "ports": [{ "name": "x", "port": 1 }], "selector": { "a": "x", "c": "d" },
                "externalIPs": ["10.0.0.1"],
            },
        }))
        .unwrap();
        assert_eq!(
            made["spec"],
            json!({
                "type": "NodePort",
                "ports": [
                    { "name": "x", "port": 1 },
                    { "name": "slurmctld", "port": 7000, "protocol": "TCP", "targetPort": "slurmctld", "nodePort": 30817 },
                ],
                "selector": { "a": "b", "c": "d" },
            })
        );
    }

    #[test]
    fn ports_with_the_same_name_or_number_are_rejected() {
        for port in [
            json!({ "name": "slurmctld", "port": 1 }),
            json!({ "name": "x", "port": 6817 }),
        ] {
            assert!(service(json!({ "spec": { "ports": [port] } })).is_err());
        }
    }

    #[test]
    fn a_service_is_never_an_alias_of_another_server() {
        let template = json!({ "spec": { "type": "ExternalName", "externalName": "attacker.example" } });
        let built = service(template.clone());
        let spec = &built.as_ref().unwrap()["spec"];
        assert!(
            spec.get("type").is_none() && spec.get("externalName").is_none(),
            "{spec}"
        );
        let mut findings = Vec::new();
        let template = serde_json::from_value(template).unwrap();
        assert!(plan_service(Some(&template), built, &mut findings).is_some());
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].reason, crate::reason::INVALID_SPEC);
        assert!(findings[0].message.contains("ExternalName"));
        findings.clear();
        plan_service(None, service(json!({ "spec": { "type": "NodePort" } })), &mut findings);
        assert!(findings.is_empty());
    }

    #[test]
    fn a_port_of_zero_means_the_default() {
        assert_eq!(
            service(json!({ "port": 0, "nodePort": 0 })).unwrap()["spec"]["ports"][0]["port"],
            6817
        );
    }
}
