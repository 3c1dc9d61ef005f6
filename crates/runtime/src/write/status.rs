//! The difference between two statuses. Pure.

use serde_json::{Map, Value};

use super::desired::drop_nulls;

/// The merge patch that turns one status into the other, or `None` if they are equal.
pub(super) fn change(observed: &Value, mut wanted: Value) -> Option<Value> {
    let nothing = Value::Object(Map::new());
    let mut observed = observed.clone();
    if observed.is_null() {
        observed = nothing.clone();
    }
    drop_nulls(&mut wanted);
    drop_nulls(&mut observed);
    let patch = difference(&observed, &wanted);
    (patch != nothing).then_some(patch)
}

/// RFC 7386. Lists are one value.
fn difference(from: &Value, to: &Value) -> Value {
    let (Value::Object(from), Value::Object(to)) = (from, to) else {
        return to.clone();
    };
    let removed = from.keys().filter(|key| !to.contains_key(*key));
    let removed = removed.map(|key| (key.clone(), Value::Null));
    let changed = to.iter().filter(|(key, to)| from.get(*key) != Some(*to));
    let changed = changed.map(|(key, to)| {
        (
            key.clone(),
            from.get(key).map_or_else(|| to.clone(), |from| difference(from, to)),
        )
    });
    Value::Object(removed.chain(changed).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_same_status_needs_no_write() {
        assert_eq!(change(&Value::Null, json!({})), None);
        assert_eq!(change(&Value::Null, json!({"a": null})), None);
        assert_eq!(change(&json!({"a": 1, "b": null}), json!({"a": 1})), None);
    }

    #[test]
    fn only_what_differs_is_written() {
        let observed = json!({"replicas": 1, "gone": true, "conditions": [{"type": "Ready"}], "in": {"a": 1, "b": 2}});
        let wanted = json!({"replicas": 2, "conditions": [{"type": "Ready"}], "in": {"a": 1, "c": 3}});
        assert_eq!(
            change(&observed, wanted),
            Some(json!({"gone": null, "replicas": 2, "in": {"b": null, "c": 3}}))
        );
    }

    fn status() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (0..3_i64).prop_map(Value::from)
        ];
        let inner = leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::hash_map("[abc]", inner, 0..3)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        });
        prop::collection::hash_map("[abc]", inner, 0..3).prop_map(|map| Value::Object(map.into_iter().collect()))
    }

    proptest! {
        #[test]
        fn the_patch_makes_the_wanted_status(observed in status(), wanted in status()) {
            let mut result = observed.clone();
            drop_nulls(&mut result);
            if let Some(patch) = change(&observed, wanted.clone()) {
                json_patch::merge(&mut result, &patch);
            }
            prop_assert_eq!(change(&result, wanted), None);
        }
    }
}
