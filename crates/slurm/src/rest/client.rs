use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use hyper::{Method, StatusCode};

use super::error::Error;
use super::http::{Http, Reply};
use super::node_update::NodeUpdate;
use super::observation::{Observation, Process};
use super::version::ApiVersion;
use crate::answer::{Answer, Payload, Ping, ServedConf, Warning, decode, decode_empty};
use crate::job::Job;
use crate::node::Node;
use crate::partition::Partition;
use crate::token::Issuer;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// For one request, from connecting to the last byte.
    pub timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        // Longer than the 10 s that slurmrestd waits for slurmctld (MessageTimeout), so that its own words arrive.
        Self {
            timeout: Duration::from_secs(15),
        }
    }
}

/// A connection to the slurmrestd of one cluster. It costs nothing until it is used.
#[derive(Debug)]
pub struct Client {
    /// Without a slash at the end.
    server: String,
    issuer: Issuer,
    http: Http,
    negotiated: Mutex<Option<Negotiated>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Negotiated {
    version: ApiVersion,
    release: Option<String>,
}

impl Client {
    /// `server` is an address such as `http://slurm-restapi.slurm:6820`.
    pub fn new(server: &str, issuer: Issuer, options: Options) -> Self {
        Self {
            server: server.trim_end_matches('/').to_owned(),
            issuer,
            http: Http::new(options.timeout),
            negotiated: Mutex::new(None),
        }
    }

    /// Which slurmctlds are there. It answers at once where other calls wait ten seconds for a slurmctld that is not.
    pub async fn ping(&self) -> Result<Answer<Vec<Ping>>, Error> {
        self.get("ping/", "ping").await
    }

    pub async fn nodes(&self) -> Result<Answer<Vec<Node>>, Error> {
        self.get("nodes/", "list of nodes").await
    }

    pub async fn node(&self, name: &str) -> Result<Answer<Node>, Error> {
        let what = format!("node {name:?}");
        let path = format!("node/{}", path_segment(name));
        let answer = match self.get::<Vec<Node>>(&path, &what).await {
            // For a node it does not have, slurmrestd 26.05 answers "error 0, No error, Failure to query node" with HTTP
            // 200. Deletions follow from a node being gone, so that is not taken for it; the whole list is.
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
            warnings: answer.warnings,
            release: answer.release,
        })
    }

    pub async fn jobs(&self) -> Result<Answer<Vec<Job>>, Error> {
        self.get("jobs/", "list of jobs").await
    }

    pub async fn partitions(&self) -> Result<Answer<Vec<Partition>>, Error> {
        self.get("partitions/", "list of partitions").await
    }

    /// The configuration slurmctld runs with. `None` if this slurmrestd cannot tell.
    pub async fn served_conf(&self) -> Result<Option<ServedConf>, Error> {
        match self.version().await? {
            ApiVersion::V45 => self.get("conf", "configuration").await.map(|answer| Some(answer.value)),
            ApiVersion::V44 => Ok(None),
        }
    }

    /// Nodes, then jobs, and which process of slurmctld gave both.
    pub async fn observe(&self) -> Result<Observation, Error> {
        let before = self.process().await?;
        let nodes = self.nodes().await?.value;
        let jobs = self.jobs().await?.value;
        let process = match before {
            Some(before) => self.process().await?.filter(|after| *after == before),
            None => None,
        };
        Ok(Observation { nodes, jobs, process })
    }

    async fn process(&self) -> Result<Option<Process>, Error> {
        Ok(self.served_conf().await?.and_then(Process::of_conf))
    }

    /// A field Slurm did not understand is in the warnings, and nowhere else.
    pub async fn update_node(&self, name: &str, update: &NodeUpdate) -> Result<Vec<Warning>, Error> {
        let body = serde_json::to_vec(update).map_err(|error| Error::Malformed {
            what: "our own request".to_owned(),
            source: Some(error.into()),
        })?;
        self.command(Method::POST, name, Some(body)).await
    }

    /// Removes the record of a dynamic node. Slurm refuses while a job runs there, but not while one is suspended.
    pub async fn delete_node(&self, name: &str) -> Result<Vec<Warning>, Error> {
        self.command(Method::DELETE, name, None).await
    }

    async fn command(&self, method: Method, node: &str, body: Option<Vec<u8>>) -> Result<Vec<Warning>, Error> {
        let what = format!("node {node:?}");
        let reply = self
            .request(method, &format!("node/{}", path_segment(node)), body)
            .await?;
        let answer = decode_empty(&reply.body).map_err(|error| self.decoding_failed(reply.status, &what, error));
        self.accept(reply.status, &what, answer).map(|answer| answer.warnings)
    }

    async fn get<T: Payload>(&self, path: &str, what: &str) -> Result<Answer<T>, Error> {
        let reply = self.request(Method::GET, path, None).await?;
        let answer = decode::<T>(&reply.body).map_err(|error| self.decoding_failed(reply.status, what, error));
        self.accept(reply.status, what, answer)
    }

    fn decoding_failed(&self, status: StatusCode, what: &str, error: crate::answer::DecodeError) -> Error {
        let error = Error::of_decoding(status, what, error);
        if matches!(error, Error::Unauthorized { .. }) {
            self.issuer.forget();
        }
        error
    }

    /// An answer without errors still has to come with a status of success, and tells which slurmrestd gave it.
    fn accept<T>(&self, status: StatusCode, what: &str, answer: Result<Answer<T>, Error>) -> Result<Answer<T>, Error> {
        let answer = answer?;
        if !status.is_success() {
            return Err(Error::of_status(status, what));
        }
        let mut negotiated = self.negotiated.lock().unwrap_or_else(PoisonError::into_inner);
        // Another release answers than the one we negotiated with: it may know a newer version.
        if negotiated.as_ref().is_some_and(|known| known.release != answer.release) {
            *negotiated = None;
        }
        Ok(answer)
    }

    async fn request(&self, method: Method, path: &str, body: Option<Vec<u8>>) -> Result<Reply, Error> {
        let version = self.version().await?;
        let reply = self.send(version, method.clone(), path, body.clone()).await?;
        if reply.status != StatusCode::NOT_FOUND {
            return Ok(reply);
        }
        // This is how a slurmrestd answers that was replaced by one without our version.
        match self.negotiate().await? {
            newer if newer != version => self.send(newer, method, path, body).await,
            _ => Ok(reply),
        }
    }

    async fn version(&self) -> Result<ApiVersion, Error> {
        let known = self
            .negotiated
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()
            .map(|known| known.version);
        match known {
            Some(version) => Ok(version),
            None => self.negotiate().await,
        }
    }

    async fn negotiate(&self) -> Result<ApiVersion, Error> {
        for version in ApiVersion::ALL {
            let reply = self.send(version, Method::GET, "ping/", None).await?;
            if reply.status == StatusCode::NOT_FOUND {
                continue;
            }
            let answer =
                decode::<Vec<Ping>>(&reply.body).map_err(|error| self.decoding_failed(reply.status, "ping", error))?;
            if !reply.status.is_success() {
                return Err(Error::of_status(reply.status, "ping"));
            }
            let negotiated = Negotiated {
                version,
                release: answer.release,
            };
            *self.negotiated.lock().unwrap_or_else(PoisonError::into_inner) = Some(negotiated);
            return Ok(version);
        }
        Err(Error::Unsupported)
    }

    async fn send(
        &self,
        version: ApiVersion,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Reply, Error> {
        let token = self.issuer.token(SystemTime::now()).map_err(|error| Error::Malformed {
            what: "our own token".to_owned(),
            source: Some(error.into()),
        })?;
        self.http
            .exchange(
                method,
                &format!("{}/slurm/{version}/{path}", self.server),
                token.secret(),
                body,
            )
            .await
    }
}

/// A name as one part of a path, whatever is in it.
fn path_segment(name: &str) -> String {
    let escape = |byte: u8| {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    };
    name.bytes().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::path_segment;

    #[test]
    fn a_name_cannot_leave_its_place_in_the_path() {
        assert_eq!(path_segment("slinky-0"), "slinky-0");
        assert_eq!(path_segment("../ä?"), "..%2F%C3%A4%3F");
    }
}
