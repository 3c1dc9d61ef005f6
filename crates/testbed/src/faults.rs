//! Faults of a cluster, one function each. A lasting fault is a value: dropping it heals the cluster.

use std::fmt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;

use crate::cluster::Cluster;
use crate::command;
use crate::containerd;
use crate::control_plane;
use crate::namespaces::Namespaces;
use crate::network::{API_PORT, CONTROL_PLANE};
use crate::process::Process;
use crate::volumes::{FREEZABLE, LIMITED, MIRROR};

/// Maximum number of attempts to freeze a container.
const PAUSES: u32 = 5;

/// A fault that is healed when this is dropped.
pub struct Fault {
    heal: Option<Box<dyn FnOnce() -> Result<()> + Send>>,
}

impl Fault {
    fn new(heal: impl FnOnce() -> Result<()> + Send + 'static) -> Self {
        Self {
            heal: Some(Box::new(heal)),
        }
    }

    pub fn heal(mut self) -> Result<()> {
        self.heal.take().map_or(Ok(()), |heal| heal())
    }
}

impl Drop for Fault {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.heal.take().map(|heal| heal()) {
            eprintln!("a fault could not be healed: {error:#}");
        }
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Fault")
            .field("healed", &self.heal.is_none())
            .finish()
    }
}

/// A pod by namespace and name.
#[derive(Clone, Copy, Debug)]
pub struct Pod<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
}

impl Cluster {
    /// Stops a control plane component as a crash would; healing starts it again.
    pub fn stop(&self, component: &str) -> Result<Fault> {
        self.component(control_plane::PLACE, component)?
            .end(Signal::SIGKILL, Duration::from_secs(10))?;
        let (cluster, component) = (self.clone(), component.to_owned());
        Ok(Fault::new(move || cluster.start_again(&component)))
    }

    /// Freezes a control plane component: its connections stay open without a response. Healing thaws it.
    pub fn pause(&self, component: &str) -> Result<Fault> {
        self.pause_at(control_plane::PLACE, component)
    }

    /// Freezes the kubelet of a node: its pods go on, whatever happens to their objects. Healing thaws it.
    pub fn pause_kubelet(&self, node: &str) -> Result<Fault> {
        self.pause_at(node, crate::node::KUBELET)
    }

    fn pause_at(&self, place: &str, component: &str) -> Result<Fault> {
        let process = self.component(place, component)?;
        let parent = process.parent()?;
        process.signal(Signal::SIGSTOP)?;
        Ok(Fault::new(move || {
            process.signal(Signal::SIGCONT)?;
            // nsenter stops together with its child, and would never reap it.
            parent.signal(Signal::SIGCONT)
        }))
    }

    /// Restarts a control plane component.
    pub fn restart(&self, component: &str) -> Result<()> {
        self.component(control_plane::PLACE, component)?
            .end(Signal::SIGTERM, Duration::from_secs(20))?;
        self.start_again(component)
    }

    fn start_again(&self, name: &str) -> Result<()> {
        let components = control_plane::components(&self.layout, &self.binaries)?;
        let component = components.iter().find(|component| component.name == name);
        let component = component.with_context(|| format!("the control plane has no component {name}"))?;
        self.start_component(control_plane::PLACE, component)?;
        self.wait_api_server()
    }

    /// Cuts a node and its pods off from the API server. Traffic between nodes continues, including DNS.
    pub fn cut_from_control_plane(&self, node: &str) -> Result<Fault> {
        let place = self.node_namespaces(node)?;
        let port = API_PORT.to_string();
        let to = |chain| {
            words(
                chain,
                &["--destination", CONTROL_PLANE, "--protocol", "tcp", "--dport", &port],
            )
        };
        let from = |chain| words(chain, &["--source", CONTROL_PLANE, "--protocol", "tcp"]);
        Filter {
            place,
            pod: None,
            rules: vec![to("OUTPUT"), to("FORWARD"), from("INPUT")],
            target: Target::Drop,
        }
        .put()
    }

    /// Disconnects a node from the network.
    pub fn unplug(&self, node: &str) -> Result<Fault> {
        let port = crate::network::port(self.node_index(node)?);
        let machine = self.machine()?;
        let set = move |state: &str| command::output(machine.network_command("ip").args(["link", "set", &port, state]));
        set("down")?;
        Ok(Fault::new(move || set("up").map(drop)))
    }

    /// Drops every packet between two pods.
    pub fn drop_traffic(&self, one: Pod, other: Pod) -> Result<Fault> {
        self.cut_from(one, &self.address(other)?)
    }

    /// Drops every packet between a pod and this address.
    pub fn cut_from(&self, pod: Pod, address: &str) -> Result<Fault> {
        let (place, pid) = self.network_of(pod)?;
        let rules = vec![
            words("OUTPUT", &["--destination", address]),
            words("INPUT", &["--source", address]),
        ];
        Filter {
            place,
            pod: Some(pid),
            rules,
            target: Target::Drop,
        }
        .put()
    }

    /// Delays every packet that `from` sends to `to`. The kernel has no netem here, so packets wait in user space.
    pub fn delay_traffic(&self, from: Pod, to: Pod, delay: Duration) -> Result<Fault> {
        let (place, pid) = self.network_of(from)?;
        let rules = vec![words("OUTPUT", &["--destination", &self.address(to)?])];
        let arguments = [
            enter_network(&pid),
            vec![
                crate::own_binary()?,
                "delay-packets".to_owned(),
                delay.as_millis().to_string(),
            ],
        ];
        let log = self.layout.log("faults", "delay-packets");
        let queue = place.start("nsenter", &arguments.concat(), &log)?;
        let filter = Filter {
            place,
            pod: Some(pid),
            rules,
            target: Target::Queue,
        }
        .put()?;
        Ok(Fault::new(move || {
            filter.heal()?;
            queue.end(Signal::SIGKILL, Duration::from_secs(5))
        }))
    }

    /// Fills the volume of a claim of class `limited` completely.
    pub fn fill_volume(&self, namespace: &str, claim: &str) -> Result<Fault> {
        // The others share the host's disk.
        let filler = self.volume(namespace, claim, LIMITED)?.join(".filler");
        let machine = self.machine()?;
        let mut fill = machine.command("dd");
        fill.arg("if=/dev/zero")
            .arg(format!("of={}", filler.display()))
            .arg("bs=64k");
        match command::output(&mut fill) {
            Err(error) if error.to_string().contains("No space left") => {}
            other => bail!("the volume of {claim} did not fill up: {other:?}"),
        }
        Ok(Fault::new(move || {
            command::output(machine.command("rm").arg(filler)).map(drop)
        }))
    }

    /// Freezes the file system of a claim of class `freezable`: every access hangs, as with network storage that does
    /// not respond. Healing thaws it.
    pub fn freeze_volume(&self, namespace: &str, claim: &str) -> Result<Fault> {
        let path = self.volume(namespace, claim, FREEZABLE)?;
        let mirror = Process::with_argument(MIRROR, &path.display().to_string());
        let mirror = mirror.with_context(|| format!("no {MIRROR} shows {}", path.display()))?;
        mirror.signal(Signal::SIGSTOP)?;
        Ok(Fault::new(move || mirror.signal(Signal::SIGCONT)))
    }

    /// The directory of a claim, which must have this class.
    fn volume(&self, namespace: &str, claim: &str, class: &str) -> Result<PathBuf> {
        let path = "jsonpath={.spec.storageClassName} {.spec.volumeName}";
        let answer = self.ask_in(namespace, &["get", "pvc", claim, "-o", path])?;
        match answer.split_once(' ').unwrap_or_default() {
            (found, volume) if found == class => Ok(self.layout.volumes().join(volume)),
            (found, _) => bail!("{claim} has StorageClass {found}, but must have {class}"),
        }
    }

    /// Kills one container of a pod with SIGKILL, as the kernel does when memory runs out.
    pub fn kill_container(&self, pod: Pod, container: &str) -> Result<()> {
        let (place, id) = self.container(pod, Some(container))?;
        ctr(place, &["tasks", "kill", "--signal", "SIGKILL", &id]).map(drop)
    }

    /// Stops the first process of a container, but not its children. Healing continues it.
    pub fn stop_first_process(&self, pod: Pod, container: &str) -> Result<Fault> {
        let (place, id) = self.container(pod, Some(container))?;
        ctr(place, &["tasks", "kill", "--signal", "SIGSTOP", &id])?;
        Ok(Fault::new(move || {
            ctr(place, &["tasks", "kill", "--signal", "SIGCONT", &id]).map(drop)
        }))
    }

    /// Freezes all processes of a container: its connections stay open without a response. Healing thaws them.
    pub fn pause_container(&self, pod: Pod, container: &str) -> Result<Fault> {
        let (place, id) = self.container(pod, Some(container))?;
        // With cgroup v1, runc gives up on a busy machine after a few attempts ("unable to freeze") and thaws the
        // processes.
        let paused = || ctr(place, &["tasks", "pause", &id]);
        (0..PAUSES)
            .find_map(|_| paused().ok())
            .map_or_else(paused, Ok)
            .context("the container cannot be frozen")?;
        Ok(Fault::new(move || ctr(place, &["tasks", "resume", &id]).map(drop)))
    }

    /// The node a pod runs on, and the id of one of its containers.
    pub(crate) fn container(&self, pod: Pod, container: Option<&str>) -> Result<(Namespaces, String)> {
        let object = self.ask_in(pod.namespace, &["get", "pod", pod.name, "-o", "json"])?;
        let object: serde_json::Value = serde_json::from_str(&object)?;
        let node = object
            .pointer("/spec/nodeName")
            .and_then(|node| node.as_str())
            .context("the pod has no node yet")?;
        let statuses = ["/status/containerStatuses", "/status/initContainerStatuses"];
        let id = statuses
            .iter()
            .filter_map(|list| object.pointer(list)?.as_array())
            .flatten()
            .filter(|status| status.pointer("/state/running").is_some())
            .find(|status| container.is_none() || status.get("name").and_then(|name| name.as_str()) == container)
            .and_then(|status| status.get("containerID")?.as_str()?.strip_prefix("containerd://"))
            .with_context(|| {
                format!(
                    "pod {} has no running container {}",
                    pod.name,
                    container.unwrap_or_default()
                )
            })?;
        Ok((self.node_namespaces(node)?, id.to_owned()))
    }

    /// The node a pod runs on, and a process on it that is inside the pod's network.
    pub(crate) fn network_of(&self, pod: Pod) -> Result<(Namespaces, String)> {
        let (place, id) = self.container(pod, None)?;
        let tasks = ctr(place, &["tasks", "list"])?;
        let line = tasks
            .lines()
            .find(|line| line.starts_with(&id))
            .context("the container has no process")?;
        let pid = line.split_whitespace().nth(1).context("the container has no pid")?;
        Ok((place, pid.to_owned()))
    }

    fn address(&self, pod: Pod) -> Result<String> {
        self.ask_in(
            pod.namespace,
            &["get", "pod", pod.name, "-o", "jsonpath={.status.podIP}"],
        )
    }
}

/// Firewall rules in a node's network, or in that of a pod on it.
struct Filter {
    place: Namespaces,
    /// A process in the pod's network, by its pid on the node.
    pod: Option<String>,
    rules: Vec<Vec<String>>,
    target: Target,
}

#[derive(Clone, Copy)]
enum Target {
    Drop,
    Queue,
}

impl Filter {
    fn put(self) -> Result<Fault> {
        self.change("--insert")?;
        Ok(Fault::new(move || self.change("--delete")))
    }

    fn change(&self, action: &str) -> Result<()> {
        for rule in &self.rules {
            let mut command = match &self.pod {
                None => self.place.command("iptables"),
                Some(pid) => {
                    let mut enter = self.place.command("nsenter");
                    enter.args(enter_network(pid)).arg("iptables");
                    enter
                }
            };
            command
                .args(["--wait", action])
                .args(rule)
                .args(self.target.arguments());
            command::output(&mut command)?;
        }
        Ok(())
    }
}

impl Target {
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Drop => &["--jump", "DROP"],
            Self::Queue => &["--jump", "NFQUEUE", "--queue-num", "0"],
        }
    }
}

fn words(chain: &str, rest: &[&str]) -> Vec<String> {
    std::iter::once(&chain)
        .chain(rest)
        .map(|&word| word.to_owned())
        .collect()
}

fn enter_network(pid: &str) -> Vec<String> {
    ["--target", pid, "--net", "--"].map(str::to_owned).to_vec()
}

fn ctr(place: Namespaces, arguments: &[&str]) -> Result<String> {
    let mut command: Command = place.command("ctr");
    command::output(
        command
            .args(["--address", containerd::SOCKET, "--namespace", "k8s.io"])
            .args(arguments),
    )
}

/// Forwards each packet of queue 0 of its network after `delay`.
pub fn delay_packets(delay: Duration) -> Result<()> {
    let mut queue = nfq::Queue::open()?;
    queue.bind(0)?;
    queue.set_nonblocking(true);
    let mut waiting = std::collections::VecDeque::new();
    loop {
        match queue.recv() {
            Ok(packet) => waiting.push_back((std::time::Instant::now() + delay, packet)),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error.into()),
        }
        while let Some((_, mut packet)) = waiting.pop_front_if(|(due, _)| *due <= std::time::Instant::now()) {
            packet.set_verdict(nfq::Verdict::Accept);
            queue.verdict(packet)?;
        }
    }
}
