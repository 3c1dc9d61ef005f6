//! The client of slurmctld against responses of slurmctld 26.05.5, and against invalid ones.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod slurmctld;

use std::time::{Duration, Instant};

use proptest::prelude::*;
use slurm::answer::ServedConf;
use slurm::rpc::{
    Error, MessageType, NodeUpdate, PartitionUpdate, ReturnCode, ServedFile, Version, pack_live_conf, pack_served_files,
};
use slurm::transport::Error::{Malformed, Unreachable};
use slurmctld::{Act, Fake, client, code};

/// Responses of slurmctld 26.05.5 to REQUEST_BUILD_INFO in version 42, and to REQUEST_CONFIG.
const BUILD_INFO: &[u8] = include_bytes!("slurmctld/build-info-42.bin");
const CONFIG: &[u8] = include_bytes!("slurmctld/config-45.bin");

fn versions(fake: &Fake) -> Vec<u16> {
    fake.seen().iter().map(|frame| frame.version >> 8).collect()
}

#[tokio::test]
async fn a_ping_is_answered() {
    let fake = Fake::start(|_| code(0)).await;
    fake.client().ping().await.unwrap();
    let seen = fake.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!((seen[0].kind, seen[0].body.len()), (MessageType::PING, 0));
}

#[tokio::test]
async fn real_responses_are_read() {
    let fake = Fake::start(|frame| match frame.kind {
        MessageType::CONFIG => Act::Answer(MessageType::RESPONSE_CONFIG, CONFIG.to_vec()),
        MessageType::BUILD_INFO => Act::Answer(MessageType::RESPONSE_BUILD_INFO, BUILD_INFO.to_vec()),
        _ => code(1000),
    })
    .await;
    let files = fake.client().served_files().await.unwrap();
    let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "acct_gather.conf",
            "cgroup.conf",
            "cli_filter.lua",
            "gres.conf",
            "helpers.conf",
            "job_container.conf",
            "mpi.conf",
            "namespace.yaml",
            "oci.conf",
            "plugstack.conf",
            "scrun.lua",
            "slurm.conf",
            "topology.conf",
            "topology.yaml"
        ]
    );
    let there = |name: &str| files.iter().find(|file| file.name == name).unwrap().content.clone();
    assert_eq!(there("slurm.conf").unwrap(), include_bytes!("hash/slurm.conf"));
    assert_eq!(there("cgroup.conf").unwrap(), b"CgroupPlugin=disabled\n");
    assert_eq!(there("gres.conf"), None);

    let conf = fake.client().live_conf().await.unwrap();
    assert_eq!((conf.boot_time, conf.hash), (1_794_742_297, 0x7c04_bc84));
    assert_eq!(versions(&fake), [45, 42]);
}

#[tokio::test]
async fn a_refusal_has_slurms_name_and_text() {
    let fake = Fake::start(|_| code(2010)).await;
    let error = fake.client().served_files().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "slurmctld refused: Invalid user id (ESLURM_USER_ID_MISSING, 2010)"
    );
    assert!(error.is_definite());
    let fake = Fake::start(|_| code(-1)).await;
    let error = fake.client().ping().await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::Refused {
                code: ReturnCode(-1),
                ..
            }
        ) && !error.is_definite()
    );
}

#[tokio::test]
async fn the_message_of_a_refusal_is_kept() {
    let body = [&2028_i32.to_be_bytes()[..], b"\0\0\0\x1afailed to delete nodes n1\0"].concat();
    let fake = Fake::start(move |_| Act::Answer(MessageType::RESPONSE_RETURN_CODE_AND_TEXT, body.clone())).await;
    let error = fake.client().delete_nodes("n1").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "slurmctld refused: Invalid node state specified (ESLURM_INVALID_NODE_STATE, 2028): failed to delete nodes n1"
    );
}

#[tokio::test]
async fn commands_go_out_in_the_version_that_is_understood() {
    let fake = Fake::of_release(Version::V42, |_| code(0)).await;
    let client = fake.client();
    client.update_partition(&PartitionUpdate::new("p")).await.unwrap();
    client.update_node(&NodeUpdate::new("n1")).await.unwrap();
    client.create_partition(&PartitionUpdate::new("p")).await.unwrap();
    client.delete_partition("p").await.unwrap();
    client.create_node("NodeName=n9 State=FUTURE").await.unwrap();
    client.delete_nodes("n9").await.unwrap();
    let seen = fake.seen();
    let understood: Vec<_> = seen.iter().skip(3).map(|frame| frame.kind.0).collect();
    assert_eq!(understood, [3005, 3002, 3003, 3004, 3015, 3014]);
    let lengths: Vec<_> = seen.iter().take(4).map(|frame| frame.body.len()).collect();
    assert_eq!(lengths, [118, 118, 118, 114], "only 25.05 and later have the topology");
    let mut node = NodeUpdate::new("n1");
    node.topology = Some("default:s1".to_owned());
    let error = client.update_node(&node).await.unwrap_err();
    assert!(
        matches!(error, Error::Unpackable(_)) && error.is_definite(),
        "{error:?}"
    );
    assert_eq!(fake.seen().len(), seen.len(), "nothing was sent");
}

#[tokio::test]
async fn an_older_release_is_asked_in_its_version() {
    let fake = Fake::of_release(Version::V43, |_| code(0)).await;
    let client = fake.client();
    client.ping().await.unwrap();
    client.ping().await.unwrap();
    assert_eq!(versions(&fake), [45, 44, 43, 43], "found once, kept afterwards");
    assert_eq!(client.version(), Version::V43);
}

#[tokio::test]
async fn the_response_of_26_05_to_an_unknown_version_is_recognised() {
    let html = b"HTTP/1.1 405 NOT ALLOWED\r\nConnection: Close\r\n\r\nInvalid HTTP method";
    let fake = Fake::start(move |frame| {
        if frame.version > Version::V44.wire() {
            Act::Raw(html.to_vec())
        } else {
            code(0)
        }
    })
    .await;
    fake.client().ping().await.unwrap();
    assert_eq!(versions(&fake), [45, 44]);
    let fake = Fake::start(move |_| Act::Raw(html.to_vec())).await;
    let error = fake.client().ping().await.unwrap_err();
    assert!(matches!(error, Error::Unsupported) && error.is_definite(), "{error:?}");
}

#[tokio::test]
async fn a_rejected_token_is_reported_after_all_versions_were_tried() {
    let fake = Fake::start(|_| code(1007)).await;
    let client = fake.client();
    let error = client.ping().await.unwrap_err();
    assert!(
        matches!(error, Error::Unauthorized(ReturnCode::AUTHENTICATION)) && error.is_definite(),
        "{error:?}"
    );
    assert_eq!(versions(&fake), [45, 44, 43, 42]);
    assert_eq!(client.version(), Version::NEWEST, "no version was found");
}

#[tokio::test]
async fn without_a_valid_response_the_outcome_is_unknown() {
    let error = client("127.0.0.1:1").ping().await.unwrap_err();
    assert!(
        matches!(error, Error::Transport(Unreachable { .. })) && !error.is_definite(),
        "{error:?}"
    );
    for (act, is_unreachable) in [
        (Act::Hang, true),
        (Act::Close, true),
        (Act::Raw(vec![0, 0, 0, 90, 1]), true),
        (Act::Raw(vec![0xff; 100]), false),
        (Act::Raw(vec![0, 0, 0, 3, 1, 2, 3]), false),
        (Act::Answer(MessageType(4711), vec![]), false),
        (Act::Answer(MessageType::RESPONSE_RETURN_CODE, vec![0]), false),
    ] {
        let fake = Fake::start(move |_| act.clone()).await;
        let start = Instant::now();
        let error = fake.client().ping().await.unwrap_err();
        assert_eq!(
            matches!(error, Error::Transport(Unreachable { .. })),
            is_unreachable,
            "{error:?}"
        );
        assert_eq!(
            matches!(error, Error::Transport(Malformed { .. })),
            !is_unreachable,
            "{error:?}"
        );
        assert!(!error.is_definite());
        assert!(start.elapsed() < Duration::from_secs(2));
    }
}

#[test]
fn truncated_responses_are_malformed() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        for end in [0, 1, 4, 100, CONFIG.len() - 1] {
            let fake = Fake::start(move |_| Act::Answer(MessageType::RESPONSE_CONFIG, CONFIG[..end].to_vec())).await;
            let error = fake.client().served_files().await.unwrap_err();
            assert!(matches!(error, Error::Transport(Malformed { .. })), "{error:?}");
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The client reads what the fakes of other tests send.
    #[test]
    fn the_responses_of_a_fake_are_read(content in "[^\\x00]{0,40}", hash in any::<u32>()) {
        let file = ServedFile { name: "slurm.conf".to_owned(), content: Some(content.into_bytes()), executable: false };
        let conf = ServedConf { boot_time: 1, now: 2, hash: hash.into() };
        let (files_body, conf_body) = (pack_served_files(std::slice::from_ref(&file)).unwrap(), pack_live_conf(&conf).unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let fake = Fake::start(move |frame| match frame.kind {
                MessageType::CONFIG => Act::Answer(MessageType::RESPONSE_CONFIG, files_body.clone()),
                _ => Act::Answer(MessageType::RESPONSE_BUILD_INFO, conf_body.clone()),
            }).await;
            assert_eq!(fake.client().served_files().await.unwrap(), [file]);
            assert_eq!(fake.client().live_conf().await.unwrap(), conf);
        });
    }

    #[test]
    fn no_response_panics(bytes in prop::collection::vec(any::<u8>(), 0..300), kind in prop::sample::select(vec![2002, 2016, 8001, 8002])) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let fake = Fake::start(move |_| Act::Answer(MessageType(kind), bytes.clone())).await;
            let _ = fake.client().served_files().await;
            let _ = fake.client().live_conf().await;
            let _ = fake.client().ping().await;
        });
    }
}
