//! The Slurm nodes that are out of service, for the status of their NodeSet. Pure.

use api::node_reason::{OutOfService, SetBy, author};

use crate::unix_time::timestamp;

/// Nodes that the status lists; it counts the rest. A longer list would make every write and watch of the object large.
const LISTED: usize = 20;

/// Returns the first nodes by name that are out of service.
pub(super) fn list_out_of_service(nodes: &[Option<&slurm::Node>]) -> Vec<OutOfService> {
    let nodes = nodes.iter().flatten().filter(|node| node.state.is_out_of_service());
    let mut nodes: Vec<&slurm::Node> = nodes.copied().collect();
    nodes.sort_by_key(|node| &node.name);
    nodes.dedup_by_key(|node| &node.name);
    nodes.into_iter().take(LISTED).map(explain).collect()
}

fn explain(node: &slurm::Node) -> OutOfService {
    let since = node.admin_state().reason_since;
    OutOfService {
        node: node.name.clone(),
        state: node.state.summary(),
        reason: Some(node.reason.clone()).filter(|reason| !reason.is_empty()),
        since: timestamp(since)
            .filter(|_| since > 0)
            .map(|since| since.to_string().into()),
        by: SetBy::of_node(&node.reason, node.state.is_drain()),
        user: author(&node.reason, &node.reason_set_by_user).map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn listed(nodes: &[Value]) -> Vec<OutOfService> {
        let nodes: Vec<slurm::Node> = serde_json::from_value(json!(nodes)).unwrap();
        list_out_of_service(&nodes.iter().map(Some).chain([None]).collect::<Vec<_>>())
    }

    fn node(name: &str, state: &[&str], reason: &str) -> Value {
        let at = json!({ "set": true, "infinite": false, "number": 1_767_225_600 });
        json!({ "name": name, "state": state, "reason": reason, "reason_changed_at": at, "reason_set_by_user": "root" })
    }

    const DRAINED: &[&str] = &["IDLE", "DRAIN", "DYNAMIC_NORM"];

    #[test]
    fn a_node_out_of_service_is_listed_with_reason_time_and_author() {
        let since = "2026-01-01T00:00:00Z";
        assert_eq!(
            serde_json::to_value(listed(&[
                node("c-3", &["IDLE", "NOT_RESPONDING"], ""),
                node("c-4", &["IDLE"], "an old reason"),
                node("c-0", DRAINED, "broken fan"),
                node("c-1", DRAINED, "slurm-operator: disk swap"),
                node("c-2", &["DOWN", "NOT_RESPONDING"], "Not responding"),
                node("c-5", DRAINED, ""),
            ]))
            .unwrap(),
            json!([
                { "node": "c-0", "state": "IDLE+DRAIN", "reason": "broken fan", "since": since, "by": "Person", "user": "root" },
                { "node": "c-1", "state": "IDLE+DRAIN", "reason": "slurm-operator: disk swap", "since": since, "by": "Person" },
                { "node": "c-2", "state": "DOWN+NOT_RESPONDING", "reason": "Not responding", "since": since, "by": "Slurm" },
                { "node": "c-3", "state": "IDLE+NOT_RESPONDING", "by": "Slurm" },
                { "node": "c-5", "state": "IDLE+DRAIN", "by": "Person" },
            ])
        );
    }

    #[test]
    fn the_list_is_bounded() {
        let nodes = (0..30).map(|ordinal| node(&format!("c-{ordinal}"), DRAINED, "storm"));
        assert_eq!(listed(&nodes.collect::<Vec<_>>()).len(), LISTED);
    }
}
