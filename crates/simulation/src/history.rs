//! Random histories: what people do and what breaks, all drawn from one seed.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt as _;
use serde_json::json;
use tokio::time::sleep;

use crate::{
    coverage::{Effect, Table},
    log,
    oracles::{self, Judge},
    panics, script,
    situations::chosen_situation,
    world::{
        Random, World,
        api::ApiFault,
        elapsed,
        faults::{Client, Fault},
    },
};

/// Events of one history.
const EVENTS: u64 = 40;

/// How often a history brings a chosen situation about.
const REPEATED: u64 = 5;

/// Faults of one history, at least.
const FAULTS: u64 = 3;

/// After the last fault everything is as people want it within this time.
const SETTLED: Duration = Duration::from_mins(20);

/// From then on nothing is written any more: counts are written every 15 s, back-offs last at most five minutes.
const QUIET: Duration = Duration::from_mins(3);

/// A machine that was cut off counts as back within this time.
const NOTED: Duration = Duration::from_mins(10);

/// How long nothing may be written at rest.
const REST: Duration = Duration::from_mins(2);

/// An idle cluster is deleted within this time.
const DELETED: Duration = Duration::from_mins(5);

/// Then operators have forgotten it: a failed reconcile of what is gone is repeated after a minute at most.
const FORGOTTEN: Duration = Duration::from_mins(2);

/// How long a fault waits for the effect that it is aimed at.
const AIM: Duration = Duration::from_secs(20);

/// How long a fault waits for the end of earlier ones.
const HEALED_WITHIN: Duration = Duration::from_mins(1);

/// How often it is tried to bring the effect about.
const TRIES: u32 = 2;

/// So many faults strike at once in histories about pairs.
const AT_ONCE: usize = 4;

/// How closely it looks: a reconfigure takes 150 ms.
const AIM_STEP: Duration = Duration::from_millis(50);

/// What a history is about: this happens often in it, as it is rare in others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Topic {
    Everything,
    Workers,
    /// slurmctld is killed before it has saved something.
    Forgotten,
    Configuration,
    Leaders,
    /// Several events in a row at the right moments (`situations.rs`).
    Situations,
    /// Each kind of fault strikes during each kind of effect, in turn. `SIMULATION_TOPIC=pairs` chooses it.
    Pairs,
}

const TOPICS: [Topic; 6] = [
    Topic::Everything,
    Topic::Everything,
    Topic::Workers,
    Topic::Forgotten,
    Topic::Configuration,
    Topic::Leaders,
];

/// One in so many histories is about situations. Their seeds are a rest, so that the other histories stay as they are when there is
/// another situation.
const SITUATIONS: (u64, u64) = (4, 1);

/// What became of a history.
#[derive(Debug)]
pub struct Outcome {
    pub seed: u64,
    pub story: Vec<String>,
    pub failures: Vec<String>,
    /// How often each kind of fault struck while each kind of effect was under way.
    pub struck: Table,
    pub lasted: Duration,
    pub jobs: usize,
    /// From the end of the last fault until everything was as people want it.
    pub settled: Option<Duration>,
}

/// Plays one history. A panic in it is a failure.
pub fn play(seed: u64) -> Outcome {
    panics::collect();
    let mut outcome = crate::world::run(async || {
        let world = World::new(seed, 6);
        log::tell(&world);
        let random = world.random.fork();
        let mut history = History {
            seed,
            world: world.clone(),
            topic: match *random.pick(&TOPICS).unwrap() {
                _ if std::env::var("SIMULATION_TOPIC").is_ok_and(|topic| topic == "pairs") => Topic::Pairs,
                _ if seed % SITUATIONS.0 == SITUATIONS.1 => Topic::Situations,
                drawn => drawn,
            },
            random,
            judge: Judge::default(),
            struck: Table::default(),
            images: 0,
            settled: None,
        };
        // What panicked is collected.
        let _ = AssertUnwindSafe(history.run()).catch_unwind().await;
        let jobs = world.slurm().ledger.jobs.len();
        Outcome {
            seed,
            story: world.story(),
            failures: history.judge.failures,
            struck: history.struck,
            lasted: elapsed(),
            jobs,
            settled: history.settled,
        }
    });
    outcome.failures.extend(panics::take());
    outcome
}

pub(crate) struct History {
    seed: u64,
    pub(crate) world: World,
    pub(crate) random: Random,
    pub(crate) judge: Judge,
    pub(crate) images: u64,
    pub(crate) topic: Topic,
    struck: Table,
    settled: Option<Duration>,
}

impl History {
    async fn run(&mut self) {
        oracles::create_foreign_objects(&self.world);
        script::install(&self.world, 3).await;
        self.judge.orders.note_objects(&self.world);
        self.world.tell(format!("this is about {:?}", self.topic));
        let mut faults = 0;
        // Some histories are calm, so that what needs time can happen between two faults.
        let every = *self.random.pick(&[3, 4, 8]).unwrap();
        let only = chosen_situation().is_some();
        for event in 0..if only { REPEATED } else { EVENTS } {
            if only || self.topic == Topic::Situations && self.random.one_in(4) {
                self.bring_about().await;
            } else if self.topic == Topic::Pairs {
                faults += 1;
                self.strike_pair(event).await;
            } else if self.random.one_in(every) || EVENTS - event <= FAULTS.saturating_sub(faults) {
                faults += 1;
                self.strike().await;
            } else if self.random.one_in(16) {
                self.change_mind().await;
            } else {
                self.act();
            }
            let time = if self.random.one_in(40) {
                self.random.between(60_000, 240_000)
            } else {
                self.random.between(200, 15_000)
            };
            self.pass(Duration::from_millis(time)).await;
        }
        self.heal().await;
        if self.settle().await {
            self.rest().await;
            self.judge.judge_all(&self.world);
            self.delete_all().await;
        } else {
            self.judge.judge_all(&self.world);
        }
    }

    /// Time passes, and the judge looks.
    pub(crate) async fn pass(&mut self, time: Duration) {
        let end = elapsed() + time;
        while elapsed() < end {
            sleep(Duration::from_secs(1).min(end.saturating_sub(elapsed()))).await;
            self.judge.look(&self.world);
        }
    }

    async fn strike(&mut self) {
        if self.topic == Topic::Forgotten && self.random.one_in(2) {
            return self.kill_unsaved().await;
        }
        if self.topic == Topic::Configuration && self.random.one_in(4) {
            return self.reopen_and_kill().await;
        }
        if self.random.one_in(2) {
            self.aim().await;
        }
        let fault = match self.topic {
            Topic::Workers if self.random.one_in(2) => Fault::of_workers(&self.random),
            Topic::Leaders if self.random.one_in(2) => Fault::of_leaders(&self.random),
            Topic::Configuration if self.random.one_in(2) => Fault::of_configuration(&self.random),
            _ => Fault::draw(&self.random),
        };
        self.struck.note(fault.kind(), &Effect::under_way(&self.world));
        self.suffer(fault);
    }

    /// Brings an effect about, and strikes it with several faults. Histories of consecutive seeds go on where the last one ended, so that
    /// all kinds of faults strike each effect in turn.
    async fn strike_pair(&mut self, event: u64) {
        let faults = Fault::of_each_kind(&self.random);
        let number = usize::try_from(self.seed * EVENTS + event).unwrap();
        let (round, place) = (number / Effect::AIMED.len(), number % Effect::AIMED.len());
        // Which faults come together differs between turns.
        let step = 1 + round / faults.len() % (faults.len() - 1);
        // Hardly anything begins while earlier faults last.
        let healed = elapsed() + HEALED_WITHIN;
        while self.world.is_suffering() && elapsed() < healed {
            self.pass(Duration::from_secs(1)).await;
        }
        for _ in 0..TRIES {
            if self.aim_at(Effect::AIMED[place]).await {
                break;
            }
        }
        let under_way = Effect::under_way(&self.world);
        for other in 0..AT_ONCE {
            let fault = faults[(round + place + other * step) % faults.len()];
            self.struck.note(fault.kind(), &under_way);
            self.suffer(fault);
        }
    }

    pub(crate) fn suffer(&mut self, fault: Fault) {
        let time = fault.time(&self.random);
        self.suffer_for(fault, time);
    }

    pub(crate) fn suffer_for(&mut self, fault: Fault, time: Duration) {
        self.judge.faults_end = self.judge.faults_end.max(elapsed() + time);
        self.world.tell(format!("fault: {fault:?} for {time:?}"));
        let world = self.world.clone();
        tokio::spawn(async move { world.suffer(fault, time).await });
    }

    /// Brings an effect about, and waits until it is under way. Each is as likely as any other, however rare it is by itself.
    async fn aim(&mut self) {
        let effect = *self.random.pick(&Effect::ALL).unwrap();
        self.aim_at(effect).await;
    }

    async fn aim_at(&mut self, effect: Effect) -> bool {
        if !effect.is_under_way(&self.world) {
            match effect {
                Effect::SlurmctldStarts => self.suffer(Fault::KillSlurmctld),
                Effect::LeaderChanges => self.suffer(Fault::KillOperators),
                other => self.provoke(other),
            }
        }
        // A dry run takes 20 ms.
        let step = if self.topic == Topic::Pairs && effect == Effect::DryRun {
            Duration::from_millis(5)
        } else {
            AIM_STEP
        };
        self.wait_in_steps(step, AIM, |world| effect.is_under_way(world)).await
    }

    /// Waits until something is so, for a while.
    pub(crate) async fn wait(&mut self, is_so: impl Fn(&World) -> bool) {
        self.wait_for(AIM, is_so).await;
    }

    /// Waits until something is so. Returns whether that came in time.
    pub(crate) async fn wait_for(&mut self, time: Duration, is_so: impl Fn(&World) -> bool) -> bool {
        self.wait_in_steps(AIM_STEP, time, is_so).await
    }

    async fn wait_in_steps(&mut self, step: Duration, time: Duration, is_so: impl Fn(&World) -> bool) -> bool {
        let begin = elapsed();
        let mut looked = begin;
        while !is_so(&self.world) && elapsed().saturating_sub(begin) < time {
            sleep(step).await;
            if elapsed().saturating_sub(looked) >= Duration::from_secs(1) {
                looked = elapsed();
                self.judge.look(&self.world);
            }
        }
        is_so(&self.world)
    }

    /// Brings an effect about, and kills slurmctld before it has saved that.
    async fn kill_unsaved(&mut self) {
        let effects = [
            Effect::WorkerDrained,
            Effect::WorkerStarts,
            Effect::Update,
            Effect::ObjectEnds,
            Effect::JobStarts,
        ];
        self.provoke(*self.random.pick(&effects).unwrap());
        self.wait(World::has_unsaved).await;
        // What follows from it is not saved either.
        self.pass(Duration::from_millis(self.random.below(4000))).await;
        self.struck
            .note(Fault::KillSlurmctld.kind(), &Effect::under_way(&self.world));
        self.suffer(Fault::KillSlurmctld);
    }

    /// A person closes a partition and opens it soon after. Others change the configuration at that time, slurmctld may be frozen,
    /// and it is killed seconds after the operator could see that the partition is open.
    async fn reopen_and_kill(&mut self) {
        let partitions = self.shown(|state| state.partitions.keys().cloned().collect());
        let Some(partition) = self.random.pick(&partitions).cloned() else {
            return;
        };
        self.set_partition(&partition, "DOWN");
        self.pass(Duration::from_millis(self.random.between(5_000, 20_000)))
            .await;
        self.set_partition(&partition, "UP");
        if self.random.one_in(2) {
            self.suffer(Fault::FreezeSlurmctld);
        }
        self.provoke(Effect::Delivery);
        self.pass(Duration::from_millis(self.random.between(1_000, 4_000)))
            .await;
        self.provoke(Effect::PartitionChanges);
        while self.world.is_suffering() {
            self.pass(Duration::from_secs(1)).await;
        }
        self.pass(Duration::from_millis(self.random.between(8_000, 12_000)))
            .await;
        self.suffer(Fault::KillSlurmctld);
    }

    /// People want more workers, for jobs that wait, and then fewer.
    async fn change_mind(&mut self) {
        self.scale("compute", 4);
        self.submit();
        self.judge.orders.note_objects(&self.world);
        self.pass(Duration::from_millis(self.random.between(500, 12_000))).await;
        self.scale("compute", self.random.below(3));
        self.judge.orders.note_objects(&self.world);
    }

    /// Faults end, and people want something that can be had.
    async fn heal(&mut self) {
        while self.world.is_suffering() {
            self.pass(Duration::from_secs(5)).await;
        }
        self.world.tell("people clean up");
        if self.random.one_in(2) {
            self.suffer(Fault::Api(Client::Both, ApiFault::Refuse(503)));
        }
        for set in self.world.names("nodesets") {
            let replicas = if set == "compute" { self.random.between(1, 3) } else { 1 };
            self.world
                .patch("nodesets", &set, &json!({ "spec": { "replicas": replicas } }));
        }
        self.world.patch(
            "controllers",
            "slurm",
            &json!({ "spec": { "extraConf": "BatchStartTimeout=17\n" } }),
        );
        for node in self.world.names("nodes") {
            self.world
                .patch("nodes", &node, &json!({ "spec": { "unschedulable": false } }));
        }
        self.judge.orders.note_objects(&self.world);
    }

    /// Waits until everything is as people want it. Returns whether that came in time.
    async fn settle(&mut self) -> bool {
        let begin = elapsed();
        loop {
            self.lift_orders();
            let waited = elapsed().saturating_sub(begin);
            let Some(why) = oracles::differs(&self.world) else {
                self.settled = Some(waited);
                self.world.tell("settled");
                return true;
            };
            if waited > SETTLED {
                script::show_conditions(&self.world);
                self.judge.fail(&self.world, format!("not settled: {why}"));
                return false;
            }
            self.pass(Duration::from_secs(5)).await;
        }
    }

    /// Nothing is written at rest, and nothing is reported.
    async fn rest(&mut self) {
        self.pass(QUIET).await;
        // A worker whose machine was cut off is noted until the machine has been back for minutes.
        let is_noted = |world: &World| {
            let sets = world.all("nodesets");
            sets.iter().any(|set| set["status"]["cutOff"].is_object())
        };
        self.wait_for(NOTED, |world| !is_noted(world)).await;
        let before = self.world.access.writes().len();
        let objects = oracles::objects_of_ours(&self.world);
        self.pass(REST).await;
        let writes = self.world.access.writes_from(before);
        if let Some(write) = writes.first() {
            script::show_conditions(&self.world);
            let text = format!(
                "{} writes at rest, first {} {} by {}\n{}",
                writes.len(),
                write.method,
                write.path,
                write.process,
                oracles::changes(&objects, &oracles::objects_of_ours(&self.world)).join("\n")
            );
            self.judge.fail(&self.world, text);
        }
        for problem in [oracles::problems(&self.world), oracles::marked(&self.world)].concat() {
            self.judge.fail(&self.world, problem);
        }
    }

    /// People delete everything, and nothing of ours is left.
    async fn delete_all(&mut self) {
        self.world.tell("people delete everything");
        for plural in ["partitions", "nodesets", "controllers"] {
            for name in self.world.names(plural) {
                self.world.delete(plural, &name, &json!({}));
            }
        }
        let begin = elapsed();
        loop {
            self.pass(Duration::from_secs(5)).await;
            let left = oracles::left(&self.world);
            let Some(first) = left.first() else { break };
            if elapsed().saturating_sub(begin) > DELETED {
                script::show_conditions(&self.world);
                let text = format!("{} objects are left, first {first}", left.len());
                return self.judge.fail(&self.world, text);
            }
        }
        self.world.tell("everything is deleted");
        self.pass(FORGOTTEN).await;
        for remembered in oracles::remembered(&self.world) {
            self.judge.fail(&self.world, remembered);
        }
        self.judge.judge_foreign(&self.world);
    }
}
