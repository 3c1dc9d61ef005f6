//! Leader election among the operator's replicas.
//!
//! There is one Lease, which is written only with the resourceVersion it was read with, so that of two writers one
//! fails. A leader counts as alive while its Lease changes; clocks are never compared. A process that loses the Lease
//! exits, so that nothing it has begun continues.

#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, api::PostParams};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::{Clock, Fence, Metrics, error::describe};

/// client-go's defaults: a standby takes over this long after the last renewal…
const LEASE: Duration = Duration::from_secs(15);
/// …a leader that cannot renew gives up before that, with time left for requests in flight…
const RENEW_WITHIN: Duration = Duration::from_secs(10);
/// …and leader and standbys access the Lease this often.
const RETRY: Duration = Duration::from_secs(2);
/// Leaves time for a second attempt within [`RENEW_WITHIN`].
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);

/// The Lease, and the identity of this process.
#[derive(Debug, Clone)]
pub struct Contender {
    pub namespace: String,
    pub name: String,
    /// Must differ between all processes, also between two starts of one pod.
    pub identity: String,
}

/// Why a process no longer leads.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    #[error("the lease was acquired by {0}")]
    Taken(String),
    #[error("the lease could not be renewed for {} s", RENEW_WITHIN.as_secs())]
    Expired,
}

/// A process that leads or waits to lead.
#[derive(Debug)]
pub(crate) struct Election {
    api: Api<Lease>,
    candidate: Contender,
    fence: Fence,
    clock: Clock,
    metrics: Metrics,
    /// The Lease as it was last seen, and since when it has not changed.
    seen: Option<(Lease, Instant)>,
    /// Until when this process may rely on the Lease, once it holds it.
    deadline: Instant,
}

impl Election {
    pub(crate) fn new(client: Client, candidate: Contender, fence: Fence, clock: Clock, metrics: Metrics) -> Self {
        Self {
            api: Api::namespaced(client, &candidate.namespace),
            deadline: clock.host().instant(),
            candidate,
            fence,
            clock,
            metrics,
            seen: None,
        }
    }

    /// Returns when this process leads.
    pub(crate) async fn win(&mut self) {
        tracing::info!(
            lease = self.candidate.name,
            identity = self.candidate.identity,
            "waiting for the lease"
        );
        loop {
            let asked = self.instant();
            let won = request("acquire", asked + REQUEST_TIMEOUT, self.try_to_win()).await;
            if let Some(Some(term)) = won {
                self.deadline = asked + RENEW_WITHIN;
                self.fence.begin(term, self.clock.now(), Some(self.deadline));
                self.metrics.leads(true);
                tracing::info!(term, "leading");
                return;
            }
            // Without jitter, candidates that ask at the same moment would conflict again and again.
            let jitter = self.clock.host().random().fraction();
            sleep(RETRY.mul_f64(1.0 + 0.2 * jitter)).await;
        }
    }

    /// Returns the term if this process holds the Lease now.
    async fn try_to_win(&mut self) -> Result<Option<u64>, kube::Error> {
        let now = self.instant();
        let Some(lease) = self.api.get_opt(&self.candidate.name).await? else {
            self.seen = None;
            let lease = self.claim(None);
            return self.write(lease, true).await;
        };
        self.observe(lease.clone(), now);
        if holder(&lease) == Some(self.candidate.identity.as_str()) {
            // The response to our own claim was lost. Others count from that claim, so it is renewed before it is used.
            let renewal = self.renewal(lease);
            return self.write(renewal, false).await;
        }
        if !self.is_free(&lease, now) {
            return Ok(None);
        }
        let claim = self.claim(Some(&lease));
        self.write(claim, false).await
    }

    /// Sends a claim. A conflict with another candidate is not an error.
    async fn write(&mut self, lease: Lease, new: bool) -> Result<Option<u64>, kube::Error> {
        let parameters = PostParams::default();
        let written = if new {
            self.api.create(&parameters, &lease).await
        } else {
            self.api.replace(&self.candidate.name, &parameters, &lease).await
        };
        match written {
            Ok(lease) => {
                let term = term(&lease);
                self.observe(lease, self.instant());
                Ok(Some(term))
            }
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Renews the Lease until it is lost.
    pub(crate) async fn keep(&mut self) -> Lost {
        loop {
            sleep_until(self.deadline.min(self.instant() + RETRY)).await;
            let asked = self.instant();
            if asked >= self.deadline {
                return self.lost(Lost::Expired);
            }
            let until = self.deadline.min(asked + REQUEST_TIMEOUT);
            match request("renew", until, self.renew()).await {
                Some(None) => {
                    self.deadline = asked + RENEW_WITHIN;
                    self.fence.extend(self.deadline);
                }
                Some(Some(other)) => return self.lost(Lost::Taken(other)),
                None => {}
            }
        }
    }

    fn lost(&self, why: Lost) -> Lost {
        self.fence.end();
        self.metrics.leads(false);
        why
    }

    /// Renews the Lease, or returns its new holder.
    async fn renew(&mut self) -> Result<Option<String>, kube::Error> {
        for _ in 0..2 {
            let Some((lease, _)) = &self.seen else {
                return Ok(Some("another process".to_owned()));
            };
            let lease = self.renewal(lease.clone());
            match self
                .api
                .replace(&self.candidate.name, &PostParams::default(), &lease)
                .await
            {
                Ok(lease) => {
                    self.observe(lease, self.instant());
                    return Ok(None);
                }
                Err(kube::Error::Api(status)) if status.code == 404 => {
                    return Ok(Some("no process: it was deleted".to_owned()));
                }
                // It was written by another leader, by hand, or by a renewal of ours whose response was lost.
                Err(kube::Error::Api(status)) if status.code == 409 => {
                    let lease = self.api.get(&self.candidate.name).await?;
                    let holder = holder(&lease).unwrap_or("no process").to_owned();
                    if holder != self.candidate.identity {
                        return Ok(Some(holder));
                    }
                    self.observe(lease, self.instant());
                }
                Err(error) => return Err(error),
            }
        }
        // Two conflicts in a row; the Lease is still ours as of the second read.
        Ok(None)
    }

    /// Releases the Lease, so that the next leader need not wait until it expires.
    pub(crate) async fn release(self) {
        self.fence.end();
        self.metrics.leads(false);
        let until = self.instant() + REQUEST_TIMEOUT;
        if request("release", until, self.clear_holder()).await.is_some() {
            tracing::info!("released the lease");
        }
    }

    async fn clear_holder(&self) -> Result<(), kube::Error> {
        // The last seen version may be older than our last renewal, whose response may have been lost.
        let mut lease = self.api.get(&self.candidate.name).await?;
        if holder(&lease) != Some(self.candidate.identity.as_str()) {
            return Ok(());
        }
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
            spec.renew_time = Some(MicroTime(self.clock.now()));
        }
        self.api
            .replace(&self.candidate.name, &PostParams::default(), &lease)
            .await
            .map(drop)
    }

    fn instant(&self) -> Instant {
        self.clock.host().instant()
    }

    fn renewal(&self, mut lease: Lease) -> Lease {
        if let Some(spec) = &mut lease.spec {
            spec.renew_time = Some(MicroTime(self.clock.now()));
        }
        lease
    }

    fn observe(&mut self, lease: Lease, now: Instant) {
        let unchanged = self
            .seen
            .as_ref()
            .is_some_and(|(seen, _)| seen.metadata.uid == lease.metadata.uid && seen.spec == lease.spec);
        match &mut self.seen {
            Some((seen, _)) if unchanged => *seen = lease,
            seen => *seen = Some((lease, now)),
        }
    }

    fn is_free(&self, lease: &Lease, now: Instant) -> bool {
        if holder(lease).is_none() {
            return true;
        }
        let promised = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
        let promised = promised
            .and_then(|seconds| u64::try_from(seconds).ok())
            .map_or(LEASE, Duration::from_secs);
        self.seen
            .as_ref()
            .is_some_and(|(_, since)| now.saturating_duration_since(*since) >= promised)
    }

    /// The Lease with this process as holder. Everything else in it is kept.
    fn claim(&self, current: Option<&Lease>) -> Lease {
        let now = self.clock.now();
        let mut lease = current.cloned().unwrap_or_else(|| Lease {
            metadata: ObjectMeta {
                name: Some(self.candidate.name.clone()),
                namespace: Some(self.candidate.namespace.clone()),
                ..ObjectMeta::default()
            },
            spec: None,
        });
        let transitions = next_term(lease.spec.as_ref().and_then(|spec| spec.lease_transitions), now);
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(self.candidate.identity.clone()),
            lease_duration_seconds: i32::try_from(LEASE.as_secs()).ok(),
            acquire_time: Some(MicroTime(now)),
            renew_time: Some(MicroTime(now)),
            lease_transitions: Some(transitions),
            ..lease.spec.unwrap_or_default()
        });
        lease
    }
}

/// Awaits a request until a deadline. Logs why it failed.
async fn request<T>(verb: &str, until: Instant, request: impl Future<Output = Result<T, kube::Error>>) -> Option<T> {
    let error = match timeout_at(until, request).await {
        Ok(Ok(result)) => return Some(result),
        Ok(Err(error)) => describe(&error),
        Err(_) => "no response".to_owned(),
    };
    tracing::warn!(error, "cannot {verb} the lease");
    None
}

/// Agents reject a lower term, so it must grow even if the Lease was deleted, or if the operator ran without one: it is at
/// least the number of minutes since 1970.
pub(crate) fn next_term(transitions: Option<i32>, now: Timestamp) -> i32 {
    let minutes = i32::try_from(now.as_second() / 60).unwrap_or(i32::MAX);
    transitions.map_or(minutes, |before| before.saturating_add(1).max(minutes))
}

fn term(lease: &Lease) -> u64 {
    let transitions = lease.spec.as_ref().and_then(|spec| spec.lease_transitions);
    u64::try_from(transitions.unwrap_or_default()).unwrap_or_default()
}

fn holder(lease: &Lease) -> Option<&str> {
    let holder = lease.spec.as_ref()?.holder_identity.as_deref()?;
    (!holder.is_empty()).then_some(holder)
}
