//! The API server as one process reaches it: with answers that are late, lost or refused, and watches that stall or expire.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use futures::StreamExt as _;
use http::{Request, Response, StatusCode};
use kube::{Client, client::Body};
use runtime::fake::{Answer, FakeServer, Path, Refusal, Store};
use tokio::time::sleep;

use super::{
    crash,
    machine::Life,
    random::Random,
    time::{elapsed, timestamp},
};

/// A request on a good day.
const LATENCY: Duration = Duration::from_millis(2);

/// What is wrong with the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiFault {
    /// Every second request is refused with this code.
    Refuse(u16),
    /// Requests take this long.
    Slow(Duration),
    /// The server's cache stands still: watches stay open and deliver nothing, and lists that may be old are.
    StallWatches,
    /// The same for the objects of one kind: each has a cache of its own.
    StallKind(&'static str),
    /// Watches deliver everything this late.
    DelayWatches(Duration),
    /// Every third write is done and not answered.
    LoseAnswers,
    /// Every third write is done later than anybody waits for it, and not answered.
    Late,
    /// Nothing answers.
    Silent,
}

/// The way to the API server. A clone is the same one.
#[derive(Debug, Clone)]
pub struct Access {
    pub server: FakeServer,
    state: Arc<Mutex<State>>,
    random: Random,
}

#[derive(Debug, Default)]
struct State {
    /// What is wrong for a process, or for all (`*`), with the objects at the time at which it began.
    faults: BTreeMap<u64, (String, ApiFault, Option<Arc<Store>>)>,
    counted: u64,
    /// How often watches of all processes broke with 410 while they delivered.
    expired: u64,
    /// Writes of operators: time, process, verb, path.
    writes: Vec<Write>,
    /// Pods that were deleted because of operators: time, process, name.
    deleted_pods: Vec<(Duration, String, String)>,
}

/// A write that reached the server.
#[derive(Debug, Clone)]
pub struct Write {
    pub at: Duration,
    pub process: String,
    pub method: String,
    pub path: String,
    pub sent: Sent,
}

/// When a request was sent.
#[derive(Debug, Clone)]
pub struct Sent {
    pub at: Duration,
    /// Whom the lease named then.
    pub leader: String,
}

impl Access {
    pub fn new(random: Random) -> Self {
        Self {
            server: FakeServer::new(),
            state: Arc::default(),
            random,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// From now on this is wrong for a process, or for all of them (`*`).
    pub fn set_fault(&self, process: &str, fault: ApiFault) -> u64 {
        let stalls = matches!(fault, ApiFault::StallWatches | ApiFault::StallKind(_));
        let cache = stalls.then(|| Arc::new(self.server.store().clone()));
        let mut state = self.state();
        state.counted += 1;
        let number = state.counted;
        state.faults.insert(number, (process.to_owned(), fault, cache));
        number
    }

    pub fn lift(&self, number: u64) {
        self.state().faults.remove(&number);
    }

    /// The next event of every open watch is 410 instead of what happened.
    pub fn expire_watches(&self) {
        self.state().expired += 1;
    }

    /// Pods that operators have deleted since the last call, each with the time.
    pub fn take_deleted_pods(&self) -> Vec<(Duration, String, String)> {
        std::mem::take(&mut self.state().deleted_pods)
    }

    pub fn writes(&self) -> Vec<Write> {
        self.state().writes.clone()
    }

    /// The writes from a number on.
    pub fn writes_from(&self, number: usize) -> Vec<Write> {
        self.state().writes.get(number..).unwrap_or_default().to_vec()
    }

    /// A pod is deleted because of what an operator wrote: by itself, or by a controller of Kubernetes.
    pub fn note_deleted_pod(&self, process: &str, name: &str) {
        self.state()
            .deleted_pods
            .push((elapsed(), process.to_owned(), name.to_owned()));
    }

    fn faults(&self, process: &str) -> Vec<ApiFault> {
        let state = self.state();
        let of_process = state.faults.values().filter(|(of, ..)| of == "*" || of == process);
        of_process.map(|(_, fault, _)| *fault).collect()
    }

    /// The cache that a process reads, while it stands still.
    fn old_cache(&self, process: &str, plural: &str) -> Option<Arc<Store>> {
        let state = self.state();
        let stalls = |(of, fault, _): &&(String, ApiFault, Option<Arc<Store>>)| {
            let of_kind =
                *fault == ApiFault::StallWatches || matches!(fault, ApiFault::StallKind(kind) if *kind == plural);
            of_kind && (of == "*" || of == process)
        };
        state
            .faults
            .values()
            .find(stalls)
            .and_then(|(_, _, cache)| cache.clone())
    }

    /// A client for one process.
    pub fn client(&self, process: &str, life: &Life) -> Client {
        let (access, process, life) = (self.clone(), process.to_owned(), life.clone());
        let service = tower::service_fn(move |request: Request<Body>| {
            let (access, process, life) = (access.clone(), process.clone(), life.clone());
            async move { Ok::<_, Infallible>(access.send(&process, &life, request).await) }
        });
        Client::new(service, "default")
    }

    async fn send(self, process: &str, life: &Life, request: Request<Body>) -> Answer {
        std::future::poll_fn(|context| life.poll_runnable(context)).await;
        let lasts = watch_time(&request);
        let is_write = request.method() != http::Method::GET;
        let sent = Sent {
            at: elapsed(),
            leader: self
                .holders()
                .first()
                .and_then(serde_json::Value::as_str)
                .unwrap_or_default()
                .to_owned(),
        };
        sleep(LATENCY).await;
        let mut lost = false;
        for fault in self.faults(process) {
            match fault {
                ApiFault::Refuse(code) if self.random.one_in(2) => return refused(code),
                ApiFault::Slow(time) => sleep(time).await,
                ApiFault::Silent => std::future::pending::<()>().await,
                ApiFault::LoseAnswers => lost |= is_write && self.random.one_in(3),
                ApiFault::Late if is_write && self.random.one_in(3) => {
                    let (access, process) = (self.clone(), process.to_owned());
                    let delay = Duration::from_secs(self.random.between(5, 60));
                    tokio::spawn(async move {
                        sleep(delay).await;
                        access.carry_out(&process, request, sent).await
                    });
                    return std::future::pending().await;
                }
                _ => {}
            }
        }
        let target = Path::parse(request.uri().path());
        if lasts.is_none()
            && !is_write
            && may_be_old(request.uri().query())
            && let Some(cache) = self.old_cache(process, &target.plural)
        {
            return old_list(&cache, &target);
        }
        let (path, method) = (request.uri().path().to_owned(), request.method().clone());
        let holders = self.holders();
        let answer = self.carry_out(process, request, sent).await;
        // Renewals of a lease are no effects, its acquisition is.
        let is_acquisition = path.contains("/leases") && self.holders() != holders;
        if is_acquisition || (is_write && !is_no_effect(&path)) {
            let kind = if is_acquisition { "lease" } else { "write" };
            crash::effect(kind, &format!("{method} {path}"), life);
            std::future::poll_fn(|context| life.poll_runnable(context)).await;
        }
        if lost {
            std::future::pending::<()>().await;
        }
        sleep(LATENCY).await;
        match lasts {
            Some(lasts) => self.delayed(process, target.plural, answer, lasts),
            None => answer,
        }
    }

    async fn carry_out(&self, process: &str, request: Request<Body>, sent: Sent) -> Answer {
        if request.method() != http::Method::GET {
            self.note(process, &request, sent);
        }
        let path = request.uri().path().to_owned();
        let is_deletion = self.is_deletion(&request);
        self.server.store().set_now(timestamp());
        let answer = self.server.answer(request).await;
        if is_deletion && answer.status().is_success() {
            let mut words = path.split('/').skip_while(|word| *word != "pods");
            self.note_deleted_pod(process, words.nth(1).unwrap_or_default());
        }
        answer
    }

    /// Whom the leases name.
    fn holders(&self) -> Vec<serde_json::Value> {
        let store = self.server.store();
        let holders = store.all("leases").map(|lease| lease["spec"]["holderIdentity"].clone());
        holders.collect()
    }

    /// Whether a request deletes a pod that is not ending yet.
    fn is_deletion(&self, request: &Request<Body>) -> bool {
        let path = request.uri().path();
        let is_eviction = request.method() == http::Method::POST && path.ends_with("/eviction");
        let is_deletion = request.method() == http::Method::DELETE && path.contains("/pods/");
        let pod = self
            .server
            .store()
            .get(&Path::parse(path.trim_end_matches("/eviction")));
        (is_eviction || is_deletion) && pod.is_ok_and(|pod| !pod["metadata"]["deletionTimestamp"].is_string())
    }

    fn note(&self, process: &str, request: &Request<Body>, sent: Sent) {
        let path = request.uri().path().to_owned();
        let method = request.method().to_string();
        if is_no_effect(&path) {
            return;
        }
        let (at, process) = (elapsed(), process.to_owned());
        self.state().writes.push(Write {
            at,
            process,
            method,
            path,
            sent,
        });
    }

    /// The lines of a watch as they arrive, until the server ends it.
    fn delayed(&self, process: &str, plural: String, answer: Answer, lasts: Duration) -> Answer {
        let (parts, body) = answer.into_parts();
        let expired = self.state().expired;
        let watch = Watch {
            access: self.clone(),
            process: process.to_owned(),
            plural,
            expired,
        };
        let ending = watch.clone();
        let end = async move {
            sleep(lasts).await;
            while ending.access.old_cache(&ending.process, &ending.plural).is_some() {
                sleep(Duration::from_millis(500)).await;
            }
        };
        let lines = futures::stream::unfold(Some((watch, body.into_data_stream())), async |open| {
            let (watch, mut lines) = open?;
            let line = lines.next().await?;
            watch.arrive().await;
            if watch.access.state().expired != watch.expired {
                let gone = Refusal::new(410, "Expired", "too old resource version").status();
                let line = format!("{}\n", serde_json::json!({ "type": "ERROR", "object": gone }));
                return Some((Ok(line.into()), None));
            }
            Some((line, Some((watch, lines))))
        });
        let lines = lines.take_until(Box::pin(end));
        Response::from_parts(parts, axum::body::Body::from_stream(lines))
    }
}

/// Leases and events are no effects.
fn is_no_effect(path: &str) -> bool {
    path.contains("/leases") || path.contains("/events")
}

/// How long the server keeps a watch open; `None` if this is none.
fn watch_time(request: &Request<Body>) -> Option<Duration> {
    let query = request.uri().query().filter(|query| query.contains("watch=true"))?;
    let seconds = query.split('&').find_map(|pair| pair.strip_prefix("timeoutSeconds="));
    Some(Duration::from_secs(
        seconds.and_then(|text| text.parse().ok()).unwrap_or(1800),
    ))
}

/// An open watch of one process.
#[derive(Clone)]
struct Watch {
    access: Access,
    process: String,
    plural: String,
    /// The server's count when it began.
    expired: u64,
}

impl Watch {
    async fn arrive(&self) {
        sleep(LATENCY).await;
        while self.access.old_cache(&self.process, &self.plural).is_some() {
            sleep(Duration::from_millis(500)).await;
        }
        for fault in self.access.faults(&self.process) {
            if let ApiFault::DelayWatches(delay) = fault {
                sleep(delay).await;
            }
        }
    }
}

/// Any state that the server's cache has is good enough for the sender.
fn may_be_old(query: Option<&str>) -> bool {
    query.is_some_and(|query| query.split('&').any(|pair| pair == "resourceVersion=0"))
}

fn old_list(cache: &Store, path: &Path) -> Answer {
    let (code, body) = match path.name.as_str() {
        "" => (200, cache.list(path)),
        _ => match cache.get(path) {
            Ok(object) => (200, object),
            Err(refusal) => (refusal.code, refusal.status()),
        },
    };
    let mut response = Response::new(axum::body::Body::from(body.to_string()));
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    response
}

fn refused(code: u16) -> Answer {
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": "TooManyRequests", "message": "busy",
    });
    let mut response = Response::new(axum::body::Body::from(status.to_string()));
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    response
}
