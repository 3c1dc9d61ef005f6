//! Names of child objects, derived from the name of their parent.
//!
//! They are upstream's names: users' scripts, Services in other namespaces and claims with data depend on them. Each
//! type wraps the parent's name, because the parent is often known by reference only.

use std::fmt;

use kube::ResourceExt;

use crate::{Accounting, Controller, LoginSet, NodeSet, RestApi, keys, nodeset::MAX_ORDINAL_PADDING, wellknown};

macro_rules! parent_names {
    ($($name:ident of $kind:ident,)+) => {$(
        #[doc = concat!("Name of an object of kind ", stringify!($kind), ".")]
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(String);

        impl $kind {
            /// The name from which the names of its children are derived.
            pub fn child_names(&self) -> $name {
                $name::new(self.name_any())
            }
        }

        impl $name {
            /// Children of the object of this name.
            pub fn new(name: impl Into<String>) -> Self {
                Self(name.into())
            }

            /// The object's own name.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )+};
}

parent_names! {
    ControllerName of Controller,
    NodeSetName of NodeSet,
    LoginSetName of LoginSet,
    RestApiName of RestApi,
    AccountingName of Accounting,
}

impl ControllerName {
    /// StatefulSet of the slurmctld pods.
    pub fn stateful_set(&self) -> String {
        format!("{self}-controller")
    }

    /// slurmctld pod with this ordinal, which is also its name in SlurmctldHost.
    pub fn pod(&self, ordinal: u32) -> String {
        format!("{}-{ordinal}", self.stateful_set())
    }

    /// Service that selects the active slurmctld.
    pub fn service(&self) -> String {
        self.stateful_set()
    }

    /// Headless Service that gives every slurmctld pod a DNS name.
    pub fn internal_service(&self) -> String {
        format!("{self}-controller-internal")
    }

    /// ServiceMonitor of slurmctld.
    pub fn service_monitor(&self) -> String {
        self.stateful_set()
    }

    /// ConfigMap with slurm.conf, for users and for slurmrestd.
    pub fn config_map(&self) -> String {
        format!("{self}-config")
    }

    /// ConfigMap with the last accepted revision of all files.
    pub fn bundle_config_map(&self) -> String {
        format!("{self}-bundle")
    }

    /// ConfigMap with a revision for an agent that the operator cannot reach.
    pub fn candidate_config_map(&self) -> String {
        format!("{self}-candidate")
    }

    /// ConfigMap with the last accepted and rejected revisions, for users.
    pub fn history_config_map(&self) -> String {
        format!("{self}-history")
    }

    /// Claim of the first slurmctld pod's state.
    pub fn state_claim(&self) -> String {
        format!("{}-{}", wellknown::STATE_VOLUME, self.pod(0))
    }

    /// Secret of a generated auth/slurm key.
    pub fn slurm_key_secret(&self) -> String {
        format!("{self}-auth-slurm")
    }

    /// Secret of a generated auth/jwt key.
    pub fn jwt_key_secret(&self) -> String {
        format!("{self}-auth-jwt")
    }

    /// Headless Service of all worker pods of the cluster.
    pub fn workers_service(&self) -> String {
        format!("slurm-workers-{self}")
    }

    /// PodDisruptionBudget of all worker pods of the cluster.
    pub fn workers_disruption_budget(&self) -> String {
        format!("slurm-workers-pdb-{self}")
    }

    /// Default name of the cluster in Slurm.
    pub fn default_cluster_name(&self, namespace: &str) -> String {
        format!("{namespace}_{self}")
    }
}

impl NodeSetName {
    /// Worker pod with this ordinal, in `StatefulSet` mode.
    pub fn pod(&self, ordinal: u32, padding: usize) -> String {
        // Formatting panics if the width has more than 16 bits.
        let padding = padding.min(MAX_ORDINAL_PADDING);
        format!("{self}-{ordinal:0padding$}")
    }

    /// Prefix of the names of worker pods in `DaemonSet` mode.
    pub fn pod_prefix(&self) -> String {
        format!("{self}-")
    }

    /// Claim of a worker pod. `pod` is its padded ordinal, or its host name in `DaemonSet` mode.
    pub fn claim(&self, template: &str, pod: &str) -> String {
        format!("{template}-{self}-{pod}")
    }

    /// ControllerRevision of this hash.
    pub fn revision(&self, hash: &str) -> String {
        format!("{self}-{hash}")
    }

    /// ConfigMap with sshd_config.
    pub fn ssh_config_map(&self) -> String {
        format!("{self}-ssh-config")
    }

    /// Slurm reservation of a scheduled update.
    pub fn reservation(&self) -> String {
        format!("SlurmOperatorMaint-{self}")
    }

    /// Label selector of the worker pods, as text.
    pub fn selector(&self) -> String {
        selector(&self.0, keys::apps::SLURMD)
    }
}

impl LoginSetName {
    /// Deployment of the login pods.
    pub fn deployment(&self) -> String {
        self.0.clone()
    }

    /// Service of the login pods.
    pub fn service(&self) -> String {
        self.0.clone()
    }

    /// ConfigMap with sshd_config and root's authorized keys.
    pub fn ssh_config_map(&self) -> String {
        format!("{self}-ssh-config")
    }

    /// Secret with the SSH host keys.
    pub fn ssh_host_keys_secret(&self) -> String {
        format!("{self}-ssh-host-keys")
    }

    /// Label selector of the login pods, as text.
    pub fn selector(&self) -> String {
        selector(&self.0, keys::apps::LOGIN)
    }
}

impl RestApiName {
    /// Deployment of the slurmrestd pods.
    pub fn deployment(&self) -> String {
        format!("{self}-restapi")
    }

    /// Service of slurmrestd.
    pub fn service(&self) -> String {
        self.deployment()
    }
}

impl AccountingName {
    /// StatefulSet of the slurmdbd pod.
    pub fn stateful_set(&self) -> String {
        format!("{self}-accounting")
    }

    /// The slurmdbd pod, which is also its name in DbdHost.
    pub fn pod(&self) -> String {
        format!("{}-0", self.stateful_set())
    }

    /// Service of slurmdbd.
    pub fn service(&self) -> String {
        self.stateful_set()
    }

    /// Secret with slurmdbd.conf.
    pub fn config_secret(&self) -> String {
        self.stateful_set()
    }
}

fn selector(instance: &str, app: &str) -> String {
    format!("{}={instance},{}={app}", keys::labels::INSTANCE, keys::labels::NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_have_upstreams_names() {
        let controller = ControllerName::new("slurm");
        assert_eq!(controller.stateful_set(), "slurm-controller");
        assert_eq!(controller.service(), "slurm-controller");
        assert_eq!(controller.internal_service(), "slurm-controller-internal");
        assert_eq!(controller.pod(1), "slurm-controller-1");
        assert_eq!(controller.config_map(), "slurm-config");
        assert_eq!(controller.state_claim(), "statesave-slurm-controller-0");
        assert_eq!(controller.workers_service(), "slurm-workers-slurm");
        assert_eq!(controller.workers_disruption_budget(), "slurm-workers-pdb-slurm");
        assert_eq!(controller.default_cluster_name("hpc"), "hpc_slurm");
        assert_eq!(AccountingName::new("slurm").pod(), "slurm-accounting-0");
        assert_eq!(RestApiName::new("slurm").deployment(), "slurm-restapi");
        let login = LoginSetName::new("slurm-login-slinky");
        assert_eq!(login.ssh_host_keys_secret(), "slurm-login-slinky-ssh-host-keys");
        assert_eq!(
            login.selector(),
            "app.kubernetes.io/instance=slurm-login-slinky,app.kubernetes.io/name=login"
        );
    }

    #[test]
    fn the_ordinal_of_a_worker_pod_is_padded_with_zeros() {
        let nodeset = NodeSetName::new("gpu");
        assert_eq!(nodeset.pod(7, 0), "gpu-7");
        assert_eq!(nodeset.pod(7, 3), "gpu-007");
        assert_eq!(nodeset.pod(1234, 3), "gpu-1234");
        assert_eq!(nodeset.pod(7, usize::MAX), "gpu-00000000000000000007");
        assert_eq!(nodeset.claim("scratch", "007"), "scratch-gpu-007");
    }
}
