//! The names that complete a word. Whatever fails, there are no names: a completion has no place for messages.

use std::collections::BTreeSet;
use std::time::Duration;

use api::{Controller, NodeSet};
use kube::{ResourceExt, api::ListParams, config::Kubeconfig};

use super::request::NameKind;
use crate::access::Access;
use crate::cli::Common;
use crate::failure::{Failure, Outcome};
use crate::node::{list_pods, view_nodes};
use crate::partition::partition_names;

/// How long a person waits at the prompt.
const TIMEOUT: Duration = Duration::from_secs(3);

pub(super) fn find(kind: NameKind, common: &Common) -> Vec<String> {
    if kind == NameKind::Contexts {
        return contexts(common);
    }
    crate::install_crypto();
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return Vec::new();
    };
    runtime.block_on(async {
        let names = tokio::time::timeout(TIMEOUT, names(kind, common)).await;
        names
            .unwrap_or_else(|_| Err(Failure::TimedOut(String::new())))
            .unwrap_or_default()
    })
}

fn contexts(common: &Common) -> Vec<String> {
    let kubeconfig = match &common.kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let contexts = kubeconfig.map(|kubeconfig| kubeconfig.contexts).unwrap_or_default();
    contexts.into_iter().map(|context| context.name).collect()
}

async fn names(kind: NameKind, common: &Common) -> Outcome<Vec<String>> {
    let everywhere = Common {
        all_namespaces: common.all_namespaces || kind == NameKind::Namespaces,
        ..common.clone()
    };
    let access = Access::new(&everywhere).await?;
    let all = ListParams::default();
    Ok(match kind {
        NameKind::Contexts => contexts(common),
        NameKind::Partitions => access.objects().await?.iter().flat_map(partition_names).collect(),
        NameKind::Nodes => nodes(&access, common).await?,
        NameKind::Members => {
            let sets = access.list::<NodeSet>(&all).await?.unwrap_or_default();
            let sets: Vec<String> = sets.iter().map(ResourceExt::name_any).collect();
            [sets, nodes(&access, common).await?].concat()
        }
        NameKind::Clusters => {
            let controllers = access.list::<Controller>(&all).await?.unwrap_or_default();
            controllers.iter().map(ResourceExt::name_any).collect()
        }
        NameKind::Namespaces => {
            let controllers = access.list::<Controller>(&all).await?.unwrap_or_default();
            let namespaces: BTreeSet<String> = controllers.iter().filter_map(ResourceExt::namespace).collect();
            namespaces.into_iter().collect()
        }
    })
}

async fn nodes(access: &Access, common: &Common) -> Outcome<Vec<String>> {
    let pods = list_pods(access, common).await?;
    Ok(view_nodes(&pods).into_iter().map(|view| view.name).collect())
}
