//! This release's client with an agent of protocol 1. `captured/agent-protocol-1.json` has that agent's responses (commit a98935a).

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use host::Host;
use serde_json::Value;
use slurm::agent::{
    AgentKey, Client, Error, Fence, NodeAction, NodeCommand, NodeName, Options, Outcome, Reason, Refusal, UpdateChannel,
};
use slurm::revision::{ControllerUid, File, FileName};
use slurm::{AdminState, Revision};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

const KEY: &[u8] = b"0123456789abcdef0123456789abcdef";

const FENCE: Fence = Fence { term: 2, sequence: 1 };

/// The orders that the agent has received.
type Received = Arc<Mutex<Vec<Value>>>;

async fn start() -> (Client, Received) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let received = Received::default();
    let orders = Arc::clone(&received);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            respond(stream, &orders).await;
        }
    });
    let key = AgentKey::derive(KEY).unwrap();
    let client = Client::new(Host::real(), address, "pod", key, Options::default());
    (client, received)
}

async fn respond(stream: TcpStream, orders: &Received) {
    let mut stream = BufReader::new(stream);
    let (mut head, mut length, mut token) = (String::new(), 0, String::new());
    stream.read_line(&mut head).await.unwrap();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.unwrap();
        let Some((name, value)) = line.trim().split_once(": ") else {
            break;
        };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().unwrap(),
            "authorization" => token = value.strip_prefix("Bearer ").unwrap().to_owned(),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.unwrap();
    let mut words = head.split(' ');
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let mut answers: Value = serde_json::from_str(include_str!("captured/agent-protocol-1.json")).unwrap();
    let mut request = format!("{method} {path}");
    if method == "POST" {
        let order: Value = serde_json::from_slice(&body).unwrap();
        if order["action"] == "drain" && order["reason"].is_null() {
            request.push_str(" without a reason");
        }
        orders.lock().unwrap().push(order);
    }
    if path == "/v1/nodes" {
        let mut nodes: Value = serde_json::from_str(include_str!("captured/scontrol-nodes.json")).unwrap();
        nodes["nodes"][0]["reason"] = "RMA".into();
        nodes["nodes"][0]["reason_changed_at"]["number"] = 7.into();
        answers[&request] = serde_json::json!({ "status": 200, "body": nodes });
    }
    let answer = &answers[&request];
    let (status, body) = (answer["status"].as_u64().unwrap(), answer["body"].to_string());
    let key = AgentKey::derive(KEY).unwrap();
    let proof = key.prove(&token, u16::try_from(status).unwrap(), body.as_bytes());
    // That agent's HTTP server adds it.
    let date = Host::real().timestamp().strftime("%a, %d %b %Y %H:%M:%S GMT");
    let head = format!(
        "HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\nslurm-agent-proof: {proof}\r\ndate: {date}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
}

fn drain(reason: Option<&str>, reason_since: u64) -> NodeCommand {
    NodeCommand {
        node: NodeName::new("n1").unwrap(),
        expect: Some(AdminState {
            drain: false,
            down: false,
            reason: "RMA".to_owned(),
            reason_since,
        }),
        action: NodeAction::Drain {
            reason: reason.map(|reason| Reason::new(reason).unwrap()),
        },
    }
}

#[tokio::test]
async fn its_status_and_pushes_are_understood() {
    let (client, _) = start().await;
    let status = client.status().await.unwrap();
    assert_eq!((status.protocol, status.agent.as_str()), (1, "0.1.0"));
    let revision = Revision {
        sequence: 8,
        controller: ControllerUid::new("controller-1").unwrap(),
        files: BTreeMap::from([(FileName::new("slurm.conf").unwrap(), File::config("ClusterName=a\n"))]),
        closed_by_hand: BTreeSet::new(),
    };
    let pushed = client.push(&revision, FENCE).await.unwrap();
    assert_eq!(pushed.outcome, Outcome::Applied);
    assert_eq!(pushed.way, UpdateChannel::Rpc);
}

#[tokio::test]
async fn an_order_that_keeps_the_reason_is_sent_with_it() {
    let (client, received) = start().await;
    client.command_node(&drain(None, 7), FENCE).await.unwrap();
    client
        .command_node(&drain(Some("slurm-operator: x"), 7), FENCE)
        .await
        .unwrap();
    let received = received.lock().unwrap();
    let reasons: Vec<&Value> = received.iter().map(|order| &order["reason"]).collect();
    assert_eq!(reasons, ["RMA", "slurm-operator: x"]);
}

#[tokio::test]
async fn an_order_on_a_node_that_has_changed_is_not_sent() {
    let (client, received) = start().await;
    let error = client.command_node(&drain(None, 6), FENCE).await.unwrap_err();
    assert!(matches!(error, Error::Refused(Refusal::Changed { .. })), "{error:?}");
    assert!(received.lock().unwrap().is_empty());
}
