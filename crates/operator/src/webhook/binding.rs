//! `pods/binding`: a worker gets its place in the topology, an annotation of its node, before its containers start.

use api::keys::{annotations, apps, labels};
use k8s_openapi::api::core::v1::{Binding, Node, Pod};
use kube::{
    Api, Client, ResourceExt as _,
    api::{Patch, PatchParams},
};
use runtime::admission::{Request, Verdict};
use serde_json::json;

/// Copies the annotation to the pod. The binding itself is not changed, and accepted whatever happens: the operator
/// writes the annotation, too, a moment later.
pub(super) async fn copy_topology(client: &Client, request: &Request) -> Verdict {
    if request.dry_run == Some(true) {
        return Verdict::default();
    }
    match copy(client, request).await {
        Ok(()) => Verdict::default(),
        Err(error) => Verdict::warn(format!("the pod did not get its place in the topology: {error:#}")),
    }
}

async fn copy(client: &Client, request: &Request) -> anyhow::Result<()> {
    let binding: Binding = serde_json::from_value(request.object.clone())?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &request.namespace);
    let nodes: Api<Node> = Api::all(client.clone());
    let name = binding.name_any();
    let Some(pod) = pods.get_opt(&name).await? else {
        anyhow::bail!("pod {name} does not exist");
    };
    if pod.labels().get(labels::NAME).map(String::as_str) != Some(apps::SLURMD) {
        return Ok(());
    }
    let Some(node) = nodes.get_opt(&binding.target.name.unwrap_or_default()).await? else {
        return Ok(());
    };
    let place = node
        .annotations()
        .get(annotations::TOPOLOGY)
        .cloned()
        .unwrap_or_default();
    let patch = json!({"metadata": {"annotations": {annotations::TOPOLOGY: place}}});
    match pods.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        written => Ok(written.map(drop)?),
    }
}
