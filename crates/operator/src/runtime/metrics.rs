//! What the operator counts. Labels are words from a fixed set, never names of objects but those of [`configuration`].

mod configuration;

use std::sync::Arc;

pub use configuration::ConfigurationMetrics;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindOutcome {
    kind: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Write {
    verb: &'static str,
    kind: String,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Watched {
    kind: String,
}

/// All metrics. A clone shares them.
#[derive(Debug, Clone)]
pub struct Metrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registry: Registry,
    reconciles: Family<KindOutcome, Counter>,
    durations: Family<Kind, Histogram, fn() -> Histogram>,
    depth: Family<Kind, Gauge>,
    running: Family<Kind, Gauge>,
    writes: Family<Write, Counter>,
    skipped: Family<Watched, Counter>,
    leader: Gauge,
    watch_restarts: Family<Watched, Counter>,
    undecodable: Family<Watched, Counter>,
    dropped_events: Counter,
    outdated: Gauge,
    configuration: ConfigurationMetrics,
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn durations() -> Histogram {
    // From one cache read to the deadline of a reconcile.
    Histogram::new([0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0])
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("slurm_operator");
        let reconciles = Family::default();
        registry.register("reconciles", "Reconciles by kind and outcome", reconciles.clone());
        let durations = Family::new_with_constructor(durations as fn() -> Histogram);
        registry.register("reconcile_seconds", "Duration of reconciles", durations.clone());
        let depth = Family::default();
        registry.register("queue_depth", "Objects waiting for a reconcile", depth.clone());
        let running = Family::default();
        registry.register("reconciles_running", "Reconciles under way", running.clone());
        let writes = Family::default();
        registry.register(
            "api_writes",
            "Writes to the API server by verb, kind and result",
            writes.clone(),
        );
        let skipped = Family::default();
        registry.register("api_writes_skipped", "Applies that needed no request", skipped.clone());
        let leader = Gauge::default();
        registry.register("leader", "1 while this process leads", leader.clone());
        let watch_restarts = Family::default();
        registry.register(
            "watch_restarts",
            "Watches that broke and were begun again",
            watch_restarts.clone(),
        );
        let undecodable = Family::default();
        registry.register(
            "undecodable_objects",
            "Objects seen that could not be understood",
            undecodable.clone(),
        );
        let dropped_events = Counter::default();
        registry.register(
            "events_dropped",
            "Events that could not be written",
            dropped_events.clone(),
        );
        let outdated = Gauge::default();
        registry.register(
            "crds_outdated",
            "Definitions older than this operator",
            outdated.clone(),
        );
        let configuration = ConfigurationMetrics::new(&mut registry);
        Self(Arc::new(Inner {
            registry,
            reconciles,
            durations,
            depth,
            running,
            writes,
            skipped,
            leader,
            watch_restarts,
            undecodable,
            dropped_events,
            outdated,
            configuration,
        }))
    }

    /// In the text form Prometheus reads.
    pub fn render(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.0.registry)?;
        Ok(text)
    }

    /// How changes of clusters' configurations went.
    pub fn configuration(&self) -> &ConfigurationMetrics {
        &self.0.configuration
    }

    pub(super) fn reconciled(&self, kind: &'static str, outcome: &'static str, seconds: f64) {
        self.0.reconciles.get_or_create(&KindOutcome { kind, outcome }).inc();
        self.0.durations.get_or_create(&Kind { kind }).observe(seconds);
    }

    pub(super) fn queue(&self, kind: &'static str, depth: usize, running: usize) {
        self.0.depth.get_or_create(&Kind { kind }).set(number(depth));
        self.0.running.get_or_create(&Kind { kind }).set(number(running));
    }

    pub(super) fn wrote(&self, verb: &'static str, kind: &str, result: &'static str) {
        let labels = Write {
            verb,
            kind: kind.to_owned(),
            result,
        };
        self.0.writes.get_or_create(&labels).inc();
    }

    pub(super) fn skipped(&self, kind: &str) {
        self.0.skipped.get_or_create(&Watched { kind: kind.to_owned() }).inc();
    }

    pub(super) fn leads(&self, leads: bool) {
        self.0.leader.set(i64::from(leads));
    }

    pub(super) fn watch_restarted(&self, kind: &str) {
        self.0
            .watch_restarts
            .get_or_create(&Watched { kind: kind.to_owned() })
            .inc();
    }

    pub(super) fn undecodable(&self, kind: &str) {
        self.0
            .undecodable
            .get_or_create(&Watched { kind: kind.to_owned() })
            .inc();
    }

    pub(super) fn event_dropped(&self) {
        self.0.dropped_events.inc();
    }

    pub(super) fn crds_outdated(&self, count: usize) {
        self.0.outdated.set(number(count));
    }
}

#[cfg(test)]
mod tests {
    use super::Metrics;

    #[test]
    fn metrics_render_as_prometheus_reads_them() {
        let metrics = Metrics::new();
        metrics.reconciled("nodeset", "settled", 0.01);
        metrics.wrote("apply", "Service", "ok");
        metrics.leads(true);
        let text = metrics.render().unwrap();
        for line in [
            "slurm_operator_reconciles_total{kind=\"nodeset\",outcome=\"settled\"} 1",
            "slurm_operator_api_writes_total{verb=\"apply\",kind=\"Service\",result=\"ok\"} 1",
            "slurm_operator_leader 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }
}
