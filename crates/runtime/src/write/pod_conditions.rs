//! Conditions of pods. The kubelet owns a pod's status; some condition types are ours.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use kube::api::Patch;
use serde_json::{Value, json};

use super::{Error, Key, Writer};

impl Writer {
    /// Replaces the conditions whose type begins with `prefix` by the wanted ones, and returns whether anything was
    /// written. Conditions of other types do not change: the API server merges by type. A pod that is gone or was
    /// replaced gets none.
    pub async fn pod_conditions(
        &self,
        pod: &Pod,
        prefix: &str,
        wanted: &[PodCondition],
        now: Timestamp,
    ) -> Result<bool, Error> {
        let key = Key::of(pod);
        let observed = pod.status.as_ref().and_then(|status| status.conditions.as_deref());
        let Some(change) = change(observed.unwrap_or_default(), prefix, wanted, now) else {
            return Ok(false);
        };
        let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": change}});
        tracing::debug!(object = %key, %patch, "writing conditions of a pod");
        let written = self.write_status::<Pod>(&key, &Patch::Strategic(patch)).await?;
        Ok(written.is_some())
    }
}

/// The list for a strategic merge patch, or `None` if the conditions are as wanted.
fn change(observed: &[PodCondition], prefix: &str, wanted: &[PodCondition], now: Timestamp) -> Option<Vec<Value>> {
    let is_ours = |condition: &&PodCondition| condition.type_.starts_with(prefix);
    let before = |type_: &str| observed.iter().find(|condition| condition.type_ == type_);
    let set = wanted.iter().filter(is_ours).filter_map(|wanted| {
        let before = before(&wanted.type_);
        if before.is_some_and(|before| is_same(before, wanted)) {
            return None;
        }
        let since = before
            .filter(|before| before.status == wanted.status)
            .and_then(|before| before.last_transition_time.as_ref())
            .map_or(now, |time| time.0);
        // A field that is absent in the patch would keep its value.
        Some(json!({
            "type": wanted.type_,
            "status": wanted.status,
            "reason": wanted.reason,
            "message": wanted.message,
            "lastTransitionTime": format!("{since:.0}"),
        }))
    });
    let is_wanted = |condition: &&PodCondition| wanted.iter().any(|wanted| wanted.type_ == condition.type_);
    let gone = observed
        .iter()
        .filter(is_ours)
        .filter(|condition| !is_wanted(condition))
        .map(|condition| json!({"$patch": "delete", "type": condition.type_}));
    let change: Vec<Value> = set.chain(gone).collect();
    (!change.is_empty()).then_some(change)
}

/// Whether both conditions are equal. The API server omits empty fields.
fn is_same(one: &PodCondition, other: &PodCondition) -> bool {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    one.status == other.status && text(&one.reason) == text(&other.reason) && text(&one.message) == text(&other.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EARLY: &str = "2026-01-01T00:00:00Z";
    const LATE: &str = "2026-01-02T00:00:00Z";

    fn conditions(all: &[(&str, &str, &str)]) -> Vec<PodCondition> {
        let made = all.iter().map(|(type_, status, message)| {
            let condition =
                json!({"type": type_, "status": status, "message": message, "lastTransitionTime": EARLY, "reason": null});
            serde_json::from_value(condition).unwrap()
        });
        made.collect()
    }

    #[test]
    fn only_what_changes_among_ours_is_in_the_patch() {
        let kubelets = ("Ready", "True", "");
        let (idle, drain) = (("SlurmIdle", "True", ""), ("SlurmDrain", "True", "by hand"));
        let set = |(type_, status, message): (&str, &str, &str), since: &str| json!({"type": type_, "status": status, "message": message, "reason": null, "lastTransitionTime": since});
        let gone = |type_: &str| json!({"$patch": "delete", "type": type_});
        let other = ("SlurmDrain", "True", "another");
        let flipped = ("SlurmDrain", "False", "by hand");
        for (case, observed, wanted, expected) in [
            ("nothing at all", vec![], vec![], None),
            (
                "all is as it should be",
                vec![kubelets, idle, drain],
                vec![drain, idle],
                None,
            ),
            (
                "the first ones",
                vec![kubelets],
                vec![idle],
                Some(vec![set(idle, LATE)]),
            ),
            (
                "one comes, one goes",
                vec![kubelets, idle],
                vec![drain],
                Some(vec![set(drain, LATE), gone("SlurmIdle")]),
            ),
            ("all go", vec![kubelets, idle], vec![], Some(vec![gone("SlurmIdle")])),
            (
                "another message keeps the time",
                vec![drain],
                vec![other],
                Some(vec![set(other, EARLY)]),
            ),
            (
                "another status does not",
                vec![drain],
                vec![flipped],
                Some(vec![set(flipped, LATE)]),
            ),
            ("the kubelet's are never ours to write", vec![], vec![kubelets], None),
        ] {
            let found = change(
                &conditions(&observed),
                "Slurm",
                &conditions(&wanted),
                LATE.parse().unwrap(),
            );
            assert_eq!(found, expected, "{case}");
        }
    }
}
