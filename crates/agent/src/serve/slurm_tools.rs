//! Slurm's own programs, run in this container: reads for an operator without a slurmrestd, and commands on nodes.

use std::process::{Output, Stdio};
use std::time::Duration;

use slurm::agent::{NodeAction, NodeCommand, Refusal};
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tracing::info;

/// Slurm's programs wait 10 s for slurmctld (`MessageTimeout`) and then say so.
const PATIENCE: Duration = Duration::from_secs(15);

/// Each loads all nodes or jobs; more at once would only slow slurmctld down.
const AT_ONCE: usize = 4;

/// Slurm's text for error 2018; its programs do not tell the number.
const NO_SUCH_NODE: &str = "Invalid node name specified";

/// What is quoted of a complaint.
const LONGEST_COMPLAINT: usize = 2048;

#[derive(Debug)]
pub(super) struct SlurmTools {
    free: Semaphore,
}

impl Default for SlurmTools {
    fn default() -> Self {
        Self {
            free: Semaphore::new(AT_ONCE),
        }
    }
}

/// What can be read. All of it: partitions and their nodes and jobs can be hidden from whoever does not ask so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Read {
    Nodes,
    Jobs,
    Config,
}

impl Read {
    const fn command(self) -> &'static [&'static str] {
        match self {
            Self::Nodes => &["scontrol", "--all", "--json", "show", "nodes"],
            Self::Jobs => &["squeue", "--all", "--states=all", "--json"],
            Self::Config => &["scontrol", "--json", "show", "config"],
        }
    }
}

impl SlurmTools {
    /// JSON, as the program printed it.
    pub(super) async fn read(&self, read: Read) -> Result<Vec<u8>, Refusal> {
        let command: Vec<String> = read.command().iter().map(|word| (*word).to_owned()).collect();
        self.run(&command).await
    }

    pub(super) async fn command(&self, command: &NodeCommand) -> Result<(), Refusal> {
        let words = words_of(command);
        info!(node = %command.node, command = %words.join(" "), "commanding a node");
        self.run(&words).await.map(drop).map_err(|refusal| match refusal {
            Refusal::Slurm { detail } if detail.contains(NO_SUCH_NODE) => Refusal::NoSuchNode,
            other => other,
        })
    }

    async fn run(&self, words: &[String]) -> Result<Vec<u8>, Refusal> {
        let (program, arguments) = words.split_first().ok_or(Refusal::NotFound)?;
        let _turn = self.free.acquire().await;
        let mut command = Command::new(program);
        command
            .args(arguments)
            // Meant for people at a terminal; they change what is shown.
            .env_remove("SLURM_CLUSTERS")
            .env_remove("SQUEUE_FORMAT")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        match timeout(PATIENCE, command.output()).await {
            Err(_) => Err(Refusal::Slurm {
                detail: format!("{program} did not end within {PATIENCE:?}"),
            }),
            Ok(Err(error)) => Err(Refusal::Failed {
                detail: format!("cannot run {program}: {error}"),
            }),
            Ok(Ok(output)) if output.status.success() => Ok(output.stdout),
            Ok(Ok(output)) => Err(Refusal::Slurm {
                detail: complaint(&output),
            }),
        }
    }
}

fn words_of(NodeCommand { node, action }: &NodeCommand) -> Vec<String> {
    let update = |state: &str| {
        vec!["scontrol", "update"]
            .into_iter()
            .map(str::to_owned)
            .chain([format!("NodeName={node}"), format!("State={state}")])
    };
    match action {
        NodeAction::Drain { reason } => update("DRAIN").chain([format!("Reason={reason}")]).collect(),
        NodeAction::Undrain => update("UNDRAIN").collect(),
        NodeAction::Resume => update("RESUME").collect(),
        NodeAction::Down { reason } => update("DOWN").chain([format!("Reason={reason}")]).collect(),
        NodeAction::Delete => vec!["scontrol".to_owned(), "delete".to_owned(), format!("NodeName={node}")],
    }
}

fn complaint(output: &Output) -> String {
    let said = if output.stderr.is_empty() {
        &output.stdout
    } else {
        &output.stderr
    };
    let text = String::from_utf8_lossy(said);
    let text: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let text: String = text.join("; ").chars().take(LONGEST_COMPLAINT).collect();
    if text.is_empty() {
        output.status.to_string()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use slurm::agent::{NodeName, Reason};

    use super::*;

    #[test]
    fn commands_are_scontrols() {
        let reason = || Reason::new("scale in: 3 → 2").unwrap();
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
        ] {
            let node = NodeName::new("n1").unwrap();
            assert_eq!(words_of(&NodeCommand { node, action }).join("|"), expected);
        }
    }

    #[tokio::test]
    async fn what_a_program_said_when_it_failed_is_the_reason() {
        let tools = SlurmTools::default();
        let run = async |script: &str| tools.run(&["sh", "-c", script].map(str::to_owned)).await;
        assert_eq!(run("echo out; echo err >&2").await, Ok(b"out\n".to_vec()));
        let detail = |text: &str| {
            Err(Refusal::Slurm {
                detail: text.to_owned(),
            })
        };
        assert_eq!(
            run("echo; echo 'slurm_update error: no' >&2; echo ' more ' >&2; exit 1").await,
            detail("slurm_update error: no; more")
        );
        assert_eq!(run("echo out; exit 1").await, detail("out"));
        assert_eq!(run("exit 3").await, detail("exit status: 3"));
    }

    #[tokio::test]
    async fn a_missing_program_is_a_fault_of_the_image() {
        let tools = SlurmTools::default();
        let failed = tools.run(&["/no/such/program".to_owned()]).await;
        assert!(matches!(failed, Err(Refusal::Failed { .. })), "{failed:?}");
    }
}
