use slurm::rpc::{Failure, PartitionCommands as _, PartitionUpdate};

use super::*;

/// A slurmctld with the captured partitions base, full and alone.
async fn slurmctld() -> Fake {
    after_ping(|seen| {
        if seen.line.starts_with("GET") {
            ok(include_str!("../captured/scontrol-partitions-set.json"))
        } else if seen.body.contains("nowhere") {
            error(422, 2018, "Invalid node name specified")
        } else if seen.line.ends_with("/full") {
            error(422, 2075, "Partition is in use")
        } else {
            ok(r#"{"errors":[]}"#)
        }
    })
    .await
}

#[tokio::test]
async fn existence_is_checked_since_one_request_creates_and_changes() {
    let fake = slurmctld().await;
    let client = fake.client();
    let update = |name: &str| PartitionUpdate {
        max_time: Some(5),
        ..PartitionUpdate::new(name)
    };
    client.update_partition(&update("base")).await.unwrap();
    let seen = fake.seen().pop().unwrap();
    assert_eq!(seen.line, "POST /slurm/v0.0.45/partitions/");
    let five = json!({"set": true, "infinite": false, "number": 5});
    let body: Value = serde_json::from_str(&seen.body).unwrap();
    assert_eq!(
        body,
        json!({"partitions": [{"name": "base", "maximums": {"time": five}}]})
    );
    client.create_partition(&update("new")).await.unwrap();
    let sent = fake.lines().len();
    let is_there = client.create_partition(&update("base")).await.unwrap_err();
    let is_not = client.update_partition(&update("new")).await.unwrap_err();
    assert!(is_there.is_no_such_partition() && is_not.is_no_such_partition());
    assert!(fake.lines()[sent..].iter().all(|line| line.starts_with("GET")));
}

#[tokio::test]
async fn refusals_have_slurms_message() {
    let fake = slurmctld().await;
    let client = fake.client();
    let nowhere = PartitionUpdate {
        nodes: Some("nowhere".to_owned()),
        ..PartitionUpdate::new("base")
    };
    let refused = client.update_partition(&nowhere).await.unwrap_err();
    assert!(matches!(&refused, Failure::Refused(why) if why.contains("does not know all of its nodes")));
    let in_use = slurm::rpc::PartitionCommands::delete_partition(&client, "full").await;
    assert!(matches!(in_use, Err(Failure::Refused(_))), "{in_use:?}");
    client.delete_partition("base").await.unwrap();
    assert_eq!(fake.lines().pop().unwrap(), "DELETE /slurm/v0.0.45/partition/base");
}

/// The request would delete the partition `true`.
#[tokio::test]
async fn a_name_that_slurmrestd_misreads_is_not_sent() {
    let fake = slurmctld().await;
    let error = fake.client().delete_partition("t").await.unwrap_err();
    assert!(matches!(error, Error::Misread { .. }), "{error:?}");
    assert!(fake.lines().iter().all(|line| line.starts_with("GET")));
}

#[tokio::test]
async fn an_older_slurmrestd_gets_no_request_about_partitions() {
    let fake = older().await;
    let client = fake.client();
    let shown = slurm::rpc::PartitionCommands::partitions(&client).await;
    assert!(matches!(shown, Err(Failure::NotUnderstood(_))), "{shown:?}");
    let gone = slurm::rpc::PartitionCommands::delete_partition(&client, "base").await;
    assert!(matches!(gone, Err(Failure::NotUnderstood(_))), "{gone:?}");
    assert!(fake.lines().iter().all(|line| line.ends_with("/ping/")));
}
