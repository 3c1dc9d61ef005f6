//! Reasons of conditions and events, which programs match.

/// The object matches its spec.
pub(crate) const READY: &str = "Ready";
/// slurmctld's pod is starting.
pub(crate) const STARTING: &str = "Starting";
/// The spec contradicts itself or Kubernetes.
pub(crate) const INVALID_SPEC: &str = "InvalidSpec";
/// An external slurmctld lacks a setting that pods need.
pub(crate) const REQUIREMENT_MISSING: &str = "RequirementMissing";
/// Another daemon responds at the address of an external slurmctld.
pub(crate) const NOT_SLURMCTLD: &str = "NotSlurmctld";
/// Another Controller within reach has the cluster name.
pub(crate) const CLUSTER_NAME_TAKEN: &str = "ClusterNameTaken";
/// The cluster name of a running cluster was changed.
pub(crate) const CLUSTER_NAME_CHANGED: &str = "ClusterNameChanged";
/// A referenced Secret, or its entry, does not exist.
pub(crate) const SECRET_MISSING: &str = "SecretMissing";
/// A referenced ConfigMap, or its entry, does not exist.
pub(crate) const CONFIG_MAP_MISSING: &str = "ConfigMapMissing";
/// The referenced Accounting does not exist.
pub(crate) const ACCOUNTING_MISSING: &str = "AccountingMissing";
/// The referenced Controller does not exist.
pub(crate) const CONTROLLER_MISSING: &str = "ControllerMissing";
/// A file has a name that is not allowed next to slurm.conf, or two files have the same name.
pub(crate) const BAD_FILE: &str = "BadFile";
/// The files do not fit into a ConfigMap.
pub(crate) const CONFIG_TOO_LARGE: &str = "ConfigTooLarge";
/// Two NodeSets have the same name in Slurm.
pub(crate) const NODE_SET_NAME_TAKEN: &str = "NodeSetNameTaken";
/// A NodeSet's partition cannot be written into slurm.conf.
pub(crate) const BAD_PARTITION: &str = "BadPartition";
/// A Partition has the name of something else in Slurm.
pub(crate) const PARTITION_NAME_TAKEN: &str = "PartitionNameTaken";
/// Two partitions are the default.
pub(crate) const TWO_DEFAULTS: &str = "TwoDefaults";
/// A deleted Partition is the only default one.
pub(crate) const LAST_DEFAULT: &str = "LastDefault";
/// A person closed a partition in Slurm.
pub(crate) const CLOSED_BY_HAND: &str = "ClosedByHand";
/// A Partition's members do not exist, or there are none.
pub(crate) const BAD_MEMBERS: &str = "BadMembers";
/// Nodes are being marked as members of a Partition.
pub(crate) const WAITS_FOR_NODES: &str = "WaitsForNodes";
/// The shared claim cannot be shared.
pub(crate) const BAD_CLAIM: &str = "BadClaim";
/// A ServiceMonitor is requested, and the API server does not serve the kind.
pub(crate) const NO_SERVICE_MONITORS: &str = "NoServiceMonitors";
/// A step failed and is retried.
pub(crate) const RETRYING: &str = "Retrying";

/// slurmctld runs with the newest revision.
pub(crate) const APPLIED: &str = "Applied";
/// The newest revision waits for the first pod.
pub(crate) const WRITTEN: &str = "Written";
/// The newest revision is being sent to slurmctld.
pub(crate) const PUSHING: &str = "Pushing";
/// The agent cannot be reached.
pub(crate) const AGENT_AWAY: &str = "AgentAway";
/// The pod has no agent: another operator created it.
pub(crate) const AGENT_MISSING: &str = "AgentMissing";
/// The newest configuration was rejected, by the operator's checker or by slurmctld.
pub(crate) const CONFIG_REJECTED: &str = "ConfigRejected";
/// A change could end jobs, and waits for them.
pub(crate) const WAITS_FOR_JOBS: &str = "WaitsForJobs";
/// A change names a QOS that has not been found in the accounting database yet.
pub(crate) const WAITS_FOR_ACCOUNTING: &str = "WaitsForAccounting";
/// Slurm accepts the configuration, but something in it is probably a mistake.
pub(crate) const CONFIG_DOUBTFUL: &str = "ConfigDoubtful";
/// The newest revision is in place, and slurmctld does not run.
pub(crate) const SLURMCTLD_AWAY: &str = "SlurmctldAway";
/// The operator does not manage the configuration.
pub(crate) const EXTERNAL: &str = "External";

/// slurmctld runs under the agent.
pub(crate) const AGENT: &str = "Agent";
/// slurmctld runs under the user's own command.
pub(crate) const OWN_COMMAND: &str = "OwnCommand";
/// No action of a person is needed.
pub(crate) const HEALTHY: &str = "Healthy";
/// Nothing is in progress.
pub(crate) const SETTLED: &str = "Settled";

/// An external slurmctld has no such partition, and would lose it if it were created.
pub(crate) const CANNOT_CREATE: &str = "CannotCreate";
/// A Partition is on its way to slurmctld.
pub(crate) const APPLYING: &str = "Applying";
/// A Partition waits for its Controller or for Slurm.
pub(crate) const WAITING: &str = "Waiting";
/// A deleted Partition waits for its jobs.
pub(crate) const CLOSING: &str = "Closing";
/// slurmctld has the line of a Partition and does not list it.
pub(crate) const NOT_IN_SLURM: &str = "NotInSlurm";
