//! `slurm-agent serve`: the container named `reconfigure`. It takes revisions from the operator, makes slurmctld run with
//! them, and answers what the operator asks of Slurm.
//!
//! [`keeper`] is the one writer of /etc/slurm; [`http`] lets in who may come in, [`candidate`] what comes by a mounted
//! ConfigMap, and [`admission`] what is not stale. Only [`volume`] touches the state volume. [`checker`] asks dry runs. [`fences`], [`partitions`], [`plan`], [`reason`] and [`story`] decide and know nothing of files and sockets;
//! [`slurm_tools`] runs Slurm's own programs, [`served`] asks slurmctld what it runs with, [`nodes`] commands nodes, [`restore`] partitions;
//! [`ways`] are those by which partitions are told, of which [`scontrol`] is one.

mod admission;
mod candidate;
mod checker;
mod fences;
mod http;
mod keeper;
mod nodes;
mod partitions;
mod plan;
pub(crate) mod reason;
mod restore;
mod scontrol;
mod served;
pub(crate) mod slurm_tools;
mod steps;
mod story;
mod unsettled;
mod volume;
mod ways;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use thiserror::Error;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

use crate::cli;
use crate::config_dir::ConfigDir;
use crate::control::Supervisor;
use crate::dry_run::DryRun;
use crate::store::Store;
use admission::Admission;
use checker::Checker;
use keeper::{Keeper, Surroundings};
use nodes::Nodes;
use served::Slurmctld;
use slurm_tools::SlurmTools;
use volume::Volume;
use ways::Ways;

#[derive(Debug, Error)]
pub enum Error {
    #[error("cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("cannot listen for signals: {0}")]
    Signals(#[source] io::Error),
    #[error("cannot start the thread for the state volume: {0}")]
    Volume(#[source] io::Error),
}

/// Runs until it is told to end. A change under way is found and gone on with by the next one that starts.
pub async fn run(options: cli::Serve) -> Result<(), Error> {
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::Signals)?;
    let cli::Serve {
        places,
        control,
        scratch_dir,
        candidate,
        slurmctld,
        pod_uid,
        listen,
    } = options;
    let listener = bind(listen).await?;
    let config = ConfigDir::new(&places.config_dir, &places.keys_dir);
    let store = Store::new(&places.state_dir, &places.controller_uid).of_pod(places.pod_name.as_deref());
    let supervisor = Supervisor::new(&control);
    let volume = Volume::open(store).map_err(Error::Volume)?;
    let admission = Arc::new(Admission::new(volume.clone()));
    let slurm = Arc::new(SlurmTools::default());
    let slurmctld = Arc::new(Slurmctld::new(&places.keys_dir, slurmctld));
    let dry_run = DryRun::new(&scratch_dir, Some(&places.keys_dir));
    let checker = Arc::new(Checker::new(dry_run, Arc::clone(&slurm)));
    let ways = Arc::new(Ways {
        slurmctld: Arc::clone(&slurmctld),
        tools: Arc::clone(&slurm),
    });
    let (keeper, handle) = Keeper::new(Surroundings {
        config: config.clone(),
        volume,
        supervisor: supervisor.clone(),
        checker: Arc::clone(&checker),
        slurm: Arc::clone(&slurm),
        slurmctld: Arc::clone(&slurmctld),
        ways: Arc::clone(&ways),
        controller: places.controller_uid,
        admission: Arc::clone(&admission),
    });
    let door = Arc::new(http::Door {
        pod: pod_uid,
        keys: places.keys_dir,
        nodes: Nodes {
            config: config.clone(),
            slurmctld,
            tools: Arc::clone(&slurm),
            ways: Arc::clone(&ways),
            step: tokio::sync::Mutex::default(),
        },
        ways,
        config,
        supervisor,
        admission: Arc::clone(&admission),
        keeper: handle,
        checker,
        slurm,
    });
    let address = listener.local_addr().unwrap_or(listen);
    info!(%address, "serving");
    story::tell(&story::Event::Start(&places.config_dir));
    tokio::spawn(async move { admission.learn().await });
    tokio::select! {
        never = keeper.run() => match never {},
        never = http::serve(listener, Arc::clone(&door)) => match never {},
        never = candidate::follow(candidate, door) => match never {},
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    info!("told to end");
    Ok(())
}

async fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    match TcpListener::bind(address).await {
        // A node without IPv6 has no "any address" of it; any address is what was asked for.
        Err(_) if address.is_ipv6() && address.ip().is_unspecified() => {
            let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
            TcpListener::bind(address).await.map_err(|source| (address, source))
        }
        other => other.map_err(|source| (address, source)),
    }
    .map_err(|(address, source)| Error::Listen { address, source })
}
