//! Slurm's own wire protocol with the real slurmctld, and the agent's verification of the running configuration.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use slurm::conf::{Configuration, Document, Key, RecordKind, Settings};
use slurm::partition::PartitionStateName;
use slurm::rpc::{
    Client, Error, LivePartition, NodeCommand, NodeUpdate, Options, PartitionFlag, PartitionUpdate, ReturnCode,
    Version, plan_partition,
};
use slurm::token::{Issuer, SigningKey};
use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::clusters::{CONTROLLER, operator_namespace, set_extra_conf};
use crate::common::forward::Forward;
use crate::common::slurm::{SOON, slurm as in_pod};

/// Lines in place of the partitions of the common Controller.
const EXTRA_CONF: &str = "    # Ümlaute zählen mit
    NodeName=outside[1-2] State=FUTURE
    PartitionName=all Nodes=ALL Default=NO
    PartitionName=rich Nodes=outside1 RICH
";

/// One value for each key that can be set and read, except those that need a database.
const RICH: &str = "State=DRAIN Hidden=YES RootOnly=YES LLN=YES DisableRootJobs=YES ReqResv=YES ExclusiveUser=YES \
    PowerDownOnIdle=YES AllowAccounts=a,B AllowGroups=root Alternate=all CpuBind=core DefaultTime=30 MaxTime=1-0 \
    DefMemPerCPU=100 MaxMemPerNode=2000 GraceTime=5 MaxCPUsPerNode=3 MaxCPUsPerSocket=2 MaxNodes=4 MinNodes=2 \
    OverSubscribe=FORCE:2 OverTimeLimit=7 PriorityJobFactor=3 PriorityTier=4 TRESBillingWeights=CPU=1.0,Mem=0.25G";

fn client(forward: &Forward, key: &[u8], newest: Version) -> Client {
    let issuer = Issuer::new(SigningKey::new(key).unwrap(), "slurm", Duration::from_mins(5));
    let options = Options {
        newest,
        ..Options::default()
    };
    Client::new(host::Host::real(), forward.address.clone(), issuer, options)
}

fn files(namespace: &Namespace) -> BTreeMap<String, Vec<u8>> {
    let served = ["cgroup.conf", "slurm.conf"];
    served.map(|name| (name.to_owned(), file(namespace, name))).into()
}

fn file(namespace: &Namespace, name: &str) -> Vec<u8> {
    let text = in_pod(namespace, &format!("base64 --wrap=0 /etc/slurm/{name}")).unwrap();
    STANDARD.decode(text.trim()).unwrap()
}

fn show(namespace: &Namespace, what: &str) -> String {
    in_pod(namespace, &format!("scontrol --all --oneliner show {what}")).unwrap()
}

fn refusal(answer: Result<(), Error>) -> ReturnCode {
    match answer.unwrap_err() {
        Error::Refused { code, .. } | Error::Unauthorized(code) => code,
        other => panic!("{other:?}"),
    }
}

/// slurmctld serves the files of its pod, and its hash is the one that we compute.
async fn check_files(files: &BTreeMap<String, Vec<u8>>, client: &Client) {
    let served: BTreeMap<String, Vec<u8>> = client
        .served_files()
        .await
        .unwrap()
        .into_iter()
        .filter_map(|file| Some((file.name, file.content?)))
        .collect();
    assert_eq!(served, *files);
    let files = served.iter().map(|(name, content)| (name.as_str(), content.as_slice()));
    let hash = Configuration::parse(files).hash().unwrap();
    let conf = client.live_conf().await.unwrap();
    assert_eq!(conf.hash, i64::from(hash));
    assert!(conf.boot_time > 0 && conf.boot_time <= conf.now, "{conf:?}");
}

/// Each message with an effect.
async fn change_things(namespace: &Namespace, client: &Client) {
    let made = PartitionUpdate {
        nodes: Some("outside1".to_owned()),
        state: Some(PartitionStateName::Inactive),
        ..PartitionUpdate::new("made")
    };
    client.create_partition(&made).await.unwrap();
    assert!(show(namespace, "partition made").contains(" State=INACTIVE "));
    assert_eq!(
        refusal(client.create_partition(&made).await),
        ReturnCode::INVALID_PARTITION_NAME
    );
    let changed = PartitionUpdate {
        state: Some(PartitionStateName::Down),
        flags: vec![PartitionFlag::Hidden(true)],
        max_time: Some(90),
        ..PartitionUpdate::new("made")
    };
    client.update_partition(&changed).await.unwrap();
    let shown = show(namespace, "partition made");
    for word in [" State=DOWN ", " Hidden=YES ", " MaxTime=01:30:00 ", " Nodes=outside1 "] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    let wrong = PartitionUpdate {
        nodes: Some("nowhere".to_owned()),
        ..PartitionUpdate::new("made")
    };
    let error = client.update_partition(&wrong).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("Invalid node name specified (ESLURM_INVALID_NODE_NAME, 2018)"),
        "{error}"
    );
    client.delete_partition("made").await.unwrap();
    assert!(!show(namespace, "partitions").contains("PartitionName=made"));

    client.create_node("NodeName=extra1 CPUs=2 State=CLOUD").await.unwrap();
    let node = NodeUpdate {
        state: Some(NodeCommand::Drain),
        reason: Some("a test".to_owned()),
        comment: Some("said by us".to_owned()),
        ..NodeUpdate::new("extra1")
    };
    client.update_node(&node).await.unwrap();
    let shown = show(namespace, "node extra1");
    for word in ["+DRAIN", "Reason=a test [slurm@", "Comment=said by us"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    client.delete_nodes("extra1").await.unwrap();
    assert_eq!(
        refusal(client.delete_nodes("extra1").await),
        ReturnCode::INVALID_NODE_NAME
    );
}

fn settings(line: &str) -> Settings {
    let document = Document::parse(&format!("PartitionName=p {line}"));
    document.effective(RecordKind::Partition).remove(0).1
}

/// slurmctld's partitions have the values of its file, of updates, and the defaults.
async fn read_partitions(client: &Client) {
    let live = async |name: &str| {
        let partitions = client.partitions().await.unwrap();
        partitions.into_iter().find(|partition| partition.name == name).unwrap()
    };
    let rich = settings(&format!("Nodes=outside1 {RICH}"));
    let wanted = plan_partition("rich", &rich).unwrap();
    assert_eq!(wanted.differences(&live("rich").await), [], "as its file says");

    let plain = PartitionUpdate {
        nodes: Some("outside[1-2]".to_owned()),
        ..PartitionUpdate::new("told")
    };
    client.create_partition(&plain).await.unwrap();
    let before = live("told").await;
    assert_eq!(before.to_line(), "PartitionName=told Nodes=outside[1-2] State=UP");
    client
        .update_partition(&plan_partition("told", &rich).unwrap())
        .await
        .unwrap();
    let told = live("told").await;
    assert_eq!(
        told,
        LivePartition {
            name: "told".to_owned(),
            ..live("rich").await
        },
        "as it was told"
    );
    // DefaultTime and OverTimeLimit cannot be changed by an update.
    let mut back = settings("Nodes=outside[1-2] DefaultTime=30 OverTimeLimit=7");
    let wanted = plan_partition("told", &back).unwrap();
    client.update_partition(&wanted).await.unwrap();
    assert_eq!(wanted.differences(&live("told").await), [], "as it was again");
    let expected = LivePartition {
        default_time: 30,
        over_time_limit: 7,
        ..before
    };
    assert_eq!(live("told").await.to_line(), expected.to_line());
    assert_eq!(client.partitions().await.unwrap().len(), 3);

    // Slurm reports success.
    back.insert(Key::new("MaxTime"), "5".to_owned());
    client
        .update_partition(&plan_partition("told", &back).unwrap())
        .await
        .unwrap();
    let too_long = PartitionUpdate {
        default_time: Some(90),
        ..PartitionUpdate::new("told")
    };
    client.update_partition(&too_long).await.unwrap();
    let differences = too_long.differences(&live("told").await);
    assert_eq!(differences.len(), 1, "{differences:?}");
    assert_eq!(differences[0].key, "DefaultTime");
    client.delete_partition("told").await.unwrap();
}

#[test]
fn slurmctld_accepts_our_messages_in_its_own_protocol() {
    let namespace = operator_namespace(cluster(), "rpc");
    let (before_conf, _) = CONTROLLER.split_once("    PartitionName=").unwrap();
    namespace
        .apply(&format!("{before_conf}{}", EXTRA_CONF.replace("RICH", RICH)))
        .unwrap();
    namespace.wait_new("condition=Ready", "pod/slurm-controller-0").unwrap();
    let key = file(&namespace, "jwt.key");
    let forward = Forward::open(&namespace, "pod/slurm-controller-0", 6817);
    let before = files(&namespace);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        for version in Version::ALL {
            let client = client(&forward, &key, version);
            client.ping().await.unwrap();
            assert_eq!(client.version(), version, "understood at once");
            check_files(&before, &client).await;
            change_things(&namespace, &client).await;
            read_partitions(&client).await;
        }
        let stranger = client(&forward, b"another key", Version::NEWEST);
        assert_eq!(refusal(stranger.ping().await), ReturnCode::AUTHENTICATION);
    });

    // The agent checks the same before it reports a change as verified.
    let changed = "NodeName=outside[1-2] State=FUTURE\nPartitionName=all Nodes=ALL State=DRAIN\nMaxJobCount=5000\n";
    set_extra_conf(&namespace, changed).unwrap();
    eventually("the change is live", SOON, || {
        let shown = in_pod(&namespace, "scontrol --oneliner show partition all")?;
        expect(shown.contains(" State=DRAIN "), shown)
    })
    .unwrap();
    let log = eventually("the agent has verified it", SOON, || {
        let log = namespace.ask(&["logs", "slurm-controller-0", "--container=reconfigure"])?;
        expect(log.matches("slurmctld runs with this revision").count() > 1, &log)?;
        Ok(log)
    })
    .unwrap();
    for doubt in ["does not tell", "reconfiguring again", "is not ours"] {
        assert!(!log.contains(doubt), "{log}");
    }
    let after = files(&namespace);
    assert_ne!(after, before);
    runtime.block_on(check_files(&after, &client(&forward, &key, Version::NEWEST)));
}
