//! Events on objects, for people who run `kubectl describe`.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, PoisonError},
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

use super::{Clock, Metrics, error::words_of};

/// Who writes them.
const REPORTER: &str = "slinky.slurm.net/slurm-operator";
/// A cause that persists is repeated this often; an event lives an hour in the API server.
const REPEAT: Duration = Duration::from_mins(10);
/// Above this, events are worth less than the memory.
const WAITING: usize = 1000;
/// The API server's limit for a note.
const LONGEST_NOTE: usize = 1024;
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Writes events in the background. The same event is not repeated within minutes.
#[derive(Debug, Clone)]
pub struct Events(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    queue: Sender<Event>,
    /// When what was said last.
    said: Mutex<HashMap<u64, Instant>>,
    clock: Clock,
    instance: String,
    metrics: Metrics,
}

impl Events {
    /// Events, and what is to be written by [`write_to`].
    pub(crate) fn new(clock: Clock, instance: String, metrics: Metrics) -> (Self, Receiver<Event>) {
        let (queue, waiting) = channel(WAITING);
        let inner = Inner {
            queue,
            said: Mutex::default(),
            clock,
            instance,
            metrics,
        };
        (Self(Arc::new(inner)), waiting)
    }

    /// For tests of a kind alone: what is said can be read from the other end.
    pub fn recorded() -> (Self, Receiver<Event>) {
        Self::new(Clock::system(), "test".to_owned(), Metrics::new())
    }

    /// For tests of a kind alone: what is said is forgotten.
    pub fn nowhere() -> Self {
        Self::recorded().0
    }

    /// Something needs attention.
    pub fn warn(&self, object: &impl Resource<DynamicType = ()>, reason: &'static str, message: impl Into<String>) {
        self.say("Warning", object, "", reason, &message.into());
    }

    /// Something was done.
    pub fn normal(&self, object: &impl Resource<DynamicType = ()>, reason: &'static str, message: impl Into<String>) {
        self.say("Normal", object, "", reason, &message.into());
    }

    /// Something was done to others, of which these are the UIDs. The same done to others of the same names is news.
    pub fn normal_about<'a>(
        &self,
        object: &impl Resource<DynamicType = ()>,
        about: impl IntoIterator<Item = &'a str>,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        let about: Vec<&str> = about.into_iter().collect();
        self.say("Normal", object, &about.join(" "), reason, &message.into());
    }

    fn say(
        &self,
        type_: &str,
        object: &impl Resource<DynamicType = ()>,
        about: &str,
        reason: &'static str,
        message: &str,
    ) {
        let regarding = object.object_ref(&());
        if !self.is_news((
            &regarding.kind,
            &regarding.namespace,
            &regarding.name,
            &regarding.uid,
            about,
            reason,
            message,
        )) {
            return;
        }
        let event = build_event(type_, regarding, reason, message, self.0.clock.now(), &self.0.instance);
        // Nobody listening is the end of the process, or a test.
        if let Err(TrySendError::Full(_)) = self.0.queue.try_send(event) {
            self.0.metrics.event_dropped();
        }
    }

    fn is_news(&self, what: impl Hash) -> bool {
        let mut hasher = DefaultHasher::new();
        what.hash(&mut hasher);
        let now = Instant::now();
        let mut said = self.0.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.len() >= WAITING {
            said.retain(|_, at| now.duration_since(*at) < REPEAT);
        }
        let key = hasher.finish();
        let news = said.get(&key).is_none_or(|at| now.duration_since(*at) >= REPEAT);
        if news {
            said.insert(key, now);
        }
        news
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
    // Events of cluster-scoped objects live in the default namespace, where kubectl looks for them.
    let namespace = regarding.namespace.clone().unwrap_or_else(|| "default".to_owned());
    Event {
        metadata: ObjectMeta {
            namespace: Some(namespace),
            name: Some(format!(
                "{}.{:x}{:04x}",
                regarding.name.as_deref().unwrap_or_default(),
                now.as_nanosecond(),
                fastrand::u16(..)
            )),
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

/// The limit is in bytes.
fn shortened(note: &str) -> String {
    const MORE: &str = "…";
    if note.len() <= LONGEST_NOTE {
        return note.to_owned();
    }
    let mut end = LONGEST_NOTE - MORE.len();
    while !note.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{MORE}", note.get(..end).unwrap_or_default())
}

/// Writes what is said until nobody can say anything more. An event that cannot be written is lost.
pub(super) async fn write_to(client: Client, mut waiting: Receiver<Event>, metrics: Metrics) {
    while let Some(event) = waiting.recv().await {
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
        let parameters = PostParams::default();
        let create = api.create(&parameters, &event);
        match tokio::time::timeout(WRITE_TIMEOUT, create).await {
            Ok(Ok(_)) => metrics.wrote("create", "Event", "ok"),
            // The namespace is on its way out, and its events with it.
            Ok(Err(kube::Error::Api(status))) if status.is_forbidden() || status.is_not_found() => {
                metrics.event_dropped();
            }
            Ok(Err(error)) => {
                metrics.event_dropped();
                tracing::warn!(error = words_of(&error), namespace, "Event not written");
            }
            Err(_) => {
                metrics.event_dropped();
                tracing::warn!(namespace, "Event not written: no answer");
            }
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
    async fn the_same_done_to_another_of_the_same_name_is_news() {
        let (events, mut written) = Events::recorded();
        for uid in ["one", "one", "two"] {
            events.normal_about(&controller("a"), [uid], "SuccessfulDelete", "Removed pod a-0");
        }
        let told = std::iter::from_fn(|| written.try_recv().ok()).count();
        assert_eq!(told, 2);
    }

    #[test]
    fn an_event_says_who_what_why_and_when() {
        let mut event = build_event(
            "Warning",
            controller("a").object_ref(&()),
            "KeyMissing",
            "Secret \"k\" does not exist",
            "2026-01-01T00:00:00Z".parse().unwrap(),
            "operator-0",
        );
        event.metadata.name = None;
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
