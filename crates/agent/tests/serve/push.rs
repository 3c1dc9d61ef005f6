//! Pushes and checks of revisions: accepted, rejected, rolled back.

use super::*;

#[tokio::test]
async fn a_push_is_saved_live_and_taken_by_slurmctld() {
    let pod = Pod::running(&revision(1, "one")).await;
    assert_eq!(pod.conf(), "one");
    let pushed = pod.push(&revision(2, "two")).await;
    assert_eq!(pushed.outcome, Outcome::Applied);
    assert_eq!(pushed.status.phase, Phase::Verified);
    assert_eq!(pushed.status.live, Some(revision(2, "two").summary()));
    assert_eq!(pushed.status.fence, fence(2));
    let slurmctld = pushed.status.slurmctld.unwrap();
    assert_eq!(slurmctld.state, DaemonState::Ready);
    assert_eq!(slurmctld.restarts, 0);
    assert_eq!(slurmctld.pid, pod.lives().last().map(|pid| pid.as_raw()));
    assert_eq!(pod.conf(), "two");
    assert_eq!(pod.lives().len(), 2, "one reconfigure");
    assert_eq!(pod.stored(), [1, 2]);
    assert_eq!(
        pod.legacy_log(),
        [
            format!("Start '{}' polling", pod.path("etc").display()).as_str(),
            "Reconfiguring Slurm...",
            "SUCCESS"
        ]
    );
}

#[tokio::test]
async fn a_revision_that_slurmctld_rejects_is_rolled_back_with_its_reason() {
    let pod = Pod::running(&revision(1, "one")).await;
    pod.push(&revision(2, "two")).await;
    let pushed = pod.push(&revision(3, "bad")).await;
    let Outcome::RolledBack(rolled_back) = &pushed.outcome else {
        panic!("{pushed:?}")
    };
    assert_eq!(rolled_back.sequence, 3);
    assert!(rolled_back.reason.contains("unrecognized key: bad"), "{rolled_back:?}");
    assert!(!rolled_back.last_words.is_empty());
    assert_eq!(pushed.status.live, Some(revision(2, "two").summary()));
    assert_eq!(pushed.status.rolled_back.as_ref(), Some(rolled_back));
    assert_eq!(pod.conf(), "two");
    assert_eq!(pod.stored(), [1, 2], "the next pod must not start from it");
    // 1 was the start, 2 the good push, and the third is the reconfigure with the old files.
    assert_eq!(pod.lives().len(), 3);
    assert_eq!(
        pod.legacy_log()[3..],
        [
            "Reconfiguring Slurm...",
            "Failed to reconfigure, try again...",
            "SUCCESS"
        ]
    );
    let pushed = pod.push(&revision(4, "four")).await;
    assert_eq!(pushed.outcome, Outcome::Applied);
    assert_eq!(pushed.status.rolled_back, None);
}

#[tokio::test]
async fn a_revision_that_the_dry_run_rejects_changes_nothing() {
    let mut pod = Pod::running(&revision(1, "one")).await;
    let pushed = pod.push(&revision(2, "wrong")).await;
    let Outcome::Rejected(rejected) = &pushed.outcome else {
        panic!("{pushed:?}")
    };
    assert_eq!(rejected.sequence, 2);
    assert_eq!(
        rejected.reason,
        "error: Parse error in file /etc/slurm/slurm.conf line 1: wrong; fatal: Unable to process configuration file"
    );
    assert_eq!(pushed.action, Action::Nothing);
    assert_eq!(pushed.status.phase, Phase::Verified);
    assert_eq!(pushed.status.rolled_back, None);
    assert_eq!(pod.conf(), "one");
    assert_eq!(pod.stored(), [1], "the next pod must not start from it");
    assert_eq!(pod.lives().len(), 1);
    assert_eq!(
        pod.legacy_log()[1..],
        ["Reconfiguring Slurm...", "Failed to reconfigure, try again..."]
    );
    let journal = Store::new(&host::Host::real(), &pod.path("state"), &uid()).journal();
    assert_eq!(journal.last().unwrap().refused.as_ref(), Some(rejected), "{journal:?}");
    pod.kill_agent();
    pod.serve();
    let status = pod.phase(Phase::Verified).await;
    assert_eq!(status.rolled_back, None, "it was never live");
    assert_eq!(pod.conf(), "one");
    assert_eq!(pod.push(&revision(3, "three")).await.outcome, Outcome::Applied);
    assert_eq!(
        fs::read_dir(pod.path("scratch")).unwrap().count(),
        0,
        "nothing is left behind"
    );
}

#[tokio::test]
async fn a_dry_run_without_a_verdict_is_a_failure_and_not_a_rejection() {
    let pod = Pod::running(&revision(1, "one")).await;
    for (conf, said) in [
        ("full", "No space left on device"),
        ("stuck", "did not finish within 5s"),
    ] {
        let failed = pod.refusal(&revision(2, conf)).await;
        let ((Error::Refused(Refusal::Failed { detail }), "full")
        | (Error::Refused(Refusal::Stuck { detail }), "stuck")) = (&failed, conf)
        else {
            panic!("{failed:?}")
        };
        assert!(detail.contains(said), "{detail}");
    }
    fs::remove_file(pod.path("bin/slurmctld")).unwrap();
    let failed = pod.refusal(&revision(2, "two")).await;
    assert!(matches!(failed, Error::Refused(Refusal::Failed { .. })), "{failed:?}");
    assert_eq!(pod.conf(), "one");
    assert_eq!(pod.stored(), [1]);
}

#[tokio::test]
async fn a_transient_failure_of_the_environment_does_not_discredit_the_revision() {
    let pod = Pod::running(&revision(1, "conf 1")).await;
    for (sequence, errno) in [
        (2, "Resource temporarily unavailable"),
        (3, "No space left on device"),
        (4, "Disk quota exceeded"),
        (5, "Input/output error"),
        (6, "Stale file handle"),
    ] {
        let wanted = revision(sequence, &format!("conf {sequence}"));
        let failing = format!("echo 'slurmctld: fatal: create_mmap_buf: {errno}' >&2; exit 1");
        pod.tool("slurmctld", &failing);
        let failed = pod.refusal(&wanted).await;
        assert!(matches!(failed, Error::Refused(Refusal::Failed { .. })), "{failed:?}");
        pod.tool("slurmctld", DRY_RUN);
        let pushed = pod.push(&wanted).await;
        assert_eq!(pushed.outcome, Outcome::Applied, "{errno}");
        assert_eq!(pushed.status.refused, [], "{errno}");
    }
}

#[tokio::test]
async fn a_push_reports_its_action_and_duration() {
    let pod = Pod::running(&revision(1, "SlurmctldPort=6817\n")).await;
    let pushed = pod.push(&revision(2, "SlurmctldPort=6817\nMaxJobCount=5\n")).await;
    assert_eq!(pushed.outcome, Outcome::Applied);
    assert_eq!(pushed.action, Action::Reconfigure);
    let steps = |pushed: &Pushed| pushed.steps.iter().map(|step| step.step).collect::<Vec<_>>();
    assert_eq!(steps(&pushed), [Phase::Checked, Phase::Swapped, Phase::Verified]);
    assert!(pushed.steps.iter().map(|step| step.milliseconds).sum::<u64>() <= pushed.milliseconds);
    let process = pushed.status.slurmctld.unwrap().since;
    // slurmctld opens its port at the start only.
    let pushed = pod.push(&revision(3, "SlurmctldPort=6827\n")).await;
    assert_eq!(pushed.outcome, Outcome::Applied, "{pushed:?}");
    assert_eq!(pushed.action, Action::Restart);
    let slurmctld = pushed.status.slurmctld.unwrap();
    assert_eq!(slurmctld.restarts, 0, "no crash");
    assert!(slurmctld.since >= process);
    assert_eq!(pod.lives().len(), 3);
    let pushed = pod.push(&revision(4, "SlurmctldPort=6827\nbad\n")).await;
    assert!(matches!(pushed.outcome, Outcome::RolledBack(_)), "{pushed:?}");
    assert_eq!(
        steps(&pushed),
        [Phase::Checked, Phase::Swapped, Phase::RollingBack, Phase::Verified]
    );
}

#[tokio::test]
async fn the_dry_run_knows_nodes_that_only_slurmctld_has() {
    let pod = Pod::running(&revision(1, "one")).await;
    pod.tool(
        "scontrol",
        r#"echo '{"nodes":[{"name":"d1","state":["IDLE"]},{"name":"d2","state":["IDLE"]}],"errors":[]}'"#,
    );
    pod.tool(
        "slurmctld",
        &format!(
            r#"for conf; do :; done; cp "$conf" {}{DRY_RUN}"#,
            pod.path("seen").display()
        ),
    );
    pod.push(&revision(2, "MaxJobCount=5\nPartitionName=a Nodes=d[2-3]\n"))
        .await;
    let seen = fs::read_to_string(pod.path("seen")).unwrap();
    assert!(seen.contains("\nNodeName=d2 State=FUTURE\n"), "{seen}");
    assert!(!seen.contains("NodeName=d3"), "slurmctld does not have it");
    pod.tool("scontrol", "exit 1");
    pod.push(&revision(3, "MaxJobCount=6\nPartitionName=a Nodes=d3\n"))
        .await;
    let seen = fs::read_to_string(pod.path("seen")).unwrap();
    assert!(
        seen.contains("\nNodeName=d3 State=FUTURE\n"),
        "slurmctld did not respond"
    );
}

#[tokio::test]
async fn the_same_bytes_cause_no_action() {
    let pod = Pod::running(&revision(1, "one")).await;
    let pushed = pod.push(&revision(5, "one")).await;
    assert_eq!(pushed.outcome, Outcome::Unchanged);
    assert_eq!(pushed.status.live.unwrap().sequence, 5, "the new number");
    assert_eq!(pod.stored(), [1, 5]);
    assert_eq!(
        pod.push(&revision(5, "one")).await.outcome,
        Outcome::Unchanged,
        "sent twice"
    );
    assert_eq!(pod.lives().len(), 1);
    assert!(!pod.legacy_log().contains(&"SUCCESS".to_owned()));
}

#[tokio::test]
async fn a_stale_or_foreign_revision_is_rejected_with_the_live_one() {
    let pod = Pod::running(&revision(5, "five")).await;
    for stale in [revision(4, "five"), revision(5, "other")] {
        let Error::Refused(Refusal::StaleSequence { live }) = pod.refusal(&stale).await else {
            panic!("not refused")
        };
        assert_eq!(*live, revision(5, "five").summary());
    }
    let foreign = Revision {
        controller: ControllerUid::new("another").unwrap(),
        ..revision(9, "nine")
    };
    let refusal = pod.refusal(&foreign).await;
    assert!(
        matches!(refusal, Error::Refused(Refusal::OtherController { .. })),
        "{refusal:?}"
    );
    assert_eq!(pod.conf(), "five");
    assert_eq!(pod.stored(), [5]);
}

#[tokio::test]
async fn people_can_check_whether_slurmctld_would_run_with_files() {
    let pod = Pod::prepared(&revision(1, "one"));
    let directory = pod.path("tried");
    fs::create_dir(&directory).unwrap();
    let good = "ClusterName=a\nSlurmctldHost=b\n";
    for (conf, code, said) in [
        (good.to_owned(), 0, "slurmctld would run with"),
        (format!("{good}FooBar=1\n"), 1, "slurm.conf line 3: FooBar is no key"),
        // The fake one matches words in comments, too.
        (
            format!("{good}# wrong\n"),
            1,
            "slurmctld: error: Parse error in file /etc/slurm/slurm.conf line 1",
        ),
        (format!("{good}# full\n"), 2, "No space left on device"),
    ] {
        fs::write(directory.join("slurm.conf"), &conf).unwrap();
        let output = pod.command("check").arg(&directory).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(output.status.code(), Some(code), "{conf}: {text}");
        assert!(text.contains(said), "{conf}: {text}");
    }
    let output = pod.command("check").arg("/no/such/place").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}
