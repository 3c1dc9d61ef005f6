//! A slurmrestd whose responses the test defines, on its own port.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use host::Host;
use slurm::rest::{Client, Options};
use slurm::token::{Issuer, SigningKey};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The reaction to a request.
#[derive(Clone)]
pub(crate) enum Act {
    Answer(u16, String),
    /// Announces more bytes than it sends.
    Truncate(String),
    /// Sends these bytes.
    Raw(&'static str),
    Hang,
    Close,
}

pub(crate) fn ok(body: impl Into<String>) -> Act {
    Act::Answer(200, body.into())
}

#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// `GET /slurm/v0.0.45/ping/`.
    pub(crate) line: String,
    pub(crate) token: String,
    pub(crate) body: String,
}

pub(crate) struct Fake {
    address: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Fake {
    pub(crate) async fn start(script: impl Fn(&Seen) -> Act + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        let script = Arc::new(script);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&log), Arc::clone(&script)));
            }
        });
        Self { address, seen }
    }

    pub(crate) fn client(&self) -> Client {
        client(&self.address)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.seen().into_iter().map(|seen| seen.line).collect()
    }
}

pub(crate) fn client(server: &str) -> Client {
    let key = SigningKey::new(b"key").unwrap();
    let issuer = Issuer::new(key, "slurm", Duration::from_mins(15));
    Client::new(
        Host::real(),
        server,
        issuer,
        Options {
            timeout: Duration::from_millis(500),
        },
    )
}

async fn serve(mut stream: TcpStream, log: Arc<Mutex<Vec<Seen>>>, script: Arc<impl Fn(&Seen) -> Act>) {
    while let Some(seen) = read_request(&mut stream).await {
        log.lock().unwrap().push(seen.clone());
        let bytes = match script(&seen) {
            Act::Answer(status, body) => {
                format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{body}", body.len())
            }
            Act::Raw(bytes) => bytes.to_owned(),
            Act::Truncate(body) => {
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len() + 10);
                stream.write_all(head.as_bytes()).await.unwrap();
                return;
            }
            Act::Hang => return std::future::pending().await,
            Act::Close => return,
        };
        if stream.write_all(bytes.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn read_request(stream: &mut TcpStream) -> Option<Seen> {
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break String::from_utf8(bytes.drain(..end + 4).collect()).unwrap();
        }
        read_more(stream, &mut bytes).await?;
    };
    let header = |name: &str| {
        head.lines()
            .filter_map(|line| line.split_once(": "))
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    };
    let length: usize = header("content-length").map_or(0, |length| length.parse().unwrap());
    while bytes.len() < length {
        read_more(stream, &mut bytes).await?;
    }
    Some(Seen {
        line: head.lines().next()?.trim_end_matches(" HTTP/1.1").to_owned(),
        token: header("x-slurm-user-token").unwrap_or_default().to_owned(),
        body: String::from_utf8(bytes).unwrap(),
    })
}

async fn read_more(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Option<()> {
    let mut buffer = [0; 4096];
    match stream.read(&mut buffer).await {
        Ok(0) | Err(_) => None,
        Ok(count) => {
            bytes.extend_from_slice(&buffer[..count]);
            Some(())
        }
    }
}
