//! Writes of the API server, from its own metrics.

use std::collections::BTreeMap;

use anyhow::Result;
use testbed::cluster::Cluster;

const WRITES: [&str; 5] = ["POST", "PUT", "PATCH", "APPLY", "DELETE"];
/// Background writes of Kubernetes itself.
const BACKGROUND: [&str; 5] = [
    "leases",
    "nodes",
    "serviceaccounts",
    "subjectaccessreviews",
    "tokenreviews",
];

/// How many of each, such as `PATCH pods/status`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Writes(pub(crate) BTreeMap<String, u64>);

impl Writes {
    pub(crate) fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// The writes since `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let news = self.0.iter().map(|(kind, count)| {
            let old = before.0.get(kind).copied().unwrap_or_default();
            (kind.clone(), count.saturating_sub(old))
        });
        Self(news.filter(|(_, count)| *count > 0).collect())
    }
}

pub(crate) fn writes(cluster: &Cluster) -> Result<Writes> {
    let mut writes = Writes::default();
    for line in cluster.ask(&["get", "--raw=/metrics"])?.lines() {
        if let Some((kind, count)) = parse(line) {
            *writes.0.entry(kind).or_default() += count;
        }
    }
    Ok(writes)
}

/// A line such as `apiserver_request_total{code="201",…,resource="pods",subresource="",verb="POST",…} 7`.
fn parse(line: &str) -> Option<(String, u64)> {
    let (labels, count) = line.strip_prefix("apiserver_request_total{")?.rsplit_once("} ")?;
    let label = |name: &str| {
        let mut labels = labels.split(',').filter_map(|label| label.split_once('='));
        labels.find_map(|(key, value)| (key == name).then(|| value.trim_matches('"')))
    };
    let (verb, resource, part) = (label("verb")?, label("resource")?, label("subresource")?);
    if !WRITES.contains(&verb) || BACKGROUND.contains(&resource) {
        return None;
    }
    let slash = if part.is_empty() { "" } else { "/" };
    Some((format!("{verb} {resource}{slash}{part}"), count.parse().ok()?))
}
