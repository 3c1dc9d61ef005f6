//! Labels, annotations, finalizers and the other words by which the operator, its users and Slurm know each other.
//!
//! Upstream's spelling throughout, so that scripts, selectors and dashboards written for it go on working.

/// Labels.
pub mod labels {
    /// The daemon: one of [`super::apps`]. Part of every selector.
    pub const NAME: &str = "app.kubernetes.io/name";
    /// Name of the object a child belongs to. Part of every selector.
    pub const INSTANCE: &str = "app.kubernetes.io/instance";
    /// The role: one of [`super::components`].
    pub const COMPONENT: &str = "app.kubernetes.io/component";
    /// Name of the Controller, on everything that belongs to a worker.
    pub const CLUSTER: &str = "slinky.slurm.net/cluster";
    /// The daemon, under the key the older documents select by.
    pub const SLINKY_COMPONENT: &str = "slinky.slurm.net/component";
    /// `true` on the slurmctld pod that is active; clients are led to it.
    pub const CONTROLLER_ACTIVE: &str = "controller.slinky.slurm.net/active";
    /// Name of the worker pod.
    pub const POD_NAME: &str = "nodeset.slinky.slurm.net/pod-name";
    /// Number of the worker pod, with its zeros.
    pub const POD_INDEX: &str = "nodeset.slinky.slurm.net/pod-index";
    /// Slurm's name for the worker pod.
    pub const POD_HOSTNAME: &str = "nodeset.slinky.slurm.net/pod-hostname";
    /// `true` on worker pods that must not be evicted.
    pub const POD_PROTECT: &str = "nodeset.slinky.slurm.net/pod-protect";
    /// The scaling mode a worker pod was made in.
    pub const SCALING_MODE: &str = "nodeset.slinky.slurm.net/scaling-mode";
    /// The revision a worker pod was made from.
    pub const REVISION: &str = "controller.kubernetes.io/hash";
}

/// Values of [`labels::NAME`], which are also the names of the main containers.
pub mod apps {
    /// Controller.
    pub const SLURMCTLD: &str = "slurmctld";
    /// NodeSet.
    pub const SLURMD: &str = "slurmd";
    /// RestApi.
    pub const SLURMRESTD: &str = "slurmrestd";
    /// Accounting.
    pub const SLURMDBD: &str = "slurmdbd";
    /// LoginSet.
    pub const LOGIN: &str = "login";
}

/// Values of [`labels::COMPONENT`].
pub mod components {
    /// Controller.
    pub const CONTROLLER: &str = "controller";
    /// NodeSet.
    pub const WORKER: &str = "worker";
    /// RestApi.
    pub const RESTAPI: &str = "restapi";
    /// Accounting.
    pub const ACCOUNTING: &str = "accounting";
    /// LoginSet.
    pub const LOGIN: &str = "login";
}

/// Annotations.
pub mod annotations {
    /// Worker pod: `true` drains its Slurm node. Users set it as well as the operator.
    pub const POD_CORDON: &str = "nodeset.slinky.slurm.net/pod-cordon";
    /// The same under the key the older documents use; read, never written.
    pub const POD_CORDON_OLD: &str = "slinky.slurm.net/pod-cordon";
    /// Worker pod: why it is cordoned, for Slurm's drain reason. Users set it beside [`POD_CORDON`].
    pub const POD_CORDON_REASON: &str = "nodeset.slinky.slurm.net/pod-cordon-reason";
    /// Worker pod that was chosen to go: what for, and since when. Written before anything else is done about it, so that
    /// another operator goes on with the same one.
    pub const LEAVING: &str = "nodeset.slinky.slurm.net/leaving";
    /// Worker pod: what deleting it costs, lower first.
    pub const POD_DELETION_COST: &str = "nodeset.slinky.slurm.net/pod-deletion-cost";
    /// Worker pod: when the last of its running jobs must have ended.
    pub const POD_DEADLINE: &str = "nodeset.slinky.slurm.net/pod-deadline";
    /// NodeSet that is being deleted: `true` has it go without its jobs being waited for.
    pub const FORCE_DELETION: &str = "nodeset.slinky.slurm.net/force-deletion";
    /// Controller: a change of the configuration that could end jobs is made at once. The value is the digest that the
    /// condition names, so that it is good for this change alone, or `true` for every change.
    pub const FORCE_CONFIG: &str = "slinky.slurm.net/force-config";
    /// Partition: when somebody asked that what was closed in Slurm by hand is as the object says again. What was closed later than
    /// this time stays closed.
    pub const RESUMED_AT: &str = "slinky.slurm.net/resumed-at";
    /// Partition: the address of the slurmctld outside Kubernetes that it was made in, for when it goes.
    pub const PARTITION_MADE_AT: &str = "slinky.slurm.net/made-at";
    /// Partition: why somebody drained it, for the next person who looks. Slurm has no place for it.
    pub const PARTITION_REASON: &str = "slinky.slurm.net/drain-reason";
    /// slurmctld's pod: the number of the revision that was sent to it by a ConfigMap. Its change has the kubelet look.
    pub const CANDIDATE: &str = "slinky.slurm.net/candidate";
    /// Kubernetes node: why it is cordoned, for Slurm's drain reason.
    pub const NODE_CORDON_REASON: &str = "nodeset.slinky.slurm.net/node-cordon-reason";
    /// Kubernetes node: the host name of a worker pod on it, in DaemonSet mode.
    pub const HOSTNAME_OVERRIDE: &str = "nodeset.slinky.slurm.net/hostname-override";
    /// Kubernetes node, copied to worker pods: place in Slurm's topology.
    pub const TOPOLOGY: &str = "topology.slinky.slurm.net/spec";
    /// Kubernetes node: features of its Slurm nodes, with commas between them.
    pub const FEATURES: &str = "features.slinky.slurm.net/spec";
    /// Pod, or its template: digest of the auth/slurm key.
    pub const SLURM_KEY_HASH: &str = "slinky.slurm.net/slurm-key-hash";
    /// Pod template: digest of the auth/jwt key.
    pub const JWT_KEY_HASH: &str = "slinky.slurm.net/jwt-key-hash";
    /// Pod template: digest of the Slurm configuration.
    pub const SLURM_CONFIG_HASH: &str = "slinky.slurm.net/slurm-config-hash";
    /// Pod template: digest of slurmdbd.conf.
    pub const SLURMDBD_CONF_HASH: &str = "slinky.slurm.net/slurmdbd-conf-hash";
    /// Pod template: digest of sshd_config.
    pub const SSHD_CONF_HASH: &str = "slinky.slurm.net/sshd-conf-hash";
    /// Pod template: digest of sssd.conf.
    pub const SSSD_CONF_HASH: &str = "slinky.slurm.net/sssd-conf-hash";
    /// Pod template: digest of the SSH host keys.
    pub const SSH_HOST_KEYS_HASH: &str = "slinky.slurm.net/ssh-host-keys-hash";
    /// The container that `kubectl logs` and `kubectl exec` mean.
    pub const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
    /// Definition: number of the schema it carries, see [`crate::crds::SCHEMA_REVISION`].
    pub const SCHEMA_REVISION: &str = "slinky.slurm.net/schema-revision";
    /// Definition: what Helm does with it when the release goes.
    pub const HELM_RESOURCE_POLICY: &str = "helm.sh/resource-policy";
}

/// Value of a label or annotation that is a switch.
pub const ON: &str = "true";

/// Finalizer of a NodeSet that has something to settle with Slurm before it goes.
pub const NODESET_FINALIZER: &str = "nodeset.slinky.slurm.net/reservation";

/// Finalizer of a Partition that Slurm has to let go first.
pub const PARTITION_FINALIZER: &str = "partition.slinky.slurm.net/slurm";

/// Taint that worker pods tolerate, effect NoExecute.
pub const WORKER_TAINT: &str = "nodeset.slinky.slurm.net/worker";

/// What the reason of a Slurm node begins with when the operator gave it. Other reasons are people's and are left alone.
pub const NODE_REASON_PREFIX: &str = "slurm-operator: ";

/// What a Slurm feature begins with when the operator set it.
pub const NODE_FEATURE_PREFIX: &str = "k8s/";

/// What the type of a pod condition begins with that repeats a Slurm node's state.
pub const POD_CONDITION_PREFIX: &str = "SlurmNodeState";
