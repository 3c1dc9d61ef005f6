//! Logs: one JSON object per line on standard output. People read them with `kubectl logs | jq`.

use tracing_subscriber::{filter::Targets, layer::SubscriberExt, util::SubscriberInitExt};

/// Starts logging. `filter` is a level, or levels by module: `info,runtime=debug`.
pub fn start(filter: &Targets) {
    let lines = tracing_subscriber::fmt::layer()
        .json()
        .flatten_event(true)
        .with_current_span(true)
        .with_span_list(false);
    tracing_subscriber::registry().with(lines).with(filter.clone()).init();
}
