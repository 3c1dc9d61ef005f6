//! What Slurm says in JSON. slurmrestd and the commands with `--json` (`scontrol show nodes`, `squeue`) speak alike, so
//! one decoder serves both.
//!
//! An answer is either what was asked for or an error. A list that is not there is never an empty list: the operator
//! would take it for a cluster without jobs.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeOwned, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use thiserror::Error;

use crate::job::Job;
use crate::node::Node;
use crate::partition::Partition;
use crate::reservation::Reservation;

/// What can be asked for, and under which name it stands in the answer.
pub trait Payload: DeserializeOwned {
    const FIELD: &'static str;
}

impl Payload for Vec<Node> {
    const FIELD: &'static str = "nodes";
}

impl Payload for Vec<Job> {
    const FIELD: &'static str = "jobs";
}

impl Payload for Vec<Partition> {
    const FIELD: &'static str = "partitions";
}

impl Payload for Vec<Reservation> {
    const FIELD: &'static str = "reservations";
}

impl Payload for Vec<Qos> {
    const FIELD: &'static str = "qos";
}

impl Payload for Vec<JobVerdict> {
    const FIELD: &'static str = "status";
}

impl Payload for Vec<Ping> {
    const FIELD: &'static str = "pings";
}

impl Payload for ServedConf {
    const FIELD: &'static str = "slurm_conf_meta";
}

impl Payload for RunningConf {
    const FIELD: &'static str = "slurm_conf";
}

/// One slurmctld, asked whether it is there. A token it does not accept makes it "not responding", with HTTP 200.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Ping {
    #[serde(default, deserialize_with = "null_as_default")]
    pub hostname: String,
    pub responding: bool,
    pub primary: bool,
}

/// What became of a command on one job; a success may have none. Requeue and cancel have different shapes for it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum JobVerdict {
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

impl JobVerdict {
    /// Slurm's number and words; 0 is a success.
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
    /// When this process of slurmctld started, in seconds since 1970. A reconfigure is a new process.
    #[serde(rename = "BOOT_TIME")]
    pub boot_time: u64,
    /// The time it is on slurmctld's machine.
    #[serde(rename = "LastUpdate")]
    pub now: u64,
    /// Slurm's own hash of slurm.conf, comments included.
    #[serde(rename = "HashValue")]
    pub hash: i64,
}

/// What of it we look at.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RunningConf {
    #[serde(rename = "ReconfigFlags")]
    pub reconfig_flags: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer<T> {
    pub value: T,
    /// A field of a request that Slurm does not know ends up here, with HTTP 200.
    pub warnings: Vec<Warning>,
    /// Of the program that answered, such as `26.05.5`.
    pub release: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Warning {
    #[serde(default, deserialize_with = "null_as_default")]
    pub description: String,
    #[serde(default, deserialize_with = "null_as_default")]
    pub source: String,
}

/// One of Slurm's own errors.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Complaint {
    #[serde(rename = "error_number", default, deserialize_with = "null_as_default")]
    pub number: i64,
    #[serde(default, deserialize_with = "null_as_default")]
    pub error: String,
    #[serde(default, deserialize_with = "null_as_default")]
    pub description: String,
    #[serde(default, deserialize_with = "null_as_default")]
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
    /// At least one; Slurm refused or failed.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Complaints(Vec<Complaint>),
    #[error("the answer cannot be read")]
    Json(#[from] serde_json::Error),
    #[error("the answer has no {0:?}")]
    Missing(&'static str),
}

/// Reads an answer that carries something.
pub fn decode<T: Payload>(json: &[u8]) -> Result<Answer<T>, DecodeError> {
    match serde_json::from_slice::<Envelope<T>>(json) {
        Ok(Envelope { payload, head }) => {
            let answer = head.into_answer()?;
            let value = payload.ok_or(DecodeError::Missing(T::FIELD))?;
            Ok(Answer {
                value,
                warnings: answer.warnings,
                release: answer.release,
            })
        }
        // What comes with an error may be of any shape; the error itself says more than that it is.
        Err(error) => match decode_empty(json) {
            Err(complaints @ DecodeError::Complaints(_)) => Err(complaints),
            Ok(_) | Err(_) => Err(error.into()),
        },
    }
}

/// Reads a list that people are shown, also beside complaints: without slurmdbd, Slurm's programs complain of what they would have
/// asked it and list what slurmctld has. Good for showing alone, as a list that came with a complaint may lack something.
pub fn decode_to_show<T>(json: &[u8]) -> Result<Vec<T>, DecodeError>
where
    Vec<T>: Payload,
{
    match serde_json::from_slice::<Envelope<Vec<T>>>(json) {
        Ok(Envelope {
            payload: Some(list), ..
        }) if !list.is_empty() => Ok(list),
        _ => decode(json).map(|answer| answer.value),
    }
}

/// Reads an answer that carries nothing but success.
pub fn decode_empty(json: &[u8]) -> Result<Answer<()>, DecodeError> {
    serde_json::from_slice::<Head>(json)?.into_answer()
}

/// What stands beside every payload.
#[derive(Debug, Default, Deserialize)]
struct Head {
    #[serde(default, deserialize_with = "null_as_default")]
    meta: Meta,
    #[serde(default, deserialize_with = "null_as_default")]
    errors: Vec<Complaint>,
    #[serde(default, deserialize_with = "null_as_default")]
    warnings: Vec<Warning>,
}

#[derive(Debug, Default, Deserialize)]
struct Meta {
    #[serde(default, deserialize_with = "null_as_default")]
    slurm: MetaSlurm,
}

#[derive(Debug, Default, Deserialize)]
struct MetaSlurm {
    #[serde(default)]
    release: Option<String>,
}

impl Head {
    fn into_answer(self) -> Result<Answer<()>, DecodeError> {
        if self.errors.is_empty() {
            Ok(Answer {
                value: (),
                warnings: self.warnings,
                release: self.meta.slurm.release,
            })
        } else {
            Err(DecodeError::Complaints(self.errors))
        }
    }
}

struct Envelope<T> {
    payload: Option<T>,
    head: Head,
}

impl<'de, T: Payload> Deserialize<'de> for Envelope<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EnvelopeVisitor(PhantomData))
    }
}

/// Written out because the name of the field depends on the type.
struct EnvelopeVisitor<T>(PhantomData<T>);

impl<'de, T: Payload> Visitor<'de> for EnvelopeVisitor<T> {
    type Value = Envelope<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an answer of Slurm's with {:?}", T::FIELD)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Envelope<T>, A::Error> {
        let mut payload = None;
        let mut head = Head::default();
        while let Some(field) = map.next_key::<String>()? {
            match field.as_str() {
                name if name == T::FIELD => payload = map.next_value()?,
                "meta" => head.meta = map.next_value::<Option<_>>()?.unwrap_or_default(),
                "errors" => head.errors = map.next_value::<Option<_>>()?.unwrap_or_default(),
                "warnings" => head.warnings = map.next_value::<Option<_>>()?.unwrap_or_default(),
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(Envelope { payload, head })
    }
}

/// For fields whose absence means nothing, `null` means nothing either.
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
    fn fields_we_do_not_know_are_passed_over() {
        let json = r#"{"shiny":{"a":[1]},"nodes":[{"name":"n1","state":["IDLE"],"shiny":1,"reason":null}],
            "meta":{"slurm":{"release":"26.05.5","version":{"major":"26"}}},"errors":[],
            "warnings":[{"description":"Ignoring unknown field","source":"x"}]}"#;
        let answer = decode::<Vec<Node>>(json.as_bytes()).unwrap();
        assert_eq!(answer.value.first().unwrap().name, "n1");
        assert_eq!(answer.release.as_deref(), Some("26.05.5"));
        assert_eq!(answer.warnings.first().unwrap().description, "Ignoring unknown field");
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
    fn errors_win_over_a_payload_of_any_shape() {
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
    fn what_is_shown_may_come_with_a_complaint_of_the_database() {
        let complaint =
            r#"{"error_number":7000,"error":"Unable to connect to database","description":"Slurmdb query failed"}"#;
        let json = format!(r#"{{"nodes":[{{"name":"n1","state":["IDLE"]}}],"errors":[{complaint}]}}"#);
        assert_eq!(decode_to_show::<Node>(json.as_bytes()).unwrap().len(), 1);
        assert!(
            matches!(nodes(&json), Err(DecodeError::Complaints(_))),
            "nothing is decided by it"
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
    fn wrong_types_and_cut_answers_are_errors() {
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
