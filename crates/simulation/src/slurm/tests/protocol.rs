//! The production client of Slurm's own protocol talks to the model.

use std::sync::{Arc, Mutex};

use ::host::{Connection, Host};
use ::slurm::rpc::{Client, Frame, NodeCommand, NodeUpdate, Options, PartitionUpdate};
use ::slurm::token::{Issuer, SigningKey};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

type Shared = Arc<Mutex<Lab>>;

/// The client and the model behind a real port.
async fn start() -> (Client, Shared) {
    let lab = Arc::new(Mutex::new(Lab::new()));
    let host = Host::real();
    let listener = host.listen(([127, 0, 0, 1], 0).into()).await.unwrap();
    let address = listener.address().unwrap().to_string();
    let serving = Arc::clone(&lab);
    let serve = async move {
        while let Ok(connection) = listener.accept().await {
            serve(connection, &serving).await;
        }
    };
    host.spawn("port", serve).detach();
    let issuer = Issuer::new(SigningKey::new(b"key").unwrap(), "slurm", Duration::from_mins(15));
    let options = Options {
        timeout: seconds(5),
        ..Options::default()
    };
    (Client::new(host, address, issuer, options), lab)
}

async fn serve(mut connection: Connection, lab: &Shared) {
    let length = connection.read_u32().await.unwrap();
    let mut bytes = vec![0; length.try_into().unwrap()];
    connection.read_exact(&mut bytes).await.unwrap();
    let asked = Frame::unpack(&bytes).unwrap();
    let (kind, body) = {
        let mut lab = lab.lock().unwrap();
        let ctl = lab.ctl;
        lab.slurm.rpc(ctl, "agent", &asked).unwrap().unwrap()
    };
    let version = asked.version;
    let answer = Frame { version, kind, body }.pack("").unwrap();
    connection.write_all(&answer).await.unwrap();
    connection.shutdown().await.unwrap();
}

#[tokio::test]
async fn nodes_are_read_and_ordered() {
    let (client, lab) = start().await;
    client.ping().await.unwrap();
    assert_eq!(
        client.admin_state("n1").await.unwrap(),
        Some(::slurm::AdminState::default())
    );
    assert_eq!(client.admin_state("other").await.unwrap(), None);
    let drain = NodeUpdate {
        state: Some(NodeCommand::Drain),
        reason: Some("scale in: 3".to_owned()),
        ..NodeUpdate::new("n1")
    };
    client.update_node(&drain).await.unwrap();
    let drained = client.admin_state("n1").await.unwrap().unwrap();
    assert!(drained.drain && drained.reason == "scale in: 3" && drained.reason_since > settings::EPOCH);
    let described = NodeUpdate {
        comment: Some("a=b c".to_owned()),
        features: Some("all,x".to_owned()),
        active_features: Some("all".to_owned()),
        ..NodeUpdate::new("n2")
    };
    client.update_node(&described).await.unwrap();
    let node = lab.lock().unwrap().state().nodes["n2"].clone();
    assert_eq!(
        (node.comment.as_str(), node.features.join(",").as_str()),
        ("a=b c", "all,x")
    );
    client.delete_nodes("n1").await.unwrap();
    assert_eq!(client.admin_state("n1").await.unwrap(), None);
    let busy = lab.lock().unwrap().submit(long(&["n2"]));
    lab.lock().unwrap().wait(2);
    assert!(client.delete_nodes("n2").await.is_err());
    client.complete_job(busy, true, 3 << 8).await.unwrap();
    let job = lab.lock().unwrap().state().jobs[&busy].clone();
    assert_eq!((job.phase, job.exit_code), (JobPhase::Failed, 3));
}

#[tokio::test]
async fn partitions_are_read_and_written() {
    let (client, lab) = start().await;
    let new = PartitionUpdate {
        nodes: Some("all".to_owned()),
        max_time: Some(90),
        ..PartitionUpdate::new("new")
    };
    client.create_partition(&new).await.unwrap();
    assert!(client.create_partition(&new).await.is_err());
    let shown = client.partitions().await.unwrap();
    let live = shown.iter().find(|partition| partition.name == "new").unwrap();
    assert_eq!(
        (live.nodes.as_str(), live.node_sets.as_str(), live.max_time),
        ("n[1-3]", "all", 90)
    );
    assert_eq!(new.differences(live), []);
    let closed = PartitionUpdate {
        state: Some(::slurm::partition::PartitionStateName::Drain),
        ..PartitionUpdate::new("new")
    };
    client.update_partition(&closed).await.unwrap();
    assert_eq!(lab.lock().unwrap().state().partitions["new"].state, "DRAIN");
    client.delete_partition("new").await.unwrap();
    assert!(client.delete_partition("new").await.is_err());
}
