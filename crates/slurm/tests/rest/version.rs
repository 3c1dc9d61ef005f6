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
async fn an_older_slurmrestd_is_asked_in_its_version() {
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
async fn a_slurmrestd_that_is_too_old_is_unsupported() {
    let fake = Fake::start(|seen| only(seen, "v0.0.41", "24.05.1")).await;
    assert!(matches!(fake.client().nodes().await, Err(Error::Unsupported)));
}

/// 24.11 has neither the configuration nor writes of reservations.
#[tokio::test]
async fn the_oldest_slurmrestd_is_asked_for_what_it_has() {
    let fake = Fake::start(|seen| only(seen, "v0.0.42", "24.11.5")).await;
    let client = fake.client();
    client.nodes().await.unwrap();
    assert_eq!(client.served_conf().await.unwrap(), None);
    let name = ReservationName::new("r").unwrap();
    let refused = client
        .command_reservation(&ReservationCommand::Unreserve { name })
        .await
        .unwrap_err();
    assert!(refused.is_definite());
    assert_eq!(
        refused.to_string(),
        "slurmrestd cannot change reservations before v0.0.44"
    );
    assert_eq!(fake.lines().last().unwrap(), "GET /slurm/v0.0.42/nodes/");
}

#[tokio::test]
async fn an_upgrade_is_noticed_by_the_release_in_a_response() {
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
async fn a_downgrade_is_noticed_by_a_missing_path() {
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

#[tokio::test]
async fn tokens_expire_by_slurmctlds_clock_once_it_is_known() {
    let fake = after_ping(|seen| {
        if seen.line.ends_with("/conf") {
            let conf = json!({"BOOT_TIME": 1000, "LastUpdate": 2000, "HashValue": -5});
            answer("slurm_conf_meta", &conf, "26.05.5")
        } else {
            answer("nodes", &json!([]), "26.05.5")
        }
    })
    .await;
    let client = fake.client();
    assert!(client.learn_clock(&fake.client()).await.unwrap());
    client.nodes().await.unwrap();
    let key = slurm::token::SigningKey::new(b"key").unwrap();
    let claims = key.read(&fake.seen().last().unwrap().token).unwrap();
    assert!((2900..2930).contains(&claims.expires_at), "{claims:?}");
    let older = older().await;
    assert!(!older.client().learn_clock(&older.client()).await.unwrap());
}
