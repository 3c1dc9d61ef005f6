//! Which kinds of faults struck while which kinds of effects were under way.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    sync::Arc,
    time::Duration,
};

use serde_json::Value;
use slurm::node::NodeFlag;

use crate::{
    slurm::{State, state::JobPhase},
    world::{World, elapsed},
};

/// A pair that was struck less often is rare.
const RARE: u64 = 100;

/// The first line of the table.
const HISTORIES: &str = "Histories: ";

/// A job that started this recently counts as starting.
const STARTING: Duration = Duration::from_secs(3);

/// Kinds of effects, in the order of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    WorkerStarts,
    WorkerDrained,
    ProofAsked,
    WorkerEnds,
    ScaleOut,
    ScaleIn,
    Update,
    Delivery,
    DryRun,
    Reconfigure,
    SlurmctldStarts,
    LeaderChanges,
    PartitionChanges,
    ObjectEnds,
    JobStarts,
    JobRuns,
    JobCompletes,
    OrderStands,
}

impl Effect {
    pub const ALL: [Self; 18] = [
        Self::WorkerStarts,
        Self::WorkerDrained,
        Self::ProofAsked,
        Self::WorkerEnds,
        Self::ScaleOut,
        Self::ScaleIn,
        Self::Update,
        Self::Delivery,
        Self::DryRun,
        Self::Reconfigure,
        Self::SlurmctldStarts,
        Self::LeaderChanges,
        Self::PartitionChanges,
        Self::ObjectEnds,
        Self::JobStarts,
        Self::JobRuns,
        Self::JobCompletes,
        Self::OrderStands,
    ];

    /// What histories about pairs aim at, in turn: rare effects often, and those seldom that are under way during others anyway.
    pub const AIMED: [Self; 37] = [
        Self::DryRun,
        Self::Update,
        Self::JobCompletes,
        Self::Reconfigure,
        Self::WorkerEnds,
        Self::DryRun,
        Self::LeaderChanges,
        Self::Update,
        Self::JobStarts,
        Self::ObjectEnds,
        Self::DryRun,
        Self::ProofAsked,
        Self::Reconfigure,
        Self::Update,
        Self::JobCompletes,
        Self::SlurmctldStarts,
        Self::DryRun,
        Self::WorkerEnds,
        Self::PartitionChanges,
        Self::LeaderChanges,
        Self::Update,
        Self::Reconfigure,
        Self::JobStarts,
        Self::DryRun,
        Self::ObjectEnds,
        Self::OrderStands,
        Self::JobCompletes,
        Self::Update,
        Self::WorkerDrained,
        Self::DryRun,
        Self::LeaderChanges,
        Self::Reconfigure,
        Self::WorkerEnds,
        Self::JobStarts,
        Self::SlurmctldStarts,
        Self::ObjectEnds,
        Self::ScaleIn,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::WorkerStarts => "a worker starts",
            Self::WorkerDrained => "a worker is drained by us",
            Self::ProofAsked => "a drained worker is idle",
            Self::WorkerEnds => "a worker pod ends",
            Self::ScaleOut => "scale-out",
            Self::ScaleIn => "scale-in",
            Self::Update => "update",
            Self::Delivery => "configuration on its way",
            Self::DryRun => "dry run",
            Self::Reconfigure => "reconfigure",
            Self::SlurmctldStarts => "slurmctld starts",
            Self::LeaderChanges => "no leader",
            Self::PartitionChanges => "partition on its way",
            Self::ObjectEnds => "an object is being deleted",
            Self::JobStarts => "a job starts",
            Self::JobRuns => "a job runs",
            Self::JobCompletes => "a job completes",
            Self::OrderStands => "a person's drain stands",
        }
    }

    /// What is under way.
    pub fn under_way(world: &World) -> Vec<Self> {
        let view = View::of(world);
        Self::ALL
            .into_iter()
            .filter(|effect| view.has(world, *effect))
            .collect()
    }

    pub fn is_under_way(self, world: &World) -> bool {
        match self {
            // Without a look at everything, as they are waited for closely.
            Self::DryRun => world.is_under_way("dry run"),
            Self::Reconfigure => world.is_under_way("reconfigure"),
            _ => View::of(world).has(world, self),
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|effect| effect.name() == name)
    }
}

/// Objects and Slurm's state at one time.
struct View {
    workers: Vec<Arc<Value>>,
    sets: Vec<Arc<Value>>,
    partitions: BTreeSet<String>,
    state: Option<State>,
}

fn is_ending(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

impl View {
    fn of(world: &World) -> Self {
        let slurm = world.slurm();
        let state = world.active().and_then(|active| slurm.state(active).ok().cloned());
        drop(slurm);
        let mut workers = world.all("pods");
        workers.retain(|pod| pod["metadata"]["labels"]["app.kubernetes.io/name"] == "slurmd");
        let sets = world.all("nodesets");
        let partitions = [world.names("partitions"), world.names("nodesets")].concat();
        let partitions = partitions.into_iter().collect();
        Self {
            workers,
            sets,
            partitions,
            state,
        }
    }

    /// The workers of a NodeSet.
    fn of_set<'a>(&'a self, set: &'a Value) -> impl Iterator<Item = &'a Arc<Value>> {
        let owns = |pod: &&Arc<Value>| pod["metadata"]["ownerReferences"][0]["uid"] == set["metadata"]["uid"];
        self.workers.iter().filter(owns)
    }

    fn sets_where(&self, holds: impl Fn(&Value, u64) -> bool) -> bool {
        let wanted = |set: &Value| set["spec"]["replicas"].as_u64().unwrap_or(1);
        self.sets.iter().any(|set| !is_ending(set) && holds(set, wanted(set)))
    }

    fn has(&self, world: &World, effect: Effect) -> bool {
        let state = self.state.as_ref();
        let nodes = || state.iter().flat_map(|state| state.nodes.values());
        let ours =
            |node: &&crate::slurm::state::Node| node.has(NodeFlag::Drain) && node.reason.starts_with("slurm-operator");
        let jobs = || state.iter().flat_map(|state| state.jobs.values());
        match effect {
            Effect::WorkerStarts => self.workers.iter().any(|pod| {
                let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
                let is_ready = |found: &Value| found["type"] == "Ready" && found["status"] == "True";
                !is_ending(pod) && !conditions.iter().any(is_ready)
            }),
            Effect::WorkerDrained => nodes().any(|node| ours(&node)),
            Effect::ProofAsked => {
                let idle = |name: &str| state.is_some_and(|state| state.jobs_on(name).next().is_none());
                nodes().filter(ours).any(|node| idle(&node.name))
            }
            Effect::WorkerEnds => self.workers.iter().any(|worker| is_ending(worker)),
            Effect::ScaleOut => self.sets_where(|set, wanted| (self.of_set(set).count() as u64) < wanted),
            Effect::ScaleIn => self.sets_where(|set, wanted| self.of_set(set).count() as u64 > wanted),
            Effect::Update => self.sets_where(|set, _| {
                let image = set["spec"]["slurmd"]["image"].as_str();
                let is_old =
                    |pod: &Arc<Value>| image.is_some() && pod["spec"]["containers"][0]["image"].as_str() != image;
                self.of_set(set).any(is_old)
            }),
            Effect::Delivery => world.configuration_differs().is_some(),
            Effect::DryRun | Effect::Reconfigure => effect.is_under_way(world),
            Effect::SlurmctldStarts => state.is_none(),
            Effect::LeaderChanges => !world.has_leader(),
            Effect::PartitionChanges => state.is_some_and(|state| !state.partitions.keys().eq(self.partitions.iter())),
            Effect::ObjectEnds => {
                let kinds = ["nodesets", "partitions", "controllers"];
                kinds
                    .iter()
                    .any(|plural| world.all(plural).iter().any(|object| is_ending(object)))
            }
            Effect::JobStarts => {
                let recent = |at: Duration| elapsed().saturating_sub(at) < STARTING;
                jobs().any(|job| job.phase == JobPhase::Running && job.started.is_some_and(recent))
            }
            Effect::JobRuns => jobs().any(|job| job.phase.has_nodes()),
            Effect::JobCompletes => jobs().any(crate::slurm::state::Job::is_completing),
            Effect::OrderStands => {
                nodes().any(|node| node.has(NodeFlag::Drain) && !node.reason.starts_with("slurm-operator"))
            }
        }
    }
}

/// How often each kind of fault struck while each kind of effect was under way, in so many histories.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    pub histories: u64,
    struck: BTreeMap<String, BTreeMap<Effect, u64>>,
}

impl Table {
    /// A fault strikes.
    pub fn note(&mut self, fault: String, effects: &[Effect]) {
        let row = self.struck.entry(fault).or_default();
        for effect in effects {
            *row.entry(*effect).or_default() += 1;
        }
    }

    pub fn add(&mut self, other: &Self) {
        self.histories += other.histories;
        for (fault, effects) in &other.struck {
            let row = self.struck.entry(fault.clone()).or_default();
            for (effect, count) in effects {
                *row.entry(*effect).or_default() += count;
            }
        }
    }

    /// All pairs with their counts, the rarest first.
    fn pairs(&self) -> Vec<(u64, &str, Effect)> {
        let rows = self.struck.iter();
        let mut pairs: Vec<_> = rows
            .flat_map(|(fault, row)| {
                let count = |effect| row.get(&effect).copied().unwrap_or_default();
                Effect::ALL.map(|effect| (count(effect), fault.as_str(), effect))
            })
            .collect();
        pairs.sort_unstable();
        pairs
    }

    /// How many pairs were struck too rarely, and which.
    pub fn summary(&self) -> String {
        let pairs = self.pairs();
        let rare: Vec<_> = pairs.iter().filter(|(count, ..)| *count < RARE).collect();
        let mut text = format!(
            "{} of {} pairs were struck fewer than {RARE} times; half of all {} times or more, the rarest {} times\n",
            rare.len(),
            pairs.len(),
            pairs.get(pairs.len() / 2).map_or(0, |pair| pair.0),
            pairs.first().map_or(0, |pair| pair.0),
        );
        for (count, fault, effect) in rare {
            let _ = writeln!(text, "{count:>6}  {fault} while {}", effect.name());
        }
        text
    }

    /// The table in Markdown.
    pub fn render(&self) -> String {
        let mut text = format!("{HISTORIES}{}\n\n| fault |", self.histories);
        for effect in Effect::ALL {
            let _ = write!(text, " {} |", effect.name());
        }
        let _ = write!(text, "\n|---|{}\n", "---:|".repeat(Effect::ALL.len()));
        for (fault, row) in &self.struck {
            let _ = write!(text, "| {fault} |");
            for effect in Effect::ALL {
                let _ = write!(text, " {} |", row.get(&effect).copied().unwrap_or_default());
            }
            text.push('\n');
        }
        text
    }

    /// Reads what [`Self::render`] wrote.
    pub fn parse(text: &str) -> Self {
        let histories = text.lines().find_map(|line| line.strip_prefix(HISTORIES)?.parse().ok());
        let mut rows = text
            .lines()
            .filter_map(|line| Some(line.strip_prefix("| ")?.split('|').map(str::trim)));
        let effects: Vec<Option<Effect>> = rows.next().into_iter().flatten().skip(1).map(Effect::named).collect();
        let struck = rows.map(|mut cells| {
            let fault = cells.next().unwrap_or_default().to_owned();
            let counts = effects.iter().zip(cells);
            let row = counts.filter_map(|(effect, count)| Some(((*effect)?, count.parse().ok()?)));
            (fault, row.collect())
        });
        Self {
            histories: histories.unwrap_or_default(),
            struck: struck.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_rare_until_it_was_struck_often() {
        let mut table = Table::default();
        let mut one = Table {
            histories: 1,
            ..Table::default()
        };
        one.note("Kill".to_owned(), &[Effect::JobRuns]);
        for _ in 1..RARE {
            table.add(&one);
        }
        let all = Effect::ALL.len();
        assert!(
            table
                .summary()
                .contains(&format!("99  Kill while {}", Effect::JobRuns.name()))
        );
        table.add(&one);
        assert!(
            table.summary().starts_with(&format!("{} of {all} pairs", all - 1)),
            "{}",
            table.summary()
        );
        assert_eq!(Table::parse(&table.render()).histories, RARE);
    }

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let mut table = Table::default();
        table.note("Kill".to_owned(), &Effect::ALL);
        table.note("Kill".to_owned(), &[Effect::DryRun]);
        table.note("Link Cut".to_owned(), &Effect::ALL);
        assert_eq!(Table::parse(&table.render()), table);
        assert_eq!(Table::parse(""), Table::default());
    }
}
