use std::net::SocketAddr;
use std::time::Duration;

use hyper::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::command::{JobCommand, NodeCommand, PartitionCommand, ReservationCommand};
use super::error::Error;
use super::fence::Fence;
use super::http::{Http, Question};
use super::key::AgentKey;
use super::message::{Checked, Commanded, Pushed, Refusal, Restored, Status, Way};
use super::path;
use crate::answer::{Answer, DecodeError, Payload, Qos, ServedConf, decode};
use crate::job::Job;
use crate::node::Node;
use crate::partition::Partition;
use crate::reservation::Reservation;
use crate::rest::{Observation, Process};
use crate::revision::Revision;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// For a question that the agent answers by itself.
    pub timeout: Duration,
    /// For one that it hands on to Slurm.
    pub slurm_timeout: Duration,
    /// For a push.
    pub push_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(5),
            // The agent gives Slurm 15 s, which in turn waits 10 s for slurmctld (MessageTimeout).
            slurm_timeout: Duration::from_secs(20),
            // It says after 10 s that it goes on.
            push_timeout: Duration::from_secs(12),
        }
    }
}

/// A connection to the agent in one pod. It costs nothing until it is used.
#[derive(Debug)]
pub struct Client {
    http: Http,
    options: Options,
}

impl Client {
    /// `pod` is the pod's UID: the agent of another pod that was given the same address does not feel addressed.
    pub fn new(address: SocketAddr, pod: impl Into<String>, key: AgentKey, options: Options) -> Self {
        Self {
            http: Http::new(address, pod.into(), key),
            options,
        }
    }

    pub async fn status(&self) -> Result<Status, Error> {
        self.ask_status(None).await
    }

    /// What a new leader says first: from here on the agent refuses the one before it, so what is live stays live.
    pub async fn claim(&self, fence: Fence) -> Result<Status, Error> {
        self.ask_status(Some(fence)).await
    }

    async fn ask_status(&self, fence: Option<Fence>) -> Result<Status, Error> {
        let question = Question {
            method: Method::GET,
            path: path::REVISION,
            body: Vec::new(),
            fence,
            timeout: self.options.timeout,
        };
        read(self.http.ask(question).await?)
    }

    /// Returns when slurmctld runs with it, has refused it, or takes longer than the agent waits.
    pub async fn push(&self, revision: &Revision, fence: Fence) -> Result<Pushed, Error> {
        let timeout = self.options.push_timeout;
        let body = bundle(revision)?;
        let answer = self.command(Method::PUT, path::REVISION, body, fence, timeout).await?;
        read(&answer)
    }

    /// Has the agent try a revision on the side; what is live does not notice. An agent of before has no such path
    /// ([`Refusal::NotFound`]).
    pub async fn check(&self, revision: &Revision) -> Result<Checked, Error> {
        let question = Question {
            method: Method::PUT,
            path: path::CHECK,
            body: bundle(revision)?,
            fence: None,
            timeout: self.options.push_timeout,
        };
        read(self.http.ask(question).await?)
    }

    pub async fn command_node(&self, command: &NodeCommand, fence: Fence) -> Result<Way, Error> {
        let Commanded { way } = read(self.post(path::NODE, command, fence).await?)?;
        Ok(way)
    }

    /// An agent of before has no such path ([`Refusal::NotFound`]).
    pub async fn command_partition(&self, command: &PartitionCommand, fence: Fence) -> Result<Restored, Error> {
        read(self.post(path::PARTITION, command, fence).await?)
    }

    pub async fn command_job(&self, command: &JobCommand, fence: Fence) -> Result<(), Error> {
        self.post(path::JOB, command, fence).await.map(drop)
    }

    pub async fn command_reservation(&self, command: &ReservationCommand, fence: Fence) -> Result<(), Error> {
        self.post(path::RESERVATION, command, fence).await.map(drop)
    }

    async fn post(
        &self,
        path: &'static str,
        command: &impl Serialize,
        fence: Fence,
    ) -> Result<impl AsRef<[u8]>, Error> {
        let body = serde_json::to_vec(command).map_err(|error| Error::malformed("our own command", error))?;
        let timeout = self.options.slurm_timeout;
        self.command(Method::POST, path, body, fence, timeout).await
    }

    pub async fn reservations(&self) -> Result<Answer<Vec<Reservation>>, Error> {
        self.read(path::RESERVATIONS).await
    }

    pub async fn partitions(&self) -> Result<Answer<Vec<Partition>>, Error> {
        self.read(path::PARTITIONS).await
    }

    pub async fn nodes(&self) -> Result<Answer<Vec<Node>>, Error> {
        self.read(path::NODES).await
    }

    pub async fn jobs(&self) -> Result<Answer<Vec<Job>>, Error> {
        self.read(path::JOBS).await
    }

    /// Of the accounting database. An error where there is none, or where the agent is too old to ask for them.
    pub async fn qos(&self) -> Result<Answer<Vec<Qos>>, Error> {
        self.read(path::QOS).await
    }

    /// The configuration slurmctld runs with.
    pub async fn served_conf(&self) -> Result<ServedConf, Error> {
        self.read(path::CONFIG).await.map(|answer| answer.value)
    }

    /// Nodes, then jobs, and which process of slurmctld gave both.
    pub async fn observe(&self) -> Result<Observation, Error> {
        let before = Process::of_conf(self.served_conf().await?);
        let nodes = self.nodes().await?.value;
        let jobs = self.jobs().await?.value;
        let process = match before {
            Some(before) => Process::of_conf(self.served_conf().await?).filter(|after| *after == before),
            None => None,
        };
        Ok(Observation { nodes, jobs, process })
    }

    async fn command(
        &self,
        method: Method,
        path: &'static str,
        body: Vec<u8>,
        fence: Fence,
        timeout: Duration,
    ) -> Result<impl AsRef<[u8]> + use<>, Error> {
        let question = Question {
            method,
            path,
            body,
            fence: Some(fence),
            timeout,
        };
        self.http.ask(question).await
    }

    /// What one of Slurm's programs printed in the pod.
    async fn read<T: Payload>(&self, path: &'static str) -> Result<Answer<T>, Error> {
        let question = Question {
            method: Method::GET,
            path,
            body: Vec::new(),
            fence: None,
            timeout: self.options.slurm_timeout,
        };
        let body = self.http.ask(question).await?;
        decode(&body).map_err(|error| match error {
            DecodeError::Complaints(_) => Error::Refused(Refusal::Slurm {
                detail: error.to_string(),
            }),
            DecodeError::Json(_) | DecodeError::Missing(_) => Error::malformed(error.to_string(), error),
        })
    }
}

fn bundle(revision: &Revision) -> Result<Vec<u8>, Error> {
    revision.to_bundle().map_err(|error| {
        Error::Refused(Refusal::Malformed {
            detail: error.to_string(),
        })
    })
}

fn read<T: DeserializeOwned>(body: impl AsRef<[u8]>) -> Result<T, Error> {
    serde_json::from_slice(body.as_ref()).map_err(|error| Error::malformed(error.to_string(), error))
}
