//! Slurm's numbers that can be unset or infinite: `{"set": true, "infinite": false, "number": 5}`.

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::ser::{Serialize, SerializeStruct, Serializer};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Number {
    #[default]
    Unset,
    Infinite,
    Finite(u64),
}

impl Number {
    pub const fn finite(self) -> Option<u64> {
        match self {
            Self::Finite(number) => Some(number),
            Self::Unset | Self::Infinite => None,
        }
    }
}

/// As in slurm.conf.
impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unset => f.write_str("NONE"),
            Self::Infinite => f.write_str("UNLIMITED"),
            Self::Finite(number) => write!(f, "{number}"),
        }
    }
}

#[derive(serde::Deserialize)]
struct Wrapped {
    #[serde(default)]
    set: bool,
    #[serde(default)]
    infinite: bool,
    #[serde(default)]
    number: Option<u64>,
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberVisitor)
    }
}

struct NumberVisitor;

impl<'de> Visitor<'de> for NumberVisitor {
    type Value = Number;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a number of Slurm, with or without its wrapper")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Number, A::Error> {
        let Wrapped { set, infinite, number } = Wrapped::deserialize(MapAccessDeserializer::new(map))?;
        match (infinite, set, number) {
            (true, _, _) => Ok(Number::Infinite),
            (false, false, _) => Ok(Number::Unset),
            (false, true, Some(number)) => Ok(Number::Finite(number)),
            (false, true, None) => Err(A::Error::missing_field("number")),
        }
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Number, E> {
        Ok(Number::Finite(number))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Number, E> {
        u64::try_from(number).map(Number::Finite).map_err(E::custom)
    }

    fn visit_unit<E: Error>(self) -> Result<Number, E> {
        Ok(Number::Unset)
    }
}

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut wrapped = serializer.serialize_struct("Number", 3)?;
        wrapped.serialize_field("set", &matches!(self, Self::Finite(_)))?;
        wrapped.serialize_field("infinite", &matches!(self, Self::Infinite))?;
        wrapped.serialize_field("number", &self.finite().unwrap_or_default())?;
        wrapped.end()
    }
}

#[cfg(test)]
mod tests {
    use super::Number;

    fn read(json: &str) -> Result<Number, serde_json::Error> {
        serde_json::from_str(json)
    }

    #[test]
    fn the_flags_decide_and_not_the_number() {
        assert_eq!(
            read(r#"{"set":true,"infinite":false,"number":5}"#).unwrap(),
            Number::Finite(5)
        );
        assert_eq!(
            read(r#"{"set":false,"infinite":false,"number":5}"#).unwrap(),
            Number::Unset
        );
        assert_eq!(
            read(r#"{"set":true,"infinite":true,"number":0}"#).unwrap(),
            Number::Infinite
        );
        assert_eq!(read(r#"{"set":false,"infinite":true}"#).unwrap(), Number::Infinite);
        assert_eq!(read("{}").unwrap(), Number::Unset);
        assert_eq!(read("null").unwrap(), Number::Unset);
        assert_eq!(read("7").unwrap(), Number::Finite(7));
    }

    #[test]
    fn other_values_are_rejected() {
        for json in [
            r#"{"set":true}"#,
            r#"{"set":true,"number":-1}"#,
            r#"{"set":"yes","number":1}"#,
            "-1",
            "\"5\"",
            "[]",
        ] {
            assert!(read(json).is_err(), "{json}");
        }
    }

    #[test]
    fn a_written_number_is_read_back() {
        for number in [
            Number::Unset,
            Number::Infinite,
            Number::Finite(0),
            Number::Finite(u64::MAX),
        ] {
            assert_eq!(read(&serde_json::to_string(&number).unwrap()).unwrap(), number);
        }
    }
}
