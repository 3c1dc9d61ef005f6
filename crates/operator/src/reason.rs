//! The words by which programs know why something is as it is: reasons of conditions and of events.

/// Everything is as it should be.
pub(crate) const READY: &str = "Ready";
/// slurmctld's pod is on its way.
pub(crate) const STARTING: &str = "Starting";
/// The spec contradicts itself or Kubernetes.
pub(crate) const INVALID_SPEC: &str = "InvalidSpec";
/// A slurmctld outside Kubernetes is not set up as pods need it.
pub(crate) const REQUIREMENT_MISSING: &str = "RequirementMissing";
/// Something else answers where a slurmctld outside Kubernetes should.
pub(crate) const NOT_SLURMCTLD: &str = "NotSlurmctld";
/// Another Controller within reach has the cluster name.
pub(crate) const CLUSTER_NAME_TAKEN: &str = "ClusterNameTaken";
/// The cluster name of a running cluster was changed.
pub(crate) const CLUSTER_NAME_CHANGED: &str = "ClusterNameChanged";
/// A referenced Secret, or its entry, is not there.
pub(crate) const SECRET_MISSING: &str = "SecretMissing";
/// A referenced ConfigMap, or its entry, is not there.
pub(crate) const CONFIG_MAP_MISSING: &str = "ConfigMapMissing";
/// The referenced Accounting is not there.
pub(crate) const ACCOUNTING_MISSING: &str = "AccountingMissing";
/// A file has a name it cannot have beside slurm.conf, or two files have the same.
pub(crate) const BAD_FILE: &str = "BadFile";
/// The files do not fit into a ConfigMap.
pub(crate) const CONFIG_TOO_LARGE: &str = "ConfigTooLarge";
/// Two NodeSets have one name in Slurm.
pub(crate) const NODE_SET_NAME_TAKEN: &str = "NodeSetNameTaken";
/// A NodeSet's partition cannot be written into slurm.conf.
pub(crate) const BAD_PARTITION: &str = "BadPartition";
/// A Partition has the name of something else in Slurm.
pub(crate) const PARTITION_NAME_TAKEN: &str = "PartitionNameTaken";
/// Two partitions are to be the default.
pub(crate) const TWO_DEFAULTS: &str = "TwoDefaults";
/// A Partition that is to go is the only default one.
pub(crate) const LAST_DEFAULT: &str = "LastDefault";
/// Somebody closed a partition in Slurm.
pub(crate) const CLOSED_BY_HAND: &str = "ClosedByHand";
/// A Partition's members are not there, or are none.
pub(crate) const BAD_MEMBERS: &str = "BadMembers";
/// Its nodes are being told that they belong to a Partition.
pub(crate) const WAITS_FOR_NODES: &str = "WaitsForNodes";
/// The shared claim cannot be shared.
pub(crate) const BAD_CLAIM: &str = "BadClaim";
/// A ServiceMonitor is asked for, and the cluster does not know the kind.
pub(crate) const NO_SERVICE_MONITORS: &str = "NoServiceMonitors";
/// A step failed and is tried again.
pub(crate) const RETRYING: &str = "Retrying";

/// slurmctld runs with the newest revision.
pub(crate) const APPLIED: &str = "Applied";
/// The newest revision waits for the first pod.
pub(crate) const WRITTEN: &str = "Written";
/// The newest revision is on its way to slurmctld.
pub(crate) const PUSHING: &str = "Pushing";
/// The agent cannot be reached.
pub(crate) const AGENT_AWAY: &str = "AgentAway";
/// The pod has no agent: it was made by another operator.
pub(crate) const AGENT_MISSING: &str = "AgentMissing";
/// Something in the newest configuration is bad, by our own judgement or by slurmctld's.
pub(crate) const CONFIG_REJECTED: &str = "ConfigRejected";
/// A change could end jobs, and waits for them.
pub(crate) const WAITS_FOR_JOBS: &str = "WaitsForJobs";
/// A change names a QOS that has not been looked up in the accounting database.
pub(crate) const WAITS_FOR_ACCOUNTING: &str = "WaitsForAccounting";
/// Slurm takes the configuration, but something in it is hardly what was meant.
pub(crate) const CONFIG_DOUBTFUL: &str = "ConfigDoubtful";
/// The newest revision is in place, and slurmctld does not run.
pub(crate) const SLURMCTLD_AWAY: &str = "SlurmctldAway";
/// The configuration is somebody else's.
pub(crate) const EXTERNAL: &str = "External";

/// slurmctld runs under the agent.
pub(crate) const AGENT: &str = "Agent";
/// slurmctld runs under the user's own command.
pub(crate) const OWN_COMMAND: &str = "OwnCommand";
/// Nothing needs a person.
pub(crate) const HEALTHY: &str = "Healthy";
/// Nothing is on its way.
pub(crate) const SETTLED: &str = "Settled";
