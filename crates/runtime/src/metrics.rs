//! The operator's metrics. Label values are words from a fixed set, never names of objects.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Metric, Registry},
};

/// The labels of one metric: names and values.
type Labels<const N: usize> = [(&'static str, String); N];

/// All metrics. A clone shares them.
#[derive(Debug, Clone)]
pub struct Metrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registry: Mutex<Registry>,
    reconciles: Family<Labels<2>, Counter>,
    durations: Family<Labels<1>, Histogram, fn() -> Histogram>,
    depth: Family<Labels<1>, Gauge>,
    running: Family<Labels<1>, Gauge>,
    writes: Family<Labels<3>, Counter>,
    skipped: Family<Labels<1>, Counter>,
    leader: Gauge,
    watch_restarts: Family<Labels<1>, Counter>,
    undecodable: Family<Labels<1>, Counter>,
    dropped_events: Counter,
    outdated: Gauge,
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
        fn add<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
            registry.register(name, help, metric.clone());
            metric
        }
        let mut registry = Registry::with_prefix("slurm_operator");
        let r = &mut registry;
        let durations = Family::new_with_constructor(durations as fn() -> Histogram);
        let inner = Inner {
            reconciles: add(r, "reconciles", "Reconciles by kind and outcome", Family::default()),
            durations: add(r, "reconcile_seconds", "Duration of reconciles", durations),
            depth: add(r, "queue_depth", "Objects waiting for a reconcile", Family::default()),
            running: add(r, "reconciles_running", "Running reconciles", Family::default()),
            writes: add(
                r,
                "api_writes",
                "Writes to the API server by verb, kind and result",
                Family::default(),
            ),
            skipped: add(
                r,
                "api_writes_skipped",
                "Applies that needed no request",
                Family::default(),
            ),
            leader: add(r, "leader", "1 while this process leads", Gauge::default()),
            watch_restarts: add(
                r,
                "watch_restarts",
                "Watches that broke and were restarted",
                Family::default(),
            ),
            undecodable: add(
                r,
                "undecodable_objects",
                "Objects that could not be decoded",
                Family::default(),
            ),
            dropped_events: add(
                r,
                "events_dropped",
                "Events that could not be written",
                Counter::default(),
            ),
            outdated: add(
                r,
                "crds_outdated",
                "Definitions older than this operator",
                Gauge::default(),
            ),
            registry: Mutex::new(registry),
        };
        Self(Arc::new(inner))
    }

    /// Adds metrics of the caller.
    pub fn register<T>(&self, register: impl FnOnce(&mut Registry) -> T) -> T {
        register(&mut self.0.registry.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Renders the text format of Prometheus.
    pub fn render(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        let registry = self.0.registry.lock().unwrap_or_else(PoisonError::into_inner);
        prometheus_client::encoding::text::encode(&mut text, &registry)?;
        Ok(text)
    }

    pub(crate) fn reconciled(&self, kind: &str, outcome: &str, seconds: f64) {
        let labels = [("kind", kind.to_owned()), ("outcome", outcome.to_owned())];
        self.0.reconciles.get_or_create(&labels).inc();
        self.0.durations.get_or_create(&of_kind(kind)).observe(seconds);
    }

    pub(crate) fn queue(&self, kind: &str, depth: usize, running: usize) {
        self.0.depth.get_or_create(&of_kind(kind)).set(number(depth));
        self.0.running.get_or_create(&of_kind(kind)).set(number(running));
    }

    pub(crate) fn wrote(&self, verb: &str, kind: &str, result: &str) {
        let labels = [("verb", verb), ("kind", kind), ("result", result)].map(|(name, value)| (name, value.to_owned()));
        self.0.writes.get_or_create(&labels).inc();
    }

    pub(crate) fn skipped(&self, kind: &str) {
        self.0.skipped.get_or_create(&of_kind(kind)).inc();
    }

    pub(crate) fn leads(&self, leads: bool) {
        self.0.leader.set(i64::from(leads));
    }

    pub(crate) fn watch_restarted(&self, kind: &str) {
        self.0.watch_restarts.get_or_create(&of_kind(kind)).inc();
    }

    pub(crate) fn undecodable(&self, kind: &str) {
        self.0.undecodable.get_or_create(&of_kind(kind)).inc();
    }

    pub(crate) fn event_dropped(&self) {
        self.0.dropped_events.inc();
    }

    pub(crate) fn crds_outdated(&self, count: usize) {
        self.0.outdated.set(number(count));
    }
}

fn of_kind(kind: &str) -> Labels<1> {
    [("kind", kind.to_owned())]
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
