//! The kinds the operator watches: one cache, one change and one set of rules for the watch per kind.

use std::fmt::Debug;

use api::{Accounting, Controller, LoginSet, NodeSet, Partition, RestApi, Token};
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, Deployment, StatefulSet},
    core::v1::{ConfigMap, Namespace, Node, PersistentVolumeClaim, Pod, Secret, Service},
    policy::v1::PodDisruptionBudget,
};
use kube::Resource;
use serde::{Serialize, de::DeserializeOwned};

use super::{Cache, Delta, Key, ServiceMonitor, trim::Trim, watch::Reach};

/// A kind with a cache.
pub trait Cached:
    Trim + Resource<DynamicType = (), Scope: Reach> + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// Its cache among all.
    fn cache(caches: &Caches) -> &Cache<Self>;

    /// A change of it, among all.
    fn change(delta: Delta<Self>) -> Change;
}

/// Something to be done for every kind.
pub(super) trait KindVisitor {
    fn visit<K: Cached>(&mut self);
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $field:ident: $variant:ident($type:ty),)+) => {
        /// All caches. A clone shares them.
        #[derive(Debug, Clone, Default)]
        pub struct Caches {
            $($(#[$doc])* pub $field: Cache<$type>,)+
        }

        /// A change of one object of any kind.
        #[derive(Debug, Clone)]
        pub enum Change {
            $($variant(Delta<$type>),)+
        }

        $(impl Cached for $type {
            fn cache(caches: &Caches) -> &Cache<Self> {
                &caches.$field
            }

            fn change(delta: Delta<Self>) -> Change {
                Change::$variant(delta)
            }
        })+

        impl Change {
            /// Which object changed.
            pub fn key(&self) -> Option<Key> {
                match self {
                    $(Self::$variant(delta) => delta.key(),)+
                }
            }

            /// The objects of kind `Owner` that the changed object has an owner reference to, or had before.
            pub fn owners<Owner: Resource<DynamicType = ()>>(&self) -> Vec<Key> {
                match self {
                    $(Self::$variant(delta) => delta.owners::<Owner>(),)+
                }
            }
        }

        /// Calls a visitor once per kind.
        pub(super) fn each_kind(visitor: &mut impl KindVisitor) {
            $(visitor.visit::<$type>();)+
        }

        impl Caches {
            /// For tests: caches that hold these objects, each a manifest with apiVersion and kind.
            #[allow(clippy::panic, reason = "a test's manifest that cannot be used must not pass unnoticed")]
            pub fn of(objects: Vec<serde_json::Value>) -> Self {
                let caches = Self::default();
                for object in objects {
                    let text = |field: &str| object.get(field).and_then(|value| value.as_str()).unwrap_or_default().to_owned();
                    match (text("apiVersion").as_str(), text("kind").as_str()) {
                        $((api_version, kind)
                            if api_version == <$type as Resource>::api_version(&())
                                && kind == <$type as Resource>::kind(&()) =>
                        {
                            match serde_json::from_value::<$type>(object) {
                                Ok(object) => caches.$field.insert(object),
                                Err(error) => panic!("{api_version} {kind}: {error}"),
                            }
                        })+
                        (api_version, kind) => panic!("there is no cache for {api_version} {kind}"),
                    }
                }
                caches
            }

            /// Every cached object as if it had just appeared.
            pub(super) fn appearances(&self) -> impl Iterator<Item = Change> {
                std::iter::empty()
                    $(.chain(self.$field.all().into_iter().map(|object| Change::$variant(Delta::appeared(object)))))+
            }
        }
    };
}

kinds! {
    controllers: Controller(Controller),
    node_sets: NodeSet(NodeSet),
    login_sets: LoginSet(LoginSet),
    rest_apis: RestApi(RestApi),
    accountings: Accounting(Accounting),
    tokens: Token(Token),
    partitions: Partition(Partition),
    /// Only pods of Slurm's daemons, and of their specs only what names places: see `trim.rs`.
    pods: Pod(Pod),
    /// Only ours.
    services: Service(Service),
    config_maps: ConfigMap(ConfigMap),
    /// Without Helm's releases and the service accounts' tokens.
    secrets: Secret(Secret),
    /// Only ours.
    stateful_sets: StatefulSet(StatefulSet),
    /// Only ours.
    deployments: Deployment(Deployment),
    /// Only those of NodeSets.
    revisions: Revision(ControllerRevision),
    claims: Claim(PersistentVolumeClaim),
    /// Only ours.
    budgets: Budget(PodDisruptionBudget),
    nodes: Node(Node),
    /// Only whether they are being deleted.
    namespaces: Namespace(Namespace),
    /// Only ours, and none while the cluster does not know the kind.
    service_monitors: ServiceMonitor(ServiceMonitor),
}

impl Caches {
    /// Whether this namespace is being deleted, and everything in it.
    pub fn is_ending(&self, namespace: &str) -> bool {
        let found = self.namespaces.get("", namespace);
        found.is_some_and(|namespace| namespace.metadata.deletion_timestamp.is_some())
    }
}
