//! A number, or a string with a number or a percentage.

use std::{borrow::Cow, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A number or a string, kept as it was written.
///
/// It is not the type of k8s-openapi, which has 32 bits; the schema of such a field has no such limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum IntOrString {
    /// Written as a number.
    Int(i64),
    /// Written as a string, often a percentage.
    String(String),
}

impl IntOrString {
    /// The number, or the percentage of `total`, rounded up. `None` for any other string.
    pub fn out_of(&self, total: u32) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            Self::String(text) => {
                let percent: i64 = text.strip_suffix('%')?.parse().ok()?;
                let hundredths = percent.checked_mul(i64::from(total))?;
                Some(hundredths.div_euclid(100) + i64::from(hundredths.rem_euclid(100) > 0))
            }
        }
    }
}

impl fmt::Display for IntOrString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(number) => number.fmt(f),
            Self::String(text) => text.fmt(f),
        }
    }
}

impl JsonSchema for IntOrString {
    fn schema_name() -> Cow<'static, str> {
        "IntOrString".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "x-kubernetes-int-or-string": true })
    }
}

#[cfg(test)]
mod tests {
    use super::IntOrString::{Int, String};

    #[test]
    fn a_percentage_is_rounded_up() {
        for (percent, total, expected) in [
            ("25%", 8, 2),
            ("25%", 9, 3),
            ("25%", 1, 1),
            ("0%", 9, 0),
            ("100%", 7, 7),
        ] {
            assert_eq!(
                String(percent.into()).out_of(total),
                Some(expected),
                "{percent} of {total}"
            );
        }
        assert_eq!(Int(4).out_of(2), Some(4));
    }

    #[test]
    fn other_strings_have_no_number() {
        for text in ["", "%", "three", "25", "1.5%", "9223372036854775807%"] {
            assert_eq!(String(text.into()).out_of(1000), None, "{text}");
        }
    }
}
