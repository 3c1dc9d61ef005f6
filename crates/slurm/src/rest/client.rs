use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use host::Host;
use hyper::body::Bytes;
use hyper::{Method, Request, Response, StatusCode, header};
use serde::Serialize;

use super::body::{render_node, render_reservation};
use super::error::Error;
use super::observation::{Observation, Process};
use crate::agent::{self, JobAction, JobCommand, NodeAction, NodeCommand, ReservationCommand};
use crate::answer::{
    Answer, DecodeError, JobResult, Payload, Ping, Qos, RunningConf, ServedConf, decode, decode_empty,
};
use crate::job::Job;
use crate::node::Node;
use crate::partition::Partition;
use crate::remote_clock::RemoteClock;
use crate::reservation::Reservation;
use crate::rpc::{Incomparable, LivePartition};
use crate::token::Issuer;
use crate::transport::{self, Http};

/// The parts of slurmrestd's API: of slurmctld, and of the database.
const SLURM: &str = "slurm";
const SLURMDB: &str = "slurmdb";

/// `ESLURM_ALREADY_DONE`.
const ALREADY_DONE: i64 = 2021;
/// `ESLURM_JOB_PENDING`.
const JOB_PENDING: i64 = 2024;

/// The supported versions of Slurm's data parser.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ApiVersion {
    /// Slurm 24.11 to 26.05.
    V42,
    /// Slurm 25.11 and 26.05.
    V44,
    /// Slurm 26.05.
    V45,
}

impl ApiVersion {
    /// In the order in which they are tried.
    pub const ALL: [Self; 3] = [Self::V45, Self::V44, Self::V42];
}

impl fmt::Display for ApiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V42 => "v0.0.42",
            Self::V44 => "v0.0.44",
            Self::V45 => "v0.0.45",
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// For one request, from connecting to the last byte.
    pub timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        // Longer than the 10 s that slurmrestd waits for slurmctld (MessageTimeout), so that its own error arrives.
        Self {
            timeout: Duration::from_secs(15),
        }
    }
}

/// The client of the slurmrestd of one cluster. It connects when it is first used.
#[derive(Debug)]
pub struct Client {
    /// Without a trailing slash.
    server: String,
    issuer: Issuer,
    options: Options,
    host: Host,
    http: Http,
    negotiated: Mutex<Option<Negotiated>>,
    /// slurmctld's, which decides when a token expires.
    clock: RemoteClock,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Negotiated {
    version: ApiVersion,
    release: Option<String>,
}

impl Client {
    /// `server` is an address such as `http://slurm-restapi.slurm:6820`.
    pub fn new(host: Host, server: &str, issuer: Issuer, options: Options) -> Self {
        Self {
            server: server.trim_end_matches('/').to_owned(),
            issuer,
            options,
            http: Http::new(host.clone()),
            host,
            negotiated: Mutex::new(None),
            clock: RemoteClock::default(),
        }
    }

    /// Takes the offset of slurmctld's clock from a client that has just read it: one with tokens of a few seconds could not.
    /// Returns whether it is known: an older slurmrestd does not show it.
    pub async fn learn_clock(&self, reader: &Self) -> Result<bool, Error> {
        let conf = reader.served_conf().await?;
        if let Some(now) = conf.and_then(|conf| i64::try_from(conf.now).ok()) {
            self.clock.note(&self.host, now);
        }
        Ok(conf.is_some())
    }

    /// Takes the offset of slurmctld's clock from the agent in its pod, if the agent has shown it.
    pub fn use_clock_of(&self, agent: &agent::Client) {
        if let Some(offset) = agent.clock_offset() {
            self.clock.set_offset(offset);
        }
    }

    /// Returns which slurmctlds respond. It does so at once where other requests wait ten seconds for an absent slurmctld.
    pub async fn ping(&self) -> Result<Answer<Vec<Ping>>, Error> {
        self.get("ping/", "ping").await
    }

    pub async fn nodes(&self) -> Result<Answer<Vec<Node>>, Error> {
        self.get("nodes/", "list of nodes").await
    }

    pub async fn node(&self, name: &str) -> Result<Answer<Node>, Error> {
        let what = format!("node {name:?}");
        let path = format!("node/{}", path_segment(name)?);
        let answer = match self.get::<Vec<Node>>(&path, &what).await {
            // For a missing node, slurmrestd 26.05 responds "error 0, No error, Failure to query node" with HTTP 200. A missing
            // node leads to deletions, so the list of all nodes decides.
            Err(Error::Refused { number: 0, .. }) => self.nodes().await?,
            other => other?,
        };
        let node = answer
            .value
            .into_iter()
            .find(|node| node.name == name)
            .ok_or(Error::NotFound { what })?;
        Ok(Answer {
            value: node,
            release: answer.release,
        })
    }

    pub async fn jobs(&self) -> Result<Answer<Vec<Job>>, Error> {
        self.get("jobs/", "list of jobs").await
    }

    pub async fn partitions(&self) -> Result<Answer<Vec<Partition>>, Error> {
        self.get("partitions/", "list of partitions").await
    }

    /// Returns the partitions with all settings that can be changed, which needs v0.0.45.
    pub async fn live_partitions(&self) -> Result<Vec<LivePartition>, Error> {
        self.needs(ApiVersion::V45, "change partitions").await?;
        let shown = self.partitions().await?.value.into_iter();
        let live: Result<_, Incomparable> = shown.map(LivePartition::try_from).collect();
        Ok(live.map_err(transport::Error::invalid)?)
    }

    /// Creates a partition, or changes the existing one.
    pub(super) async fn write_partition(&self, name: &str, body: &impl Serialize) -> Result<(), Error> {
        self.needs(ApiVersion::V45, "change partitions").await?;
        let what = format!("partition {name:?}");
        let written = self.command(Method::POST, "partitions/", Some(body_of(body)?), &what);
        match written.await {
            // A missing partition is created, so the error is about its nodes.
            Err(Error::NotFound { .. }) => Err(unknown_nodes()),
            answer => answer,
        }
    }

    /// Slurm refuses while the partition has jobs or reservations, but not while its last job is completing.
    pub async fn delete_partition(&self, name: &str) -> Result<(), Error> {
        self.needs(ApiVersion::V45, "delete partitions").await?;
        let path = format!("partition/{}", path_segment(name)?);
        let what = format!("partition {name:?}");
        self.command(Method::DELETE, &path, None, &what).await
    }

    /// Returns the QOS of the accounting database. An error without a database.
    pub async fn qos(&self) -> Result<Answer<Vec<Qos>>, Error> {
        let what = "list of QOS";
        let reply = self.request(SLURMDB, Method::GET, "qos/", None).await?;
        self.decoded(&reply, what)
    }

    /// Returns the release of slurmrestd, such as `26.05.5`.
    pub fn release(&self) -> Option<String> {
        self.negotiated().as_ref()?.release.clone()
    }

    /// Returns the configuration slurmctld runs with. `None` before v0.0.45.
    pub async fn served_conf(&self) -> Result<Option<ServedConf>, Error> {
        match self.version().await? {
            ApiVersion::V45 => self.get("conf", "configuration").await.map(|answer| Some(answer.value)),
            ApiVersion::V44 | ApiVersion::V42 => Ok(None),
        }
    }

    /// Returns settings of the slurm.conf that slurmctld runs with.
    pub async fn running_conf(&self) -> Result<RunningConf, Error> {
        self.needs(ApiVersion::V45, "show the configuration").await?;
        self.get("conf", "configuration").await.map(|answer| answer.value)
    }

    async fn needs(&self, since: ApiVersion, what: &'static str) -> Result<(), Error> {
        if self.version().await? < since {
            return Err(Error::Lacking { what, since });
        }
        Ok(())
    }

    /// Reads nodes, then jobs, and which process of slurmctld reported both.
    pub async fn observe(&self) -> Result<Observation, Error> {
        let process = || async { Ok(self.served_conf().await?.and_then(Process::of_conf)) };
        Observation::read(process, self.nodes(), self.jobs()).await
    }

    /// Slurm refuses to delete a node while a job runs there, but not while one is suspended. The caller compares the state that the
    /// command expects.
    pub async fn command_node(&self, NodeCommand { node, action, .. }: &NodeCommand) -> Result<(), Error> {
        let path = format!("node/{}", path_segment(node.as_str())?);
        let (method, body) = match (render_node(action), action) {
            (Some(body), _) => (Method::POST, Some(body_of(&body)?)),
            (None, NodeAction::Delete) => (Method::DELETE, None),
            (None, _) => {
                let what = "create or start a node";
                return Err(Error::AgentOnly { what });
            }
        };
        let what = format!("node {:?}", node.as_str());
        self.command(method, &path, body, &what).await
    }

    pub async fn command_job(&self, JobCommand { job, action }: &JobCommand) -> Result<(), Error> {
        let (method, path) = match action {
            JobAction::Requeue => {
                self.needs(ApiVersion::V45, "requeue a job").await?;
                // Slurm's API has a GET for it.
                (Method::GET, format!("job/{job}/requeue"))
            }
            JobAction::Cancel => (Method::DELETE, format!("job/{job}")),
        };
        let what = format!("job {job}");
        let results: Vec<JobResult> = self.exchange(method, &path, &what).await?.value;
        // A job that does not run any more is a success.
        let mut errors = results.iter().map(JobResult::error);
        let failed = errors.find(|(number, _)| !matches!(*number, 0 | ALREADY_DONE | JOB_PENDING));
        match failed {
            Some((number, text)) => Err(Error::of_job(&what, number, text)),
            None => Ok(()),
        }
    }

    pub async fn reservations(&self) -> Result<Answer<Vec<Reservation>>, Error> {
        self.get("reservations/", "list of reservations").await
    }

    pub async fn command_reservation(&self, command: &ReservationCommand) -> Result<(), Error> {
        self.needs(ApiVersion::V44, "change reservations").await?;
        let name = command.name().as_str();
        let what = format!("reservation {name:?}");
        let ReservationCommand::Reserve(request) = command else {
            let path = format!("reservation/{}", path_segment(name)?);
            return self.command(Method::DELETE, &path, None, &what).await;
        };
        let body = body_of(&render_reservation(request))?;
        match self.command(Method::POST, "reservation", Some(body), &what).await {
            // A missing reservation is created, so the error is about its nodes.
            Err(Error::NotFound { .. }) => Err(unknown_nodes()),
            answer => answer,
        }
    }

    async fn command(&self, method: Method, path: &str, body: Option<Vec<u8>>, what: &str) -> Result<(), Error> {
        let reply = self.request(SLURM, method, path, body).await?;
        self.accept(reply.status(), what, decode_empty(reply.body())).map(drop)
    }

    async fn get<T: Payload>(&self, path: &str, what: &str) -> Result<Answer<T>, Error> {
        self.exchange(Method::GET, path, what).await
    }

    async fn exchange<T: Payload>(&self, method: Method, path: &str, what: &str) -> Result<Answer<T>, Error> {
        let reply = self.request(SLURM, method, path, None).await?;
        self.decoded(&reply, what)
    }

    fn decoded<T: Payload>(&self, reply: &Response<Bytes>, what: &str) -> Result<Answer<T>, Error> {
        self.accept(reply.status(), what, decode(reply.body()))
    }

    /// Checks the status of a decoded response, and notes the release of slurmrestd.
    fn accept<T>(
        &self,
        status: StatusCode,
        what: &str,
        decoded: Result<Answer<T>, DecodeError>,
    ) -> Result<Answer<T>, Error> {
        let answer = decoded.map_err(|error| Error::of_decoding(status, what, error));
        if matches!(answer, Err(Error::Unauthorized { .. })) {
            self.issuer.forget();
        }
        let answer = answer?;
        if !status.is_success() {
            return Err(Error::of_status(status, what));
        }
        let mut negotiated = self.negotiated();
        // slurmrestd was replaced since the negotiation and may support a newer version.
        if negotiated.as_ref().is_some_and(|known| known.release != answer.release) {
            *negotiated = None;
        }
        Ok(answer)
    }

    async fn request(
        &self,
        part: &'static str,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Response<Bytes>, Error> {
        let version = self.version().await?;
        let reply = self.send(part, version, method.clone(), path, body.clone()).await?;
        if reply.status() != StatusCode::NOT_FOUND {
            return Ok(reply);
        }
        // slurmrestd may have been replaced by one that does not support the version.
        match self.negotiate().await? {
            newer if newer != version => self.send(part, newer, method, path, body).await,
            _ => Ok(reply),
        }
    }

    fn negotiated(&self) -> MutexGuard<'_, Option<Negotiated>> {
        self.negotiated.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn version(&self) -> Result<ApiVersion, Error> {
        let known = self.negotiated().as_ref().map(|known| known.version);
        match known {
            Some(version) => Ok(version),
            None => self.negotiate().await,
        }
    }

    async fn negotiate(&self) -> Result<ApiVersion, Error> {
        for version in ApiVersion::ALL {
            let reply = self.send(SLURM, version, Method::GET, "ping/", None).await?;
            if reply.status() == StatusCode::NOT_FOUND {
                continue;
            }
            let answer: Answer<Vec<Ping>> = self.decoded(&reply, "ping")?;
            let negotiated = Negotiated {
                version,
                release: answer.release,
            };
            *self.negotiated() = Some(negotiated);
            return Ok(version);
        }
        Err(Error::Unsupported)
    }

    async fn send(
        &self,
        part: &'static str,
        version: ApiVersion,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Response<Bytes>, Error> {
        let token = self
            .issuer
            .token(self.clock.now(&self.host))
            .map_err(|source| Error::Encode {
                what: "a token",
                source,
            })?;
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}/{part}/{version}/{path}", self.server))
            .header("X-SLURM-USER-TOKEN", token.secret())
            .header(header::ACCEPT, "application/json");
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let body = body.unwrap_or_default();
        Ok(self.http.exchange(request, body, self.options.timeout).await?)
    }
}

fn body_of(request: &impl Serialize) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(request).map_err(|source| Error::Encode {
        what: "a request",
        source,
    })
}

/// The meaning of Slurm's "invalid node name" for a list of nodes.
fn unknown_nodes() -> Error {
    Error::Refused {
        status: StatusCode::UNPROCESSABLE_ENTITY.as_u16(),
        number: 0,
        text: "Slurm does not know all of its nodes".to_owned(),
    }
}

/// Returns a name as one segment of a path. Measured on 26.05.5: `DELETE partition/t` deletes the partition `true`, and `007` means
/// `7`.
fn path_segment(name: &str) -> Result<String, Error> {
    let words = [
        "t", "f", "true", "false", "y", "n", "yes", "no", "on", "off", "null", "~",
    ];
    let is_word = words.iter().any(|word| name.eq_ignore_ascii_case(word));
    let digits = name.trim_start_matches("0x").trim_start_matches("0X");
    let is_hexadecimal = digits.len() < name.len() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    // slurmrestd keeps plain digits.
    let is_plain = name == "0" || (!name.starts_with('0') && name.bytes().all(|byte| byte.is_ascii_digit()));
    if is_word || is_hexadecimal || (!is_plain && name.parse::<f64>().is_ok()) {
        return Err(Error::Misread { name: name.to_owned() });
    }
    let escape = |byte: u8| {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    };
    Ok(name.bytes().map(escape).collect())
}

#[cfg(test)]
mod tests {
    use super::path_segment;

    #[test]
    fn a_name_stays_one_segment_of_the_path() {
        assert_eq!(path_segment("slinky-0").unwrap(), "slinky-0");
        assert_eq!(path_segment("../ä?").unwrap(), "..%2F%C3%A4%3F");
    }

    #[test]
    fn a_name_that_slurmrestd_would_misread_is_not_sent() {
        for name in [
            "t", "F", "yes", "NO", "off", "null", "~", "007", "0x10", "1e3", "1.50", "1.", "inf", "nan", "Infinity",
            "+5", "-3",
        ] {
            assert!(path_segment(name).is_err(), "{name}");
        }
        for name in ["tr", "none", "7", "10", "0", "e5", "1-2", "5g", "n1", "on1", "0b1"] {
            assert_eq!(path_segment(name).unwrap(), name);
        }
    }
}
