use serde_json::json;

use super::body::Body;
use crate::describe::SingleLine;
use crate::number::Number;
use crate::reservation::ReservationRequest;

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
