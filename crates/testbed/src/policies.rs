//! Enforces NetworkPolicies, which the network of a cluster here does not do by itself. Only what our charts use: ingress,
//! numbered TCP ports, `podSelector`, `namespaceSelector` and `ipBlock`.
//!
//! The rules are in the network of each selected pod, as the packets arrive there. As Kubernetes requires, traffic from the
//! pod's own node passes. Only packets that open a TCP connection are judged: the connection tracking of a pod's network
//! begins with the first rule there, so it takes a connection that existed before for a new one. A watch on which the API
//! server sends next would lose its events that way.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

/// What `nft` reads where no policy selects the pod. The first line makes the second one valid if there is no table.
const OPEN: &str = "table ip policies\ndelete table ip policies\n";

/// What `nft` reads before the rules of a selected pod. The set of rejected connections keeps its content.
const CLOSED: &str = "\
table ip policies {
    set rejected { type ipv4_addr . inet_service; flags dynamic; }
    chain input { type filter hook input priority filter; policy drop; }
}
flush chain ip policies input
table ip policies {
    chain input {
        iifname lo accept
        tcp flags & (syn | ack) != syn accept
        ct state established,related accept
";

/// The address under which a rejected peer is counted, with the port.
const REJECT: &str =
    "        tcp flags & (syn | ack) == syn update @rejected { ip saddr . tcp dport counter } drop\n    }\n}\n";

type Labels = BTreeMap<String, String>;

/// A pod in its present network. One that was recreated under its name, or whose sandbox was, has no rules yet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PodKey {
    namespace: String,
    name: String,
    uid: String,
    address: String,
}

impl fmt::Display for PodKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}

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

    /// The rules for each pod that has an address of its own: what `nft` reads.
    fn rules(&self) -> Result<BTreeMap<PodKey, String>> {
        let own = self.pods.iter().filter_map(|pod| Some((key(pod)?, pod)));
        let rules = own.map(|(key, pod)| Ok((key, self.rules_of(pod)?)));
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
                    ports if ports.is_empty() => vec!["0-65535".to_owned()],
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
        let mut text = CLOSED.to_owned();
        let gateway = gateway(address(pod).unwrap_or_default());
        let host = pod.status.as_ref().and_then(|status| status.host_ip.clone());
        for node in [gateway, host].into_iter().flatten() {
            let _ = writeln!(text, "        ip saddr {node} accept");
        }
        for (source, ports) in admitted {
            let _ = writeln!(text, "        ip saddr {source} tcp dport {ports} accept");
        }
        text.push_str(REJECT);
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

/// `None` for a pod without an address of its own.
fn key(pod: &Pod) -> Option<PodKey> {
    let metadata = pod.metadata.clone();
    Some(PodKey {
        namespace: metadata.namespace?,
        name: metadata.name?,
        uid: metadata.uid?,
        address: address(pod)?.to_owned(),
    })
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
        (None, _) => Ok("0-65535".to_owned()),
        (Some(IntOrString::Int(first)), last) => Ok(format!("{first}-{}", last.unwrap_or(*first))),
        (Some(IntOrString::String(name)), _) => bail!("port {name} has no number"),
    }
}

/// Connections to a pod that were rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// Namespace and name of the pod.
    pub pod: String,
    /// Namespace and name of the peer, or its address if it is no pod.
    pub source: String,
    pub port: u16,
    /// A client sends the packet again if it gets no response.
    pub packets: u64,
}

/// Address, port and packets of the elements in `nft list set`.
fn parse_rejected(listed: &str) -> Vec<(String, u16, u64)> {
    let elements = listed.split_once("elements = {").map(|(_, rest)| rest);
    let elements = elements.and_then(|rest| rest.split('}').next()).unwrap_or_default();
    let parsed = elements.split(',').filter_map(|element| {
        let words: Vec<&str> = element.split_whitespace().collect();
        let &[source, ".", port, "counter", "packets", packets, ..] = words.as_slice() else {
            return None;
        };
        Some((source.to_owned(), port.parse().ok()?, packets.parse().ok()?))
    });
    parsed.collect()
}

/// What the thread of an [`Enforcement`] has done.
#[derive(Debug, Default)]
struct Applied {
    rules: BTreeMap<PodKey, String>,
    /// Namespace and name of all pods, by address.
    names: BTreeMap<String, String>,
    problem: Option<String>,
}

/// Enforces the policies of a cluster until it is dropped. When the test fails, the rejected connections are printed.
#[derive(Debug)]
pub struct Enforcement {
    cluster: &'static Cluster,
    stop: Arc<AtomicBool>,
    applied: Arc<Mutex<Applied>>,
    thread: Option<JoinHandle<()>>,
}

impl Enforcement {
    pub fn begin(cluster: &'static Cluster) -> Self {
        let (stop, applied) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::default()));
        let (ends, state) = (Arc::clone(&stop), Arc::clone(&applied));
        let thread = thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                let mut applied = lock(&state);
                applied.problem = cluster.enforce(&mut applied).err().map(|error| format!("{error:#}"));
                drop(applied);
                thread::sleep(INTERVAL);
            }
            for pod in lock(&state).rules.keys() {
                // Pods that are gone need no rules.
                let _ = cluster.nft(pod, &["-f", "-"], OPEN);
            }
        });
        Self {
            cluster,
            stop,
            applied,
            thread: Some(thread),
        }
    }

    /// What went wrong last.
    pub fn problem(&self) -> Option<String> {
        lock(&self.applied).problem.clone()
    }

    /// What the pods that still exist have rejected.
    pub fn rejected(&self) -> Vec<Rejected> {
        let applied = lock(&self.applied);
        let mut rejected = Vec::new();
        for pod in applied.rules.keys() {
            // A pod that ends, or that no policy selects any more, has no set.
            let listed = self
                .cluster
                .nft(pod, &["list", "set", "ip", "policies", "rejected"], "");
            for (source, port, packets) in parse_rejected(&listed.unwrap_or_default()) {
                rejected.push(Rejected {
                    pod: pod.to_string(),
                    source: applied.names.get(&source).cloned().unwrap_or(source),
                    port,
                    packets,
                });
            }
        }
        rejected
    }
}

impl Drop for Enforcement {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- rejected connections ({:?})", self.problem());
            for Rejected {
                pod,
                source,
                port,
                packets,
            } in self.rejected()
            {
                eprintln!("{source} to {pod}, port {port}: {packets} packets");
            }
        }
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(applied: &Mutex<Applied>) -> MutexGuard<'_, Applied> {
    applied.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cluster {
    fn enforce(&self, applied: &mut Applied) -> Result<()> {
        let kinds = "networkpolicies,pods,namespaces";
        let shown = self.ask(&["get", kinds, "--all-namespaces", "--output=json"])?;
        let wanted = Objects::parse(&shown)?.rules()?;
        applied.rules.retain(|pod, _| wanted.contains_key(pod));
        for (pod, rules) in wanted {
            applied.names.insert(pod.address.clone(), pod.to_string());
            let last = applied.rules.get(&pod).map_or(OPEN, String::as_str);
            // A pod whose containers have not started is tried again.
            if last != rules && self.nft(&pod, &["-f", "-"], &rules).is_ok() {
                applied.rules.insert(pod, rules);
            }
        }
        Ok(())
    }

    /// Runs `nft` in the network of a pod.
    fn nft(&self, PodKey { namespace, name, .. }: &PodKey, arguments: &[&str], input: &str) -> Result<String> {
        let (place, pid) = self.network_of(faults::Pod { namespace, name })?;
        let mut enter = place.command("nsenter");
        enter.args(["--target", &pid, "--net", "--", "nft"]).args(arguments);
        command::output_with_input(&mut enter, input)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(namespace: &str, name: &str, app: &str, ip: &str) -> Value {
        json!({"kind": "Pod", "metadata": {"namespace": namespace, "name": name, "uid": name, "labels": {"app": app}},
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
        let mut rules = rules(&[policy]).into_iter();
        rules.find(|(pod, _)| pod.to_string() == "a/server").unwrap().1
    }

    #[test]
    fn a_pod_that_no_policy_selects_is_open() {
        assert!(rules(&[]).values().all(|rules| rules == OPEN));
    }

    #[test]
    fn a_selected_pod_is_closed_except_to_its_node() {
        let rules = of_server(&json!([]));
        assert!(rules.contains("policy drop"));
        assert!(
            rules.contains("ip saddr 10.244.1.1 accept") && rules.contains("ip saddr 172.31.0.11 accept"),
            "{rules}"
        );
        let of_port = |line: &str| line.contains("dport") && line.ends_with("accept");
        assert!(!rules.lines().any(of_port), "{rules}");
    }

    #[test]
    fn a_pod_selector_is_for_pods_of_the_same_namespace() {
        let from = json!([{"podSelector": {"matchLabels": {"app": "client"}}}]);
        let rules = of_server(&json!([{"from": from, "ports": [{"port": 80}, {"port": 90, "endPort": 99}]}]));
        assert!(rules.contains("ip saddr 10.244.1.3 tcp dport 80-80 "), "{rules}");
        assert!(rules.contains("ip saddr 10.244.1.3 tcp dport 90-99 "), "{rules}");
        assert!(!rules.contains("10.244.2.4"), "{rules}");
    }

    #[test]
    fn both_selectors_of_a_peer_have_to_match() {
        let selector =
            json!({"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["b"]}]});
        let from = json!([{"namespaceSelector": selector, "podSelector": {"matchLabels": {"app": "client"}}}]);
        let rules = of_server(&json!([{"from": from}]));
        assert!(rules.contains("ip saddr 10.244.2.4 tcp dport 0-65535 "), "{rules}");
        assert!(!rules.contains("10.244.1.3"), "{rules}");
    }

    #[test]
    fn a_rule_without_peers_is_for_everybody() {
        let rules = of_server(&json!([{"ports": [{"port": 22}]}]));
        assert!(rules.contains("ip saddr 0.0.0.0/0 tcp dport 22-22 "), "{rules}");
    }

    #[test]
    fn connections_that_are_open_already_pass() {
        let rules = of_server(&json!([]));
        let others = rules.find("tcp flags & (syn | ack) != syn accept").unwrap();
        assert!(others < rules.find("@rejected").unwrap(), "{rules}");
    }

    #[test]
    fn a_pod_that_was_recreated_has_no_rules_yet() {
        let keys = |uid: &str, ip: &str| {
            let mut pod = pod("a", "server", "server", ip);
            pod["metadata"]["uid"] = json!(uid);
            let objects = Objects::parse(&json!({"items": [pod]}).to_string()).unwrap();
            objects.rules().unwrap().into_keys().next().unwrap()
        };
        assert_eq!(keys("1", "10.244.1.2"), keys("1", "10.244.1.2"));
        assert_ne!(keys("1", "10.244.1.2"), keys("2", "10.244.1.2"));
        assert_ne!(keys("1", "10.244.1.2"), keys("1", "10.244.1.9"));
    }

    #[test]
    fn rejected_connections_are_counted_by_source_and_port() {
        let listed = "table ip policies {\n\tset rejected {\n\t\ttype ipv4_addr . inet_service\n\t\tsize 65535\n\t\tflags dynamic\n\
            \t\telements = { 10.244.1.3 . 6820 counter packets 3 bytes 180,\n\t\t\t     10.244.2.4 . 22 counter packets 1 bytes 60 }\n\t}\n}\n";
        let expected = [("10.244.1.3".to_owned(), 6820, 3), ("10.244.2.4".to_owned(), 22, 1)];
        assert_eq!(parse_rejected(listed), expected);
        assert_eq!(parse_rejected("table ip policies {\n\tset rejected {\n\t}\n}\n"), []);
    }
}
