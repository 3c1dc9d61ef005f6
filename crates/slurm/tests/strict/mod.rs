//! A deserializer that notes the fields a type asks for and the document does not have.

use std::cell::RefCell;

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{DeserializeOwned, Deserializer, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Error, Value};

/// A value of another type than the one asked for fails the test with the place it was found at.
pub(crate) fn missing_fields<T: DeserializeOwned>(value: &Value, path: &str) -> Vec<String> {
    let missing = RefCell::new(Vec::new());
    let strict = Strict {
        value,
        path: path.to_owned(),
        missing: &missing,
    };
    if let Err(error) = T::deserialize(strict) {
        panic!("{path}: {error}");
    }
    missing.into_inner()
}

#[derive(Clone)]
struct Strict<'a> {
    value: &'a Value,
    path: String,
    missing: &'a RefCell<Vec<String>>,
}

impl<'a> Strict<'a> {
    fn child(&self, value: &'a Value, step: &str) -> Self {
        Self {
            value,
            path: format!("{}{step}", self.path),
            missing: self.missing,
        }
    }
}

impl<'de> Deserializer<'de> for Strict<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Number(number) => match (number.as_u64(), number.as_f64()) {
                (Some(number), _) => visitor.visit_u64(number),
                (None, number) => visitor.visit_f64(number.unwrap_or_default()),
            },
            Value::String(text) => visitor.visit_str(text),
            Value::Array(items) => {
                let items = items
                    .iter()
                    .enumerate()
                    .map(|(at, item)| self.child(item, &format!("[{at}]")));
                visitor.visit_seq(SeqDeserializer::new(items))
            }
            Value::Object(fields) => {
                let fields = fields
                    .iter()
                    .map(|(name, value)| (name.as_str(), self.child(value, &format!(".{name}"))));
                visitor.visit_map(MapDeserializer::new(fields))
            }
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let absent = fields.iter().filter(|field| self.value.get(field).is_none());
        self.missing
            .borrow_mut()
            .extend(absent.map(|field| format!("{}.{field}", self.path)));
        self.deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.value.is_null() {
            visitor.visit_none()
        } else {
            visitor.visit_some(self)
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

impl IntoDeserializer<'_, Error> for Strict<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}
