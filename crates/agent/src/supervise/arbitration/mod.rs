//! Several slurmctld share one state volume, and only one of them may write to it.
//!
//! Slurm agrees on that by messages and timeouts, which two cases slip through. The first in order, when it comes back, waits
//! half a minute for the one in charge to hand over and then starts whatever that one still does; and one that hung while
//! another took over goes on as if nothing had happened. In both of them two slurmctld write, and jobs were lost. So the
//! supervisors agree beforehand, by records on that very volume:
//!
//! * Before the first one starts, the others' slurmctld are ended, gracefully. They start anew, as standbys, when it is in charge.
//! * One that is in charge while another took charge after it is killed, even if it is stopped.
//!
//! [`place`], [`record`] and [`heartbeat`] decide, [`volume`] reads and writes.

pub mod heartbeat;
pub mod place;
pub mod record;
mod volume;

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tracing::{info, warn};

use crate::check::read_files;
use crate::dry_run::configuration_of;
use heartbeat::Beats;
use place::Place;
use record::{LONGEST_END, LONGEST_START, LastLife, PATIENCE, Seen, must_ask};
use volume::{Change, Volume};

/// What the supervisor has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// What the start had to wait for has come, or never will.
    Start,
    /// The first in order is to come: the daemon, if one runs, is to end and to start anew.
    StandBack,
    /// It did not end in time, or another has taken charge since it did.
    Kill,
}

#[derive(Debug)]
pub struct Standing {
    config_dir: PathBuf,
    hostname: String,
    /// Only where there are others.
    volume: Option<Volume>,
    seen: Option<Seen>,
    /// How often the daemon took charge.
    charges: u64,
    beats: Beats,
    /// Asked by this one, which starts when the others have followed.
    asking: Option<Question>,
    /// Asked by the first: the daemon has to end,
    yielding: Option<Question>,
    /// and has to wait for the first before it starts again.
    following: Option<Question>,
}

/// A question to stand back that is not settled yet.
#[derive(Debug, Clone, Copy)]
struct Question {
    number: u64,
    since: Instant,
}

impl Question {
    fn age(self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }
}

impl Standing {
    pub fn new(config_dir: PathBuf, hostname: String) -> Self {
        Self {
            config_dir,
            hostname,
            volume: None,
            seen: None,
            charges: 0,
            beats: Beats::default(),
            asking: None,
            yielding: None,
            following: None,
        }
    }

    /// Before each start, with how the life before ended. True if the start has to wait for [`Order::Start`].
    pub fn must_wait(&mut self, last: Option<LastLife>, now: Instant) -> bool {
        self.find_place();
        let Some(volume) = &self.volume else { return false };
        if must_ask(volume.place.own, last) {
            let number = new_number();
            info!("asking the other slurmctld to stand back before this one starts");
            volume.change(Change::Asked(number));
            self.asking = Some(Question { number, since: now });
        }
        self.is_waiting()
    }

    pub fn is_waiting(&self) -> bool {
        self.asking.or(self.following).is_some()
    }

    /// The files say who the others are, and are read by each new process.
    fn find_place(&mut self) {
        let files = read_files(&self.config_dir).unwrap_or_default();
        let place = Place::find(&configuration_of(&files), &self.hostname);
        if self.volume.as_ref().map(|volume| &volume.place) == place.as_ref() {
            return;
        }
        (self.seen, self.yielding, self.following) = (None, None, None);
        self.volume = place.and_then(|place| {
            Volume::open(place)
                .inspect_err(|error| warn!(%error, "nobody watches the other slurmctld"))
                .ok()
        });
    }

    /// Returns when there is something new.
    pub async fn changed(&mut self) {
        match &mut self.volume {
            Some(volume) => match volume.next().await {
                Some(seen) => self.seen = Some(seen),
                None => self.volume = None,
            },
            None => std::future::pending().await,
        }
    }

    /// Whether what is new shows that the daemon is in charge, whatever it says.
    pub fn is_beating(&mut self) -> bool {
        let Some(seen) = &self.seen else { return false };
        self.beats.look(seen.heartbeat, seen.index)
    }

    /// When to look for an [`order`](Self::order) though nothing has changed.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let start = self
            .asking
            .map(|asking| now + self.left(asking, now).unwrap_or_default());
        let kill = self.yielding.map(|yielding| yielding.since + LONGEST_END);
        [start, kill].into_iter().flatten().min()
    }

    fn left(&self, asking: Question, now: Instant) -> Option<Duration> {
        let waited = asking.age(now);
        match self.seen.as_ref().filter(|seen| seen.own.asks == asking.number) {
            Some(seen) => seen.wait(asking.number, waited),
            // The volume does not answer.
            None => Some(PATIENCE.saturating_sub(waited)).filter(|left| !left.is_zero()),
        }
    }

    /// One thing to do, if there is any. `in_charge` is what the daemon says of itself.
    pub fn order(&mut self, in_charge: bool, now: Instant) -> Option<Order> {
        // First of all: one that is told to end gracefully writes what it believes to know.
        if in_charge && let Some(successor) = self.successor() {
            warn!(%successor, "another slurmctld took charge after this one: killing it before it writes");
            return Some(Order::Kill);
        }
        if let Some(asking) = self.asking {
            return self.left(asking, now).is_none().then(|| self.stop_asking(asking));
        }
        if let Some(following) = self.following {
            return self.follow(following, now);
        }
        if let Some(yielding) = &mut self.yielding {
            if yielding.age(now) < LONGEST_END {
                return None;
            }
            warn!("slurmctld does not end, and the first one waits for it: killing it");
            yielding.since = now;
            return Some(Order::Kill);
        }
        let number = self.seen.as_ref()?.asked()?;
        info!("the first slurmctld is about to start: standing back");
        self.yielding = Some(Question { number, since: now });
        self.tell(Change::Heard(number));
        Some(Order::StandBack)
    }

    fn follow(&mut self, following: Question, now: Instant) -> Option<Order> {
        let seen = self.seen.as_ref();
        let settled = seen.is_some_and(|seen| seen.is_settled(following.number));
        if settled || following.age(now) >= LONGEST_START {
            self.following = None;
            return Some(Order::Start);
        }
        // It had to begin again, and there is still nothing here that could be in its way.
        let number = seen?.asked().filter(|number| *number != following.number)?;
        self.tell(Change::Yielded(number));
        self.following = Some(Question { number, since: now });
        None
    }

    fn successor(&self) -> Option<&str> {
        let seen = self.seen.as_ref().filter(|seen| seen.charge == self.charges)?;
        seen.successor()
    }

    fn stop_asking(&mut self, asking: Question) -> Order {
        self.asking = None;
        let silent = self.seen.iter().flat_map(|seen| seen.silent(asking.number));
        let silent: Vec<&str> = silent.map(|(host, _)| host).collect();
        if !silent.is_empty() {
            warn!(?silent, "starting though not all others have stood back");
        }
        Order::Start
    }

    pub fn took_charge(&mut self) {
        self.charges += 1;
        self.tell(Change::TookCharge(self.charges));
    }

    /// It is a standby.
    pub fn stood_back(&mut self) {
        self.beats.begin_life();
        self.tell(Change::LostCharge);
    }

    /// No process of it is left.
    pub fn ended(&mut self, now: Instant) {
        self.beats.begin_life();
        self.tell(Change::LostCharge);
        if let Some(Question { number, .. }) = self.yielding.take() {
            self.tell(Change::Yielded(number));
            self.following = Some(Question { number, since: now });
        }
    }

    /// Nobody has to wait for this supervisor from now on.
    pub async fn leave(&mut self) {
        if let Some(volume) = self.volume.take() {
            volume.leave().await;
        }
    }

    fn tell(&self, change: Change) {
        if let Some(volume) = &self.volume {
            volume.change(change);
        }
    }
}

/// Not one that was used before, by whatever process.
fn new_number() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX).max(1)
}
