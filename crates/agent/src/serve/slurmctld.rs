//! slurmctld's own word on what it runs with: the files it serves to nodes, and the hash of the slurm.conf it has read.
//!
//! Neither will do alone. After a reconfigure that failed slurmctld serves files it does not run with, and the hash is of
//! slurm.conf only.
//!
//! Both are of the files it has read last. Partitions that were changed by RPC since then are in neither.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use slurm::Revision;
use slurm::answer::ServedConf;
use slurm::conf::{Configuration, FileKind, SLURMCTLD_PORT};
use slurm::revision::File;
use slurm::rpc::{Client, Error, Options, ServedFile, Version};
use slurm::token::{Issuer, SigningKey};

use crate::dry_run::configuration_of;

/// An answer takes a millisecond. Who is slower is asked again.
const PATIENCE: Duration = Duration::from_secs(1);

/// For one question.
const TOKEN_LIFETIME: Duration = Duration::from_secs(30);

/// May ask for files with any SlurmUser, and is known in every image.
const USER: &str = "root";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Word {
    /// It runs with this revision.
    Same,
    /// It serves other bytes under this name.
    OtherFile(String),
    /// It serves these files, and has read another slurm.conf.
    OtherHash,
    /// Not yet, or never: it may be busy.
    NoAnswer(String),
    /// It said that it does not, or cannot be asked from here.
    WillNotTell(String),
}

/// What slurmctld has read last.
#[derive(Debug)]
pub(super) enum Base {
    Known(Box<Configuration>),
    /// Not yet, or never: it may be busy.
    NoAnswer(String),
    /// It serves something else than it runs with, or cannot be asked from here.
    Unknown,
}

/// What one of several is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Standing {
    /// Or it cannot be asked from here.
    InCharge,
    /// It waits to take over.
    Standby,
    /// It may wait for another one to hand over.
    NoAnswer(String),
}

#[derive(Debug)]
pub(super) struct Slurmctld {
    keys: PathBuf,
    /// In place of what slurm.conf says.
    address: Option<SocketAddr>,
    /// The newest version of the protocol that it was seen to understand.
    version: Mutex<Version>,
    /// Held by whoever changes what partitions consist of, from the first word to the files that say the same.
    members: tokio::sync::Mutex<()>,
}

impl Slurmctld {
    pub(super) fn new(keys: &Path, address: Option<SocketAddr>) -> Self {
        Self {
            keys: keys.to_owned(),
            address,
            version: Mutex::new(Version::NEWEST),
            members: tokio::sync::Mutex::new(()),
        }
    }

    pub(super) async fn lock_members(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.members.lock().await
    }

    pub(super) async fn ask(&self, revision: &Revision) -> Word {
        let configuration = configuration_of(&revision.files);
        let client = match self.client(&configuration, PATIENCE) {
            Ok(client) => client,
            Err(why) => return Word::WillNotTell(why),
        };
        match both(&client).await {
            Ok((served, conf)) => judge(revision, configuration.hash(), &served, conf),
            Err(error) if error.is_definite() => Word::WillNotTell(error.to_string()),
            Err(error) => Word::NoAnswer(error.to_string()),
        }
    }

    /// What slurmctld has read last, where the live revision is this one.
    pub(super) async fn base(&self, revision: &Revision) -> Base {
        let Ok(client) = self.client(&configuration_of(&revision.files), PATIENCE) else {
            return Base::Unknown;
        };
        match both(&client).await {
            Ok((served, conf)) => base_of(revision, &served, conf),
            Err(error) if error.is_definite() => Base::Unknown,
            Err(error) => Base::NoAnswer(error.to_string()),
        }
    }

    /// Only of several can one be anything else than in charge.
    pub(super) async fn standing(&self, configuration: &Configuration) -> Standing {
        if configuration.values("SlurmctldHost").count() < 2 {
            return Standing::InCharge;
        }
        let Ok(client) = self.client(configuration, PATIENCE) else {
            return Standing::InCharge;
        };
        match client.live_conf().await {
            Err(Error::Refused { code, .. }) if code.is_of_standby() => Standing::Standby,
            Err(error) if !error.is_definite() => Standing::NoAnswer(error.to_string()),
            Ok(_) | Err(_) => Standing::InCharge,
        }
    }

    /// For more than a question: slurmctld takes its time where it has much to do.
    pub(super) fn commander(&self, configuration: &Configuration) -> Result<Client, String> {
        self.client(configuration, Options::default().timeout)
    }

    /// So that the next one does not have to find out.
    pub(super) fn remember_version(&self, client: &Client) {
        *self.version.lock().unwrap_or_else(PoisonError::into_inner) = client.version();
    }

    fn client(&self, configuration: &Configuration, patience: Duration) -> Result<Client, String> {
        let address = match self.address {
            Some(address) => address,
            None => address_of(configuration)?,
        };
        // Read each time: it may have been renewed.
        let key = std::fs::read(self.keys.join("jwt.key")).map_err(|error| format!("cannot read jwt.key: {error}"))?;
        let key = SigningKey::new(&key).map_err(|error| error.to_string())?;
        let options = Options {
            timeout: patience,
            newest: *self.version.lock().unwrap_or_else(PoisonError::into_inner),
            ..Options::default()
        };
        Ok(Client::new(
            address.to_string(),
            Issuer::new(key, USER, TOKEN_LIFETIME),
            options,
        ))
    }
}

async fn both(client: &Client) -> Result<(Vec<ServedFile>, ServedConf), Error> {
    tokio::try_join!(client.served_files(), client.live_conf())
}

/// Where slurmctld listens in this pod, or why it cannot be asked.
fn address_of(configuration: &Configuration) -> Result<SocketAddr, String> {
    if let Some(tls) = configuration
        .value("TLSType")
        .filter(|tls| !tls.eq_ignore_ascii_case("tls/none"))
    {
        return Err(format!("it speaks TLS only ({tls})"));
    }
    let parameters = configuration.value("CommunicationParameters").unwrap_or_default();
    let has = |word: &str| {
        parameters
            .split(',')
            .any(|given| given.trim().eq_ignore_ascii_case(word))
    };
    if has("NoCtldInAddrAny") {
        return Err("it does not listen on the pod's own loopback (NoCtldInAddrAny)".to_owned());
    }
    let loopback = if has("DisableIPv4") {
        IpAddr::from(Ipv6Addr::LOCALHOST)
    } else {
        IpAddr::from(Ipv4Addr::LOCALHOST)
    };
    let ports = configuration.value("SlurmctldPort");
    // Of a range it takes all, and the first is as good as any.
    let first = ports.and_then(|ports| ports.split('-').next()?.trim().parse().ok());
    Ok(SocketAddr::new(loopback, first.unwrap_or(SLURMCTLD_PORT)))
}

/// `hash` is of the revision's slurm.conf, where it can be told.
fn judge(revision: &Revision, hash: Option<u32>, served: &[ServedFile], conf: ServedConf) -> Word {
    if !served.iter().any(|file| file.name == "slurm.conf") {
        return Word::OtherFile("slurm.conf".to_owned());
    }
    if let Some(other) = served.iter().find(|file| !is_ours(revision, file)) {
        return Word::OtherFile(other.name.clone());
    }
    match hash {
        Some(hash) if i64::from(hash) != conf.hash => Word::OtherHash,
        _ => Word::Same,
    }
}

/// Files that slurmctld does not serve are taken for ours: nothing of what they say can be a partition.
fn base_of(revision: &Revision, served: &[ServedFile], conf: ServedConf) -> Base {
    let mut files: std::collections::BTreeMap<&str, &[u8]> = revision
        .files
        .iter()
        .map(|(name, File { content, .. })| (name.as_str(), content.as_slice()))
        .collect();
    for file in served.iter().filter(|file| !is_ours(revision, file)) {
        match &file.content {
            Some(content) => drop(files.insert(&file.name, content)),
            None => drop(files.remove(file.name.as_str())),
        }
    }
    let configuration = Configuration::parse(files);
    match configuration.hash() {
        Some(hash) if i64::from(hash) == conf.hash => Base::Known(Box::new(configuration)),
        _ => Base::Unknown,
    }
}

fn is_ours(revision: &Revision, served: &ServedFile) -> bool {
    let ours = revision.files.iter().find(|(name, _)| name.as_str() == served.name);
    match (ours, &served.content) {
        // Slurm hands files on as text, which ends at the first NUL.
        (Some((_, ours)), Some(content)) => ours.content.split(|byte| *byte == 0).next() == Some(content),
        (Some(_), None) => false,
        // What slurm.conf includes may lie elsewhere. A file that Slurm reads by itself lies beside it.
        (None, Some(_)) => FileKind::of_name(&served.name) == FileKind::Other,
        (None, None) => true,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

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

    fn word(files: &[(&str, Option<&[u8]>)], hash: Option<u32>) -> Word {
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
        judge(&ours, hash, &served(files), conf)
    }

    #[test]
    fn the_same_bytes_and_the_same_hash_are_the_same() {
        let files: &[(&str, Option<&[u8]>)] = &[
            ("slurm.conf", Some(b"new")),
            ("cgroup.conf", Some(b"c")),
            ("prolog.sh", Some(b"binary")),
            ("gres.conf", None),
            ("site.conf", Some(b"included from elsewhere")),
        ];
        assert_eq!(word(files, Some(7)), Word::Same);
        assert_eq!(word(files, None), Word::Same, "where no hash can be told");
        assert_eq!(word(files, Some(8)), Word::OtherHash);
    }

    #[test]
    fn any_other_file_is_named() {
        let conf = ("slurm.conf", Some(&b"new"[..]));
        for (files, name) in [
            (&[("slurm.conf", Some(&b"old"[..]))][..], "slurm.conf"),
            (&[], "slurm.conf"),
            (&[("cgroup.conf", Some(b"c"))], "slurm.conf"),
            (&[conf, ("cgroup.conf", Some(b"C"))], "cgroup.conf"),
            (&[conf, ("cgroup.conf", None)], "cgroup.conf"),
            // We no longer have one.
            (&[conf, ("gres.conf", Some(b"Name=gpu"))], "gres.conf"),
        ] {
            assert_eq!(word(files, Some(7)), Word::OtherFile(name.to_owned()));
        }
    }

    #[test]
    fn what_it_has_read_last_is_known_by_its_hash() {
        let ours = revision(&[
            ("slurm.conf", b"PartitionName=a MaxTime=9\n"),
            ("prolog.sh", b"binary\0more"),
        ]);
        let read: &[u8] = b"PartitionName=a MaxTime=5\n";
        let hash = Configuration::parse([("slurm.conf", read)]).hash().unwrap();
        let base = |hash: i64| {
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
            base_of(&ours, &served, conf)
        };
        let Base::Known(known) = base(hash.into()) else {
            panic!("{:?}", base(hash.into()))
        };
        let changes = slurm::conf::Changes::between(&known, &configuration_of(&ours.files));
        assert_eq!(changes.needs(), slurm::conf::keys::Needs::PartitionRpc, "{changes:?}");
        assert!(
            matches!(base(i64::from(!hash)), Base::Unknown),
            "it runs with something else"
        );
    }

    #[test]
    fn slurmctld_is_asked_where_its_file_says() {
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
            assert_eq!(address(conf).as_deref(), Ok(expected), "{conf}");
        }
        for conf in ["CommunicationParameters=NoCtldInAddrAny", "TLSType=tls/s2n"] {
            assert!(address(conf).is_err(), "{conf}");
        }
    }
}
