use super::*;

fn on_node(node: &str, action: NodeAction) -> NodeCommand {
    NodeCommand {
        node: NodeName::new(node).unwrap(),
        expect: None,
        action,
    }
}

#[tokio::test]
async fn a_drain_is_posted_with_its_reason() {
    let fake =
        after_ping(|_| ok(r#"{"errors":[],"warnings":[{"description":"Ignoring unknown field","source":"x"}]}"#)).await;
    let reason = Some(Reason::new("slurm-operator: scale-in").unwrap());
    let drain = on_node("slinky-0", NodeAction::Drain { reason });
    fake.client().command_node(&drain).await.unwrap();
    let seen = fake.seen().pop().unwrap();
    assert_eq!(seen.line, "POST /slurm/v0.0.45/node/slinky-0");
    assert_eq!(seen.body, r#"{"state":["DRAIN"],"reason":"slurm-operator: scale-in"}"#);
}

#[tokio::test]
async fn a_busy_node_is_not_deleted() {
    let fake = after_ping(|_| error(422, 2016, "Requested nodes are busy")).await;
    let refused = fake
        .client()
        .command_node(&on_node("n1", NodeAction::Delete))
        .await
        .unwrap_err();
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
    let error = fake
        .client()
        .command_node(&on_node("n1", NodeAction::Delete))
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "Slurm has no node \"n1\"");
    let fake = after_ping(|_| answer("nodes", &json!([]), "26.05.5")).await;
    assert!(matches!(fake.client().node("n1").await, Err(Error::NotFound { .. })));
}

#[tokio::test]
async fn error_0_about_a_node_is_verified_in_the_list() {
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
async fn a_missing_path_does_not_mean_a_missing_node() {
    let fake = after_ping(|_| Act::Answer(404, "Unable to find requested URL".to_owned())).await;
    let error = fake
        .client()
        .command_node(&on_node("n1", NodeAction::Delete))
        .await
        .unwrap_err();
    assert!(
        matches!(error, Error::Transport(Malformed { .. })) && !error.is_definite(),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_command_with_an_invalid_response_has_no_definite_outcome() {
    let fake = after_ping(|_| ok("{")).await;
    let error = fake
        .client()
        .command_node(&on_node("n1", NodeAction::Delete))
        .await
        .unwrap_err();
    assert!(!error.is_definite(), "{error:?}");
}
