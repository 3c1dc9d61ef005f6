//! Slurm's own programs, run in this container: reads for an operator without a slurmrestd, and commands.

use std::collections::BTreeSet;
use std::process::Output;
use std::time::Duration;

use host::{Host, Program};
use slurm::agent::{JobAction, JobCommand, NodeCommand, NodeName, Refusal, ReservationCommand};
use slurm::answer::{Payload, decode};
use slurm::{AdminState, Job, Node, ReservationRequest, SingleLine};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tracing::info;

use super::config_text;
use super::nodes::{Message, message};

/// Slurm's programs fail by themselves after 10 s (`MessageTimeout`).
const TIMEOUT: Duration = Duration::from_secs(15);

/// A slurmctld that responds returns its nodes within this time.
const NODES_TIMEOUT: Duration = Duration::from_secs(2);

/// Each program loads all nodes or jobs; more at once would only slow slurmctld down.
const MAX_CONCURRENT: usize = 4;

/// Slurm's text for error 2018; its programs do not print the number.
const NO_SUCH_NODE: &str = "Invalid node name specified";

/// Slurm's text for error 2017.
const NO_SUCH_JOB: &str = "Invalid job id specified";

/// Slurm's text for error 2053.
const NO_SUCH_RESERVATION: &str = "Requested reservation is invalid";

/// Slurm's texts for errors 2024 and 2021.
const NOT_RUNNING: [&str; 2] = ["Job is pending execution", "Job/step already completing or completed"];

/// How much of an error message is quoted.
const MAX_MESSAGE: usize = 2048;

/// Reads slurmdbd's records of jobs, of each of their starts.
const ACCOUNTING: &[&str] = &[
    "env",
    "SLURM_TIME_FORMAT=%s",
    "sacct",
    "--allocations",
    "--duplicates",
    "--noheader",
    "--parsable2",
    "--format=JobIDRaw,State,ExitCode,Submit,Start,End",
];

#[derive(Debug)]
pub(crate) struct SlurmTools {
    host: Host,
    free: Semaphore,
}

impl SlurmTools {
    pub(crate) fn new(host: &Host) -> Self {
        Self {
            host: host.clone(),
            free: Semaphore::new(MAX_CONCURRENT),
        }
    }
}

/// The commands that read. `--all` includes hidden partitions with their nodes and jobs.
pub(super) mod read {
    pub(crate) const NODES: &[&str] = &["scontrol", "--all", "--json", "show", "nodes"];
    pub(crate) const JOBS: &[&str] = &["squeue", "--all", "--states=all", "--json"];
    pub(crate) const CONFIG: &[&str] = &["scontrol", "--json", "show", "config"];
    pub(crate) const RESERVATIONS: &[&str] = &["scontrol", "--all", "--json", "show", "reservations"];
    pub(crate) const PARTITIONS: &[&str] = &["scontrol", "--all", "--json", "show", "partitions"];
    pub(crate) const QOS: &[&str] = &["sacctmgr", "--json", "show", "qos"];
}

impl SlurmTools {
    /// The names of slurmctld's nodes; `None` without a response.
    pub(crate) async fn node_names(&self) -> Option<BTreeSet<String>> {
        let nodes: Vec<Node> = timeout(NODES_TIMEOUT, self.list(read::NODES)).await.ok()?.ok()?;
        Some(nodes.into_iter().map(|node| node.name).collect())
    }

    /// Returns the JSON that the program printed.
    pub(super) async fn read(&self, command: &[&str]) -> Result<Vec<u8>, Refusal> {
        self.run(&to_words(command, [])).await
    }

    /// Returns slurmctld's configuration as JSON.
    pub(super) async fn config(&self) -> Result<Vec<u8>, Refusal> {
        let printed = self.read(read::CONFIG).await?;
        if !config_text::is_text(&printed) {
            return Ok(printed);
        }
        let printed = self.read(&[&config_text::SECONDS, read::CONFIG].concat()).await?;
        let unreadable = || Refusal::slurm("the output of `scontrol show config` has no BOOT_TIME in seconds");
        config_text::to_json(&printed).ok_or_else(unreadable)
    }

    pub(super) async fn list<T: Payload>(&self, command: &[&str]) -> Result<T, Refusal> {
        parse(&self.read(command).await?)
    }

    pub(super) async fn command_node(&self, command: &NodeCommand) -> Result<(), Refusal> {
        let words = words_for_node(command);
        info!(node = %command.node, command = %words.join(" "), "sending a node command");
        self.run(&words).await.map(drop).map_err(of_node)
    }

    /// The administrative state of a node; `None` if slurmctld has no such node.
    pub(super) async fn admin_state(&self, node: &NodeName) -> Result<Option<AdminState>, Refusal> {
        let words = to_words(&["scontrol", "show", "node", "--json"], [node.to_string()]);
        let shown = match self.run(&words).await.map_err(of_node) {
            Err(Refusal::NoSuchNode) => return Ok(None),
            shown => shown?,
        };
        let nodes: Vec<Node> = parse(&shown)?;
        let node = nodes.iter().find(|shown| shown.name == node.as_str());
        Ok(node.map(Node::admin_state))
    }

    pub(super) async fn command_job(&self, command: &JobCommand) -> Result<(), Refusal> {
        let words = words_for_job(command);
        info!(job = %command.job, command = %words.join(" "), "sending a job command");
        match self.run(&words).await {
            Ok(_) => Ok(()),
            Err(Refusal::Slurm { detail }) if NOT_RUNNING.iter().any(|words| detail.contains(words)) => Ok(()),
            Err(Refusal::Slurm { detail }) if detail.contains(NO_SUCH_JOB) => Err(Refusal::NoSuchThing),
            Err(other) => Err(other),
        }
    }

    pub(super) async fn command_reservation(&self, command: &ReservationCommand) -> Result<(), Refusal> {
        let run = async |words: Vec<String>| {
            info!(reservation = %command.name(), command = %words.join(" "), "sending a reservation command");
            self.run(&words).await.map(drop).map_err(|refusal| match refusal {
                Refusal::Slurm { detail } if detail.contains(NO_SUCH_RESERVATION) => Refusal::NoSuchThing,
                other => other,
            })
        };
        match command {
            ReservationCommand::Unreserve { name } => {
                run(to_words(&["scontrol", "delete"], [format!("ReservationName={name}")])).await
            }
            ReservationCommand::Reserve(request) => {
                let settings = reservation_settings(request);
                match run(to_words(&["scontrol", "update"], settings.clone())).await {
                    Err(Refusal::NoSuchThing) => run(to_words(&["scontrol", "create", "reservation"], settings)).await,
                    answer => answer,
                }
            }
        }
    }

    /// Returns slurmdbd's records of these jobs: number, state, exit status, and the times of submission, start and end in
    /// seconds since 1970.
    pub(super) async fn read_accounting(&self, jobs: &[Job]) -> Result<String, Refusal> {
        let jobs: Vec<String> = jobs.iter().map(|job| job.id.to_string()).collect();
        let jobs = format!("--jobs={}", jobs.join(","));
        let records = self.run(&to_words(ACCOUNTING, [jobs])).await?;
        Ok(String::from_utf8_lossy(&records).into_owned())
    }

    /// Holds a pending job that has run already, and says so in its record.
    pub(super) async fn hold_job(&self, job: u32, end: &str) -> Result<(), Refusal> {
        let comment = format!(
            "slurm-operator: this job has run and ended ({end}), which a killed slurmctld forgot; cancel it, or release it to run again"
        );
        let settings = [
            format!("JobId={job}"),
            "Priority=0".to_owned(),
            format!("AdminComment={comment}"),
        ];
        let done = self.run(&to_words(&["scontrol", "update"], settings)).await;
        done.map(drop).or_else(accept_done)
    }

    pub(super) async fn run(&self, words: &[String]) -> Result<Vec<u8>, Refusal> {
        let program = words.first().ok_or(Refusal::NotFound)?;
        let _turn = self.free.acquire().await;
        let run = self.host.run(Program {
            words: words.iter().map(Into::into).collect(),
            // They are for people at a terminal, and change the output.
            without: vec!["SLURM_CLUSTERS", "SQUEUE_FORMAT"],
        });
        match timeout(TIMEOUT, run).await {
            Err(_) => Err(Refusal::slurm(format!("{program} did not end within {TIMEOUT:?}"))),
            Ok(Err(error)) => Err(Refusal::failed(format!("cannot run {program}: {error}"))),
            Ok(Ok(output)) if output.status.success() => Ok(output.stdout),
            Ok(Ok(output)) => Err(Refusal::slurm(error_message(&output))),
        }
    }
}

fn parse<T: Payload>(json: &[u8]) -> Result<T, Refusal> {
    let answer = decode(json).map_err(Refusal::slurm);
    answer.map(|answer| answer.value)
}

fn of_node(refusal: Refusal) -> Refusal {
    match refusal {
        Refusal::Slurm { detail } if detail.contains(NO_SUCH_NODE) => Refusal::NoSuchNode,
        other => other,
    }
}

fn to_words(program: &[&str], settings: impl IntoIterator<Item = String>) -> Vec<String> {
    let program = program.iter().map(|word| (*word).to_owned());
    program.chain(settings).collect()
}

fn words_for_node(command: &NodeCommand) -> Vec<String> {
    match message(command) {
        Message::Update(update) => to_words(&["scontrol", "update"], update.to_scontrol()),
        Message::Create(line) => to_words(&["scontrol", "create"], line.split_whitespace().map(str::to_owned)),
        Message::Delete => to_words(&["scontrol", "delete"], [format!("NodeName={}", command.node)]),
        Message::Power(how) => {
            let node = command.node.to_string();
            to_words(
                &["scontrol", "power"],
                how.iter().map(|word| (*word).to_owned()).chain([node]),
            )
        }
    }
}

fn words_for_job(JobCommand { job, action }: &JobCommand) -> Vec<String> {
    match action {
        JobAction::Requeue => to_words(&["scontrol", "requeue"], [job.to_string()]),
        JobAction::Cancel => to_words(&["scancel"], [job.to_string()]),
    }
}

fn reservation_settings(request: &ReservationRequest) -> Vec<String> {
    let ReservationRequest {
        name,
        start,
        minutes,
        nodes,
        users,
        flags,
    } = request;
    let list = |key: &str, values: &[SingleLine]| (!values.is_empty()).then(|| format!("{key}={}", joined(values)));
    [format!("ReservationName={name}")]
        .into_iter()
        // Seconds since 1970; without the prefix it would be a time in the pod's time zone.
        .chain(start.map(|start| format!("StartTime=uts{start}")))
        .chain(minutes.map(|minutes| format!("Duration={minutes}")))
        .chain(list("Nodes", nodes))
        .chain(list("Users", users))
        .chain(list("Flags", flags))
        .collect()
}

fn joined(lines: &[SingleLine]) -> String {
    let lines: Vec<&str> = lines.iter().map(SingleLine::as_str).collect();
    lines.join(",")
}

fn error_message(output: &Output) -> String {
    let printed = if output.stderr.is_empty() {
        &output.stdout
    } else {
        &output.stderr
    };
    let text = String::from_utf8_lossy(printed);
    let text: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let text: String = text.join("; ").chars().take(MAX_MESSAGE).collect();
    if text.is_empty() {
        output.status.to_string()
    } else {
        text
    }
}

/// Accepts the error with which slurmctld reports a change of a job that it has made, if the partition of the job is INACTIVE or its
/// nodes have too few CPUs. A second hold could undo a person's release.
fn accept_done(error: Refusal) -> Result<(), Refusal> {
    const DONE: &str = "Requested partition configuration not available now";
    if error.to_string().contains(DONE) {
        Ok(())
    } else {
        Err(error)
    }
}

#[cfg(test)]
mod tests {
    use slurm::agent::{NodeAction, Reason};
    use slurm::{JobHandle, NodeDescription, NodeFeatures, ReservationName};

    use super::*;

    #[test]
    fn a_change_of_a_job_in_an_inactive_partition_is_done_although_slurmctld_reports_an_error() {
        let done = Refusal::slurm("slurm_update error: Requested partition configuration not available now");
        assert!(accept_done(done).is_ok());
        let failed = Refusal::slurm("slurm_update error: Invalid job id specified");
        assert!(accept_done(failed).is_err());
    }

    #[test]
    fn node_commands_are_scontrol_updates() {
        let reason = || Some(Reason::new("scale in: 3 → 2").unwrap());
        for (action, expected) in [
            (
                NodeAction::Drain { reason: reason() },
                "scontrol|update|NodeName=n1|State=DRAIN|Reason=scale in: 3 → 2",
            ),
            (NodeAction::Undrain, "scontrol|update|NodeName=n1|State=UNDRAIN"),
            (NodeAction::Resume, "scontrol|update|NodeName=n1|State=RESUME"),
            (
                NodeAction::Down { reason: reason() },
                "scontrol|update|NodeName=n1|State=DOWN|Reason=scale in: 3 → 2",
            ),
            (NodeAction::Delete, "scontrol|delete|NodeName=n1"),
            (
                NodeAction::Create {
                    settings: line("State=CLOUD CPUs=2"),
                },
                "scontrol|create|NodeName=n1|State=CLOUD|CPUs=2",
            ),
            (NodeAction::PowerUp, "scontrol|power|up|n1"),
            (NodeAction::PowerDown, "scontrol|power|down|force|n1"),
            (
                NodeAction::Describe(NodeDescription {
                    comment: Some(line("a b;$(c)")),
                    extra: Some(line("")),
                    features: Some(NodeFeatures {
                        available: vec![line("a"), line("k8s/b=c")],
                        active: vec![],
                    }),
                    topology: Some(line("default:s1")),
                    address: Some(line("10.0.0.1")),
                }),
                "scontrol|update|NodeName=n1|Comment=a b;$(c)|Extra=|AvailableFeatures=a,k8s/b=c|ActiveFeatures=|\
                 Topology=default:s1|NodeAddr=10.0.0.1",
            ),
        ] {
            let node = NodeName::new("n1").unwrap();
            let command = NodeCommand {
                node,
                expect: None,
                action,
            };
            assert_eq!(words_for_node(&command).join("|"), expected);
        }
    }

    fn line(text: &str) -> SingleLine {
        SingleLine::new(text).unwrap()
    }

    #[test]
    fn jobs_are_named_one_by_one() {
        let job = JobHandle::new("7_3").unwrap();
        for (action, expected) in [
            (JobAction::Requeue, "scontrol|requeue|7_3"),
            (JobAction::Cancel, "scancel|7_3"),
        ] {
            let job = job.clone();
            assert_eq!(words_for_job(&JobCommand { job, action }).join("|"), expected);
        }
    }

    #[test]
    fn a_reservation_keeps_settings_that_are_not_given() {
        let request = ReservationRequest::new(ReservationName::new("r").unwrap());
        assert_eq!(reservation_settings(&request).join("|"), "ReservationName=r");
        let request = ReservationRequest {
            start: Some(1000),
            minutes: Some(30),
            nodes: vec![line("n[1-2]"), line("m1")],
            users: vec![line("slurm")],
            flags: vec![line("MAINT"), line("IGNORE_JOBS")],
            ..request
        };
        assert_eq!(
            reservation_settings(&request).join("|"),
            "ReservationName=r|StartTime=uts1000|Duration=30|Nodes=n[1-2],m1|Users=slurm|Flags=MAINT,IGNORE_JOBS"
        );
    }

    #[tokio::test]
    async fn the_error_message_of_a_program_is_the_reason() {
        let tools = SlurmTools::new(&Host::real());
        let run = async |script: &str| tools.run(&["sh", "-c", script].map(str::to_owned)).await;
        assert_eq!(run("echo out; echo err >&2").await, Ok(b"out\n".to_vec()));
        let detail = |text: &str| Err(Refusal::slurm(text));
        assert_eq!(
            run("echo; echo 'slurm_update error: no' >&2; echo ' more ' >&2; exit 1").await,
            detail("slurm_update error: no; more")
        );
        assert_eq!(run("echo out; exit 1").await, detail("out"));
        assert_eq!(run("exit 3").await, detail("exit status: 3"));
    }

    #[tokio::test]
    async fn a_missing_program_is_a_failure_of_the_agent() {
        let tools = SlurmTools::new(&Host::real());
        let failed = tools.run(&["/no/such/program".to_owned()]).await;
        assert!(matches!(failed, Err(Refusal::Failed { .. })), "{failed:?}");
    }
}
