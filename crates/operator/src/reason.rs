//! The reasons of conditions and events, which programs match: each with its meaning, where it is used and its remedy.
//! `docs/conditions.md` is made from this list. The same reason means the same on all kinds.

/// Defines a constant per reason: its documentation is the meaning, `on` names the conditions that have it.
macro_rules! reasons {
    ($(
        $section:literal:
        $(
            $(#[doc = $meaning:literal])+
            $(#[allow($lint:ident)])?
            $name:ident = $text:expr, on $used:literal => $remedy:literal;
        )+
    )+) => {
        $($($(#[doc = $meaning])+ $(#[allow($lint)])? pub(crate) const $name: &str = $text;)+)+

        /// The sections of the list, each with its reasons: name, where it is used, meaning and remedy.
        #[cfg(test)]
        const ALL: &[(&str, &[[&str; 4]])] =
            &[$(($section, &[$([$name, $used, concat!($($meaning),+), $remedy]),+])),+];
    };
}

reasons! {
    "Every kind":
    /// The object is in the state that its spec describes.
    READY = "Ready", on "Ready=True" => "Nothing to do.";
    /// Pods are starting.
    STARTING = "Starting", on "Ready=False, Progressing=True, ConfigurationApplied=Unknown"
        => "Wait. If it lasts, the message says what keeps the pods from starting; `kubectl describe pod` says more.";
    /// Nothing is in progress.
    SETTLED = "Settled", on "Progressing=False" => "Nothing to do.";
    /// No action of a person is needed.
    HEALTHY = "Healthy", on "Degraded=False" => "Nothing to do.";
    /// The spec contradicts itself or Kubernetes. Children stay as they are.
    INVALID_SPEC = "InvalidSpec", on "Ready, Degraded, event" => "Correct the field that the message names.";
    /// A referenced Secret, or its entry, does not exist.
    SECRET_MISSING = "SecretMissing", on "Ready, Degraded, event" => "Create it, or correct the reference.";
    /// A referenced ConfigMap, or its entry, does not exist.
    CONFIG_MAP_MISSING = "ConfigMapMissing", on "Ready, Degraded, event" => "Create it, or correct the reference.";
    /// The referenced Controller does not exist, an Accounting without keys of its own has none, or the key of a Token is not that of a
    /// Controller.
    CONTROLLER_MISSING = "ControllerMissing", on "Ready, Degraded, event" => "Create it, or correct the reference.";
    /// The referenced Controller exists and cannot be used: this version cannot decode it, or has not received it yet.
    CONTROLLER_UNREADABLE = "ControllerUnreadable", on "Ready, Degraded, event"
        => "Correct the field that the message names, or run the version of the operator that knows it.";
    /// An object of another owner has the name of a child. It is left unchanged.
    NAME_TAKEN = runtime::NAME_TAKEN, on "Ready, Degraded, event"
        => "Delete or rename the object that the message names, or give this object another name.";
    /// The API server rejects a child.
    #[allow(dead_code)]
    CHILD_REFUSED = runtime::CHILD_REFUSED, on "Ready, Degraded"
        => "Correct the field that the API server's message names, or the admission policy that rejects the child.";
    /// A step failed and is retried.
    RETRYING = runtime::RETRYING, on "Degraded, ConfigurationApplied, event"
        => "Wait. If it lasts, remove the cause that the message names, such as a missing permission.";
    /// Daemons of the cluster have different keys and reject each other, or the Secret has another key than the cluster runs with.
    KEY_MISMATCH = "KeyMismatch", on "Ready, Degraded"
        => "Delete the pods that the message names, or restore the key: [troubleshooting.md](troubleshooting.md#keys).";
    /// Pods do not start, and waiting does not help.
    PODS_DO_NOT_START = "PodsDoNotStart", on "Ready, Degraded, event"
        => "Do what the message says. It has the kubelet's or the scheduler's words: see [troubleshooting.md](troubleshooting.md#images).";
    /// The installed definitions are older than this operator, whose newer fields are off.
    OLD_DEFINITIONS = "OldDefinitions", on "CRDsOutdated=True" => "Upgrade the chart slurm-operator-crds.";
    /// A template or an overlay has fields that Kubernetes does not have.
    UNKNOWN_FIELDS = "UnknownFields", on "UnknownFields=True"
        => "Correct the spelling of the fields that the message names, or remove them.";
    /// The object cannot be read, and is ignored.
    #[allow(dead_code)]
    UNDECODABLE = runtime::UNDECODABLE, on "event" => "Correct the field that the message names, with `kubectl edit`.";

    "Controller":
    /// Another Controller within reach is older and has the cluster name.
    CLUSTER_NAME_TAKEN = "ClusterNameTaken", on "Ready, Degraded, event" => "Set another `spec.clusterName`.";
    /// The cluster name of a running cluster was changed.
    CLUSTER_NAME_CHANGED = "ClusterNameChanged", on "Ready, Degraded, event"
        => "Set it back: the cluster's state is stored under the former name. Another name needs another Controller.";
    /// The referenced Accounting does not exist.
    ACCOUNTING_MISSING = "AccountingMissing", on "Ready, Degraded, event"
        => "Create it, or correct `spec.accountingRef`.";
    /// The claim for slurmctld's state cannot be shared by several pods.
    BAD_CLAIM = "BadClaim", on "Ready, Degraded, event" => "Use a claim with ReadWriteMany, or one replica.";
    /// A ServiceMonitor is requested, and the API server does not serve the kind.
    NO_SERVICE_MONITORS = "NoServiceMonitors", on "Degraded, event"
        => "Install the Prometheus operator, or disable `spec.metrics.serviceMonitor`.";
    /// The release of Slurm does not have what the message names. The rest works.
    SLURM_TOO_OLD = "SlurmTooOld", on "Degraded, event"
        => "Disable what the message names, or use a newer release of Slurm: see [versioning.md](versioning.md#releases-of-slurm).";
    /// slurmctld is external: the operator does not manage its configuration.
    EXTERNAL = "External", on "Ready=True, ConfigurationApplied=Unknown"
        => "Nothing to do. Fields that the message names have to be written into the files there.";
    /// An external slurmctld lacks a setting that pods need.
    REQUIREMENT_MISSING = "RequirementMissing", on "Ready, Degraded, event"
        => "Set what the message names in its slurm.conf: see [hybrid.md](hybrid.md).";
    /// Another daemon responds at the address of an external slurmctld.
    NOT_SLURMCTLD = "NotSlurmctld", on "Ready, Degraded, event" => "Correct `spec.externalConfig`.";
    /// slurmctld runs under the agent.
    AGENT = "Agent", on "Supervised=True" => "Nothing to do.";
    /// slurmctld runs under the user's own command, without the agent.
    OWN_COMMAND = "OwnCommand", on "Supervised=False"
        => "Remove `spec.slurmctld.command`, unless you need it: a bad configuration can end slurmctld.";
    /// slurmctld's pod has no agent: another operator created it.
    AGENT_MISSING = "AgentMissing", on "Supervised=False, Degraded" => "Restart the pod once, as the message says.";
    /// The agent in slurmctld's pod is older than this operator, and lacks what the message names.
    AGENT_OUTDATED = "AgentOutdated", on "Degraded" => "Restart the pod once when convenient, as the message says.";
    /// The bundle's ConfigMap is not signed with the cluster's JWT key, and is not used.
    BUNDLE_UNTRUSTED = "BundleUntrusted", on "Degraded, event"
        => "Check who changed it. The operator writes it again: see [reliability.md](reliability.md#the-bundle).";
    /// slurmctld's pod does not start slurmctld any more, because a later pod of its name has the state volume, as after a restore of etcd.
    POD_SUPERSEDED = "PodSuperseded", on "Degraded, event"
        => "Nothing to do if the message says that the pod is replaced. Otherwise end the later pod, or delete this one, as the message says.";

    "The configuration of a cluster":
    /// slurmctld runs with the newest configuration.
    APPLIED = "Applied", on "ConfigurationApplied=True" => "Nothing to do.";
    /// The newest configuration waits for slurmctld's first pod.
    WRITTEN = "Written", on "ConfigurationApplied=False" => "Wait until the pod runs.";
    /// The newest configuration is being sent to slurmctld, or slurmctld restarts with it.
    PUSHING = "Pushing", on "ConfigurationApplied=False, Progressing=True" => "Wait.";
    /// The agent cannot be reached. slurmctld keeps the configuration that it has.
    AGENT_AWAY = "AgentAway", on "Ready, Degraded, ConfigurationApplied, event"
        => "Check slurmctld's pod, the log of its container `reconfigure` and NetworkPolicies.";
    /// slurmctld does not run with the newest configuration yet, or an external slurmctld does not respond.
    SLURMCTLD_AWAY = "SlurmctldAway", on "Ready, Degraded, ConfigurationApplied, event"
        => "See slurmctld's log. For an external slurmctld, check that it runs and that pods can reach it.";
    /// The operator's checker or slurmctld rejected an input. Its last good version stays in use.
    CONFIG_REJECTED = "ConfigRejected", on "Ready, Degraded, ConfigurationApplied, event"
        => "Correct the input that the message names: see [configuration.md](configuration.md#when-an-input-is-bad).";
    /// A change could end jobs, and waits for them; or a partition without an owner waits for its jobs.
    WAITS_FOR_JOBS = "WaitsForJobs", on "Ready, Degraded, ConfigurationApplied, PartitionRetained, event"
        => "Wait until the jobs end, or end them.";
    /// A change names a QOS that has not been found in the accounting database yet.
    WAITS_FOR_ACCOUNTING = "WaitsForAccounting", on "Ready, Degraded, ConfigurationApplied, event"
        => "Create the QOS with `sacctmgr`, or correct its name.";
    /// Nodes are being marked as members of a Partition.
    WAITS_FOR_NODES = "WaitsForNodes", on "Ready, Degraded, ConfigurationApplied" => "Wait some seconds.";
    /// Slurm accepts the configuration, but something in it is probably a mistake.
    CONFIG_DOUBTFUL = "ConfigDoubtful", on "ConfigDoubtful=True, event" => "Correct the line that the message names.";
    /// A file has a name that is not allowed next to slurm.conf, or two files have the same name.
    BAD_FILE = "BadFile", on "Ready, Degraded, ConfigurationApplied, event"
        => "Rename the entry that the message names.";
    /// The files do not fit into a ConfigMap.
    CONFIG_TOO_LARGE = "ConfigTooLarge", on "Ready, Degraded, ConfigurationApplied, event"
        => "Make the files smaller, or put large ones into the images.";
    /// Two NodeSets have the same name in Slurm, or a NodeSet has a name with a meaning of its own.
    NODE_SET_NAME_TAKEN = "NodeSetNameTaken", on "Ready, Degraded, event"
        => "Give the younger NodeSet another name, or another `spec.template.spec.hostname`.";

    "Partition, and partitions of a NodeSet":
    /// A NodeSet's partition cannot be written into slurm.conf.
    BAD_PARTITION = "BadPartition", on "Ready, Degraded, ConfigurationApplied, event"
        => "Correct `spec.partition` of the NodeSet that the message names.";
    /// A Partition has the name of something else in Slurm.
    PARTITION_NAME_TAKEN = "PartitionNameTaken", on "Ready, Degraded, event" => "Give it another name.";
    /// Two partitions are the default.
    TWO_DEFAULTS = "TwoDefaults", on "Ready, Degraded, event" => "Unset one of the two.";
    /// A deleted Partition is the only default one, and is kept.
    LAST_DEFAULT = "LastDefault", on "Ready, PartitionRetained" => "Make another partition the default.";
    /// A Partition's members do not exist, or there are none.
    BAD_MEMBERS = "BadMembers", on "Ready, Degraded, event"
        => "Correct the names of NodeSets and nodes in the spec, or create them.";
    /// It is on its way to slurmctld.
    APPLYING = "Applying", on "Ready=False, Progressing=True" => "Wait some seconds.";
    /// It waits for its Controller or for Slurm.
    WAITING = "Waiting", on "Ready=False, Progressing=True" => "See the conditions of the Controller.";
    /// It was deleted, accepts no new jobs, and is removed when its jobs have ended.
    CLOSING = "Closing", on "Ready=False, Progressing=True, PartitionRetained=True"
        => "Wait until the jobs end, or end them with `scancel --partition=NAME`.";
    /// slurmctld has its line and does not list it.
    NOT_IN_SLURM = "NotInSlurm", on "Ready, Degraded, event" => "Run `scontrol reconfigure`, then see slurmctld's log.";
    /// An external slurmctld has no such partition, and would lose it if it were created.
    CANNOT_CREATE = "CannotCreate", on "Ready, Degraded, event"
        => "Add the line of the message to the slurm.conf there, and run `scontrol reconfigure`.";
    /// A person closed the partition in Slurm. It stays closed, also across restarts.
    CLOSED_BY_HAND = "ClosedByHand", on "Drifted=True, event"
        => "Open it with `kubectl slurm partition resume NAME` when the cause is gone.";
    /// A person changed the partition in Slurm. The change is kept until slurmctld reads its files again.
    CHANGED_BY_HAND = "ChangedByHand", on "Drifted=True, event"
        => "Write the values into the spec, or revert them as the message says.";
    /// Manual changes in Slurm were reverted, as `spec.driftPolicy` wants.
    REVERTED = "Reverted", on "event" => "Write the values into the spec if they are wanted.";
    /// A deleted Partition leaves the partition of an external slurmctld as it is.
    LEFT_AS_IT_IS = "LeftAsItIs", on "event" => "Delete the partition there, if it is not needed.";
    /// The external slurmctld has files of its own, and loses the partition when it restarts.
    FILE_OF_OTHERS = "FileOfOthers", on "NotPersistent=True"
        => "Add the line of `status.line` to the slurm.conf there.";

    "NodeSet":
    /// All desired workers are in service.
    WORKERS_READY = "WorkersReady", on "Ready=True" => "Nothing to do.";
    /// Fewer workers are in service than desired.
    WORKERS_NOT_READY = "WorkersNotReady", on "Ready=False" => "Wait; see `Progressing` and `Degraded`.";
    /// Workers are being created, drained, updated or removed.
    WORKING = "Working", on "Progressing=True" => "Wait. The message names the jobs and workers that are waited for.";
    /// The NodeSet is being deleted, and its workers end their jobs.
    DELETING = "Deleting", on "Ready=False"
        => "Wait, or annotate the NodeSet with `nodeset.slinky.slurm.net/force-deletion=true`.";
    /// Its Controller is being deleted. No workers are created.
    CONTROLLER_DELETED = "ControllerDeleted", on "Ready, Progressing, Degraded"
        => "Name another Controller, or delete the NodeSet.";
    /// Its Controller is external and names no key for workers.
    KEY_MISSING = "KeyMissing", on "Ready, Progressing, Degraded" => "Set `spec.slurmKeyRef` of the Controller.";
    /// A step waits for something that may not come by itself: Slurm does not respond, or a name is taken.
    BLOCKED = "Blocked", on "Degraded" => "Remove the cause that the message names.";
    /// Slurm answers.
    ANSWERING = "Answering", on "SlurmReachable=True" => "Nothing to do.";
    /// Slurm does not answer. Workers are created, and none is removed.
    NOT_ANSWERING = "NotAnswering", on "SlurmReachable=False"
        => "See the conditions of the Controller and slurmctld's log.";

    "NodeSet: the reservation of a scheduled update":
    /// Slurm holds the reservation.
    CREATED = "Created", on "ReservationCreated=True" => "Nothing to do.";
    /// The reservation is about to be created.
    CREATING = "Creating", on "ReservationCreated=False" => "Wait. If Slurm rejects it, `Degraded` has its message.";
    /// The NodeSet has no registered node to reserve.
    NO_NODES = "NoNodes", on "ReservationCreated=False" => "Wait until a worker has registered.";
    /// The reservation has ended, or an administrator deleted it.
    NOT_EXISTS = "NotExists", on "ReservationCreated=False" => "Change `startTime` to get another one.";
    /// The start time has passed.
    START_PASSED = "StartPassed", on "ReservationCreated=False" => "Set a future `startTime`, or a flag such as DAILY.";
    /// Something is deleted and created again: all nodes of a reservation, or the StatefulSet of a Controller.
    REPLACING = "Replacing", on "ReservationCreated=False, event" => "Wait.";
    /// A reservation was created.
    RESERVATION_CREATED = "ReservationCreated", on "event" => "Nothing to do.";
    /// A reservation was changed.
    RESERVATION_UPDATED = "ReservationUpdated", on "event" => "Nothing to do.";
    /// A reservation was deleted.
    RESERVATION_DELETED = "ReservationDeleted", on "event" => "Nothing to do.";

    "NodeSet: events about workers and jobs":
    /// Workers are created.
    SCALING_UP = "ScalingUp", on "event" => "Nothing to do.";
    /// Workers are drained to be removed.
    SCALING_DOWN = "ScalingDown", on "event" => "Nothing to do.";
    /// Workers are drained to be replaced by a new revision.
    ROLLING_UPDATE = "RollingUpdate", on "event" => "Nothing to do.";
    /// A pod was deleted: its node had no job, or its worker was dead.
    SUCCESSFUL_DELETE = "SuccessfulDelete", on "event" => "Nothing to do.";
    /// A pod could not be created.
    FAILED_CREATE = "FailedCreate", on "event"
        => "Correct what the API server's message names: a quota, a policy, the template.";
    /// A drained worker without a job may be evicted.
    EVICTABLE = "Evictable", on "event" => "Nothing to do. `kubectl drain` of its Kubernetes node can continue.";
    /// Slurm keeps the record of a node whose worker was removed, because something needs it.
    NODE_RECORD_KEPT = "NodeRecordKept", on "event" => "Nothing to do; the message names what needs the record.";
    /// Slurm's record of a node without a pod was deleted.
    DEFUNCT_NODE_PRUNED = "DefunctSlurmNodePruned", on "event" => "Nothing to do.";
    /// Slurm has records for workers that it starts and stops by itself.
    NODES_CREATED = "SlurmNodesCreated", on "event" => "Nothing to do.";
    /// A worker died with its Kubernetes node. Its node is down in Slurm, which requeues its jobs.
    NODE_LOST = "NodeLost", on "event" => "See [nodesets.md](nodesets.md#when-a-node-is-lost).";
    /// Slurm listed jobs on a worker that had ended with the worker before it. They were ended or requeued.
    JOBS_LOST = "JobsLost", on "event" => "Submit cancelled jobs again.";
    /// A job was requeued, because `spec.drain.timeout` has passed.
    JOB_REQUEUED = "JobRequeued", on "event" => "Nothing to do; the job runs again elsewhere.";
    /// A job was cancelled, because `spec.drain.timeout` has passed.
    JOB_CANCELLED = "JobCancelled", on "event" => "Submit the job again, or set a longer timeout.";
    /// Slurm refused to end a job that a worker waits for.
    JOB_NOT_ENDED = "JobNotEnded", on "event" => "End the job by hand, with `scancel`.";
    /// The workers of a deleted NodeSet are deleted without waiting for their jobs, for the cause in the message.
    WORKERS_LET_GO = "WorkersLetGo", on "event" => "Submit jobs again that ended with them.";
    /// Slurm refused the topology of a worker.
    TOPOLOGY_REFUSED = "TopologyRefused", on "event"
        => "Correct the annotation that the message names, or add the place to the Controller's topology.yaml.";

    "RestApi, LoginSet, Accounting and Token":
    /// A Token is for a user with all rights in Slurm, for whom this operator issues none.
    USER_NOT_ALLOWED = "UserNotAllowed", on "Ready, Degraded, event"
        => "Name another user, or set the operator's flag `--privileged-token-users`: see [tokens.md](tokens.md).";
    /// A Token asks for a longer lifetime than this operator allows. It gets tokens of the longest lifetime, which are renewed.
    LIFETIME_CAPPED = "LifetimeCapped", on "Degraded"
        => "Set a shorter `spec.lifetime`, or the operator's flag `--max-token-lifetime`: see [tokens.md](tokens.md).";
    /// RestApi: the Controller has no slurm.conf yet.
    CONFIG_MISSING = "ConfigMissing", on "Ready, Degraded, event" => "See the conditions of the Controller.";
    /// LoginSet: sssd cannot read sssd.conf.
    SSSD_CONF_INVALID = "SssdConfInvalid", on "Ready, Degraded, event" => "Correct the line that the message names.";
    /// LoginSet: the Secret of the host keys lacks a key.
    HOST_KEYS_INCOMPLETE = "HostKeysIncomplete", on "Ready, Degraded, event"
        => "Add the key, or delete the Secret to generate new keys, of which SSH clients will warn.";
    /// LoginSet: pods report files that a daemon rejects, or an unreachable directory.
    LOGIN_IMPAIRED = "LoginImpaired", on "Degraded"
        => "Correct `spec.extraSshdConfig` or sssd.conf, or restore the directory.";
    /// Accounting: slurmdbd does not become ready.
    SLURMDBD_FAILS = "SlurmdbdFails", on "Ready, Degraded"
        => "Check `spec.storageConfig`, the password's Secret and the database; the message has slurmdbd's log.";
    /// Accounting: an external slurmdbd does not respond.
    SLURMDBD_AWAY = "SlurmdbdAway", on "Degraded"
        => "Correct `spec.externalConfig`, or make sure that slurmdbd runs, has the keys and can be reached from pods.";
    /// Accounting: slurmdbd runs and has no database. Jobs continue, and slurmctld queues their records.
    DATABASE_AWAY = "DatabaseAway", on "Degraded" => "Restore the server of `spec.storageConfig`.";
}

#[cfg(test)]
mod tests;
