//! Carries out the steps of a run.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;
use testbed::cluster::Cluster;
use testbed::faults::{Fault, Pod};
use testbed::harness::eventually;

use crate::common::clusters::{change_spec, set_extra_conf};
use crate::common::kills::operator_pods;
use crate::common::pods::WORKERS;
use crate::common::slurm::slurmrestd_pod;

use super::HEALED;
use super::history::{Effect, History};
use super::jobs::Jobs;
use super::orders::{Ledger, Word};
use super::schedule::{Action, Daemon};
use super::stage::{Stage, node_set, partition};

const PATIENCE: Duration = Duration::from_secs(40);

/// Ends what an action began.
pub(super) type Heal<'a> = Box<dyn FnOnce() -> Result<()> + Send + 'a>;

#[derive(Clone, Copy)]
pub(super) struct Actor<'a> {
    pub stage: &'a Stage,
    pub history: &'a History,
    pub ledger: &'a Ledger,
    pub jobs: &'a Jobs,
}

/// A pod and a container of it.
struct Place {
    namespace: String,
    pod: String,
    container: &'static str,
}

impl Place {
    fn pod(&self) -> Pod<'_> {
        Pod {
            namespace: &self.namespace,
            name: &self.pod,
        }
    }
}

impl<'a> Actor<'a> {
    /// Begins an action; an error says why it could not strike.
    pub(super) fn begin(self, number: usize, action: Action) -> Result<Heal<'a>> {
        match action {
            Action::KillContainer(of) => self.kill_container(of),
            Action::KillProcess(of) => self.kill_process(of),
            Action::Freeze(of) => {
                let place = self.place(of)?;
                let effects = self.begun(impaired(of));
                let frozen = self.cluster().pause_container(place.pod(), place.container);
                self.lasting(frozen, effects)
            }
            Action::DeletePod(of) => self.delete_pod(of, &[]),
            Action::DeletePodByForce(of) => self.delete_pod(of, &["--force", "--grace-period=0"]),
            Action::KillNode(node) => self.kill_node(node),
            Action::Unplug(node) => {
                let effects = self.begun(vec![Effect::SlurmctldAway]);
                self.lasting(self.cluster().unplug(node), effects)
            }
            Action::Cut(one, other) => {
                let (from, to) = (self.place(one)?, self.place(other)?);
                let effects = self.begun(impaired(one));
                self.lasting(self.cluster().drop_traffic(from.pod(), to.pod()), effects)
            }
            Action::Slow(one, other, delay) => {
                let (from, to) = (self.place(one)?, self.place(other)?);
                let effects = self.begun(impaired(one));
                let delay = Duration::from_millis(delay);
                self.lasting(self.cluster().delay_traffic(from.pod(), to.pod(), delay), effects)
            }
            Action::FillStateVolume => {
                let claim = "jsonpath={.spec.volumes[*].persistentVolumeClaim.claimName}";
                let claim = self.kubectl(&["get", "pod", "slurm-controller-0", "-o", claim])?;
                let name = &self.stage.namespace.name;
                self.lasting(self.cluster().fill_volume(name, claim.trim()), Vec::new())
            }
            Action::Pause(component) => self.lasting(self.cluster().pause(component), Vec::new()),
            edit => self.order(number, edit),
        }
    }

    /// What people want.
    fn order(self, number: usize, action: Action) -> Result<Heal<'a>> {
        let namespace = &self.stage.namespace;
        let wanted = || self.stage.wanted.lock().unwrap();
        match action {
            Action::Configure { resv_over_run } => {
                wanted().resv_over_run = resv_over_run;
                set_extra_conf(namespace, &self.stage.extra_conf(""))?;
            }
            Action::LimitTime { minutes } => {
                wanted().minutes = minutes;
                let limit = json!({ "maxTime": minutes });
                change_spec(namespace, "partition.slinky.slurm.net/side", &limit)?;
            }
            Action::Scale(replicas) => {
                wanted().replicas = replicas;
                self.kubectl(&["scale", "nodeset/compute", &format!("--replicas={replicas}")])?;
            }
            Action::Update(set, weight) => {
                let heavier = json!({ "extraConf": format!("Weight={weight}") });
                change_spec(namespace, &format!("nodeset/{set}"), &heavier)?;
            }
            Action::Misconfigure(line) => {
                set_extra_conf(namespace, &self.stage.extra_conf(line))?;
                return Ok(Box::new(move || {
                    // The API server may be paused.
                    eventually("the bad line is removed", HEALED, || {
                        set_extra_conf(&self.stage.namespace, &self.stage.extra_conf(""))
                    })
                }));
            }
            Action::Cordon(node) => return self.cordon(node),
            Action::Drain(node) => return self.drain(node, &format!("chaos-{number}")),
            Action::Down(node) => return self.set_down(node, number),
            Action::ClosePartition => {
                let partition = || "side".to_owned();
                self.say_in_slurm(Word::Closed { partition: partition() })?;
                return Ok(Box::new(move || {
                    self.say_in_slurm(Word::Opened { partition: partition() })
                }));
            }
            Action::HoldJob => {
                let job = self.jobs.submit(self.stage, self.history, "--hold").number;
                let job = job.context("the job was not acknowledged")?;
                self.say_in_slurm(Word::Held { job: job.clone() })?;
                return Ok(Box::new(move || self.say_in_slurm(Word::Released { job })));
            }
            Action::CreatePartition => {
                namespace.apply(&partition("second"))?;
                return Ok(self.deletion("partition.slinky.slurm.net/second"));
            }
            Action::CreateNodeSet => {
                namespace.apply(&node_set("third", 1))?;
                return Ok(self.deletion("nodeset/third"));
            }
            fault => bail!("{fault:?} is no order"),
        }
        Ok(Box::new(|| Ok(())))
    }

    fn say_in_slurm(self, word: Word) -> Result<()> {
        self.ledger.order(self.stage, word)
    }

    fn deletion(self, object: &'static str) -> Heal<'a> {
        Box::new(move || {
            eventually("it is deleted", HEALED, || {
                self.kubectl(&["delete", object, "--wait=false", "--ignore-not-found"])
                    .map(drop)
            })
        })
    }

    fn kill_container(self, of: Daemon) -> Result<Heal<'a>> {
        let place = self.place(of)?;
        let effects = self.begun(death(of));
        let killed = self.cluster().kill_container(place.pod(), place.container);
        self.over(&effects);
        killed?;
        Ok(Box::new(|| Ok(())))
    }

    /// The supervisor starts the daemon again, and jobs go on.
    fn kill_process(self, of: Daemon) -> Result<Heal<'a>> {
        let place = self.place(of)?;
        let (name, effects) = match of {
            Daemon::Slurmctld => ("slurmctld", self.begun(death(of))),
            _ => ("slurmd", Vec::new()),
        };
        let line = format!("kill -9 $(pidof {name})");
        let killed = self.stage.namespace.inside(&place.pod, place.container, &line);
        self.over(&effects);
        killed?;
        Ok(Box::new(|| Ok(())))
    }

    fn delete_pod(self, of: Daemon, how: &[&str]) -> Result<Heal<'a>> {
        let place = self.place(of)?;
        let lost = match of {
            Daemon::Slurmctld | Daemon::Agent if how.is_empty() => vec![Effect::SlurmctldAway],
            Daemon::Slurmctld | Daemon::Agent => death(Daemon::Slurmctld),
            of => death(of),
        };
        let effects = self.begun(lost);
        let delete = ["delete", "pod", &place.pod, "--wait=false"];
        let deleted = self
            .cluster()
            .ask_in(&place.namespace, &[&delete[..], how].concat())
            .map(drop);
        self.over(&effects);
        deleted?;
        Ok(Box::new(|| Ok(())))
    }

    fn kill_node(self, node: &'static str) -> Result<Heal<'a>> {
        let path = "jsonpath={range .items[*]}{.spec.nodeName} {.metadata.name}{\"\\n\"}{end}";
        let workers = self.kubectl(&["get", "pods", "-l", WORKERS, "-o", path])?;
        let here = workers.lines().filter_map(|line| line.split_once(' '));
        let here = here.filter(|(place, _)| *place == node);
        let mut lost: Vec<Effect> = here.map(|(_, worker)| Effect::WorkerDied(worker.to_owned())).collect();
        if node == "node1" {
            lost.extend([Effect::SlurmctldKilled, Effect::SlurmctldAway, Effect::AccountingAway]);
        }
        let effects = self.begun(lost);
        self.cluster().kill_node(node)?;
        Ok(Box::new(move || {
            let restarted = self.cluster().restart_node(node);
            self.over(&effects);
            restarted
        }))
    }

    fn cordon(self, node: &'static str) -> Result<Heal<'a>> {
        self.cluster().ask(&["cordon", node])?;
        Ok(Box::new(move || {
            let path = "jsonpath={.spec.unschedulable}";
            let show = || self.cluster().ask(&["get", "node", node, "-o", path]);
            let cordoned = eventually("the node is shown", HEALED, show)?;
            if cordoned != "true" {
                self.ledger.broke(format!("{node} is no longer cordoned"));
            }
            eventually("the node is uncordoned", HEALED, || {
                self.cluster().ask(&["uncordon", node]).map(drop)
            })
        }))
    }

    fn drain(self, node: &'static str, reason: &str) -> Result<Heal<'a>> {
        let (node, reason) = (node.to_owned(), reason.to_owned());
        let drained = Word::Drained {
            node: node.clone(),
            reason: reason.clone(),
        };
        self.say_in_slurm(drained)?;
        Ok(Box::new(move || {
            self.wait_not_leaving(&node);
            self.say_in_slurm(Word::Resumed { node, reason })
        }))
    }

    /// A person who resumes a worker that an update is about to replace keeps it from being replaced.
    fn wait_not_leaving(self, worker: &str) {
        let _ = eventually("the worker is not leaving", PATIENCE, || {
            let path = "jsonpath={.metadata.annotations.nodeset\\.slinky\\.slurm\\.net/leaving}";
            let leaving = self.kubectl(&["get", "pod", worker, "-o", path])?;
            if leaving.is_empty() { Ok(()) } else { bail!(leaving) }
        });
    }

    fn set_down(self, node: &'static str, number: usize) -> Result<Heal<'a>> {
        let effects = self.begun(vec![Effect::DownByHand(node.to_owned())]);
        let reason = format!("chaos-{number}");
        let down = format!("scontrol update nodename={node} state=down reason={reason}");
        let said = self.stage.ask(&down);
        self.over(&effects);
        said?;
        Ok(Box::new(move || {
            self.wait_not_leaving(node);
            let node = node.to_owned();
            self.say_in_slurm(Word::Resumed { node, reason })
        }))
    }

    /// A fault that lasts, with what it impairs.
    fn lasting(self, fault: Result<Fault>, effects: Vec<usize>) -> Result<Heal<'a>> {
        match fault {
            Ok(fault) => Ok(Box::new(move || {
                let healed = fault.heal();
                self.over(&effects);
                healed
            })),
            Err(error) => {
                self.over(&effects);
                Err(error)
            }
        }
    }

    fn begun(self, effects: Vec<Effect>) -> Vec<usize> {
        effects.into_iter().map(|effect| self.history.begun(effect)).collect()
    }

    /// The daemons need some seconds to return, and pods to end.
    fn over(self, effects: &[usize]) {
        let all = self.history.all();
        for &number in effects {
            let after = match all[number].effect {
                Effect::SlurmctldKilled => 0.0,
                Effect::DownByHand(_) => 3.0,
                Effect::WorkerDied(_) => 15.0,
                Effect::SlurmctldAway | Effect::UnseenByOperator | Effect::AccountingAway => 20.0,
            };
            self.history.ended(number, after);
        }
    }

    fn place(self, of: Daemon) -> Result<Place> {
        let namespace = &self.stage.namespace;
        let (pod, container) = match of {
            Daemon::Slurmctld => ("slurm-controller-0".to_owned(), "slurmctld"),
            Daemon::Agent => ("slurm-controller-0".to_owned(), "reconfigure"),
            Daemon::Slurmrestd => (slurmrestd_pod(namespace)?, "slurmrestd"),
            Daemon::Slurmdbd => ("slurm-accounting-0".to_owned(), "slurmdbd"),
            Daemon::Database => ("mariadb-0".to_owned(), "mariadb"),
            Daemon::Slurmd(worker) => (worker.to_owned(), "slurmd"),
            Daemon::Operator => {
                let pods = operator_pods(self.cluster())?;
                let pod = pods.into_iter().next().context("the operator has no pod")?;
                return Ok(Place {
                    namespace: "slinky".to_owned(),
                    pod,
                    container: "slurm-operator",
                });
            }
        };
        Ok(Place {
            namespace: namespace.name.clone(),
            pod,
            container,
        })
    }

    fn cluster(self) -> &'static Cluster {
        self.stage.namespace.cluster
    }

    fn kubectl(self, arguments: &[&str]) -> Result<String> {
        self.stage.namespace.ask(arguments)
    }
}

/// What the death of a daemon by SIGKILL does.
fn death(of: Daemon) -> Vec<Effect> {
    match of {
        Daemon::Slurmctld => vec![Effect::SlurmctldKilled, Effect::SlurmctldAway],
        Daemon::Slurmd(worker) => vec![Effect::WorkerDied(worker.to_owned())],
        of => impaired(of),
    }
}

/// What a daemon that does not respond does.
fn impaired(of: Daemon) -> Vec<Effect> {
    match of {
        Daemon::Slurmctld | Daemon::Slurmd(_) => vec![Effect::SlurmctldAway],
        Daemon::Slurmdbd | Daemon::Database => vec![Effect::AccountingAway],
        Daemon::Agent | Daemon::Operator => vec![Effect::UnseenByOperator],
        Daemon::Slurmrestd => Vec::new(),
    }
}
