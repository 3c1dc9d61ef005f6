//! Reads and commands for nodes, jobs and reservations.

use super::*;

#[tokio::test]
async fn reads_and_commands_use_slurms_own_programs() {
    let pod = Pod::running(&revision(1, "one")).await;
    let calls = pod.path("calls");
    let record = format!(
        r#"for word; do printf '%s|' "$word"; done >> {}; echo >> {}"#,
        calls.display(),
        calls.display()
    );
    pod.tool(
        "scontrol",
        &format!(
            r#"{record}
case "$*" in
*nodes*) echo '{{"nodes":[{{"name":"n1","state":["IDLE"]}}],"errors":[]}}';;
*config*) echo '{{"slurm_conf_meta":{{"LastUpdate":1000,"BOOT_TIME":900,"HashValue":7}},"errors":[]}}';;
*=n9*) echo 'slurm_update error: Invalid node name specified' >&2; exit 1;;
esac"#
        ),
    );
    pod.tool("squeue", r#"echo '{"jobs":[],"errors":[]}'"#);
    pod.tool("sacctmgr", r#"echo "{\"qos\":[{\"name\":\"$2-$3\"}],\"errors\":[]}""#);
    let client = pod.client();
    assert_eq!(client.qos().await.unwrap().value[0].name, "show-qos");
    let observation = client.observe().await.unwrap();
    assert_eq!(observation.nodes[0].name, "n1");
    assert!(observation.jobs.is_empty());
    assert_eq!(observation.process.unwrap().boot_time, 900);
    let command = |node: &str, action| NodeCommand {
        node: NodeName::new(node).unwrap(),
        expect: None,
        action,
    };
    let reason = Some(Reason::new("scale in; rm -rf /").unwrap());
    let drain = command("n1", NodeAction::Drain { reason });
    assert_eq!(
        client.command_node(&drain, fence(7)).await.unwrap(),
        UpdateChannel::Scontrol
    );
    let text = fs::read_to_string(&calls).unwrap();
    assert!(
        text.ends_with("update|NodeName=n1|State=DRAIN|Reason=scale in; rm -rf /|\n"),
        "{text}"
    );
    let stale = client.command_node(&drain, fence(6)).await.unwrap_err();
    assert!(matches!(stale, Error::StaleFence { .. }), "{stale:?}");
    let unknown = client
        .command_node(&command("n9", NodeAction::Delete), fence(8))
        .await
        .unwrap_err();
    assert!(matches!(unknown, Error::Refused(Refusal::NoSuchNode)), "{unknown:?}");
    pod.tool(
        "squeue",
        "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1",
    );
    let unknown = client.jobs().await.unwrap_err();
    assert!(matches!(unknown, Error::Refused(Refusal::Slurm { .. })), "{unknown:?}");
}

#[tokio::test]
async fn node_commands_use_slurms_own_protocol() {
    let pod = Pod::running(&revision(1, "PartitionName=a Nodes=n1\n")).await;
    fs::write(pod.path("nodes"), "").unwrap();
    let client = pod.client();
    let command = |node: &str, action| NodeCommand {
        node: NodeName::new(node).unwrap(),
        expect: None,
        action,
    };
    let reason = Some(Reason::new("scale in").unwrap());
    let drain = command("n1", NodeAction::Drain { reason });
    assert_eq!(client.command_node(&drain, fence(7)).await.unwrap(), UpdateChannel::Rpc);
    let gone = client
        .command_node(&command("n9", NodeAction::Delete), fence(8))
        .await
        .unwrap_err();
    assert!(matches!(gone, Error::Refused(Refusal::NoSuchNode)), "{gone:?}");
    let orders = fs::read_to_string(pod.path("orders")).unwrap();
    assert_eq!(orders, "n1 Some(Drain) Some(\"scale in\")\nn9 None None\n");
}

/// An order for n1 that was planned on this state.
fn expecting(expect: &AdminState, action: NodeAction) -> NodeCommand {
    NodeCommand {
        node: NodeName::new("n1").unwrap(),
        expect: Some(expect.clone()),
        action,
    }
}

fn drained(reason: &str, reason_since: u64) -> AdminState {
    AdminState {
        drain: true,
        down: false,
        reason: reason.to_owned(),
        reason_since,
    }
}

#[tokio::test]
async fn an_order_to_a_manually_changed_node_is_rejected() {
    let pod = Pod::running(&revision(1, "PartitionName=a Nodes=n1\n")).await;
    let (ours, theirs) = (drained("slurm-operator: x", 7), drained("RMA", 8));
    let live = |state: &AdminState| fs::write(pod.path("nodes"), serde_json::to_string(state).unwrap()).unwrap();
    let client = pod.client();
    live(&theirs);
    for (n, action) in [
        NodeAction::Undrain,
        NodeAction::Resume,
        NodeAction::Delete,
        NodeAction::Drain { reason: None },
        NodeAction::Down { reason: None },
    ]
    .into_iter()
    .enumerate()
    {
        let number = u64::try_from(n).unwrap();
        let refused = client
            .command_node(&expecting(&ours, action), fence(number))
            .await
            .unwrap_err();
        let Error::Refused(Refusal::Changed { now }) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(now, theirs);
    }
    // The same reason with a new time is another order.
    live(&drained("slurm-operator: x", 9));
    let refused = client
        .command_node(&expecting(&ours, NodeAction::Undrain), fence(10))
        .await;
    assert!(
        matches!(refused, Err(Error::Refused(Refusal::Changed { .. }))),
        "{refused:?}"
    );
    assert!(!pod.path("orders").exists(), "nothing was ordered");
    live(&ours);
    client
        .command_node(&expecting(&ours, NodeAction::Undrain), fence(11))
        .await
        .unwrap();
    let orders = fs::read_to_string(pod.path("orders")).unwrap();
    assert_eq!(orders, "n1 Some(Undrain) None\n");
}

#[tokio::test]
async fn scontrol_also_compares_the_state_and_keeps_the_current_reason() {
    let pod = Pod::running(&revision(1, "one")).await;
    let calls = pod.path("calls");
    let shown = r#"{"nodes":[{"name":"n1","state":["DOWN"],"reason":"RMA","reason_changed_at":{"set":true,"number":8}}],"errors":[]}"#;
    let record = format!(
        r#"case "$*" in
*show*node*) echo '{shown}';;
*) (IFS='|'; echo "$*") >> {};;
esac"#,
        calls.display()
    );
    pod.tool("scontrol", &record);
    let client = pod.client();
    let refused = client
        .command_node(&expecting(&AdminState::default(), NodeAction::Resume), fence(1))
        .await;
    assert!(
        matches!(refused, Err(Error::Refused(Refusal::Changed { .. }))),
        "{refused:?}"
    );
    assert!(!calls.exists());
    let theirs = AdminState {
        drain: false,
        down: true,
        ..drained("RMA", 8)
    };
    let drain = expecting(&theirs, NodeAction::Drain { reason: None });
    assert_eq!(
        client.command_node(&drain, fence(2)).await.unwrap(),
        UpdateChannel::Scontrol
    );
    let text = fs::read_to_string(&calls).unwrap();
    assert_eq!(text, "update|NodeName=n1|State=DRAIN|Reason=RMA\n");
}

#[tokio::test]
async fn job_and_reservation_commands_use_slurms_programs() {
    let pod = Pod::running(&revision(1, "one")).await;
    let calls = pod.path("calls");
    let record = format!(r#"echo "$(basename "$0") $*" >> {}"#, calls.display());
    pod.tool("scancel", &record);
    pod.tool(
        "scontrol",
        &format!(
            r#"{record}
case "$*" in
*show*) echo '{{"reservations":[{{"name":"r","start_time":5,"end_time":9}}],"errors":[]}}';;
*update*Reservation*) echo 'slurm_update error: Requested reservation is invalid' >&2; exit 1;;
*delete*) echo 'delete_reservation: Requested reservation is invalid' >&2; exit 1;;
*requeue*7) echo '7: Job is pending execution' >&2; exit 1;;
*requeue*8) echo '8: Invalid job id specified' >&2; exit 1;;
esac"#
        ),
    );
    let client = pod.client();
    let job = |id: &str, action| JobCommand {
        job: JobHandle::new(id).unwrap(),
        action,
    };
    client
        .command_job(&job("7", JobAction::Cancel), fence(2))
        .await
        .unwrap();
    client
        .command_job(&job("7", JobAction::Requeue), fence(1))
        .await
        .unwrap();
    let gone = client
        .command_job(&job("8", JobAction::Requeue), fence(3))
        .await
        .unwrap_err();
    assert!(matches!(gone, Error::Refused(Refusal::NoSuchThing)), "{gone:?}");
    assert_eq!(client.reservations().await.unwrap().value[0].name, "r");
    let name = ReservationName::new("r").unwrap();
    let reserve = ReservationCommand::Reserve(ReservationRequest {
        minutes: Some(5),
        ..ReservationRequest::new(name.clone())
    });
    client.command_reservation(&reserve, fence(4)).await.unwrap();
    let stale = client.command_reservation(&reserve, fence(3)).await.unwrap_err();
    assert!(matches!(stale, Error::StaleFence { .. }), "{stale:?}");
    let gone = client
        .command_reservation(&ReservationCommand::Unreserve { name }, fence(5))
        .await
        .unwrap_err();
    assert!(matches!(gone, Error::Refused(Refusal::NoSuchThing)), "{gone:?}");
    assert_eq!(
        fs::read_to_string(&calls).unwrap().lines().collect::<Vec<_>>(),
        [
            "scancel 7",
            "scontrol requeue 7",
            "scontrol requeue 8",
            "scontrol --all --json show reservations",
            "scontrol update ReservationName=r Duration=5",
            "scontrol create reservation ReservationName=r Duration=5",
            "scontrol delete ReservationName=r",
        ]
    );
}

/// Slurm before 26.05 prints its configuration as text, whatever the options are.
#[tokio::test]
async fn the_process_of_an_older_slurmctld_is_read_from_the_text_of_scontrol() {
    let pod = Pod::running(&revision(1, "one")).await;
    let times = |now: &str, boot: &str| {
        format!("echo 'Configuration data as of {now}'; echo 'BOOT_TIME               = {boot}'")
    };
    let tool = format!(
        r#"case "$*" in
*nodes*) echo '{{"nodes":[],"errors":[]}}';;
*config*) if [ "$SLURM_TIME_FORMAT" = %s ]; then {}; else {}; fi;;
esac"#,
        times("1000", "900"),
        times("2026-11-18T15:26:33", "2026-11-18T15:26:24"),
    );
    pod.tool("scontrol", &tool);
    pod.tool("squeue", r#"echo '{"jobs":[],"errors":[]}'"#);
    let observation = pod.client().observe().await.unwrap();
    assert_eq!(observation.process.unwrap().boot_time, 900);
}
