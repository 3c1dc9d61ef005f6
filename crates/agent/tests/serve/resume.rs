//! Changes that the previous agent or pod left unfinished.

use super::*;

#[tokio::test]
async fn a_push_that_was_interrupted_before_the_swap_is_resumed() {
    let mut pod = Pod::running(&revision(1, "one")).await;
    pod.kill_agent();
    Store::new(&host::Host::real(), &pod.path("state"), &uid())
        .save(&revision(2, "two"))
        .unwrap();
    pod.serve();
    let status = pod
        .status_that("revision 2", |status| {
            status.live.as_ref().is_some_and(|live| live.sequence == 2) && status.phase == Phase::Verified
        })
        .await;
    assert_eq!(status.rolled_back, None);
    assert_eq!(pod.lives().len(), 2);
}

#[tokio::test]
async fn a_push_that_was_interrupted_after_the_swap_is_resumed_or_rolled_back() {
    for (conf, expected) in [("two", "two"), ("bad", "one")] {
        let mut pod = Pod::running(&revision(1, "one")).await;
        pod.kill_agent();
        Store::new(&host::Host::real(), &pod.path("state"), &uid())
            .save(&revision(2, conf))
            .unwrap();
        let config = ConfigDir::new(&host::Host::real(), &pod.path("etc"), &pod.path("keys"));
        let files = config.write(&revision(2, conf)).unwrap();
        config.switch(&files).unwrap();
        pod.serve();
        pod.phase(Phase::Verified).await;
        assert_eq!(pod.conf(), expected);
        assert_eq!(pod.lives().len(), 2, "{conf}: reconfigured either way");
    }
}

/// Kills the agent after each step of a push, good or bad, and starts the next agent, or the next pod.
#[tokio::test]
async fn an_agent_killed_at_any_step_leaves_the_old_or_the_new_revision() {
    let cases = [
        ("staged", "two", "one"),
        ("checked", "two", "two"),
        ("swapped", "two", "two"),
        ("reconfiguring", "two", "two"),
        ("verified", "two", "two"),
        ("checked", "bad", "one"),
        ("swapped", "bad", "one"),
        ("reconfiguring", "bad", "one"),
        ("rolling back", "bad", "one"),
    ];
    for (step, conf, expected) in cases {
        for whole_pod in [false, true] {
            let case = format!("{step}, {conf}, {whole_pod}");
            let mut pod = Pod::running(&revision(1, "one")).await;
            // An agent that starts notes `verified`, too.
            if step == "verified" {
                pod.kill_agent();
                pod.serve_until(step);
                pod.agent.take().unwrap().wait().unwrap();
                pod.serve();
                pod.phase(Phase::Verified).await;
                pod.push(&revision(2, conf)).await;
            } else {
                pod.push_dying_at(step, &revision(2, conf)).await;
            }
            if whole_pod {
                pod = pod.replaced().await;
            } else {
                if pod.agent.is_some() {
                    pod.kill_agent();
                }
                pod.serve();
                pod.phase(Phase::Verified).await;
            }
            assert_eq!(pod.conf(), expected, "{case}");
            let status = pod.client().status().await.unwrap();
            let sequence = if expected == "one" { 1 } else { 2 };
            assert_eq!(status.live, Some(revision(sequence, expected).summary()), "{case}");
            assert_eq!(
                pod.stored().last(),
                Some(&sequence),
                "{case}: what the next pod starts from"
            );
            let directories = fs::read_dir(pod.path("etc")).unwrap().flatten();
            let directories = directories.filter(|entry| entry.file_type().unwrap().is_dir());
            assert_eq!(directories.count(), 1, "{case}: nothing is left behind");
            assert_eq!(
                pod.push(&revision(3, "three")).await.outcome,
                Outcome::Applied,
                "{case}"
            );
        }
    }
}

#[tokio::test]
async fn the_next_agent_knows_why_a_revision_was_rolled_back() {
    let mut pod = Pod::running(&revision(1, "one")).await;
    let pushed = pod.push(&revision(2, "bad")).await;
    let Outcome::RolledBack(refused) = pushed.outcome else {
        panic!("{pushed:?}")
    };
    pod.kill_agent();
    pod.serve();
    let status = pod.phase(Phase::Verified).await;
    assert_eq!(status.rolled_back, Some(refused));
    let pushed = pod.push(&revision(3, "three")).await;
    assert_eq!(pushed.status.rolled_back, None);
}

#[tokio::test]
async fn files_that_need_a_restart_and_make_slurmctld_die_are_rolled_back() {
    let pod = Pod::running(&revision(1, "SlurmctldPort=6817\n")).await;
    let pushed = pod.push(&revision(2, "SlurmctldPort=6827\nbad\n")).await;
    let Outcome::RolledBack(refused) = &pushed.outcome else {
        panic!("{pushed:?}")
    };
    assert!(refused.reason.contains("unrecognized key: bad"), "{refused:?}");
    assert_eq!(pushed.action, Action::Restart);
    assert_eq!(pushed.status.slurmctld.unwrap().state, DaemonState::Ready);
    assert_eq!(pod.conf(), "SlurmctldPort=6817\n");
    assert_eq!(pod.stored(), [1]);
}

#[tokio::test]
async fn a_pod_that_cannot_start_with_the_newest_revision_starts_with_the_last_verified_one() {
    let pod = Pod::running(&revision(1, "one")).await;
    pod.push(&revision(2, "two")).await;
    assert_eq!(pod.push(&revision(3, "two")).await.outcome, Outcome::Unchanged);
    Store::new(&host::Host::real(), &pod.path("state"), &uid())
        .save(&revision(4, "bad"))
        .unwrap();
    let mut pod = pod.replaced().await;
    assert_eq!(pod.conf(), "two");
    assert_eq!(pod.stored(), [2, 3]);
    let status = pod.client().status().await.unwrap();
    assert_eq!(
        status.live,
        Some(revision(3, "two").summary()),
        "the same bytes, with their last number"
    );
    let refused = status.rolled_back.unwrap();
    assert_eq!(refused.sequence, 4);
    assert!(refused.reason.contains("unrecognized key: bad"), "{refused:?}");
    // Files that slurmctld has run with are not rolled back when it cannot start any more.
    pod.end();
    fs::write(pod.path("bad"), "").unwrap();
    let _ = fs::remove_file(pod.path("lives"));
    pod.supervise();
    pod.serve();
    pod.status_that("a few deaths", |status| {
        status.slurmctld.as_ref().is_some_and(|daemon| daemon.restarts > 2)
    })
    .await;
    assert_eq!(pod.conf(), "two");
    assert_eq!(pod.stored(), [2, 3]);
    fs::remove_file(pod.path("bad")).unwrap();
    pod.phase(Phase::Verified).await;
}
