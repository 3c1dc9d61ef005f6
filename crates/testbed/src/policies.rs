//! Enforces NetworkPolicies, which the network of a cluster here does not do by itself. Only what our charts use: ingress,
//! numbered TCP ports, `podSelector`, `namespaceSelector` and `ipBlock`.
//!
//! The rules are in the network of each selected pod, as the packets arrive there. As Kubernetes requires, traffic from the
//! pod's own node passes.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::cluster::Cluster;
use crate::command;
use crate::faults;

/// How soon new pods and policies are noticed.
const INTERVAL: Duration = Duration::from_millis(500);

/// What `iptables-restore` reads where no policy selects the pod.
const OPEN: &str = "*filter\n:INPUT ACCEPT\nCOMMIT\n";

type Labels = BTreeMap<String, String>;

/// Namespace and name of a pod.
type PodKey = (String, String);

/// What the policies are about.
#[derive(Debug, Default)]
struct Objects {
    policies: Vec<NetworkPolicy>,
    pods: Vec<Pod>,
    namespaces: Vec<Namespace>,
}

impl Objects {
    /// Of `kubectl get networkpolicies,pods,namespaces --output=json`.
    fn parse(text: &str) -> Result<Self> {
        let list: serde_json::Value = serde_json::from_str(text)?;
        let mut objects = Self::default();
        for item in list
            .get("items")
            .and_then(|items| items.as_array())
            .context("no list")?
        {
            let item = item.clone();
            match item.get("kind").and_then(|kind| kind.as_str()) {
                Some("NetworkPolicy") => objects.policies.push(serde_json::from_value(item)?),
                Some("Pod") => objects.pods.push(serde_json::from_value(item)?),
                Some("Namespace") => objects.namespaces.push(serde_json::from_value(item)?),
                kind => bail!("an object of kind {kind:?}"),
            }
        }
        Ok(objects)
    }

    /// The rules for each pod that has an address of its own: what `iptables-restore` reads.
    fn rules(&self) -> Result<BTreeMap<PodKey, String>> {
        let own = self.pods.iter().filter(|pod| address(pod).is_some());
        let rules = own.map(|pod| Ok((key(pod), self.rules_of(pod)?)));
        rules.collect()
    }

    fn rules_of(&self, pod: &Pod) -> Result<String> {
        let mut admitted = Vec::new();
        let mut selected = false;
        for policy in &self.policies {
            let spec = policy.spec.as_ref().context("a policy without a spec")?;
            let selector = spec.pod_selector.clone().unwrap_or_default();
            if policy.metadata.namespace != pod.metadata.namespace || !matches(&selector, pod.metadata.labels.as_ref())?
            {
                continue;
            }
            ensure!(
                spec.policy_types.as_deref() == Some(&["Ingress".to_owned()]),
                "only ingress"
            );
            selected = true;
            for rule in spec.ingress.iter().flatten() {
                let sources = match rule.from.as_deref() {
                    None | Some([]) => vec!["0.0.0.0/0".to_owned()],
                    Some(peers) => self.sources(peers, pod.metadata.namespace.as_deref())?,
                };
                let ports: Result<Vec<String>> = rule.ports.iter().flatten().map(port_range).collect();
                let ports = match ports? {
                    ports if ports.is_empty() => vec!["0:65535".to_owned()],
                    ports => ports,
                };
                for source in &sources {
                    admitted.extend(ports.iter().map(|ports| (source.clone(), ports.clone())));
                }
            }
        }
        if !selected {
            return Ok(OPEN.to_owned());
        }
        let mut text = "*filter\n:INPUT DROP\n\
            -A INPUT -i lo -j ACCEPT\n\
            -A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT\n"
            .to_owned();
        let gateway = gateway(address(pod).unwrap_or_default());
        let host = pod.status.as_ref().and_then(|status| status.host_ip.clone());
        for node in [gateway, host].into_iter().flatten() {
            let _ = writeln!(text, "-A INPUT -s {node} -j ACCEPT");
        }
        for (source, ports) in admitted {
            let _ = writeln!(text, "-A INPUT -s {source} -p tcp --dport {ports} -j ACCEPT");
        }
        text.push_str("COMMIT\n");
        Ok(text)
    }

    /// The addresses of these peers.
    fn sources(&self, peers: &[NetworkPolicyPeer], own: Option<&str>) -> Result<Vec<String>> {
        let mut sources = Vec::new();
        for peer in peers {
            if let Some(block) = &peer.ip_block {
                ensure!(block.except.is_none(), "ipBlock.except is not implemented");
                sources.push(block.cidr.clone());
                continue;
            }
            for pod in &self.pods {
                let here = match &peer.namespace_selector {
                    None => pod.metadata.namespace.as_deref() == own,
                    Some(selector) => self.is_in(pod, selector)?,
                };
                let selector = peer.pod_selector.clone().unwrap_or_default();
                if here && matches(&selector, pod.metadata.labels.as_ref())? {
                    sources.extend(address(pod).map(str::to_owned));
                }
            }
        }
        Ok(sources)
    }

    fn is_in(&self, pod: &Pod, selector: &LabelSelector) -> Result<bool> {
        let of_it = |namespace: &&Namespace| namespace.metadata.name == pod.metadata.namespace;
        let namespace = self.namespaces.iter().find(of_it);
        namespace.map_or(Ok(false), |namespace| {
            matches(selector, namespace.metadata.labels.as_ref())
        })
    }
}

fn key(pod: &Pod) -> PodKey {
    let metadata = pod.metadata.clone();
    (
        metadata.namespace.unwrap_or_default(),
        metadata.name.unwrap_or_default(),
    )
}

/// The address of a pod that runs and does not use its node's.
fn address(pod: &Pod) -> Option<&str> {
    let is_of_node = pod.spec.as_ref()?.host_network == Some(true);
    let status = pod.status.as_ref()?;
    let has_ended = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    status.pod_ip.as_deref().filter(|_| !is_of_node && !has_ended)
}

/// The address under which a node talks to its pods: the first of their network.
fn gateway(address: &str) -> Option<String> {
    let (network, _) = address.rsplit_once('.')?;
    Some(format!("{network}.1"))
}

fn matches(selector: &LabelSelector, labels: Option<&Labels>) -> Result<bool> {
    let label = |key: &str| labels.and_then(|labels| labels.get(key));
    for (key, value) in selector.match_labels.iter().flatten() {
        if label(key) != Some(value) {
            return Ok(false);
        }
    }
    for expression in selector.match_expressions.iter().flatten() {
        let found = label(&expression.key);
        let is_listed = found.is_some_and(|found| expression.values.iter().flatten().any(|value| value == found));
        let holds = match expression.operator.as_str() {
            "In" => is_listed,
            "NotIn" => !is_listed,
            "Exists" => found.is_some(),
            "DoesNotExist" => found.is_none(),
            other => bail!("operator {other}"),
        };
        if !holds {
            return Ok(false);
        }
    }
    Ok(true)
}

fn port_range(port: &NetworkPolicyPort) -> Result<String> {
    ensure!(
        port.protocol.as_deref().is_none_or(|protocol| protocol == "TCP"),
        "only TCP"
    );
    match (&port.port, port.end_port) {
        (None, _) => Ok("0:65535".to_owned()),
        (Some(IntOrString::Int(first)), last) => Ok(format!("{first}:{}", last.unwrap_or(*first))),
        (Some(IntOrString::String(name)), _) => bail!("port {name} has no number"),
    }
}

/// Enforces the policies of a cluster until it is dropped.
#[derive(Debug)]
pub struct Enforcement {
    stop: Arc<AtomicBool>,
    problem: Arc<Mutex<Option<String>>>,
    thread: Option<JoinHandle<()>>,
}

impl Enforcement {
    pub fn begin(cluster: &'static Cluster) -> Self {
        let (stop, problem) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(None)));
        let (ends, problems) = (Arc::clone(&stop), Arc::clone(&problem));
        let thread = thread::spawn(move || {
            let mut applied = BTreeMap::new();
            while !ends.load(Ordering::Relaxed) {
                let result = cluster.enforce(&mut applied);
                *problems.lock().unwrap_or_else(PoisonError::into_inner) =
                    result.err().map(|error| format!("{error:#}"));
                thread::sleep(INTERVAL);
            }
            for pod in applied.keys() {
                // Pods that are gone need no rules.
                let _ = cluster.restore(pod, OPEN);
            }
        });
        Self {
            stop,
            problem,
            thread: Some(thread),
        }
    }

    /// What went wrong last.
    pub fn problem(&self) -> Option<String> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Enforcement {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Cluster {
    fn enforce(&self, applied: &mut BTreeMap<PodKey, String>) -> Result<()> {
        let kinds = "networkpolicies,pods,namespaces";
        let shown = self.ask(&["get", kinds, "--all-namespaces", "--output=json"])?;
        let wanted = Objects::parse(&shown)?.rules()?;
        applied.retain(|pod, _| wanted.contains_key(pod));
        for (pod, rules) in wanted {
            let last = applied.get(&pod).map_or(OPEN, String::as_str);
            // A pod whose containers have not started is tried again.
            if last != rules && self.restore(&pod, &rules).is_ok() {
                applied.insert(pod, rules);
            }
        }
        Ok(())
    }

    fn restore(&self, (namespace, name): &PodKey, rules: &str) -> Result<()> {
        let (place, pid) = self.network_of(faults::Pod { namespace, name })?;
        let mut enter = place.command("nsenter");
        enter.args(["--target", &pid, "--net", "--", "iptables-restore", "--wait"]);
        command::output_with_input(&mut enter, rules).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(namespace: &str, name: &str, app: &str, ip: &str) -> Value {
        json!({"kind": "Pod", "metadata": {"namespace": namespace, "name": name, "labels": {"app": app}},
               "spec": {"containers": []}, "status": {"podIP": ip, "hostIP": "172.31.0.11", "phase": "Running"}})
    }

    fn policy(spec: &Value) -> Value {
        json!({"kind": "NetworkPolicy", "metadata": {"namespace": "a", "name": "p"}, "spec": spec})
    }

    fn rules(policies: &[Value]) -> BTreeMap<PodKey, String> {
        let mut items = vec![
            pod("a", "server", "server", "10.244.1.2"),
            pod("a", "client", "client", "10.244.1.3"),
            pod("b", "client", "client", "10.244.2.4"),
            json!({"kind": "Namespace", "metadata": {"name": "b", "labels": {"kubernetes.io/metadata.name": "b"}}}),
        ];
        items.extend_from_slice(policies);
        Objects::parse(&json!({"items": items}).to_string())
            .unwrap()
            .rules()
            .unwrap()
    }

    fn of_server(ingress: &Value) -> String {
        let selector = json!({"matchLabels": {"app": "server"}});
        let policy = policy(&json!({"podSelector": selector, "policyTypes": ["Ingress"], "ingress": ingress}));
        rules(&[policy]).remove(&("a".to_owned(), "server".to_owned())).unwrap()
    }

    #[test]
    fn a_pod_that_no_policy_selects_is_open() {
        assert!(rules(&[]).values().all(|rules| rules == OPEN));
    }

    #[test]
    fn a_selected_pod_is_closed_except_to_its_node() {
        let rules = of_server(&json!([]));
        assert!(rules.contains(":INPUT DROP"));
        assert!(
            rules.contains("-s 10.244.1.1 -j ACCEPT") && rules.contains("-s 172.31.0.11 -j ACCEPT"),
            "{rules}"
        );
        assert!(!rules.contains("--dport"), "{rules}");
    }

    #[test]
    fn a_pod_selector_is_for_pods_of_the_same_namespace() {
        let from = json!([{"podSelector": {"matchLabels": {"app": "client"}}}]);
        let rules = of_server(&json!([{"from": from, "ports": [{"port": 80}, {"port": 90, "endPort": 99}]}]));
        assert!(rules.contains("-s 10.244.1.3 -p tcp --dport 80:80 "), "{rules}");
        assert!(rules.contains("-s 10.244.1.3 -p tcp --dport 90:99 "), "{rules}");
        assert!(!rules.contains("10.244.2.4"), "{rules}");
    }

    #[test]
    fn both_selectors_of_a_peer_have_to_match() {
        let selector =
            json!({"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["b"]}]});
        let from = json!([{"namespaceSelector": selector, "podSelector": {"matchLabels": {"app": "client"}}}]);
        let rules = of_server(&json!([{"from": from}]));
        assert!(rules.contains("-s 10.244.2.4 -p tcp --dport 0:65535 "), "{rules}");
        assert!(!rules.contains("10.244.1.3"), "{rules}");
    }

    #[test]
    fn a_rule_without_peers_is_for_everybody() {
        let rules = of_server(&json!([{"ports": [{"port": 22}]}]));
        assert!(rules.contains("-s 0.0.0.0/0 -p tcp --dport 22:22 "), "{rules}");
    }
}
