//! One request and one response per connection, as in Slurm's own programs.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use host::Host;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::config::{self, ServedFile};
use super::error::Error;
use super::frame::{Frame, MAX_FRAME, MessageType};
use super::job;
use super::live_conf;
use super::node::{self, NodeUpdate};
use super::node_info::{self, LiveNode};
use super::partition::{self, LivePartition, PartitionUpdate};
use super::registration::{self, SlurmKey};
use super::return_code::ReturnCode;
use super::slurmdbd;
use super::version::Version;
use super::wire::{Fields as _, Malformed, Reader, Unpackable};
use crate::answer::ServedConf;
use crate::node::AdminState;
use crate::token::Issuer;
use crate::transport::{self, within};

/// The beginning of the response to a message in an unknown version: slurmctld 26.05 serves metrics on the same port and takes the
/// message for an HTTP request (measured). Older releases respond with an authentication error.
const NO_SUCH_VERSION: &[u8; 4] = b"HTTP";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// For one request, from connecting to the last byte.
    pub timeout: Duration,
    /// The version of the first request.
    pub newest: Version,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            // The default of MessageTimeout.
            timeout: Duration::from_secs(10),
            newest: Version::NEWEST,
        }
    }
}

/// The client of one slurmctld. It connects for each request.
#[derive(Debug)]
pub struct Client {
    host: Host,
    /// `host:port`.
    address: String,
    issuer: Issuer,
    options: Options,
    version: Mutex<Version>,
}

impl Client {
    pub fn new(host: Host, address: impl Into<String>, issuer: Issuer, options: Options) -> Self {
        Self {
            host,
            address: address.into(),
            issuer,
            options,
            version: Mutex::new(options.newest),
        }
    }

    /// Returns the version that slurmctld last understood; the newest before the first request.
    pub fn version(&self) -> Version {
        *self.version.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub async fn ping(&self) -> Result<(), Error> {
        self.command(MessageType::PING, |_| Ok(Vec::new())).await
    }

    /// Returns the files slurmctld serves to nodes. After a failed reconfigure they can differ from those it runs with, which
    /// [`live_conf`](Self::live_conf) shows.
    pub async fn served_files(&self) -> Result<Vec<ServedFile>, Error> {
        let response = self.request(MessageType::CONFIG, |_| config::pack_request()).await?;
        let body = response.body_of(MessageType::RESPONSE_CONFIG)?;
        Ok(config::unpack_served_files(body)?)
    }

    /// Returns the process of slurmctld and the hash of the slurm.conf it runs with.
    pub async fn live_conf(&self) -> Result<ServedConf, Error> {
        let request = Frame::new(live_conf::VERSION, MessageType::BUILD_INFO, live_conf::pack_request()?);
        let response = self.exchange(&request).await?;
        let body = response.body_of(MessageType::RESPONSE_BUILD_INFO)?;
        Ok(live_conf::unpack_live_conf(body)?)
    }

    /// Returns all partitions, including hidden ones.
    pub async fn partitions(&self) -> Result<Vec<LivePartition>, Error> {
        let body = partition::pack_request()?;
        let request = Frame::new(partition::LIVE_VERSION, MessageType::PARTITION_INFO, body);
        let response = self.exchange(&request).await?;
        let body = response.body_of(MessageType::RESPONSE_PARTITION_INFO)?;
        Ok(partition::unpack_partitions(body)?)
    }

    /// Refused with [`ReturnCode::INVALID_PARTITION_NAME`] also if a partition of that name exists. The next reconfigure removes the
    /// partition unless slurm.conf has it.
    pub async fn create_partition(&self, partition: &PartitionUpdate) -> Result<(), Error> {
        self.command(MessageType::CREATE_PARTITION, |version| partition.pack(version))
            .await
    }

    /// Success does not mean that everything was applied: Slurm ignores some values silently. A refusal does not mean that
    /// nothing was.
    pub async fn update_partition(&self, partition: &PartitionUpdate) -> Result<(), Error> {
        self.command(MessageType::UPDATE_PARTITION, |version| partition.pack(version))
            .await
    }

    /// Refused as [in use](ReturnCode::PARTITION_IN_USE) while it has jobs or reservations, but not while its last job is
    /// completing.
    pub async fn delete_partition(&self, name: &str) -> Result<(), Error> {
        self.command(MessageType::DELETE_PARTITION, |_| partition::pack_name(name))
            .await
    }

    /// Returns the administrative state of a node; `None` if slurmctld has no such node.
    pub async fn admin_state(&self, node: &str) -> Result<Option<AdminState>, Error> {
        let body = node_info::pack_request(node)?;
        let request = Frame::new(node_info::VERSION, MessageType::NODE_INFO_SINGLE, body);
        let response = match self.exchange(&request).await {
            Err(Error::Refused { code, .. }) if code == ReturnCode::INVALID_NODE_NAME => return Ok(None),
            response => response?,
        };
        let body = response.body_of(MessageType::RESPONSE_NODE_INFO)?;
        Ok(node_info::unpack_admin_state(body, node)?)
    }

    /// Returns slurmctld's time and all nodes, or `None` if they have not changed since its time `last`.
    pub async fn nodes(&self, last: u64) -> Result<Option<(u64, Vec<LiveNode>)>, Error> {
        let body = node_info::pack_list_request(last)?;
        let request = Frame::new(node_info::VERSION, MessageType::NODE_INFO, body);
        let response = match self.exchange(&request).await {
            Err(Error::Refused { code, .. }) if code == ReturnCode::NO_CHANGE => return Ok(None),
            response => response?,
        };
        let body = response.body_of(MessageType::RESPONSE_NODE_INFO)?;
        Ok(Some(node_info::unpack_nodes(body)?))
    }

    /// Makes the slurmd at the address, `host:port`, register with slurmctld.
    pub async fn request_registration(&self, slurmd: &str, key: &SlurmKey) -> Result<(), Error> {
        let packed = registration::pack_request(key, self.host.now())?;
        registration::read_response(&self.send(slurmd, &packed).await?)
    }

    pub async fn update_node(&self, node: &NodeUpdate) -> Result<(), Error> {
        self.command(MessageType::UPDATE_NODE, |version| node.pack(version))
            .await
    }

    /// `line` is one of slurm.conf, `NodeName=n1 CPUs=4 State=FUTURE`. Slurm accepts the states FUTURE, CLOUD and EXTERNAL.
    pub async fn create_node(&self, line: &str) -> Result<(), Error> {
        self.command(MessageType::CREATE_NODE, |version| node::pack_line(version, line))
            .await
    }

    /// Removes the records of dynamic nodes. Slurm refuses while a job runs there, but not while one is suspended.
    pub async fn delete_nodes(&self, names: &str) -> Result<(), Error> {
        let node = NodeUpdate::new(names);
        self.command(MessageType::DELETE_NODE, |version| node.pack(version))
            .await
    }

    /// Ends a job with this status, as of wait(2): as a node does for a script, and srun or salloc for an allocation.
    pub async fn complete_job(&self, job: u32, is_script: bool, status: u32) -> Result<(), Error> {
        let (kind, body) = if is_script {
            (
                MessageType::COMPLETE_BATCH_SCRIPT,
                job::pack_end_of_script(job, status)?,
            )
        } else {
            (
                MessageType::COMPLETE_JOB_ALLOCATION,
                job::pack_end_of_allocation(job, status)?,
            )
        };
        succeeded(&self.exchange(&Frame::new(job::VERSION, kind, body)).await?)
    }

    /// Checks that slurmdbd listens at the address. One that rejects the token has [refused](Error::Refused).
    pub async fn greet_slurmdbd(&self) -> Result<(), Error> {
        let token = self.issuer.token(self.host.now())?;
        let greeting = slurmdbd::pack_greeting(token.secret())?;
        slurmdbd::read_response(&self.send(&self.address, &greeting).await?)
    }

    async fn command(
        &self,
        kind: MessageType,
        body: impl Fn(Version) -> Result<Vec<u8>, Unpackable>,
    ) -> Result<(), Error> {
        succeeded(&self.request(kind, body).await?)
    }

    /// Sends a request in the version slurmctld last understood, then in older ones. A message that slurmctld cannot read has no
    /// effect, so another attempt is safe.
    async fn request(
        &self,
        kind: MessageType,
        body: impl Fn(Version) -> Result<Vec<u8>, Unpackable>,
    ) -> Result<Frame, Error> {
        let mut version = self.version();
        loop {
            let request = Frame::new(version, kind, body(version)?);
            let response = self.exchange(&request).await;
            let understood = match &response {
                Err(Error::Unauthorized(_) | Error::Unsupported) => match version.older() {
                    Some(older) => {
                        version = older;
                        continue;
                    }
                    // A newer slurmctld may no longer support the version that the previous one understood.
                    None => self.options.newest,
                },
                Ok(_) | Err(Error::Refused { .. } | Error::Transport(transport::Error::Malformed { .. })) => version,
                Err(
                    Error::Transport(transport::Error::Unreachable { .. }) | Error::Unpackable(_) | Error::Token(_),
                ) => return response,
            };
            *self.version.lock().unwrap_or_else(PoisonError::into_inner) = understood;
            return response;
        }
    }

    /// Returns a response that is no refusal.
    async fn exchange(&self, request: &Frame) -> Result<Frame, Error> {
        let token = self.issuer.token(self.host.now())?;
        let response = self.send(&self.address, &request.pack(token.secret())?).await?;
        let response = Frame::unpack(&response)?;
        match return_code(&response)? {
            None | Some((ReturnCode::SUCCESS, _)) => Ok(response),
            Some((code @ (ReturnCode::AUTHENTICATION | ReturnCode::VERSION), _)) => {
                self.issuer.forget();
                Err(Error::Unauthorized(code))
            }
            Some((code, said)) => Err(Error::Refused { code, said }),
        }
    }

    /// Returns the bytes of the response behind its length.
    async fn send(&self, address: &str, packed: &[u8]) -> Result<Vec<u8>, Error> {
        within(self.options.timeout, self.send_and_read(address, packed)).await
    }

    async fn send_and_read(&self, address: &str, packed: &[u8]) -> Result<Vec<u8>, Error> {
        let broken = |source| transport::Error::unreachable(format!("{address}: the connection broke"), source);
        let connected = self.host.connect(address).await;
        let mut stream =
            connected.map_err(|source| transport::Error::unreachable(format!("{address}: {source}"), source))?;
        stream.write_all(packed).await.map_err(broken)?;
        let length = stream.read_u32().await.map_err(broken)?;
        if length.to_be_bytes() == *NO_SUCH_VERSION {
            return Err(Error::Unsupported);
        }
        if usize::try_from(length).map_or(true, |length| length > MAX_FRAME) {
            return Err(Error::malformed(format!("it has {length} bytes")));
        }
        // Grows with the bytes that arrive, not with the announced length.
        let mut response = Vec::new();
        let read = (&mut stream).take(length.into()).read_to_end(&mut response).await;
        if read.map_err(broken)? < usize::try_from(length).unwrap_or(usize::MAX) {
            return Err(broken(std::io::ErrorKind::UnexpectedEof.into()).into());
        }
        Ok(response)
    }
}

fn succeeded(response: &Frame) -> Result<(), Error> {
    match return_code(response)? {
        // `exchange` has turned other codes into errors.
        Some(_) => Ok(()),
        None => Err(Error::unexpected(response.kind)),
    }
}

fn return_code(response: &Frame) -> Result<Option<(ReturnCode, Option<String>)>, Malformed> {
    let mut body = Reader::new(&response.body);
    match response.kind {
        MessageType::RESPONSE_RETURN_CODE => Ok(Some((ReturnCode(body.i32()?), None))),
        MessageType::RESPONSE_RETURN_CODE_AND_TEXT => {
            let code = ReturnCode(body.i32()?);
            let mut said = None;
            body.text(&mut said)?;
            Ok(Some((code, said)))
        }
        _ => Ok(None),
    }
}
