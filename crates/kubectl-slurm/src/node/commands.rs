//! The commands about nodes. A drain is an annotation of the pod, so that it survives slurmctld and the operator keeps it.

use api::keys::{self, annotations, apps, labels};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _, api::ListParams};
use serde_json::{Value, json};
use slurm::Hostlist;

use super::view::{NodeView, node_table, view_node, view_nodes};
use crate::access::Access;
use crate::cli::{Common, NodeCommand, Wait};
use crate::failure::{Failure, Outcome};
use crate::output::print;
use crate::wait::{Progress, report};
use crate::watch::print_watched;

const UNKNOWN: &str = "Slurm does not know it, or does not respond";

pub(crate) async fn run(access: &Access, common: &Common, command: NodeCommand) -> Outcome {
    match command {
        NodeCommand::List(watch) => {
            let all = common.all_namespaces;
            print_watched(
                common,
                &watch,
                async || Ok(view_nodes(&list_pods(access, common).await?)),
                |views| views,
                |views| node_table(views, all),
            )
            .await
        }
        NodeCommand::Drain { names, reason, wait } => {
            // All nodes are drained before the first wait.
            let pods = find(access, common, &names).await?;
            for pod in &pods {
                change(access, pod, &drained(reason.as_deref())).await?;
            }
            for pod in &pods {
                let how = wait_drained(access, pod, &wait).await?;
                print(&format!("node {} drained{how}\n", view_node(pod).name))?;
            }
            Ok(())
        }
        NodeCommand::Resume { names, wait } => {
            let pods = find(access, common, &names).await?;
            let views: Vec<NodeView> = pods.iter().map(view_node).collect();
            if let Some(view) = views.iter().find(|view| view.leaving.is_some()) {
                return Err(Failure::refused(format!(
                    "node {} is leaving ({}) and cannot be resumed; scale its NodeSet out to keep it",
                    view.name,
                    view.leaving.as_deref().unwrap_or_default()
                )));
            }
            for pod in &pods {
                change(access, pod, &resumed()).await?;
            }
            for pod in &pods {
                let how = wait_resumed(access, pod, &wait).await?;
                print(&format!("node {} resumed{how}\n", view_node(pod).name))?;
            }
            Ok(())
        }
    }
}

/// Returns the workers of the selected clusters.
pub(crate) async fn list_pods(access: &Access, common: &Common) -> Outcome<Vec<Pod>> {
    let mut selector = format!("{}={}", labels::NAME, apps::SLURMD);
    if let Some(cluster) = &common.cluster {
        selector = format!("{selector},{}={cluster}", labels::CLUSTER);
    }
    let pods = access.list(&ListParams::default().labels(&selector)).await?;
    Ok(pods.unwrap_or_default())
}

/// Returns all named workers, or an error: a command is not carried out in part.
async fn find(access: &Access, common: &Common, names: &[String]) -> Outcome<Vec<Pod>> {
    let pods = list_pods(access, common).await?;
    let wanted = Hostlist::parse(&names.join(","))
        .map_err(|error| Failure::usage(format!("{error}; write names as in compute-[0-3]")))?;
    let mut found = Vec::new();
    for name in wanted.names() {
        let is_it = |pod: &&Pod| pod.name_any() == name || view_node(pod).name == name;
        let mut matching = pods.iter().filter(is_it);
        match (matching.next(), matching.next()) {
            (Some(pod), None) => found.push(pod.clone()),
            (Some(_), Some(_)) => {
                return Err(Failure::usage(format!(
                    "several workers are named {name:?}; select a cluster by -n and --cluster"
                )));
            }
            (None, _) => {
                return Err(Failure::not_found(format!(
                    "no worker is named {name:?}; `kubectl slurm node list` shows all. Drain a node without a pod in Slurm: `scontrol update NodeName={name} State=DRAIN Reason=…`"
                )));
            }
        }
    }
    Ok(found)
}

fn drained(reason: Option<&str>) -> Value {
    json!({ "metadata": { "annotations": {
        annotations::POD_CORDON: keys::ON,
        annotations::POD_CORDON_REASON: reason,
    } } })
}

fn resumed() -> Value {
    json!({ "metadata": { "annotations": {
        annotations::POD_CORDON: null,
        annotations::POD_CORDON_OLD: null,
        annotations::POD_CORDON_REASON: null,
    } } })
}

async fn change(access: &Access, pod: &Pod, patch: &Value) -> Outcome {
    let api = pods(access, pod);
    Access::change(&api, &pod.name_any(), |_: &Pod| Ok(Some(patch.clone())))
        .await
        .map(drop)
}

fn pods(access: &Access, pod: &Pod) -> Api<Pod> {
    access.api(&pod.namespace().unwrap_or_default())
}

async fn observe(access: &Access, pod: &Pod) -> Outcome<NodeView> {
    Ok(view_node(&pods(access, pod).get(&pod.name_any()).await?))
}

async fn wait_drained(access: &Access, pod: &Pod, wait: &Wait) -> Outcome<String> {
    let name = view_node(pod).name;
    report(wait, &format!("node {name} is not drained"), async |_| {
        let now = observe(access, pod).await?;
        Ok(match &now.state {
            Some(_) if now.is_drained() => Progress::Done(String::new()),
            Some(state) => Progress::Waits(format!("its state in Slurm is {state}")),
            None => Progress::Waits(UNKNOWN.to_owned()),
        })
    })
    .await
}

async fn wait_resumed(access: &Access, pod: &Pod, wait: &Wait) -> Outcome<String> {
    let name = view_node(pod).name;
    let mut resumed = false;
    report(wait, &format!("node {name} is not resumed"), async |_| {
        let now = observe(access, pod).await?;
        let Some(state) = &now.state else {
            return Ok(Progress::Waits(UNKNOWN.to_owned()));
        };
        if !now.is_drained() {
            let how = if resumed {
                "it had been drained manually in Slurm"
            } else {
                ""
            };
            return Ok(Progress::Done(how.to_owned()));
        }
        if now.is_drained_by_operator() {
            if let Some(node) = cordoned_node(access, &now).await {
                return Err(Failure::refused(format!(
                    "node {name} stays drained, since Kubernetes node {node} is cordoned; `kubectl uncordon {node}`"
                )));
            }
        } else if !resumed {
            // The operator does not lift a manual drain.
            resume_in_slurm(access, &now).await?;
            resumed = true;
        }
        Ok(Progress::Waits(format!(
            "its state in Slurm is {state}: {}",
            now.reason
        )))
    })
    .await
}

/// Returns `None` also for users who may not read Kubernetes nodes.
async fn cordoned_node(access: &Access, node: &NodeView) -> Option<String> {
    let name = node.kubernetes_node.clone()?;
    let found = access.nodes().get(&name).await.ok()?;
    (found.spec?.unschedulable == Some(true)).then_some(name)
}

async fn resume_in_slurm(access: &Access, node: &NodeView) -> Outcome {
    let clusters = access.clusters().await?;
    let cluster = clusters
        .iter()
        .find(|cluster| cluster.name() == node.cluster && cluster.namespace() == node.namespace)
        .ok_or_else(|| Failure::not_found(format!("there is no Controller {:?}", node.cluster)))?;
    let name = format!("NodeName={}", node.name);
    let resumed = access
        .slurm(cluster, &["scontrol", "update", &name, "State=RESUME"])
        .await;
    resumed.map(drop).map_err(|why| {
        Failure::refused(format!(
            "node {} was drained manually in Slurm ({}), and resuming it there failed: {why}",
            node.name, node.reason
        ))
    })
}
