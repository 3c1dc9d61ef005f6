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
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{Api, api::PostParams};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::{Context, error::describe};

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
    context: Context,
    /// The Lease as it was last seen, and since when it has not changed.
    seen: Option<(Lease, Instant)>,
    /// Until when this process may rely on the Lease, once it holds it.
    deadline: Instant,
}

impl Election {
    pub(crate) fn new(candidate: Contender, context: Context) -> Self {
        Self {
            api: Api::namespaced(context.client.clone(), &candidate.namespace),
            deadline: context.clock.host().instant(),
            candidate,
            context,
            seen: None,
        }
    }

    /// Returns when this process leads.
    pub(crate) async fn win(&mut self) {
        let Contender { name, identity, .. } = &self.candidate;
        tracing::info!(lease = name, identity, "waiting for the lease");
        loop {
            let asked = self.instant();
            let won = request("acquire", asked + REQUEST_TIMEOUT, self.try_to_win()).await;
            if let Some(Some(term)) = won {
                self.deadline = asked + RENEW_WITHIN;
                let fence = &self.context.fence;
                fence.begin(term, self.context.clock.now(), Some(self.deadline));
                self.context.metrics.leader.set(1);
                tracing::info!(term, "leading");
                return;
            }
            // Without jitter, candidates that ask at the same moment would conflict again and again.
            let jitter = self.context.clock.host().random().fraction();
            sleep(RETRY.mul_f64(1.0 + 0.2 * jitter)).await;
        }
    }

    /// Returns the term if this process holds the Lease now.
    async fn try_to_win(&mut self) -> Result<Option<u64>, kube::Error> {
        let now = self.instant();
        let Some(lease) = self.api.get_opt(&self.candidate.name).await? else {
            self.seen = None;
            let mut lease = Lease::default();
            lease.metadata.name = Some(self.candidate.name.clone());
            return self.write(self.claim(lease)).await;
        };
        self.observe(lease.clone(), now);
        if holder(&lease) == Some(self.candidate.identity.as_str()) {
            // The response to our own claim was lost. Others count from that claim, so it is renewed before it is used.
            return self.write(self.renewal(lease)).await;
        }
        if !self.is_free(&lease, now) {
            return Ok(None);
        }
        self.write(self.claim(lease)).await
    }

    /// Writes the Lease, in the version it was read with, and returns its term. `None` if another process was first.
    async fn write(&mut self, lease: Lease) -> Result<Option<u64>, kube::Error> {
        let parameters = PostParams::default();
        let written = if lease.metadata.resource_version.is_none() {
            self.api.create(&parameters, &lease).await
        } else {
            self.api.replace(&self.candidate.name, &parameters, &lease).await
        };
        match written {
            Ok(lease) => {
                let term = lease.spec.as_ref().and_then(|spec| spec.lease_transitions);
                self.observe(lease, self.instant());
                Ok(Some(u64::try_from(term.unwrap_or_default()).unwrap_or_default()))
            }
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Renews the Lease until it is lost.
    pub(crate) async fn keep(&mut self) -> Lost {
        let lost = loop {
            sleep_until(self.deadline.min(self.instant() + RETRY)).await;
            let asked = self.instant();
            if asked >= self.deadline {
                break Lost::Expired;
            }
            let until = self.deadline.min(asked + REQUEST_TIMEOUT);
            match request("renew", until, self.renew()).await {
                Some(None) => {
                    self.deadline = asked + RENEW_WITHIN;
                    self.context.fence.extend(self.deadline);
                }
                Some(Some(other)) => break Lost::Taken(other),
                None => {}
            }
        };
        self.end();
        lost
    }

    fn end(&self) {
        self.context.fence.end();
        self.context.metrics.leader.set(0);
    }

    /// Renews the Lease, or returns its new holder.
    async fn renew(&mut self) -> Result<Option<String>, kube::Error> {
        for _ in 0..2 {
            let Some((lease, _)) = &self.seen else {
                return Ok(Some("another process".to_owned()));
            };
            match self.write(self.renewal(lease.clone())).await {
                Ok(Some(term)) => {
                    self.context.fence.raise(term);
                    return Ok(None);
                }
                // It was written by another leader, by hand, or by a renewal of ours whose response was lost.
                Ok(None) => {
                    let lease = self.api.get(&self.candidate.name).await?;
                    let holder = holder(&lease).unwrap_or("no process").to_owned();
                    if holder != self.candidate.identity {
                        return Ok(Some(holder));
                    }
                    self.observe(lease, self.instant());
                }
                Err(kube::Error::Api(status)) if status.code == 404 => {
                    return Ok(Some("no process: it was deleted".to_owned()));
                }
                Err(error) => return Err(error),
            }
        }
        // Two conflicts in a row; the Lease is still ours as of the second read.
        Ok(None)
    }

    /// Releases the Lease, so that the next leader need not wait until it expires.
    pub(crate) async fn release(self) {
        self.end();
        let until = self.instant() + REQUEST_TIMEOUT;
        if request("release", until, self.clear_holder()).await.is_some() {
            tracing::info!("released the lease");
        }
    }

    async fn clear_holder(&self) -> Result<(), kube::Error> {
        // The last seen version may be older than our last renewal, whose response may have been lost.
        let mut lease = self.renewal(self.api.get(&self.candidate.name).await?);
        if holder(&lease) != Some(self.candidate.identity.as_str()) {
            return Ok(());
        }
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
        }
        let parameters = PostParams::default();
        self.api.replace(&self.candidate.name, &parameters, &lease).await?;
        Ok(())
    }

    fn instant(&self) -> Instant {
        self.context.clock.host().instant()
    }

    fn renewal(&self, mut lease: Lease) -> Lease {
        if let Some(spec) = &mut lease.spec {
            spec.renew_time = Some(MicroTime(self.context.clock.now()));
            spec.lease_transitions = spec.lease_transitions.max(self.context.fence.wanted_term());
        }
        lease
    }

    fn observe(&mut self, lease: Lease, now: Instant) {
        match &mut self.seen {
            Some((seen, _)) if seen.metadata.uid == lease.metadata.uid && seen.spec == lease.spec => *seen = lease,
            seen => *seen = Some((lease, now)),
        }
    }

    fn is_free(&self, lease: &Lease, now: Instant) -> bool {
        let promised = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
        let promised = promised
            .and_then(|seconds| u64::try_from(seconds).ok())
            .map_or(LEASE, Duration::from_secs);
        let expired = |(_, since): &(Lease, Instant)| now.saturating_duration_since(*since) >= promised;
        holder(lease).is_none() || self.seen.as_ref().is_some_and(expired)
    }

    /// The Lease with this process as holder. Everything else in it is kept.
    fn claim(&self, mut lease: Lease) -> Lease {
        let now = self.context.clock.now();
        let spec = lease.spec.unwrap_or_default();
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(self.candidate.identity.clone()),
            lease_duration_seconds: i32::try_from(LEASE.as_secs()).ok(),
            acquire_time: Some(MicroTime(now)),
            renew_time: Some(MicroTime(now)),
            lease_transitions: Some(next_term(spec.lease_transitions, now)),
            ..spec
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

fn holder(lease: &Lease) -> Option<&str> {
    let holder = lease.spec.as_ref()?.holder_identity.as_deref()?;
    (!holder.is_empty()).then_some(holder)
}
