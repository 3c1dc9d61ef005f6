//! The settings of slurm.conf that matter to the model, and its lines for partitions.

use std::collections::BTreeMap;
use std::time::Duration;

use slurm::conf::{Configuration, RecordKind};

/// Seconds since 1970 at the start of the simulation.
pub const EPOCH: u64 = 1_800_000_000;

/// slurmctld saves at most this often (`SAVE_MAX_WAIT`, a constant of Slurm).
pub const SAVE_INTERVAL: Duration = Duration::from_secs(5);

/// Everything is saved so often, whatever has changed (`PERIODIC_CHECKPOINT`, a constant of Slurm).
pub const CHECKPOINT: Duration = Duration::from_mins(5);

/// Time limits are checked so often (`PERIODIC_TIMEOUT`, a constant of Slurm).
pub const LIMITS: Duration = Duration::from_secs(30);

/// `MessageTimeout`: how long a sender waits for a peer that accepts the connection and does not respond.
pub const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long slurmctld waits for a frozen slurmd (measured: 20 s).
pub const FROZEN_TIMEOUT: Duration = Duration::from_secs(20);

/// How soon after its thaw a host reads what waited for it.
pub const FROZEN_POLL: Duration = Duration::from_millis(500);

/// Where slurmd listens.
pub const SLURMD_PORT: u16 = 6818;

/// `BatchStartTimeout`.
pub const BATCH_START_TIMEOUT: Duration = Duration::from_secs(10);

/// Every so many pings a node is asked to register (`MAX_REG_FREQUENCY`).
pub const PINGS_PER_REGISTRATION: u64 = 20;

/// One message between two daemons.
pub const LATENCY: Duration = Duration::from_millis(2);

/// From a change of the state to the scheduler's look at it.
pub const SCHEDULE_DELAY: Duration = Duration::from_millis(500);

/// From an order that needs a node's registration to the next ping (measured: 2.4 to 2.7 s until a job starts).
pub const PING_NOW_DELAY: Duration = Duration::from_secs(2);

/// From the end of a job's last process to the end of its epilog.
pub const EPILOG: Duration = Duration::from_millis(100);

/// From SIGTERM to the end of a job's processes.
pub const KILL_DELAY: Duration = Duration::from_millis(20);

/// The status of a script that SIGTERM ended. Signals are negative.
pub const TERMINATED: i32 = -15;

/// How often slurmctld sends a message again that a node did not accept, and slurmstepd one that slurmctld did not.
pub const RETRY: Duration = Duration::from_secs(15);

/// From a start or an end to its record in slurmdbd's database.
pub const ACCOUNTING_DELAY: Duration = Duration::from_millis(200);

/// From exec to the open port (measured: 0.1 to 0.2 s).
pub const START: Duration = Duration::from_millis(150);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conf {
    pub slurmd_timeout: Duration,
    pub return_to_service: u8,
    /// `cred_expire`: a requeued job waits so long, and one second more.
    pub cred_expire: Duration,
    /// `SelectTypeParameters` has memory, as without a setting.
    pub allocates_memory: bool,
    /// NodeSets by feature.
    pub node_sets: BTreeMap<String, String>,
    pub partitions: BTreeMap<String, PartitionLine>,
    /// What slurmctld shows as the hash of its configuration.
    pub hash: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartitionLine {
    /// Names of nodes and of NodeSets, or `ALL`.
    pub nodes: String,
    /// All other settings.
    pub settings: BTreeMap<String, String>,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            slurmd_timeout: Duration::from_mins(5),
            return_to_service: 0,
            cred_expire: Duration::from_mins(2),
            allocates_memory: true,
            node_sets: BTreeMap::new(),
            partitions: BTreeMap::new(),
            hash: 0,
        }
    }
}

impl Conf {
    /// Reads the text of a slurm.conf. Lines that the model does not know are ignored.
    pub fn parse(slurm_conf: &str) -> Self {
        let configuration = Configuration::parse([("slurm.conf", slurm_conf.as_bytes())]);
        let document = configuration.slurm_conf_document();
        let mut conf = Self {
            hash: slurm_conf.bytes().fold(17, |hash: u32, byte| {
                hash.wrapping_mul(31).wrapping_add(u32::from(byte))
            }),
            ..Self::default()
        };
        for line in slurm_conf.lines() {
            let Some((key, value)) = line.split_once('=') else {
                continue;
            };
            let seconds = || value.trim().parse().map(Duration::from_secs);
            match key.trim().to_ascii_lowercase().as_str() {
                "slurmdtimeout" => conf.slurmd_timeout = seconds().unwrap_or(conf.slurmd_timeout),
                "returntoservice" => conf.return_to_service = value.trim().parse().unwrap_or_default(),
                "selecttypeparameters" => conf.allocates_memory = value.to_ascii_lowercase().contains("memory"),
                "authinfo" => {
                    let expire = value
                        .split(',')
                        .find_map(|part| part.trim().strip_prefix("cred_expire="));
                    conf.cred_expire = expire
                        .and_then(|text| text.parse().ok())
                        .map_or(conf.cred_expire, Duration::from_secs);
                }
                _ => {}
            }
        }
        for set in document.records(RecordKind::NodeSet) {
            let feature = set.get("Feature").unwrap_or_default();
            conf.node_sets.insert(set.name.to_owned(), feature.to_owned());
        }
        for (name, settings) in document.effective(RecordKind::Partition) {
            let mut line = PartitionLine::default();
            for (key, value) in &settings {
                if *key == *"Nodes" {
                    line.nodes.clone_from(value);
                } else {
                    line.settings.insert(key.as_str().to_owned(), value.clone());
                }
            }
            conf.partitions.insert(name.to_owned(), line);
        }
        conf
    }
}
