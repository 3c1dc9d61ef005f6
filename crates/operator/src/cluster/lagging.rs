//! Finds the nodes that have not applied the last change of the configuration. Nodes fetch their files from slurmctld
//! themselves, and a change does not wait for them.
//!
//! A slurmd restarts itself when it applies a reconfigure, and reports its start time to Slurm. A slurmd that still has
//! its earlier start time has not applied the change: it is unreachable, or hangs. slurmctld may forget a node's start
//! time until the node reports again, so a node that had a start time and has none lags too (both seen on 26.05). A
//! node whose earlier start time is not known is judged by the clock.

use std::{sync::Arc, time::Duration};

use api::configuration::ConfigurationStatus;
use jiff::Timestamp;
use slurm::{Hostlist, Node, agent::Action, node::NodeFlag};

use super::{
    Knowledge, Seen,
    deliver::{FinishedPush, Report},
};

/// A hundred nodes apply a change within two seconds.
const SETTLE: Duration = Duration::from_secs(3);
/// How often lagging nodes are checked.
const RECHECK_INTERVAL: Duration = Duration::from_secs(15);
/// The maximum clock skew between the machines Slurm runs on.
const SKEW: Duration = Duration::from_secs(5);

/// slurmctld has no report from the node since it read its files.
const NO_START: u64 = 0;

/// Slurm's responses about the nodes before the last change.
#[derive(Debug, Default)]
pub(crate) struct NodeStarts {
    /// The response at the last reconcile of the Controller: a change may be noticed only after it has ended.
    last: Option<Arc<Seen>>,
    /// The sequence of the last change, and the response before it.
    change: Option<(u64, Option<Arc<Seen>>)>,
}

/// The lagging nodes, and when to check again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lagging {
    pub(crate) nodes: Option<String>,
    pub(crate) requeue_after: Option<Duration>,
}

impl NodeStarts {
    /// Returns the nodes that have not applied the last change. `now` is Slurm's last response.
    pub(crate) fn find_lagging(
        &mut self,
        status: Option<&ConfigurationStatus>,
        report: &Report,
        now: &Knowledge,
    ) -> Lagging {
        let listed = status.and_then(|status| status.lagging_nodes.clone());
        let seen = match now {
            Knowledge::Known(seen) => Some(seen),
            Knowledge::Unknown { .. } => None,
        };
        let change = last_change(report);
        let before = change.and_then(|change| self.before(change, seen));
        if seen.is_some() {
            self.last = seen.cloned();
        }
        if let Some(change) = change {
            return find(change, before.as_deref(), listed, now);
        }
        let last_change = status.and_then(|status| status.last_change.as_ref());
        let changed = last_change.and_then(|change| change.time.as_str().parse().ok());
        catch_up(listed, changed, now)
    }

    /// Returns the response before this change.
    fn before(&mut self, change: &FinishedPush, now: Option<&Arc<Seen>>) -> Option<Arc<Seen>> {
        if let Some((_, before)) = self.change.as_ref().filter(|(noted, _)| *noted == change.sequence) {
            return before.clone();
        }
        let mut known = [now, self.last.as_ref()].into_iter().flatten();
        let before = known.find(|seen| seen.at < begin_of(change)).cloned();
        self.change = Some((change.sequence, before.clone()));
        before
    }
}

/// The last change that nodes had to apply.
fn last_change(report: &Report) -> Option<&FinishedPush> {
    let newest = report.finished.iter().rev();
    let reaches_nodes = |action| !matches!(action, Action::Nothing | Action::PartitionRpc);
    let mut taken = newest.filter(|ended| ended.rejection.is_none() && reaches_nodes(ended.action));
    taken.next().map(AsRef::as_ref)
}

fn begin_of(change: &FinishedPush) -> Timestamp {
    let took = Duration::from_millis(change.milliseconds);
    change.at.checked_sub(took).unwrap_or(change.at)
}

/// When the slurmd of a node started, in seconds since 1970.
fn start_of(node: &Node) -> u64 {
    node.slurmd_start_time.finite().unwrap_or(NO_START)
}

fn find(change: &FinishedPush, before: Option<&Seen>, listed: Option<String>, now: &Knowledge) -> Lagging {
    let settled = change.at.checked_add(SETTLE).unwrap_or(change.at);
    let Some(seen) = now.known().filter(|seen| seen.at >= settled) else {
        return Lagging {
            nodes: listed,
            requeue_after: Some(SETTLE),
        };
    };
    let earliest = seconds(begin_of(change)).saturating_sub(SKEW.as_secs());
    collect(seen, |node| {
        let before = before.and_then(|before| before.nodes.get(&node.name)).map(start_of);
        match (before, start_of(node)) {
            (Some(NO_START) | None, NO_START) => node.state.has(NodeFlag::NotResponding),
            (Some(before), start) => start == NO_START || start == before,
            // The node may have joined between the last poll before the change and the change.
            (None, start) => start < earliest,
        }
    })
}

/// A new leader has not seen the change: listed nodes lag until their slurmd is younger than it.
fn catch_up(listed: Option<String>, changed: Option<Timestamp>, now: &Knowledge) -> Lagging {
    let (Some(listed), Some(changed)) = (listed, changed) else {
        return Lagging::default();
    };
    let Some(seen) = now.known() else {
        return Lagging {
            nodes: Some(listed),
            requeue_after: Some(RECHECK_INTERVAL),
        };
    };
    let listed = Hostlist::parse(&listed).unwrap_or_default();
    collect(seen, |node| {
        start_of(node) < seconds(changed) && listed.contains(&node.name)
    })
}

fn collect(seen: &Seen, lags: impl Fn(&Node) -> bool) -> Lagging {
    let lagging = seen.nodes.values().filter(|node| lags(node));
    let names: Vec<&String> = lagging.map(|node| &node.name).collect();
    if names.is_empty() {
        return Lagging::default();
    }
    Lagging {
        nodes: Hostlist::of_names(&names).ok().map(|names| names.to_string()),
        requeue_after: Some(RECHECK_INTERVAL),
    }
}

fn seconds(at: Timestamp) -> u64 {
    u64::try_from(at.as_second()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use slurm::{agent::UpdateChannel, revision::Digest};

    use super::*;

    const CHANGED: i64 = 1_000_000;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn change() -> FinishedPush {
        FinishedPush {
            sequence: 7,
            digest: Digest::of(b"x"),
            files: Arc::default(),
            at: at(CHANGED),
            action: Action::Reconfigure,
            way: UpdateChannel::default(),
            milliseconds: 100,
            steps: Vec::new(),
            rejection: None,
            by_candidate: false,
        }
    }

    fn seen(second: i64, starts: &[(&str, i64)]) -> Knowledge {
        let node = |(name, start): &(&str, i64)| -> slurm::Node {
            serde_json::from_value(serde_json::json!({ "name": name, "state": ["IDLE"], "slurmd_start_time": start }))
                .unwrap()
        };
        let nodes = starts.iter().map(node).collect();
        Knowledge::Known(Arc::new(Seen::of_nodes(nodes, at(second))))
    }

    fn starts(starts: &[(&str, i64)]) -> Seen {
        seen(CHANGED - 9, starts).known().unwrap().clone()
    }

    fn listed(lagging: &Lagging) -> Option<&str> {
        lagging.nodes.as_deref()
    }

    #[test]
    fn a_slurmd_that_did_not_restart_lags_regardless_of_its_clock() {
        // n2's clock is ahead of the operator's.
        let before = starts(&[("n1", 5), ("n2", 2_000_000), ("n3", 5)]);
        let now = seen(CHANGED + 5, &[("n1", 5), ("n2", 2_000_000), ("n3", CHANGED)]);
        let lagging = find(&change(), Some(&before), None, &now);
        assert_eq!(listed(&lagging), Some("n[1-2]"));
        assert_eq!(lagging.requeue_after, Some(RECHECK_INTERVAL));
        let caught_up = seen(CHANGED + 20, &[("n1", CHANGED + 9), ("n2", 2_000_009), ("n3", CHANGED)]);
        assert_eq!(find(&change(), Some(&before), None, &caught_up), Lagging::default());
    }

    #[test]
    fn a_node_without_a_start_time_lags_if_it_had_one_before() {
        let before = starts(&[("n1", 5), ("n2", 0)]);
        let now = seen(CHANGED + 5, &[("n1", 0), ("n2", 0), ("n3", 0)]);
        assert_eq!(listed(&find(&change(), Some(&before), None, &now)), Some("n1"));
        assert_eq!(find(&change(), None, None, &now), Lagging::default());
        let Knowledge::Known(mut silent) = now else {
            panic!("unknown")
        };
        let flags = &mut Arc::make_mut(&mut silent).nodes.get_mut("n2").unwrap().state.flags;
        flags.insert(NodeFlag::NotResponding);
        let now = Knowledge::Known(silent);
        assert_eq!(listed(&find(&change(), Some(&before), None, &now)), Some("n[1-2]"));
        assert_eq!(listed(&find(&change(), None, None, &now)), Some("n2"));
    }

    #[test]
    fn the_response_before_a_change_is_kept_when_nodes_are_polled_during_the_change() {
        let known = |second| match seen(second, &[("n1", second)]) {
            Knowledge::Known(seen) => seen,
            Knowledge::Unknown { .. } => panic!("unknown"),
        };
        let (early, late) = (known(CHANGED - 2), known(CHANGED));
        let mut responses = NodeStarts {
            last: Some(Arc::clone(&early)),
            change: None,
        };
        assert_eq!(responses.before(&change(), Some(&late)), Some(Arc::clone(&early)));
        responses.last = Some(Arc::clone(&late));
        assert_eq!(responses.before(&change(), Some(&late)), Some(early));
        let mut responses = NodeStarts::default();
        assert_eq!(responses.before(&change(), Some(&late)), None);
    }

    #[test]
    fn without_an_earlier_response_the_clock_decides_with_a_margin() {
        let now = seen(
            CHANGED + 5,
            &[("n1", CHANGED - 60), ("n2", CHANGED - 3), ("n3", CHANGED)],
        );
        assert_eq!(listed(&find(&change(), None, None, &now)), Some("n1"));
    }

    #[test]
    fn a_node_that_joined_after_the_last_poll_before_a_change_is_judged_by_the_clock() {
        let before = starts(&[("n1", 5)]);
        let now = seen(
            CHANGED + 5,
            &[("n1", CHANGED), ("n2", CHANGED - 20), ("n3", CHANGED + 2)],
        );
        assert_eq!(listed(&find(&change(), Some(&before), None, &now)), Some("n2"));
    }

    #[test]
    fn nodes_get_time_to_settle_and_an_old_response_decides_nothing() {
        let reported = Some("n9".to_owned());
        for now in [
            seen(CHANGED + 1, &[("n1", 5)]),
            seen(CHANGED - 9, &[("n1", 5)]),
            Knowledge::unknown("away"),
        ] {
            let lagging = find(&change(), None, reported.clone(), &now);
            assert_eq!(listed(&lagging), Some("n9"));
            assert_eq!(lagging.requeue_after, Some(SETTLE));
        }
    }

    #[test]
    fn a_new_leader_continues_with_the_nodes_in_status() {
        let reported = || Some("n[1-2]".to_owned());
        let now = seen(CHANGED + 60, &[("n1", 5), ("n2", CHANGED + 1), ("n3", 5)]);
        assert_eq!(listed(&catch_up(reported(), Some(at(CHANGED)), &now)), Some("n1"));
        let unknown = catch_up(reported(), Some(at(CHANGED)), &Knowledge::unknown("away"));
        assert_eq!(listed(&unknown), Some("n[1-2]"));
        assert_eq!(catch_up(None, Some(at(CHANGED)), &now), Lagging::default());
    }
}
