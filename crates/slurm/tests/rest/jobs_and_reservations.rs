use super::*;

fn on_job(action: JobAction) -> JobCommand {
    JobCommand {
        job: JobHandle::new("7_3").unwrap(),
        action,
    }
}

#[tokio::test]
async fn a_job_is_cancelled_or_requeued() {
    let fake = after_ping(|_| answer("status", &json!([]), "26.05.5")).await;
    fake.client().command_job(&on_job(JobAction::Cancel)).await.unwrap();
    fake.client().command_job(&on_job(JobAction::Requeue)).await.unwrap();
    let lines: Vec<String> = fake.lines().into_iter().filter(|line| !line.contains("ping")).collect();
    assert_eq!(
        lines,
        ["DELETE /slurm/v0.0.45/job/7_3", "GET /slurm/v0.0.45/job/7_3/requeue"]
    );
}

#[tokio::test]
async fn the_result_of_the_job_counts_and_not_http_200() {
    let cancel = |code: i64| json!([{"error": {"string": "why", "code": code}, "step_id": "7"}]);
    let requeue = |code: i64| json!([{"job_id": 7, "step_id": "7", "error": "why", "error_code": code}]);
    for (code, done) in [(0, true), (2021, true), (2024, true), (2017, false), (2094, false)] {
        for verdict in [cancel(code), requeue(code)] {
            let fake = after_ping(move |_| answer("status", &verdict, "26.05.5")).await;
            match fake.client().command_job(&on_job(JobAction::Cancel)).await {
                Ok(()) => assert!(done, "{code}"),
                Err(Error::NotFound { what }) => assert_eq!((code, what.as_str()), (2017, "job 7_3")),
                Err(error) => assert_eq!((code, error.to_string().contains("why")), (2094, true)),
            }
        }
    }
}

#[tokio::test]
async fn an_older_slurmrestd_cannot_requeue_and_is_not_asked() {
    let fake = older().await;
    let error = fake
        .client()
        .command_job(&on_job(JobAction::Requeue))
        .await
        .unwrap_err();
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
    let line = |text: &str| SingleLine::new(text).unwrap();
    let request = ReservationRequest {
        start: Some(1000),
        minutes: Some(30),
        nodes: vec![line("n[1-2]")],
        users: vec![line("slurm")],
        flags: vec![line("MAINT")],
        ..ReservationRequest::new(name.clone())
    };
    let reserve = async |request| client.command_reservation(&ReservationCommand::Reserve(request)).await;
    reserve(request).await.unwrap();
    let seen = fake.seen().pop().unwrap();
    assert_eq!(seen.line, "POST /slurm/v0.0.45/reservation");
    assert_eq!(
        seen.body,
        concat!(
            r#"{"name":"r","start_time":{"set":true,"infinite":false,"number":1000},"#,
            r#""duration":{"set":true,"infinite":false,"number":30},"node_list":["n[1-2]"],"users":["slurm"],"flags":["MAINT"]}"#
        )
    );
    reserve(ReservationRequest::new(name.clone())).await.unwrap();
    assert_eq!(fake.seen().pop().unwrap().body, r#"{"name":"r"}"#, "the rest is kept");
    let reservations = client.reservations().await.unwrap().value;
    assert!(reservations[0].is_active(1500) && reservations[0].node_list().unwrap().contains("n2"));
    let unreserve = ReservationCommand::Unreserve { name };
    client.command_reservation(&unreserve).await.unwrap();
    assert_eq!(fake.lines().pop().unwrap(), "DELETE /slurm/v0.0.45/reservation/r");
}

#[tokio::test]
async fn a_missing_reservation_is_not_found() {
    let fake = after_ping(|_| error(422, 2053, "Requested reservation is invalid")).await;
    let name = ReservationName::new("r").unwrap();
    let unreserve = ReservationCommand::Unreserve { name };
    let error = fake.client().command_reservation(&unreserve).await.unwrap_err();
    assert_eq!(error.to_string(), "Slurm has no reservation \"r\"");
}
