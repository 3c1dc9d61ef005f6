//! Slurm's JSON. slurmrestd and the commands with `--json` (`scontrol show nodes`, `squeue`) have the same format.
//!
//! A missing list is an error and never an empty list: the operator would take it for a cluster without jobs.

use std::fmt;

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_with::apply;
use thiserror::Error;

use crate::job::Job;
use crate::node::Node;
use crate::partition::Partition;
use crate::reservation::Reservation;

/// The content of a response.
pub trait Payload: Sized {
    /// The field that holds it.
    const FIELD: &'static str;

    /// Returns the content, if there is any, and the fields beside it.
    fn parse(json: &[u8]) -> Result<(Option<Self>, Head), serde_json::Error>;
}

macro_rules! payloads {
    ($($type:ty: $field:literal,)+) => {
        $(impl Payload for $type {
            const FIELD: &'static str = $field;

            fn parse(json: &[u8]) -> Result<(Option<Self>, Head), serde_json::Error> {
                #[derive(Deserialize)]
                struct Envelope {
                    #[serde(rename = $field)]
                    payload: Option<$type>,
                    #[serde(flatten)]
                    head: Head,
                }
                let Envelope { payload, head } = serde_json::from_slice(json)?;
                Ok((payload, head))
            }
        })+
    };
}

payloads! {
    Vec<Node>: "nodes",
    Vec<Job>: "jobs",
    Vec<Partition>: "partitions",
    Vec<Reservation>: "reservations",
    Vec<Qos>: "qos",
    Vec<JobResult>: "status",
    Vec<Ping>: "pings",
    ServedConf: "slurm_conf_meta",
    RunningConf: "slurm_conf",
}

/// The result of a ping of one slurmctld. One that rejects the token is "not responding", with HTTP 200.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Ping {
    #[serde(default, deserialize_with = "null_as_default")]
    pub hostname: String,
    pub responding: bool,
    pub primary: bool,
}

/// The result of a command on one job; a success may have none. Requeue and cancel have different forms.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum JobResult {
    Cancel {
        error: CancelError,
    },
    Requeue {
        #[serde(default)]
        error: Option<String>,
        error_code: i64,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct CancelError {
    #[serde(default, deserialize_with = "null_as_default")]
    pub string: String,
    pub code: i64,
}

impl JobResult {
    /// Returns Slurm's error number and text; 0 is a success.
    pub fn error(&self) -> (i64, &str) {
        match self {
            Self::Cancel { error } => (error.code, &error.string),
            Self::Requeue { error, error_code } => (*error_code, error.as_deref().unwrap_or_default()),
        }
    }
}

/// A quality of service in the accounting database.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Qos {
    pub name: String,
}

/// The configuration slurmctld runs with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct ServedConf {
    /// When this process of slurmctld started, in seconds since 1970. A reconfigure starts a new process.
    #[serde(rename = "BOOT_TIME")]
    pub boot_time: u64,
    /// The clock of slurmctld's machine.
    #[serde(rename = "LastUpdate")]
    pub now: u64,
    /// Slurm's own hash of slurm.conf, comments included.
    #[serde(rename = "HashValue")]
    pub hash: i64,
}

/// The settings of slurm.conf that are needed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RunningConf {
    #[serde(rename = "ReconfigFlags")]
    pub reconfig_flags: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer<T> {
    pub value: T,
    /// The release of the program that responded, such as `26.05.5`.
    pub release: Option<String>,
}

/// One of Slurm's own errors.
#[apply(_ => #[serde(default, deserialize_with = "null_as_default")])]
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Complaint {
    #[serde(rename = "error_number")]
    pub number: i64,
    pub error: String,
    pub description: String,
    pub source: String,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.error.as_str(), self.description.as_str()) {
            ("", "") => write!(f, "error {} from {:?}", self.number, self.source),
            (text, "") | ("", text) => f.write_str(text),
            (error, description) if description.contains(error) => f.write_str(description),
            (error, description) => write!(f, "{error}: {description}"),
        }
    }
}

#[derive(Debug, Error)]
pub enum DecodeError {
    /// At least one.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Complaints(Vec<Complaint>),
    #[error("the response cannot be decoded")]
    Json(#[from] serde_json::Error),
    #[error("the response has no {0:?}")]
    Missing(&'static str),
}

/// Decodes a response with content.
pub fn decode<T: Payload>(json: &[u8]) -> Result<Answer<T>, DecodeError> {
    match T::parse(json) {
        Ok((payload, head)) => head.into_answer(|| payload.ok_or(DecodeError::Missing(T::FIELD))),
        // The content beside an error can have any form; the error is what matters.
        Err(error) => match decode_empty(json) {
            Err(complaints @ DecodeError::Complaints(_)) => Err(complaints),
            Ok(_) | Err(_) => Err(error.into()),
        },
    }
}

/// Decodes a list to display, even beside errors: without slurmdbd, Slurm's programs report errors of the database and list what
/// slurmctld has. Not for decisions, since a list beside an error may be incomplete.
pub fn decode_to_show<T>(json: &[u8]) -> Result<Vec<T>, DecodeError>
where
    Vec<T>: Payload,
{
    match Vec::parse(json) {
        Ok((Some(list), _)) if !list.is_empty() => Ok(list),
        _ => decode(json).map(|answer| answer.value),
    }
}

/// Decodes a response without content.
pub fn decode_empty(json: &[u8]) -> Result<Answer<()>, DecodeError> {
    serde_json::from_slice::<Head>(json)?.into_answer(|| Ok(()))
}

/// The fields beside the content.
#[apply(_ => #[serde(default, deserialize_with = "null_as_default")])]
#[derive(Debug, Default, Deserialize)]
pub struct Head {
    meta: Value,
    errors: Vec<Complaint>,
}

impl Head {
    fn into_answer<T>(self, value: impl FnOnce() -> Result<T, DecodeError>) -> Result<Answer<T>, DecodeError> {
        if !self.errors.is_empty() {
            return Err(DecodeError::Complaints(self.errors));
        }
        let release = self.meta.pointer("/slurm/release");
        Ok(Answer {
            value: value()?,
            release: release.and_then(Value::as_str).map(str::to_owned),
        })
    }
}

/// Reads `null` as the default.
pub(crate) fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{DecodeError, Payload, Ping, ServedConf, decode, decode_empty, decode_to_show};
    use crate::{Job, Node, Partition};

    fn nodes(json: &str) -> Result<Vec<Node>, DecodeError> {
        decode::<Vec<Node>>(json.as_bytes()).map(|answer| answer.value)
    }

    #[test]
    fn unknown_fields_are_ignored() {
        let json = r#"{"shiny":{"a":[1]},"nodes":[{"name":"n1","state":["IDLE"],"shiny":1,"reason":null}],
            "meta":{"slurm":{"release":"26.05.5","version":{"major":"26"}}},"errors":[],
            "warnings":[{"description":"Ignoring unknown field","source":"x"}]}"#;
        let answer = decode::<Vec<Node>>(json.as_bytes()).unwrap();
        assert_eq!(answer.value.first().unwrap().name, "n1");
        assert_eq!(answer.release.as_deref(), Some("26.05.5"));
    }

    #[test]
    fn an_empty_list_is_empty_and_a_missing_one_is_an_error() {
        assert!(nodes(r#"{"nodes":[],"errors":[]}"#).unwrap().is_empty());
        for json in [
            "{}",
            r#"{"nodes":null}"#,
            r#"{"jobs":[]}"#,
            r#"{"errors":null,"warnings":null,"meta":null}"#,
        ] {
            assert!(matches!(nodes(json), Err(DecodeError::Missing("nodes"))), "{json}");
        }
    }

    #[test]
    fn errors_take_precedence_over_any_content() {
        for payload in ["[]", "null", "{}", "7", r#"[{"name":1}]"#] {
            let json = format!(
                r#"{{"nodes":{payload},"errors":[{{"error_number":2018,"error":"Invalid node name specified","description":"Failed","source":"s"}}]}}"#
            );
            let Err(DecodeError::Complaints(complaints)) = nodes(&json) else {
                panic!("{json}")
            };
            assert_eq!(complaints.first().unwrap().number, 2018);
            assert_eq!(
                complaints.first().unwrap().to_string(),
                "Invalid node name specified: Failed"
            );
        }
    }

    #[test]
    fn a_list_is_displayed_despite_an_error_of_the_database() {
        let complaint =
            r#"{"error_number":7000,"error":"Unable to connect to database","description":"Slurmdb query failed"}"#;
        let json = format!(r#"{{"nodes":[{{"name":"n1","state":["IDLE"]}}],"errors":[{complaint}]}}"#);
        assert_eq!(decode_to_show::<Node>(json.as_bytes()).unwrap().len(), 1);
        assert!(
            matches!(nodes(&json), Err(DecodeError::Complaints(_))),
            "it is no basis for decisions"
        );
        let none = format!(r#"{{"nodes":[],"errors":[{complaint}]}}"#);
        assert!(decode_to_show::<Node>(none.as_bytes()).is_err());
        assert!(
            decode_to_show::<Node>(br#"{"nodes":[],"errors":[]}"#)
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn wrong_types_and_truncated_responses_are_errors() {
        for json in [
            "",
            "null",
            "[]",
            "{",
            r#"{"nodes":[{"name":"n1","state":["IDLE"]}"#,
            r#"{"nodes":{}}"#,
            r#"{"nodes":[{"name":"n1"}]}"#,
            r#"{"nodes":[{"name":"n1","state":"IDLE"}]}"#,
            r#"{"nodes":[null]}"#,
            r#"{"nodes":[],"errors":"none"}"#,
        ] {
            assert!(matches!(nodes(json), Err(DecodeError::Json(_))), "{json}");
        }
    }

    fn never_panics<T: Payload>(json: &[u8]) {
        drop(decode::<T>(json));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            never_panics::<Vec<Node>>(&bytes);
            drop(decode_empty(&bytes));
        }

        #[test]
        fn no_json_panics(
            field in "nodes|jobs|partitions|pings|slurm_conf_meta|errors|meta",
            key in "name|state|job_state|job_id|nodes|features|partition|start_time|BOOT_TIME|LastUpdate|error_number",
            value in r#"null|-1|1e99|true|"x"|\[\]|\["IDLE",7\]|\{\}|\{"set":1\}|\{"number":\[\]\}|18446744073709551615"#,
            list in any::<bool>(),
        ) {
            let inner = format!(r#"{{"{key}":{value}}}"#);
            let json = if list { format!(r#"{{"{field}":[{inner}]}}"#) } else { format!(r#"{{"{field}":{inner}}}"#) };
            never_panics::<Vec<Node>>(json.as_bytes());
            never_panics::<Vec<Job>>(json.as_bytes());
            never_panics::<Vec<Partition>>(json.as_bytes());
            never_panics::<Vec<Ping>>(json.as_bytes());
            never_panics::<ServedConf>(json.as_bytes());
        }
    }
}
