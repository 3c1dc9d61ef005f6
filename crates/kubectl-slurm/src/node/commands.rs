//! The commands about nodes. A drain is an annotation of the pod, so that it survives slurmctld and the operator keeps it.

use api::keys::{self, annotations, apps, labels};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _, api::ListParams};
use serde_json::{Value, json};
use slurm::Hostlist;

use super::show::{NodeReport, SlurmReport, about_node, describe};
use super::view::{NodeView, node_table, view_node, view_nodes};
use crate::access::{Access, SlurmError, Undo};
use crate::cli::{Common, Format, NodeCommand, Wait};
use crate::cluster::Cluster;
use crate::failure::{Failure, Outcome};
use crate::output::{notify, print, print_one};
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
                async || list(access, common).await,
                |views| views,
                |views| node_table(views, all),
            )
            .await
        }
        NodeCommand::Show { name } => show(access, common, &name).await,
        NodeCommand::Drain { names, reason, wait } => {
            let pods = find(access, common, &names).await?;
            // All nodes are drained before the first wait.
            change_all(access, &pods, &drained(reason.as_deref())).await?;
            for pod in &pods {
                let how = wait_drained(access, pod, &wait).await?;
                print(&format!("node {} drained{how}\n", view_node(pod).name))?;
            }
            Ok(())
        }
        NodeCommand::Resume { names, wait } => {
            let pods = find(access, common, &names).await?;
            for pod in &pods {
                check_resumable(access, &view_node(pod)).await?;
            }
            let undos = change_all(access, &pods, &resumed()).await?;
            for (pod, undo) in pods.iter().zip(undos) {
                match wait_resumed(access, pod, &wait).await {
                    Ok(how) => print(&format!("node {} resumed{how}\n", view_node(pod).name))?,
                    Err(Failure::Rejected(why)) => {
                        revert(access, pod, undo.as_ref()).await?;
                        return Err(Failure::refused(why));
                    }
                    Err(failure) => return Err(failure),
                }
            }
            Ok(())
        }
    }
}

/// Returns all nodes: the workers with what slurmctld reports, and its nodes that are not pods.
async fn list(access: &Access, common: &Common) -> Outcome<Vec<NodeView>> {
    let mut views = view_nodes(&list_pods(access, common).await?);
    for cluster in access.clusters().await? {
        let nodes = live_nodes(access, &cluster).await;
        views = with_live(views, &cluster, &nodes);
    }
    if common.output == Format::Name {
        views.retain(|view| !view.pod.is_empty());
    }
    Ok(views)
}

/// Returns the nodes of slurmctld; without them, the operator's last report on the pods is shown.
async fn live_nodes(access: &Access, cluster: &Cluster) -> Vec<slurm::Node> {
    match access.live_nodes(cluster).await {
        Ok(nodes) => nodes,
        Err(SlurmError::External) => Vec::new(),
        Err(why) => {
            let name = cluster.name();
            notify(&format!(
                "slurmctld of {name} is not asked, so its nodes are shown as the operator last saw them: {why}"
            ));
            Vec::new()
        }
    }
}

fn with_live(views: Vec<NodeView>, cluster: &Cluster, nodes: &[slurm::Node]) -> Vec<NodeView> {
    let (namespace, name) = (cluster.namespace(), cluster.name());
    let is_own = |view: &NodeView| view.namespace == namespace && view.cluster == name;
    let is_pod = |node: &slurm::Node| views.iter().any(|view| is_own(view) && view.name == node.name);
    let others: Vec<NodeView> = nodes
        .iter()
        .filter(|node| !is_pod(node))
        .map(|node| NodeView::without_pod(&namespace, &name, node))
        .collect();
    let views = views.into_iter().map(|view| {
        let node = nodes.iter().find(|node| is_own(&view) && node.name == view.name);
        node.map_or_else(|| view.clone(), |node| view.clone().with_live(node))
    });
    let mut all: Vec<NodeView> = views.chain(others).collect();
    all.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    all
}

/// Shows all that is known about a node, by its name in Slurm or that of its pod.
async fn show(access: &Access, common: &Common, name: &str) -> Outcome {
    let pods = list_pods(access, common).await?;
    let mut is_found = false;
    for cluster in access.clusters().await? {
        let nodes = live_nodes(access, &cluster).await;
        let views = with_live(view_nodes(&pods), &cluster, &nodes);
        let is_own = |view: &NodeView| view.namespace == cluster.namespace() && view.cluster == cluster.name();
        let is_it = |view: &&NodeView| is_own(view) && (view.name == name || view.pod == name);
        for view in views.iter().filter(is_it) {
            let node = nodes.iter().find(|node| node.name == view.name);
            let pod = pods
                .iter()
                .find(|pod| pod.name_any() == view.pod && pod.namespace().as_deref() == Some(&view.namespace));
            print_one(
                common.output,
                &report_on(access, &cluster, view, node, pod).await,
                describe,
            )?;
            is_found = true;
        }
    }
    if is_found {
        return Ok(());
    }
    Err(Failure::not_found(format!(
        "no node is named {name:?}; `kubectl slurm node list` shows all"
    )))
}

async fn report_on(
    access: &Access,
    cluster: &Cluster,
    view: &NodeView,
    node: Option<&slurm::Node>,
    pod: Option<&Pod>,
) -> NodeReport {
    let mut slurm = None;
    if let Some(node) = node {
        match access.live_node(cluster, &node.name).await {
            Ok((details, jobs)) => slurm = Some(SlurmReport::new(node, details, jobs)),
            Err(why) => notify(&format!("the jobs of {} are not shown: {why}", node.name)),
        }
    }
    let reason = pod.and_then(|pod| pod.annotations().get(annotations::POD_CORDON_REASON));
    let set = cluster.node_set(&view.node_set);
    NodeReport {
        slurm,
        kubernetes_node_cordoned: is_cordoned(access, view).await,
        cordon_reason: reason.cloned(),
        operator: set.map(|set| about_node(set, view)).unwrap_or_default(),
        view: view.clone(),
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

/// Changes all pods, or none.
async fn change_all(access: &Access, pods: &[Pod], patch: &Value) -> Outcome<Vec<Option<Undo>>> {
    let mut undos = Vec::new();
    for pod in pods {
        let api = self::pods(access, pod);
        let changed = Access::change(&api, &pod.name_any(), |_: &Pod| Ok(Some(patch.clone()))).await;
        match changed {
            Ok(changed) => undos.push(changed.undo),
            Err(failure) => {
                for (pod, undo) in pods.iter().zip(&undos) {
                    revert(access, pod, undo.as_ref()).await?;
                }
                return Err(failure);
            }
        }
    }
    Ok(undos)
}

async fn revert(access: &Access, pod: &Pod, undo: Option<&Undo>) -> Outcome {
    if let Some(undo) = undo {
        Access::revert(&pods(access, pod), &pod.name_any(), undo).await?;
    }
    Ok(())
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
        // The operator does not lift a manual drain.
        if !now.is_drained_by_operator() && !resumed {
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

/// Refuses to resume a node that would stay drained.
async fn check_resumable(access: &Access, view: &NodeView) -> Outcome {
    let name = &view.name;
    if let Some(leaving) = &view.leaving {
        return Err(Failure::refused(format!(
            "node {name} is leaving ({leaving}) and cannot be resumed; scale its NodeSet out to keep it"
        )));
    }
    if is_cordoned(access, view).await == Some(true) {
        let node = view.kubernetes_node.as_deref().unwrap_or_default();
        return Err(Failure::refused(format!(
            "node {name} stays drained, since Kubernetes node {node} is cordoned; `kubectl uncordon {node}`"
        )));
    }
    Ok(())
}

/// Whether its Kubernetes node is cordoned. `None` also for users who may not read Kubernetes nodes.
async fn is_cordoned(access: &Access, view: &NodeView) -> Option<bool> {
    let found = access.nodes().get(view.kubernetes_node.as_deref()?).await.ok()?;
    Some(found.spec?.unschedulable == Some(true))
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
        Failure::Rejected(format!(
            "node {} was drained manually in Slurm ({}), and resuming it there failed: {why}",
            node.name, node.reason
        ))
    })
}
