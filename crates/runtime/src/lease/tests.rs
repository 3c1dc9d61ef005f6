use serde_json::{Value, json};
use tokio::time::timeout;

use super::*;
use crate::{
    Fence, Registry,
    fake::{FakeServer, Fault, Path},
};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/n/leases";

fn election(server: &FakeServer, identity: &str) -> (Election, Fence) {
    let candidate = Contender {
        namespace: "n".to_owned(),
        name: "l".to_owned(),
        identity: identity.to_owned(),
    };
    let context = Context::for_tests(server.client(), Registry::default());
    context.fence.end();
    let fence = context.fence.clone();
    (Election::new(candidate, context), fence)
}

fn path() -> Path {
    Path::parse(&format!("{LEASES}/l"))
}

fn lease(server: &FakeServer) -> Lease {
    serde_json::from_value(server.store().get(&path()).unwrap()).unwrap()
}

async fn wins_within(election: &mut Election, seconds: u64) -> bool {
    timeout(Duration::from_secs(seconds), election.win()).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn the_first_leads_at_once() {
    let server = FakeServer::new();
    let (mut first, fence) = election(&server, "a");
    assert!(wins_within(&mut first, 1).await);
    assert_eq!(holder(&lease(&server)), Some("a"));
    assert!(fence.remaining().is_some());
}

#[tokio::test(start_paused = true)]
async fn while_the_leader_renews_no_other_process_leads() {
    let server = FakeServer::new();
    let (mut first, fence) = election(&server, "a");
    first.win().await;
    let keeping = tokio::spawn(async move { first.keep().await });
    let (mut second, _) = election(&server, "b");
    assert!(!wins_within(&mut second, 300).await);
    assert!(!keeping.is_finished());
    assert!(fence.remaining().is_some());
}

#[tokio::test(start_paused = true)]
async fn the_successor_of_a_lost_leader_has_a_higher_term() {
    let server = FakeServer::new();
    let (mut first, old) = election(&server, "a");
    first.win().await;
    let (mut second, new) = election(&server, "b");
    let start = Instant::now();
    second.win().await;
    assert!(start.elapsed() >= LEASE, "{:?}", start.elapsed());
    assert!(start.elapsed() < LEASE + Duration::from_secs(4));
    assert_eq!(old.remaining(), None, "the old one knows that its time is over");
    assert!(new.next() > old.next());
}

#[tokio::test(start_paused = true)]
async fn a_leader_below_a_fence_from_the_future_continues_above_it_once_the_lease_has_its_term() {
    let server = FakeServer::new();
    let (mut first, fence) = election(&server, "a");
    first.win().await;
    let (own, _) = fence.next();
    let future = own + 1_000_000;
    fence.note_highest(future, 1);
    assert_eq!(fence.next().0, own);
    let keeping = tokio::spawn(async move { first.keep().await });
    tokio::time::sleep(RETRY * 2).await;
    assert_eq!(fence.next().0, future + 1);
    assert_eq!(
        lease(&server).spec.unwrap().lease_transitions,
        i32::try_from(future + 1).ok()
    );

    // Its successor is above it, and a former leader that agents reject does not get a higher term.
    keeping.abort();
    let (mut second, new) = election(&server, "b");
    second.win().await;
    assert!(new.next() > fence.next());
    fence.note_highest(future + 1_000_000, 1);
    assert_eq!(fence.next().0, future + 1);
}

#[tokio::test(start_paused = true)]
async fn a_wrong_clock_makes_no_process_leader() {
    let server = FakeServer::new();
    let (mut first, _) = election(&server, "a");
    first.win().await;
    // As another machine may see it: renewed long ago.
    server
        .edit(|store| {
            store.merge(
                &path(),
                &json!({"spec": {"renewTime": "1999-01-01T00:00:00.000000Z"}}),
                "x",
            )
        })
        .unwrap();
    let (mut second, _) = election(&server, "b");
    assert!(!wins_within(&mut second, 10).await);
}

#[tokio::test(start_paused = true)]
async fn a_released_lease_is_acquired_at_the_next_attempt() {
    let server = FakeServer::new();
    let (mut first, fence) = election(&server, "a");
    first.win().await;
    first.release().await;
    assert_eq!(fence.remaining(), None);
    let (mut second, _) = election(&server, "b");
    assert!(wins_within(&mut second, 1).await);
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_released_also_during_a_renewal() {
    let server = FakeServer::new();
    let (mut first, _) = election(&server, "a");
    first.win().await;
    server.fail(Fault::LoseAnswer("replace"));
    assert!(timeout(Duration::from_secs(3), first.keep()).await.is_err());
    first.release().await;
    assert_eq!(holder(&lease(&server)), None);
}

#[tokio::test(start_paused = true)]
async fn a_process_without_the_lease_does_not_release_it() {
    let server = FakeServer::new();
    let (mut first, _) = election(&server, "a");
    first.win().await;
    let (second, _) = election(&server, "b");
    second.release().await;
    assert_eq!(holder(&lease(&server)), Some("a"));
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_renew_gives_up_before_another_may_lead() {
    let server = FakeServer::new();
    let (mut first, fence) = election(&server, "a");
    first.win().await;
    for _ in 0..20 {
        server.fail(Fault::Hang("replace"));
    }
    let start = Instant::now();
    assert!(matches!(first.keep().await, Lost::Expired));
    assert_eq!(start.elapsed(), RENEW_WITHIN);
    assert_eq!(fence.remaining(), None);
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_lease_was_taken_knows_by_whom() {
    let server = FakeServer::new();
    let (mut first, _) = election(&server, "a");
    first.win().await;
    server
        .edit(|store| store.merge(&path(), &json!({"spec": {"holderIdentity": "b"}}), "x"))
        .unwrap();
    assert!(matches!(first.keep().await, Lost::Taken(other) if other == "b"));
}

#[tokio::test(start_paused = true)]
async fn a_deleted_lease_is_lost_and_the_term_still_grows() {
    let server = FakeServer::new();
    let (mut first, old) = election(&server, "a");
    first.win().await;
    server.edit(|store| store.delete(&path(), &Value::Null)).unwrap();
    assert!(matches!(first.keep().await, Lost::Taken(_)));
    let (mut second, new) = election(&server, "b");
    second.win().await;
    assert!(new.next() > old.next());
}

#[tokio::test(start_paused = true)]
async fn a_lost_response_does_not_lose_the_lease() {
    let server = FakeServer::new();
    server.fail(Fault::LoseAnswer("create"));
    let (mut first, fence) = election(&server, "a");
    assert!(wins_within(&mut first, 10).await);
    let spec = lease(&server).spec.unwrap();
    assert!(
        spec.renew_time > spec.acquire_time,
        "the others count from the claim, so it was renewed"
    );

    server.fail(Fault::LoseAnswer("replace"));
    let keeping = tokio::spawn(async move { first.keep().await });
    sleep(Duration::from_secs(30)).await;
    assert!(!keeping.is_finished());
    assert!(fence.remaining().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_label_on_the_lease_does_not_change_its_holder() {
    let server = FakeServer::new();
    let (mut first, _) = election(&server, "a");
    first.win().await;
    let keeping = tokio::spawn(async move { first.keep().await });
    for round in 0..5 {
        sleep(Duration::from_secs(3)).await;
        let label = json!({"metadata": {"labels": {"round": round.to_string()}}});
        server.edit(|store| store.merge(&path(), &label, "x")).unwrap();
    }
    assert!(!keeping.is_finished());
    let labels = lease(&server).metadata.labels.unwrap();
    assert_eq!(labels["round"], "4", "and what they wrote stays");
}

#[tokio::test(start_paused = true)]
async fn of_many_candidates_one_leads() {
    let server = FakeServer::new();
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..5 {
        let (mut election, _) = election(&server, &number.to_string());
        tasks.spawn(async move {
            election.win().await;
            election.keep().await
        });
    }
    sleep(Duration::from_mins(2)).await;
    let transitions = lease(&server).spec.unwrap().lease_transitions;
    sleep(Duration::from_mins(2)).await;
    assert_eq!(lease(&server).spec.unwrap().lease_transitions, transitions);
    assert_eq!(tasks.len(), 5);
}

#[test]
fn the_term_is_never_below_the_minutes_since_1970() {
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    assert_eq!(next_term(None, now), 29_453_760);
    assert_eq!(next_term(Some(3), now), 29_453_760);
    assert_eq!(next_term(Some(29_453_999), now), 29_454_000);
}
