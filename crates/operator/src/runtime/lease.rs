//! Who leads, among the operator's replicas.
//!
//! One Lease, written only with the resourceVersion it was read with, so that of two writers one fails. Whether a
//! leader is still there is judged by whether its Lease changes while we look, never by comparing clocks. Losing the
//! Lease ends the process: nothing it has begun can go on by mistake.

#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, api::PostParams};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::{Clock, Fence, Metrics, error::words_of};

/// client-go's numbers, which every cluster is used to: a leader that is gone is followed after this time…
const LEASE: Duration = Duration::from_secs(15);
/// …one that cannot renew gives up before that, with time left for calls that are under way…
const RENEW_WITHIN: Duration = Duration::from_secs(10);
/// …and everybody looks this often.
const RETRY: Duration = Duration::from_secs(2);
/// A call that takes longer is worth less than the next one.
const ANSWER_WITHIN: Duration = Duration::from_secs(4);

/// Which Lease, and who asks for it.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub namespace: String,
    pub name: String,
    /// Must differ between all processes, also between two lives of one pod.
    pub identity: String,
}

/// Why a process does not lead any more.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    #[error("the lease went to {0}")]
    Taken(String),
    #[error("the lease could not be renewed for {} s", RENEW_WITHIN.as_secs())]
    Expired,
}

/// A process on its way to leading, or leading.
#[derive(Debug)]
pub(super) struct Election {
    api: Api<Lease>,
    candidate: Candidate,
    fence: Fence,
    clock: Clock,
    metrics: Metrics,
    /// The Lease as it was last seen, and since when it looks like that.
    seen: Option<(Lease, Instant)>,
    /// Until when the Lease can be counted on, once it is ours.
    deadline: Instant,
}

impl Election {
    pub(super) fn new(client: Client, candidate: Candidate, fence: Fence, clock: Clock, metrics: Metrics) -> Self {
        Self {
            api: Api::namespaced(client, &candidate.namespace),
            candidate,
            fence,
            clock,
            metrics,
            seen: None,
            deadline: Instant::now(),
        }
    }

    /// Returns when this process leads.
    pub(super) async fn win(&mut self) {
        tracing::info!(
            lease = self.candidate.name,
            identity = self.candidate.identity,
            "Waiting for the lease"
        );
        loop {
            let asked = Instant::now();
            match timeout(ANSWER_WITHIN, self.try_to_win()).await {
                Ok(Ok(Some(term))) => {
                    self.deadline = asked + RENEW_WITHIN;
                    self.fence.begin(term, self.clock.now(), Some(self.deadline));
                    self.metrics.leads(true);
                    tracing::info!(term, "Leading");
                    return;
                }
                Ok(Ok(None)) => {}
                Ok(Err(error)) => tracing::warn!(error = words_of(&error), "Lease not reached"),
                Err(_) => tracing::warn!("Lease not reached: no answer"),
            }
            // Candidates that look at the same moment would collide for ever.
            sleep(RETRY.mul_f64(1.0 + 0.2 * fastrand::f64())).await;
        }
    }

    /// The term, if the Lease is ours now.
    async fn try_to_win(&mut self) -> Result<Option<u64>, kube::Error> {
        let now = Instant::now();
        let Some(lease) = self.api.get_opt(&self.candidate.name).await? else {
            self.seen = None;
            let lease = self.claim(None);
            return self.write(lease, true).await;
        };
        self.observe(lease.clone(), now);
        if holder(&lease) == Some(self.candidate.identity.as_str()) {
            // The answer to our own claim was lost. Others count from that claim, so it is renewed before it is used.
            let renewal = self.renewal(lease);
            return self.write(renewal, false).await;
        }
        if !self.is_free(&lease, now) {
            return Ok(None);
        }
        let claim = self.claim(Some(&lease));
        self.write(claim, false).await
    }

    /// Sends a claim. Somebody else being faster is no error.
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
                self.observe(lease, Instant::now());
                Ok(Some(term))
            }
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Holds the Lease for as long as it can.
    pub(super) async fn keep(&mut self) -> Lost {
        loop {
            sleep_until(self.deadline.min(Instant::now() + RETRY)).await;
            let asked = Instant::now();
            if asked >= self.deadline {
                return self.lost(Lost::Expired);
            }
            match timeout_at(self.deadline.min(asked + ANSWER_WITHIN), self.renew()).await {
                Ok(Ok(None)) => {
                    self.deadline = asked + RENEW_WITHIN;
                    self.fence.extend(self.deadline);
                }
                Ok(Ok(Some(other))) => return self.lost(Lost::Taken(other)),
                Ok(Err(error)) => tracing::warn!(error = words_of(&error), "Lease not renewed"),
                Err(_) => tracing::warn!("Lease not renewed: no answer"),
            }
        }
    }

    fn lost(&self, why: Lost) -> Lost {
        self.fence.end();
        self.metrics.leads(false);
        why
    }

    /// Renews, or says who holds the Lease now.
    async fn renew(&mut self) -> Result<Option<String>, kube::Error> {
        for _ in 0..2 {
            let Some((lease, _)) = &self.seen else {
                return Ok(Some("nobody".to_owned()));
            };
            let lease = self.renewal(lease.clone());
            match self
                .api
                .replace(&self.candidate.name, &PostParams::default(), &lease)
                .await
            {
                Ok(lease) => {
                    self.observe(lease, Instant::now());
                    return Ok(None);
                }
                Err(kube::Error::Api(status)) if status.code == 404 => {
                    return Ok(Some("nobody: it was deleted".to_owned()));
                }
                // Written by someone: by another leader, by hand, or by our own renewal whose answer was lost.
                Err(kube::Error::Api(status)) if status.code == 409 => {
                    let lease = self.api.get(&self.candidate.name).await?;
                    let holder = holder(&lease).unwrap_or("nobody").to_owned();
                    if holder != self.candidate.identity {
                        return Ok(Some(holder));
                    }
                    self.observe(lease, Instant::now());
                }
                Err(error) => return Err(error),
            }
        }
        // Twice in a row somebody was faster; the Lease is ours all the same, as of the second look.
        Ok(None)
    }

    /// Gives the Lease away, so that the next one need not wait for its end.
    pub(super) async fn release(self) {
        self.fence.end();
        self.metrics.leads(false);
        match timeout(ANSWER_WITHIN, self.give_away()).await {
            Ok(Ok(())) => tracing::info!("Lease released"),
            Ok(Err(error)) => tracing::warn!(error = words_of(&error), "Lease not released"),
            Err(_) => tracing::warn!("Lease not released: no answer"),
        }
    }

    async fn give_away(&self) -> Result<(), kube::Error> {
        // What we saw last may be older than our own last renewal, whose answer nobody waited for any more.
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

    /// The Lease as we want it, with everything else that stands in it kept.
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

/// Agents refuse a lower term, so it must grow even where the Lease was deleted, or was never there because the operator
/// ran without: it is at least the minutes since 1970.
pub(super) fn next_term(transitions: Option<i32>, now: Timestamp) -> i32 {
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
