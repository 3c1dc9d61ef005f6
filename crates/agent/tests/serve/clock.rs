//! Clocks of operator and agent that differ.

use std::future::Future;
use std::io;
use std::pin::Pin;

use host::{Connection, Files, Host, Listener, Machine};

use super::*;

type Opening<T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send>>;

/// This machine with another clock.
#[derive(Debug)]
struct Shifted {
    real: Host,
    ahead: i64,
}

impl Machine for Shifted {
    fn now(&self) -> SystemTime {
        let distance = Duration::from_secs(self.ahead.unsigned_abs());
        if self.ahead < 0 {
            self.real.now() - distance
        } else {
            self.real.now() + distance
        }
    }

    fn fill(&self, bytes: &mut [u8]) {
        self.real.fill(bytes);
    }

    fn hostname(&self) -> String {
        self.real.hostname()
    }

    fn files(&self) -> &dyn Files {
        self.real.files()
    }

    fn connect(&self, address: String) -> Opening<Connection> {
        Machine::connect(&*self.real, address)
    }

    fn connect_unix(&self, path: PathBuf) -> Opening<Connection> {
        Machine::connect_unix(&*self.real, path)
    }

    fn listen(&self, address: SocketAddr) -> Opening<Listener> {
        Machine::listen(&*self.real, address)
    }

    fn listen_unix(&self, path: &Path) -> io::Result<Listener> {
        Machine::listen_unix(&*self.real, path)
    }

    fn spawn(&self, name: &'static str, task: Pin<Box<dyn Future<Output = ()> + Send>>) -> tokio::task::JoinHandle<()> {
        Machine::spawn(&*self.real, name, task)
    }

    fn spawn_thread(&self, name: &'static str, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        Machine::spawn_thread(&*self.real, name, work)
    }
}

/// A client whose clock is ahead of the agent's by these seconds.
fn client_ahead(pod: &Pod, seconds: i64) -> Client {
    let host = Host::of(Shifted {
        real: Host::real(),
        ahead: seconds,
    });
    let key = AgentKey::derive(KEY).unwrap();
    Client::new(host, pod.address, POD, key, Options::default())
}

#[tokio::test]
async fn commands_work_with_clocks_that_are_a_minute_apart() {
    let pod = Pod::running(&revision(1, "one")).await;
    for (sequence, ahead) in [(2, 60), (3, -60), (4, 0)] {
        let client = client_ahead(&pod, ahead);
        let text = format!("ahead by {ahead}");
        let pushed = client.push(&revision(sequence, &text), fence(sequence)).await.unwrap();
        assert_eq!(pushed.outcome, Outcome::Applied, "{text}");
        assert_eq!(pod.conf(), text);
    }
}

#[tokio::test]
async fn no_command_is_sent_if_the_clocks_are_too_far_apart() {
    let pod = Pod::running(&revision(1, "one")).await;
    for (ahead, words) in [(600, "behind"), (-600, "ahead of")] {
        let client = client_ahead(&pod, ahead);
        let error = client.push(&revision(2, "two"), fence(2)).await.unwrap_err();
        assert!(
            matches!(error, Error::Clock { offset: Some(_) }) && error.is_definite(),
            "{error:?}"
        );
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(client.status().await.unwrap().fence, Fence { term: 0, sequence: 0 });
    }
    assert_eq!(pod.conf(), "one");
}
