//! Partition commands by scontrol, which has slurmctld's version and key.

use slurm::Partition;
use slurm::agent::Refusal;
use slurm::answer::decode;
use slurm::rpc::{Failure, Incomparable, LivePartition, PartitionCommands, PartitionUpdate};
use tracing::info;

use super::slurm_tools::{SlurmTools, read};

/// Slurm's text for error 2000; its programs do not print the number.
const NO_SUCH_PARTITION: &str = "Invalid partition name specified";

/// How scontrol introduces a response of slurmctld. Any other message is its own, and slurmctld got no request.
const RESPONSES: [&str; 3] = [
    "slurm_update error: ",
    "Error creating the partition: ",
    "delete_partition ",
];

/// Responses of a slurmctld that did not process the request.
const NOT_PROCESSED: [&str; 3] = [
    "Protocol authentication error",
    "Incompatible versions of client and server code",
    "Slurm backup controller in standby mode",
];

/// No response: the command may have taken effect.
const NO_RESPONSE: [&str; 5] = [
    "Unable to contact slurm controller",
    "Socket timed out on send/recv operation",
    "Zero Bytes were transmitted or received",
    "Unspecified error",
    "did not end within",
];

impl PartitionCommands for SlurmTools {
    async fn partitions(&self) -> Result<Vec<LivePartition>, Failure> {
        let json = self.read(read::PARTITIONS).await.map_err(failure)?;
        let shown = decode::<Vec<Partition>>(&json).map_err(|error| {
            let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
            Failure::NotUnderstood(format!("scontrol: {error}{}", source.unwrap_or_default()))
        })?;
        let live: Result<_, Incomparable> = shown.value.into_iter().map(LivePartition::try_from).collect();
        live.map_err(|error| Failure::NotUnderstood(format!("scontrol: {error}")))
    }

    async fn create_partition(&self, partition: &PartitionUpdate) -> Result<(), Failure> {
        self.run_scontrol("create", partition.to_scontrol()?).await
    }

    async fn update_partition(&self, partition: &PartitionUpdate) -> Result<(), Failure> {
        self.run_scontrol("update", partition.to_scontrol()?).await
    }

    async fn delete_partition(&self, name: &str) -> Result<(), Failure> {
        self.run_scontrol("delete", vec![format!("PartitionName={name}")]).await
    }
}

impl SlurmTools {
    async fn run_scontrol(&self, verb: &str, settings: Vec<String>) -> Result<(), Failure> {
        if settings.is_empty() {
            return Ok(());
        }
        let words: Vec<String> = ["scontrol", verb]
            .map(str::to_owned)
            .into_iter()
            .chain(settings)
            .collect();
        info!(command = %words.join(" "), "sending a partition command");
        self.run(&words).await.map(drop).map_err(failure)
    }
}

fn failure(refusal: Refusal) -> Failure {
    let has = |detail: &str, texts: &[&str]| texts.iter().any(|text| detail.contains(text));
    match refusal {
        Refusal::Slurm { detail } if has(&detail, &NO_RESPONSE) => Failure::Unknown(detail),
        Refusal::Slurm { detail } if has(&detail, &NOT_PROCESSED) || !has(&detail, &RESPONSES) => {
            Failure::NotUnderstood(detail)
        }
        Refusal::Slurm { detail } if detail.contains(NO_SUCH_PARTITION) => Failure::NoSuchPartition(detail),
        Refusal::Slurm { detail } => Failure::Refused(detail),
        // The image has no scontrol.
        other => Failure::NotUnderstood(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages of scontrol 26.05.5.
    #[test]
    fn scontrols_messages_are_classified() {
        let said = |detail: &str| failure(Refusal::slurm(detail));
        for text in [
            "slurm_update error: Invalid partition name specified",
            "Error creating the partition: Invalid partition name specified",
            "delete_partition PartitionName=nope: Invalid partition name specified",
        ] {
            assert!(said(text).is_no_such_partition(), "{text}");
        }
        for text in [
            "slurm_update error: Invalid node name specified",
            "slurm_update error: Invalid qos specification",
            "delete_partition PartitionName=t: Partition is in use",
            "slurm_update error: Invalid user id",
        ] {
            assert!(matches!(said(text), Failure::Refused(_)), "{text}");
        }
        for text in [
            "scontrol: error: Update of this parameter is not supported: Bogus=1; scontrol: error: Request aborted",
            "scontrol: error: Invalid input MaxTime=abc",
            "slurm_update error: Protocol authentication error",
        ] {
            assert!(matches!(said(text), Failure::NotUnderstood(_)), "{text}");
        }
        for text in [
            "slurm_load_partitions error: Unable to contact slurm controller (connect failure)",
            "slurm_update error: Unable to contact slurm controller (connect failure)",
            "scontrol did not end within 15s",
        ] {
            assert!(matches!(said(text), Failure::Unknown(_)), "{text}");
        }
        let missing = failure(Refusal::failed("cannot run scontrol"));
        assert!(missing.needs_another_channel());
    }
}
