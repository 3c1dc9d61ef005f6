//! The JSON bodies of requests to slurmrestd. Fields that are not set are absent, which means "unchanged".

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::agent::{NodeAction, Reason};
use crate::describe::{NodeDescription, SingleLine};
use crate::number::Number;
use crate::reservation::ReservationRequest;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Body(Map<String, Value>);

impl Body {
    /// Sets a field, which one name or two nested ones identify.
    pub(super) fn set<const DEPTH: usize>(&mut self, place: [&str; DEPTH], value: Option<impl Into<Value>>) {
        let (Some(value), Some((last, outer))) = (value, place.split_last()) else {
            return;
        };
        let mut object = &mut self.0;
        for name in outer {
            let inner = object.entry(*name).or_insert_with(|| json!({}));
            let Value::Object(inner) = inner else { return };
            object = inner;
        }
        object.insert((*last).to_owned(), value.into());
    }
}

/// Returns the body of `POST node`. `None` for a deletion, which has none, and for what slurmrestd is not asked to do.
pub fn render_node(action: &NodeAction) -> Option<Value> {
    let mut body = Body::default();
    let (state, reason) = match action {
        NodeAction::Drain { reason } => ("DRAIN", reason.as_ref()),
        NodeAction::Undrain => ("UNDRAIN", None),
        NodeAction::Resume => ("RESUME", None),
        NodeAction::Down { reason } => ("DOWN", reason.as_ref()),
        NodeAction::Describe(description) => return Some(render_description(description)),
        NodeAction::Delete | NodeAction::Create { .. } | NodeAction::PowerUp | NodeAction::PowerDown => return None,
    };
    body.set(["state"], Some(json!([state])));
    body.set(["reason"], reason.map(Reason::as_str));
    Some(json!(body))
}

fn render_description(description: &NodeDescription) -> Value {
    let NodeDescription {
        comment,
        extra,
        features,
        topology,
        address,
    } = description;
    // slurmrestd takes an empty list for "unchanged", and one empty name for "none".
    let names = |lines: &[SingleLine]| if lines.is_empty() { json!([""]) } else { json!(lines) };
    let mut body = Body::default();
    body.set(["comment"], comment.as_ref().map(SingleLine::as_str));
    body.set(["extra"], extra.as_ref().map(SingleLine::as_str));
    let available = features.as_ref().map(|features| names(&features.available));
    body.set(["features"], available);
    let active = features.as_ref().map(|features| names(&features.active));
    body.set(["features_act"], active);
    body.set(["topology_str"], topology.as_ref().map(SingleLine::as_str));
    body.set(["address"], address.as_ref().map(|address| json!([address])));
    json!(body)
}

/// Returns the body of `POST reservation`.
pub(super) fn render_reservation(request: &ReservationRequest) -> Body {
    let ReservationRequest {
        name,
        start,
        minutes,
        nodes,
        users,
        flags,
    } = request;
    let number = |number: Option<u64>| number.map(|number| json!(Number::Finite(number)));
    let list = |lines: &[SingleLine]| (!lines.is_empty()).then(|| json!(lines));
    let mut body = Body::default();
    body.set(["name"], Some(name.as_str()));
    body.set(["start_time"], number(*start));
    body.set(["duration"], number(minutes.map(u64::from)));
    body.set(["node_list"], list(nodes));
    body.set(["users"], list(users));
    body.set(["flags"], list(flags));
    body
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::describe::NodeFeatures;

    #[test]
    fn a_description_changes_only_what_it_has() {
        let line = |text: &str| SingleLine::new(text).unwrap();
        for (description, json) in [
            (NodeDescription::default(), "{}"),
            (
                NodeDescription {
                    topology: Some(line("")),
                    ..NodeDescription::default()
                },
                r#"{"topology_str":""}"#,
            ),
            (
                NodeDescription {
                    comment: Some(line("c")),
                    extra: Some(line("e")),
                    features: Some(NodeFeatures {
                        available: vec![line("a"), line("k8s/b")],
                        active: vec![],
                    }),
                    topology: None,
                    address: Some(line("10.0.0.1")),
                },
                r#"{"comment":"c","extra":"e","features":["a","k8s/b"],"features_act":[""],"address":["10.0.0.1"]}"#,
            ),
        ] {
            assert_eq!(render_description(&description).to_string(), json);
        }
    }
}
