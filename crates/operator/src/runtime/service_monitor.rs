//! The Prometheus operator's ServiceMonitor. Its definition is somebody else's, and need not be there.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, core::NamespaceResourceScope};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What its Prometheus is to collect, and from where.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServiceMonitor {
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: Value,
}

impl ServiceMonitor {
    pub(super) const GROUP: &'static str = "monitoring.coreos.com";
}

impl Resource for ServiceMonitor {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "ServiceMonitor".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        Self::GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "servicemonitors".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
