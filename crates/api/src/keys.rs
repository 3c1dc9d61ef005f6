//! Labels, annotations, finalizers and other strings that the operator, its users and Slurm share.
//!
//! They are upstream's, so that scripts, selectors and dashboards written for it keep working.

/// Labels.
pub mod labels {
    /// The daemon: one of [`super::apps`]. Part of every selector.
    pub const NAME: &str = "app.kubernetes.io/name";
    /// Name of the object that owns the child. Part of every selector.
    pub const INSTANCE: &str = "app.kubernetes.io/instance";
    /// The role: one of [`super::components`].
    pub const COMPONENT: &str = "app.kubernetes.io/component";
    /// Name of the Controller, on everything that belongs to a worker.
    pub const CLUSTER: &str = "slinky.slurm.net/cluster";
    /// The daemon, under the key in older documents.
    pub const SLINKY_COMPONENT: &str = "slinky.slurm.net/component";
    /// `true` on the active slurmctld pod, which the Service selects.
    pub const CONTROLLER_ACTIVE: &str = "controller.slinky.slurm.net/active";
    /// Name of the worker pod.
    pub const POD_NAME: &str = "nodeset.slinky.slurm.net/pod-name";
    /// Ordinal of the worker pod, padded with zeros.
    pub const POD_INDEX: &str = "nodeset.slinky.slurm.net/pod-index";
    /// Slurm's name of the worker pod.
    pub const POD_HOSTNAME: &str = "nodeset.slinky.slurm.net/pod-hostname";
    /// `true` on worker pods that must not be evicted.
    pub const POD_PROTECT: &str = "nodeset.slinky.slurm.net/pod-protect";
    /// The scaling mode in which a worker pod was created.
    pub const SCALING_MODE: &str = "nodeset.slinky.slurm.net/scaling-mode";
    /// The revision from which a worker pod was created.
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
    /// Worker pod: `true` drains its Slurm node. Users and the operator set it.
    pub const POD_CORDON: &str = "nodeset.slinky.slurm.net/pod-cordon";
    /// The same under the key in older documents; read, never written.
    pub const POD_CORDON_OLD: &str = "slinky.slurm.net/pod-cordon";
    /// Worker pod: why it is cordoned, for Slurm's drain reason. Users set it beside [`POD_CORDON`].
    pub const POD_CORDON_REASON: &str = "nodeset.slinky.slurm.net/pod-cordon-reason";
    /// Worker pod that is to be removed: the cause and the time. It is written first, so that a new leader continues
    /// with the same pod.
    pub const LEAVING: &str = "nodeset.slinky.slurm.net/leaving";
    /// Worker pod: deletion cost; pods with a lower cost are removed first.
    pub const POD_DELETION_COST: &str = "nodeset.slinky.slurm.net/pod-deletion-cost";
    /// Worker pod: the latest end time of its running jobs.
    pub const POD_DEADLINE: &str = "nodeset.slinky.slurm.net/pod-deadline";
    /// NodeSet that is being deleted: with `true` the operator does not wait for jobs.
    pub const FORCE_DELETION: &str = "nodeset.slinky.slurm.net/force-deletion";
    /// Controller: apply a change of the configuration that could end jobs. The value is the digest that the condition
    /// names, for this change only, or `true` for every change.
    pub const FORCE_CONFIG: &str = "slinky.slurm.net/force-config";
    /// Partition: the time of the last request to lift manual states. A manual state set later is kept.
    pub const RESUMED_AT: &str = "slinky.slurm.net/resumed-at";
    /// Partition: the address of the external slurmctld in which it was created, for its deletion.
    pub const PARTITION_MADE_AT: &str = "slinky.slurm.net/made-at";
    /// Partition: why it was drained. Slurm has no field for it.
    pub const PARTITION_REASON: &str = "slinky.slurm.net/drain-reason";
    /// slurmctld's pod: the number of the revision in the ConfigMap for it. A change makes the kubelet update the
    /// volume.
    pub const CANDIDATE: &str = "slinky.slurm.net/candidate";
    /// Kubernetes node: why it is cordoned, for Slurm's drain reason.
    pub const NODE_CORDON_REASON: &str = "nodeset.slinky.slurm.net/node-cordon-reason";
    /// Kubernetes node: the host name of a worker pod on it in DaemonSet mode.
    pub const HOSTNAME_OVERRIDE: &str = "nodeset.slinky.slurm.net/hostname-override";
    /// Kubernetes node, copied to worker pods: its place in Slurm's topology.
    pub const TOPOLOGY: &str = "topology.slinky.slurm.net/spec";
    /// Kubernetes node: features of its Slurm nodes, separated by commas.
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
    /// The default container of `kubectl logs` and `kubectl exec`.
    pub const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
    /// Definition: number of its schema, see [`crate::crds::SCHEMA_REVISION`].
    pub const SCHEMA_REVISION: &str = "slinky.slurm.net/schema-revision";
    /// Definition: what Helm does with it when the release is uninstalled.
    pub const HELM_RESOURCE_POLICY: &str = "helm.sh/resource-policy";
}

/// Value of a label or annotation that is switched on.
pub const ON: &str = "true";

/// Finalizer of a NodeSet whose reservation and nodes are to be deleted from Slurm first.
pub const NODESET_FINALIZER: &str = "nodeset.slinky.slurm.net/reservation";

/// Finalizer of a Partition that is to be deleted from Slurm first.
pub const PARTITION_FINALIZER: &str = "partition.slinky.slurm.net/slurm";

/// Taint that worker pods tolerate, effect NoExecute.
pub const WORKER_TAINT: &str = "nodeset.slinky.slurm.net/worker";

/// Prefix of the operator's reasons of Slurm nodes. Other reasons belong to users and are not changed.
pub const NODE_REASON_PREFIX: &str = "slurm-operator: ";

/// Prefix of the Slurm features that the operator sets.
pub const NODE_FEATURE_PREFIX: &str = "k8s/";

/// Prefix of the types of pod conditions that mirror the state of a Slurm node.
pub const POD_CONDITION_PREFIX: &str = "SlurmNodeState";
