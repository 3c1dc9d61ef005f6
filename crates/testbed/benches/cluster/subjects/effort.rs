//! How often and how much is measured.

use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Edits of a quiet cluster's configuration or Partition: enough for a p99.
    pub(crate) edits: u32,
    /// Edits of a configuration under circumstances: enough for a p90.
    pub(crate) hindered_edits: u32,
    /// Edits of a Partition under circumstances.
    pub(crate) hindered_partition_edits: u32,
    /// Edits sent as fast as the API server accepts them.
    pub(crate) burst: u32,
    /// Pods that mount an edited ConfigMap. The kubelet syncs each at its own times, so that one edit gives several
    /// samples.
    pub(crate) readers: u32,
    /// Edits of that ConfigMap.
    pub(crate) mounted_edits: u32,
    /// Triggers the kubelet's sync of such pods, where its own period is not measured.
    pub(crate) hurries_kubelet: bool,
    /// Further jobs, nodes and Partitions that are in the way.
    pub(crate) further: u32,
    /// Until the operator is at rest after it made that many Partitions.
    pub(crate) rest: Duration,
    /// Reviews at the webhook.
    pub(crate) reviews: u32,
    /// Pods to scale to.
    pub(crate) pods: u32,
}

impl Effort {
    /// The effort of the published figures. Their names contain these numbers.
    #[allow(dead_code, reason = "the test of the subjects includes this file too")]
    pub(crate) const FULL: Self = Self {
        edits: 200,
        hindered_edits: 30,
        hindered_partition_edits: 50,
        burst: 100,
        readers: 8,
        mounted_edits: 2,
        hurries_kubelet: false,
        further: 1_000,
        rest: Duration::from_secs(10),
        reviews: 5_000,
        pods: 1_000,
    };

    /// Shows that the subjects work. The figures are meaningless.
    #[allow(dead_code, reason = "only the test of the subjects uses it")]
    pub(crate) const LEAST: Self = Self {
        edits: 2,
        hindered_edits: 1,
        hindered_partition_edits: 2,
        burst: 3,
        readers: 1,
        mounted_edits: 1,
        hurries_kubelet: true,
        further: 3,
        rest: Duration::ZERO,
        reviews: 40,
        pods: 3,
    };
}
