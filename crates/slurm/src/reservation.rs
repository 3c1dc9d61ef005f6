//! A reservation of slurmctld, and the request for one.

use serde::{Deserialize, Serialize};

use crate::answer::null_as_default;
use crate::checked_text::is_plain;
use crate::describe::SingleLine;
use crate::hostlist::{Hostlist, HostlistError};
use crate::number::Number;

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Reservation {
    pub name: String,
    /// Seconds since 1970; the next start of a recurring reservation.
    pub start_time: Number,
    pub end_time: Number,
    /// A hostlist.
    #[serde(rename = "node_list", default, deserialize_with = "null_as_default")]
    pub nodes: String,
    /// Including flags that Slurm sets, such as `SPEC_NODES`.
    #[serde(default, deserialize_with = "null_as_default")]
    pub flags: Vec<String>,
    /// Separated by commas.
    #[serde(default, deserialize_with = "null_as_default")]
    pub users: String,
}

impl Reservation {
    pub fn node_list(&self) -> Result<Hostlist, HostlistError> {
        Hostlist::parse(&self.nodes)
    }

    /// `now` is in seconds since 1970.
    pub fn is_active(&self, now: u64) -> bool {
        let begun = self.start_time.finite().is_some_and(|start| start <= now);
        begun && self.end_time.finite().is_none_or(|end| now < end)
    }
}

checked_text! {
    /// The name of one reservation.
    ReservationName: |name| !name.is_empty() && is_plain(name, "-_."),
    InvalidReservationName: "{0:?} is not the name of a reservation; use letters, digits, - _ and ."
}

/// A reservation to create or change. An existing one keeps what is not given; a new one needs start, duration, nodes and users.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReservationRequest {
    pub name: ReservationName,
    /// Seconds since 1970. Slurm refuses to move the start of an active reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minutes: Option<u32>,
    /// Each a name or a hostlist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<SingleLine>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<SingleLine>,
    /// Such as `MAINT`. They are added to those of an existing reservation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<SingleLine>,
}

impl ReservationRequest {
    pub fn new(name: ReservationName) -> Self {
        Self {
            name,
            start: None,
            minutes: None,
            nodes: Vec::new(),
            users: Vec::new(),
            flags: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_is_active_from_its_start_to_its_end() {
        let reservation: Reservation = serde_json::from_str(
            r#"{"name":"r","start_time":{"set":true,"number":100},"end_time":{"set":true,"number":200},"node_list":"n[1-2]"}"#,
        )
        .unwrap();
        for (now, active) in [(99, false), (100, true), (199, true), (200, false)] {
            assert_eq!(reservation.is_active(now), active, "{now}");
        }
        assert!(reservation.node_list().unwrap().contains("n2"));
    }

    #[test]
    fn a_name_is_one_name() {
        ReservationName::new("SlurmOperatorMaint-slurm-worker-a").unwrap();
        for name in ["", "a b", "a,b", "a=b", "a/b", "a\n"] {
            assert_eq!(ReservationName::new(name), Err(InvalidReservationName(name.to_owned())));
        }
    }
}
