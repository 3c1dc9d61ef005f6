//! A slurmctld whose responses the test defines, on its own port.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use host::Host;
use slurm::rpc::{Client, Frame, MessageType, Options, ReturnCode, Version};
use slurm::token::{Issuer, SigningKey};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// The reaction to a message.
#[derive(Clone)]
pub(crate) enum Act {
    Answer(MessageType, Vec<u8>),
    /// Sends these bytes and closes the connection.
    Raw(Vec<u8>),
    Hang,
    Close,
}

pub(crate) fn code(code: i32) -> Act {
    Act::Answer(MessageType::RESPONSE_RETURN_CODE, code.to_be_bytes().to_vec())
}

pub(crate) struct Fake {
    address: String,
    seen: Arc<Mutex<Vec<Frame>>>,
}

impl Fake {
    pub(crate) async fn start(script: impl Fn(&Frame) -> Act + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
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

    /// Rejects newer versions as such a release does.
    pub(crate) async fn of_release(newest: Version, script: impl Fn(&Frame) -> Act + Send + Sync + 'static) -> Self {
        Self::start(move |frame| {
            if frame.version > newest.wire() {
                code(ReturnCode::AUTHENTICATION.0)
            } else {
                script(frame)
            }
        })
        .await
    }

    pub(crate) fn client(&self) -> Client {
        client(&self.address)
    }

    pub(crate) fn seen(&self) -> Vec<Frame> {
        self.seen.lock().unwrap().clone()
    }
}

pub(crate) fn client(address: &str) -> Client {
    let issuer = Issuer::new(SigningKey::new(b"key").unwrap(), "slurm", Duration::from_mins(15));
    let options = Options {
        timeout: Duration::from_millis(500),
        ..Options::default()
    };
    Client::new(Host::real(), address, issuer, options)
}

async fn serve(mut stream: TcpStream, log: Arc<Mutex<Vec<Frame>>>, script: Arc<impl Fn(&Frame) -> Act>) {
    let length = stream.read_u32().await.unwrap();
    let mut bytes = vec![0; length.try_into().unwrap()];
    stream.read_exact(&mut bytes).await.unwrap();
    assert!(
        Frame::token(&bytes).unwrap().starts_with("eyJ"),
        "a token comes with it"
    );
    let question = Frame::unpack(&bytes).unwrap();
    log.lock().unwrap().push(question.clone());
    let answer = match script(&question) {
        Act::Answer(kind, body) => Frame {
            version: question.version,
            kind,
            body,
        }
        .pack("")
        .unwrap(),
        Act::Raw(bytes) => bytes,
        Act::Hang => return std::future::pending().await,
        Act::Close => return,
    };
    let _ = stream.write_all(&answer).await;
}
