//! Runs a random script on a real slurmctld and on the model, and compares what both show after each step.
//!
//! The model is at the same time as the real one, so that waiting for both to agree also waits for timeouts.

mod script;
mod view;

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::slurm::settings::START;
use crate::slurm::{Code, Conf, ControllerId, Failure, HostId, HostSpec, Request, Slurm, State, VolumeId};
use script::{Order, Random, Step};
use view::View;

/// The functions that the lines of a script use.
const LAB: &str = include_str!("lab.sh");
const CONF: &str = include_str!("slurm.conf");
const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// How long both may differ: a node is found dead after twice SlurmdTimeout, and the machine may be busy.
const SETTLE: Duration = Duration::from_secs(40);

/// Slurm saves at most every five seconds, and looks once per second.
const SAVED: Duration = Duration::from_secs(8);

/// Runs one line of bash where the real Slurm is, and returns its output.
pub type Shell<'a> = dyn FnMut(&str) -> Result<String, String> + 'a;

struct Replay<'a> {
    shell: &'a mut Shell<'a>,
    began: Instant,
    slurm: Slurm,
    volume: VolumeId,
    controller: ControllerId,
    hosts: Vec<HostId>,
    conf: String,
    done: Vec<String>,
}

/// Runs a script of so many steps in an empty lab, or of those that begin within `time`. Returns what was done. An error names the
/// first difference, with the script so far.
pub fn replay<'a>(seed: u64, steps: usize, time: Duration, shell: &'a mut Shell<'a>) -> Result<Vec<String>, String> {
    let mut replay = Replay::new(shell)?;
    replay.settle(Duration::from_secs(1))?;
    let mut random = Random::new(seed);
    while replay.done.len() < steps && replay.began.elapsed() < time {
        let state = replay.slurm.state(replay.controller);
        let step = random.step(state.map_err(|failure| format!("{failure:?}"))?);
        let run = replay.run(&step);
        run.map_err(|error| format!("seed {seed}: {error}\nscript:\n{}", replay.done.join("\n")))?;
    }
    Ok(replay.done)
}

impl<'a> Replay<'a> {
    fn new(shell: &'a mut Shell<'a>) -> Result<Self, String> {
        let mut slurm = Slurm::default();
        let volume = slurm.add_volume();
        shell(&format!("{LAB}\nlab_init <<'CONF'\n{CONF}CONF\n"))?;
        let controller = slurm.start_controller(volume, Conf::parse(CONF));
        slurm.set_service(Some(controller));
        let began = Instant::now();
        // The real one is ready.
        sleep(START);
        let mut replay = Self {
            shell,
            began,
            slurm,
            volume,
            controller,
            hosts: Vec::new(),
            conf: CONF.to_owned(),
            done: Vec::new(),
        };
        for (number, name) in (1..).zip(NODES) {
            let spec = HostSpec {
                name: name.to_owned(),
                address: "127.0.0.1".to_owned(),
                cpus: 4,
                features: vec!["workers".to_owned()],
                boot_time: Duration::ZERO,
            };
            replay.hosts.push(replay.slurm.add_host(spec));
            replay.slurmd(number, true)?;
            // Slurm's table has the nodes in the order in which they came.
            replay.sh(&format!("lab_registered {number}"))?;
        }
        Ok(replay)
    }

    fn sh(&mut self, line: &str) -> Result<String, String> {
        (self.shell)(&format!("{LAB}\n{line}"))
    }

    fn advance(&mut self) {
        self.slurm.advance(self.began.elapsed());
    }

    /// Starts or kills the slurmd of `n<number>`.
    fn slurmd(&mut self, number: usize, start: bool) -> Result<(), String> {
        let verb = if start { "start" } else { "kill" };
        self.sh(&format!("lab_slurmd_{verb} {number}"))?;
        self.advance();
        if start {
            self.slurm.start_slurmd(self.hosts[number - 1]);
        } else {
            self.slurm.kill_slurmd(self.hosts[number - 1]);
        }
        Ok(())
    }

    fn has_slurmd(&self, number: usize) -> bool {
        self.slurm.host(self.hosts[number - 1]).slurmd.is_some()
    }

    /// Whether a node runs a job of a minute: whether its limit or its node ends it first is a matter of seconds.
    fn has_limited_job(&self, number: usize) -> bool {
        let state = self.slurm.state(self.controller);
        let limited = |state: &State| {
            let mut jobs = state.jobs_on(NODES[number - 1]);
            jobs.any(|job| job.spec.time_limit.is_some())
        };
        state.is_ok_and(limited)
    }

    fn run(&mut self, step: &Step) -> Result<(), String> {
        self.done
            .push(format!("{:>6.1} {step}", self.began.elapsed().as_secs_f64()));
        let mut rest = Duration::from_millis(1500);
        match step {
            Step::Order(order) => self.order(order)?,
            Step::KillSlurmd(number) => {
                if self.has_slurmd(*number) && !self.has_limited_job(*number) {
                    self.slurmd(*number, false)?;
                }
                // Long enough to be noticed.
                rest = Duration::from_secs(9);
            }
            Step::StartSlurmd(number) => {
                if !self.has_slurmd(*number) {
                    self.slurmd(*number, true)?;
                }
                rest = Duration::from_secs(4);
            }
            Step::FreezeHost { number, until_down } => {
                if self.has_slurmd(*number) && !self.has_limited_job(*number) {
                    self.freeze_host(*number, *until_down)?;
                }
                rest = Duration::from_secs(4);
            }
            Step::KillController => {
                self.wait_for_rest();
                self.restart("KILL")?;
                rest = Duration::from_secs(6);
            }
            Step::StopController => {
                self.restart("TERM")?;
                rest = Duration::from_secs(6);
            }
            Step::FreezeController { order, time } => {
                self.freeze_controller(order, *time)?;
                rest = Duration::from_secs(5);
            }
            Step::Reconfigure(conf) => {
                self.reconfigure(conf)?;
                rest = Duration::from_secs(4);
            }
            Step::Forget { first, second } => {
                self.forget(first, second)?;
                rest = Duration::from_secs(6);
            }
        }
        self.settle(rest)
    }

    /// Waits until slurmctld saves the next change at once.
    fn wait_for_rest(&mut self) {
        loop {
            self.advance();
            let last = self.slurm.ledger.writes.last().map_or(Duration::ZERO, |write| write.at);
            if self.slurm.now() > last + SAVED {
                return;
            }
            sleep(Duration::from_millis(500));
        }
    }

    fn order(&mut self, order: &Order) -> Result<(), String> {
        if matches!(order.request, Request::Cancel(_)) {
            // Slurm does not save the cancellation of a pending job, so a save that is due would decide.
            self.wait_for_rest();
        }
        self.order_and(order, "true").map(drop)
    }

    /// Runs an order and a line right behind it; returns the output.
    fn order_and(&mut self, Order { line, request }: &Order, behind: &str) -> Result<String, String> {
        let run = format!("{line} >/tmp/lab/out 2>&1; echo code=$?; {behind}; cat /tmp/lab/out");
        let said = self.sh(&run)?;
        self.advance();
        let answer = self.slurm.request(self.controller, "replay", request.clone());
        let same = match answer {
            // scancel does not say that a job has ended.
            Ok(_) | Err(Failure::Refused(Code::AlreadyDone)) if line.starts_with("scancel") => {
                said.contains("code=0\n")
            }
            Ok(_) => said.contains("code=0\n"),
            Err(Failure::Refused(code)) => !said.contains("code=0\n") && said.contains(code.text()),
            Err(_) => false,
        };
        if same {
            Ok(said)
        } else {
            Err(format!("the model says {answer:?}, Slurm says {said}"))
        }
    }

    /// Two orders, and a kill before the second is saved: the first is saved within a second, the next five seconds later.
    fn forget(&mut self, first: &Order, second: &Order) -> Result<(), String> {
        self.wait_for_rest();
        let began = self.sh("date +%s%N")?;
        self.order(first)?;
        sleep(Duration::from_millis(800));
        // A node may have died since the script was made.
        self.settle(Duration::ZERO)?;
        let limit = began.trim().parse::<u64>().map_err(|error| error.to_string())? + 4_000_000_000;
        let kill = format!("if [ $(date +%s%N) -lt {limit} ]; then lab_ctl_signal KILL; echo killed; fi");
        if self.order_and(second, &kill)?.contains("\nkilled\n") {
            self.slurm.kill_controller(self.controller);
            self.start()?;
        }
        Ok(())
    }

    fn restart(&mut self, signal: &str) -> Result<(), String> {
        self.advance();
        if signal == "KILL" {
            self.slurm.kill_controller(self.controller);
        } else {
            self.slurm.stop_controller(self.controller);
        }
        self.sh(&format!("lab_ctl_signal {signal}"))?;
        self.start()
    }

    fn start(&mut self) -> Result<(), String> {
        self.sh("lab_ctl_start")?;
        self.advance();
        self.controller = self.slurm.start_controller(self.volume, Conf::parse(&self.conf));
        self.slurm.set_service(Some(self.controller));
        Ok(())
    }

    /// The sender of an order gives up; slurmctld carries it out later.
    fn freeze_controller(&mut self, order: &Order, time: Duration) -> Result<(), String> {
        self.sh("lab_ctl_signal STOP")?;
        self.advance();
        self.slurm.freeze_controller(self.controller);
        self.sh(&format!("timeout --signal=KILL 2 {} >/dev/null 2>&1; true", order.line))?;
        self.advance();
        let answer = self.slurm.request(self.controller, "replay", order.request.clone());
        assert_eq!(answer, Err(Failure::NoAnswer));
        sleep(time);
        self.sh("lab_ctl_signal CONT")?;
        self.advance();
        self.slurm.thaw_controller(self.controller);
        Ok(())
    }

    fn freeze_host(&mut self, number: usize, until_down: bool) -> Result<(), String> {
        self.sh(&format!("lab_host_signal {number} STOP"))?;
        self.advance();
        self.slurm.freeze_host(self.hosts[number - 1]);
        if until_down {
            // Measured: 50 s.
            self.settle(Duration::from_secs(65))?;
        } else {
            sleep(Duration::from_secs(2));
        }
        self.sh(&format!("lab_host_signal {number} CONT"))?;
        self.advance();
        self.slurm.thaw_host(self.hosts[number - 1]);
        Ok(())
    }

    fn reconfigure(&mut self, lines: &str) -> Result<(), String> {
        let global = CONF.lines().filter(|line| !line.starts_with("PartitionName="));
        let all: Vec<&str> = global.chain(lines.lines()).chain([""]).collect();
        self.conf = all.join("\n");
        let conf = self.conf.clone();
        self.sh(&format!("lab_conf <<'CONF'\n{conf}CONF\nscontrol reconfigure"))?;
        self.advance();
        let done = self.slurm.reconfigure(self.controller, Conf::parse(&self.conf));
        done.map_err(|failure| format!("{failure:?}"))
    }

    /// Waits until both show the same, twice in a row.
    fn settle(&mut self, at_least: Duration) -> Result<(), String> {
        sleep(at_least);
        let deadline = Instant::now() + SETTLE;
        let (mut equal, mut differences) = (0, Vec::new());
        loop {
            let real = View::parse(&self.sh("lab_show")?)?;
            self.advance();
            let model = View::of_model(&mut self.slurm, self.controller)?;
            let now = real.differences(&model);
            equal = if now.is_empty() { equal + 1 } else { 0 };
            if !now.is_empty() {
                differences = now;
            }
            if equal == 2 {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("Slurm and the model differ:\n{}", differences.join("\n")));
            }
            sleep(Duration::from_millis(700));
        }
    }
}
