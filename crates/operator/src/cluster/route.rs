//! Finds the endpoints of a cluster's Slurm from the objects around it. Pure.

use api::{Controller, RestApi, wellknown};
use kube::ResourceExt;
use runtime::Key;
use thiserror::Error;

use super::{
    deliver::JwtKey,
    pods::{Target, agent_in, has_agent, is_labelled_active, slurmctld_pods},
};
use crate::{kinds::Caches, secret::entry, template::service::EXTERNAL_NAME};

/// The endpoints of one cluster, and the key they all need.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Routes {
    pub(super) key: JwtKey,
    /// The address of slurmrestd. `None` if slurmctld hides records from the user of reads and an agent can read them.
    pub(super) rest: Option<String>,
    pub(super) agent: Option<Target>,
    /// No agent exists or is expected: slurmctld is external, or its pod was created without one.
    pub(super) agentless: bool,
}

/// Why nothing can be sent to a cluster's Slurm, as a sentence for people.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct NoRoute(pub(super) String);

/// Returns the routes to the cluster of this Controller. `hides_records`: `PrivateData` hides nodes, jobs, partitions or
/// reservations from users without privileges, or may do so.
pub(super) fn find(caches: &Caches, key: &Key, hides_records: bool) -> Result<Routes, NoRoute> {
    let Key { namespace, name } = key;
    let controller = caches.controllers.get(namespace, name);
    let controller = controller.ok_or_else(|| NoRoute(format!("there is no Controller {name:?}")))?;
    let secret_key = jwt_key(caches, &controller)?;
    let rest = rest_server(caches, key);
    let mut pods = slurmctld_pods(caches, key);
    pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
    // The agent of the active slurmctld; if no pod is labelled active, of the first pod.
    let agents = pods
        .iter()
        .filter_map(|pod| Some((!is_labelled_active(pod), agent_in(pod)?)));
    let agent = agents.min_by_key(|(is_standby, _)| *is_standby);
    let is_external = controller.spec.is_external();
    // As after a takeover of a cluster that another operator created.
    let has_no_agent = !pods.is_empty() && !pods.iter().any(|pod| has_agent(pod));
    let agentless = is_external || has_no_agent;
    let rest = rest.filter(|_| agentless || !hides_records);
    if rest.is_none() && agent.is_none() {
        return Err(NoRoute(if is_external {
            format!("Controller {name:?} is external and no RestApi refers to it; create one")
        } else {
            format!("the pod of Controller {name:?} does not run yet, and no RestApi can replace it")
        }));
    }
    Ok(Routes {
        key: secret_key,
        rest,
        agent: agent.map(|(_, agent)| agent),
        agentless,
    })
}

/// Returns the JWT key that the operator shares with the Controller's slurmctld.
pub(super) fn jwt_key(caches: &Caches, controller: &Controller) -> Result<JwtKey, NoRoute> {
    let name = controller.name_any();
    let reference = controller.jwt_key();
    let reference =
        reference.ok_or_else(|| NoRoute(format!("Controller {name:?} is external and names no jwtKeyRef")))?;
    let secret = caches
        .secrets
        .get(&controller.namespace().unwrap_or_default(), &reference.name);
    let key = entry(secret.as_deref(), &reference.key).map(|key| JwtKey(key.to_vec()));
    key.ok_or_else(|| {
        NoRoute(match secret {
            None => format!(
                "Secret {:?} with the JWT key of Controller {name:?} does not exist",
                reference.name
            ),
            Some(_) => format!(
                "Secret {:?} has no entry {:?} with the JWT key of Controller {name:?}",
                reference.name, reference.key
            ),
        })
    })
}

/// The oldest RestApi of the Controller, as upstream chooses it.
fn rest_server(caches: &Caches, controller: &Key) -> Option<String> {
    let all = caches.rest_apis.list(&controller.namespace);
    let of_it = all
        .iter()
        .filter(|rest| rest.spec.controller_ref.name == controller.name);
    let alive = of_it.filter(|rest| rest.metadata.deletion_timestamp.is_none() && rest.spec.replicas() > 0);
    let oldest: &RestApi = alive.min_by_key(|rest| {
        let created = rest.metadata.creation_timestamp.as_ref();
        (created.map(|time| time.0), rest.name_any())
    })?;
    // Whoever can edit the Service could send the operator's token to another server.
    let service = caches
        .services
        .get(&controller.namespace, &oldest.child_names().service());
    let service_type = service
        .as_ref()
        .and_then(|service| service.spec.as_ref()?.type_.as_deref());
    if service_type == Some(EXTERNAL_NAME) {
        return None;
    }
    let service = oldest.spec.service.as_ref();
    let port = service.and_then(|service| service.port).filter(|port| *port > 0);
    Some(format!(
        "http://{}.{}:{}",
        oldest.child_names().service(),
        controller.namespace,
        port.unwrap_or_else(|| wellknown::SLURMRESTD_PORT.into()),
    ))
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The objects of a cluster with slurmrestd and an agent.
    pub(in crate::cluster) fn cluster_objects() -> Vec<Value> {
        let pod = pod("slurm-controller-0", "10.0.0.1", true);
        let restapi = restapi("slurm", "2026-01-01T00:00:00Z");
        vec![controller(&json!({})), secret(), restapi, stateful_set(), pod]
    }

    fn controller(spec: &Value) -> Value {
        json!({ "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller",
                "metadata": { "namespace": "ns", "name": "slurm", "uid": "c" }, "spec": spec })
    }

    fn secret() -> Value {
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "namespace": "ns", "name": "slurm-auth-jwt" },
                "data": { "jwt.key": "a2V5" } })
    }

    fn restapi(name: &str, created: &str) -> Value {
        json!({ "apiVersion": "slinky.slurm.net/v1beta1", "kind": "RestApi",
                "metadata": { "namespace": "ns", "name": name, "creationTimestamp": created },
                "spec": { "controllerRef": { "name": "slurm" } } })
    }

    fn pod(name: &str, ip: &str, active: bool) -> Value {
        json!({ "apiVersion": "v1", "kind": "Pod",
                "metadata": { "namespace": "ns", "name": name, "uid": format!("uid-{name}"), "labels": {
                    "app.kubernetes.io/name": "slurmctld", "app.kubernetes.io/instance": "slurm",
                    "controller.slinky.slurm.net/active": active.to_string(),
                }, "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "slurm-controller",
                                         "uid": "set", "controller": true }] },
                "spec": { "containers": [{ "name": "reconfigure", "ports": [{ "name": "agent", "containerPort": 6822 }] }] },
                "status": { "podIP": ip } })
    }

    fn stateful_set() -> Value {
        json!({ "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {
            "namespace": "ns", "name": "slurm-controller", "uid": "set", "labels": { "app.kubernetes.io/name": "slurmctld" },
            "ownerReferences": [{ "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller", "name": "slurm",
                                  "uid": "c", "controller": true }],
        } })
    }

    fn routes(objects: Vec<Value>) -> Result<Routes, String> {
        routes_if(false, objects)
    }

    fn routes_if(hides_records: bool, mut objects: Vec<Value>) -> Result<Routes, String> {
        objects.push(stateful_set());
        find(&Caches::of(objects), &Key::new("ns", "slurm"), hides_records).map_err(|error| error.to_string())
    }

    #[test]
    fn hidden_records_are_read_by_the_agent_or_with_privileges() {
        let with = |spec: &Value, pods: Vec<Value>| {
            let objects = [
                vec![controller(spec), secret(), restapi("old", "2026-01-01T00:00:00Z")],
                pods,
            ];
            routes_if(true, objects.concat())
        };
        let external = json!({ "external": true, "jwtKeyRef": { "name": "slurm-auth-jwt", "key": "jwt.key" } });
        let inside = with(&json!({}), vec![pod("slurm-controller-0", "10.0.0.1", true)]).unwrap();
        assert!(inside.rest.is_none() && inside.agent.is_some());
        let external = with(&external, vec![]).unwrap();
        assert!(external.rest.is_some() && external.agentless);
        assert!(with(&json!({}), vec![]).unwrap_err().contains("does not run yet"));
    }

    #[test]
    fn slurmrestd_of_the_oldest_restapi_is_used() {
        let found = routes(vec![
            controller(&json!({})),
            secret(),
            restapi("young", "2026-01-02T00:00:00Z"),
            restapi("old", "2026-01-01T00:00:00Z"),
        ])
        .unwrap();
        assert_eq!(found.rest.as_deref(), Some("http://old-restapi.ns:6820"));
        assert_eq!(found.key.0, b"key");
    }

    #[test]
    fn slurmrestd_is_not_sought_behind_an_alias_of_another_server() {
        let rest = |service_type: &str| {
            let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": {
                                      "namespace": "ns", "name": "old-restapi", "labels": { "app.kubernetes.io/name": "slurmrestd" } },
                                  "spec": { "type": service_type } });
            let restapi = restapi("old", "2026-01-01T00:00:00Z");
            let agent = pod("slurm-controller-0", "10.0.0.1", true);
            routes(vec![controller(&json!({})), secret(), restapi, service, agent])
                .unwrap()
                .rest
        };
        assert!(rest("ClusterIP").is_some());
        assert_eq!(rest("ExternalName"), None);
    }

    #[test]
    fn the_agent_of_the_active_slurmctld_is_used() {
        let pods = |active: bool| {
            vec![
                controller(&json!({})),
                secret(),
                pod("slurm-controller-0", "10.0.0.1", !active),
                pod("slurm-controller-1", "10.0.0.2", active),
            ]
        };
        let agent = |active| routes(pods(active)).unwrap().agent.unwrap();
        assert_eq!(agent(true).address.to_string(), "10.0.0.2:6822");
        assert_eq!(agent(false).uid, "uid-slurm-controller-0");
    }

    #[test]
    fn slurmrestd_carries_orders_only_where_no_agent_exists_or_is_expected() {
        let agentless = |spec: &Value, pods: Vec<Value>| {
            let all = [
                vec![controller(spec), secret(), restapi("old", "2026-01-01T00:00:00Z")],
                pods,
            ]
            .concat();
            routes(all).unwrap().agentless
        };
        let external = json!({ "external": true, "jwtKeyRef": { "name": "slurm-auth-jwt", "key": "jwt.key" } });
        let inside = json!({});
        let with_agent = pod("slurm-controller-0", "10.0.0.1", true);
        let mut without = with_agent.clone();
        without["spec"] = json!({ "containers": [{ "name": "reconfigure" }] });
        assert!(agentless(&external, vec![]));
        assert!(agentless(&inside, vec![without]));
        assert!(!agentless(&inside, vec![with_agent]));
        assert!(!agentless(&inside, vec![]), "its pod is not created yet");
    }

    #[test]
    fn without_a_route_the_error_names_what_is_missing() {
        assert!(routes(vec![]).unwrap_err().contains("no Controller"));
        assert!(
            routes(vec![controller(&json!({}))])
                .unwrap_err()
                .contains("slurm-auth-jwt")
        );
        assert!(
            routes(vec![controller(&json!({})), secret()])
                .unwrap_err()
                .contains("no RestApi")
        );
        let external = json!({ "external": true, "jwtKeyRef": { "name": "slurm-auth-jwt", "key": "jwt.key" } });
        assert!(
            routes(vec![controller(&external), secret()])
                .unwrap_err()
                .contains("external")
        );
    }

    #[test]
    fn the_key_is_not_printed() {
        let found = routes(vec![
            controller(&json!({})),
            secret(),
            pod("slurm-controller-0", "10.0.0.1", true),
        ])
        .unwrap();
        assert!(!format!("{found:?}").contains("107"));
    }
}
