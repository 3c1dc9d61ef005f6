//! A partial core/v1 object of the user's, merged over the object that the operator builds.

use std::{borrow::Cow, fmt, marker::PhantomData};

use k8s_openapi::api::core::v1::{Container, PersistentVolumeClaim, PodSpec, ServiceSpec};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

/// Fields merged over a container.
pub type ContainerOverlay = Overlay<Container>;
/// Fields merged over a pod's spec.
pub type PodSpecOverlay = Overlay<PodSpec>;
/// Fields merged over a Service's spec.
pub type ServiceSpecOverlay = Overlay<ServiceSpec>;
/// A PersistentVolumeClaim that each pod gets one of.
pub type ClaimTemplate = Overlay<PersistentVolumeClaim>;

/// A field of a pod's spec as upstream's guides misspell it, and its name in Kubernetes.
pub const DNS_POLICY: (&str, &str) = ("dNSPolicy", "dnsPolicy");

/// Some fields of a `T`, kept as they were written.
///
/// It holds JSON and not a `T`, because the typed structs know the fields of one Kubernetes release and would drop those
/// of a newer one. The schema is open for the same reason; [`crate::validate`] compares the content with `T`.
pub struct Overlay<T> {
    fields: Map<String, Value>,
    of: PhantomData<fn() -> T>,
}

impl<T> Overlay<T> {
    /// The fields, as they were written.
    pub fn fields(&self) -> &Map<String, Value> {
        &self.fields
    }

    /// The field of this name, unless it is absent or null.
    pub fn get(&self, field: &str) -> Option<&Value> {
        self.fields.get(field).filter(|value| !value.is_null())
    }

    /// The string in the field of this name, unless it is empty, absent or not a string.
    pub fn text(&self, field: &str) -> Option<&str> {
        self.get(field).and_then(Value::as_str).filter(|text| !text.is_empty())
    }

    /// Whether the field of this name is `true`.
    pub fn is_set(&self, field: &str) -> bool {
        self.get(field).and_then(Value::as_bool).unwrap_or(false)
    }
}

impl<T> From<Map<String, Value>> for Overlay<T> {
    fn from(fields: Map<String, Value>) -> Self {
        Self {
            fields,
            of: PhantomData,
        }
    }
}

// Implemented by hand, because the derives would require the same of `T`, although no `T` is stored.

impl<T> Clone for Overlay<T> {
    fn clone(&self) -> Self {
        self.fields.clone().into()
    }
}

impl<T> Default for Overlay<T> {
    fn default() -> Self {
        Map::new().into()
    }
}

impl<T> PartialEq for Overlay<T> {
    fn eq(&self, other: &Self) -> bool {
        self.fields == other.fields
    }
}

impl<T> fmt::Debug for Overlay<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fields.fmt(f)
    }
}

impl<T> Serialize for Overlay<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.fields.serialize(serializer)
    }
}

impl<'de, T> Deserialize<'de> for Overlay<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Map::deserialize(deserializer).map(Self::from)
    }
}

impl<T> JsonSchema for Overlay<T> {
    fn schema_name() -> Cow<'static, str> {
        "Overlay".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
    }
}
