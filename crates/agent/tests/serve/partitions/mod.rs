//! Changes of partitions: by RPC where possible, and never at the cost of a job.
mod live_update;
mod manual;
mod removal;
mod resume;

use slurm::agent::{KeptState, PartitionCommand};
use slurm::partition::PartitionStateName;
use slurm::rpc::{self, LivePartition, PartitionUpdate};
use slurm::token::{Issuer, SigningKey};

use super::*;
const BEFORE: &str = "PartitionName=a Nodes=n1 MaxTime=5 Default=YES\nPartitionName=b Nodes=n1\n";

impl Pod {
    fn partitions(&self) -> Vec<LivePartition> {
        serde_json::from_slice(&fs::read(self.path("partitions")).unwrap()).unwrap()
    }

    fn partition(&self, name: &str) -> Option<LivePartition> {
        self.partitions().into_iter().find(|partition| partition.name == name)
    }

    /// A person with the cluster's key.
    fn by_hand(&self) -> rpc::Client {
        self.slurmctld_by("root")
    }

    /// A client of slurmctld with a token of this user.
    fn slurmctld_by(&self, user: &str) -> rpc::Client {
        let issuer = Issuer::new(SigningKey::new(KEY).unwrap(), user, Duration::from_secs(30));
        rpc::Client::new(
            host::Host::real(),
            self.daemon.to_string(),
            issuer,
            rpc::Options::default(),
        )
    }

    /// Installs scontrol.
    fn scontrol(&self) {
        let script = fake_scontrol::script(&self.path("calls"), &self.daemon.to_string(), KEY);
        self.tool("scontrol", &script);
    }

    fn orders(&self) -> Vec<String> {
        let orders = fs::read_to_string(self.path("orders")).unwrap_or_default();
        orders.lines().map(str::to_owned).collect()
    }

    /// `squeue` shows one job of this partition, or none.
    fn jobs(&self, partition: &str, state: &str) {
        let job = if partition.is_empty() {
            String::new()
        } else {
            format!(r#"{{"job_id":7,"job_state":["{state}"],"partition":"{partition}","nodes":"n1"}}"#)
        };
        self.tool("squeue", &format!(r#"echo '{{"jobs":[{job}]}}'"#));
    }
}

fn steps(pushed: &Pushed) -> Vec<Phase> {
    pushed.steps.iter().map(|step| step.step).collect()
}
