//! The conversation with one cluster's Slurm.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

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

/// The user slurmctld runs as: it may do everything.
const USER: &str = "slurm";
/// As long as upstream's. For reads.
const TOKEN_LIFETIME: Duration = Duration::from_mins(15);
/// For orders by slurmrestd. One that hangs may pass an order on when it is back, long after we have given up on it; slurmctld
/// refuses it once its token has expired.
const ORDER_TOKEN_LIFETIME: Duration = Duration::from_secs(5);
/// For nodes and jobs together. slurmrestd waits 10 s for slurmctld, then says so.
const LOOK_TIMEOUT: Duration = Duration::from_secs(20);
/// For one command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(15);
/// How much longer an expired token may be taken for a good one.
const CLOCKS_DIFFER: Duration = Duration::from_secs(2);
const OLD_AGENT: &str =
    "the agent in slurmctld's pod is older than the operator and can do so when the pod was made anew";

/// How long a way that failed is tried last.
const OUT_OF_FAVOUR: Duration = Duration::from_secs(30);

/// What a node is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeOrder {
    /// Takes no new job, and why. Without a reason the one that stands there stays.
    Drain { reason: Option<String> },
    /// Takes jobs again, unless it is down.
    Undrain,
    /// Its jobs end at once, and why. Only for a node that is proven dead. Without a reason the one that stands there stays.
    Down { reason: Option<String> },
    /// Takes jobs again, also after it was down.
    Resume,
    /// Its record goes. Slurm refuses while a job runs there.
    Delete,
    /// What stands on it beside its state.
    Describe(NodeDescription),
}

/// What a job is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobOrder {
    /// It ends and waits again.
    Requeue,
    /// It ends.
    Cancel,
}

/// What is sent to a cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Order<'a> {
    /// With the state it was planned on, for orders that change it.
    Node(&'a str, &'a NodeOrder, Option<&'a AdminState>),
    Job(&'a JobHandle, JobOrder),
    Reserve(&'a ReservationRequest),
    Unreserve(&'a ReservationName),
}

/// Why an order was not given, or not obeyed.
#[derive(Debug, Error)]
pub enum CommandError {
    /// This process does not lead any more. Nothing was sent.
    #[error("this operator does not lead any more")]
    NotLeading,
    /// Slurm cannot be reached. Nothing was sent.
    #[error("Slurm cannot be reached: {0}")]
    NoWay(String),
    /// Somebody has changed the node since the order was planned. Nothing was sent.
    #[error("somebody has changed the node in the meantime; it is {0}")]
    Changed(AdminState),
    /// Slurm has no such node, job or reservation.
    #[error("Slurm has no {0}")]
    NotFound(String),
    /// Slurm said no.
    #[error("Slurm refused: {0}")]
    Refused(String),
    /// It may have happened or not; only a look can tell.
    #[error("no clear answer from Slurm: {0}")]
    Unclear(String),
}

/// Orders by slurmrestd that got no answer, and until when they may be carried out all the same.
#[derive(Debug, Default)]
pub(super) struct Unanswered(Mutex<HashMap<String, Instant>>);

impl Unanswered {
    /// For how long nothing else may be ordered of this.
    fn left(&self, subject: &str) -> Option<Duration> {
        let mut all = lock(&self.0);
        let now = Instant::now();
        all.retain(|_, until| *until > now);
        all.get(subject).map(|until| until.duration_since(now))
    }

    fn note(&self, subject: String, life: Duration) {
        let mut all = lock(&self.0);
        all.insert(subject, Instant::now() + life);
    }
}

/// The conversation with one cluster: what was negotiated, and which way is best at the moment.
#[derive(Debug)]
pub(super) struct Connection {
    fingerprint: u64,
    rest: Option<Arc<rest::Client>>,
    /// slurmrestd with short-lived tokens, where it has to carry orders because there is no agent.
    rest_for_orders: Option<rest::Client>,
    agent: Option<agent::Client>,
    /// UID of the agent's pod.
    agent_pod: Option<String>,
    /// Until when slurmrestd is tried last.
    rest_out_of_favour: Mutex<Option<Instant>>,
}

#[derive(Clone, Copy, Debug)]
enum Way<'a> {
    Rest(&'a rest::Client),
    Agent(&'a agent::Client),
}

impl Connection {
    fn new(routes: &Routes) -> Result<Self, String> {
        let signing = SigningKey::new(&routes.key).map_err(|error| error.to_string())?;
        let agent_key = AgentKey::derive(&routes.key).map_err(|error| error.to_string())?;
        let client = |server: &String, lifetime| {
            let issuer = Issuer::new(signing.clone(), USER, lifetime);
            rest::Client::new(host::Host::real(), server, issuer, rest::Options::default())
        };
        let rest = routes.rest.as_ref();
        let rest_for_orders = rest.filter(|_| routes.agentless);
        let rest_for_orders = rest_for_orders.map(|server| client(server, ORDER_TOKEN_LIFETIME));
        let rest = rest.map(|server| Arc::new(client(server, TOKEN_LIFETIME)));
        let agent = routes.agent.as_ref().map(|route| {
            agent::Client::new(
                host::Host::real(),
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
            rest_out_of_favour: Mutex::new(None),
        })
    }

    fn ways(&self) -> Vec<Way<'_>> {
        let mut ways: Vec<Way<'_>> = self
            .rest
            .iter()
            .map(|client| Way::Rest(client))
            .chain(self.agent.iter().map(Way::Agent))
            .collect();
        let disfavoured = *lock(&self.rest_out_of_favour);
        if disfavoured.is_some_and(|until| Instant::now() < until) {
            ways.reverse();
        }
        ways
    }

    fn note(&self, way: Way<'_>, worked: bool) {
        if let Way::Rest(_) = way {
            let mut until = lock(&self.rest_out_of_favour);
            *until = (!worked).then(|| Instant::now() + OUT_OF_FAVOUR);
        }
    }
}

impl Way<'_> {
    fn name(self) -> &'static str {
        match self {
            Way::Rest(_) => "slurmrestd",
            Way::Agent(_) => "the agent",
        }
    }
}

impl Cluster {
    /// Asks for nodes, and for jobs too if they are needed.
    pub(crate) async fn observe(&self, with_jobs: bool) -> Knowledge {
        let connection = match self.connection() {
            Ok(connection) => connection,
            Err(why) => return Knowledge::Unknown { why },
        };
        let mut failures = Vec::new();
        for way in connection.ways() {
            let at = self.now();
            let look = async {
                let nodes = match (way, with_jobs) {
                    (Way::Rest(client), true) => {
                        let seen = Seen::new(client.observe().await.map_err(text)?, at);
                        return Ok::<Seen, String>(seen.of_release(client.release().as_deref()));
                    }
                    (Way::Agent(client), true) => return Ok(Seen::new(client.observe().await.map_err(text)?, at)),
                    (Way::Rest(client), false) => client.nodes().await.map_err(text)?,
                    (Way::Agent(client), false) => client.nodes().await.map_err(text)?,
                };
                Ok(Seen::of_nodes(nodes.value, at).of_release(nodes.release.as_deref()))
            };
            let answer = match timeout(LOOK_TIMEOUT, look).await {
                Ok(answer) => answer,
                Err(_) => Err(format!("no answer within {} s", LOOK_TIMEOUT.as_secs())),
            };
            connection.note(way, answer.is_ok());
            match answer {
                // Where slurmrestd is too old to tell which slurmctld answered, the agent may be able to.
                Ok(seen)
                    if with_jobs
                        && seen.process.is_none()
                        && matches!(way, Way::Rest(_))
                        && connection.agent.is_some() =>
                {
                    failures.push(Ok(seen));
                }
                Ok(seen) => return Knowledge::Known(Arc::new(seen)),
                Err(why) => failures.push(Err(format!("{}: {why}", way.name()))),
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

    /// Sends an order the one way there is: to the agent beside slurmctld, which is fenced. slurmrestd, which is not, carries orders
    /// only where there is no agent: to a slurmctld outside, say. An order that got no answer is not sent by another way: it may still be
    /// carried out.
    pub(crate) async fn command(&self, order: Order<'_>) -> Result<(), CommandError> {
        let connection = self.connection().map_err(CommandError::NoWay)?;
        // What is sent must have been answered before another process can lead.
        let left = self.shared.fence.remaining().ok_or(CommandError::NotLeading)?;
        let late = |left: Duration| CommandError::Unclear(format!("no answer within {} s", left.as_secs()));
        if let Some(agent) = &connection.agent {
            let left = left.min(COMMAND_TIMEOUT);
            let sent = timeout(left, command_agent(agent, order, next_fence(&self.shared.fence)));
            return sent.await.unwrap_or_else(|_| Err(late(left)));
        }
        let Some(client) = &connection.rest_for_orders else {
            return Err(CommandError::NoWay("slurmctld's pod does not run".to_owned()));
        };
        let subject = order.what();
        if let Some(left) = self.unanswered.left(&subject) {
            return Err(CommandError::Unclear(format!(
                "slurmrestd has not answered the order before this one, and may carry it out for another {} s",
                left.as_secs() + 1
            )));
        }
        let left = left.min(ORDER_TOKEN_LIFETIME);
        let answer = timeout(left, command_rest(client, order)).await;
        let answer = answer.unwrap_or_else(|_| Err(late(left)));
        if let Err(CommandError::Unclear(_)) = &answer {
            self.unanswered.note(subject, ORDER_TOKEN_LIFETIME + CLOCKS_DIFFER);
        }
        answer
    }

    pub(crate) fn slurmrestd(&self) -> Result<Arc<rest::Client>, String> {
        let connection = self.connection()?;
        connection.rest.clone().ok_or_else(|| "there is none".to_owned())
    }

    /// Only the agent has the files.
    pub(crate) async fn restore_partition(&self, partition: &str, keys: &[String]) -> Result<Restored, CommandError> {
        let connection = self.connection().map_err(CommandError::NoWay)?;
        let agent = connection.agent.as_ref();
        let agent = agent.ok_or_else(|| CommandError::NoWay("slurmctld's pod does not run".to_owned()))?;
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
            // It is as old as its pod.
            Ok(Err(agent::Error::Refused(Refusal::NotFound))) => Ok(Restored::none_of(keys, OLD_AGENT)),
            Ok(answer) => answer.map_err(|error| of_agent(&error, || format!("partition {partition:?}"))),
            Err(_) => Err(CommandError::Unclear(format!("no answer within {} s", left.as_secs()))),
        }
    }

    /// All reservations, or why they are not known.
    pub(crate) async fn reservations(&self) -> Result<Vec<Reservation>, String> {
        self.ask(async |way| match way {
            Way::Rest(client) => client.reservations().await.map(|answer| answer.value).map_err(text),
            Way::Agent(client) => client.reservations().await.map(|answer| answer.value).map_err(text),
        })
        .await
    }

    /// The names of all QOS in the database, or why they are not known.
    pub(crate) async fn qos(&self) -> Result<BTreeSet<String>, String> {
        let all = self
            .ask(async |way| match way {
                Way::Rest(client) => client.qos().await.map(|answer| answer.value).map_err(text),
                Way::Agent(client) => client.qos().await.map(|answer| answer.value).map_err(text),
            })
            .await?;
        Ok(all.into_iter().map(|qos| qos.name).collect())
    }

    /// Why slurmdbd gives no answer out of its database. The agent is asked first: it asks as slurmctld, with slurmctld's key,
    /// where slurmrestd has a token that slurmdbd takes whatever slurmctld has.
    pub(crate) async fn database_trouble(&self) -> Option<String> {
        let connection = self.connection().ok()?;
        if let Some(agent) = &connection.agent {
            match timeout(LOOK_TIMEOUT, agent.qos()).await {
                Ok(Ok(_)) => return None,
                Ok(Err(agent::Error::Refused(Refusal::Slurm { detail }))) => return Some(detail),
                Ok(Err(_)) | Err(_) => {}
            }
        }
        self.qos().await.err()
    }

    /// What the agent beside slurmctld says of itself, and the UID of its pod.
    pub(crate) async fn agent_status(&self) -> Option<(String, Result<agent::Status, agent::Error>)> {
        let connection = self.connection().ok()?;
        let agent = connection.agent.as_ref()?;
        Some((connection.agent_pod.clone()?, agent.status().await))
    }

    /// All jobs, or why they are not known. They prove nothing.
    pub(crate) async fn jobs(&self) -> Result<Vec<Job>, String> {
        self.ask(async |way| match way {
            Way::Rest(client) => client.jobs().await.map(|answer| answer.value).map_err(text),
            Way::Agent(client) => client.jobs().await.map(|answer| answer.value).map_err(text),
        })
        .await
    }

    /// All partitions, or why they are not known.
    pub(crate) async fn partitions(&self) -> Result<Vec<Partition>, String> {
        self.ask(async |way| match way {
            Way::Rest(client) => client.partitions().await.map(|answer| answer.value).map_err(text),
            Way::Agent(client) => client.partitions().await.map(|answer| answer.value).map_err(text),
        })
        .await
    }

    async fn ask<T>(&self, question: impl AsyncFn(Way<'_>) -> Result<T, String>) -> Result<T, String> {
        let connection = self.connection()?;
        let mut failures = Vec::new();
        for way in connection.ways() {
            let answer = match timeout(LOOK_TIMEOUT, question(way)).await {
                Ok(answer) => answer,
                Err(_) => Err(format!("no answer within {} s", LOOK_TIMEOUT.as_secs())),
            };
            connection.note(way, answer.is_ok());
            match answer {
                Ok(answer) => return Ok(answer),
                Err(why) => failures.push(format!("{}: {why}", way.name())),
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
        let connection = Arc::new(Connection::new(&routes)?);
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
        rest::Error::Lacking { .. } | rest::Error::Misread { .. } => CommandError::NoWay(text(error)),
        rest::Error::Refused { status, text, .. } if *status < 500 => CommandError::Refused(text.clone()),
        // Slurm's own number says that it understood; without one a failure halfway looks the same.
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

/// A reason as the agent takes it.
fn one_line(reason: &str) -> String {
    let plain: String = reason.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut line = plain.trim().to_owned();
    while line.len() > 1024 {
        line.pop();
    }
    if line.is_empty() { "unknown".to_owned() } else { line }
}

/// An error with its causes.
fn text(error: impl std::error::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !words.contains(&more) {
            words = format!("{words}: {more}");
        }
        cause = error.source();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn nothing_else_is_ordered_while_an_unanswered_order_may_be_carried_out() {
        let unanswered = Unanswered::default();
        let life = ORDER_TOKEN_LIFETIME + CLOCKS_DIFFER;
        unanswered.note("node \"a\"".to_owned(), life);
        assert_eq!(unanswered.left("node \"a\""), Some(life));
        assert_eq!(unanswered.left("node \"b\""), None);
        tokio::time::advance(life).await;
        assert_eq!(unanswered.left("node \"a\""), None);
        assert!(unanswered.0.lock().unwrap().is_empty(), "nothing is kept");
    }
}
