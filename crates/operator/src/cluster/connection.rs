//! The connection to one cluster's Slurm.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use host::Host;
use jiff::Timestamp;
use runtime::{Fence, Key};
pub use slurm::agent::{JobAction as JobOrder, NodeAction as NodeOrder};
use slurm::{
    AdminState, Job, Partition, Reservation,
    agent::{self, JobCommand, NodeCommand, PartitionCommand, Refusal, ReservationCommand, Restored},
    rest,
    token::{Issuer, SigningKey},
};
use thiserror::Error;
use tokio::time::{Instant, timeout};

use super::{
    Cluster, Clusters, Knowledge, Seen, Source, lock,
    route::{self, NoRoute, Routes},
};
use crate::fence::{next_fence, note_rejection};

/// The user slurmctld runs as, which has all privileges.
const USER: &str = "slurm";
/// The user of reads through slurmrestd, to which tokens go in clear text. Every image has this user, and Slurm gives it no rights.
const READER: &str = "nobody";
/// For reads. A token is replaced after a minute; the rest is for slurmrestd, which waits 10 s for slurmctld, and for clocks.
const READ_TOKEN_LIFETIME: Duration = Duration::from_secs(75);
/// For reads where no agent shows slurmctld's clock. Clocks that differ by more do not work with munge either.
const AGENTLESS_TOKEN_LIFETIME: Duration = Duration::from_mins(5);
/// For orders through slurmrestd. A slurmrestd that hangs may forward an order later, long after the operator gave up
/// on it; slurmctld refuses it once its token has expired.
const ORDER_TOKEN_LIFETIME: Duration = Duration::from_secs(5);
/// For nodes and jobs together. slurmrestd waits 10 s for slurmctld before it returns an error.
const READ_TIMEOUT: Duration = Duration::from_secs(20);
/// For one command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(15);
/// How much longer slurmctld may accept an expired token, if its clock is known, and if it is not.
const CLOCK_ERROR: Duration = Duration::from_secs(2);
const MAX_CLOCK_SKEW: Duration = Duration::from_mins(1);
/// How long slurmrestd is tried last after a failure.
const REST_PENALTY: Duration = Duration::from_secs(30);
/// An agent that runs accepts a connection or refuses it at once. One that is silent for longer is frozen or cut off.
const AGENT_PATIENCE: Duration = Duration::from_secs(2);

/// An order to Slurm.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order<'a> {
    Node(&'a NodeCommand),
    Job(&'a JobCommand),
    Reservation(&'a ReservationCommand),
}

/// Why an order was not sent or not carried out.
#[derive(Debug, Error)]
pub enum CommandError {
    /// This process is no longer the leader. Nothing was sent.
    #[error("this operator is no longer the leader")]
    NotLeading,
    /// Slurm cannot be reached. Nothing was sent.
    #[error("Slurm cannot be reached: {0}")]
    Unreachable(#[from] NoRoute),
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

/// Why nothing was read.
#[derive(Debug, Error)]
pub(super) enum ReadError {
    #[error(transparent)]
    NoRoute(#[from] NoRoute),
    /// There was no response, or only a part of one.
    #[error("{0}")]
    NoResponse(String),
    /// No channel returned what was asked for.
    #[error("{0}")]
    Failed(String),
}

/// Orders through slurmrestd without a response, and until when they may still be carried out.
#[derive(Debug, Default)]
pub(super) struct Unanswered(Mutex<BTreeMap<String, Instant>>);

impl Unanswered {
    /// For how long no other order for this object may be sent.
    fn left(&self, subject: &str, now: Instant) -> Option<Duration> {
        let mut all = lock(&self.0);
        all.retain(|_, until| *until > now);
        all.get(subject).map(|until| until.duration_since(now))
    }

    fn note(&self, subject: String, until: Instant) {
        lock(&self.0).insert(subject, until);
    }
}

/// The clients of one cluster, and which of them is preferred at the moment.
#[derive(Debug)]
pub(super) struct Connection {
    routes: Routes,
    /// slurmrestd for reads, with tokens of a user without privileges where there is an agent.
    rest: Option<Arc<rest::Client>>,
    /// slurmrestd with short-lived tokens, for orders where there is no agent.
    rest_for_orders: Option<rest::Client>,
    agent: Option<agent::Client>,
    /// Until when slurmrestd is tried last.
    rest_penalty_until: Mutex<Option<Instant>>,
    /// The agent was waited for in vain. It is tried last until it responds again, which `key_report` finds out: a poll
    /// that waits for it each time would be outdated when it ends.
    is_agent_silent: AtomicBool,
}

/// The channels of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prefer {
    /// slurmrestd first, which costs slurmctld's pod no process. For what is only shown or leads to a closer look.
    Rest,
    /// The agent first, whose responses are signed. For what decides whether something is deleted.
    Agent,
    /// The agent alone, if it responds. slurmrestd only where there is no agent.
    OnlyAgent,
}

#[derive(Clone, Copy, Debug)]
enum Channel<'a> {
    Rest(&'a rest::Client),
    Agent(&'a agent::Client),
}

/// Sends a read to the client of a channel.
macro_rules! request {
    ($channel:expr, $read:ident) => {
        match $channel {
            Channel::Rest(client) => client.$read().await.map_err(failed),
            Channel::Agent(client) => client.$read().await.map_err(failed_by_agent),
        }
    };
}

impl Connection {
    fn new(routes: Routes, host: &Host) -> Result<Self, agent::EmptyKey> {
        let signing = SigningKey::new(&routes.key.0)?;
        let client = |server: &String, user, lifetime| {
            let issuer = Issuer::new(signing.clone(), user, lifetime);
            rest::Client::new(host.clone(), server, issuer, rest::Options::default())
        };
        let rest = routes.rest.as_ref();
        let rest_for_orders = rest.filter(|_| routes.agentless);
        let (user, lifetime) = if routes.agentless {
            (USER, AGENTLESS_TOKEN_LIFETIME)
        } else {
            (READER, READ_TOKEN_LIFETIME)
        };
        let agent = routes.agent.as_ref().map(|target| target.client(host, &routes.key));
        Ok(Self {
            rest: rest.map(|server| Arc::new(client(server, user, lifetime))),
            rest_for_orders: rest_for_orders.map(|server| client(server, USER, ORDER_TOKEN_LIFETIME)),
            agent: agent.transpose()?,
            rest_penalty_until: Mutex::default(),
            is_agent_silent: AtomicBool::default(),
            routes,
        })
    }

    fn channels(&self, prefer: Prefer, now: Instant) -> Vec<Channel<'_>> {
        let rest = self.rest.iter().map(|client| Channel::Rest(client));
        let agent = self.agent.iter().map(Channel::Agent);
        let is_silent = self.is_agent_silent();
        if prefer == Prefer::OnlyAgent && !self.routes.agentless {
            return agent.filter(|_| !is_silent).collect();
        }
        let is_rest_bad = lock(&self.rest_penalty_until).is_some_and(|until| now < until);
        let agent_first = match (is_rest_bad, is_silent) {
            (true, false) => true,
            (false, true) => false,
            _ => prefer == Prefer::Agent,
        };
        if agent_first {
            agent.chain(rest).collect()
        } else {
            rest.chain(agent).collect()
        }
    }

    fn is_agent_silent(&self) -> bool {
        self.is_agent_silent.load(Ordering::Acquire)
    }

    /// Remembers whether the agent responded to a request that took so long.
    fn note_agent(&self, responded: bool, took: Duration) {
        if responded || took >= AGENT_PATIENCE {
            self.is_agent_silent.store(!responded, Ordering::Release);
        }
    }
}

impl Clusters {
    /// The cluster's slurmrestd. The caller checks the fence.
    pub(crate) fn slurmrestd(&self, controller: &Key) -> Result<Arc<rest::Client>, NoRoute> {
        let rest = self.cluster(controller).connection()?.rest.clone();
        rest.ok_or_else(|| NoRoute("no RestApi exists".to_owned()))
    }

    /// Makes slurmctld reload these keys of a partition from its files. Requires the agent: only the agent has the files.
    pub async fn restore_partition(
        &self,
        controller: &Key,
        partition: &str,
        keys: &[String],
    ) -> Result<Restored, CommandError> {
        let cluster = self.cluster(controller);
        let connection = cluster.connection()?;
        let agent = connection.agent.as_ref().ok_or_else(no_pod)?;
        let command = PartitionCommand {
            partition: partition.to_owned(),
            restore: keys.to_vec(),
        };
        let fence = &cluster.shared.fence;
        let left = fence.remaining().ok_or(CommandError::NotLeading)?;
        let sent = async {
            let answer = agent.command_partition(&command, next_fence(fence)).await;
            let answer = answer.inspect_err(|error| note_rejection(fence, error));
            answer.map_err(|error| of_agent(&error, || format!("partition {partition:?}")))
        };
        within(left.min(COMMAND_TIMEOUT), sent).await
    }

    /// Reads now why slurmdbd cannot answer from its database. Returns `None` also if Slurm itself cannot be reached,
    /// which says nothing about the database.
    pub async fn database_trouble(&self, controller: &Key) -> Option<String> {
        self.knowledge(controller).known()?;
        let cluster = self.cluster(controller);
        let connection = cluster.connection().ok()?;
        // The agent is tried first: it authenticates as slurmctld, with slurmctld's key, whereas slurmdbd accepts
        // slurmrestd's token whichever key slurmctld has.
        if let Some(agent) = &connection.agent {
            match timeout(READ_TIMEOUT, agent.qos()).await {
                Ok(Ok(_)) => return None,
                Ok(Err(agent::Error::Refused(Refusal::Slurm { detail }))) => return Some(detail),
                Ok(Err(_)) | Err(_) => {}
            }
        }
        match cluster.qos().await {
            Err(ReadError::Failed(why) | ReadError::NoResponse(why)) => Some(why),
            Ok(_) | Err(ReadError::NoRoute(_)) => None,
        }
    }
}

impl Cluster {
    /// Reads nodes, and jobs too if `with_jobs`.
    pub(super) async fn observe(&self, with_jobs: bool) -> Knowledge {
        let seen = if with_jobs {
            self.read(Prefer::Agent, async |channel, at| {
                let observation = request!(channel, observe)?;
                Ok(match channel {
                    Channel::Agent(_) => (Seen::new(observation, at, Source::Agent), true),
                    // If slurmrestd is too old to report which slurmctld responded, the agent may be able to.
                    Channel::Rest(client) => {
                        let seen = Seen::new(observation, at, Source::Unsigned);
                        let is_complete = seen.process.is_some();
                        (seen.of_release(client.release().as_deref()), is_complete)
                    }
                })
            })
            .await
        } else {
            self.read(Prefer::Rest, async |channel, at| {
                let nodes = request!(channel, nodes)?;
                let seen = Seen::of_nodes(nodes.value, at).of_release(nodes.release.as_deref());
                Ok((seen, true))
            })
            .await
        };
        match seen {
            Ok(mut seen) => {
                if seen.source == Source::Unsigned && self.is_agentless() {
                    seen.source = Source::Agentless;
                }
                Knowledge::Known(Arc::new(seen))
            }
            Err(error) => Knowledge::unknown(error.to_string()),
        }
    }

    /// Sends an order to the agent in slurmctld's pod, which is fenced. slurmrestd, which is not fenced, carries orders
    /// only where there is no agent, for example to an external slurmctld. An order without a response is not sent
    /// through another channel: it may still be carried out.
    pub(super) async fn command(&self, order: Order<'_>) -> Result<(), CommandError> {
        let connection = self.connection()?;
        // A response must arrive before another process can become the leader.
        let left = self.shared.fence.remaining().ok_or(CommandError::NotLeading)?;
        if let Some(agent) = &connection.agent {
            let sent = command_agent(agent, order, &self.shared.fence);
            return within(left.min(COMMAND_TIMEOUT), sent).await;
        }
        let client = connection.rest_for_orders.as_ref().ok_or_else(no_pod)?;
        let subject = order.what();
        if let Some(left) = self.unanswered.left(&subject, self.host().instant()) {
            return Err(CommandError::Unclear(format!(
                "slurmrestd has not responded to the previous order and may still carry it out for {} s",
                left.as_secs() + 1
            )));
        }
        let reader = connection.rest.as_ref().ok_or_else(no_pod)?;
        let learned = timeout(left.min(COMMAND_TIMEOUT), client.learn_clock(reader)).await;
        let late = |_| NoRoute("slurmctld's clock is not known: no response".to_owned());
        let is_clock_known = learned.map_err(late)?.map_err(|error| NoRoute(text(error)))?;
        let left = self.shared.fence.remaining().ok_or(CommandError::NotLeading)?;
        let answer = within(left.min(ORDER_TOKEN_LIFETIME), command_rest(client, order)).await;
        if let Err(CommandError::Unclear(_)) = &answer {
            let skew = if is_clock_known { CLOCK_ERROR } else { MAX_CLOCK_SKEW };
            let until = self.host().instant() + ORDER_TOKEN_LIFETIME + skew;
            self.unanswered.note(subject, until);
        }
        answer
    }

    /// The status of the agent in slurmctld's pod, and the UID of that pod.
    pub(super) async fn agent_status(&self) -> Option<(String, Result<agent::Status, agent::Error>)> {
        let connection = self.connection().ok()?;
        let (target, agent) = (connection.routes.agent.as_ref()?, connection.agent.as_ref()?);
        let begun = self.host().instant();
        let status = agent.status().await;
        let responded = !status.as_ref().is_err_and(is_unreachable);
        connection.note_agent(responded, self.host().instant().duration_since(begun));
        Some((target.uid.clone(), status))
    }

    /// All reservations.
    pub(super) async fn reservations(&self) -> Result<Vec<Reservation>, ReadError> {
        self.read(Prefer::Agent, async |channel, _| {
            Ok((request!(channel, reservations)?.value, true))
        })
        .await
    }

    /// The names of all QOS in the database.
    pub(super) async fn qos(&self) -> Result<BTreeSet<String>, ReadError> {
        let all = self.read(Prefer::Rest, async |channel, _| {
            Ok((request!(channel, qos)?.value, true))
        });
        Ok(all.await?.into_iter().map(|qos| qos.name).collect())
    }

    /// All jobs. They are no proof: no process is recorded with them.
    pub(super) async fn jobs(&self) -> Result<Vec<Job>, ReadError> {
        self.read(Prefer::Rest, async |channel, _| {
            Ok((request!(channel, jobs)?.value, true))
        })
        .await
    }

    /// All partitions. slurmrestd does not list hidden ones to users without privileges (26.05), and a state that it reports
    /// would be taken for a person's order.
    pub(super) async fn partitions(&self) -> Result<Vec<Partition>, ReadError> {
        self.read(Prefer::OnlyAgent, async |channel, _| {
            Ok((request!(channel, partitions)?.value, true))
        })
        .await
    }

    /// Tries the channels in order until one returns a complete result. Otherwise returns an incomplete one, if any.
    async fn read<T>(
        &self,
        prefer: Prefer,
        read: impl AsyncFn(Channel<'_>, Timestamp) -> Result<(T, bool), ReadError>,
    ) -> Result<T, ReadError> {
        let connection = self.connection()?;
        let (mut incomplete, mut failures) = (None, Vec::new());
        for channel in connection.channels(prefer, self.host().instant()) {
            match (channel, &connection.agent) {
                (Channel::Rest(client), Some(agent)) => client.use_clock_of(agent),
                (Channel::Agent(_), _) if incomplete.is_some() && connection.is_agent_silent() => break,
                _ => {}
            }
            let begun = self.host().instant();
            let late = |_| ReadError::NoResponse(format!("no response within {} s", READ_TIMEOUT.as_secs()));
            let answer = timeout(READ_TIMEOUT, read(channel, self.now())).await;
            let answer = answer.map_err(late).flatten();
            let now = self.host().instant();
            let name = match channel {
                Channel::Agent(_) => {
                    let responded = !matches!(answer, Err(ReadError::NoResponse(_)));
                    connection.note_agent(responded, now.duration_since(begun));
                    "the agent"
                }
                Channel::Rest(_) => {
                    *lock(&connection.rest_penalty_until) = answer.is_err().then(|| now + REST_PENALTY);
                    "slurmrestd"
                }
            };
            match answer {
                Ok((answer, true)) => return Ok(answer),
                Ok((answer, false)) => incomplete = Some(answer),
                Err(error) => failures.push(format!("{name}: {error}")),
            }
        }
        if failures.is_empty() {
            failures.push("the agent does not respond".to_owned());
        }
        incomplete.ok_or_else(|| ReadError::Failed(failures.join("; ")))
    }

    /// Whether there is nobody but slurmrestd to ask.
    fn is_agentless(&self) -> bool {
        self.connection().is_ok_and(|connection| connection.routes.agentless)
    }

    fn connection(&self) -> Result<Arc<Connection>, NoRoute> {
        let hides_records = lock(&self.memory).hides_records.unwrap_or(true);
        let mut known = lock(&self.connection);
        let routes = route::find(&self.shared.caches, &self.key, hides_records).inspect_err(|_| *known = None)?;
        if let Some(known) = known.as_ref().filter(|known| known.routes == routes) {
            return Ok(Arc::clone(known));
        }
        let connection = Connection::new(routes, self.host()).map_err(|error| NoRoute(error.to_string()))?;
        Ok(Arc::clone(known.insert(Arc::new(connection))))
    }
}

fn no_pod() -> CommandError {
    NoRoute("slurmctld's pod does not run".to_owned()).into()
}

async fn within<T>(limit: Duration, order: impl Future<Output = Result<T, CommandError>>) -> Result<T, CommandError> {
    let late = |_| CommandError::Unclear(format!("no response within {} s", limit.as_secs()));
    timeout(limit, order).await.map_err(late)?
}

async fn command_rest(client: &rest::Client, order: Order<'_>) -> Result<(), CommandError> {
    if let Order::Node(NodeCommand {
        node,
        expect: Some(expected),
        ..
    }) = order
    {
        let now = client.node(node.as_str()).await.map_err(of_rest)?.value.admin_state();
        if now != *expected {
            return Err(CommandError::Changed(now));
        }
    }
    let answer = match order {
        Order::Node(command) => client.command_node(command).await,
        Order::Job(command) => client.command_job(command).await,
        Order::Reservation(command) => client.command_reservation(command).await,
    };
    answer.map_err(of_rest)
}

fn of_rest(error: rest::Error) -> CommandError {
    match error {
        rest::Error::NotFound { what } => CommandError::NotFound(what),
        rest::Error::Lacking { .. } | rest::Error::AgentOnly { .. } | rest::Error::Misread { .. } => {
            NoRoute(text(error)).into()
        }
        // Slurm's error number proves that it read the order; without one, the order may be carried out in part.
        rest::Error::Refused { status, number, text } if status < 500 || number != 0 => CommandError::Refused(text),
        error => CommandError::Unclear(text(error)),
    }
}

async fn command_agent(client: &agent::Client, order: Order<'_>, fence: &Fence) -> Result<(), CommandError> {
    let number = next_fence(fence);
    let answer = match order {
        Order::Node(command) => client.command_node(command, number).await.map(drop),
        Order::Job(command) => client.command_job(command, number).await,
        Order::Reservation(command) => client.command_reservation(command, number).await,
    };
    let answer = answer.inspect_err(|error| note_rejection(fence, error));
    answer.map_err(|error| of_agent(&error, || order.what()))
}

fn of_agent(error: &agent::Error, what: impl FnOnce() -> String) -> CommandError {
    match error {
        agent::Error::StaleFence { .. } => CommandError::NotLeading,
        agent::Error::Clock { .. } => NoRoute(error.to_string()).into(),
        agent::Error::Refused(Refusal::NoSuchNode | Refusal::NoSuchThing) => CommandError::NotFound(what()),
        agent::Error::Refused(Refusal::Changed { now }) => CommandError::Changed(now.clone()),
        agent::Error::Refused(Refusal::Slurm { detail }) => CommandError::Refused(detail.clone()),
        _ if error.is_definite() => CommandError::Refused(error.to_string()),
        _ => CommandError::Unclear(text(error)),
    }
}

impl Order<'_> {
    fn what(self) -> String {
        match self {
            Self::Node(command) => format!("node {:?}", command.node.as_str()),
            Self::Job(command) => format!("job {}", command.job),
            Self::Reservation(command) => format!("reservation {}", command.name()),
        }
    }
}

fn failed(error: impl std::error::Error) -> ReadError {
    ReadError::Failed(text(error))
}

fn failed_by_agent(error: agent::Error) -> ReadError {
    if is_unreachable(&error) {
        ReadError::NoResponse(text(error))
    } else {
        failed(error)
    }
}

fn is_unreachable(error: &agent::Error) -> bool {
    matches!(
        error,
        agent::Error::Transport(slurm::transport::Error::Unreachable { .. })
    )
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
mod tests;
