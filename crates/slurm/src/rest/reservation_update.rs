use serde::Serialize;

use crate::describe::SingleLine;
use crate::number::Number;
use crate::reservation::ReservationRequest;

/// A request for a reservation, in the form of slurmrestd.
#[derive(Debug, Serialize)]
pub(super) struct ReservationUpdate<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_time: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration: Option<Number>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    node_list: &'a [SingleLine],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    users: &'a [SingleLine],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    flags: &'a [SingleLine],
}

impl<'a> ReservationUpdate<'a> {
    pub(super) fn of(request: &'a ReservationRequest) -> Self {
        let ReservationRequest {
            name,
            start,
            minutes,
            nodes,
            users,
            flags,
        } = request;
        Self {
            name: name.as_str(),
            start_time: start.map(Number::Finite),
            duration: minutes.map(|minutes| Number::Finite(minutes.into())),
            node_list: nodes,
            users,
            flags,
        }
    }
}
