//! `testbed`: a real Kubernetes on this machine, from the command line.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand};
use testbed::cluster::{Cluster, Size};
use testbed::paths::{self, Layout};
use testbed::{faults, ground, images, init, kubernetes, rights, steps, volumes};

#[derive(Parser)]
#[command(about = "A real Kubernetes with real Slurm images on this machine")]
struct Arguments {
    /// Name of the cluster; each checkout has its own by default.
    #[arg(long, global = true, env = "TESTBED_CLUSTER", default_value_t = Layout::default_cluster())]
    cluster: String,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Bring the cluster up (does nothing when it is up)
    Up {
        #[arg(long, default_value_t = 3)]
        nodes: u8,
        /// No real nodes: API server, controllers and scheduler only
        #[arg(long)]
        control_plane_only: bool,
        /// Nodes simulated by kwok, for tests of scale
        #[arg(long, default_value_t = 0)]
        fake_nodes: u32,
    },
    /// Remove the cluster and its state
    Down,
    /// Show the processes of the cluster
    Status,
    /// Print shell commands that set KUBECONFIG and a PATH with kubectl, helm and our own binaries
    Env,
    /// Load an OCI image archive into every node
    Load { archive: PathBuf },
    /// Add, kill, restart or remove a node
    #[command(subcommand)]
    Node(NodeAction),
    /// Show the log of a component, or list the logs
    Logs {
        /// For example control-plane/kube-apiserver or node1/kubelet
        component: Option<String>,
    },
    /// Build Kubernetes and the images, without starting anything
    Build,
    /// Write the operator's image as an archive and print its path
    OperatorImage,
    /// Print the folder with kubectl, helm, helm-unittest and kwok; build them if necessary
    Tools,
    /// Remove the clusters of this checkout's tests and their state
    DownTests,
    /// Compare the rights of the operator with its requests in the audit logs of the tests' clusters
    Rights {
        /// Remove the audit logs instead
        #[arg(long)]
        forget: bool,
    },
    /// Print the slowest steps recorded in a file
    Slowest { timings: PathBuf },
    #[command(hide = true)]
    MachineInit { volumes: PathBuf, ready: PathBuf },
    #[command(hide = true)]
    NodeInit {
        name: String,
        index: u8,
        folder: PathBuf,
        ready: PathBuf,
    },
    #[command(hide = true)]
    OutsideInit {
        name: String,
        index: u8,
        lower: PathBuf,
        folder: PathBuf,
    },
    #[command(hide = true)]
    ScratchInit,
    #[command(hide = true)]
    DelayPackets { milliseconds: u64 },
    #[command(hide = true)]
    ProvisionVolumes { kubeconfig: PathBuf, folder: PathBuf },
}

#[derive(Subcommand)]
enum NodeAction {
    /// Add one more node
    Add,
    /// Power a node off
    Kill { name: String },
    /// Power a node on again
    Restart { name: String },
    /// Power a node off and remove it
    Remove { name: String },
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("testbed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(Arguments { cluster, action }: Arguments) -> Result<()> {
    match action {
        Action::Up {
            nodes,
            control_plane_only,
            fake_nodes,
        } => {
            let size = Size {
                nodes: if control_plane_only { 0 } else { nodes },
                fake_nodes,
            };
            Cluster::up(&cluster, size).map(drop)
        }
        Action::Down => Cluster::down(&cluster),
        Action::Status => status(&Cluster::attach(&cluster)?),
        Action::Env => env(&Cluster::attach(&cluster)?),
        Action::Load { archive } => Cluster::attach(&cluster)?.load(&archive),
        Action::Node(action) => node(&Cluster::attach(&cluster)?, &action),
        Action::Logs { component } => logs(&Layout::of(&cluster)?, component.as_deref()),
        Action::Build => {
            ground::prepare(&paths::cache()?)?;
            kubernetes::binaries()?;
            images::store().map(drop)
        }
        Action::OperatorImage => {
            println!("{}", images::operator()?.display());
            Ok(())
        }
        Action::Tools => {
            println!("{}", kubernetes::binaries()?.folder().display());
            Ok(())
        }
        Action::DownTests => Layout::test_clusters()
            .iter()
            .try_for_each(|cluster| Cluster::down(cluster)),
        Action::Rights { forget: true } => rights::forget(),
        Action::Rights { forget: false } => rights::check(),
        Action::Slowest { timings } => slowest(&timings),
        Action::MachineInit { volumes, ready } => init::machine(&volumes, &ready),
        Action::NodeInit {
            name,
            index,
            folder,
            ready,
        } => init::node(&name, index, &folder, &ready),
        Action::OutsideInit {
            name,
            index,
            lower,
            folder,
        } => init::outside(&name, index, &lower, &folder),
        Action::ScratchInit => init::scratch(),
        Action::DelayPackets { milliseconds } => faults::delay_packets(Duration::from_millis(milliseconds)),
        Action::ProvisionVolumes { kubeconfig, folder } => {
            tokio::runtime::Runtime::new()?.block_on(volumes::run(&kubeconfig, &folder))
        }
    }
}

fn status(cluster: &Cluster) -> Result<()> {
    println!(
        "cluster {}, state in {}",
        cluster.layout.cluster,
        cluster.layout.root().display()
    );
    for (place, component, process) in cluster.running() {
        let state = if process.is_alive() { "running" } else { "ENDED" };
        println!("{place:<14} {component:<24} {state:<8} pid {}", process.pid);
    }
    print!("{}", cluster.ask(&["get", "nodes", "-o", "wide"])?);
    Ok(())
}

fn env(cluster: &Cluster) -> Result<()> {
    let own = std::env::current_exe()?;
    let own = own.parent().unwrap_or(Path::new(".")).display();
    println!("export KUBECONFIG='{}'", cluster.layout.kubeconfig().display());
    println!("export PATH='{}:{own}':\"$PATH\"", cluster.binaries.folder().display());
    Ok(())
}

fn node(cluster: &Cluster, action: &NodeAction) -> Result<()> {
    match action {
        NodeAction::Add => cluster.add_node().map(|name| println!("{name}")),
        NodeAction::Kill { name } => cluster.kill_node(name),
        NodeAction::Restart { name } => cluster.restart_node(name),
        NodeAction::Remove { name } => cluster.remove_node(name),
    }
}

fn logs(layout: &Layout, component: Option<&str>) -> Result<()> {
    let Some((place, component)) = component.and_then(|component| component.split_once('/')) else {
        let listed = std::process::Command::new("find")
            .arg(layout.logs())
            .args(["-name", "*.log"])
            .output()?;
        print!("{}", String::from_utf8_lossy(&listed.stdout));
        return Ok(());
    };
    print!("{}", std::fs::read_to_string(layout.log(place, component))?);
    Ok(())
}

fn slowest(timings: &Path) -> Result<()> {
    println!("the ten slowest steps:");
    for (seconds, name) in steps::slowest(&std::fs::read_to_string(timings)?, 10) {
        println!("  {seconds:7.1} s  {name}");
    }
    Ok(())
}
