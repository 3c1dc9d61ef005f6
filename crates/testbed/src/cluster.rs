//! The life cycle of a cluster and of its nodes.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;

use crate::cgroups;
use crate::command;
use crate::containerd;
use crate::control_plane::{self, API_SERVER, Component};
use crate::ground;
use crate::image_store;
use crate::images;
use crate::kubernetes::{self, Binaries};
use crate::lock;
use crate::namespaces::{Namespaces, wait_ready};
use crate::network;
use crate::node;
use crate::paths::{self, Layout};
use crate::pki;
use crate::process::Process;
use crate::reading::Question;
use crate::steps::{long_step, step};

/// Requested size of a cluster.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Real nodes; 0 starts the control plane only.
    pub nodes: u8,
    /// Nodes simulated by kwok.
    pub fake_nodes: u32,
}

#[derive(Clone, Debug)]
pub struct Cluster {
    pub layout: Layout,
    pub binaries: Binaries,
}

/// The kubelet listens a second after its start; containerd may take longer to load its state.
const KUBELET_TIMEOUT: Duration = Duration::from_mins(1);

const MACHINE: &str = "machine";
/// Written when `up` has finished. A cluster without it is left over from an `up` that was killed.
const COMPLETE: &str = "complete";

impl Cluster {
    /// Brings the cluster up, unless it is up already.
    pub fn up(name: &str, size: Size) -> Result<Self> {
        if size.nodes > network::MAX_NODES {
            bail!(
                "a cluster has at most {} nodes, {} were requested",
                network::MAX_NODES,
                size.nodes
            );
        }
        let layout = Layout::of(name)?;
        ground::prepare(layout.root().parent().unwrap_or(layout.root()))?;
        let cluster = Self {
            layout,
            binaries: kubernetes::binaries()?,
        };
        let store = if size.nodes > 0 { Some(images::store()?) } else { None };
        let _lock = lock::exclusive(
            &cluster.layout.root().with_extension("lock"),
            "another `up` or `down` of this cluster",
        )?;
        if cluster.is_up() {
            eprintln!("cluster {name} is up already");
            return Ok(cluster);
        }
        cluster.clean()?;
        long_step(
            "bring up the cluster until every node is Ready (about half a minute)",
            || cluster.start(size, store.as_deref()),
        )?;
        Ok(cluster)
    }

    /// A cluster that `up` has brought up.
    pub fn attach(name: &str) -> Result<Self> {
        let cluster = Self {
            layout: Layout::of(name)?,
            binaries: kubernetes::binaries()?,
        };
        if !cluster.is_up() {
            bail!("cluster {name} is not up; `make up` brings it up");
        }
        Ok(cluster)
    }

    /// Ends every process of the cluster and removes its state.
    pub fn down(name: &str) -> Result<()> {
        let layout = Layout::of(name)?;
        let lock_file = layout.root().with_extension("lock");
        let lock = lock::exclusive(&lock_file, "another `up` or `down` of this cluster")?;
        clean(&layout)?;
        drop(lock);
        let _ = fs::remove_file(lock_file);
        Ok(())
    }

    pub fn is_up(&self) -> bool {
        self.layout.run().join(COMPLETE).exists() && self.machine().is_ok()
    }

    fn clean(&self) -> Result<()> {
        clean(&self.layout)
    }

    fn start(&self, size: Size, store: Option<&Path>) -> Result<()> {
        let authority = pki::create(&self.layout.pki())?;
        for index in 1..=size.nodes {
            authority.node(&node::name(index))?;
        }
        let api_address = self.start_machine()?;
        let server = format!("https://{api_address}");
        paths::write(
            &self.layout.kubeconfig(),
            pki::kubeconfig(&self.layout.pki(), "admin", &server)?,
        )?;

        thread::scope(|scope| -> Result<()> {
            let control_plane = scope.spawn(|| step("control plane", || self.start_control_plane()));
            let nodes: Vec<_> = (1..=size.nodes)
                .map(|index| scope.spawn(move || self.boot_node(index, store)))
                .collect();
            joined(control_plane.join())?;
            nodes.into_iter().try_for_each(|node| joined(node.join()))
        })?;
        if size.fake_nodes > 0 {
            step(&format!("{} fake nodes", size.fake_nodes), || {
                self.add_fake_nodes(size.fake_nodes)
            })?;
        }
        step("nodes Ready", || self.wait_nodes_ready(size))?;
        paths::write(&self.layout.run().join(COMPLETE), "")
    }

    /// Returns where the API server can be reached on the host's loopback.
    fn start_machine(&self) -> Result<std::net::SocketAddr> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let ready = self.layout.run().join("machine.ready");
        fs::create_dir_all(self.layout.run())?;
        let init = crate::init_command(&[
            "machine-init",
            &self.layout.volumes().display().to_string(),
            &ready.display().to_string(),
        ])?;
        let log = self.layout.log(MACHINE, "init");
        let machine = Namespaces::create(None, &init, Some(listener.into()), &log)?;
        machine.init.record(&self.record(MACHINE, None))?;
        wait_ready(MACHINE, machine.init, &log, || ready.exists())?;
        Ok(address)
    }

    fn start_control_plane(&self) -> Result<()> {
        let components = control_plane::components(&self.layout, &self.binaries)?;
        for component in components {
            let waits = component.name == API_SERVER;
            self.start_component(control_plane::PLACE, &component)?;
            if waits {
                self.wait_api_server()?;
            }
        }
        self.apply(&control_plane::first_objects().to_string())
    }

    /// Starts kwok with this number of simulated nodes.
    pub fn add_fake_nodes(&self, count: u32) -> Result<()> {
        self.start_component(
            control_plane::PLACE,
            &control_plane::kwok(&self.layout, &self.binaries)?,
        )?;
        self.apply_with(&["create", "-f", "-"], &control_plane::fake_nodes(count).to_string())
    }

    /// Removes the simulated nodes and stops kwok.
    pub fn remove_fake_nodes(&self) -> Result<()> {
        let kwok = self.component(control_plane::PLACE, control_plane::KWOK)?;
        self.ask(&["delete", "nodes", "--selector=type=kwok"])?;
        kwok.end(Signal::SIGTERM, Duration::from_secs(10))
    }

    pub fn wait_api_server(&self) -> Result<()> {
        let process = self.component(control_plane::PLACE, API_SERVER)?;
        let log = self.layout.log(control_plane::PLACE, API_SERVER);
        wait_ready(API_SERVER, process, &log, || {
            self.ask(&["get", "--raw=/readyz"]).is_ok()
        })
    }

    fn wait_nodes_ready(&self, size: Size) -> Result<()> {
        let expected = usize::from(size.nodes) + usize::try_from(size.fake_nodes)?;
        if expected == 0 {
            return Ok(());
        }
        // `kubectl wait` fails on what does not exist yet, so the nodes must have registered first.
        for index in 1..=size.nodes {
            let node = node::name(index);
            let kubelet = self.component(&node, node::KUBELET)?;
            wait_ready(node::KUBELET, kubelet, &self.layout.log(&node, node::KUBELET), || {
                self.ask(&["get", "node", &node]).is_ok()
            })?;
        }
        self.ask(&["wait", "--for=condition=Ready", "node", "--all", "--timeout=120s"])
            .map(drop)
    }

    /// Starts a node for the first time or again. Its disk is kept.
    pub fn boot_node(&self, index: u8, store: Option<&Path>) -> Result<()> {
        let name = node::name(index);
        step(&name, || {
            cgroups::create(&self.layout.cluster, &name)?;
            let folder = self.layout.node(&name);
            if let Some(store) = store {
                image_store::give(store, &folder.join("lib/containerd"))?;
            }
            let place = self.start_node_namespaces(index, &folder)?;
            for component in node::components(&self.layout, &self.binaries, index)? {
                let process = self.start_component(&name, &component)?;
                if component.name == node::CONTAINERD {
                    let log = self.layout.log(&name, component.name);
                    wait_ready(component.name, process, &log, || containerd::answers(place))?;
                }
            }
            Ok(())
        })
    }

    fn start_node_namespaces(&self, index: u8, folder: &Path) -> Result<Namespaces> {
        let name = node::name(index);
        let ready = self.layout.run().join(format!("{name}.ready"));
        let _ = fs::remove_file(&ready);
        let machine = self.machine()?;
        let init = crate::init_command(&[
            "node-init",
            &name,
            &index.to_string(),
            &folder.display().to_string(),
            &ready.display().to_string(),
        ])?;
        let log = self.layout.log(&name, "init");
        let place = Namespaces::create(Some(machine), &init, None, &log)?;
        place.init.record(&self.record(&name, None))?;
        plug_in(machine, place, &network::port(index))?;
        wait_ready(&name, place.init, &log, || ready.exists())?;
        Ok(place)
    }

    /// Adds a node and waits until it is Ready.
    pub fn add_node(&self) -> Result<String> {
        let index = (1..=network::MAX_NODES)
            .find(|&index| !self.layout.node(&node::name(index)).exists())
            .with_context(|| format!("a cluster has at most {} nodes", network::MAX_NODES))?;
        let name = node::name(index);
        pki::open(&self.layout.pki())?.node(&name)?;
        self.boot_node(index, Some(&images::store()?))?;
        self.wait_node(&name, "True")?;
        Ok(name)
    }

    /// Powers a node off: everything on it is killed at once.
    pub fn kill_node(&self, name: &str) -> Result<()> {
        self.node_index(name)?;
        self.power_off(name)
    }

    fn power_off(&self, name: &str) -> Result<()> {
        self.namespaces(name).map_or(Ok(()), |running| {
            running.init.end(Signal::SIGKILL, Duration::from_secs(10))
        })
    }

    /// Powers a node on again (after a power off, if it still runs) and waits until it is Ready.
    pub fn restart_node(&self, name: &str) -> Result<()> {
        let index = self.node_index(name)?;
        self.power_off(name)?;
        self.boot_node(index, None)?;
        self.keep_kubelet(index)?;
        self.wait_node(name, "True")
    }

    /// A containerd with old sandboxes responds before its CRI does, and the kubelet exits because of that. On other
    /// machines systemd would restart the kubelet.
    fn keep_kubelet(&self, index: u8) -> Result<()> {
        let name = node::name(index);
        let place = self.node_namespaces(&name)?;
        let components = node::components(&self.layout, &self.binaries, index)?;
        let kubelet = components.iter().find(|component| component.name == node::KUBELET);
        let kubelet = kubelet.context("a node has no kubelet")?;
        let deadline = Instant::now() + KUBELET_TIMEOUT;
        // Its health port on the node.
        let knock = ["-c", "exec 3<>/dev/tcp/127.0.0.1/10248"];
        while command::output(place.command("bash").args(knock)).is_err() {
            if Instant::now() > deadline {
                bail!("the kubelet of {name} is not up within {KUBELET_TIMEOUT:?}");
            }
            if !self.component(&name, node::KUBELET).is_ok_and(Process::is_alive) {
                self.start_component(&name, kubelet)?;
            }
            thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    /// Powers a node off and removes it.
    pub fn remove_node(&self, name: &str) -> Result<()> {
        self.node_index(name)?;
        self.power_off(name)?;
        self.ask(&["delete", "node", name, "--ignore-not-found"])?;
        for component in [
            None,
            Some(node::CONTAINERD),
            Some(node::KUBELET),
            Some(node::KUBE_PROXY),
        ] {
            let _ = fs::remove_file(self.record(name, component));
        }
        fs::remove_dir_all(self.layout.node(name)).with_context(|| format!("cannot remove the files of {name}"))
    }

    /// Waits until a node's Ready condition has this status (True, False or Unknown).
    pub fn wait_node(&self, name: &str, ready: &str) -> Result<()> {
        let condition = format!("--for=condition=Ready={ready}");
        // A new node may not have registered yet.
        self.ask(&["wait", "--for=create", &format!("node/{name}"), "--timeout=60s"])?;
        self.ask(&["wait", &condition, "node", name, "--timeout=120s"])
            .map(drop)
    }

    /// Imports an image archive into every node that runs.
    pub fn load(&self, archive: &Path) -> Result<()> {
        let archive = archive
            .canonicalize()
            .with_context(|| format!("no image archive {}", archive.display()))?;
        let nodes = self.nodes();
        thread::scope(|scope| {
            let imports: Vec<_> = nodes
                .iter()
                .map(|node| {
                    let archive = &archive;
                    scope.spawn(move || containerd::import(self.node_namespaces(node)?, archive))
                })
                .collect();
            imports.into_iter().try_for_each(|import| joined(import.join()))
        })
    }

    /// Every added node, running or not.
    pub fn nodes(&self) -> Vec<String> {
        (1..=network::MAX_NODES)
            .map(node::name)
            .filter(|name| self.layout.node(name).exists())
            .collect()
    }

    pub fn node_index(&self, name: &str) -> Result<u8> {
        (1..=network::MAX_NODES)
            .find(|&index| node::name(index) == name && self.layout.node(name).exists())
            .with_context(|| format!("no node {name}; nodes: {}", self.nodes().join(", ")))
    }

    pub fn machine(&self) -> Result<Namespaces> {
        self.namespaces(MACHINE).context("the cluster does not run")
    }

    pub fn node_namespaces(&self, name: &str) -> Result<Namespaces> {
        self.namespaces(name)
            .with_context(|| format!("node {name} does not run"))
    }

    fn namespaces(&self, place: &str) -> Option<Namespaces> {
        let init = Process::recorded(&self.record(place, None))?;
        init.is_alive().then_some(Namespaces { init })
    }

    /// The last started process of a component.
    pub fn component(&self, place: &str, name: &str) -> Result<Process> {
        Process::recorded(&self.record(place, Some(name))).with_context(|| format!("{place} has no component {name}"))
    }

    /// Starts a component by its definition.
    pub fn start_component(&self, place: &str, component: &Component) -> Result<Process> {
        let namespaces = if place == control_plane::PLACE {
            self.machine()?
        } else {
            self.node_namespaces(place)?
        };
        let log = self.layout.log(place, component.name);
        let process = namespaces.start(&component.program, &component.arguments, &log)?;
        process.record(&self.record(place, Some(component.name)))?;
        Ok(process)
    }

    /// Components that have been started, as (place, component, process).
    pub fn running(&self) -> Vec<(String, String, Process)> {
        let mut found: Vec<_> = fs::read_dir(self.layout.run())
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let file = entry.file_name().into_string().ok()?;
                let (place, component) = file.strip_suffix(".json")?.split_once('.')?;
                Some((
                    place.to_owned(),
                    component.to_owned(),
                    Process::recorded(&entry.path())?,
                ))
            })
            .collect();
        found.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
        found
    }

    fn record(&self, place: &str, component: Option<&str>) -> PathBuf {
        let file = component.map_or_else(
            || format!("{place}.json"),
            |component| format!("{place}.{component}.json"),
        );
        self.layout.run().join(file)
    }

    /// kubectl with administrator's rights, from the host.
    pub fn kubectl(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.binaries.path("kubectl"));
        command
            .env("KUBECONFIG", self.layout.kubeconfig())
            // It exits before there is much garbage; collection would take a third of its time.
            .env("GOGC", "off")
            .args(arguments);
        command
    }

    pub fn kubectl_in(&self, namespace: &str, arguments: &[&str]) -> Command {
        let mut command = self.kubectl(&["--namespace", namespace]);
        command.args(arguments);
        command
    }

    /// Returns the output of kubectl in a namespace.
    pub fn ask_in(&self, namespace: &str, arguments: &[&str]) -> Result<String> {
        match Question::parse(namespace, arguments) {
            Some(question) => question.ask(self),
            None => command::output(&mut self.kubectl_in(namespace, arguments)),
        }
    }

    /// Returns the output of kubectl.
    pub fn ask(&self, arguments: &[&str]) -> Result<String> {
        command::output(&mut self.kubectl(arguments))
    }

    fn apply(&self, manifest: &str) -> Result<()> {
        self.apply_with(&["apply", "--server-side", "-f", "-"], manifest)
    }

    fn apply_with(&self, arguments: &[&str], manifest: &str) -> Result<()> {
        command::output_with_input(&mut self.kubectl(arguments), manifest).map(drop)
    }
}

fn clean(layout: &Layout) -> Result<()> {
    if let Some(machine) = Process::recorded(&layout.run().join(format!("{MACHINE}.json"))) {
        cgroups::thaw(&layout.cluster);
        machine.end(Signal::SIGKILL, Duration::from_secs(10))?;
    }
    cgroups::remove(&layout.cluster);
    // The mounts are gone with the namespaces; only plain files are left.
    match fs::remove_dir_all(layout.root()) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", layout.root().display()))
        }
        _ => Ok(()),
    }
}

/// Connects a port of the machine's bridge with a node's eth0.
pub(crate) fn plug_in(machine: Namespaces, node: Namespaces, port: &str) -> Result<()> {
    // The port of a killed node disappears, but not at once.
    let _ = command::output(machine.network_command("ip").args(["link", "del", port]));
    let lines = format!(
        "link add {port} type veth peer name eth0 netns {}\nlink set {port} master bridge0 up\n",
        node.init.pid
    );
    command::output_with_input(machine.network_command("ip").args(["-batch", "-"]), &lines).map(drop)
}

fn joined(result: thread::Result<Result<()>>) -> Result<()> {
    result.unwrap_or_else(|_| bail!("a thread panicked"))
}
