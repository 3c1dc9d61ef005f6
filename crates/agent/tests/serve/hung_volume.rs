//! A state volume that hangs, as a network volume may do for minutes, and then responds again.

use super::*;

/// Above the timeout of any command for the volume, below the operator's timeout.
const SOON: Duration = Duration::from_secs(4);

impl Pod {
    /// Blocks every access to the volume from now on.
    fn hang_volume(&self) {
        fs::write(self.path("held"), "").unwrap();
    }

    /// Lets the blocked work continue.
    fn release_volume(&self) {
        fs::remove_file(self.path("held")).unwrap();
    }

    async fn drain(&self, fence: Fence) -> Result<UpdateChannel, Error> {
        let command = NodeCommand {
            node: NodeName::new("n1").unwrap(),
            expect: None,
            action: NodeAction::Drain {
                reason: Some(Reason::new("cordoned").unwrap()),
            },
        };
        self.client().command_node(&command, fence).await
    }

    fn term(&self) -> u64 {
        Store::new(&host::Host::real(), &self.path("state"), &uid()).term()
    }

    /// Retries as the operator does, until the volume responds.
    async fn claim(&self, fence: Fence) -> Status {
        let start = Instant::now();
        loop {
            match self.client().claim(fence).await {
                Ok(status) => return status,
                Err(error) => assert!(start.elapsed() < TIMEOUT, "{error}"),
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Likewise: a file can be seen on the volume before its thread is free again.
    async fn push_again(&self, revision: &Revision) -> Pushed {
        let start = Instant::now();
        loop {
            let pushed = self.client().push(revision, fence(revision.sequence)).await;
            if !is_failure_of_volume(&pushed) {
                return pushed.unwrap();
            }
            assert!(start.elapsed() < TIMEOUT, "{pushed:?}");
            sleep(Duration::from_millis(10)).await;
        }
    }

    async fn stored_soon(&self, expected: &[u64]) {
        let start = Instant::now();
        while self.stored() != expected || self.path("state/.slurm-operator/controller-1/pending").exists() {
            assert!(start.elapsed() < TIMEOUT, "{:?}", self.stored());
            sleep(Duration::from_millis(10)).await;
        }
    }
}

fn is_failure_of_volume<T>(answer: &Result<T, Error>) -> bool {
    matches!(answer, Err(Error::Refused(Refusal::Failed { detail })) if detail.contains("the state volume does not respond"))
}

async fn within<T>(limit: Duration, what: &str, work: impl Future<Output = T>) -> T {
    let start = Instant::now();
    let done = work.await;
    assert!(start.elapsed() < limit, "{what} took {:?}", start.elapsed());
    done
}

#[tokio::test]
async fn probes_status_and_commands_of_the_leader_work_while_the_volume_hangs() {
    let pod = Pod::running(&revision(1, "PartitionName=a Nodes=n1\n")).await;
    fs::write(pod.path("nodes"), "").unwrap();
    pod.drain(fence(1)).await.unwrap();
    pod.hang_volume();
    let second = revision(2, "# two\nPartitionName=a Nodes=n1\n");
    let pushed = pod.client();
    let push = pushed.push(&second, fence(2));
    let meanwhile = async {
        sleep(Duration::from_millis(500)).await;
        let moment = Duration::from_secs(1);
        assert_eq!(within(moment, "/healthz", get(pod.address, "/healthz")).await, 200);
        assert_eq!(within(moment, "/readyz", get(pod.address, "/readyz")).await, 200);
        let status = within(moment, "the status", pod.client().status()).await.unwrap();
        assert_eq!(status.live, Some(revision(1, "PartitionName=a Nodes=n1\n").summary()));
        let busy = within(moment, "another push", pod.refusal(&second)).await;
        assert!(matches!(busy, Error::Refused(Refusal::Busy { .. })), "{busy:?}");
        let drained = within(moment, "a drain", pod.drain(fence(3))).await;
        assert_eq!(drained.unwrap(), UpdateChannel::Rpc);
        // The next agent could not tell the new leader from the old one.
        let new = Fence { term: 2, sequence: 1 };
        let answer = within(SOON, "a new leader's drain", pod.drain(new)).await;
        assert!(is_failure_of_volume(&answer), "{answer:?}");
        let answer = within(moment, "another one", pod.drain(new)).await;
        assert!(is_failure_of_volume(&answer), "{answer:?}");
        within(moment, "a drain", pod.drain(fence(4))).await.unwrap();
    };
    let (answer, ()) = tokio::join!(within(Duration::from_secs(11), "the push", push), meanwhile);
    assert!(is_failure_of_volume(&answer), "{answer:?}");
    assert_eq!(pod.conf(), "PartitionName=a Nodes=n1\n");
    assert_eq!(pod.lives().len(), 1, "nothing is reconfigured");
    pod.release_volume();
    pod.stored_soon(&[1]).await;
    assert_eq!(pod.push_again(&second).await.outcome, Outcome::Applied);
    let new = Fence { term: 2, sequence: 1 };
    pod.drain(new).await.unwrap();
    assert_eq!(pod.term(), 2);
    let stale = pod.drain(fence(9)).await;
    assert!(
        matches!(stale, Err(Error::StaleFence { highest }) if highest == new),
        "{stale:?}"
    );
}

/// A burst of orders, each on a connection of its own, from one address: none displaces another.
#[tokio::test]
async fn many_commands_of_a_new_leader_do_not_block_probes_for_long() {
    let pod = Pod::running(&revision(1, "one")).await;
    pod.hang_volume();
    let commands: Vec<_> = (0..300)
        .map(|sequence| {
            let client = pod.client();
            tokio::spawn(async move { client.claim(Fence { term: 2, sequence }).await })
        })
        .collect();
    sleep(Duration::from_millis(500)).await;
    assert_eq!(within(SOON, "/healthz", get(pod.address, "/healthz")).await, 200);
    for command in commands {
        let answer = command.await.unwrap();
        assert!(is_failure_of_volume(&answer), "{answer:?}");
    }
    let moment = Duration::from_secs(1);
    assert_eq!(within(moment, "/healthz", get(pod.address, "/healthz")).await, 200);
    pod.release_volume();
    let new = Fence { term: 2, sequence: 300 };
    assert_eq!(pod.claim(new).await.fence, new);
}

#[tokio::test]
async fn a_revision_that_the_volume_saves_too_late_is_removed_again() {
    let mut pod = Pod::running(&revision(1, "one")).await;
    let second = revision(2, "two");
    // The next piece of work is the revision itself.
    let answer = pod
        .push_stopping_at("staged", &second, async |pod| pod.hang_volume())
        .await;
    assert!(is_failure_of_volume(&answer), "{answer:?}");
    assert_eq!(pod.stored(), [1]);
    pod.release_volume();
    pod.stored_soon(&[1]).await;
    // This write comes after the late ones.
    pod.claim(Fence { term: 2, sequence: 1 }).await;
    assert_eq!(pod.stored(), [1], "the next pod must not start from it");
    let pod = pod.replaced().await;
    assert_eq!(pod.conf(), "one");
    let third = Fence { term: 2, sequence: 3 };
    let pushed = pod.client().push(&second, third).await.unwrap();
    assert_eq!(pushed.outcome, Outcome::Applied);
    assert_eq!(pod.stored(), [1, 2]);
}

#[tokio::test]
async fn partitions_that_slurmctld_has_taken_are_in_the_files_when_the_volume_responds() {
    let mut pod = Pod::running(&revision(1, "PartitionName=a Nodes=n1\n")).await;
    fs::write(pod.path("nodes"), "").unwrap();
    let second = revision(2, "PartitionName=a Nodes=n1\nPartitionName=b Nodes=n1\n");
    let pushed = pod
        .push_stopping_at("released", &second, async |pod| pod.hang_volume())
        .await
        .unwrap();
    let Outcome::Pending { reason } = &pushed.outcome else {
        panic!("{pushed:?}")
    };
    assert_eq!(reason, "the state volume does not respond");
    assert_eq!(pod.conf(), "PartitionName=a Nodes=n1\n");
    let described = NodeCommand {
        node: NodeName::new("n1").unwrap(),
        expect: None,
        action: NodeAction::Describe(slurm::NodeDescription {
            features: Some(slurm::NodeFeatures {
                available: vec![slurm::SingleLine::new("f").unwrap()],
                active: vec![],
            }),
            ..slurm::NodeDescription::default()
        }),
    };
    let client = pod.client();
    let response = within(SOON, "a description", client.command_node(&described, fence(3))).await;
    assert_eq!(response.unwrap(), UpdateChannel::Rpc);
    pod.release_volume();
    let live = Some(second.summary());
    let settled = |status: &Status| status.phase == Phase::Verified && status.live == live;
    pod.status_that("the second revision", settled).await;
    pod.stored_soon(&[1, 2]).await;
    assert_eq!(pod.lives().len(), 1, "no reconfigure");
}

#[tokio::test]
async fn an_agent_that_starts_on_a_hung_volume_responds_stops_and_knows_the_leader() {
    let mut pod = Pod::running(&revision(1, "one")).await;
    let term = |term, sequence| Fence { term, sequence };
    pod.client().claim(term(5, 1)).await.unwrap();
    pod.kill_agent();
    pod.hang_volume();
    pod.serve();
    pod.phase(Phase::Swapped).await;
    assert_eq!(get(pod.address, "/healthz").await, 200);
    for number in [4, 5] {
        let answer = within(SOON, "a drain", pod.drain(term(number, 2))).await;
        assert!(is_failure_of_volume(&answer), "{answer:?}");
    }
    let agent = pod.agent.as_mut().unwrap();
    kill(Pid::from_raw(agent.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    assert!(agent.wait().unwrap().success());
    pod.serve();
    pod.phase(Phase::Swapped).await;
    pod.release_volume();
    let status = pod.phase(Phase::Verified).await;
    assert_eq!(status.fence.term, 5);
    let stale = pod.client().claim(term(4, 3)).await.unwrap_err();
    assert!(matches!(stale, Error::StaleFence { .. }), "{stale:?}");
    assert_eq!(
        pod.client()
            .push(&revision(2, "two"), term(5, 4))
            .await
            .unwrap()
            .outcome,
        Outcome::Applied
    );
}
