mod frozen_agent;

use slurm::token::Claims;
use tokio::{io::AsyncReadExt as _, net::TcpListener};

use super::{super::deliver::JwtKey, *};

/// Returns the claims of the token with which a connection reads nodes through slurmrestd.
async fn claims_of_a_read(agentless: bool) -> Claims {
    let slurmrestd = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let routes = Routes {
        key: JwtKey(b"key".to_vec()),
        rest: Some(format!("http://{}", slurmrestd.local_addr().unwrap())),
        agent: None,
        agentless,
    };
    let connection = Connection::new(routes, &Host::real()).unwrap();
    let client = connection.rest.unwrap();
    let request = async {
        let (mut stream, _) = slurmrestd.accept().await.unwrap();
        let mut request = vec![0; 4096];
        let length = stream.read(&mut request).await.unwrap();
        String::from_utf8(request[..length].to_vec()).unwrap()
    };
    let request = tokio::select! {
        request = request => request,
        answer = client.nodes() => panic!("nothing responded, but there is {answer:?}"),
    };
    let mut headers = request.lines().filter_map(|line| line.split_once(": "));
    let token = headers.find(|(name, _)| name.eq_ignore_ascii_case("X-SLURM-USER-TOKEN"));
    SigningKey::new(b"key").unwrap().read(token.unwrap().1).unwrap()
}

#[tokio::test]
async fn a_token_for_reads_is_of_a_user_without_privileges_and_short_lived() {
    let claims = claims_of_a_read(false).await;
    assert_eq!(
        (claims.user.as_str(), claims.lifetime()),
        ("nobody", Duration::from_secs(75))
    );
}

#[tokio::test]
async fn reads_are_privileged_only_where_there_is_no_agent() {
    let claims = claims_of_a_read(true).await;
    assert_eq!(
        (claims.user.as_str(), claims.lifetime()),
        ("slurm", Duration::from_mins(5))
    );
}

#[test]
fn no_order_is_sent_while_an_unanswered_one_may_still_be_carried_out() {
    let unanswered = Unanswered::default();
    let (start, life) = (Host::real().instant(), ORDER_TOKEN_LIFETIME + MAX_CLOCK_SKEW);
    unanswered.note("node \"a\"".to_owned(), start + life);
    assert_eq!(unanswered.left("node \"a\"", start), Some(life));
    assert_eq!(unanswered.left("node \"b\"", start), None);
    assert_eq!(unanswered.left("node \"a\"", start + life), None);
    assert!(unanswered.0.lock().unwrap().is_empty(), "nothing is kept");
}
