//! Timestamps and durations, kept as they were written.
//!
//! The API server checks these strings loosely or not at all, so that decoding one must not fail. They are parsed
//! later, and validation names a field that cannot be parsed.

use std::{borrow::Cow, fmt};

use jiff::SignedDuration;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

macro_rules! text {
    ($(#[$meta:meta])* $name:ident, $schema:tt) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// The text as it was written.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    };
}

text! {
    /// A timestamp in RFC 3339 format.
    Timestamp, { "type": "string", "format": "date-time" }
}

text! {
    /// A duration in Go's format: `90s`, `1h30m`, `1.5h`.
    GoDuration, { "type": "string" }
}

text! {
    /// A duration in the format of Prometheus: `30s`, `1d12h`.
    PrometheusDuration, {
        "type": "string",
        "pattern": "^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$",
    }
}

impl Timestamp {
    /// The parsed timestamp, if the text is one.
    pub fn instant(&self) -> Option<jiff::Timestamp> {
        self.0.parse().ok()
    }
}

impl From<jiff::Timestamp> for Timestamp {
    /// Formats whole seconds, as Kubernetes does.
    fn from(instant: jiff::Timestamp) -> Self {
        Self(instant.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
    }
}

impl GoDuration {
    /// The parsed duration, if the text is one and fits Go's type (64 bits of nanoseconds).
    pub fn length(&self) -> Option<SignedDuration> {
        let (negative, mut rest) = match self.0.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, self.0.strip_prefix('+').unwrap_or(&self.0)),
        };
        if rest == "0" {
            return Some(SignedDuration::ZERO);
        }
        if rest.is_empty() {
            return None;
        }
        let mut nanos: i128 = 0;
        while !rest.is_empty() {
            let number_end = rest
                .find(|c: char| !c.is_ascii_digit() && c != '.')
                .unwrap_or(rest.len());
            let (number, tail) = rest.split_at(number_end);
            let unit_end = tail
                .find(|c: char| c.is_ascii_digit() || c == '.')
                .unwrap_or(tail.len());
            let (unit, tail) = tail.split_at(unit_end);
            nanos = nanos.checked_add(nanos_of(number, unit)?)?;
            rest = tail;
        }
        let nanos = if negative { -nanos } else { nanos };
        i64::try_from(nanos).ok().map(SignedDuration::from_nanos)
    }
}

/// Converts `number` of `unit` to nanoseconds. Fractions of a nanosecond are truncated, as in Go.
fn nanos_of(number: &str, unit: &str) -> Option<i128> {
    let scale: i128 = match unit {
        "ns" => 1,
        // Go accepts both the micro sign and the Greek letter.
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let mut nanos = whole.checked_mul(scale)?;
    let mut place = scale;
    for digit in fraction.chars().filter_map(|c| c.to_digit(10)) {
        place /= 10;
        nanos = nanos.checked_add(i128::from(digit).checked_mul(place)?)?;
    }
    Some(nanos)
}

#[cfg(test)]
mod tests {
    use super::{GoDuration, Timestamp};

    fn seconds(text: &str) -> Option<f64> {
        GoDuration::from(text).length().map(|length| length.as_secs_f64())
    }

    #[test]
    fn durations_read_as_go_reads_them() {
        for (text, expected) in [
            ("0", 0.0),
            ("30m", 1800.0),
            ("1h", 3600.0),
            ("1h30m10s", 5410.0),
            ("1.5h", 5400.0),
            (".5s", 0.5),
            ("1.s", 1.0),
            ("-90s", -90.0),
            ("+2m", 120.0),
            ("100ms", 0.1),
            ("3\u{b5}s", 0.000_003),
            ("3\u{3bc}s", 0.000_003),
        ] {
            assert_eq!(seconds(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn durations_that_go_rejects_are_rejected() {
        for text in [
            "",
            "-",
            "h",
            "30",
            "30 m",
            "1d",
            ".s",
            "1..5s",
            "300000000h",
            "9999999999999999999999999999999999999999s",
        ] {
            assert_eq!(seconds(text), None, "{text}");
        }
    }

    #[test]
    fn a_timestamp_is_kept_as_written() {
        let written = "2026-11-15T03:11:38.5+02:00";
        let timestamp: Timestamp = serde_json::from_value(written.into()).unwrap();
        assert_eq!(serde_json::to_value(&timestamp).unwrap(), written);
        assert_eq!(timestamp.instant().unwrap().as_second(), 1_794_705_098);
        assert_eq!(
            Timestamp::from(timestamp.instant().unwrap()).as_str(),
            "2026-11-15T01:11:38Z"
        );
        assert_eq!(Timestamp::from("soon").instant(), None);
    }
}
