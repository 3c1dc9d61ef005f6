//! Connections between machines, over links that delay, freeze, cut, lose and double.

use std::{
    collections::BTreeMap,
    fmt, io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use super::random::Random;
use futures::future::BoxFuture;
use host::{Accept, Connection, Listener};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf, duplex, split},
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::sleep,
};

/// One message on a good link.
const LATENCY: Duration = Duration::from_millis(1);

/// The kernel gives up on an address that nobody has.
const UNREACHABLE: Duration = Duration::from_secs(3);

/// The kernel gives up on a connection that nobody accepts (`tcp_syn_retries`).
const CONNECT: Duration = Duration::from_secs(127);

/// The kernel gives up on a connection whose packets nobody confirms (`tcp_retries2`).
const RETRIES: Duration = Duration::from_mins(15);

/// Every machine, as one end of a link.
pub const ANY: &str = "*";

/// How often a frozen link is looked at.
const LOOK: Duration = Duration::from_millis(100);

const BUFFER: usize = 1 << 20;

/// What is wrong with a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkFault {
    Delay(Duration),
    /// Nothing arrives until it is lifted, and then everything.
    Freeze,
    /// New connections find nobody, and open ones stay silent until it is lifted.
    Cut,
    /// Every second connection is lost: it is not accepted, or what was asked does not arrive, or the answer does not.
    Lose,
    /// What a client sent arrives a second time on a connection of its own.
    Double,
}

/// What a link does to one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    Connection,
    Request,
    Answer,
}

/// A fault that was set, to lift it.
#[derive(Debug)]
#[must_use]
pub struct Handle(u64);

/// The network. A clone is the same one.
#[derive(Clone)]
pub struct Network(Arc<Mutex<Inner>>, Random);

#[derive(Default)]
struct Inner {
    listeners: BTreeMap<(String, u16), UnboundedSender<Incoming>>,
    sockets: BTreeMap<(String, String), UnboundedSender<Incoming>>,
    /// What happens to everything from one machine to another.
    faults: BTreeMap<u64, (String, String, LinkFault)>,
    /// Faults so far.
    counted: u64,
    /// Machines by the addresses of their pods.
    machines: BTreeMap<String, String>,
    /// Addresses by name.
    names: BTreeMap<String, String>,
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").finish_non_exhaustive()
    }
}

impl Network {
    pub fn new(random: Random) -> Self {
        Self(Arc::default(), random)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    /// From now on this is wrong with the link of two machines, in this direction.
    pub fn set_fault(&self, from: &str, to: &str, fault: LinkFault) -> Handle {
        let mut inner = self.inner();
        inner.counted += 1;
        let number = inner.counted;
        inner.faults.insert(number, (from.to_owned(), to.to_owned(), fault));
        Handle(number)
    }

    /// The same in both directions.
    pub fn set_faults(&self, one: &str, other: &str, fault: LinkFault) -> [Handle; 2] {
        [self.set_fault(one, other, fault), self.set_fault(other, one, fault)]
    }

    pub fn lift(&self, faults: impl IntoIterator<Item = Handle>) {
        let mut inner = self.inner();
        for Handle(number) in faults {
            inner.faults.remove(&number);
        }
    }

    pub fn has_faults(&self) -> bool {
        !self.inner().faults.is_empty()
    }

    /// Says on which machine an address is.
    pub fn place(&self, address: &str, machine: &str) {
        self.inner().machines.insert(address.to_owned(), machine.to_owned());
    }

    fn machine(&self, address: &str) -> String {
        let inner = self.inner();
        inner.machines.get(address).map_or(address, String::as_str).to_owned()
    }

    pub fn set_name(&self, name: &str, address: &str) {
        self.inner().names.insert(name.to_owned(), address.to_owned());
    }

    fn has_fault(&self, from: &str, to: &str, wanted: impl Fn(LinkFault) -> bool) -> bool {
        self.faults(from, to).into_iter().any(wanted)
    }

    fn faults(&self, from: &str, to: &str) -> Vec<LinkFault> {
        let is = |pattern: &str, machine: &str| pattern == ANY || pattern == machine;
        let inner = self.inner();
        // What stays on one machine uses no link.
        let of_link = inner.faults.values().filter(|_| from != to);
        let here = of_link.filter(|(from_, to_, _)| is(from_, from) && is(to_, to));
        here.map(|(_, _, fault)| *fault).collect()
    }

    /// Whether nothing passes between two machines at this time.
    pub fn is_cut(&self, one: &str, other: &str) -> bool {
        let stops = |fault| matches!(fault, LinkFault::Cut | LinkFault::Freeze);
        self.has_fault(one, other, stops) || self.has_fault(other, one, stops)
    }

    /// Whether messages between two machines get lost.
    pub fn loses(&self, one: &str, other: &str) -> bool {
        let loses = |fault| fault == LinkFault::Lose;
        self.has_fault(one, other, loses) || self.has_fault(other, one, loses)
    }

    fn loss(&self, client: &str, server: &str) -> Option<Loss> {
        let loses = self.loses(client, server) && self.1.one_in(2);
        loses.then(|| *self.1.pick(&[Loss::Connection, Loss::Request, Loss::Answer]).unwrap())
    }

    /// What is sent now arrives after this.
    async fn travel(&self, from: &str, to: &str) {
        sleep(LATENCY).await;
        let delays = self.faults(from, to).into_iter().filter_map(|fault| match fault {
            LinkFault::Delay(delay) => Some(delay),
            _ => None,
        });
        let delay: Duration = delays.sum();
        if !delay.is_zero() {
            sleep(delay).await;
        }
        let stops = |fault| matches!(fault, LinkFault::Cut | LinkFault::Freeze);
        while self.has_fault(from, to, stops) {
            sleep(LOOK).await;
        }
    }

    pub fn listen(&self, ip: &str, port: u16) -> Listener {
        let (sender, connections) = unbounded_channel();
        self.inner().listeners.insert((ip.to_owned(), port), sender);
        let address = format!("{ip}:{port}").parse().ok();
        Listener::new(Accepting::new(address, connections))
    }

    pub fn listen_unix(&self, machine: &str, path: &str) -> Listener {
        let (sender, connections) = unbounded_channel();
        let key = (machine.to_owned(), path.to_owned());
        self.inner().sockets.insert(key, sender);
        Listener::new(Accepting::new(None, connections))
    }

    pub fn connect_unix(&self, machine: &str, path: &str) -> io::Result<Connection> {
        let (near, far) = duplex(BUFFER);
        let inner = self.inner();
        let socket = inner.sockets.get(&(machine.to_owned(), path.to_owned()));
        let socket = socket.ok_or(io::ErrorKind::NotFound)?;
        let sent = socket.send((Box::new(far), None));
        sent.map_err(|_| io::Error::from(io::ErrorKind::ConnectionRefused))?;
        Ok(Box::new(near))
    }

    /// `from` is the address of the client.
    pub async fn connect(&self, from: &str, to: &str) -> io::Result<Connection> {
        let (name, port) = to.rsplit_once(':').ok_or(io::ErrorKind::InvalidInput)?;
        let port: u16 = port.parse().map_err(|_| io::ErrorKind::InvalidInput)?;
        let is_loopback = matches!(name, "127.0.0.1" | "localhost" | "[::1]");
        let server = if is_loopback {
            from.to_owned()
        } else {
            let named = self.inner().names.get(name).cloned();
            named.unwrap_or_else(|| name.to_owned())
        };
        let (client_machine, server_machine) = (self.machine(from), self.machine(&server));
        let loss = self.loss(&client_machine, &server_machine);
        if !is_loopback {
            let cuts = |fault| fault == LinkFault::Cut;
            if self.has_fault(&client_machine, &server_machine, cuts)
                || self.has_fault(&server_machine, &client_machine, cuts)
            {
                sleep(UNREACHABLE).await;
                return Err(io::ErrorKind::HostUnreachable.into());
            }
            self.travel(&client_machine, &server_machine).await;
            if loss == Some(Loss::Connection) {
                sleep(CONNECT).await;
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        let Some(listener) = self.inner().listeners.get(&(server.clone(), port)).cloned() else {
            sleep(UNREACHABLE).await;
            return Err(io::ErrorKind::HostUnreachable.into());
        };
        if is_loopback {
            let (near, far) = duplex(BUFFER);
            let sent = listener.send((Box::new(far), from.parse().ok()));
            return match sent {
                Ok(()) => Ok(Box::new(near)),
                Err(_) => Err(io::ErrorKind::ConnectionRefused.into()),
            };
        }
        let (near, client) = duplex(BUFFER);
        let (far, server_side) = duplex(BUFFER);
        let sent = listener.send((Box::new(server_side), from.parse().ok()));
        sent.map_err(|_| io::Error::from(io::ErrorKind::ConnectionRefused))?;
        let (from_client, to_client) = split(client);
        let (from_server, to_server) = split(far);
        let doubles = self.has_fault(&client_machine, &server_machine, |fault| fault == LinkFault::Double);
        let there = Way {
            network: self.clone(),
            from: client_machine,
            to: server_machine,
        };
        let back = there.back();
        let double = doubles.then(|| listener.clone());
        if loss == Some(Loss::Request) {
            tokio::spawn(lose(from_client, to_server));
        } else {
            tokio::spawn(there.carry(from_client, to_server, double));
        }
        if loss == Some(Loss::Answer) {
            tokio::spawn(lose(from_server, to_client));
        } else {
            tokio::spawn(back.carry(from_server, to_client, None));
        }
        Ok(Box::new(near))
    }
}

/// Nothing arrives, and nobody is told.
async fn lose(mut from: ReadHalf<DuplexStream>, to: WriteHalf<DuplexStream>) {
    let mut chunk = vec![0; 1 << 12];
    while let Ok(1..) = from.read(&mut chunk).await {}
    sleep(RETRIES).await;
    drop(to);
}

/// One direction of a connection.
struct Way {
    network: Network,
    from: String,
    to: String,
}

impl Way {
    fn back(&self) -> Self {
        Self {
            network: self.network.clone(),
            from: self.to.clone(),
            to: self.from.clone(),
        }
    }

    async fn carry(
        self,
        mut from: ReadHalf<DuplexStream>,
        mut to: WriteHalf<DuplexStream>,
        double: Option<UnboundedSender<Incoming>>,
    ) {
        let mut chunk = vec![0; 1 << 14];
        let mut sent = Vec::new();
        while let Ok(read @ 1..) = from.read(&mut chunk).await {
            self.network.travel(&self.from, &self.to).await;
            if double.is_some() {
                sent.extend_from_slice(&chunk[..read]);
            }
            if to.write_all(&chunk[..read]).await.is_err() {
                break;
            }
        }
        // The end of a connection is a message too.
        self.network.travel(&self.from, &self.to).await;
        let _ = to.shutdown().await;
        if let Some(listener) = double {
            sleep(Duration::from_secs(2)).await;
            let (mut near, far) = duplex(BUFFER);
            if listener.send((Box::new(far), None)).is_ok() && near.write_all(&sent).await.is_ok() {
                // Nobody reads the second answer.
                sleep(Duration::from_secs(10)).await;
            }
        }
    }
}

/// A connection and the address of its client.
type Incoming = (Connection, Option<IpAddr>);

struct Accepting {
    address: Option<SocketAddr>,
    connections: tokio::sync::Mutex<UnboundedReceiver<Incoming>>,
}

impl Accepting {
    fn new(address: Option<SocketAddr>, connections: UnboundedReceiver<Incoming>) -> Self {
        let connections = tokio::sync::Mutex::new(connections);
        Self { address, connections }
    }
}

impl fmt::Debug for Accepting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.address)
    }
}

impl Accept for Accepting {
    fn accept(&self) -> BoxFuture<'_, io::Result<Incoming>> {
        Box::pin(async {
            let next = self.connections.lock().await.recv().await;
            next.ok_or_else(|| io::ErrorKind::ConnectionAborted.into())
        })
    }

    fn address(&self) -> Option<SocketAddr> {
        self.address
    }
}
