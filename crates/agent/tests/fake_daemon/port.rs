//! slurmctld's RPC port: the files that this process has read and their hash, as slurmctld 26.05 reports them.
//!
//! With a file `mute` it does not respond. With `lie` it serves the content of that file as its slurm.conf, and with `miscount` it
//! reports a wrong hash; each holds for one run, unless the file contains "always". `dialect` selects its response to partition
//! requests: that of another version, of another key, or garbage. scontrol always works.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use slurm::answer::ServedConf;
use slurm::conf::Configuration;
use slurm::rpc::{Frame, MessageType, ServedFile, pack_live_conf, pack_served_files};
use slurm::token::{Claims, SigningKey};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::SCONTROL;
use super::partitions::Partitions;

struct Port {
    mute: PathBuf,
    dialect: PathBuf,
    key: Vec<u8>,
    files: Vec<ServedFile>,
    hash: u32,
    partitions: Partitions,
}

pub(super) fn open(directory: &Path) {
    let Ok(address) = std::env::var("FAKE_PORT") else {
        return;
    };
    let port = Port::read(directory);
    tokio::spawn(async move {
        // The previous process releases the port a moment later.
        let listener = loop {
            match TcpListener::bind(&address).await {
                Ok(listener) => break listener,
                Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        };
        loop {
            if let Ok((stream, _)) = listener.accept().await {
                let _ = port.answer(stream).await;
            }
        }
    });
}

impl Port {
    fn read(directory: &Path) -> Self {
        let etc = directory.join("etc");
        let names = fs::read_dir(&etc).unwrap().map(|entry| entry.unwrap().file_name());
        let mut files: Vec<ServedFile> = names
            .map(|name| name.into_string().unwrap())
            .filter(|name| !name.starts_with('.') && name != "jwt.key")
            .map(|name| ServedFile {
                content: fs::read(etc.join(&name)).ok(),
                executable: false,
                name,
            })
            .collect();
        let conf = fs::read(etc.join("slurm.conf")).unwrap_or_default();
        let hash = Configuration::parse([("slurm.conf", conf.as_slice())])
            .hash()
            .unwrap_or_default();
        if let Some(lie) = once(&directory.join("lie")) {
            for file in &mut files {
                file.content = Some(lie.clone().into_bytes());
            }
        }
        Self {
            mute: directory.join("mute"),
            dialect: directory.join("dialect"),
            key: fs::read(directory.join("keys/jwt.key")).unwrap_or_default(),
            files,
            hash: if once(&directory.join("miscount")).is_some() {
                !hash
            } else {
                hash
            },
            partitions: Partitions::read(directory, &conf),
        }
    }

    async fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let length = stream.read_u32().await?;
        let mut request = vec![0; length.try_into().unwrap()];
        stream.read_exact(&mut request).await?;
        if self.mute.exists() {
            return Ok(());
        }
        let asked = Frame::unpack(&request).unwrap();
        let token = Frame::token(&request).unwrap();
        let is_scontrol = self.knows(SCONTROL, &token);
        let about_partitions = [
            MessageType::PARTITION_INFO,
            MessageType::CREATE_PARTITION,
            MessageType::UPDATE_PARTITION,
            MessageType::DELETE_PARTITION,
        ];
        let is_rejected = about_partitions.contains(&asked.kind) && !is_scontrol;
        let dialect = fs::read_to_string(&self.dialect).unwrap_or_default();
        match dialect.as_str() {
            "other version" if is_rejected => return stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await,
            "garbage" if is_rejected => return stream.write_all(b"\0\0\0\x08gibberis").await,
            _ => {}
        }
        let (kind, body) = match asked.kind {
            _ if is_rejected && dialect == "other key" => code(1007),
            _ if !is_scontrol && !self.knows("root", &token) => code(1007),
            MessageType::CONFIG => (MessageType::RESPONSE_CONFIG, pack_served_files(&self.files).unwrap()),
            MessageType::BUILD_INFO => {
                let conf = ServedConf {
                    boot_time: 1,
                    now: 2,
                    hash: self.hash.into(),
                };
                (MessageType::RESPONSE_BUILD_INFO, pack_live_conf(&conf).unwrap())
            }
            _ => self.partitions.answer(&asked).unwrap_or_else(|| code(1000)),
        };
        let version = asked.version;
        stream.write_all(&Frame { version, kind, body }.pack("").unwrap()).await
    }

    /// Returns whether the token is this user's, signed with the cluster's key within the last seconds.
    fn knows(&self, user: &str, token: &str) -> bool {
        let key = SigningKey::new(&self.key).unwrap();
        let lifetime = Duration::from_secs(30);
        let now = std::time::SystemTime::now();
        (0..5).any(|ago| {
            let claims = Claims::new(user, now - Duration::from_secs(ago), lifetime);
            key.sign(&claims).unwrap().secret() == token
        })
    }
}

fn code(code: i32) -> (MessageType, Vec<u8>) {
    (MessageType::RESPONSE_RETURN_CODE, code.to_be_bytes().to_vec())
}

fn once(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    if !text.contains("always") {
        fs::remove_file(path).unwrap();
    }
    Some(text)
}
