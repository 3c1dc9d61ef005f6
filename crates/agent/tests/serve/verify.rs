//! The agent makes slurmctld run with the live files, and verifies that it does.

use super::*;

#[tokio::test]
async fn a_slurmctld_with_another_configuration_is_reconfigured_again() {
    let pod = Pod::running(&revision(1, "one")).await;
    for (sequence, what) in [(2, "lie"), (3, "miscount")] {
        fs::write(pod.path(what), "once").unwrap();
        let lives = pod.lives().len();
        let pushed = pod.push(&revision(sequence, &format!("revision {sequence}"))).await;
        assert_eq!(pushed.outcome, Outcome::Applied, "{pushed:?}");
        assert_eq!(pod.lives().len(), lives + 2, "{what}");
    }
}

#[tokio::test]
async fn a_slurmctld_that_keeps_serving_other_files_is_reported() {
    let pod = Pod::running(&revision(1, "one")).await;
    fs::write(pod.path("lie"), "always").unwrap();
    let pushed = pod.push(&revision(2, "two")).await;
    let Outcome::Pending { reason } = &pushed.outcome else {
        panic!("{pushed:?}")
    };
    assert!(reason.contains("serves another slurm.conf"), "{reason}");
    assert_eq!(pod.lives().len(), 3, "two reconfigures and no more");
    assert_eq!(pod.conf(), "two", "it was not refused");
    // Its files match, so a wrong hash is accepted.
    fs::remove_file(pod.path("lie")).unwrap();
    fs::write(pod.path("miscount"), "always").unwrap();
    assert_eq!(pod.push(&revision(3, "three")).await.outcome, Outcome::Applied);
}

#[tokio::test]
async fn a_slurmctld_that_does_not_respond_is_polled_and_nothing_is_rolled_back() {
    let pod = Pod::running(&revision(1, "one")).await;
    fs::write(pod.path("mute"), "").unwrap();
    let pushed = pod.push(&revision(2, "two")).await;
    assert!(matches!(pushed.outcome, Outcome::Pending { .. }), "{pushed:?}");
    assert_ne!(pushed.status.phase, Phase::Verified);
    assert_eq!(pod.conf(), "two");
    fs::remove_file(pod.path("mute")).unwrap();
    let status = pod.phase(Phase::Verified).await;
    assert_eq!(status.live, Some(revision(2, "two").summary()));
    assert_eq!(status.rolled_back, None);
    assert_eq!(pod.lives().len(), 2, "one reconfigure");
}

/// One of several slurmctld does not respond while it waits for another one to hand over, which saves the same state.
#[tokio::test]
async fn one_of_several_slurmctld_is_not_reconfigured_while_it_does_not_respond() {
    let of_two = |rest: &str| format!("SlurmctldHost=a\nSlurmctldHost=b\n{rest}\n");
    let pod = Pod::running(&revision(1, &of_two("KillWait=30"))).await;
    fs::write(pod.path("mute"), "").unwrap();
    let pushed = pod.push(&revision(2, &of_two("KillWait=31"))).await;
    assert!(matches!(pushed.outcome, Outcome::Pending { .. }), "{pushed:?}");
    assert_eq!(pod.lives().len(), 1, "no reconfigure");
    fs::remove_file(pod.path("mute")).unwrap();
    pod.phase(Phase::Verified).await;
    assert_eq!(pod.lives().len(), 2, "one reconfigure");
}

#[tokio::test]
async fn a_push_repairs_a_slurmctld_that_dies_of_its_files() {
    let mut pod = Pod::prepared(&revision(1, "bad"));
    pod.supervise();
    pod.serve();
    pod.status_that("a few deaths", |status| {
        status.slurmctld.as_ref().is_some_and(|daemon| daemon.restarts > 1)
    })
    .await;
    let pushed = pod.push(&revision(2, "good")).await;
    assert_eq!(pushed.outcome, Outcome::Applied, "{pushed:?}");
    // Twice if the files changed during its start: it is unknown then which of them it has read.
    assert!(pod.lives().len() <= 2);
}

#[tokio::test]
async fn a_push_waits_for_a_slurmctld_that_does_not_run() {
    let mut pod = Pod::prepared(&revision(1, "one"));
    pod.serve();
    pod.status_that("the agent", |_| true).await;
    let pushed = pod.push(&revision(2, "two")).await;
    assert!(matches!(pushed.outcome, Outcome::Pending { .. }), "{pushed:?}");
    assert_eq!(pushed.status.phase, Phase::Swapped);
    assert_eq!(pushed.status.slurmctld, None);
    assert_eq!(pod.conf(), "two");
    // A later push is accepted meanwhile.
    let third = revision(3, "three");
    let client = pod.client();
    let (pushed, ()) = tokio::join!(client.push(&third, fence(3)), async {
        while pod.conf() != "three" {
            sleep(Duration::from_millis(5)).await;
        }
        pod.supervise();
    });
    assert_eq!(pushed.unwrap().outcome, Outcome::Applied);
    assert!(
        pod.legacy_log()
            .contains(&"Failed to reconfigure, try again...".to_owned())
    );
    assert_eq!(
        pod.lives().len(),
        1,
        "it started with the new files and needed no reconfigure"
    );
}

#[tokio::test]
async fn an_agent_that_starts_beside_an_up_to_date_slurmctld_does_nothing() {
    let mut pod = Pod::running(&revision(1, "one")).await;
    pod.push(&revision(2, "two")).await;
    let lines = pod.legacy_log().len();
    pod.kill_agent();
    pod.serve();
    pod.phase(Phase::Verified).await;
    assert_eq!(pod.lives().len(), 2);
    assert_eq!(pod.legacy_log().len(), lines + 1, "only the first line");
}

#[tokio::test]
async fn a_killed_slurmctld_restarts_with_the_live_files() {
    let pod = Pod::running(&revision(1, "one")).await;
    pod.push(&revision(2, "two")).await;
    kill(*pod.lives().last().unwrap(), Signal::SIGKILL).unwrap();
    let status = pod
        .status_that("the next life", |status| {
            status
                .slurmctld
                .as_ref()
                .is_some_and(|daemon| daemon.restarts == 1 && daemon.state == DaemonState::Ready)
        })
        .await;
    assert_eq!(status.phase, Phase::Verified);
    assert_eq!(pod.push(&revision(3, "three")).await.outcome, Outcome::Applied);
}

#[tokio::test]
async fn manually_changed_files_are_not_reported_as_live() {
    let pod = Pod::running(&revision(1, "one")).await;
    fs::write(pod.path("etc/slurm.conf"), "by hand").unwrap();
    assert_eq!(pod.client().status().await.unwrap().live, None);
    // The same revision repairs them.
    assert_eq!(pod.push(&revision(1, "one")).await.outcome, Outcome::Applied);
    assert_eq!(pod.conf(), "one");
    assert_eq!(
        pod.client().status().await.unwrap().live,
        Some(revision(1, "one").summary())
    );
}
