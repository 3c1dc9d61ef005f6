//! Makes nodes register some time after a start, so that Slurm finds jobs without a process.
//!
//! Slurm looks for the processes of a node's jobs when the node registers: when slurmctld or slurmd starts, and every half
//! hour. It spares jobs that started, or that slurmctld read from its files, in the last seconds (`BatchStartTimeout` and
//! `MessageTimeout`). So a young job whose worker dies, or whose launch dies with slurmctld, would be running without a process
//! for half an hour. The agent therefore asks nodes with jobs to register once more when that time has passed.
//!
//! slurmctld saves a registration with the next change of a node, which may come minutes later. Killed before, it forgets a
//! node that has just joined. The agent has seen the node, and asks it too: it joins again. It keeps the nodes that it has seen on the
//! state volume, since it may die together with slurmctld. One that it has not seen it asks when the operator gives its address
//! ([`NodeDescription::address`](slurm::NodeDescription::address)). In the same way it deletes a node again whose deletion was not saved.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use slurm::agent::NodeName;
use slurm::conf::{Configuration, SLURMD_PORT};
use slurm::rpc::LiveNode;
use tokio::time::{Instant, sleep};
use tracing::{debug, info};

use super::Services;
use super::forgotten_ends::has_database;
use super::volume::Volume;
use crate::store::Store;

/// Below the time in which the operator replaces a worker that Slurm does not know. Without a change the response is empty.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// The defaults of `BatchStartTimeout` and `MessageTimeout`. Slurm counts no more than the latter.
const DEFAULT_TIMEOUT: u64 = 10;

/// Slurm compares whole seconds.
const MARGIN: Duration = Duration::from_secs(5);

/// The operator replaces a worker that Slurm does not know half a minute later.
const FORGOTTEN_WITHIN: Duration = Duration::from_secs(90);

/// Each registration takes slurmctld's locks.
const PAUSE: Duration = Duration::from_millis(10);

/// slurmctld saves a deletion within seconds. It is not repeated later: a node of the name may be another one.
const SAVED_WITHIN: Duration = Duration::from_mins(1);

const VOLUME_TIMEOUT: Duration = Duration::from_secs(3);

/// Per poll, so that nodes are looked at again in between.
const MAX_REQUESTS: usize = 200;

/// The nodes that slurmctld has shown.
#[derive(Debug, Default)]
pub(super) struct Registrations {
    /// When slurmctld was started.
    start: u64,
    /// Its process, which a reconfigure replaces.
    pid: Option<i32>,
    /// When that was last asked for.
    looked: Option<Instant>,
    nodes: BTreeMap<String, Registered>,
    /// Nodes that were deleted on order, until slurmctld has saved that.
    deleted: BTreeMap<String, Deleted>,
    /// Nodes that were deleted on order before those of the last agent were read.
    deleted_unread: BTreeSet<String>,
    has_read: bool,
}

#[derive(Debug)]
struct Deleted {
    /// When the slurmctld was started that deleted it.
    start: u64,
    slurmd_start: u64,
    since: Instant,
}

#[derive(Debug)]
struct Registered {
    address: String,
    slurmd_start: u64,
    /// The last start of slurmctld or slurmd that was seen, or the last request that failed.
    since: Instant,
    is_done: bool,
    is_forgotten: bool,
}

/// A node to ask.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Due {
    name: String,
    address: String,
    is_forgotten: bool,
}

impl Registrations {
    /// Adds nodes that an earlier agent has seen. Those that slurmctld does not show at the first look are forgotten.
    fn remember(&mut self, nodes: BTreeMap<String, String>, now: Instant) {
        self.has_read = true;
        let deleted = std::mem::take(&mut self.deleted_unread);
        let nodes = nodes.into_iter().filter(|(name, _)| !deleted.contains(name));
        for (name, address) in nodes {
            self.nodes.entry(name).or_insert(Registered {
                address,
                slurmd_start: 0,
                since: now,
                is_done: false,
                is_forgotten: true,
            });
        }
    }

    fn addresses(&self) -> BTreeMap<String, String> {
        let nodes = self.nodes.iter();
        nodes.map(|(name, it)| (name.clone(), it.address.clone())).collect()
    }

    /// Returns the nodes that are to register now, with `grace` after a start.
    fn due(&mut self, (start, pid): (u64, Option<i32>), nodes: &[LiveNode], now: Instant, grace: Duration) -> Vec<Due> {
        if self.pid != pid {
            self.pid = pid;
            // The new process has read the jobs from its files again, and spares them. It has forgotten nothing.
            for registered in self.nodes.values_mut().filter(|it| !it.is_forgotten) {
                // Asked since the last look, the node may have registered with the new process.
                registered.is_done &= self.looked.is_some_and(|looked| registered.since < looked);
                registered.since = now;
            }
        }
        self.looked = Some(now);
        if self.start != start {
            self.start = start;
            for registered in self.nodes.values_mut() {
                (registered.since, registered.is_done) = (now, false);
                // Unless slurmctld still shows it.
                registered.is_forgotten = true;
            }
        }
        let mut due = Vec::new();
        for node in nodes {
            let registered = self.nodes.entry(node.name.clone()).or_insert_with(|| Registered {
                address: String::new(),
                slurmd_start: node.slurmd_start,
                since: now,
                is_done: false,
                is_forgotten: false,
            });
            registered.address = format!("{}:{}", node.address, node.port);
            if registered.slurmd_start != node.slurmd_start {
                registered.slurmd_start = node.slurmd_start;
                (registered.since, registered.is_done) = (now, false);
            }
            registered.is_forgotten = false;
            if registered.is_done || now < registered.since + grace || !node.is_responding {
                continue;
            }
            // A job that starts from now on is launched by this slurmctld on this slurmd.
            registered.is_done = !node.has_jobs;
            if node.has_jobs {
                due.push(registered.due(&node.name));
            }
        }
        let shown: BTreeSet<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        self.nodes
            .retain(|name, it| shown.contains(name.as_str()) || it.is_forgotten && now < it.since + FORGOTTEN_WITHIN);
        let forgotten = self.nodes.iter().filter(|(_, it)| it.is_forgotten);
        due.extend(forgotten.map(|(name, it)| it.due(name)));
        due.truncate(MAX_REQUESTS);
        due
    }

    /// Notes whether a node has taken the request. Otherwise it is asked again, after the others.
    fn asked(&mut self, name: &str, has_taken: bool, now: Instant) {
        if let Some(registered) = self.nodes.get_mut(name).filter(|it| !it.is_forgotten) {
            (registered.is_done, registered.since) = (has_taken, now);
        }
    }

    /// A node that was deleted on order is not asked to join again.
    pub(super) fn delete(&mut self, name: &str, now: Instant) {
        if !self.has_read {
            self.deleted_unread.insert(name.to_owned());
        }
        if let Some(Registered { slurmd_start, .. }) = self.nodes.remove(name) {
            let deleted = Deleted {
                start: self.start,
                slurmd_start,
                since: now,
            };
            self.deleted.insert(name.to_owned(), deleted);
        }
    }

    /// Returns nodes whose deletion slurmctld forgot because it was killed: it shows them again, without a later slurmd.
    fn undeleted(&mut self, start: u64, nodes: &[LiveNode], now: Instant) -> Vec<String> {
        self.deleted.retain(|_, it| now < it.since + SAVED_WITHIN);
        let is_same = |node: &&LiveNode| {
            let deleted = self.deleted.get(&node.name).filter(|it| it.start != start);
            // 0 until slurmd has registered with this slurmctld.
            deleted.is_some_and(|it| node.slurmd_start == 0 || node.slurmd_start == it.slurmd_start)
        };
        nodes.iter().filter(is_same).map(|node| node.name.clone()).collect()
    }
}

impl Registered {
    fn due(&self, name: &str) -> Due {
        Due {
            name: name.to_owned(),
            address: self.address.clone(),
            is_forgotten: self.is_forgotten,
        }
    }
}

/// How long Slurm spares jobs after a start.
fn grace(configuration: &Configuration) -> Duration {
    let seconds = |key: &str| configuration.value(key)?.trim().parse().ok();
    let batch_start = seconds("BatchStartTimeout").unwrap_or(DEFAULT_TIMEOUT);
    let message = seconds("MessageTimeout")
        .unwrap_or(DEFAULT_TIMEOUT)
        .min(DEFAULT_TIMEOUT);
    Duration::from_secs(batch_start.saturating_add(message)).saturating_add(MARGIN)
}

/// Asks nodes while slurmctld is active.
pub(super) async fn poll(services: Arc<Services>, volume: Volume) -> Infallible {
    let (mut time, mut nodes) = (0, Vec::new());
    // What is on the volume; `None` until that was read.
    let mut saved = None;
    loop {
        sleep(POLL_INTERVAL).await;
        if saved.is_none()
            && let Ok(nodes) = volume.run(VOLUME_TIMEOUT, Store::nodes).await
        {
            services
                .registrations()
                .remember(nodes.clone(), services.host.instant());
            saved = Some(nodes);
        }
        match services.request_registrations(&mut time, &mut nodes).await {
            Ok(()) => services.save_nodes(&volume, &mut saved).await,
            Err(error) => debug!(error, "cannot read the nodes"),
        }
    }
}

impl Services {
    async fn request_registrations(&self, time: &mut u64, nodes: &mut Vec<LiveNode>) -> Result<(), String> {
        let configuration = self.config.live_configuration().ok_or("there is no revision")?;
        let slurmctld = &self.channels.slurmctld;
        let client = slurmctld.read_client(&configuration);
        let client = client.map_err(|error| error.to_string())?;
        if let Some(changed) = client.nodes(*time).await.map_err(|error| error.to_string())? {
            (*time, *nodes) = changed;
        }
        let state = self.supervisor.state().await.map_err(|error| error.to_string())?;
        let start = state.daemon.since.ok_or("slurmctld does not run")?;
        let now = self.host.instant();
        let undeleted = self.registrations().undeleted(start, nodes, now);
        for node in undeleted {
            info!(
                node,
                "deleting a node again, since slurmctld has forgotten its deletion"
            );
            // Slurm refuses while a job is on it.
            let deleted = self
                .client()
                .map_err(|error| error.to_string())?
                .delete_nodes(&node)
                .await;
            if let Err(error) = deleted {
                debug!(node, %error, "cannot delete the node again");
            }
        }
        let process = (start, state.daemon.pid);
        let mut due = self.registrations().due(process, nodes, now, grace(&configuration));
        // Slurm would start a job again whose end slurmctld forgot.
        if has_database(&configuration) && !self.has_compared_ends(start) {
            due.retain(|due| due.is_forgotten);
        }
        if due.is_empty() {
            return Ok(());
        }
        let key = slurmctld.slurm_key().map_err(|error| error.to_string())?;
        for Due {
            name,
            address,
            is_forgotten,
        } in due
        {
            info!(node = %name, %address, is_forgotten, "asking a node to register");
            let asked = client.request_registration(&address, &key).await;
            if let Err(error) = &asked {
                debug!(node = %name, %error, "the node does not respond");
            }
            self.registrations().asked(&name, asked.is_ok(), self.host.instant());
            sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Asks a node to register that slurmctld has forgotten and this agent has not seen. The operator repeats its command until
    /// slurmctld has the node.
    pub(super) async fn request_registration(&self, node: &NodeName, address: IpAddr) {
        let Some(configuration) = self.config.live_configuration() else {
            return;
        };
        let port = configuration
            .value("SlurmdPort")
            .and_then(|port| port.trim().parse().ok());
        let address = SocketAddr::new(address, port.unwrap_or(SLURMD_PORT)).to_string();
        let slurmctld = &self.channels.slurmctld;
        let (Ok(client), Ok(key)) = (slurmctld.read_client(&configuration), slurmctld.slurm_key()) else {
            return;
        };
        info!(%node, address, "asking a node to register, which slurmctld does not have");
        if let Err(error) = client.request_registration(&address, &key).await {
            debug!(%node, %error, "the node does not respond");
        }
    }

    /// A volume that does not respond in time is written at the next poll.
    async fn save_nodes(&self, volume: &Volume, saved: &mut Option<BTreeMap<String, String>>) {
        let seen = self.registrations().addresses();
        if saved.as_ref().is_none_or(|saved| *saved == seen) {
            return;
        }
        let nodes = seen.clone();
        match volume.run(VOLUME_TIMEOUT, move |store| store.save_nodes(&nodes)).await {
            Ok(Ok(())) => *saved = Some(seen),
            Ok(Err(error)) => debug!(%error, "cannot save the nodes"),
            Err(error) => debug!(%error, "cannot save the nodes"),
        }
    }

    pub(super) fn registrations(&self) -> std::sync::MutexGuard<'_, Registrations> {
        self.registrations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use host::Host;

    use super::*;

    const GRACE: Duration = Duration::from_secs(25);

    fn node(name: &str, slurmd_start: u64) -> LiveNode {
        LiveNode {
            name: name.to_owned(),
            address: "10.0.0.1".to_owned(),
            port: 6818,
            slurmd_start,
            has_jobs: true,
            is_responding: true,
        }
    }

    /// Looks at nodes at times, and takes every request.
    struct Looks {
        registrations: Registrations,
        begin: Instant,
    }

    impl Looks {
        fn new() -> Self {
            Self {
                registrations: Registrations::default(),
                begin: Host::real().instant(),
            }
        }

        fn look(&mut self, second: u64, start: u64, nodes: &[LiveNode]) -> Vec<String> {
            self.look_at(second, (start, Some(1)), nodes)
        }

        fn look_at(&mut self, second: u64, process: (u64, Option<i32>), nodes: &[LiveNode]) -> Vec<String> {
            let now = self.begin + Duration::from_secs(second);
            let due = self.registrations.due(process, nodes, now, GRACE);
            for due in &due {
                self.registrations.asked(&due.name, true, now);
            }
            due.into_iter().map(|due| due.name).collect()
        }
    }

    #[test]
    fn a_node_with_jobs_is_asked_once_after_each_start() {
        let mut looks = Looks::new();
        let nodes = [node("n1", 1), node("n2", 1)];
        assert_eq!(looks.look(0, 7, &nodes), [""; 0]);
        assert_eq!(looks.look(24, 7, &nodes), [""; 0]);
        assert_eq!(looks.look(25, 7, &nodes), ["n1", "n2"]);
        assert_eq!(looks.look(100, 7, &nodes), [""; 0]);
        let restarted = [node("n1", 1), node("n2", 2)];
        assert_eq!(looks.look(101, 7, &restarted), [""; 0]);
        assert_eq!(looks.look(126, 7, &restarted), ["n2"], "its slurmd has started");
        assert_eq!(looks.look(127, 8, &restarted), [""; 0]);
        assert_eq!(looks.look(152, 8, &restarted), ["n1", "n2"], "slurmctld has started");
        assert_eq!(looks.look(200, 8, &restarted), [""; 0]);
    }

    #[test]
    fn a_reconfigure_renews_the_time_in_which_slurm_spares_jobs() {
        let mut looks = Looks::new();
        let nodes = [node("n1", 1)];
        assert_eq!(looks.look_at(0, (7, Some(1)), &nodes), [""; 0]);
        assert_eq!(looks.look_at(20, (7, Some(2)), &nodes), [""; 0]);
        assert_eq!(looks.look_at(25, (7, Some(2)), &nodes), [""; 0]);
        assert_eq!(looks.look_at(45, (7, Some(2)), &nodes), ["n1"]);
        // What was found then is saved by a reconfigure.
        assert_eq!(looks.look_at(50, (7, Some(2)), &nodes), [""; 0]);
        assert_eq!(looks.look_at(55, (7, Some(3)), &nodes), [""; 0]);
        assert_eq!(looks.look_at(80, (7, Some(3)), &nodes), [""; 0]);
    }

    #[test]
    fn a_node_that_may_have_registered_with_the_process_of_a_reconfigure_is_asked_again() {
        let mut looks = Looks::new();
        let nodes = [node("n1", 1)];
        assert_eq!(looks.look(0, 7, &nodes), [""; 0]);
        assert_eq!(looks.look(25, 7, &nodes), ["n1"]);
        assert_eq!(looks.look_at(30, (7, Some(2)), &nodes), [""; 0]);
        assert_eq!(looks.look_at(55, (7, Some(2)), &nodes), ["n1"]);
    }

    #[test]
    fn a_node_without_jobs_is_not_asked_for_those_that_start_later() {
        let mut looks = Looks::new();
        let idle = LiveNode {
            has_jobs: false,
            ..node("n1", 1)
        };
        looks.look(0, 7, std::slice::from_ref(&idle));
        assert_eq!(looks.look(25, 7, &[idle]), [""; 0]);
        assert_eq!(looks.look(30, 7, &[node("n1", 1)]), [""; 0]);
    }

    #[test]
    fn a_node_that_does_not_respond_is_asked_when_it_does() {
        let mut looks = Looks::new();
        let silent = LiveNode {
            is_responding: false,
            ..node("n1", 1)
        };
        looks.look(0, 7, std::slice::from_ref(&silent));
        assert_eq!(looks.look(50, 7, &[silent]), [""; 0]);
        let nodes = [node("n1", 1)];
        let now = looks.begin + Duration::from_mins(1);
        assert_eq!(looks.registrations.due((7, Some(1)), &nodes, now, GRACE).len(), 1);
        looks.registrations.asked("n1", false, now);
        assert_eq!(looks.look(70, 7, &nodes), [""; 0], "others come first");
        assert_eq!(looks.look(85, 7, &nodes), ["n1"]);
    }

    #[test]
    fn a_node_that_a_killed_slurmctld_forgot_is_asked_until_it_is_back() {
        let mut looks = Looks::new();
        let nodes = [node("n1", 1), node("n2", 1)];
        looks.look(0, 7, &nodes);
        assert_eq!(looks.look(10, 8, &nodes[..1]), ["n2"]);
        assert_eq!(looks.look(15, 8, &nodes[..1]), ["n2"]);
        assert_eq!(looks.look(20, 8, &nodes), [""; 0]);
        assert_eq!(looks.look(25, 8, &nodes[..1]), [""; 0], "it was deleted");
        assert_eq!(looks.look(40, 9, &[]), ["n1"]);
        assert_eq!(looks.look(160, 9, &[]), [""; 0], "it is gone");
    }

    #[test]
    fn a_node_that_the_agent_before_has_seen_is_asked_unless_slurmctld_shows_it() {
        let mut before = Looks::new();
        let nodes = [node("n1", 1), node("n2", 1)];
        before.look(0, 7, &nodes);
        let mut looks = Looks::new();
        let seen = before.registrations.addresses();
        looks.registrations.remember(seen, looks.begin);
        assert_eq!(looks.look(5, 8, &nodes[..1]), ["n2"]);
        assert_eq!(looks.look(10, 8, &nodes), [""; 0], "it is back");
        assert_eq!(looks.look(15, 8, &nodes[..1]), [""; 0], "it was deleted");
        assert_eq!(looks.registrations.addresses().len(), 1);
    }

    #[test]
    fn a_node_that_was_deleted_by_order_is_not_asked() {
        let mut looks = Looks::new();
        looks.look(0, 7, &[node("n1", 1)]);
        looks.registrations.delete("n1", looks.begin);
        assert_eq!(looks.look(10, 8, &[]), [""; 0]);
    }

    #[test]
    fn a_node_that_was_deleted_before_the_first_look_is_not_asked() {
        let mut looks = Looks::new();
        looks.registrations.delete("n1", looks.begin);
        let seen = ["n1", "n2"].map(|name| (name.to_owned(), "10.0.0.1:6818".to_owned()));
        looks.registrations.remember(seen.into(), looks.begin);
        assert_eq!(looks.look(5, 7, &[]), ["n2"]);
    }

    #[test]
    fn a_node_is_deleted_again_whose_deletion_a_killed_slurmctld_forgot() {
        let nodes = [node("n1", 0), node("n2", 1), node("n3", 2), node("n4", 1)];
        let undeleted = |start, second| {
            let mut looks = Looks::new();
            looks.look(0, 7, &["n1", "n2", "n3", "n4"].map(|name| node(name, 1)));
            for name in ["n1", "n2", "n3"] {
                looks.registrations.delete(name, looks.begin);
            }
            let now = looks.begin + Duration::from_secs(second);
            looks.registrations.undeleted(start, &nodes, now)
        };
        assert_eq!(undeleted(8, 5), ["n1", "n2"], "n3 is another slurmd");
        assert_eq!(
            undeleted(7, 5),
            [""; 0],
            "they registered again with the same slurmctld"
        );
        assert_eq!(undeleted(8, 60), [""; 0], "it has saved their deletion");
    }

    #[test]
    fn the_grace_is_slurms_own() {
        for (conf, seconds) in [
            ("", 25),
            ("BatchStartTimeout=60\nMessageTimeout=5", 70),
            ("MessageTimeout=100", 25),
            ("BatchStartTimeout=odd", 25),
        ] {
            let configuration = Configuration::parse([("slurm.conf", conf.as_bytes())]);
            assert_eq!(grace(&configuration), Duration::from_secs(seconds), "{conf}");
        }
    }
}
