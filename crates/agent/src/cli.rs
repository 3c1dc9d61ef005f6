//! The command line.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use slurm::revision::{ControllerUid, Digest};

/// Where Slurm looks for its files.
const CONFIG_DIR: &str = "/etc/slurm";

/// A memory volume that every slurmctld pod has.
const SCRATCH_DIR: &str = "/run";

#[derive(Debug, Parser)]
#[command(
    name = "slurm-agent",
    version,
    about = "Runs beside and around Slurm's daemons in their pods"
)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a Slurm daemon with `--systemd`, follow its main process and restart it when it dies
    Supervise(Supervise),
    /// Take revisions from the operator and make slurmctld run with them; pass the operator's requests on to Slurm
    Serve(Serve),
    /// Fill /etc/slurm with the newest revision, before any daemon starts
    Prepare(Prepare),
    /// Check whether slurmctld would run with the files in a directory, without affecting the running one
    Check(Check),
    /// Copy this program into a directory that other containers mount
    Install(Install),
    /// Hold a pod's namespaces open
    #[command(hide = true)]
    Pause,
}

#[derive(Debug, clap::Args)]
pub struct Supervise {
    /// Run the daemon as this user of /etc/passwd; needs root
    #[arg(long, value_name = "NAME")]
    pub as_user: Option<String>,

    /// Listen here for `serve`
    #[arg(long, env = "SLURM_AGENT_CONTROL", value_name = "PATH")]
    pub control: Option<PathBuf>,

    /// The directory of the daemon's files
    #[arg(long, env = "SLURM_AGENT_CONFIG_DIR", default_value = CONFIG_DIR, value_name = "DIR")]
    pub config_dir: PathBuf,

    /// The name of this machine in the `SlurmctldHost` lines, instead of its hostname
    #[arg(long, env = "SLURM_AGENT_HOSTNAME", value_name = "NAME", hide = true)]
    pub hostname: Option<String>,

    /// The UID of this pod, which fences slurmctld against an older pod of the same name
    #[arg(long, env = "SLURM_AGENT_POD_UID", value_name = "UID")]
    pub pod_uid: Option<String>,

    /// The daemon and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// The directories of revisions and keys.
#[derive(Debug, Clone, clap::Args)]
pub struct Places {
    /// Where Slurm looks for its files; the agent writes the kubelet's layout to it
    #[arg(long, env = "SLURM_AGENT_CONFIG_DIR", default_value = CONFIG_DIR, value_name = "DIR")]
    pub config_dir: PathBuf,

    /// The mounted keys (slurm.key, jwt.key, jwks.json): each is linked into the configuration directory
    #[arg(long, env = "SLURM_AGENT_KEYS_DIR", value_name = "DIR")]
    pub keys_dir: PathBuf,

    /// slurmctld's state volume
    #[arg(long, env = "SLURM_AGENT_STATE_DIR", value_name = "DIR")]
    pub state_dir: PathBuf,

    /// The UID of the Controller object that this pod belongs to
    #[arg(long, env = "SLURM_AGENT_CONTROLLER_UID", value_name = "UID")]
    pub controller_uid: ControllerUid,

    /// The name of this pod, where several share the state volume
    #[arg(long, env = "SLURM_AGENT_POD_NAME", value_name = "NAME")]
    pub pod_name: Option<String>,
}

#[derive(Debug, clap::Args)]
pub struct Prepare {
    #[command(flatten)]
    pub places: Places,

    /// The digest of the `slurm.key` that the cluster runs with
    #[arg(long, env = "SLURM_AGENT_KEY_DIGEST", value_name = "SHA256")]
    pub key_digest: Option<Digest>,

    /// The mounted bundle with the last accepted revision
    #[arg(long, env = "SLURM_AGENT_BUNDLE", value_name = "FILE")]
    pub bundle: PathBuf,
}

#[derive(Debug, clap::Args)]
pub struct Serve {
    #[command(flatten)]
    pub places: Places,

    /// Where `supervise` listens
    #[arg(long, env = "SLURM_AGENT_CONTROL", value_name = "PATH")]
    pub control: PathBuf,

    /// Where dry runs may write
    #[arg(long, env = "SLURM_AGENT_SCRATCH_DIR", default_value = SCRATCH_DIR, value_name = "DIR")]
    pub scratch_dir: PathBuf,

    /// slurmctld's address, instead of the port in slurm.conf on this machine
    #[arg(long, env = "SLURM_AGENT_SLURMCTLD", value_name = "ADDRESS", hide = true)]
    pub slurmctld: Option<SocketAddr>,

    /// The mounted candidate, for revisions while the operator cannot reach this pod
    #[arg(long, env = "SLURM_AGENT_CANDIDATE", value_name = "DIR")]
    pub candidate: Option<PathBuf>,

    /// The UID of this pod
    #[arg(long, env = "SLURM_AGENT_POD_UID", value_name = "UID")]
    pub pod_uid: String,

    /// Where the operator connects to
    #[arg(
        long,
        env = "SLURM_AGENT_LISTEN",
        default_value = "[::]:6822",
        value_name = "ADDRESS"
    )]
    pub listen: SocketAddr,
}

#[derive(Debug, clap::Args)]
pub struct Check {
    /// The directory with slurm.conf and the files beside it
    #[arg(default_value = CONFIG_DIR, value_name = "DIR")]
    pub directory: PathBuf,

    /// Where the dry run may write
    #[arg(long, env = "SLURM_AGENT_SCRATCH_DIR", default_value = SCRATCH_DIR, value_name = "DIR")]
    pub scratch_dir: PathBuf,
}

#[derive(Debug, clap::Args)]
pub struct Install {
    /// The directory to copy to
    pub to: PathBuf,
}
