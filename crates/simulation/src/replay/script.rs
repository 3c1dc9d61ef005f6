//! Random steps.

use std::fmt;
use std::time::Duration;

use crate::slurm::{NodeOrder, NodeUpdate, PartitionUpdate, Request, ReservationUpdate, State, Submission};

use super::NODES;

/// A line for bash, and the same for the model.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) line: String,
    pub(super) request: Request,
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
pub(super) enum Step {
    Order(Order),
    KillSlurmd(usize),
    StartSlurmd(usize),
    /// slurmd and its jobs stop for a moment, or until the node is down.
    FreezeHost {
        number: usize,
        until_down: bool,
    },
    /// After a time in which everything was saved.
    KillController,
    StopController,
    /// slurmctld stops for some time, with an order in its queue.
    FreezeController {
        order: Order,
        time: Duration,
    },
    /// With these lines of partitions.
    Reconfigure(&'static str),
    /// Two orders after a time of rest, and a kill before the second is saved.
    Forget {
        first: Order,
        second: Order,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Order(Order { line, .. }) => f.write_str(line),
            Self::Forget { first, second } => {
                write!(f, "kill -9 slurmctld right after: {}; {}", first.line, second.line)
            }
            Self::FreezeController { order, time } => {
                write!(f, "freeze slurmctld for {} s during: {}", time.as_secs(), order.line)
            }
            other => write!(f, "{other:?}"),
        }
    }
}

/// The lines of partitions that a reconfigure brings.
const PARTITIONS: [&str; 3] = [
    "PartitionName=main Nodes=workers Default=YES\nPartitionName=other Nodes=workers MaxTime=60",
    "PartitionName=main Nodes=workers Default=YES\nPartitionName=other Nodes=workers State=DOWN",
    "PartitionName=main Nodes=workers Default=YES",
];

/// splitmix64.
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % limit as u64).unwrap()
    }

    fn pick<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.below(choices.len())]
    }

    pub(super) fn step(&mut self, state: &State) -> Step {
        match self.below(26) {
            0 => Step::KillSlurmd(self.below(3) + 1),
            1 | 2 => Step::StartSlurmd(self.below(3) + 1),
            3 => Step::FreezeHost {
                number: self.below(3) + 1,
                until_down: self.below(4) == 0,
            },
            4 => Step::KillController,
            5 => Step::StopController,
            6 => Step::FreezeController {
                order: self.order(state),
                time: Duration::from_secs([1, 15][self.below(2)]),
            },
            7 => Step::Reconfigure(self.pick(&PARTITIONS)),
            8 => Step::Forget {
                first: self.comment(),
                second: self.order(state),
            },
            _ => Step::Order(self.order(state)),
        }
    }

    fn order(&mut self, state: &State) -> Order {
        match self.below(13) {
            12 => self.reservation_order(),
            0..=3 => self.submission(),
            4..=6 => self.job_order(state),
            7..=9 => self.node_order(),
            _ => self.partition_order(),
        }
    }

    fn submission(&mut self) -> Order {
        let first = self.below(3);
        let count = 1 + self.below(2);
        let nodes: Vec<&str> = (0..count).map(|index| NODES[(first + index) % 3]).collect();
        let partition = self.pick(&["main", "main", "other"]);
        let seconds = [3, 3600, 3600][self.below(3)];
        let exit_code = [0, 0, 3][self.below(3)];
        let choice = self.below(3) == 0;
        let limit = (self.below(6) == 0).then_some(1);
        let named = if choice { &[][..] } else { &nodes };
        let spec = Submission {
            nodes: count,
            exclusive: self.below(4) == 0,
            time_limit: limit,
            hold: self.below(6) == 0,
            requeue: self.below(4) != 0,
            exit_code,
            ..Submission::new(partition, Duration::from_secs(seconds)).on(named.iter().copied())
        };
        let option = |set: bool, option: &'static str| if set { option } else { "" };
        let line = format!(
            "sbatch --parsable --output=/dev/null --partition={partition} --nodes={count} --ntasks={count} \
             --ntasks-per-node=1 {} {} {} {} {} --wrap='sleep {seconds}; exit {exit_code}'",
            if choice {
                String::new()
            } else {
                format!("--nodelist={}", nodes.join(","))
            },
            option(limit.is_some(), "--time=1"),
            option(spec.exclusive, "--exclusive"),
            option(spec.hold, "--hold"),
            if spec.requeue { "--requeue" } else { "--no-requeue" },
        );
        Order {
            line,
            request: Request::Submit(spec),
        }
    }

    fn job_order(&mut self, state: &State) -> Order {
        let active: Vec<u32> = state
            .jobs
            .values()
            .filter(|job| job.is_active())
            .map(|job| job.id)
            .collect();
        if active.is_empty() {
            return self.submission();
        }
        let job = active[self.below(active.len())];
        let hold = |hold| Request::UpdateJob {
            job,
            hold: Some(hold),
            admin_comment: None,
        };
        let (line, request) = match self.below(7) {
            0 | 1 => (format!("scancel {job}"), Request::Cancel(job)),
            2 => (format!("scontrol requeue {job}"), Request::Requeue(job)),
            3 => (format!("scontrol suspend {job}"), Request::Suspend(job)),
            4 => (format!("scontrol resume {job}"), Request::Continue(job)),
            5 => (format!("scontrol update jobid={job} priority=0"), hold(true)),
            _ => (format!("scontrol release {job}"), hold(false)),
        };
        Order { line, request }
    }

    fn node_order(&mut self) -> Order {
        let node = self.pick(&NODES).to_owned();
        let (state, word) = match self.below(9) {
            0 | 1 => (Some(NodeOrder::Drain), "DRAIN"),
            2 => (Some(NodeOrder::Undrain), "UNDRAIN"),
            3 | 4 => (Some(NodeOrder::Resume), "RESUME"),
            5 => (Some(NodeOrder::Down), "DOWN"),
            6 => (Some(NodeOrder::Fail), "FAIL"),
            7 => {
                let line = format!("scontrol delete nodename={node}");
                let request = Request::DeleteNode(node);
                return Order { line, request };
            }
            _ => (None, ""),
        };
        let mut update = NodeUpdate {
            state,
            ..NodeUpdate::default()
        };
        let mut line = format!("scontrol update nodename={node}");
        let number = self.below(100);
        if let Some(state) = state {
            line = format!("{line} state={word}");
            if matches!(state, NodeOrder::Drain | NodeOrder::Down | NodeOrder::Fail) {
                line = format!("{line} reason=r{number}");
                update.reason = Some(format!("r{number}"));
            }
        } else {
            line = format!("{line} comment=c{number}");
            update.comment = Some(format!("c{number}"));
        }
        let request = Request::UpdateNode { node, update };
        Order { line, request }
    }

    /// Changes no job: whether Slurm saves a job's end with the order that caused it is a race of some milliseconds.
    fn comment(&mut self) -> Order {
        let node = self.pick(&NODES).to_owned();
        let comment = format!("c{}", self.below(100));
        let line = format!("scontrol update nodename={node} comment={comment}");
        let update = NodeUpdate {
            comment: Some(comment),
            ..NodeUpdate::default()
        };
        let request = Request::UpdateNode { node, update };
        Order { line, request }
    }

    fn reservation_order(&mut self) -> Order {
        let name = self.pick(&["r1", "r2"]).to_owned();
        let nodes = self.pick(&["n1", "n2", "n[2-3]"]);
        let flags = self.pick(&["maint,ignore_jobs", "ignore_jobs", "maint"]);
        let mut update = ReservationUpdate {
            name: name.clone(),
            nodes: Some(nodes.to_owned()),
            ..ReservationUpdate::default()
        };
        let (line, request) = match self.below(5) {
            0..=2 => {
                update.minutes = Some(60);
                update.users = Some("root".to_owned());
                update.flags = flags.to_ascii_uppercase().split(',').map(str::to_owned).collect();
                let settings = format!("starttime=now duration=60 nodes={nodes} users=root flags={flags}");
                (
                    format!("scontrol create reservation reservationname={name} {settings}"),
                    Request::CreateReservation(update),
                )
            }
            3 => (
                format!("scontrol update reservationname={name} nodes={nodes}"),
                Request::UpdateReservation(update),
            ),
            _ => (
                format!("scontrol delete reservationname={name}"),
                Request::DeleteReservation(name),
            ),
        };
        Order { line, request }
    }

    fn partition_order(&mut self) -> Order {
        let name = self.pick(&["other", "other", "main", "new"]).to_owned();
        let mut update = PartitionUpdate::default();
        let (line, request) = match self.below(6) {
            0..=2 => {
                let state = self.pick(&["UP", "UP", "DOWN", "DRAIN", "INACTIVE"]);
                update.state = Some(state.to_owned());
                (
                    format!("scontrol update partitionname={name} state={state}"),
                    Request::UpdatePartition { name, update },
                )
            }
            3 => {
                let nodes = self.pick(&["workers", "n1,n2", "-n3", "+n3"]);
                update.nodes = Some(nodes.to_owned());
                (
                    format!("scontrol update partitionname={name} nodes={nodes}"),
                    Request::UpdatePartition { name, update },
                )
            }
            4 => {
                update.nodes = Some("workers".to_owned());
                (
                    format!("scontrol create partitionname={name} nodes=workers"),
                    Request::CreatePartition { name, update },
                )
            }
            _ => (
                format!("scontrol delete partitionname={name}"),
                Request::DeletePartition(name),
            ),
        };
        Order { line, request }
    }
}
