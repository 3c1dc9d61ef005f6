//! slurmctld's partitions: from slurm.conf when it reads that, and changed by RPC since then.
//!
//! The files `partitions` and `orders` show its partitions and the orders it got. A partition that the file `busy` names is not
//! deleted; with a file `careless` it reports success and ignores a DefaultTime. There is no node `nowhere`. It has nodes only with a
//! file `nodes`, which may contain their administrative state, and no node `n9`.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use slurm::AdminState;
use slurm::conf::{Configuration, RecordKind};
use slurm::rpc::{
    Frame, JobDefault, LivePartition, LiveState, MessageType, NodeUpdate, PartitionUpdate, pack_admin_state,
    pack_partitions, plan_partition, unpack_partition_name,
};

const NOT_OURS: i32 = 1007;
const NO_SUCH_PARTITION: i32 = 2000;
const NO_SUCH_NODE: i32 = 2018;
const IN_USE: i32 = 2075;

pub(super) struct Partitions {
    directory: PathBuf,
    all: Mutex<Vec<LivePartition>>,
}

impl Partitions {
    pub(super) fn read(directory: &Path, conf: &[u8]) -> Self {
        let configuration = Configuration::parse([("slurm.conf", conf)]);
        let document = configuration.slurm_conf_document();
        let lines = document.effective(RecordKind::Partition);
        let all = lines.into_iter().map(|(name, settings)| {
            let mut partition = unset(name);
            change(&mut partition, &plan_partition(name, &settings).unwrap(), false);
            partition
        });
        let partitions = Self {
            directory: directory.to_owned(),
            all: Mutex::new(all.collect()),
        };
        partitions.show();
        partitions
    }

    pub(super) fn answer(&self, question: &Frame) -> Option<(MessageType, Vec<u8>)> {
        let Frame { version, kind, body } = question;
        let update = || PartitionUpdate::unpack(*version, body).unwrap();
        let code = match *kind {
            MessageType::PARTITION_INFO => {
                let all = self.all.lock().unwrap();
                return Some((MessageType::RESPONSE_PARTITION_INFO, pack_partitions(&all).unwrap()));
            }
            MessageType::CREATE_PARTITION => self.create(&update()),
            MessageType::UPDATE_PARTITION => self.update(&update()),
            MessageType::DELETE_PARTITION => self.delete(&unpack_partition_name(body).unwrap()),
            MessageType::NODE_INFO_SINGLE if self.is("nodes") => {
                let text = fs::read_to_string(self.directory.join("nodes")).unwrap();
                let state: AdminState = serde_json::from_str(&text).unwrap_or_default();
                // Its length, the name, NUL, flags.
                let name = std::str::from_utf8(&body[4..body.len() - 3]).unwrap();
                let node = (name != "n9").then_some((name, &state));
                return Some((MessageType::RESPONSE_NODE_INFO, pack_admin_state(node).unwrap()));
            }
            MessageType::UPDATE_NODE | MessageType::DELETE_NODE if self.is("nodes") => {
                let node = NodeUpdate::unpack(*version, body).unwrap();
                self.record(&format!("{} {:?} {:?}", node.names, node.state, node.reason));
                if node.names == "n9" { NO_SUCH_NODE } else { 0 }
            }
            // As a slurmctld with other plugins.
            MessageType::NODE_INFO_SINGLE | MessageType::UPDATE_NODE | MessageType::DELETE_NODE => NOT_OURS,
            _ => return None,
        };
        self.show();
        Some((MessageType::RESPONSE_RETURN_CODE, code.to_be_bytes().to_vec()))
    }

    fn create(&self, wanted: &PartitionUpdate) -> i32 {
        self.record(&format!("create {}", wanted.name));
        let mut all = self.all.lock().unwrap();
        if all.iter().any(|partition| partition.name == wanted.name) {
            return NO_SUCH_PARTITION;
        }
        let mut made = unset(&wanted.name);
        let code = change(&mut made, wanted, self.is("careless"));
        if code == 0 {
            all.push(made);
        }
        code
    }

    fn update(&self, wanted: &PartitionUpdate) -> i32 {
        self.record(&format!("update {}", wanted.name));
        let mut all = self.all.lock().unwrap();
        match all.iter_mut().find(|partition| partition.name == wanted.name) {
            Some(partition) => change(partition, wanted, self.is("careless")),
            None => NO_SUCH_PARTITION,
        }
    }

    fn delete(&self, name: &str) -> i32 {
        self.record(&format!("delete {name}"));
        let mut all = self.all.lock().unwrap();
        let Some(at) = all.iter().position(|partition| partition.name == name) else {
            return NO_SUCH_PARTITION;
        };
        if fs::read_to_string(self.directory.join("busy")).is_ok_and(|busy| busy == name) {
            return IN_USE;
        }
        all.remove(at);
        0
    }

    fn is(&self, name: &str) -> bool {
        self.directory.join(name).exists()
    }

    fn record(&self, what: &str) {
        let mut orders = OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.directory.join("orders"))
            .unwrap();
        orders.write_all(format!("{what}\n").as_bytes()).unwrap();
    }

    fn show(&self) {
        let text = serde_json::to_vec(&*self.all.lock().unwrap()).unwrap();
        let new = self.directory.join(format!("partitions.{}", std::process::id()));
        fs::write(&new, text).unwrap();
        fs::rename(new, self.directory.join("partitions")).unwrap();
    }
}

fn unset(name: &str) -> LivePartition {
    LivePartition {
        name: name.to_owned(),
        state: LiveState(3),
        default_time: u32::MAX - 1,
        over_time_limit: u16::MAX - 1,
        preempt_mode: u16::MAX - 1,
        ..LivePartition::default()
    }
}

/// As in slurmctld, an error does not undo the changes before it.
fn change(partition: &mut LivePartition, wanted: &PartitionUpdate, careless: bool) -> i32 {
    fn set<T: Clone>(field: &mut T, wanted: Option<&T>) {
        if let Some(wanted) = wanted {
            field.clone_from(wanted);
        }
    }
    set(&mut partition.max_time, wanted.max_time.as_ref());
    if !careless {
        set(&mut partition.default_time, wanted.default_time.as_ref());
    }
    set(&mut partition.grace_time, wanted.grace_time.as_ref());
    set(&mut partition.max_nodes, wanted.max_nodes.as_ref());
    set(&mut partition.min_nodes, wanted.min_nodes.as_ref());
    set(&mut partition.max_cpus_per_node, wanted.max_cpus_per_node.as_ref());
    set(&mut partition.max_cpus_per_socket, wanted.max_cpus_per_socket.as_ref());
    set(&mut partition.default_memory, wanted.default_memory.as_ref());
    set(&mut partition.max_memory, wanted.max_memory.as_ref());
    set(&mut partition.cpu_bind, wanted.cpu_bind.as_ref());
    set(&mut partition.max_share, wanted.max_share.as_ref());
    set(&mut partition.over_time_limit, wanted.over_time_limit.as_ref());
    set(&mut partition.preempt_mode, wanted.preempt_mode.as_ref());
    set(&mut partition.priority_tier, wanted.priority_tier.as_ref());
    set(&mut partition.priority_job_factor, wanted.priority_job_factor.as_ref());
    set(&mut partition.allow_accounts, wanted.allow_accounts.as_ref());
    set(&mut partition.allow_groups, wanted.allow_groups.as_ref());
    set(&mut partition.allow_qos, wanted.allow_qos.as_ref());
    set(&mut partition.deny_accounts, wanted.deny_accounts.as_ref());
    set(&mut partition.deny_qos, wanted.deny_qos.as_ref());
    set(&mut partition.alternate, wanted.alternate.as_ref());
    set(&mut partition.billing_weights, wanted.billing_weights.as_ref());
    set(&mut partition.qos, wanted.qos.as_ref());
    if let Some(state) = wanted.state {
        partition.state = state.into();
    }
    if let Some(defaults) = &wanted.job_defaults {
        let values = defaults.split(',').filter_map(|default| default.split_once('='));
        let values = values.map(|(key, value)| JobDefault {
            kind: if key == "DefCPUPerGPU" { 1 } else { 2 },
            value: value.parse().unwrap(),
        });
        partition.job_defaults = Some(values.collect());
    }
    for flag in &wanted.flags {
        partition.set(*flag);
    }
    if wanted.nodes.as_deref().is_some_and(|nodes| nodes.contains("nowhere")) {
        return NO_SUCH_NODE;
    }
    set(&mut partition.nodes, wanted.nodes.as_ref());
    0
}
