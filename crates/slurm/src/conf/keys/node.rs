//! The keys of NodeName, NodeSet, DownNodes and PowerAction lines.

use super::value::ValueKind::{Megabytes, Text, U16, U32};
use super::{KeySpec, Needs, key};

const NODES: &str = "slurm.conf(5), NODE CONFIGURATION";
const NODE_SETS: &str = "measured: no RPC makes or changes a node set";

const fn node_key(name: &'static str, kind: super::ValueKind) -> KeySpec {
    key(name, kind).needs(Needs::Reconfigure, NODES)
}

const fn node_set_key(name: &'static str) -> KeySpec {
    key(name, Text).needs(Needs::Reconfigure, NODE_SETS)
}

/// In alphabetical order, for binary search, as are the lists below.
pub(super) const NODE: &[KeySpec] = &[
    node_key("BcastAddr", Text),
    node_key("Boards", U16).aborts_jobs(),
    node_key("CoreSpecCount", U16).aborts_jobs(),
    node_key("CoresPerSocket", U16).aborts_jobs(),
    node_key("CpuBind", Text),
    node_key("CPUs", U16).aborts_jobs(),
    node_key("CPUSpecList", Text).aborts_jobs(),
    node_key("Feature", Text).legacy("Features"),
    node_key("Features", Text),
    node_key("Gres", Text).aborts_jobs(),
    node_key("GresConf", Text).aborts_jobs(),
    node_key("MemSpecLimit", Megabytes).aborts_jobs(),
    node_key("NodeAddr", Text),
    node_key("NodeHostname", Text),
    node_key("Parameters", Text),
    node_key("Port", Text),
    node_key("Procs", U16).aborts_jobs().legacy("CPUs"),
    node_key("RealMemory", Megabytes).aborts_jobs(),
    node_key("Reason", Text),
    node_key("RestrictedCoresPerGPU", U16).aborts_jobs(),
    node_key("Sockets", U16).aborts_jobs(),
    node_key("SocketsPerBoard", U16).aborts_jobs(),
    node_key("State", Text),
    node_key("SuspendTime", Text),
    node_key("ThreadsPerCore", U16).aborts_jobs(),
    node_key("TmpDisk", U32),
    node_key("Topology", Text),
    node_key("TRESWeights", Text),
    node_key("Weight", U32),
];

pub(super) const NODE_SET: &[KeySpec] = &[node_set_key("Feature"), node_set_key("Nodes")];

pub(super) const DOWN_NODES: &[KeySpec] = &[node_key("Reason", Text), node_key("State", Text)];

pub(super) const POWER_ACTION: &[KeySpec] = &[key("Location", Text), key("Program", Text)];
