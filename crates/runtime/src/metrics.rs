//! The operator's metrics. Label values are words from a fixed set, never names of objects.

use std::sync::{Arc, Mutex};

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use crate::lock;

/// The labels of one metric: names and values.
pub(crate) type Labels<const N: usize> = [(&'static str, String); N];

macro_rules! metrics {
    ($($field:ident: $type:ty = $new:expr, $name:literal, $help:literal;)+) => {
        /// All metrics. A clone shares them.
        #[derive(Debug, Clone)]
        pub struct Metrics {
            registry: Arc<Mutex<Registry>>,
            $(pub(crate) $field: $type,)+
        }

        impl Default for Metrics {
            fn default() -> Self {
                let mut registry = Registry::with_prefix("slurm_operator");
                $(let $field: $type = $new;)+
                $(registry.register($name, $help, $field.clone());)+
                Self { registry: Arc::new(Mutex::new(registry)), $($field,)+ }
            }
        }
    };
}

metrics! {
    reconciles: Family<Labels<2>, Counter> = Family::default(), "reconciles", "Reconciles by kind and outcome";
    durations: Family<Labels<1>, Histogram, fn() -> Histogram> = Family::new_with_constructor(durations),
        "reconcile_seconds", "Duration of reconciles";
    depth: Family<Labels<1>, Gauge> = Family::default(), "queue_depth", "Objects waiting for a reconcile";
    running: Family<Labels<1>, Gauge> = Family::default(), "reconciles_running", "Running reconciles";
    writes: Family<Labels<3>, Counter> = Family::default(),
        "api_writes", "Writes to the API server by verb, kind and result";
    skipped: Family<Labels<1>, Counter> = Family::default(), "api_writes_skipped", "Applies that needed no request";
    leader: Gauge = Gauge::default(), "leader", "1 while this process leads";
    watch_restarts: Family<Labels<1>, Counter> = Family::default(),
        "watch_restarts", "Watches that broke and were restarted";
    silent: Gauge = Gauge::default(), "silent_watches", "Watches, and the API server itself, that do not respond in time";
    undecodable: Family<Labels<1>, Counter> = Family::default(),
        "undecodable_objects", "Objects that could not be decoded";
    dropped_events: Counter = Counter::default(), "events_dropped", "Events that could not be written";
    outdated: Gauge = Gauge::default(), "crds_outdated", "Definitions older than this operator";
    reviews: Family<Labels<2>, Counter> = Family::default(), "reviews", "Admission reviews by path and verdict";
}

/// The value of a gauge.
pub(crate) fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn durations() -> Histogram {
    // From one cache read to the deadline of a reconcile.
    Histogram::new([0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0])
}

impl Metrics {
    /// Adds metrics of the caller.
    pub fn register<T>(&self, register: impl FnOnce(&mut Registry) -> T) -> T {
        register(&mut lock(&self.registry))
    }

    /// Renders the text format of Prometheus.
    pub fn render(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &lock(&self.registry))?;
        Ok(text)
    }

    pub(crate) fn reconciled(&self, kind: &str, outcome: &str, seconds: f64) {
        let labels = [("kind", kind.to_owned()), ("outcome", outcome.to_owned())];
        self.reconciles.get_or_create(&labels).inc();
        self.durations.get_or_create(&of_kind(kind)).observe(seconds);
    }

    pub(crate) fn wrote(&self, verb: &str, kind: &str, result: &str) {
        let labels = [("verb", verb), ("kind", kind), ("result", result)].map(|(name, value)| (name, value.to_owned()));
        self.writes.get_or_create(&labels).inc();
    }
}

/// The labels of a metric by kind.
pub(crate) fn of_kind(kind: &str) -> Labels<1> {
    [("kind", kind.to_owned())]
}

#[cfg(test)]
mod tests {
    use super::Metrics;

    #[test]
    fn metrics_render_as_prometheus_reads_them() {
        let metrics = Metrics::default();
        metrics.reconciled("nodeset", "settled", 0.01);
        metrics.wrote("apply", "Service", "ok");
        metrics.leader.set(1);
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
