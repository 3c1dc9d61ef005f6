//! The connection to one cluster's Slurm.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use host::Host;
use slurm::{
    AdminState, Job, JobHandle, NodeDescription, Partition, Reservation, ReservationName, ReservationRequest,
    agent::{
        self, AgentKey, JobAction, JobCommand, NodeAction, NodeCommand, NodeName, PartitionCommand, Reason, Refusal,
        ReservationCommand, Restored,
    },
    rest::{self, NodeUpdate},
    token::{Issuer, SigningKey},
};
use thiserror::Error;
use tokio::time::{Instant, timeout};

use super::{Cluster, Knowledge, Seen, lock, route, route::Routes};
use crate::fence::next_fence;

/// The user slurmctld runs as, which has all privileges.
const USER: &str = "slurm";
/// For reads. The same lifetime as upstream's tokens.
const TOKEN_LIFETIME: Duration = Duration::from_mins(15);
/// For orders through slurmrestd. A slurmrestd that hangs may forward an order later, long after the operator gave up
/// on it; slurmctld refuses it once its token has expired.
const ORDER_TOKEN_LIFETIME: Duration = Duration::from_secs(5);
/// For nodes and jobs together. slurmrestd waits 10 s for slurmctld before it returns an error.
const READ_TIMEOUT: Duration = Duration::from_secs(20);
/// For one command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(15);
/// How much longer a daemon whose clock is behind may accept an expired token.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(2);
const OLD_AGENT: &str = "the agent in slurmctld's pod predates this command; recreate the pod";

/// How long slurmrestd is tried last after a failure.
const REST_PENALTY: Duration = Duration::from_secs(30);

/// An order for a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeOrder {
    /// Accepts no new jobs. Without a reason, the existing one is kept.
    Drain { reason: Option<String> },
    /// Accepts jobs again, unless the node is down.
    Undrain,
    /// Ends its jobs at once. Only for a node that is proven dead. Without a reason, the existing one is kept.
    Down { reason: Option<String> },
    /// Accepts jobs again, also after the node was down.
    Resume,
    /// Deletes the node record. Slurm refuses while a job runs on the node.
    Delete,
    /// Sets fields other than the state.
    Describe(NodeDescription),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobOrder {
    /// Ends the job and queues it again.
    Requeue,
    /// Ends the job.
    Cancel,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Order<'a> {
    /// With the state the order was planned on, if it changes the state.
    Node(&'a str, &'a NodeOrder, Option<&'a AdminState>),
    Job(&'a JobHandle, JobOrder),
    Reserve(&'a ReservationRequest),
    Unreserve(&'a ReservationName),
}

/// Why an order was not sent or not carried out.
#[derive(Debug, Error)]
pub enum CommandError {
    /// This process is no longer the leader. Nothing was sent.
    #[error("this operator is no longer the leader")]
    NotLeading,
    /// Slurm cannot be reached. Nothing was sent.
    #[error("Slurm cannot be reached: {0}")]
    Unreachable(String),
    /// The node has changed since the order was planned. Nothing was sent.
    #[error("the node has changed in the meantime; it is {0}")]
    Changed(AdminState),
    /// Slurm has no such node, job or reservation.
    #[error("Slurm has no {0}")]
    NotFound(String),
    /// Slurm refused the order.
    #[error("Slurm refused: {0}")]
    Refused(String),
    /// The order may or may not have been carried out; only a poll can tell.
    #[error("no conclusive response from Slurm: {0}")]
    Unclear(String),
}

/// Orders through slurmrestd without a response, and until when they may still be carried out.
#[derive(Debug, Default)]
pub(super) struct Unanswered(Mutex<HashMap<String, Instant>>);

impl Unanswered {
    /// For how long no other order for this object may be sent.
    fn left(&self, subject: &str, now: Instant) -> Option<Duration> {
        let mut all = lock(&self.0);
        all.retain(|_, until| *until > now);
        all.get(subject).map(|until| until.duration_since(now))
    }

    fn note(&self, subject: String, until: Instant) {
        let mut all = lock(&self.0);
        all.insert(subject, until);
    }
}

/// The clients of one cluster, and which of them is preferred at the moment.
#[derive(Debug)]
pub(super) struct Connection {
    fingerprint: u64,
    rest: Option<Arc<rest::Client>>,
    /// slurmrestd with short-lived tokens, for orders where there is no agent.
    rest_for_orders: Option<rest::Client>,
    agent: Option<agent::Client>,
    /// UID of the agent's pod.
    agent_pod: Option<String>,
    /// Until when slurmrestd is tried last.
    rest_penalty_until: Mutex<Option<Instant>>,
    host: Host,
}

#[derive(Clone, Copy, Debug)]
enum Channel<'a> {
    Rest(&'a rest::Client),
    Agent(&'a agent::Client),
}

impl Connection {
    fn new(routes: &Routes, host: &Host) -> Result<Self, String> {
        let signing = SigningKey::new(&routes.key).map_err(|error| error.to_string())?;
        let agent_key = AgentKey::derive(&routes.key).map_err(|error| error.to_string())?;
        let client = |server: &String, lifetime| {
            let issuer = Issuer::new(signing.clone(), USER, lifetime);
            rest::Client::new(host.clone(), server, issuer, rest::Options::default())
        };
        let rest = routes.rest.as_ref();
        let rest_for_orders = rest.filter(|_| routes.agentless);
        let rest_for_orders = rest_for_orders.map(|server| client(server, ORDER_TOKEN_LIFETIME));
        let rest = rest.map(|server| Arc::new(client(server, TOKEN_LIFETIME)));
        let agent = routes.agent.as_ref().map(|route| {
            agent::Client::new(
                host.clone(),
                route.address,
                route.pod.clone(),
                agent_key,
                agent::Options::default(),
            )
        });
        Ok(Self {
            fingerprint: routes.fingerprint(),
            rest,
            rest_for_orders,
            agent,
            agent_pod: routes.agent.as_ref().map(|route| route.pod.clone()),
            rest_penalty_until: Mutex::new(None),
            host: host.clone(),
        })
    }

    fn channels(&self) -> Vec<Channel<'_>> {
        let mut channels: Vec<Channel<'_>> = self
            .rest
            .iter()
            .map(|client| Channel::Rest(client))
            .chain(self.agent.iter().map(Channel::Agent))
            .collect();
        let penalty_until = *lock(&self.rest_penalty_until);
        if penalty_until.is_some_and(|until| self.host.instant() < until) {
            channels.reverse();
        }
        channels
    }

    fn note(&self, channel: Channel<'_>, worked: bool) {
        if let Channel::Rest(_) = channel {
            let mut until = lock(&self.rest_penalty_until);
            *until = (!worked).then(|| self.host.instant() + REST_PENALTY);
        }
    }
}

impl Channel<'_> {
    fn name(self) -> &'static str {
        match self {
            Channel::Rest(_) => "slurmrestd",
            Channel::Agent(_) => "the agent",
        }
    }
}

impl Cluster {
    /// Reads nodes, and jobs too if `with_jobs`.
    pub(crate) async fn observe(&self, with_jobs: bool) -> Knowledge {
        let connection = match self.connection() {
            Ok(connection) => connection,
            Err(why) => return Knowledge::Unknown { why },
        };
        let mut failures = Vec::new();
        for channel in connection.channels() {
            let at = self.now();
            let read = async {
                let nodes = match (channel, with_jobs) {
                    (Channel::Rest(client), true) => {
                        let seen = Seen::new(client.observe().await.map_err(text)?, at);
                        return Ok::<Seen, String>(seen.of_release(client.release().as_deref()));
                    }
                    (Channel::Agent(client), true) => return Ok(Seen::new(client.observe().await.map_err(text)?, at)),
                    (Channel::Rest(client), false) => client.nodes().await.map_err(text)?,
                    (Channel::Agent(client), false) => client.nodes().await.map_err(text)?,
                };
                Ok(Seen::of_nodes(nodes.value, at).of_release(nodes.release.as_deref()))
            };
            let answer = match timeout(READ_TIMEOUT, read).await {
                Ok(answer) => answer,
                Err(_) => Err(format!("no response within {} s", READ_TIMEOUT.as_secs())),
            };
            connection.note(channel, answer.is_ok());
            match answer {
                // If slurmrestd is too old to report which slurmctld responded, the agent may be able to.
                Ok(seen)
                    if with_jobs
                        && seen.process.is_none()
                        && matches!(channel, Channel::Rest(_))
                        && connection.agent.is_some() =>
                {
                    failures.push(Ok(seen));
                }
                Ok(seen) => return Knowledge::Known(Arc::new(seen)),
                Err(why) => failures.push(Err(format!("{}: {why}", channel.name()))),
            }
        }
        let mut reasons = Vec::new();
        for failure in failures {
            match failure {
                Ok(seen) => return Knowledge::Known(Arc::new(seen)),
                Err(why) => reasons.push(why),
            }
        }
        Knowledge::unknown(reasons.join("; "))
    }

    /// Sends an order to the agent in slurmctld's pod, which is fenced. slurmrestd, which is not fenced, carries orders
    /// only where there is no agent, for example to an external slurmctld. An order without a response is not sent
    /// through another channel: it may still be carried out.
    pub(crate) async fn command(&self, order: Order<'_>) -> Result<(), CommandError> {
        let connection = self.connection().map_err(CommandError::Unreachable)?;
        // A response must arrive before another process can become the leader.
        let left = self.shared.fence.remaining().ok_or(CommandError::NotLeading)?;
        let late = |left: Duration| CommandError::Unclear(format!("no response within {} s", left.as_secs()));
        if let Some(agent) = &connection.agent {
            let left = left.min(COMMAND_TIMEOUT);
            let sent = timeout(left, command_agent(agent, order, next_fence(&self.shared.fence)));
            return sent.await.unwrap_or_else(|_| Err(late(left)));
        }
        let Some(client) = &connection.rest_for_orders else {
            return Err(CommandError::Unreachable("slurmctld's pod does not run".to_owned()));
        };
        let subject = order.what();
        if let Some(left) = self.unanswered.left(&subject, self.host().instant()) {
            return Err(CommandError::Unclear(format!(
                "slurmrestd has not responded to the previous order and may still carry it out for {} s",
                left.as_secs() + 1
            )));
        }
        let left = left.min(ORDER_TOKEN_LIFETIME);
        let answer = timeout(left, command_rest(client, order)).await;
        let answer = answer.unwrap_or_else(|_| Err(late(left)));
        if let Err(CommandError::Unclear(_)) = &answer {
            let until = self.host().instant() + ORDER_TOKEN_LIFETIME + MAX_CLOCK_SKEW;
            self.unanswered.note(subject, until);
        }
        answer
    }

    pub(crate) fn slurmrestd(&self) -> Result<Arc<rest::Client>, String> {
        let connection = self.connection()?;
        connection.rest.clone().ok_or_else(|| "no RestApi exists".to_owned())
    }

    /// Requires the agent: only the agent has the files.
    pub(crate) async fn restore_partition(&self, partition: &str, keys: &[String]) -> Result<Restored, CommandError> {
        let connection = self.connection().map_err(CommandError::Unreachable)?;
        let agent = connection.agent.as_ref();
        let agent = agent.ok_or_else(|| CommandError::Unreachable("slurmctld's pod does not run".to_owned()))?;
        let left = self
            .shared
            .fence
            .remaining()
            .ok_or(CommandError::NotLeading)?
            .min(COMMAND_TIMEOUT);
        let command = PartitionCommand {
            partition: partition.to_owned(),
            restore: keys.to_vec(),
        };
        match timeout(left, agent.command_partition(&command, next_fence(&self.shared.fence))).await {
            // The agent is as old as its pod.
            Ok(Err(agent::Error::Refused(Refusal::NotFound))) => Ok(Restored::none_of(keys, OLD_AGENT)),
            Ok(answer) => answer.map_err(|error| of_agent(&error, || format!("partition {partition:?}"))),
            Err(_) => Err(CommandError::Unclear(format!(
                "no response within {} s",
                left.as_secs()
            ))),
        }
    }

    /// All reservations, or why they are not known.
    pub(crate) async fn reservations(&self) -> Result<Vec<Reservation>, String> {
        self.read_from_any(async |channel| match channel {
            Channel::Rest(client) => client.reservations().await.map(|answer| answer.value).map_err(text),
            Channel::Agent(client) => client.reservations().await.map(|answer| answer.value).map_err(text),
        })
        .await
    }

    /// The names of all QOS in the database, or why they are not known.
    pub(crate) async fn qos(&self) -> Result<BTreeSet<String>, String> {
        let all = self
            .read_from_any(async |channel| match channel {
                Channel::Rest(client) => client.qos().await.map(|answer| answer.value).map_err(text),
                Channel::Agent(client) => client.qos().await.map(|answer| answer.value).map_err(text),
            })
            .await?;
        Ok(all.into_iter().map(|qos| qos.name).collect())
    }

    /// Why slurmdbd does not answer from its database. The agent is tried first: it authenticates as slurmctld, with
    /// slurmctld's key, whereas slurmdbd accepts slurmrestd's token whichever key slurmctld has.
    pub(crate) async fn database_trouble(&self) -> Option<String> {
        let connection = self.connection().ok()?;
        if let Some(agent) = &connection.agent {
            match timeout(READ_TIMEOUT, agent.qos()).await {
                Ok(Ok(_)) => return None,
                Ok(Err(agent::Error::Refused(Refusal::Slurm { detail }))) => return Some(detail),
                Ok(Err(_)) | Err(_) => {}
            }
        }
        self.qos().await.err()
    }

    /// The status of the agent in slurmctld's pod, and the UID of that pod.
    pub(crate) async fn agent_status(&self) -> Option<(String, Result<agent::Status, agent::Error>)> {
        let connection = self.connection().ok()?;
        let agent = connection.agent.as_ref()?;
        Some((connection.agent_pod.clone()?, agent.status().await))
    }

    /// All jobs, or why they are not known. They are no proof: no process is recorded with them.
    pub(crate) async fn jobs(&self) -> Result<Vec<Job>, String> {
        self.read_from_any(async |channel| match channel {
            Channel::Rest(client) => client.jobs().await.map(|answer| answer.value).map_err(text),
            Channel::Agent(client) => client.jobs().await.map(|answer| answer.value).map_err(text),
        })
        .await
    }

    /// All partitions, or why they are not known.
    pub(crate) async fn partitions(&self) -> Result<Vec<Partition>, String> {
        self.read_from_any(async |channel| match channel {
            Channel::Rest(client) => client.partitions().await.map(|answer| answer.value).map_err(text),
            Channel::Agent(client) => client.partitions().await.map(|answer| answer.value).map_err(text),
        })
        .await
    }

    async fn read_from_any<T>(&self, request: impl AsyncFn(Channel<'_>) -> Result<T, String>) -> Result<T, String> {
        let connection = self.connection()?;
        let mut failures = Vec::new();
        for channel in connection.channels() {
            let answer = match timeout(READ_TIMEOUT, request(channel)).await {
                Ok(answer) => answer,
                Err(_) => Err(format!("no response within {} s", READ_TIMEOUT.as_secs())),
            };
            connection.note(channel, answer.is_ok());
            match answer {
                Ok(answer) => return Ok(answer),
                Err(why) => failures.push(format!("{}: {why}", channel.name())),
            }
        }
        Err(failures.join("; "))
    }

    fn connection(&self) -> Result<Arc<Connection>, String> {
        let mut known = lock(&self.connection);
        let routes = match route::find(&self.shared.caches, &self.key) {
            Ok(routes) => routes,
            Err(why) => {
                *known = None;
                return Err(why);
            }
        };
        if let Some(known) = known.as_ref().filter(|known| known.fingerprint == routes.fingerprint()) {
            return Ok(Arc::clone(known));
        }
        let connection = Arc::new(Connection::new(&routes, self.host())?);
        *known = Some(Arc::clone(&connection));
        Ok(connection)
    }
}

async fn command_rest(client: &rest::Client, order: Order<'_>) -> Result<(), CommandError> {
    if let Order::Node(node, _, Some(expected)) = order {
        let now = client.node(node).await.map_err(|error| of_rest(error, order))?;
        let now = now.value.admin_state();
        if now != *expected {
            return Err(CommandError::Changed(now));
        }
    }
    let answer = match order {
        Order::Node(node, order, _) => match order {
            NodeOrder::Drain { reason } => client.update_node(node, &NodeUpdate::drain(reason.as_deref())).await,
            NodeOrder::Undrain => client.update_node(node, &NodeUpdate::undrain()).await,
            NodeOrder::Down { reason } => client.update_node(node, &NodeUpdate::down(reason.as_deref())).await,
            NodeOrder::Resume => client.update_node(node, &NodeUpdate::resume()).await,
            NodeOrder::Describe(description) => client.update_node(node, &NodeUpdate::describe(description)).await,
            NodeOrder::Delete => client.delete_node(node).await,
        }
        .map(drop),
        Order::Job(job, JobOrder::Requeue) => client.requeue_job(job).await,
        Order::Job(job, JobOrder::Cancel) => client.cancel_job(job).await,
        Order::Reserve(request) => client.reserve(request).await.map(drop),
        Order::Unreserve(name) => client.unreserve(name).await.map(drop),
    };
    answer.map_err(|error| of_rest(error, order))
}

fn of_rest(error: rest::Error, order: Order<'_>) -> CommandError {
    match &error {
        rest::Error::NotFound { .. } => CommandError::NotFound(order.what()),
        rest::Error::Lacking { .. } | rest::Error::Misread { .. } => CommandError::Unreachable(text(error)),
        rest::Error::Refused { status, text, .. } if *status < 500 => CommandError::Refused(text.clone()),
        // Slurm's error number proves that it read the order; without one, the order may be carried out in part.
        rest::Error::Refused { number, text, .. } if *number != 0 => CommandError::Refused(text.clone()),
        _ => CommandError::Unclear(text(error)),
    }
}

async fn command_agent(client: &agent::Client, order: Order<'_>, fence: agent::Fence) -> Result<(), CommandError> {
    let answer = match order {
        Order::Node(node, order, expect) => {
            let node = NodeName::new(node).map_err(refused)?;
            let reason = |reason: &Option<String>| {
                let reason = reason.as_ref().map(|reason| Reason::new(one_line(reason)));
                reason.transpose().map_err(refused)
            };
            let action = match order {
                NodeOrder::Drain { reason: why } => NodeAction::Drain { reason: reason(why)? },
                NodeOrder::Undrain => NodeAction::Undrain,
                NodeOrder::Down { reason: why } => NodeAction::Down { reason: reason(why)? },
                NodeOrder::Resume => NodeAction::Resume,
                NodeOrder::Delete => NodeAction::Delete,
                NodeOrder::Describe(description) => NodeAction::Describe(description.clone()),
            };
            let command = NodeCommand {
                node,
                expect: expect.cloned(),
                action,
            };
            client.command_node(&command, fence).await.map(drop)
        }
        Order::Job(job, order) => {
            let action = match order {
                JobOrder::Requeue => JobAction::Requeue,
                JobOrder::Cancel => JobAction::Cancel,
            };
            let job = job.clone();
            client.command_job(&JobCommand { job, action }, fence).await
        }
        Order::Reserve(request) => {
            let command = ReservationCommand::Reserve(request.clone());
            client.command_reservation(&command, fence).await
        }
        Order::Unreserve(name) => {
            let command = ReservationCommand::Unreserve { name: name.clone() };
            client.command_reservation(&command, fence).await
        }
    };
    answer.map_err(|error| of_agent(&error, || order.what()))
}

fn of_agent(error: &agent::Error, what: impl FnOnce() -> String) -> CommandError {
    match error {
        agent::Error::StaleFence { .. } => CommandError::NotLeading,
        agent::Error::Refused(Refusal::NoSuchNode | Refusal::NoSuchThing) => CommandError::NotFound(what()),
        agent::Error::Refused(Refusal::Changed { now }) => CommandError::Changed(now.clone()),
        agent::Error::Refused(Refusal::Slurm { detail }) => CommandError::Refused(detail.clone()),
        _ if error.is_definite() => CommandError::Refused(error.to_string()),
        _ => CommandError::Unclear(text(error)),
    }
}

fn refused(error: impl std::error::Error) -> CommandError {
    CommandError::Refused(error.to_string())
}

impl Order<'_> {
    fn what(self) -> String {
        match self {
            Self::Node(node, ..) => format!("node {node:?}"),
            Self::Job(job, _) => format!("job {job}"),
            Self::Reserve(ReservationRequest { name, .. }) | Self::Unreserve(name) => format!("reservation {name}"),
        }
    }
}

/// The reason in the form the agent accepts: one line of at most 1024 bytes.
fn one_line(reason: &str) -> String {
    let plain: String = reason.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut line = plain.trim().to_owned();
    while line.len() > 1024 {
        line.pop();
    }
    if line.is_empty() { "unknown".to_owned() } else { line }
}

/// The error followed by its causes.
fn text(error: impl std::error::Error) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !message.contains(&more) {
            message = format!("{message}: {more}");
        }
        cause = error.source();
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_order_is_sent_while_an_unanswered_one_may_still_be_carried_out() {
        let unanswered = Unanswered::default();
        let (start, life) = (Host::real().instant(), ORDER_TOKEN_LIFETIME + MAX_CLOCK_SKEW);
        unanswered.note("node \"a\"".to_owned(), start + life);
        assert_eq!(unanswered.left("node \"a\"", start), Some(life));
        assert_eq!(unanswered.left("node \"b\"", start), None);
        assert_eq!(unanswered.left("node \"a\"", start + life), None);
        assert!(unanswered.0.lock().unwrap().is_empty(), "nothing is kept");
    }
}
