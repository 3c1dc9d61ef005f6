//! What the production code logs, in the story.

use std::{cell::RefCell, fmt::Write as _};

use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, layer::Context, layer::SubscriberExt as _};

use crate::world::World;

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// Adds everything that this thread logs to the story of the world, with `debug` also its details.
pub(crate) fn tell(world: &World) {
    WORLD.set(Some(world.clone()));
}

/// Sends all logs of this process to the worlds of its threads.
pub fn install(debug: bool) {
    let most = if debug { Level::DEBUG } else { Level::INFO };
    let subscriber = tracing_subscriber::registry().with(Story { most });
    // Only the first call in a process has an effect.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

struct Story {
    most: Level,
}

impl<S: Subscriber> Layer<S> for Story {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let meta = event.metadata();
        let is_ours = ["slurm_operator", "operator", "slurm_agent", "agent", "runtime"];
        let module = meta.target().split("::").next().unwrap_or_default();
        if *meta.level() > self.most || !is_ours.contains(&module) {
            return;
        }
        let mut words = Words(String::new());
        event.record(&mut words);
        WORLD.with_borrow(|world| {
            if let Some(world) = world {
                world.tell(format!("  {} {}:{}", meta.level(), meta.target(), words.0));
            }
        });
    }
}

struct Words(String);

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}
