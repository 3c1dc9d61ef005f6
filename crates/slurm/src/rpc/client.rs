//! One question, one connection, one answer, as Slurm's own programs do it.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use host::Host;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::config::{self, ServedFile};
use super::error::Error;
use super::frame::{Frame, MAX_FRAME, MessageType};
use super::live_conf;
use super::node::{self, NodeUpdate};
use super::node_info;
use super::partition::{self, LivePartition, PartitionUpdate};
use super::return_code::ReturnCode;
use super::slurmdbd;
use super::version::Version;
use super::wire::{Malformed, Reader, Unpackable};
use crate::answer::ServedConf;
use crate::node::AdminState;
use crate::token::Issuer;
use crate::transport::{self, within};

/// slurmctld 26.05 serves metrics on the same port, and takes what does not begin with a version it knows for a request
/// of that kind: the answer begins like this (measured). Older ones answer with an error of authentication.
const NO_SUCH_VERSION: &[u8; 4] = b"HTTP";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// For one question, from connecting to the last byte.
    pub timeout: Duration,
    /// For a reconfigure, which is answered when it is over.
    pub reconfigure_timeout: Duration,
    /// Spoken until slurmctld is seen not to understand it.
    pub newest: Version,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            // What Slurm's own programs wait (MessageTimeout).
            timeout: Duration::from_secs(10),
            // A missing Include holds slurmctld up for a minute.
            reconfigure_timeout: Duration::from_secs(90),
            newest: Version::NEWEST,
        }
    }
}

/// The way to one slurmctld. It costs nothing until it is used.
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

    /// The version slurmctld was last seen to understand; the newest until it was asked.
    pub fn version(&self) -> Version {
        *self.version.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub async fn ping(&self) -> Result<(), Error> {
        self.command(MessageType::PING, |_| Ok(Vec::new())).await
    }

    /// The files slurmctld serves to nodes. After a failed reconfigure they can be others than it runs with, until the
    /// next one: [`live_conf`](Self::live_conf) tells.
    pub async fn served_files(&self) -> Result<Vec<ServedFile>, Error> {
        let request = |_| Ok(config::pack_question());
        let response = self.ask(MessageType::CONFIG, self.options.timeout, request).await?;
        let body = response.body_of(MessageType::RESPONSE_CONFIG)?;
        Ok(config::unpack_served_files(body)?)
    }

    /// The process of slurmctld and the hash of the slurm.conf it runs with.
    pub async fn live_conf(&self) -> Result<ServedConf, Error> {
        let request = Frame::new(live_conf::VERSION, MessageType::BUILD_INFO, live_conf::pack_question());
        let response = self.exchange(&request, self.options.timeout).await?;
        let body = response.body_of(MessageType::RESPONSE_BUILD_INFO)?;
        Ok(live_conf::unpack_live_conf(body)?)
    }

    /// All partitions, hidden ones too.
    pub async fn partitions(&self) -> Result<Vec<LivePartition>, Error> {
        let body = partition::pack_question();
        let request = Frame::new(partition::LIVE_VERSION, MessageType::PARTITION_INFO, body);
        let response = self.exchange(&request, self.options.timeout).await?;
        let body = response.body_of(MessageType::RESPONSE_PARTITION_INFO)?;
        Ok(partition::unpack_partitions(body)?)
    }

    /// Returns when slurmctld runs with the files on its disk.
    pub async fn reconfigure(&self) -> Result<(), Error> {
        let patience = self.options.reconfigure_timeout;
        let answer = self.ask(MessageType::RECONFIGURE, patience, |_| Ok(Vec::new())).await?;
        succeeded(&answer)
    }

    /// [`ReturnCode::INVALID_PARTITION_NAME`] also if there is one of that name. It is gone after the next reconfigure
    /// unless slurm.conf has it too.
    pub async fn create_partition(&self, partition: &PartitionUpdate) -> Result<(), Error> {
        self.command(MessageType::CREATE_PARTITION, |version| partition.pack(version))
            .await
    }

    /// Success does not mean that everything was applied: Slurm passes over some values in silence. A refusal does not
    /// mean that nothing was.
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

    /// What was ordered of a node; `None` if slurmctld has no such node.
    pub async fn admin_state(&self, node: &str) -> Result<Option<AdminState>, Error> {
        let body = node_info::pack_question(node)?;
        let request = Frame::new(node_info::VERSION, MessageType::NODE_INFO_SINGLE, body);
        let response = match self.exchange(&request, self.options.timeout).await {
            Err(Error::Refused { code, .. }) if code == ReturnCode::INVALID_NODE_NAME => return Ok(None),
            response => response?,
        };
        let body = response.body_of(MessageType::RESPONSE_NODE_INFO)?;
        Ok(node_info::unpack_admin_state(body, node)?)
    }

    pub async fn update_node(&self, node: &NodeUpdate) -> Result<(), Error> {
        self.command(MessageType::UPDATE_NODE, |version| node.pack(version))
            .await
    }

    /// `line` is as in slurm.conf, `NodeName=n1 CPUs=4 State=FUTURE`. Slurm takes FUTURE, CLOUD and EXTERNAL ones.
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

    /// Asks whether slurmdbd is what listens there. One that does not let us in has [refused](Error::Refused).
    pub async fn greet_slurmdbd(&self) -> Result<(), Error> {
        let token = self.issuer.token(self.host.now())?;
        let greeting = slurmdbd::pack_greeting(token.secret())?;
        slurmdbd::read_answer(&self.send(&greeting, self.options.timeout).await?)
    }

    async fn command(
        &self,
        kind: MessageType,
        body: impl Fn(Version) -> Result<Vec<u8>, Unpackable>,
    ) -> Result<(), Error> {
        succeeded(&self.ask(kind, self.options.timeout, body).await?)
    }

    /// In the version slurmctld last understood, and in older ones if it does not. A message that it cannot read has no
    /// effect, so another attempt is safe.
    async fn ask(
        &self,
        kind: MessageType,
        patience: Duration,
        body: impl Fn(Version) -> Result<Vec<u8>, Unpackable>,
    ) -> Result<Frame, Error> {
        let mut version = self.version();
        loop {
            let question = Frame::new(version, kind, body(version)?);
            let answer = self.exchange(&question, patience).await;
            match (&answer, version.older()) {
                (Err(Error::Unauthorized(_) | Error::Unsupported), Some(older)) => version = older,
                // Perhaps it was replaced by one that no longer speaks the version we kept to.
                (Err(Error::Unauthorized(_) | Error::Unsupported), None) => {
                    self.understood(self.options.newest);
                    return answer;
                }
                (
                    Err(
                        Error::Transport(transport::Error::Unreachable { .. }) | Error::Unpackable(_) | Error::Token(_),
                    ),
                    _,
                ) => return answer,
                (Ok(_) | Err(Error::Refused { .. } | Error::Transport(transport::Error::Malformed { .. })), _) => {
                    self.understood(version);
                    return answer;
                }
            }
        }
    }

    fn understood(&self, version: Version) {
        *self.version.lock().unwrap_or_else(PoisonError::into_inner) = version;
    }

    /// An answer that is no refusal.
    async fn exchange(&self, question: &Frame, patience: Duration) -> Result<Frame, Error> {
        let token = self.issuer.token(self.host.now())?;
        let answer = self.send(&question.pack(token.secret())?, patience).await?;
        let answer = Frame::unpack(&answer)?;
        match return_code(&answer)? {
            None | Some((ReturnCode::SUCCESS, _)) => Ok(answer),
            Some((code @ (ReturnCode::AUTHENTICATION | ReturnCode::VERSION), _)) => {
                self.issuer.forget();
                Err(Error::Unauthorized(code))
            }
            Some((code, said)) => Err(Error::Refused { code, said }),
        }
    }

    /// What comes back, unread.
    async fn send(&self, packed: &[u8], patience: Duration) -> Result<Vec<u8>, Error> {
        within(patience, self.converse(packed)).await
    }

    async fn converse(&self, packed: &[u8]) -> Result<Vec<u8>, Error> {
        let broken = |source| transport::Error::unreachable(format!("{}: the connection broke", self.address), source);
        let mut stream = self
            .host
            .connect(&self.address)
            .await
            .map_err(|source| transport::Error::unreachable(format!("{}: {source}", self.address), source))?;
        stream.write_all(packed).await.map_err(broken)?;
        let length = stream.read_u32().await.map_err(broken)?;
        if length.to_be_bytes() == *NO_SUCH_VERSION {
            return Err(Error::Unsupported);
        }
        if usize::try_from(length).map_or(true, |length| length > MAX_FRAME) {
            return Err(Error::malformed(format!("it has {length} bytes")));
        }
        // Grows with what arrives, not with what was announced.
        let mut answer = Vec::new();
        let read = (&mut stream).take(length.into()).read_to_end(&mut answer).await;
        if read.map_err(broken)? < usize::try_from(length).unwrap_or(usize::MAX) {
            return Err(broken(std::io::ErrorKind::UnexpectedEof.into()).into());
        }
        Ok(answer)
    }
}

fn succeeded(answer: &Frame) -> Result<(), Error> {
    match return_code(answer)? {
        // Others have been turned into errors.
        Some(_) => Ok(()),
        None => Err(Error::unexpected(answer.kind)),
    }
}

fn return_code(answer: &Frame) -> Result<Option<(ReturnCode, Option<String>)>, Malformed> {
    let mut body = Reader::new(&answer.body);
    match answer.kind {
        MessageType::RESPONSE_RETURN_CODE => Ok(Some((ReturnCode(body.i32()?), None))),
        MessageType::RESPONSE_RETURN_CODE_AND_TEXT => {
            let code = ReturnCode(body.i32()?);
            let said = body.text()?.map(|text| String::from_utf8_lossy(text).into_owned());
            Ok(Some((code, said)))
        }
        _ => Ok(None),
    }
}
