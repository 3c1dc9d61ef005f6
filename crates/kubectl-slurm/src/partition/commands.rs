//! The commands about partitions.

mod delete;
mod lines;
mod objects;
mod undo;

use api::keys::{apps, labels};
use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt as _, api::ListParams};
use slurm::conf::{Key, SettingChange};

use super::edit::parse_settings;
use super::members::{MemberChange, Workers, parse_change};
use super::place::{Kind, Place, places};
use super::show::{describe, partition_table};
use super::view::{PartitionView, view_partitions};
use crate::access::Access;
use crate::cli::{Common, PartitionCommand, Wait, Watch};
use crate::cluster::Cluster;
use crate::failure::{Failure, Outcome};
use crate::node::view_nodes;
use crate::output::{notify, print_one};
use crate::watch::print_watched;

pub(crate) async fn run(access: &Access, common: &Common, command: PartitionCommand) -> Outcome {
    match command {
        PartitionCommand::List(watch) => list(access, common, &watch).await,
        PartitionCommand::Show { name } => show(access, common, &name).await,
        PartitionCommand::Create {
            name,
            nodes,
            exclude,
            settings,
            wait,
        } => {
            let cluster = access.one_cluster().await?;
            if let Some((_, place)) = places(&cluster).into_iter().find(|(known, _)| *known == name) {
                return Err(Failure::refused(format!(
                    "partition {name:?} exists already, in {}; change it by `kubectl slurm partition set`",
                    place.field(&cluster)
                )));
            }
            let settings = parse_settings(&settings)?;
            let workers = workers(access, &cluster).await?;
            let members = parse_members(&cluster, &workers, &nodes)?;
            let exclude = parse_excluded(&workers, &exclude)?;
            objects::create(access, &cluster, &name, &members, &exclude, &settings, &wait).await
        }
        PartitionCommand::Set {
            name,
            changes,
            nodes,
            wait,
        } => {
            let settings = parse_settings(&changes)?;
            if settings.is_empty() && nodes.is_empty() {
                return Err(Failure::usage("nothing to set; give KEY=VALUE, KEY- or --nodes"));
            }
            let target = find(access, &name).await?;
            let members = if nodes.is_empty() {
                Vec::new()
            } else {
                parse_members(&target.cluster, &workers(access, &target.cluster).await?, &nodes)?
            };
            let note = Note::None;
            let wanted = Change {
                settings,
                members,
                note,
            };
            change(access, &target, &wanted, &wait).await
        }
        PartitionCommand::Drain { name, reason, wait } => {
            let target = find(access, &name).await?;
            change(access, &target, &Change::state("DRAIN", Note::Drained(reason)), &wait).await
        }
        PartitionCommand::Resume { name, wait } => {
            let target = find(access, &name).await?;
            change(access, &target, &Change::state("UP", Note::Resumed), &wait).await
        }
        PartitionCommand::Delete { name, wait } => {
            let target = find(access, &name).await?;
            delete::run(access, &target, &wait).await
        }
    }
}

/// A change of a partition of any kind.
struct Change {
    settings: Vec<SettingChange>,
    members: Vec<MemberChange>,
    note: Note,
}

/// The annotations of a change.
enum Note {
    None,
    Drained(Option<String>),
    Resumed,
}

impl Change {
    fn state(state: &str, note: Note) -> Self {
        Self {
            settings: vec![SettingChange::Set {
                key: Key::new("State"),
                value: state.to_owned(),
            }],
            members: Vec::new(),
            note,
        }
    }
}

/// One partition, and the cluster it is in.
struct Target {
    cluster: Cluster,
    name: String,
    kind: Kind,
    /// The name of the object that defines it.
    object: String,
    /// The name of the field in `heldInputs` of the Controller's status.
    source: String,
}

/// Returns the partition of this name in the selected clusters.
async fn find(access: &Access, name: &str) -> Outcome<Target> {
    let clusters = access.clusters().await?;
    let mut found = Vec::new();
    for cluster in &clusters {
        for (known, place) in places(cluster)
            .into_iter()
            .filter(|(known, place)| is_named(known, place, name))
        {
            let field = format!(
                "{} (cluster {} in {})",
                place.field(cluster),
                cluster.name(),
                cluster.namespace()
            );
            let target = Target {
                cluster: cluster.clone(),
                name: known,
                kind: place.kind(),
                object: place.name(cluster),
                source: place.held_source(cluster),
            };
            found.push((field, target));
        }
    }
    match (found.pop(), found.as_slice()) {
        (None, _) => Err(unknown(&clusters, name)),
        (Some((_, target)), []) => Ok(target),
        (last, others) => {
            let fields: Vec<&str> = others.iter().chain(&last).map(|(field, _)| field.as_str()).collect();
            Err(Failure::usage(format!(
                "several partitions are named {name:?}: {}; select a cluster by --cluster and -n, or remove one of them",
                fields.join(", ")
            )))
        }
    }
}

/// Whether the partition has this name in Slurm, or as an object.
fn is_named(known: &str, place: &Place<'_>, name: &str) -> bool {
    known == name || matches!(place, Place::Object(partition) if partition.name_any() == name)
}

fn unknown(clusters: &[Cluster], name: &str) -> Failure {
    let known: Vec<String> = clusters.iter().flat_map(places).map(|(name, _)| name).collect();
    let known = if known.is_empty() {
        "none".to_owned()
    } else {
        known.join(", ")
    };
    Failure::not_found(format!(
        "no object has a partition {name:?}; existing partitions: {known}"
    ))
}

fn parse_members(cluster: &Cluster, workers: &Workers, nodes: &[String]) -> Outcome<Vec<MemberChange>> {
    let nodes = nodes.iter();
    nodes.map(|change| parse_change(cluster, workers, change)).collect()
}

fn parse_excluded(workers: &Workers, nodes: &[String]) -> Outcome<Vec<String>> {
    let excluded = |list: &String| {
        let names = workers.names_in(list).and_then(slurm::Hostlist::of_names);
        let names = names
            .map_err(|error| Failure::usage(format!("--exclude {list}: {error}; write nodes as in node[005-010]")))?;
        Ok(names.to_string())
    };
    nodes.iter().map(excluded).collect()
}

async fn change(access: &Access, target: &Target, change: &Change, wait: &Wait) -> Outcome {
    match target.kind {
        Kind::Partition => objects::change(access, target, change, wait).await,
        _ => lines::change(access, target, change, wait).await.map(drop),
    }
}

/// Returns the nodes of the NodeSets.
async fn workers(access: &Access, cluster: &Cluster) -> Outcome<Workers> {
    let selector = format!(
        "{}={},{}={}",
        labels::CLUSTER,
        cluster.name(),
        labels::NAME,
        apps::SLURMD
    );
    let pods = access
        .api::<Pod>(&cluster.namespace())
        .list(&ListParams::default().labels(&selector))
        .await?;
    let mut workers = Workers::default();
    for view in view_nodes(&pods.items) {
        if view.pod != view.name {
            workers.by_pod.insert(view.pod, view.name.clone());
        }
        if !view.node_set.is_empty() {
            workers.nodes.push((view.node_set, view.name));
        }
    }
    Ok(workers)
}

async fn list(access: &Access, common: &Common, watch: &Watch) -> Outcome {
    let with_cluster = common.all_namespaces;
    print_watched(
        common,
        watch,
        async || {
            let clusters = access.clusters().await?;
            let several = with_cluster || clusters.len() > 1;
            Ok((view_all(access, &clusters).await, several))
        },
        |(views, _)| views,
        |(views, several)| partition_table(views, *several),
    )
    .await
}

async fn view_all(access: &Access, clusters: &[Cluster]) -> Vec<PartitionView> {
    let mut views = Vec::new();
    for cluster in clusters {
        let live = live(access, cluster).await;
        views.extend(view_partitions(cluster, live.as_ref()));
    }
    views
}

async fn show(access: &Access, common: &Common, name: &str) -> Outcome {
    let clusters = access.clusters().await?;
    let mut views = view_all(access, &clusters).await;
    views.retain(|view| view.name == name);
    if views.is_empty() {
        return Err(unknown(&clusters, name));
    }
    for view in &views {
        print_one(common.output, view, describe)?;
    }
    Ok(())
}

/// Returns the state of slurmctld; without it, only the objects are shown.
pub(crate) async fn live(access: &Access, cluster: &Cluster) -> Option<crate::access::Live> {
    match access.live(cluster).await {
        Ok(live) => Some(live),
        Err(why) => {
            notify(&format!(
                "the state of slurmctld of {} is not shown: {why}",
                cluster.name()
            ));
            None
        }
    }
}
