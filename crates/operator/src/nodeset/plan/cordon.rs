//! Cordons: the Slurm node of a worker takes no new job while its pod or its Kubernetes node is cordoned.

use api::keys::{self, annotations};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use crate::{nodeset::observe::Observed, worker::Worker};

/// The length of a reason that still fits in tables such as those of sinfo.
const LONGEST: usize = 256;

/// Returns the drain reason, if the worker is cordoned.
pub(super) fn reason(observed: &Observed, worker: Worker<'_>) -> Option<String> {
    let of_node = observed
        .host(worker)
        .filter(|node| is_cordoned(node))
        .map(|node| node_reason(observed, node, worker));
    of_node
        .or_else(|| worker.is_cordoned().then(|| pod_reason(worker)))
        .map(|text| format!("{}{text}", keys::NODE_REASON_PREFIX))
}

fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true)
}

fn pod_reason(worker: Worker<'_>) -> String {
    let given = worker.annotation(annotations::POD_CORDON_REASON).map(one_line);
    given
        .filter(|reason| !reason.is_empty())
        .unwrap_or_else(|| format!("Pod ({}) was cordoned", full_name(worker)))
}

/// Returns the reason annotated on the node, else the conditions that the operator is configured to propagate.
fn node_reason(observed: &Observed, node: &Node, worker: Worker<'_>) -> String {
    let given = node
        .annotations()
        .get(annotations::NODE_CORDON_REASON)
        .map(|text| one_line(text));
    if let Some(given) = given.filter(|reason| !reason.is_empty()) {
        return given;
    }
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    let propagated: Vec<String> = observed
        .environment
        .propagated_conditions
        .iter()
        .filter_map(|type_| {
            conditions
                .iter()
                .find(|condition| condition.type_ == *type_ && condition.status == "True")
        })
        .map(|condition| {
            let (reason, message) = (condition.reason.as_deref(), condition.message.as_deref());
            format!("({}: {})", reason.unwrap_or_default(), message.unwrap_or_default())
        })
        .collect();
    if propagated.is_empty() {
        let name = node.name_any();
        return format!(
            "Node ({name}) was cordoned, Pod ({}) must be cordoned",
            full_name(worker)
        );
    }
    one_line(&propagated.join("; "))
}

fn full_name(worker: Worker<'_>) -> String {
    format!("{}/{}", worker.0.namespace().unwrap_or_default(), worker.name())
}

/// Returns one line without control characters, which would break tables and could forge a second line.
fn one_line(text: &str) -> String {
    let blanks = text
        .chars()
        .map(|c| if matches!(c, '\t' | '\n' | '\r') { ' ' } else { c });
    let plain: String = blanks.filter(|c| !c.is_control()).collect();
    plain
        .trim()
        .chars()
        .take(LONGEST)
        .collect::<String>()
        .trim_end()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_short_line() {
        for (given, said) in [
            ("  disk swap ", "disk swap"),
            ("a\nb\tc\r\nd", "a b c  d"),
            ("\u{1b}[31mred", "[31mred"),
            ("", ""),
            (" \n ", ""),
            ("維修中", "維修中"),
        ] {
            assert_eq!(one_line(given), said, "{given:?}");
        }
        assert_eq!(one_line(&"維".repeat(300)).chars().count(), LONGEST);
    }
}
