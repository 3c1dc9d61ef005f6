//! `slurm-agent serve`: the container named `reconfigure`. It takes revisions from the operator, makes slurmctld run with
//! them, and passes the operator's reads and commands on to Slurm.
//!
//! [`writer`] is the single writer of /etc/slurm. [`http`] authenticates requests, [`candidate`] polls a mounted ConfigMap for a
//! revision, and [`admission`] rejects stale commands. Only [`volume`] accesses the state volume. [`checker`] runs dry runs.
//! [`fences`], [`partitions`], [`plan`], [`reason`] and [`legacy_log`] know nothing of files and sockets. [`slurm_tools`] runs
//! Slurm's own programs ([`config_text`] reads what older ones print), [`slurmctld`] reads its configuration, [`nodes`] commands nodes, [`restore`] partitions.
//! [`forgotten_ends`] reports ends of jobs again that slurmctld has lost, [`registrations`] makes nodes register.
//! [`command_channels`] are the channels for partition commands, of which [`scontrol`] is one.

mod admission;
mod answers;
mod candidate;
mod checker;
mod command_channels;
mod config_text;
mod fences;
mod forgotten_ends;
mod http;
mod legacy_log;
mod nodes;
mod partitions;
mod plan;
pub(crate) mod reason;
mod registrations;
mod rejections;
mod restore;
mod rollout;
mod scontrol;
mod shown_states;
pub(crate) mod slurm_tools;
mod slurmctld;
mod volume;
mod writer;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};

use host::{Host, Listener};
use slurm::agent::PROTOCOL;
use slurm::rpc::Client;
use thiserror::Error;
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

use crate::cli;
use crate::config_dir::ConfigDir;
use crate::control::Supervisor;
use crate::dry_run::DryRun;
use crate::store::Store;
use admission::Admission;
use answers::Answers;
use checker::Checker;
use command_channels::CommandChannels;
use nodes::Nodes;
use registrations::Registrations;
use rejections::Rejections;
use shown_states::ShownStates;
use slurm_tools::SlurmTools;
use slurmctld::{NoClient, Slurmctld};
use volume::Volume;
use writer::ConfigWriter;

#[derive(Debug, Error)]
pub enum Error {
    #[error("cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("cannot listen for signals: {0}")]
    Signals(#[source] io::Error),
    #[error("cannot start the thread for the state volume: {0}")]
    Volume(#[source] io::Error),
}

/// What writer and server share.
#[derive(Debug)]
struct Services {
    host: Host,
    config: ConfigDir,
    supervisor: Supervisor,
    admission: Admission,
    checker: Checker,
    channels: CommandChannels,
    /// The start of slurmctld after which the ends of its jobs were compared with slurmdbd's records; 0 if they were not.
    compared_start: AtomicU64,
    registrations: Mutex<Registrations>,
    shown_states: Mutex<ShownStates>,
}

impl Services {
    /// A client of slurmctld, for commands.
    fn client(&self) -> Result<Client, NoClient> {
        let configuration = self.config.live_configuration().ok_or(NoClient::NoRevision)?;
        self.channels.slurmctld.command_client(&configuration)
    }
}

/// Runs until SIGTERM or SIGINT. The next agent resumes an unfinished change.
pub async fn run(host: Host, options: cli::Serve) -> Result<(), Error> {
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::Signals)?;
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    run_until(host, options, stop).await
}

/// Runs until `stop` returns.
pub async fn run_until(host: Host, options: cli::Serve, stop: impl Future<Output = ()>) -> Result<(), Error> {
    let cli::Serve {
        places,
        control,
        scratch_dir,
        candidate,
        slurmctld,
        pod_uid,
        listen,
    } = options;
    let listener = bind(&host, listen).await?;
    let store = Store::new(&host, &places.state_dir, &places.controller_uid).of_pod(places.pod_name.as_deref());
    let volume = Volume::open(store).map_err(Error::Volume)?;
    let tools = Arc::new(SlurmTools::new(&host));
    let dry_run = DryRun::new(&host, &scratch_dir, Some(&places.keys_dir));
    let services = Arc::new(Services {
        config: ConfigDir::new(&host, &places.config_dir, &places.keys_dir),
        supervisor: Supervisor::new(&host, &control),
        admission: Admission::new(volume.clone()),
        checker: Checker::new(&host, dry_run, Arc::clone(&tools)),
        channels: CommandChannels {
            slurmctld: Slurmctld::new(&host, &places.keys_dir, slurmctld),
            tools,
        },
        compared_start: AtomicU64::new(0),
        registrations: Mutex::default(),
        shown_states: Mutex::default(),
        host: host.clone(),
    });
    let registrations = registrations::poll(Arc::clone(&services), volume.clone());
    let (writer, handle) = ConfigWriter::new(Arc::clone(&services), volume, places.controller_uid);
    let server = Arc::new(http::Server {
        pod: pod_uid,
        keys: places.keys_dir,
        nodes: Nodes {
            services: Arc::clone(&services),
            step: tokio::sync::Mutex::default(),
        },
        writer: handle,
        services: Arc::clone(&services),
        answers: Answers::default(),
        operator: AtomicU32::new(PROTOCOL),
        rejections: Rejections::default(),
    });
    let address = listener.address().unwrap_or(listen);
    info!(%address, "serving");
    legacy_log::print(&host, &legacy_log::Event::Start(&places.config_dir));
    let ends = forgotten_ends::poll(Arc::clone(&services));
    let load_term = async move { services.admission.load_term().await };
    host.spawn("load term", load_term).detach();
    tokio::select! {
        biased;
        () = stop => {}
        never = writer.run() => match never {},
        never = http::serve(listener, Arc::clone(&server)) => match never {},
        never = ends => match never {},
        never = registrations => match never {},
        never = candidate::poll(&host, candidate, server) => match never {},
    }
    info!("stopping");
    Ok(())
}

async fn bind(host: &Host, address: SocketAddr) -> Result<Listener, Error> {
    let failed = |address| move |source| Error::Listen { address, source };
    match host.listen(address).await {
        // A node without IPv6 has no unspecified IPv6 address.
        Err(_) if address.is_ipv6() && address.ip().is_unspecified() => {
            let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
            host.listen(address).await.map_err(failed(address))
        }
        other => other.map_err(failed(address)),
    }
}
