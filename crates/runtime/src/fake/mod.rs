//! For tests: an API server in this process. It knows resource versions, watches, server-side apply with field
//! ownership, merge, strategic merge and JSON patches, preconditions and faults; it knows no schema, no defaults and no admission.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "tests say what they expect by panicking"
)]

mod apply;
mod lifecycle;
mod store;
mod strategic;
#[cfg(test)]
mod tests;

use std::{
    convert::Infallible,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::stream;
use http::{Method, Request, Response};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::sync::Notify;

pub use store::{Refusal, Store};

/// The response to a request.
pub type Answer = Response<axum::body::Body>;

/// The server. A clone is the same one.
#[derive(Debug, Clone, Default)]
pub struct FakeServer(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    store: Mutex<Store>,
    /// Wakes watches, in the order in which they began to wait.
    happened: Arc<Notify>,
    requests: Mutex<Vec<Seen>>,
    faults: Mutex<Vec<Fault>>,
    /// Watches that began before this many cuts end.
    cuts: AtomicU64,
}

/// A request as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub verb: &'static str,
    pub path: String,
}

/// What goes wrong with the next request whose verb it is.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    /// Refused with this code.
    Refuse(&'static str, u16),
    /// Done, but the answer is lost.
    LoseAnswer(&'static str),
    /// Never answered, and not done.
    Hang(&'static str),
}

impl FakeServer {
    pub fn new() -> Self {
        Self::default()
    }

    /// A client of this server.
    pub fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        });
        Client::new(service, "default")
    }

    /// Changes objects behind everybody's back; watches see it.
    pub fn edit<T>(&self, edit: impl FnOnce(&mut Store) -> T) -> T {
        let mut store = self.store();
        let before = store.version();
        let result = edit(&mut store);
        let changed = store.version() != before;
        drop(store);
        if changed {
            self.0.happened.notify_waiters();
        }
        result
    }

    /// The requests since the last call that were not reads.
    pub fn writes(&self) -> Vec<Seen> {
        let all = std::mem::take(&mut *self.0.requests.lock().unwrap_or_else(PoisonError::into_inner));
        all.into_iter()
            .filter(|seen| !matches!(seen.verb, "get" | "list" | "watch"))
            .collect()
    }

    pub fn fail(&self, fault: Fault) {
        self.0.faults.lock().unwrap_or_else(PoisonError::into_inner).push(fault);
    }

    /// Ends all watches, and forgets what happened so far, so that they must list again.
    pub fn cut_watches(&self) {
        self.store().compact();
        self.0.cuts.fetch_add(1, Ordering::Relaxed);
        self.0.happened.notify_waiters();
    }

    pub fn store(&self) -> MutexGuard<'_, Store> {
        self.0.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers one request, as the service of a client does.
    pub async fn answer(&self, request: Request<Body>) -> Answer {
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await.unwrap_or_default();
        let query = parts.uri.query().unwrap_or_default().to_owned();
        let kind = parts
            .headers
            .get("content-type")
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
            .to_owned();
        let mut path = Path::parse(parts.uri.path());
        let verb = verb(&parts.method, &path, &query, &kind);
        self.0
            .requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Seen {
                verb,
                path: parts.uri.path().to_owned(),
            });
        // The one field selector it knows.
        if let Some(selector) = parameter(&query, "fieldSelector")
            && let Some(name) = selector.strip_prefix("metadata.name%3D")
        {
            name.clone_into(&mut path.name);
        }
        let fault = self.take_fault(verb);
        match fault {
            Some(Fault::Hang(_)) => std::future::pending::<()>().await,
            Some(Fault::Refuse(_, code)) => return refuse(&Refusal::new(code, "Fault", "as the test wants it")),
            Some(Fault::LoseAnswer(_)) | None => {}
        }
        if verb == "watch" {
            return self.watch(&path, &query);
        }
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let manager = parameter(&query, "fieldManager").unwrap_or_else(|| "unknown".to_owned());
        let result = self.edit(|store| match verb {
            "get" => store.get(&path),
            "list" => Ok(store.list(&path)),
            "create" => store.create(&path, body, &manager),
            "replace" => store.replace(&path, body, &manager),
            "apply" => store.apply(&path, &body, &manager),
            "merge" => store.merge(&path, &body, &manager),
            "strategic" => store.strategic_merge(&path, &body, &manager),
            "patch" => store.json_patch(&path, body, &manager),
            _ => store.delete(&path, &body),
        });
        if matches!(fault, Some(Fault::LoseAnswer(_))) {
            std::future::pending::<()>().await;
        }
        match result {
            Ok(object) => respond(200, &object),
            Err(refusal) => refuse(&refusal),
        }
    }

    fn take_fault(&self, verb: &str) -> Option<Fault> {
        let mut faults = self.0.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let at = faults.iter().position(|fault| {
            let (Fault::Refuse(of, _) | Fault::LoseAnswer(of) | Fault::Hang(of)) = fault;
            *of == verb
        })?;
        Some(faults.remove(at))
    }

    fn watch(&self, path: &Path, query: &str) -> Answer {
        let since: u64 = parameter(query, "resourceVersion")
            .and_then(|text| text.parse().ok())
            .unwrap_or_default();
        let cuts = self.0.cuts.load(Ordering::Relaxed);
        let state = (self.clone(), path.clone(), Some(since));
        let lines = stream::unfold(state, move |(server, path, since)| async move {
            let mut since = since?;
            loop {
                let mut changed = pin!(Arc::clone(&server.0.happened).notified_owned());
                // From here on nothing is missed.
                changed.as_mut().enable();
                if server.0.cuts.load(Ordering::Relaxed) != cuts {
                    return None;
                }
                let found = server.store().events_after(&path, since);
                match found {
                    Err(error) => {
                        let line = format!("{}\n", json!({"type": "ERROR", "object": error}));
                        return Some((Ok::<_, Infallible>(line), (server, path, None)));
                    }
                    Ok((lines, last)) if !lines.is_empty() => {
                        return Some((Ok(lines), (server, path, Some(last))));
                    }
                    Ok((_, last)) => since = last,
                }
                changed.await;
            }
        });
        Response::new(axum::body::Body::from_stream(lines))
    }
}

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    /// Group and version, as in `apps/v1`.
    pub api_version: String,
    pub plural: String,
    pub namespace: String,
    pub name: String,
    pub status: bool,
}

impl Path {
    pub fn parse(path: &str) -> Self {
        let mut words = path.trim_matches('/').split('/');
        let api_version = match words.next() {
            Some("api") => words.next().unwrap_or_default().to_owned(),
            _ => format!(
                "{}/{}",
                words.next().unwrap_or_default(),
                words.next().unwrap_or_default()
            ),
        };
        let mut words = words.peekable();
        let mut namespace = String::new();
        if words.peek() == Some(&"namespaces") {
            words.next();
            words.next().unwrap_or_default().clone_into(&mut namespace);
        }
        Self {
            api_version,
            plural: words.next().unwrap_or_default().to_owned(),
            namespace,
            name: words.next().unwrap_or_default().to_owned(),
            status: words.next() == Some("status"),
        }
    }
}

fn verb(method: &Method, path: &Path, query: &str, content_type: &str) -> &'static str {
    match *method {
        Method::GET if parameter(query, "watch").is_some_and(|watch| watch != "false") => "watch",
        Method::GET if path.name.is_empty() => "list",
        Method::GET => "get",
        Method::POST => "create",
        Method::PUT => "replace",
        Method::DELETE => "delete",
        _ if content_type.contains("apply-patch") => "apply",
        _ if content_type.contains("json-patch") => "patch",
        _ if content_type.contains("strategic-merge-patch") => "strategic",
        _ => "merge",
    }
}

fn parameter(query: &str, name: &str) -> Option<String> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let value = pairs.into_iter().find(|(key, _)| *key == name)?.1;
    Some(value.replace("%2F", "/"))
}

fn respond(code: u16, body: &Value) -> Answer {
    let mut response = Response::new(axum::body::Body::from(body.to_string()));
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or_default();
    response
}

fn refuse(refusal: &Refusal) -> Answer {
    respond(refusal.code, &refusal.status())
}

/// Time for everything that is ready to run to run, on a paused clock.
pub async fn a_moment() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}
