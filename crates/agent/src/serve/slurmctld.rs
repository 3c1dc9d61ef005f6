//! The running slurmctld: which configuration it has read, according to the files it serves to nodes and its hash of slurm.conf.
//!
//! Neither is enough. After a failed reconfigure slurmctld serves files that it does not run with, and the hash covers slurm.conf
//! only. Neither contains partitions that were changed by RPC since slurmctld last read its files.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use host::{FileError, Host};
use slurm::Revision;
use slurm::answer::ServedConf;
use slurm::conf::{Configuration, FileKind, SLURMCTLD_PORT};
use slurm::revision::File;
use slurm::rpc::{Client, Error, Options, ServedFile, SlurmKey, Version};
use slurm::token::{EmptyKey, Issuer, SigningKey};

use crate::dry_run::configuration_of;

/// A response takes a millisecond; the caller retries.
const READ_TIMEOUT: Duration = Duration::from_secs(1);

/// A token is used for one request.
const TOKEN_LIFETIME: Duration = Duration::from_secs(30);

/// May read files whatever SlurmUser is, and exists in every image.
const USER: &str = "root";

/// How slurmctld's configuration differs from a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Mismatch {
    /// It serves other bytes under this name.
    File(String),
    /// It serves these files, and has read another slurm.conf.
    Hash,
}

/// Why slurmctld's configuration cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    /// It may be busy, or may never respond.
    #[error(transparent)]
    NoResponse(Error),
    #[error(transparent)]
    Rejected(Error),
    #[error(transparent)]
    NoClient(#[from] NoClient),
}

/// The role of one of several slurmctld.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Role {
    /// Or it cannot be reached from here.
    Primary,
    Standby,
    /// It may wait for another one to hand over.
    NoResponse(String),
}

/// Why Slurm's protocol cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoClient {
    #[error("slurmctld speaks TLS only ({0})")]
    Tls(String),
    #[error("slurmctld does not listen on the pod's loopback interface (NoCtldInAddrAny)")]
    NoLoopback,
    #[error("there is no revision in the configuration directory")]
    NoRevision,
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Key(#[from] EmptyKey),
}

#[derive(Debug)]
pub(super) struct Slurmctld {
    host: Host,
    keys: PathBuf,
    /// Replaces the address in slurm.conf.
    address: Option<SocketAddr>,
    /// The newest version of the protocol that slurmctld was seen to understand.
    version: Mutex<Version>,
    /// Held while partitions change, from the first order until the files are live.
    members: tokio::sync::Mutex<()>,
}

impl Slurmctld {
    pub(super) fn new(host: &Host, keys: &Path, address: Option<SocketAddr>) -> Self {
        Self {
            host: host.clone(),
            keys: keys.to_owned(),
            address,
            version: Mutex::new(Version::NEWEST),
            members: tokio::sync::Mutex::new(()),
        }
    }

    pub(super) async fn lock_members(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.members.lock().await
    }

    /// Compares slurmctld's configuration with a revision.
    pub(super) async fn verify(&self, revision: &Revision) -> Result<Option<Mismatch>, ReadError> {
        let configuration = configuration_of(&revision.files);
        let (served, conf) = self.read_config(&configuration).await?;
        Ok(compare(revision, configuration.hash(), &served, conf))
    }

    /// The configuration that slurmctld has read last. `revision` is the live one. `None` if slurmctld serves other files than it
    /// runs with, or cannot be reached from here; an error means that it may yet respond.
    pub(super) async fn loaded_config(&self, revision: &Revision) -> Result<Option<Configuration>, Error> {
        match self.read_config(&configuration_of(&revision.files)).await {
            Ok((served, conf)) => Ok(loaded_config(revision, &served, conf)),
            Err(ReadError::NoResponse(error)) => Err(error),
            Err(ReadError::Rejected(_) | ReadError::NoClient(_)) => Ok(None),
        }
    }

    async fn read_config(&self, configuration: &Configuration) -> Result<(Vec<ServedFile>, ServedConf), ReadError> {
        let client = self.client(configuration, READ_TIMEOUT)?;
        let read = tokio::try_join!(client.served_files(), client.live_conf());
        read.map_err(|error| {
            if error.is_definite() {
                ReadError::Rejected(error)
            } else {
                ReadError::NoResponse(error)
            }
        })
    }

    pub(super) async fn role(&self, configuration: &Configuration) -> Role {
        // The only slurmctld is never a standby.
        if configuration.values("SlurmctldHost").count() < 2 {
            return Role::Primary;
        }
        let Ok(client) = self.client(configuration, READ_TIMEOUT) else {
            return Role::Primary;
        };
        match client.live_conf().await {
            Err(Error::Refused { code, .. }) if code.is_of_standby() => Role::Standby,
            Err(error) if !error.is_definite() => Role::NoResponse(error.to_string()),
            Ok(_) | Err(_) => Role::Primary,
        }
    }

    /// A client for reads.
    pub(super) fn read_client(&self, configuration: &Configuration) -> Result<Client, NoClient> {
        self.client(configuration, READ_TIMEOUT)
    }

    /// The key with which the cluster's daemons sign.
    pub(super) fn slurm_key(&self) -> Result<SlurmKey, NoClient> {
        Ok(SlurmKey::new(&self.host.files().read(&self.keys.join("slurm.key"))?)?)
    }

    /// A client for commands, with a longer timeout.
    pub(super) fn command_client(&self, configuration: &Configuration) -> Result<Client, NoClient> {
        self.client(configuration, Options::default().timeout)
    }

    /// Remembers the version that was negotiated, for the next client.
    pub(super) fn remember_version(&self, client: &Client) {
        *self.version.lock().unwrap_or_else(PoisonError::into_inner) = client.version();
    }

    fn client(&self, configuration: &Configuration, timeout: Duration) -> Result<Client, NoClient> {
        let address = match self.address {
            Some(address) => address,
            None => address_of(configuration)?,
        };
        // Read each time: the key may have been rotated.
        let key = SigningKey::new(&self.host.files().read(&self.keys.join("jwt.key"))?)?;
        let options = Options {
            timeout,
            newest: *self.version.lock().unwrap_or_else(PoisonError::into_inner),
        };
        Ok(Client::new(
            self.host.clone(),
            address.to_string(),
            Issuer::new(key, USER, TOKEN_LIFETIME),
            options,
        ))
    }
}

/// The address where slurmctld listens in this pod.
fn address_of(configuration: &Configuration) -> Result<SocketAddr, NoClient> {
    if let Some(tls) = configuration
        .value("TLSType")
        .filter(|tls| !tls.eq_ignore_ascii_case("tls/none"))
    {
        return Err(NoClient::Tls(tls.to_owned()));
    }
    let parameters = configuration.value("CommunicationParameters").unwrap_or_default();
    let has = |word: &str| {
        parameters
            .split(',')
            .any(|given| given.trim().eq_ignore_ascii_case(word))
    };
    if has("NoCtldInAddrAny") {
        return Err(NoClient::NoLoopback);
    }
    let loopback = if has("DisableIPv4") {
        IpAddr::from(Ipv6Addr::LOCALHOST)
    } else {
        IpAddr::from(Ipv4Addr::LOCALHOST)
    };
    let ports = configuration.value("SlurmctldPort");
    // slurmctld listens on all ports of a range.
    let first = ports.and_then(|ports| ports.split('-').next()?.trim().parse().ok());
    Ok(SocketAddr::new(loopback, first.unwrap_or(SLURMCTLD_PORT)))
}

/// `hash` is that of the revision's slurm.conf, if it can be computed.
fn compare(revision: &Revision, hash: Option<u32>, served: &[ServedFile], conf: ServedConf) -> Option<Mismatch> {
    if !served.iter().any(|file| file.name == "slurm.conf") {
        return Some(Mismatch::File("slurm.conf".to_owned()));
    }
    if let Some(other) = served.iter().find(|file| !is_same(revision, file)) {
        return Some(Mismatch::File(other.name.clone()));
    }
    let hash_differs = hash.is_some_and(|hash| i64::from(hash) != conf.hash);
    hash_differs.then_some(Mismatch::Hash)
}

/// Files that slurmctld does not serve are taken from the revision: they contain no partitions.
fn loaded_config(revision: &Revision, served: &[ServedFile], conf: ServedConf) -> Option<Configuration> {
    let mut files: BTreeMap<&str, &[u8]> = revision
        .files
        .iter()
        .map(|(name, File { content, .. })| (name.as_str(), content.as_slice()))
        .collect();
    for file in served.iter().filter(|file| !is_same(revision, file)) {
        match &file.content {
            Some(content) => drop(files.insert(&file.name, content)),
            None => drop(files.remove(file.name.as_str())),
        }
    }
    let configuration = Configuration::parse(files);
    let hash = configuration.hash()?;
    (i64::from(hash) == conf.hash).then_some(configuration)
}

fn is_same(revision: &Revision, served: &ServedFile) -> bool {
    let file = revision.files.iter().find(|(name, _)| name.as_str() == served.name);
    match (file, &served.content) {
        // Slurm sends files as text, which ends at the first NUL.
        (Some((_, file)), Some(content)) => file.content.split(|byte| *byte == 0).next() == Some(content),
        (Some(_), None) => false,
        // A file that slurm.conf includes may be elsewhere. One that Slurm reads by itself is beside it.
        (None, Some(_)) => FileKind::of_name(&served.name) == FileKind::Other,
        (None, None) => true,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use slurm::revision::{ControllerUid, File, FileName};

    use super::*;

    fn revision(files: &[(&str, &[u8])]) -> Revision {
        let file = |(name, content): &(&str, &[u8])| (FileName::new(*name).unwrap(), File::config(*content));
        Revision {
            sequence: 1,
            controller: ControllerUid::new("a").unwrap(),
            files: files.iter().map(file).collect::<BTreeMap<_, _>>(),
            closed_by_hand: BTreeSet::new(),
        }
    }

    fn served(files: &[(&str, Option<&[u8]>)]) -> Vec<ServedFile> {
        let file = |(name, content): &(&str, Option<&[u8]>)| ServedFile {
            name: (*name).to_owned(),
            content: content.map(<[u8]>::to_vec),
            executable: false,
        };
        files.iter().map(file).collect()
    }

    fn mismatch(files: &[(&str, Option<&[u8]>)], hash: Option<u32>) -> Option<Mismatch> {
        let ours = revision(&[
            ("slurm.conf", b"new"),
            ("cgroup.conf", b"c"),
            ("prolog.sh", b"binary\0more"),
            ("only-for-slurmctld.sh", b"x"),
        ]);
        let conf = ServedConf {
            boot_time: 1,
            now: 2,
            hash: 7,
        };
        compare(&ours, hash, &served(files), conf)
    }

    #[test]
    fn equal_files_and_an_equal_hash_match() {
        let files: &[(&str, Option<&[u8]>)] = &[
            ("slurm.conf", Some(b"new")),
            ("cgroup.conf", Some(b"c")),
            ("prolog.sh", Some(b"binary")),
            ("gres.conf", None),
            ("site.conf", Some(b"included from elsewhere")),
        ];
        assert_eq!(mismatch(files, Some(7)), None);
        assert_eq!(mismatch(files, None), None, "where no hash can be computed");
        assert_eq!(mismatch(files, Some(8)), Some(Mismatch::Hash));
    }

    #[test]
    fn a_file_that_differs_is_named() {
        let conf = ("slurm.conf", Some(&b"new"[..]));
        for (files, name) in [
            (&[("slurm.conf", Some(&b"old"[..]))][..], "slurm.conf"),
            (&[], "slurm.conf"),
            (&[("cgroup.conf", Some(b"c"))], "slurm.conf"),
            (&[conf, ("cgroup.conf", Some(b"C"))], "cgroup.conf"),
            (&[conf, ("cgroup.conf", None)], "cgroup.conf"),
            // The revision has none.
            (&[conf, ("gres.conf", Some(b"Name=gpu"))], "gres.conf"),
        ] {
            assert_eq!(mismatch(files, Some(7)), Some(Mismatch::File(name.to_owned())));
        }
    }

    #[test]
    fn the_loaded_config_is_confirmed_by_its_hash() {
        let ours = revision(&[
            ("slurm.conf", b"PartitionName=a MaxTime=9\n"),
            ("prolog.sh", b"binary\0more"),
        ]);
        let read: &[u8] = b"PartitionName=a MaxTime=5\n";
        let hash = Configuration::parse([("slurm.conf", read)]).hash().unwrap();
        let loaded = |hash: i64| {
            let conf = ServedConf {
                boot_time: 1,
                now: 2,
                hash,
            };
            let served = served(&[
                ("slurm.conf", Some(read)),
                ("prolog.sh", Some(b"binary")),
                ("gres.conf", None),
            ]);
            loaded_config(&ours, &served, conf)
        };
        let Some(known) = loaded(hash.into()) else {
            panic!("{:?}", loaded(hash.into()))
        };
        let changes = slurm::conf::Changes::between(&known, &configuration_of(&ours.files));
        assert_eq!(changes.needs(), slurm::conf::keys::Needs::PartitionRpc, "{changes:?}");
        assert!(loaded(i64::from(!hash)).is_none(), "it runs with another configuration");
    }

    #[test]
    fn slurmctlds_address_is_that_of_its_configuration() {
        let address = |conf: &str| {
            let configuration = Configuration::parse([("slurm.conf", conf.as_bytes())]);
            address_of(&configuration).map(|address| address.to_string())
        };
        for (conf, expected) in [
            ("", "127.0.0.1:6817"),
            ("SlurmctldPort=7000", "127.0.0.1:7000"),
            ("SlurmctldPort=7000-7003", "127.0.0.1:7000"),
            ("SlurmctldPort=odd", "127.0.0.1:6817"),
            ("TLSType=tls/none", "127.0.0.1:6817"),
            ("CommunicationParameters=EnableIPv6,DisableIPv4", "[::1]:6817"),
        ] {
            assert_eq!(address(conf).unwrap(), expected, "{conf}");
        }
        for conf in ["CommunicationParameters=NoCtldInAddrAny", "TLSType=tls/s2n"] {
            assert!(address(conf).is_err(), "{conf}");
        }
    }
}
