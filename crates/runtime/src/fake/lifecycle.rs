//! How objects of the fake server begin, change and end, once it has a clock.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::Path;

/// The API server's default.
const GRACE: i64 = 30;

/// What the server writes into a new object.
pub(super) fn begin(path: &Path, object: &mut Value, now: Timestamp) {
    object["metadata"]["creationTimestamp"] = seconds(now).into();
    object["metadata"]["generation"] = 1.into();
    if path.plural == "pods" && object.pointer("/status/phase").is_none() {
        object["status"]["phase"] = "Pending".into();
    }
}

/// The generation counts changes of everything but metadata and status.
pub(super) fn change(before: &Value, object: &mut Value) {
    let generation = before.pointer("/metadata/generation").and_then(Value::as_u64);
    let rest = |object: &Value| {
        let mut fields = object.as_object().cloned().unwrap_or_default();
        fields.shift_remove("metadata");
        fields.shift_remove("status");
        fields
    };
    let changed = u64::from(rest(before) != rest(object));
    object["metadata"]["generation"] = (generation.unwrap_or(1) + changed).into();
}

/// The object after a deletion that does not remove it at once.
pub(super) fn ending(path: &Path, object: &Value, options: &Value, now: Timestamp) -> Option<Value> {
    let mut ending = object.clone();
    let grace = if path.plural == "pods" {
        grace(object, options)
    } else {
        0
    };
    if grace == 0 && !has_finalizers(object) {
        return None;
    }
    let before = object
        .pointer("/metadata/deletionGracePeriodSeconds")
        .and_then(Value::as_i64);
    let is_ending = object.pointer("/metadata/deletionTimestamp").is_some();
    if is_ending && before.is_none_or(|before| before <= grace) {
        return Some(ending);
    }
    ending["metadata"]["deletionTimestamp"] = seconds(now + SignedDuration::from_secs(grace)).into();
    if path.plural == "pods" {
        ending["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
    }
    Some(ending)
}

/// Whether nothing holds an object back any more. A pod ends by a deletion without grace, which its kubelet sends.
pub(super) fn is_over(path: &Path, object: &Value) -> bool {
    let ending = object.pointer("/metadata/deletionTimestamp").is_some();
    let grace = object
        .pointer("/metadata/deletionGracePeriodSeconds")
        .and_then(Value::as_i64);
    ending && !has_finalizers(object) && (path.plural != "pods" || grace == Some(0))
}

fn grace(pod: &Value, options: &Value) -> i64 {
    let phase = pod.pointer("/status/phase").and_then(Value::as_str);
    // Nothing of it runs.
    if pod.pointer("/spec/nodeName").is_none() || matches!(phase, Some("Succeeded" | "Failed")) {
        return 0;
    }
    let asked = options.get("gracePeriodSeconds").and_then(Value::as_i64);
    let own = pod
        .pointer("/spec/terminationGracePeriodSeconds")
        .and_then(Value::as_i64);
    asked.or(own).unwrap_or(GRACE)
}

fn has_finalizers(object: &Value) -> bool {
    let finalizers = object.pointer("/metadata/finalizers").and_then(Value::as_array);
    finalizers.is_some_and(|finalizers| !finalizers.is_empty())
}

fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
