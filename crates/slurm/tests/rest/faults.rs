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
async fn no_response_means_unreachable() {
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
async fn an_invalid_body_is_malformed() {
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
async fn a_server_without_http_is_unreachable() {
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
async fn a_ping_shows_which_slurmctld_responds() {
    let pings = json!([{"hostname": "a", "responding": false, "primary": true}, {"hostname": "b", "responding": true, "primary": false}]);
    let fake = Fake::start(move |_| answer("pings", &pings, "26.05.5")).await;
    let pings = fake.client().ping().await.unwrap().value;
    assert_eq!(
        pings.iter().map(|ping| ping.responding).collect::<Vec<_>>(),
        [false, true]
    );
}
