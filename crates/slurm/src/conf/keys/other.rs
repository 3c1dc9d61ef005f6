//! The keys of the other files in the format of slurm.conf.
//!
//! The first key of a line determines which keys may follow. Each list here has all of them, which is enough to find a misspelled
//! key.

use super::value::ValueKind::{Boolean, Float, Text, U32, U64};
use super::{KeySpec, Needs, key, removed};

const CGROUP_PAGE: &str = "cgroup.conf(5), DESCRIPTION";
const GRES_PAGE: &str = "gres.conf(5), DESCRIPTION";
const TOPOLOGY_PAGE: &str = "topology.conf(5), DESCRIPTION";
const ACCT_GATHER_MEASURED: &str = "measured: a reconfigure reads acct_gather.conf again";
const JOB_CONTAINER_PAGE: &str = "job_container.conf(5), NOTES: a reconfigure is not enough, and running jobs suffer";

const fn cgroup_key(name: &'static str, kind: super::ValueKind) -> KeySpec {
    key(name, kind).documented(CGROUP_PAGE)
}

const fn gres_key(name: &'static str) -> KeySpec {
    key(name, Text).documented(GRES_PAGE).aborts_jobs()
}

const fn topology_key(name: &'static str, kind: super::ValueKind) -> KeySpec {
    key(name, kind).documented(TOPOLOGY_PAGE)
}

const fn acct_gather_key(name: &'static str, kind: super::ValueKind) -> KeySpec {
    key(name, kind).documented(ACCT_GATHER_MEASURED)
}

const fn job_container_key(name: &'static str, kind: super::ValueKind) -> KeySpec {
    key(name, kind)
        .needs(Needs::NodeRestart, JOB_CONTAINER_PAGE)
        .aborts_jobs()
}

/// In alphabetical order, for binary search, as are all lists here.
pub(super) const CGROUP: &[KeySpec] = &[
    cgroup_key("AllowedDevicesFile", Text).defunct(),
    removed("AllowedKmemSpace", "take it out"),
    cgroup_key("AllowedRAMSpace", Float),
    cgroup_key("AllowedSwapSpace", Float),
    cgroup_key("CgroupAutomount", Text).defunct(),
    cgroup_key("CgroupJobIdPaths", Boolean),
    cgroup_key("CgroupMountpoint", Text),
    cgroup_key("CgroupPlugin", Text),
    removed("CgroupReleaseAgentDir", "take it out"),
    cgroup_key("CgroupSlice", Text),
    cgroup_key("ConstrainCores", Boolean),
    cgroup_key("ConstrainDevices", Boolean),
    removed("ConstrainKmemSpace", "take it out"),
    cgroup_key("ConstrainRAMSpace", Boolean),
    cgroup_key("ConstrainSwapSpace", Boolean),
    cgroup_key("EnableControllers", Boolean),
    cgroup_key("EnableExtraControllers", Text),
    cgroup_key("IgnoreSystemd", Boolean),
    cgroup_key("IgnoreSystemdOnFailure", Boolean),
    removed("MaxKmemPercent", "take it out"),
    cgroup_key("MaxRAMPercent", Float),
    cgroup_key("MaxSwapPercent", Float),
    cgroup_key("MemorySwappiness", U64),
    removed("MinKmemSpace", "take it out"),
    cgroup_key("MinRAMSpace", U64),
    cgroup_key("SignalChildrenProcesses", Boolean),
    cgroup_key("SystemdTimeout", U64),
    removed(
        "TaskAffinity",
        "take it out and set TaskPlugin=task/affinity,task/cgroup in slurm.conf",
    ),
];

pub(super) const GRES: &[KeySpec] = &[
    gres_key("AutoDetect"),
    gres_key("Cores").needs(Needs::ControllerRestart, "gres.conf(5), Cores"),
    gres_key("Count"),
    gres_key("CPUs").legacy("Cores"),
    gres_key("File"),
    gres_key("Files"),
    gres_key("Flags"),
    gres_key("Link"),
    gres_key("Links"),
    gres_key("MultipleFiles"),
    gres_key("Name"),
    gres_key("NodeName"),
    gres_key("Type"),
];

pub(super) const TOPOLOGY: &[KeySpec] = &[
    topology_key("BlockName", Text),
    topology_key("BlockSizes", Text),
    topology_key("LinkSpeed", U32),
    topology_key("Nodes", Text),
    topology_key("RingName", Text),
    topology_key("Switches", Text),
    topology_key("SwitchName", Text),
];

pub(super) const ACCT_GATHER: &[KeySpec] = &[
    acct_gather_key("EnergyIPMICalcAdjustment", Boolean),
    acct_gather_key("EnergyIPMIFrequency", U32),
    acct_gather_key("EnergyIPMIPassword", Text),
    acct_gather_key("EnergyIPMIPowerSensors", Text),
    acct_gather_key("EnergyIPMITimeout", U32),
    acct_gather_key("EnergyIPMIUsername", Text),
    acct_gather_key("InfinibandOFEDPort", U32),
    acct_gather_key("ProfileHDF5Default", Text),
    acct_gather_key("ProfileHDF5Dir", Text),
    acct_gather_key("ProfileInfluxDBDatabase", Text),
    acct_gather_key("ProfileInfluxDBDefault", Text),
    acct_gather_key("ProfileInfluxDBExtraTags", Text),
    acct_gather_key("ProfileInfluxDBFlags", Text),
    acct_gather_key("ProfileInfluxDBFrequency", U32),
    acct_gather_key("ProfileInfluxDBHost", Text),
    acct_gather_key("ProfileInfluxDBPass", Text),
    acct_gather_key("ProfileInfluxDBRTPolicy", Text),
    acct_gather_key("ProfileInfluxDBTimeout", U32),
    acct_gather_key("ProfileInfluxDBUser", Text),
    acct_gather_key("SysfsInterfaces", Text),
];

pub(super) const JOB_CONTAINER: &[KeySpec] = &[
    job_container_key("AutoBasePath", Boolean),
    job_container_key("BasePath", Text),
    job_container_key("CloneNSEpilog", Text),
    job_container_key("CloneNSEpilog_Wait", U32),
    job_container_key("CloneNSScript", Text),
    job_container_key("CloneNSScript_Wait", U32),
    job_container_key("Dirs", Text),
    job_container_key("EntireStepInNS", Boolean),
    job_container_key("InitScript", Text),
    job_container_key("NodeName", Text),
    job_container_key("Shared", Boolean),
];
