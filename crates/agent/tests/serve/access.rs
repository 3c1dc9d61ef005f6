//! Tokens, fences, probes, and the candidate in a ConfigMap.

use slurm::transport;

use super::*;

#[tokio::test]
async fn a_replaced_leader_is_rejected() {
    let mut pod = Pod::running(&revision(1, "one")).await;
    let client = pod.client();
    let new = Fence { term: 2, sequence: 1 };
    assert_eq!(client.claim(new).await.unwrap().fence, new);
    let stale = client.push(&revision(2, "two"), fence(100)).await.unwrap_err();
    assert!(
        matches!(stale, Error::StaleFence { highest } if highest == new),
        "{stale:?}"
    );
    // The next agent rejects it, too.
    pod.kill_agent();
    pod.serve();
    pod.phase(Phase::Verified).await;
    let stale = pod.client().push(&revision(2, "two"), fence(100)).await.unwrap_err();
    assert!(matches!(stale, Error::StaleFence { .. }), "{stale:?}");
    assert_eq!(pod.conf(), "one");
}

#[tokio::test]
async fn a_caller_with_another_key_or_for_another_pod_is_rejected() {
    let pod = Pod::running(&revision(1, "one")).await;
    for client in [pod.client_of("pod-2", KEY), pod.client_of(POD, b"another key")] {
        let push = client.push(&revision(2, "two"), fence(2)).await.unwrap_err();
        assert!(matches!(push, Error::Refused(Refusal::Token { .. })), "{push:?}");
        let read = client.status().await.unwrap_err();
        assert!(matches!(read, Error::Refused(Refusal::Token { .. })), "{read:?}");
    }
    assert_eq!(pod.conf(), "one");
}

#[tokio::test]
async fn a_response_without_proof_is_rejected() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await;
            let body = r#"{"jobs":[],"errors":[]}"#;
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
        }
    });
    let client = Client::new(
        host::Host::real(),
        address,
        POD,
        AgentKey::derive(KEY).unwrap(),
        Options::default(),
    );
    let error = client.jobs().await.unwrap_err();
    assert!(
        matches!(error, Error::Transport(transport::Error::Malformed { .. })),
        "{error:?}"
    );
    assert!(!error.is_definite());
}

#[tokio::test]
async fn an_address_without_an_agent_is_unreachable() {
    let pod = Pod::prepared(&revision(1, "one"));
    let error = pod.client().status().await.unwrap_err();
    assert!(
        matches!(error, Error::Transport(transport::Error::Unreachable { .. })),
        "{error:?}"
    );
}

#[tokio::test]
async fn probes_need_no_token_and_everything_else_does() {
    let pod = Pod::running(&revision(1, "one")).await;
    for (path, expected) in [("/healthz", 200), ("/readyz", 200), ("/v1/revision", 401), ("/", 401)] {
        assert_eq!(get(pod.address, path).await, expected, "{path}");
    }
    fs::remove_file(pod.path("etc/..data")).unwrap();
    assert_eq!(get(pod.address, "/readyz").await, 503);
}

pub(crate) async fn get(address: SocketAddr, path: &str) -> u16 {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

/// The head of a request that never ends.
const HALF_REQUEST: &[u8] = b"GET /v1/revision HTTP/1.1\r\nHost: agent\r\n";

/// Opens connections from this address, each with half a request.
async fn flood(agent: SocketAddr, from: Ipv4Addr, count: usize) -> Vec<tokio::net::TcpStream> {
    use tokio::io::AsyncWriteExt as _;
    let mut open = Vec::new();
    for _ in 0..count {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        let mut stream = socket.connect(agent).await.unwrap();
        // The agent may have closed it already.
        let _ = stream.write_all(HALF_REQUEST).await;
        open.push(stream);
    }
    open
}

/// Whether the agent has closed the connection.
fn is_closed(stream: &tokio::net::TcpStream) -> bool {
    match stream.try_read(&mut [0; 1]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}

#[tokio::test]
async fn a_flood_of_connections_stops_neither_orders_nor_probes() {
    let pod = Pod::running(&revision(1, "one")).await;
    let client = pod.client();
    client.status().await.unwrap();
    let flooded = async {
        let mut open = Vec::new();
        // The clients below have 127.0.0.1.
        for last in 2..=21 {
            open.extend(flood(pod.address, Ipv4Addr::new(127, 0, 0, last), 100).await);
        }
        open
    };
    let worked = async {
        for number in 2..6 {
            assert_eq!(pod.client().status().await.unwrap().protocol, slurm::agent::PROTOCOL);
            let pushed = client
                .push(&revision(number, &format!("of {number}")), fence(number))
                .await
                .unwrap();
            assert_eq!(pushed.outcome, Outcome::Applied);
            assert_eq!(get(pod.address, "/healthz").await, 200);
        }
    };
    let (open, ()) = tokio::join!(flooded, worked);
    let deadline = Instant::now() + Duration::from_secs(4);
    while open.iter().filter(|stream| !is_closed(stream)).count() > 512 {
        assert!(Instant::now() < deadline);
        sleep(Duration::from_millis(50)).await;
    }
    pod.client().status().await.unwrap();
}

#[tokio::test]
async fn a_connection_without_a_valid_token_is_closed() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let pod = Pod::running(&revision(1, "one")).await;
    let mut open = flood(pod.address, Ipv4Addr::LOCALHOST, 1).await;
    let stream = &mut open[0];
    let start = Instant::now();
    // A rejected request gives it no more time.
    stream.write_all(b"Authorization: Bearer x\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(
        answer.starts_with(b"HTTP/1.1 401"),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    let took = start.elapsed();
    assert!(
        took > Duration::from_secs(4) && took < Duration::from_secs(15),
        "{took:?}"
    );
}

/// Mounts a candidate as the kubelet does.
fn mount(pod: &Pod, version: &str, candidate: &Candidate) {
    let directory = pod.path("candidate");
    fs::create_dir(directory.join(version)).unwrap();
    fs::write(directory.join(version).join("candidate"), &candidate.bundle).unwrap();
    fs::write(directory.join(version).join("token"), &candidate.token).unwrap();
    symlink(version, directory.join("..data_tmp")).unwrap();
    fs::rename(directory.join("..data_tmp"), directory.join("..data")).unwrap();
    for name in ["candidate", "token"] {
        let _ = symlink(Path::new("..data").join(name), directory.join(name));
    }
}

#[tokio::test]
async fn a_candidate_goes_live_after_the_checks_of_a_push() {
    let pod = Pod::running(&revision(1, "one")).await;
    let key = AgentKey::derive(KEY).unwrap();
    let made = |revision: &Revision, number: u64, pod: &str, key: &AgentKey| {
        Candidate::new(revision, fence(number), pod, key, SystemTime::now()).unwrap()
    };
    mount(&pod, "..1", &made(&revision(2, "two"), 2, POD, &key));
    pod.status_that("revision 2", |status| {
        status.live.as_ref().is_some_and(|live| live.sequence == 2) && status.phase == Phase::Verified
    })
    .await;
    assert_eq!(pod.conf(), "two");
    let forged = AgentKey::derive(b"another key of another cluster..").unwrap();
    let mut swapped = made(&revision(3, "three"), 3, POD, &key);
    swapped.bundle = revision(3, "not three").to_bundle().unwrap();
    for (version, candidate, complaint) in [
        ("..2", made(&revision(3, "three"), 3, POD, &forged), "another key"),
        (
            "..3",
            made(&revision(3, "three"), 3, "another-pod", &key),
            "another pod",
        ),
        ("..4", swapped, "another candidate"),
        (
            "..5",
            made(&revision(3, "three"), 1, POD, &key),
            "command with a higher fence",
        ),
        ("..6", made(&revision(2, "old"), 4, POD, &key), "is stale"),
        ("..7", made(&revision(3, "wrong"), 5, POD, &key), "Rejected"),
    ] {
        mount(&pod, version, &candidate);
        let log = pod.path("serve.log");
        let begun = Instant::now();
        while !fs::read_to_string(&log).unwrap().contains(complaint) {
            assert!(begun.elapsed() < Duration::from_secs(10), "{complaint}");
            sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(pod.conf(), "two", "{complaint}");
    }
    // Pushes work as before.
    assert_eq!(pod.push(&revision(9, "three")).await.outcome, Outcome::Applied);
}

#[tokio::test]
async fn the_agent_stops_on_sigterm() {
    let mut pod = Pod::running(&revision(1, "one")).await;
    let agent = pod.agent.as_mut().unwrap();
    kill(Pid::from_raw(agent.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    assert!(agent.wait().unwrap().success());
}
