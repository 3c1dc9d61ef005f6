//! Metrics of configuration changes. They are counted by cluster, since an alert has to name its cluster; the counts of a
//! cluster are removed with it.

use prometheus_client::{
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};
use runtime::Key;
use slurm::agent::Action;

/// The labels of one metric: names and values.
type Labels<const N: usize> = [(&'static str, String); N];

const ACCEPTED: &str = "accepted";
const REJECTED: &str = "rejected";
const ROLLED_BACK: &str = "rolled_back";
const FAILED: &str = "failed";
const OUTCOMES: [&str; 4] = [ACCEPTED, REJECTED, ROLLED_BACK, FAILED];

const PARTITION_RPC: &str = "partition-rpc";
const RECONFIGURE: &str = "reconfigure";
const RESTART: &str = "restart";
const ACTIONS: [&str; 3] = [PARTITION_RPC, RECONFIGURE, RESTART];

/// The counts of all clusters. A clone shares them.
#[derive(Debug, Clone)]
pub struct ConfigurationMetrics {
    seconds: Family<Labels<2>, Histogram, fn() -> Histogram>,
    changes: Family<Labels<3>, Counter>,
    actions: Family<Labels<3>, Counter>,
}

fn latencies() -> Histogram {
    // From the usual third of a second up to a restart with unreachable nodes.
    Histogram::new([0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0])
}

impl ConfigurationMetrics {
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let seconds = Family::new_with_constructor(latencies as fn() -> Histogram);
        registry.register(
            "configuration_seconds",
            "From the observation of a change to a slurmctld that runs with it",
            seconds.clone(),
        );
        let changes = Family::default();
        registry.register(
            "configuration_changes",
            "Changes of the configuration by outcome: accepted, rejected by the dry run, rolled_back by slurmctld, failed and retried",
            changes.clone(),
        );
        let actions = Family::default();
        registry.register(
            "configuration_actions",
            "Reconfigures and restarts of slurmctld for changes of the configuration",
            actions.clone(),
        );
        Self {
            seconds,
            changes,
            actions,
        }
    }

    /// Counts a change that slurmctld runs with, this long after it was observed.
    pub fn accepted(&self, cluster: &Key, action: Action, seconds: f64) {
        self.count(cluster, ACCEPTED);
        self.seconds.get_or_create(&cluster_of(cluster)).observe(seconds);
        let action = match action {
            Action::PartitionRpc => PARTITION_RPC,
            Action::Reconfigure => RECONFIGURE,
            Action::Restart => RESTART,
            Action::Nothing | Action::Unknown => return,
        };
        self.actions.get_or_create(&labels_of(cluster, "action", action)).inc();
    }

    /// Counts a change that the dry run rejected, or that slurmctld rejected and that was rolled back.
    pub fn rejected(&self, cluster: &Key, rolled_back: bool) {
        self.count(cluster, if rolled_back { ROLLED_BACK } else { REJECTED });
    }

    /// Counts a change that failed and is retried.
    pub fn failed(&self, cluster: &Key) {
        self.count(cluster, FAILED);
    }

    /// Removes the counts of a deleted cluster.
    pub fn forget(&self, cluster: &Key) {
        self.seconds.remove(&cluster_of(cluster));
        for outcome in OUTCOMES {
            self.changes.remove(&labels_of(cluster, "outcome", outcome));
        }
        for action in ACTIONS {
            self.actions.remove(&labels_of(cluster, "action", action));
        }
    }

    fn count(&self, cluster: &Key, outcome: &'static str) {
        self.changes
            .get_or_create(&labels_of(cluster, "outcome", outcome))
            .inc();
    }
}

fn cluster_of(Key { namespace, name }: &Key) -> Labels<2> {
    [("namespace", namespace.clone()), ("name", name.clone())]
}

fn labels_of(cluster: &Key, label: &'static str, value: &str) -> Labels<3> {
    let [namespace, name] = cluster_of(cluster);
    [namespace, name, (label, value.to_owned())]
}

#[cfg(test)]
mod tests {
    use slurm::agent::Action;

    use runtime::{Key, Metrics};

    use super::ConfigurationMetrics;

    #[test]
    fn changes_are_counted_by_cluster_and_removed_with_it() {
        let metrics = Metrics::default();
        let (one, other) = (Key::new("hpc", "slurm"), Key::new("lab", "slurm"));
        let counts = metrics.register(ConfigurationMetrics::new);
        counts.accepted(&one, Action::Reconfigure, 0.12);
        counts.accepted(&other, Action::Restart, 0.7);
        counts.rejected(&one, false);
        counts.rejected(&one, true);
        counts.failed(&one);
        let text = metrics.render().unwrap();
        for line in [
            r#"slurm_operator_configuration_changes_total{namespace="hpc",name="slurm",outcome="accepted"} 1"#,
            r#"slurm_operator_configuration_changes_total{namespace="hpc",name="slurm",outcome="rejected"} 1"#,
            r#"slurm_operator_configuration_changes_total{namespace="hpc",name="slurm",outcome="rolled_back"} 1"#,
            r#"slurm_operator_configuration_changes_total{namespace="hpc",name="slurm",outcome="failed"} 1"#,
            r#"slurm_operator_configuration_actions_total{namespace="hpc",name="slurm",action="reconfigure"} 1"#,
            r#"slurm_operator_configuration_actions_total{namespace="lab",name="slurm",action="restart"} 1"#,
            r#"slurm_operator_configuration_seconds_count{namespace="lab",name="slurm"} 1"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
        counts.forget(&one);
        let text = metrics.render().unwrap();
        assert!(!text.contains(r#"namespace="hpc""#), "{text}");
        assert!(text.contains(r#"namespace="lab""#));
    }
}
