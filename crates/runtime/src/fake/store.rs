//! The fake server's objects and their history.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{Path, apply, lifecycle, strategic};

/// Why a request is refused.
#[derive(Debug, Clone)]
pub struct Refusal {
    pub code: u16,
    reason: &'static str,
    message: String,
}

impl Refusal {
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
        }
    }

    pub fn status(&self) -> Value {
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": self.code, "reason": self.reason, "message": self.message})
    }
}

type Id = (String, String, String);

/// The objects of the server.
#[derive(Debug, Clone, Default)]
pub struct Store {
    version: u64,
    uids: u64,
    /// What happened before is forgotten.
    compacted: u64,
    objects: BTreeMap<Id, Arc<Value>>,
    /// Version, type, plural, object.
    history: Vec<(u64, &'static str, String, Arc<Value>)>,
    /// Pointers to fields the schema does not have.
    unknown: Vec<String>,
    /// The server's clock. With it, objects have generations, ages, finalizers and grace periods.
    now: Option<Timestamp>,
}

impl Store {
    pub fn get(&self, path: &Path) -> Result<Value, Refusal> {
        self.find(path).map(Arc::unwrap_or_clone)
    }

    /// Like [`Self::get`], without a copy.
    pub fn find(&self, path: &Path) -> Result<Arc<Value>, Refusal> {
        let found = self.objects.get(&id(path)).cloned();
        found.ok_or_else(|| Refusal::new(404, "NotFound", format!("{} \"{}\" not found", path.plural, path.name)))
    }

    pub fn list(&self, path: &Path) -> Value {
        let items: Vec<&Value> = self
            .objects
            .iter()
            .filter(|((plural, namespace, name), _)| inside(path, plural, namespace, name))
            .map(|(_, object)| &**object)
            .collect();
        json!({"kind": "List", "apiVersion": path.api_version, "metadata": {"resourceVersion": self.version.to_string()}, "items": items})
    }

    /// Lines of a watch, and the version they end at.
    pub fn events_after(&self, path: &Path, since: u64) -> Result<(String, u64), Value> {
        if since < self.compacted {
            return Err(Refusal::new(410, "Expired", "too old").status());
        }
        let begin = self.history.partition_point(|(version, ..)| *version <= since);
        let new = self.history.iter().skip(begin).filter(|(_, _, plural, object)| {
            *plural == path.plural && {
                let (namespace, name) = (text(object, "/metadata/namespace"), text(object, "/metadata/name"));
                inside(path, plural, &namespace, &name)
            }
        });
        let mut lines = String::new();
        for (_, what, _, object) in new {
            lines.push_str(&json!({"type": what, "object": **object}).to_string());
            lines.push('\n');
        }
        Ok((lines, self.version.max(since)))
    }

    /// From now on the schema does not have this field.
    pub fn drop_field(&mut self, pointer: &str) {
        self.unknown.push(pointer.to_owned());
    }

    /// Sets the server's clock. From now on objects live and end as on a real server.
    pub fn set_now(&mut self, now: Timestamp) {
        self.now = Some(now);
    }

    /// The version of the last change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// All objects of a kind, in all namespaces.
    pub fn all(&self, plural: &str) -> impl Iterator<Item = &Arc<Value>> {
        let begin = (plural.to_owned(), String::new(), String::new());
        let of_kind = self.objects.range(begin..);
        of_kind
            .take_while(move |((found, ..), _)| found == plural)
            .map(|(_, object)| object)
    }

    /// The plurals of all kinds that have objects.
    pub fn plurals(&self) -> BTreeSet<String> {
        self.objects.keys().map(|(plural, ..)| plural.clone()).collect()
    }

    /// The objects of a backup replace those of this store. Nothing that was watched goes on.
    pub fn restore(&mut self, backup: &Self) {
        let (version, uids) = (self.version, self.uids);
        *self = Self {
            version,
            uids,
            ..backup.clone()
        };
        self.compact();
    }

    pub fn compact(&mut self) {
        self.compacted = self.version + 1;
        self.version += 1;
        self.history.clear();
    }

    pub fn create(&mut self, path: &Path, mut object: Value, manager: &str) -> Result<Value, Refusal> {
        let mut path = path.clone();
        path.name = text(&object, "/metadata/name");
        if self.objects.contains_key(&id(&path)) {
            return Err(Refusal::new(
                409,
                "AlreadyExists",
                format!("{} already exists", path.name),
            ));
        }
        self.drop_unknown(&mut object);
        self.uids += 1;
        let uid = format!("uid-{}", self.uids);
        let meta = meta(&mut object);
        meta.insert("uid".to_owned(), uid.into());
        meta.insert("namespace".to_owned(), path.namespace.clone().into());
        if path.namespace.is_empty() {
            meta.remove("namespace");
        }
        if let Some(now) = self.now {
            lifecycle::begin(&path, &mut object, now);
        }
        apply::updated_by(&mut object, &Value::Null, manager);
        Ok(self.put(&path, "ADDED", object))
    }

    pub fn replace(&mut self, path: &Path, mut object: Value, manager: &str) -> Result<Value, Refusal> {
        let before = self.get(path)?;
        let version = text(&object, "/metadata/resourceVersion");
        if !version.is_empty() && version != text(&before, "/metadata/resourceVersion") {
            return Err(Refusal::new(409, "Conflict", "the object has been modified"));
        }
        keep_identity(&before, &mut object);
        Ok(self.update(path, &before, object, manager))
    }

    pub fn merge(&mut self, path: &Path, change: &Value, manager: &str) -> Result<Value, Refusal> {
        self.merge_with(path, change, manager, json_patch::merge)
    }

    pub fn strategic_merge(&mut self, path: &Path, change: &Value, manager: &str) -> Result<Value, Refusal> {
        self.merge_with(path, change, manager, strategic::merge)
    }

    fn merge_with(
        &mut self,
        path: &Path,
        change: &Value,
        manager: &str,
        merge: impl FnOnce(&mut Value, &Value),
    ) -> Result<Value, Refusal> {
        let before = self.get(path)?;
        let differs = |field: &str| {
            let wanted = text(change, &format!("/metadata/{field}"));
            !wanted.is_empty() && wanted != text(&before, &format!("/metadata/{field}"))
        };
        if differs("uid") {
            let message = "is invalid: metadata.uid: Invalid value: field is immutable";
            return Err(Refusal::new(422, "Invalid", message));
        }
        if differs("resourceVersion") {
            return Err(Refusal::new(409, "Conflict", "the object has been modified"));
        }
        let mut object = before.clone();
        merge(&mut object, change);
        only_status_or_rest(path, &before, &mut object);
        Ok(self.update(path, &before, object, manager))
    }

    pub fn json_patch(&mut self, path: &Path, change: Value, manager: &str) -> Result<Value, Refusal> {
        let before = self.get(path)?;
        let mut object = before.clone();
        let invalid = |error: String| Refusal::new(422, "Invalid", error);
        let change: json_patch::Patch = serde_json::from_value(change).map_err(|error| invalid(error.to_string()))?;
        json_patch::patch(&mut object, &change).map_err(|error| invalid(error.to_string()))?;
        Ok(self.update(path, &before, object, manager))
    }

    pub fn apply(&mut self, path: &Path, applied: &Value, manager: &str) -> Result<Value, Refusal> {
        let mut known = applied.clone();
        self.drop_unknown(&mut known);
        let uid = text(applied, "/metadata/uid");
        // Not a field that a manager can own.
        meta(&mut known).remove("uid");
        let applied = &known;
        let Ok(before) = self.get(path) else {
            if !uid.is_empty() {
                return Err(Refusal::new(
                    409,
                    "Conflict",
                    "uid mismatch: no existing object was found",
                ));
            }
            let mut object = self.create(path, applied.clone(), "")?;
            apply::own(&mut object, applied, manager);
            let stored = Arc::new(object.clone());
            if let Some((_, _, _, last)) = self.history.last_mut() {
                *last = Arc::clone(&stored);
            }
            self.objects.insert(id(path), stored);
            return Ok(object);
        };
        if !uid.is_empty() && uid != text(&before, "/metadata/uid") {
            let message = "is invalid: metadata.uid: Invalid value: field is immutable";
            return Err(Refusal::new(422, "Invalid", message));
        }
        let mut object = apply::applied_to(&before, applied, manager);
        apply::own(&mut object, applied, manager);
        if object == before {
            return Ok(before);
        }
        Ok(self.put(path, "MODIFIED", object))
    }

    pub fn delete(&mut self, path: &Path, options: &Value) -> Result<Value, Refusal> {
        let object = self.get(path)?;
        let uid = text(options, "/preconditions/uid");
        if !uid.is_empty() && uid != text(&object, "/metadata/uid") {
            return Err(Refusal::new(
                409,
                "Conflict",
                "the UID in the precondition does not match",
            ));
        }
        let version = text(options, "/preconditions/resourceVersion");
        if !version.is_empty() && version != text(&object, "/metadata/resourceVersion") {
            let message = "the ResourceVersion in the precondition does not match";
            return Err(Refusal::new(409, "Conflict", message));
        }
        let ending = self.now.and_then(|now| lifecycle::ending(path, &object, options, now));
        if let Some(ending) = ending {
            return Ok(if ending == object {
                object
            } else {
                self.put(path, "MODIFIED", ending)
            });
        }
        self.objects.remove(&id(path));
        Ok(Value::clone(&self.record(path, "DELETED", object)))
    }

    fn drop_unknown(&self, object: &mut Value) {
        for pointer in &self.unknown {
            let (parent, field) = pointer.rsplit_once('/').unwrap_or_default();
            if let Some(fields) = object.pointer_mut(parent).and_then(Value::as_object_mut) {
                fields.remove(field);
            }
        }
    }

    fn update(&mut self, path: &Path, before: &Value, mut object: Value, manager: &str) -> Value {
        if object == *before {
            return object;
        }
        apply::updated_by(&mut object, before, manager);
        self.put(path, "MODIFIED", object)
    }

    fn put(&mut self, path: &Path, what: &'static str, mut object: Value) -> Value {
        if self.now.is_some()
            && let Some(before) = self.objects.get(&id(path))
        {
            lifecycle::change(before, &mut object);
            if lifecycle::is_over(path, &object) {
                self.objects.remove(&id(path));
                return Value::clone(&self.record(path, "DELETED", object));
            }
        }
        let object = self.record(path, what, object);
        let answer = Value::clone(&object);
        self.objects.insert(id(path), object);
        answer
    }

    fn record(&mut self, path: &Path, what: &'static str, mut object: Value) -> Arc<Value> {
        self.version += 1;
        meta(&mut object).insert("resourceVersion".to_owned(), self.version.to_string().into());
        let object = Arc::new(object);
        let recorded = (self.version, what, path.plural.clone(), Arc::clone(&object));
        self.history.push(recorded);
        object
    }
}

fn id(path: &Path) -> Id {
    (path.plural.clone(), path.namespace.clone(), path.name.clone())
}

fn inside(path: &Path, plural: &str, namespace: &str, name: &str) -> bool {
    let matches = |wanted: &str, found: &str| wanted.is_empty() || wanted == found;
    path.plural == plural && matches(&path.namespace, namespace) && matches(&path.name, name)
}

fn text(value: &Value, pointer: &str) -> String {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

fn meta(object: &mut Value) -> &mut Map<String, Value> {
    if !object.get("metadata").is_some_and(Value::is_object) {
        object["metadata"] = json!({});
    }
    object["metadata"].as_object_mut().expect("was made an object")
}

fn keep_identity(before: &Value, object: &mut Value) {
    for field in [
        "uid",
        "managedFields",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        if let Some(value) = before.pointer(&format!("/metadata/{field}")).cloned() {
            meta(object).insert(field.to_owned(), value);
        }
    }
    let version = before.pointer("/metadata/resourceVersion").cloned();
    meta(object).insert("resourceVersion".to_owned(), version.unwrap_or_default());
}

/// A write to the status changes nothing else, and the other way round.
fn only_status_or_rest(path: &Path, before: &Value, object: &mut Value) {
    if path.status {
        let status = object.get("status").cloned();
        *object = before.clone();
        if let Some(status) = status {
            object["status"] = status;
        }
    } else if let Some(status) = before.get("status") {
        object["status"] = status.clone();
    }
}
