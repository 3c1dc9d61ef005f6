//! A slurmctld pod: `prepare`, `supervise` and `serve` around a daemon that behaves as slurmctld does.

use super::*;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) const POD: &str = "pod-1";

pub(crate) const KEY: &[u8] = b"0123456789abcdef0123456789abcdef";

/// slurmctld in a dry run. It accepts "bad", which the daemon rejects.
pub(crate) const DRY_RUN: &str = r#"
for conf; do :; done
echo "slurmctld: reading $conf" >&2
if grep -q stuck "$conf"; then sleep 100; fi
if grep -q full "$conf"; then echo "slurmctld: fatal: write: No space left on device" >&2; exit 1; fi
if grep -q wrong "$conf"; then
    echo "slurmctld: error: Parse error in file $conf line 1: wrong" >&2
    echo "slurmctld: fatal: Unable to process configuration file" >&2
    exit 1
fi
echo "slurmctld: Running as primary controller" >&2
exec sleep 100
"#;

pub(crate) fn uid() -> ControllerUid {
    ControllerUid::new("controller-1").unwrap()
}

pub(crate) fn revision(sequence: u64, conf: &str) -> Revision {
    Revision {
        sequence,
        controller: uid(),
        files: BTreeMap::from([(FileName::new("slurm.conf").unwrap(), File::config(conf))]),
        closed_by_hand: BTreeSet::new(),
    }
}

pub(crate) fn fence(sequence: u64) -> Fence {
    Fence { term: 1, sequence }
}

/// Returns a loopback address of this pod's own, so that no other test binds its ports while its agent or daemon restarts.
fn own_address() -> Ipv4Addr {
    static PODS: AtomicU8 = AtomicU8::new(0);
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, high.clamp(1, 254), low, PODS.fetch_add(1, Ordering::Relaxed))
}

pub(crate) struct Pod {
    pub(crate) directory: TempDir,
    pub(crate) address: SocketAddr,
    /// Where the daemon listens.
    pub(crate) daemon: SocketAddr,
    pub(crate) supervisor: Option<Child>,
    pub(crate) agent: Option<Child>,
}

impl Pod {
    /// Prepared from this bundle; nothing runs yet.
    pub(crate) fn prepared(bundle: &Revision) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["etc", "keys", "state", "run", "bin", "scratch", "candidate"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        fs::write(directory.path().join("keys/jwt.key"), KEY).unwrap();
        let bundle = bundle.to_bundle().unwrap();
        let signature = BundleKey::derive(KEY).unwrap().sign(&bundle, None);
        fs::write(directory.path().join("bundle"), bundle).unwrap();
        fs::write(directory.path().join(SIGNATURE_FILE), signature).unwrap();
        let ip = own_address();
        let free = || TcpListener::bind((ip, 0)).unwrap().local_addr().unwrap();
        let pod = Self {
            directory,
            address: free(),
            daemon: free(),
            supervisor: None,
            agent: None,
        };
        pod.tool("slurmctld", DRY_RUN);
        assert!(pod.command("prepare").status().unwrap().success());
        pod
    }

    pub(crate) async fn running(bundle: &Revision) -> Self {
        let mut pod = Self::prepared(bundle);
        pod.supervise();
        pod.serve();
        pod.phase(Phase::Verified).await;
        pod
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn command(&self, subcommand: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slurm-agent"));
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
        command
            .arg(subcommand)
            .env("SLURM_AGENT_CONFIG_DIR", self.path("etc"))
            .env("SLURM_AGENT_KEYS_DIR", self.path("keys"))
            .env("SLURM_AGENT_STATE_DIR", self.path("state"))
            .env("SLURM_AGENT_BUNDLE", self.path("bundle"))
            .env("SLURM_AGENT_CONTROLLER_UID", uid().as_str())
            .env("SLURM_AGENT_POD_UID", POD)
            .env("SLURM_AGENT_CONTROL", self.path("run/control"))
            .env("SLURM_AGENT_LISTEN", self.address.to_string())
            .env("SLURM_AGENT_SLURMCTLD", self.daemon.to_string())
            .env("SLURM_AGENT_SCRATCH_DIR", self.path("scratch"))
            .env("SLURM_AGENT_CANDIDATE", self.path("candidate"))
            .env("SLURM_AGENT_HOLD_VOLUME", self.path("held"))
            .env("PATH", path);
        command
    }

    pub(crate) fn log(&self, name: &str) -> fs::File {
        fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.path(name))
            .unwrap()
    }

    pub(crate) fn supervise(&mut self) {
        let mut command = self.command("supervise");
        command
            .arg("--")
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "the_daemon", "--nocapture"])
            .env("FAKE_DAEMON", self.directory.path())
            .env("FAKE_PORT", self.daemon.to_string())
            .env("RUNTIME_DIRECTORY", self.path("run"))
            .stdout(Stdio::null())
            .stderr(self.log("supervise.log"));
        self.supervisor = Some(command.spawn().unwrap());
    }

    pub(crate) fn serve(&mut self) {
        self.serve_until("");
    }

    /// Starts an agent that dies right after it has noted this step.
    pub(crate) fn serve_until(&mut self, step: &str) {
        let mut command = self.command("serve");
        command
            .env("SLURM_AGENT_DIE_AT", step)
            .stdout(self.log("legacy.log"))
            .stderr(self.log("serve.log"));
        self.agent = Some(command.spawn().unwrap());
    }

    /// Pushes a revision to an agent that stops at this step, calls `meanwhile`, and continues the agent.
    pub(crate) async fn push_stopping_at(
        &mut self,
        step: &str,
        revision: &Revision,
        meanwhile: impl AsyncFnOnce(&Self),
    ) -> Result<Pushed, Error> {
        self.kill_agent();
        let mut command = self.command("serve");
        command
            .env("SLURM_AGENT_STOP_AT", step)
            .stdout(self.log("legacy.log"))
            .stderr(self.log("serve.log"));
        let agent = command.spawn().unwrap();
        let pid = Pid::from_raw(i32::try_from(agent.id()).unwrap());
        self.agent = Some(agent);
        self.phase(Phase::Verified).await;
        let (client, pushed) = (self.client(), revision.clone());
        let push = tokio::spawn(async move { client.push(&pushed, fence(pushed.sequence)).await });
        let start = Instant::now();
        while !fs::read_to_string(format!("/proc/{pid}/stat"))
            .unwrap()
            .contains(") T ")
        {
            assert!(start.elapsed() < TIMEOUT, "{step} is not reached");
            sleep(Duration::from_millis(5)).await;
        }
        meanwhile(self).await;
        kill(pid, Signal::SIGCONT).unwrap();
        push.await.unwrap()
    }

    /// Pushes a revision to an agent that dies at this step.
    pub(crate) async fn push_dying_at(&mut self, step: &str, revision: &Revision) {
        self.kill_agent();
        self.serve_until(step);
        self.phase(Phase::Verified).await;
        let failed = self.client().push(revision, fence(revision.sequence)).await;
        assert!(failed.is_err(), "{step}: {failed:?}");
        self.agent.take().unwrap().wait().unwrap();
    }

    /// Replaces the pod: only the state volume and the bundle are left.
    pub(crate) async fn replaced(mut self) -> Self {
        self.end();
        for name in ["etc", "run", "scratch"] {
            fs::remove_dir_all(self.path(name)).unwrap();
            fs::create_dir(self.path(name)).unwrap();
        }
        let _ = fs::remove_file(self.path("lives"));
        assert!(self.command("prepare").status().unwrap().success());
        self.supervise();
        self.serve();
        self.phase(Phase::Verified).await;
        self
    }

    /// Starts the next agent, or the next pod.
    pub(crate) async fn resumed(mut self, whole_pod: bool) -> Self {
        if whole_pod {
            return self.replaced().await;
        }
        self.serve();
        self.phase(Phase::Verified).await;
        self
    }

    pub(crate) fn end(&mut self) {
        for mut child in [self.agent.take(), self.supervisor.take()].into_iter().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
        for pid in self.lives() {
            let _ = kill(pid, Signal::SIGKILL);
        }
    }

    pub(crate) fn kill_agent(&mut self) {
        let mut agent = self.agent.take().unwrap();
        agent.kill().unwrap();
        agent.wait().unwrap();
    }

    pub(crate) fn client(&self) -> Client {
        self.client_of(POD, KEY)
    }

    pub(crate) fn client_of(&self, pod: &str, key: &[u8]) -> Client {
        Client::new(
            host::Host::real(),
            self.address,
            pod,
            AgentKey::derive(key).unwrap(),
            Options::default(),
        )
    }

    /// A client of slurmctld itself, as a person has.
    pub(crate) fn slurmctld(&self) -> slurm::rpc::Client {
        let key = slurm::token::SigningKey::new(KEY).unwrap();
        let issuer = slurm::token::Issuer::new(key, "root", Duration::from_secs(30));
        slurm::rpc::Client::new(
            host::Host::real(),
            self.daemon.to_string(),
            issuer,
            slurm::rpc::Options::default(),
        )
    }

    pub(crate) async fn push(&self, revision: &Revision) -> Pushed {
        self.client().push(revision, fence(revision.sequence)).await.unwrap()
    }

    pub(crate) async fn refusal(&self, revision: &Revision) -> Error {
        self.client()
            .push(revision, fence(revision.sequence))
            .await
            .unwrap_err()
    }

    pub(crate) async fn status_that(&self, what: &str, good: impl Fn(&Status) -> bool) -> Status {
        let start = Instant::now();
        loop {
            let status = self.client().status().await;
            if let Ok(status) = &status
                && good(status)
            {
                return status.clone();
            }
            assert!(
                start.elapsed() < TIMEOUT,
                "timed out waiting for {what}: {status:?}\n{}",
                fs::read_to_string(self.path("serve.log")).unwrap_or_default()
            );
            sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) async fn phase(&self, phase: Phase) -> Status {
        self.status_that("the phase", |status| status.phase == phase).await
    }

    pub(crate) fn conf(&self) -> String {
        fs::read_to_string(self.path("etc/slurm.conf")).unwrap()
    }

    pub(crate) fn lives(&self) -> Vec<Pid> {
        let text = fs::read_to_string(self.path("lives")).unwrap_or_default();
        text.lines().map(|line| Pid::from_raw(line.parse().unwrap())).collect()
    }

    /// The lines of the legacy log, without their dates.
    pub(crate) fn legacy_log(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("legacy.log")).unwrap();
        text.lines()
            .map(|line| line.split_once("] ").unwrap().1.to_owned())
            .collect()
    }

    pub(crate) fn stored(&self) -> Vec<u64> {
        Store::new(&host::Host::real(), &self.path("state"), &uid())
            .sequences()
            .unwrap()
    }

    pub(crate) fn tool(&self, name: &str, script: &str) {
        let path = self.path("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        self.end();
    }
}
