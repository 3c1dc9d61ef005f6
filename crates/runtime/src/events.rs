//! Events on objects, for people who run `kubectl describe`.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, Resource, api::PostParams};
use tokio::{
    sync::mpsc::{Receiver, Sender, channel, error::TrySendError},
    time::Instant,
};

use crate::{Clock, Metrics, error::describe, hash, lock};

/// The reporting controller of the events.
const REPORTER: &str = "slinky.slurm.net/slurm-operator";
/// A persistent cause is reported again this often; the API server keeps an event for an hour.
const REPEAT: Duration = Duration::from_mins(10);
/// More waiting events than this are dropped, to bound the memory.
const WAITING: usize = 1000;
/// The API server's limit for a note.
const LONGEST_NOTE: usize = 1024;
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Writes events in the background. The same event is not repeated within minutes.
#[derive(Debug, Clone)]
pub struct Events {
    queue: Sender<Event>,
    /// When each event was last sent, by hash.
    sent: Arc<Mutex<HashMap<u64, Instant>>>,
    clock: Clock,
    instance: String,
    metrics: Metrics,
}

impl Events {
    /// The recorder, and the events that [`write_to`] has to write.
    pub fn new(clock: Clock, instance: String, metrics: Metrics) -> (Self, Receiver<Event>) {
        let (queue, waiting) = channel(WAITING);
        let events = Self {
            queue,
            sent: Arc::default(),
            clock,
            instance,
            metrics,
        };
        (events, waiting)
    }

    #[cfg(test)]
    pub(crate) fn recorded() -> (Self, Receiver<Event>) {
        Self::new(Clock::system(), "test".to_owned(), Metrics::default())
    }

    /// Reports something that needs attention.
    pub fn warn(&self, object: &impl Resource<DynamicType = ()>, reason: &'static str, message: impl Into<String>) {
        self.send("Warning", object, "", reason, &message.into());
    }

    /// Reports something that was done.
    pub fn normal(&self, object: &impl Resource<DynamicType = ()>, reason: &'static str, message: impl Into<String>) {
        self.send("Normal", object, "", reason, &message.into());
    }

    /// Reports something that was done to the objects with these UIDs. The same message about other UIDs is a new event.
    pub fn normal_about<'a>(
        &self,
        object: &impl Resource<DynamicType = ()>,
        about: impl IntoIterator<Item = &'a str>,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        let about: Vec<&str> = about.into_iter().collect();
        self.send("Normal", object, &about.join(" "), reason, &message.into());
    }

    fn send(
        &self,
        type_: &str,
        object: &impl Resource<DynamicType = ()>,
        about: &str,
        reason: &'static str,
        message: &str,
    ) {
        let regarding = object.object_ref(&());
        if !self.is_new(hash(&(format!("{regarding:?}"), about, reason, message))) {
            return;
        }
        let now = self.clock.now();
        // Two events of one object in one nanosecond get different names.
        let random = self.clock.host().random().u64() & 0xffff;
        let object = regarding.name.clone().unwrap_or_default();
        let mut event = build_event(type_, regarding, reason, message, now, &self.instance);
        event.metadata.name = Some(format!("{object}.{:x}{random:04x}", now.as_nanosecond()));
        // A closed channel is the end of the process, or a test.
        if let Err(TrySendError::Full(_)) = self.queue.try_send(event) {
            self.metrics.dropped_events.inc();
        }
    }

    fn is_new(&self, event: u64) -> bool {
        let now = self.clock.host().instant();
        let is_recent = |at: &Instant| now.duration_since(*at) < REPEAT;
        let mut sent = lock(&self.sent);
        if sent.len() >= WAITING {
            sent.retain(|_, at| is_recent(at));
        }
        let new = !sent.get(&event).is_some_and(is_recent);
        if new {
            sent.insert(event, now);
        }
        new
    }
}

fn build_event(
    type_: &str,
    regarding: ObjectReference,
    reason: &str,
    message: &str,
    now: jiff::Timestamp,
    instance: &str,
) -> Event {
    // Events of cluster-scoped objects belong into the default namespace, where kubectl searches them.
    let namespace = regarding.namespace.clone().unwrap_or_else(|| "default".to_owned());
    Event {
        metadata: ObjectMeta {
            namespace: Some(namespace),
            ..ObjectMeta::default()
        },
        type_: Some(type_.to_owned()),
        reason: Some(reason.to_owned()),
        note: Some(shortened(message)),
        action: Some("Reconcile".to_owned()),
        event_time: Some(MicroTime(now)),
        regarding: Some(regarding),
        reporting_controller: Some(REPORTER.to_owned()),
        reporting_instance: Some(instance.to_owned()),
        ..Event::default()
    }
}

/// Cuts a note to the API server's limit, which is in bytes.
fn shortened(note: &str) -> String {
    const MORE: &str = "…";
    if note.len() <= LONGEST_NOTE {
        return note.to_owned();
    }
    let end = note.floor_char_boundary(LONGEST_NOTE - MORE.len());
    format!("{}{MORE}", note.get(..end).unwrap_or_default())
}

/// Writes events until all recorders are dropped. An event that cannot be written is lost.
pub(crate) async fn write_to(client: Client, mut waiting: Receiver<Event>, metrics: Metrics) {
    while let Some(event) = waiting.recv().await {
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
        let parameters = PostParams::default();
        let create = api.create(&parameters, &event);
        let error = match tokio::time::timeout(WRITE_TIMEOUT, create).await {
            Ok(Ok(_)) => {
                metrics.wrote("create", "Event", "ok");
                continue;
            }
            // The namespace is being deleted, and its events with it.
            Ok(Err(kube::Error::Api(status))) if status.is_forbidden() || status.is_not_found() => None,
            Ok(Err(error)) => Some(describe(&error)),
            Err(_) => Some("no response".to_owned()),
        };
        metrics.dropped_events.inc();
        if let Some(error) = error {
            tracing::warn!(error, namespace, "cannot write an event");
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use serde_json::json;

    use super::*;

    fn controller(name: &str) -> api::Controller {
        serde_json::from_value(json!({
            "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller",
            "metadata": {"namespace": "slurm", "name": name, "uid": "u", "resourceVersion": "5"}, "spec": {},
        }))
        .unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_event_is_not_repeated_within_minutes() {
        let (events, mut written) = Events::recorded();
        for _ in 0..3 {
            events.warn(&controller("a"), "KeyMissing", "Secret \"k\" does not exist");
        }
        events.warn(&controller("a"), "KeyMissing", "Secret \"l\" does not exist");
        events.warn(&controller("b"), "KeyMissing", "Secret \"k\" does not exist");
        let mut notes = Vec::new();
        while let Ok(event) = written.try_recv() {
            notes.push((event.regarding.unwrap().name.unwrap(), event.note.unwrap()));
        }
        assert_eq!(notes.len(), 3, "{notes:?}");

        tokio::time::advance(REPEAT).await;
        events.warn(&controller("a"), "KeyMissing", "Secret \"k\" does not exist");
        assert!(written.try_recv().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_message_about_another_object_is_a_new_event() {
        let (events, mut written) = Events::recorded();
        for uid in ["one", "one", "two"] {
            events.normal_about(&controller("a"), [uid], "SuccessfulDelete", "Removed pod a-0");
        }
        let count = std::iter::from_fn(|| written.try_recv().ok()).count();
        assert_eq!(count, 2);
    }

    #[test]
    fn an_event_says_who_what_why_and_when() {
        let event = build_event(
            "Warning",
            controller("a").object_ref(&()),
            "KeyMissing",
            "Secret \"k\" does not exist",
            "2026-01-01T00:00:00Z".parse().unwrap(),
            "operator-0",
        );
        insta::assert_yaml_snapshot!(event, @r#"
        apiVersion: events.k8s.io/v1
        kind: Event
        action: Reconcile
        eventTime: "2026-01-01T00:00:00.000000Z"
        metadata:
          namespace: slurm
        note: "Secret \"k\" does not exist"
        reason: KeyMissing
        regarding:
          apiVersion: slinky.slurm.net/v1beta1
          kind: Controller
          name: a
          namespace: slurm
          uid: u
        reportingController: slinky.slurm.net/slurm-operator
        reportingInstance: operator-0
        type: Warning
        "#);
    }

    #[test]
    fn an_event_of_a_node_goes_where_kubectl_looks_for_it() {
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "n"}})).unwrap();
        let event = build_event(
            "Normal",
            node.object_ref(&()),
            "A",
            "b",
            jiff::Timestamp::UNIX_EPOCH,
            "i",
        );
        assert_eq!(event.metadata.namespace.as_deref(), Some("default"));
    }

    #[test]
    fn a_long_note_is_cut_where_a_letter_ends() {
        let note = shortened(&"ä".repeat(2000));
        assert!(note.len() <= LONGEST_NOTE);
        assert!(note.ends_with("ä…"));
        assert_eq!(shortened("short"), "short");
    }
}
