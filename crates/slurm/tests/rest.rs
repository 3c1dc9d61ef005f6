//! The slurmrestd client against a slurmrestd that behaves, and against all the ways in which it may not.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "clippy.toml allows them in tests, but does not see that the functions beside them are tests too"
)]

mod slurmrestd;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use slurm::rest::{Error, NodeUpdate, Process};
use slurm::transport::Error::{Malformed, Unreachable};
use slurm::{JobHandle, Line, ReservationName, ReservationRequest};
use slurmrestd::{Act, Fake, Seen, client, ok};

fn answer(field: &str, value: &Value, release: &str) -> Act {
    ok(json!({ field: value, "meta": {"slurm": {"release": release}}, "errors": [], "warnings": [] }).to_string())
}

fn ping(release: &str) -> Act {
    answer(
        "pings",
        &json!([{"hostname": "ctl", "responding": true, "primary": true}]),
        release,
    )
}

fn error(status: u16, number: i64, text: &str) -> Act {
    Act::Answer(
        status,
        json!({"errors": [{"error_number": number, "error": text, "description": "", "source": ""}]}).to_string(),
    )
}

/// Answers pings of 26.05, and everything else as the test says.
async fn after_ping(act: impl Fn(&Seen) -> Act + Send + Sync + 'static) -> Fake {
    Fake::start(move |seen| {
        if seen.line.ends_with("/ping/") {
            ping("26.05.5")
        } else {
            act(seen)
        }
    })
    .await
}

#[tokio::test]
async fn nodes_are_read_with_the_newest_version_and_a_token() {
    let fake = after_ping(|_| answer("nodes", &json!([{"name": "n1", "state": ["IDLE", "DRAIN"]}]), "26.05.5")).await;
    let client = fake.client();
    assert!(client.nodes().await.unwrap().value[0].state.is_drained());
    client.nodes().await.unwrap();
    let nodes = "GET /slurm/v0.0.45/nodes/";
    assert_eq!(fake.lines(), ["GET /slurm/v0.0.45/ping/", nodes, nodes]);
    assert!(
        fake.seen()
            .iter()
            .all(|seen| seen.token.starts_with("eyJ") && seen.token.split('.').count() == 3)
    );
}

mod version {
    use super::*;

    fn only(seen: &Seen, version: &str, release: &str) -> Act {
        if !seen.line.contains(version) {
            Act::Answer(404, "Unable to find requested URL".to_owned())
        } else if seen.line.ends_with("/ping/") {
            ping(release)
        } else {
            answer("nodes", &json!([]), release)
        }
    }

    #[tokio::test]
    async fn an_older_slurmrestd_is_asked_in_its_own() {
        let fake = Fake::start(|seen| only(seen, "v0.0.44", "25.11.3")).await;
        let client = fake.client();
        client.nodes().await.unwrap();
        assert_eq!(client.served_conf().await.unwrap(), None);
        let lines = fake.lines();
        assert_eq!(
            lines,
            [
                "GET /slurm/v0.0.45/ping/",
                "GET /slurm/v0.0.44/ping/",
                "GET /slurm/v0.0.44/nodes/"
            ]
        );
    }

    #[tokio::test]
    async fn one_that_is_too_old_is_named_as_such() {
        let fake = Fake::start(|seen| only(seen, "v0.0.42", "24.11.5")).await;
        assert!(matches!(fake.client().nodes().await, Err(Error::Unsupported)));
    }

    #[tokio::test]
    async fn an_upgrade_is_noticed_by_the_release_in_an_answer() {
        let upgraded = Mutex::new(false);
        let fake = Fake::start(move |seen| {
            let mut upgraded = upgraded.lock().unwrap();
            if *upgraded {
                return if seen.line.ends_with("/ping/") {
                    ping("26.05.5")
                } else {
                    answer("nodes", &json!([]), "26.05.5")
                };
            }
            *upgraded = seen.line.ends_with("/nodes/");
            only(seen, "v0.0.44", "25.11.3")
        })
        .await;
        let client = fake.client();
        for _ in 0..3 {
            client.nodes().await.unwrap();
        }
        let lines = fake.lines();
        assert_eq!(lines[2..4], ["GET /slurm/v0.0.44/nodes/", "GET /slurm/v0.0.44/nodes/"]);
        assert_eq!(lines[4..], ["GET /slurm/v0.0.45/ping/", "GET /slurm/v0.0.45/nodes/"]);
    }

    #[tokio::test]
    async fn a_downgrade_is_noticed_by_the_path_that_is_gone() {
        let downgraded = Mutex::new(false);
        let fake = Fake::start(move |seen| {
            let mut downgraded = downgraded.lock().unwrap();
            if *downgraded {
                return only(seen, "v0.0.44", "25.11.3");
            }
            *downgraded = seen.line.ends_with("/nodes/");
            only(seen, "v0.0.45", "26.05.5")
        })
        .await;
        let client = fake.client();
        client.nodes().await.unwrap();
        client.nodes().await.unwrap();
        assert_eq!(fake.lines().last().unwrap(), "GET /slurm/v0.0.44/nodes/");
    }
}

mod faults {
    use super::*;

    async fn nodes(act: Act) -> Result<usize, Error> {
        let fake = after_ping(move |_| act.clone()).await;
        fake.client().nodes().await.map(|answer| answer.value.len())
    }

    #[tokio::test]
    async fn an_empty_cluster_is_empty() {
        assert_eq!(nodes(answer("nodes", &json!([]), "26.05.5")).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn no_answer_means_unreachable() {
        assert!(matches!(
            client("http://127.0.0.1:1").nodes().await,
            Err(Error::Transport(Unreachable { .. }))
        ));
        for act in [
            Act::Hang,
            Act::Close,
            Act::Answer(500, "oops".to_owned()),
            Act::Answer(503, String::new()),
        ] {
            let error = nodes(act).await.unwrap_err();
            assert!(
                matches!(error, Error::Transport(Unreachable { .. })) && !error.is_definite(),
                "{error:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_hang_ends_with_the_timeout() {
        let started = std::time::Instant::now();
        let fake = Fake::start(|_| Act::Hang).await;
        assert!(matches!(
            fake.client().nodes().await,
            Err(Error::Transport(Unreachable { .. }))
        ));
        assert!(started.elapsed() < Duration::from_secs(5));
    }

    #[tokio::test]
    async fn a_connection_that_breaks_in_the_middle_means_unreachable() {
        let error = nodes(Act::Truncate(r#"{"nodes":[]}"#.to_owned())).await.unwrap_err();
        assert!(matches!(error, Error::Transport(Unreachable { .. })), "{error:?}");
    }

    #[tokio::test]
    async fn an_answer_that_is_none_is_malformed() {
        for body in [
            "",
            "{",
            r#"{"nodes":[{"name":"n1","state":["IDLE"]}"#,
            "{}",
            r#"{"nodes":null}"#,
            r#"{"nodes":{}}"#,
            r#"{"nodes":[{"name":7,"state":[]}]}"#,
            r#"{"nodes":[{"name":"n1"}]}"#,
            "<html>",
        ] {
            let error = nodes(ok(body)).await.unwrap_err();
            assert!(matches!(error, Error::Transport(Malformed { .. })), "{body}: {error:?}");
        }
    }

    #[tokio::test]
    async fn what_is_not_http_means_unreachable() {
        let error = nodes(Act::Raw("\x15\x03\x01\x00\x02\x02\x16 no http here\r\n\r\n"))
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Transport(Unreachable { .. })), "{error:?}");
    }

    #[tokio::test]
    async fn a_bad_token_is_unauthorized_in_all_its_forms() {
        for act in [
            error(511, 1007, "Protocol authentication error"),
            error(200, 1007, "Protocol authentication error"),
            Act::Answer(511, String::new()),
            Act::Answer(401, "Authentication failure".to_owned()),
        ] {
            let error = nodes(act).await.unwrap_err();
            assert!(matches!(error, Error::Unauthorized { .. }), "{error:?}");
        }
    }

    #[tokio::test]
    async fn errors_with_http_200_are_errors() {
        let act = Act::Answer(
            200,
            json!({"nodes": [], "errors": [{"error_number": 2010, "error": "Invalid user id"}]}).to_string(),
        );
        let refused = nodes(act).await.unwrap_err();
        assert!(
            matches!(&refused, Error::Refused { number: 2010, status: 200, text } if text == "Invalid user id"),
            "{refused:?}"
        );
    }

    #[tokio::test]
    async fn a_slurmctld_that_slurmrestd_cannot_reach_is_unreachable() {
        for (status, number) in [(500, 1001), (502, 1800), (504, 5004), (504, 0)] {
            let error = nodes(error(status, number, "Unable to contact slurm controller"))
                .await
                .unwrap_err();
            assert!(matches!(error, Error::Transport(Unreachable { .. })), "{error:?}");
        }
    }

    #[tokio::test]
    async fn qos_are_read_from_the_databases_part_of_the_interface() {
        let fake = after_ping(|_| {
            answer(
                "qos",
                &json!([{"name": "normal", "id": 1}, {"name": "fast"}]),
                "26.05.5",
            )
        })
        .await;
        let client = fake.client();
        let names: Vec<String> = client
            .qos()
            .await
            .unwrap()
            .value
            .into_iter()
            .map(|qos| qos.name)
            .collect();
        assert_eq!(names, ["normal", "fast"]);
        assert_eq!(fake.lines().pop().unwrap(), "GET /slurmdb/v0.0.45/qos/");
        assert_eq!(client.release().as_deref(), Some("26.05.5"));
    }

    #[tokio::test]
    async fn a_ping_tells_which_slurmctld_responds() {
        let pings = json!([{"hostname": "a", "responding": false, "primary": true}, {"hostname": "b", "responding": true, "primary": false}]);
        let fake = Fake::start(move |_| answer("pings", &pings, "26.05.5")).await;
        let pings = fake.client().ping().await.unwrap().value;
        assert_eq!(
            pings.iter().map(|ping| ping.responding).collect::<Vec<_>>(),
            [false, true]
        );
    }
}

mod commands {
    use super::*;

    #[tokio::test]
    async fn a_drain_is_posted_with_its_reason() {
        let fake =
            after_ping(|_| ok(r#"{"errors":[],"warnings":[{"description":"Ignoring unknown field","source":"x"}]}"#))
                .await;
        let warnings = fake
            .client()
            .update_node("slinky-0", &NodeUpdate::drain(Some("slurm-operator: scale-in")))
            .await
            .unwrap();
        assert_eq!(warnings[0].description, "Ignoring unknown field");
        let seen = fake.seen().pop().unwrap();
        assert_eq!(seen.line, "POST /slurm/v0.0.45/node/slinky-0");
        assert_eq!(seen.body, r#"{"state":["DRAIN"],"reason":"slurm-operator: scale-in"}"#);
    }

    #[tokio::test]
    async fn a_busy_node_is_not_deleted() {
        let fake = after_ping(|_| error(422, 2016, "Requested nodes are busy")).await;
        let refused = fake.client().delete_node("n1").await.unwrap_err();
        assert!(
            matches!(
                refused,
                Error::Refused {
                    number: 2016,
                    status: 422,
                    ..
                }
            ) && refused.is_definite()
        );
        assert_eq!(
            refused.to_string(),
            "Slurm refused: Requested nodes are busy (error 2016, HTTP 422)"
        );
        assert_eq!(fake.lines().pop().unwrap(), "DELETE /slurm/v0.0.45/node/n1");
    }

    #[tokio::test]
    async fn an_unknown_node_is_not_found() {
        let fake = after_ping(|_| error(422, 2018, "Invalid node name specified")).await;
        let error = fake.client().delete_node("n1").await.unwrap_err();
        assert_eq!(error.to_string(), "Slurm has no node \"n1\"");
        let fake = after_ping(|_| answer("nodes", &json!([]), "26.05.5")).await;
        assert!(matches!(fake.client().node("n1").await, Err(Error::NotFound { .. })));
    }

    #[tokio::test]
    async fn no_error_about_a_node_is_looked_up_in_the_list() {
        for (listed, found) in [("n1", true), ("n2", false)] {
            let fake = after_ping(move |seen| match seen.line.rsplit('/').next() {
                Some("n1") => error(200, 0, "No error"),
                _ => answer("nodes", &json!([{"name": listed, "state": ["IDLE"]}]), "26.05.5"),
            })
            .await;
            match fake.client().node("n1").await {
                Ok(_) => assert!(found),
                Err(error) => assert!(!found && matches!(error, Error::NotFound { .. }), "{error:?}"),
            }
        }
    }

    #[tokio::test]
    async fn a_path_that_is_not_there_does_not_mean_that_the_node_is_gone() {
        let fake = after_ping(|_| Act::Answer(404, "Unable to find requested URL".to_owned())).await;
        let error = fake.client().delete_node("n1").await.unwrap_err();
        assert!(
            matches!(error, Error::Transport(Malformed { .. })) && !error.is_definite(),
            "{error:?}"
        );
    }

    #[tokio::test]
    async fn a_command_without_an_answer_may_have_happened() {
        let fake = after_ping(|_| ok("{")).await;
        let error = fake.client().delete_node("n1").await.unwrap_err();
        assert!(!error.is_definite(), "{error:?}");
    }
}

mod jobs_and_reservations {
    use super::*;

    fn job() -> JobHandle {
        JobHandle::new("7_3").unwrap()
    }

    #[tokio::test]
    async fn a_job_is_ended_or_has_to_wait_again() {
        let fake = after_ping(|_| answer("status", &json!([]), "26.05.5")).await;
        fake.client().cancel_job(&job()).await.unwrap();
        fake.client().requeue_job(&job()).await.unwrap();
        let lines: Vec<String> = fake.lines().into_iter().filter(|line| !line.contains("ping")).collect();
        assert_eq!(
            lines,
            ["DELETE /slurm/v0.0.45/job/7_3", "GET /slurm/v0.0.45/job/7_3/requeue"]
        );
    }

    #[tokio::test]
    async fn what_slurm_says_about_the_job_counts_and_not_http_200() {
        let cancel = |code: i64| json!([{"error": {"string": "why", "code": code}, "step_id": "7"}]);
        let requeue = |code: i64| json!([{"job_id": 7, "step_id": "7", "error": "why", "error_code": code}]);
        for (code, done) in [(0, true), (2021, true), (2024, true), (2017, false), (2094, false)] {
            for verdict in [cancel(code), requeue(code)] {
                let fake = after_ping(move |_| answer("status", &verdict, "26.05.5")).await;
                match fake.client().cancel_job(&job()).await {
                    Ok(()) => assert!(done, "{code}"),
                    Err(Error::NotFound { what }) => assert_eq!((code, what.as_str()), (2017, "job 7_3")),
                    Err(error) => assert_eq!((code, error.to_string().contains("why")), (2094, true)),
                }
            }
        }
    }

    #[tokio::test]
    async fn an_older_slurmrestd_cannot_requeue_and_is_not_asked() {
        let fake = Fake::start(|seen| {
            if seen.line.contains("v0.0.45") {
                Act::Answer(404, "Unable to find requested URL".to_owned())
            } else {
                ping("25.11.3")
            }
        })
        .await;
        let error = fake.client().requeue_job(&job()).await.unwrap_err();
        assert!(
            matches!(error, Error::Lacking { .. }) && error.is_definite(),
            "{error:?}"
        );
        assert_eq!(fake.lines().len(), 2, "two pings");
    }

    #[tokio::test]
    async fn a_reservation_is_made_read_and_removed() {
        let fake = after_ping(|seen| {
            if seen.line.starts_with("GET") {
                let reservation = json!({"name": "r", "node_list": "n[1-2]", "flags": ["MAINT", "SPEC_NODES"], "users": "slurm",
                    "start_time": {"set": true, "number": 1000}, "end_time": {"set": true, "number": 2800}});
                answer("reservations", &json!([reservation]), "26.05.5")
            } else {
                ok(r#"{"errors":[]}"#)
            }
        })
        .await;
        let client = fake.client();
        let name = ReservationName::new("r").unwrap();
        let line = |text: &str| Line::new(text).unwrap();
        let request = ReservationRequest {
            start: Some(1000),
            minutes: Some(30),
            nodes: vec![line("n[1-2]")],
            users: vec![line("slurm")],
            flags: vec![line("MAINT")],
            ..ReservationRequest::new(name.clone())
        };
        client.reserve(&request).await.unwrap();
        let seen = fake.seen().pop().unwrap();
        assert_eq!(seen.line, "POST /slurm/v0.0.45/reservation");
        assert_eq!(
            seen.body,
            concat!(
                r#"{"name":"r","start_time":{"set":true,"infinite":false,"number":1000},"#,
                r#""duration":{"set":true,"infinite":false,"number":30},"node_list":["n[1-2]"],"users":["slurm"],"flags":["MAINT"]}"#
            )
        );
        client.reserve(&ReservationRequest::new(name.clone())).await.unwrap();
        assert_eq!(fake.seen().pop().unwrap().body, r#"{"name":"r"}"#, "the rest is kept");
        let reservations = client.reservations().await.unwrap().value;
        assert!(reservations[0].is_active(1500) && reservations[0].node_list().unwrap().contains("n2"));
        client.unreserve(&name).await.unwrap();
        assert_eq!(fake.lines().pop().unwrap(), "DELETE /slurm/v0.0.45/reservation/r");
    }

    #[tokio::test]
    async fn a_reservation_that_is_gone_is_not_found() {
        let fake = after_ping(|_| error(422, 2053, "Requested reservation is invalid")).await;
        let error = fake
            .client()
            .unreserve(&ReservationName::new("r").unwrap())
            .await
            .unwrap_err();
        assert_eq!(error.to_string(), "Slurm has no reservation \"r\"");
    }
}

mod partitions {
    use slurm::rpc::{Failure, PartitionCommands as _, PartitionUpdate};

    use super::*;

    /// slurmctld with the partitions that were captured: base, full and alone.
    async fn slurmctld() -> Fake {
        after_ping(|seen| {
            if seen.line.starts_with("GET") {
                ok(include_str!("captured/scontrol-partitions-set.json"))
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
    async fn one_message_makes_and_changes_so_it_is_looked_up_which_it_is() {
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
    async fn refusals_are_slurms_own() {
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

    /// It would be the partition `true` that goes.
    #[tokio::test]
    async fn a_name_that_slurmrestd_misreads_is_not_sent() {
        let fake = slurmctld().await;
        let error = fake.client().delete_partition("t").await.unwrap_err();
        assert!(matches!(error, Error::Misread { .. }), "{error:?}");
        assert!(fake.lines().iter().all(|line| line.starts_with("GET")));
    }

    #[tokio::test]
    async fn an_older_slurmrestd_is_told_nothing() {
        let fake = Fake::start(|seen| {
            if seen.line.contains("v0.0.45") {
                Act::Answer(404, "Unable to find requested URL".to_owned())
            } else {
                ping("25.11.3")
            }
        })
        .await;
        let client = fake.client();
        let shown = slurm::rpc::PartitionCommands::partitions(&client).await;
        assert!(matches!(shown, Err(Failure::Unspoken(_))), "{shown:?}");
        let gone = slurm::rpc::PartitionCommands::delete_partition(&client, "base").await;
        assert!(matches!(gone, Err(Failure::Unspoken(_))), "{gone:?}");
        assert!(fake.lines().iter().all(|line| line.ends_with("/ping/")));
    }
}

mod observation {
    use super::*;

    /// slurmctld with the boot time that `boots` gives on its n-th reading, at 2000 by its own clock.
    async fn cluster(boots: impl Fn(u64) -> u64 + Send + Sync + 'static) -> Fake {
        let readings = AtomicU64::new(0);
        after_ping(move |seen| match seen.line.rsplit("v0.0.45/").next().unwrap() {
            "conf" => {
                let boot = boots(readings.fetch_add(1, Ordering::SeqCst));
                answer(
                    "slurm_conf_meta",
                    &json!({"BOOT_TIME": boot, "LastUpdate": 2000, "HashValue": -5}),
                    "26.05.5",
                )
            }
            "nodes/" => answer("nodes", &json!([{"name": "n1", "state": ["IDLE"]}]), "26.05.5"),
            "jobs/" => answer(
                "jobs",
                &json!([{"job_id": 1, "job_state": ["RUNNING"], "nodes": "n1"}]),
                "26.05.5",
            ),
            other => panic!("{other}"),
        })
        .await
    }

    #[tokio::test]
    async fn nodes_and_jobs_of_one_process_say_so() {
        let observation = cluster(|_| 1000).await.client().observe().await.unwrap();
        assert_eq!(observation.process, Some(Process { boot_time: 1000 }));
        assert_eq!(observation.jobs[0].may_be_on(&observation.nodes[0].name), Ok(true));
    }

    #[tokio::test]
    async fn a_restart_in_between_takes_the_proof_away() {
        assert_eq!(
            cluster(|reading| 1000 + reading)
                .await
                .client()
                .observe()
                .await
                .unwrap()
                .process,
            None
        );
    }

    #[tokio::test]
    async fn a_process_as_young_as_the_clock_is_coarse_proves_nothing() {
        assert_eq!(cluster(|_| 1999).await.client().observe().await.unwrap().process, None);
    }
}
