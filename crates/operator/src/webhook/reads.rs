//! Reads of the webhook. They go to the API server, since a cache may not have what was made a moment ago; reviews that wait at the
//! same time share them, so that a burst of requests does not become many times as many reads.

use std::{
    any::{Any, TypeId},
    collections::HashMap,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};
use kube::{Api, Client, Resource, api::ListParams, core::NamespaceResourceScope};
use runtime::Object;
use tokio::sync::Semaphore;

/// Reads at the same time.
const READS_AT_ONCE: usize = 8;

type Result<T> = std::result::Result<T, Arc<kube::Error>>;
type Anything = Arc<dyn Any + Send + Sync>;
/// The kind, the namespace, and the name of one object.
type Key = (TypeId, String, Option<String>);
type Read = Shared<BoxFuture<'static, Result<Anything>>>;

/// A clone shares the reads.
#[derive(Clone)]
pub(crate) struct Reads {
    pub(super) client: Client,
    shared: Arc<SharedReads>,
}

struct SharedReads {
    /// Those that have not begun, so that they show everything that was made before a review asked.
    waiting: Mutex<HashMap<Key, Read>>,
    turns: Semaphore,
}

impl Reads {
    pub(crate) fn new(client: Client) -> Self {
        let shared = SharedReads {
            waiting: Mutex::default(),
            turns: Semaphore::new(READS_AT_ONCE),
        };
        Self {
            client,
            shared: Arc::new(shared),
        }
    }

    pub(super) async fn get<K: Object + Resource<Scope = NamespaceResourceScope>>(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<K>>> {
        let api = Api::<K>::namespaced(self.client.clone(), namespace);
        let key = (TypeId::of::<K>(), namespace.to_owned(), Some(name.to_owned()));
        let name = name.to_owned();
        let read = async move { Ok(api.get_opt(&name).await?.map(Arc::new)) };
        Ok(self.share(key, read).await?.as_ref().clone())
    }

    pub(super) async fn list<K: Object + Resource<Scope = NamespaceResourceScope>>(
        &self,
        namespace: &str,
    ) -> Result<Vec<Arc<K>>> {
        let api = Api::<K>::namespaced(self.client.clone(), namespace);
        let key = (TypeId::of::<K>(), namespace.to_owned(), None);
        let read = async move {
            match api.list(&ListParams::default()).await {
                Ok(found) => Ok(found.items.into_iter().map(Arc::new).collect()),
                // An older release of the chart has no Partitions.
                Err(kube::Error::Api(status)) if status.is_not_found() => Ok(Vec::new()),
                Err(error) => Err(error),
            }
        };
        Ok(self.share(key, read).await?.as_ref().clone())
    }

    /// Joins the read of this key that has not begun yet. All reads of a key have the same type.
    async fn share<T: Send + Sync + 'static>(
        &self,
        key: Key,
        read: impl Future<Output = std::result::Result<T, kube::Error>> + Send + 'static,
    ) -> Result<Arc<T>> {
        let shared = Arc::clone(&self.shared);
        let begun = key.clone();
        let read = async move {
            let _turn = shared.turns.acquire().await;
            shared.waiting().remove(&begun);
            let read: Anything = Arc::new(read.await?);
            Ok(read)
        };
        let read = self
            .shared
            .waiting()
            .entry(key)
            .or_insert_with(|| read.boxed().shared())
            .clone();
        let found = read.await?;
        Arc::downcast(found).map_err(|_| Arc::new(kube::Error::Service("the read is of another type".into())))
    }
}

impl SharedReads {
    fn waiting(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Read>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    use api::Partition;
    use futures::future::join_all;
    use http::Request;
    use kube::client::Body;
    use runtime::fake::{FakeServer, Path};
    use serde_json::json;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn reviews_that_wait_share_a_read_that_begins_after_they_asked() {
        let (server, count) = (FakeServer::new(), Arc::new(AtomicUsize::new(0)));
        let (answering, counting) = (server.clone(), Arc::clone(&count));
        let service = tower::service_fn(move |request: Request<Body>| {
            let (server, count) = (answering.clone(), Arc::clone(&counting));
            async move {
                count.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok::<_, Infallible>(server.answer(request).await)
            }
        });
        let reads = Reads::new(Client::new(service, "default"));
        let ask = || reads.list::<Partition>("slurm");
        let early = join_all((0..100).map(|_| ask()));
        let late = async {
            tokio::time::sleep(Duration::from_millis(1500)).await;
            let path = Path::parse("/apis/slinky.slurm.net/v1alpha1/namespaces/slurm/partitions");
            let object = json!({"apiVersion": "slinky.slurm.net/v1alpha1", "kind": "Partition",
                "metadata": {"name": "long"}, "spec": {"controllerRef": {"name": "slurm"}}});
            server.edit(|store| store.create(&path, object, "test")).unwrap();
            ask().await
        };
        let (early, late) = futures::join!(early, late);
        assert!(early.iter().all(Result::is_ok));
        assert_eq!(late.unwrap().len(), 1);
        assert_eq!(count.load(Ordering::Relaxed), READS_AT_ONCE + 2);
        assert!(reads.shared.waiting().is_empty());
    }
}
