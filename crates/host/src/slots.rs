//! The connections that a server holds open. A client that opens thousands of them displaces its own, not those of others.

use std::{
    collections::BTreeMap,
    fmt, io,
    net::IpAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::FutureExt as _;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::oneshot,
    time::{Sleep, sleep},
};

/// How many connections a server holds.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections that have not authenticated.
    pub unauthenticated: usize,
    /// Connections of one address that have not authenticated.
    pub per_address: usize,
    /// Connections that have; no other takes their places.
    pub authenticated: usize,
    /// The time to authenticate. `None` where clients do not.
    pub patience: Option<Duration>,
}

/// The places for connections. There is always one for a new connection: the oldest of its address gives way, or the
/// oldest of the address that has most. A clone has the same places.
#[derive(Debug, Clone)]
pub struct Slots {
    limits: Limits,
    places: Arc<Mutex<Places>>,
}

#[derive(Debug, Default)]
struct Places {
    next: u64,
    /// In the order in which they were accepted.
    open: BTreeMap<u64, Place>,
}

#[derive(Debug)]
struct Place {
    address: Option<IpAddr>,
    authenticated: bool,
    /// Dropped to close the connection.
    _open: oneshot::Sender<()>,
}

impl Slots {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            places: Arc::default(),
        }
    }

    /// Gives a new connection a place.
    pub fn hold<S>(&self, stream: S, address: Option<IpAddr>) -> Held<S> {
        let (open, displaced) = oneshot::channel();
        let mut places = self.places();
        places.make_room(&self.limits, address);
        let id = places.next;
        places.next += 1;
        let place = Place {
            address,
            authenticated: false,
            _open: open,
        };
        places.open.insert(id, place);
        Held {
            stream,
            displaced: Some(displaced),
            patience: self.limits.patience.map(|patience| Box::pin(sleep(patience))),
            slot: Slot {
                id,
                slots: self.clone(),
            },
        }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Places {
    fn of(&self, authenticated: bool) -> impl Iterator<Item = (u64, Option<IpAddr>)> {
        let places = self
            .open
            .iter()
            .filter(move |(_, place)| place.authenticated == authenticated);
        places.map(|(id, place)| (*id, place.address))
    }

    fn make_room(&mut self, limits: &Limits, address: Option<IpAddr>) {
        // By address: how many, and the oldest.
        let mut addresses: BTreeMap<Option<IpAddr>, (usize, u64)> = BTreeMap::new();
        for (id, address) in self.of(false) {
            addresses.entry(address).or_insert((0, id)).0 += 1;
        }
        let all: usize = addresses.values().map(|(count, _)| count).sum();
        let own = addresses
            .get(&address)
            .filter(|(count, _)| *count >= limits.per_address);
        // Of equals the address whose oldest connection is older.
        let most = addresses
            .values()
            .max_by_key(|(count, oldest)| (*count, u64::MAX - oldest));
        let displaced = own.or_else(|| most.filter(|_| all >= limits.unauthenticated));
        if let Some((_, oldest)) = displaced.copied() {
            self.open.remove(&oldest);
        }
    }
}

/// The place of a connection.
#[derive(Debug, Clone)]
pub struct Slot {
    id: u64,
    slots: Slots,
}

impl Slot {
    /// The connection has authenticated: it keeps its place.
    pub fn authenticated(&self) {
        let mut places = self.slots.places();
        if places.open.get(&self.id).is_none_or(|place| place.authenticated) {
            return;
        }
        let mut others = places.of(true);
        let oldest = others.next().map(|(id, _)| id);
        if 1 + others.count() >= self.slots.limits.authenticated
            && let Some(oldest) = oldest
        {
            places.open.remove(&oldest);
        }
        if let Some(place) = places.open.get_mut(&self.id) {
            place.authenticated = true;
        }
    }

    fn is_authenticated(&self) -> bool {
        let places = self.slots.places();
        places.open.get(&self.id).is_some_and(|place| place.authenticated)
    }
}

/// A connection with a place. It fails when it loses its place, and frees it when it is dropped.
pub struct Held<S> {
    stream: S,
    /// Ends when the place is lost. `None` afterwards.
    displaced: Option<oneshot::Receiver<()>>,
    patience: Option<Pin<Box<Sleep>>>,
    slot: Slot,
}

impl<S> fmt::Debug for Held<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("slot", &self.slot).finish_non_exhaustive()
    }
}

impl<S> Held<S> {
    pub fn slot(&self) -> Slot {
        self.slot.clone()
    }

    /// Whether it has lost its place.
    fn poll_lost(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        let displaced = self.displaced.as_mut();
        if displaced.is_none_or(|displaced| displaced.poll_unpin(context).is_ready()) {
            self.displaced = None;
            return Poll::Ready(io::Error::new(io::ErrorKind::ConnectionAborted, "too many connections"));
        }
        let Some(patience) = &mut self.patience else {
            return Poll::Pending;
        };
        ready!(patience.poll_unpin(context));
        if !self.slot.is_authenticated() {
            return Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, "no valid request in time"));
        }
        self.patience = None;
        Poll::Pending
    }
}

impl<S> Drop for Held<S> {
    fn drop(&mut self) {
        self.slot.slots.places().open.remove(&self.slot.id);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Held<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let held = self.get_mut();
        match held.poll_lost(context) {
            Poll::Ready(error) => Poll::Ready(Err(error)),
            Poll::Pending => Pin::new(&mut held.stream).poll_read(context, buffer),
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Held<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let held = self.get_mut();
        match held.poll_lost(context) {
            Poll::Ready(error) => Poll::Ready(Err(error)),
            Poll::Pending => Pin::new(&mut held.stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;

    const LIMITS: Limits = Limits {
        unauthenticated: 10,
        per_address: 4,
        authenticated: 2,
        patience: Some(Duration::from_secs(5)),
    };

    fn address(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    /// A connection and its client's end.
    type Ends = (Held<DuplexStream>, DuplexStream);

    fn open(slots: &Slots, last: u8) -> Ends {
        let (near, far) = duplex(64);
        (slots.hold(near, Some(address(last))), far)
    }

    async fn works((held, client): &mut Ends) -> bool {
        client.write_all(b"x").await.is_ok() && held.read_u8().await.is_ok()
    }

    async fn working(connections: &mut [Ends]) -> Vec<bool> {
        let mut all = Vec::new();
        for connection in connections {
            all.push(works(connection).await);
        }
        all
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_one_address_displaces_its_own_connections() {
        let slots = Slots::new(LIMITS);
        let mut other = open(&slots, 1);
        let mut flood: Vec<_> = (0..2000).map(|_| open(&slots, 2)).collect();
        assert!(works(&mut other).await);
        let mut expected = vec![false; 1996];
        expected.extend([true; 4]);
        assert_eq!(working(&mut flood).await, expected);
        assert_eq!(slots.places().open.len(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn the_address_with_most_connections_gives_way_to_another() {
        let slots = Slots::new(LIMITS);
        let mut single = open(&slots, 1);
        let mut flood: Vec<_> = (0..12).map(|number| open(&slots, 2 + number % 3)).collect();
        let mut late = open(&slots, 9);
        assert!(works(&mut single).await);
        assert!(works(&mut late).await);
        let alive = working(&mut flood).await;
        assert_eq!(alive.iter().filter(|alive| **alive).count(), 8, "{alive:?}");
        assert!(alive.ends_with(&[true; 8]), "{alive:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_does_not_authenticate_is_closed_in_time() {
        let slots = Slots::new(LIMITS);
        let (mut silent, _client) = open(&slots, 1);
        let mut known = open(&slots, 1);
        known.0.slot().authenticated();
        let start = tokio::time::Instant::now();
        let error = silent.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(start.elapsed(), Duration::from_secs(5));
        assert!(works(&mut known).await);
    }

    /// Requests that fail to authenticate do not prolong it.
    #[tokio::test(start_paused = true)]
    async fn slow_bytes_do_not_keep_a_connection() {
        let slots = Slots::new(LIMITS);
        let mut slow = open(&slots, 1);
        let mut seconds = 0;
        while works(&mut slow).await {
            seconds += 1;
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(seconds, 5);
    }

    #[tokio::test(start_paused = true)]
    async fn authenticated_connections_have_places_of_their_own() {
        let slots = Slots::new(LIMITS);
        let mut known = open(&slots, 2);
        known.0.slot().authenticated();
        let _flood: Vec<_> = (0..2000_u32)
            .map(|number| open(&slots, number.to_be_bytes()[3]))
            .collect();
        assert!(works(&mut known).await);
        assert_eq!(slots.places().open.len(), 11);
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_authenticated_connection_gives_way_to_a_new_one() {
        let slots = Slots::new(LIMITS);
        let mut known: Vec<_> = (0..3).map(|_| open(&slots, 1)).collect();
        for (held, _) in &known {
            held.slot().authenticated();
            held.slot().authenticated();
        }
        assert_eq!(working(&mut known).await, [false, true, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_connection_frees_its_place() {
        let slots = Slots::new(LIMITS);
        let mut first = open(&slots, 1);
        for _ in 0..100 {
            drop(open(&slots, 1));
        }
        assert!(works(&mut first).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_displaced_connection_cannot_write() {
        let slots = Slots::new(LIMITS);
        let (mut first, _client) = open(&slots, 1);
        let _flood: Vec<_> = (0..4).map(|_| open(&slots, 1)).collect();
        let error = first.write_u8(1).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
        // TLS reads again to say goodbye.
        let again = first.read_u8().await.unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::ConnectionAborted);
    }
}
