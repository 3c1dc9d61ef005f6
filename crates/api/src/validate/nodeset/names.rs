//! Names of the pods of a NodeSet and of its nodes in Slurm.

use kube::ResourceExt;

use super::super::{
    Problems, Reason,
    names::{LABEL_LIMIT, is_label, is_reserved, is_subdomain},
};
use crate::nodeset::{NodeSet, ScalingMode};

/// The field from which Slurm's name of the set is derived.
fn origin_of_slurm_name(nodeset: &NodeSet) -> &'static str {
    match nodeset.spec.hostname_prefix() {
        Some(prefix) if prefix.contains(|c| c != '-') => "spec.template.spec.hostname",
        _ => "metadata.name",
    }
}

pub(super) fn check_slurm_name(problems: &mut Problems, nodeset: &NodeSet) {
    let name = nodeset.slurm_name();
    if is_reserved(&name) {
        problems.bad_name(
            origin_of_slurm_name(nodeset),
            format!("makes {name:?} Slurm's name of the set, but that name is reserved in slurm.conf"),
            "use another name, or set spec.template.spec.hostname",
        );
    }
}

/// Digits that the highest ordinal of a pod has.
fn last_ordinal(nodeset: &NodeSet) -> String {
    let last = nodeset.spec.ordinals().saturating_sub(1);
    format!("{last:0padding$}", padding = nodeset.spec.ordinal_padding())
}

pub(super) fn check_name_length(problems: &mut Problems, nodeset: &NodeSet) {
    let name = nodeset.name_any();
    if name.len() > LABEL_LIMIT {
        problems.bad_name(
            "metadata.name",
            format!("has {} characters, but it is used as a label value", name.len()),
            format!("give the NodeSet a name of at most {LABEL_LIMIT} characters"),
        );
        return;
    }
    // The host names of a DaemonSet's pods come from the Kubernetes nodes.
    if nodeset.spec.scaling_mode() == ScalingMode::DaemonSet {
        return;
    }
    let number = last_ordinal(nodeset);
    let pod = format!("{name}-{number}");
    if pod.len() > LABEL_LIMIT {
        problems.bad_name(
            "metadata.name",
            format!(
                "has {} characters, which makes the name of pod {pod} too long",
                name.len()
            ),
            format!(
                "give the NodeSet a name of at most {} characters",
                LABEL_LIMIT.saturating_sub(number.len() + 1)
            ),
        );
    }
}

/// The host name of a pod is the name of its Slurm node, and Kubernetes accepts only DNS labels.
pub(super) fn check_host_names(problems: &mut Problems, nodeset: &NodeSet) {
    let name = nodeset.name_any();
    if name.len() > LABEL_LIMIT {
        return;
    }
    if nodeset.spec.scaling_mode() == ScalingMode::DaemonSet {
        // Host names come from the Kubernetes nodes; the prefix is used in slurm.conf only.
        if let Some(prefix) = nodeset.spec.hostname_prefix()
            && !is_subdomain(prefix.trim_matches('-'))
        {
            bad_hostname(problems, prefix);
        }
        return;
    }
    let number = last_ordinal(nodeset);
    let pod = format!("{name}-{number}");
    let Some(prefix) = nodeset.spec.hostname_prefix() else {
        if !is_label(&pod) && pod.len() <= LABEL_LIMIT {
            problems.bad_name(
                "metadata.name",
                format!("is {name:?}, which gives pods an invalid host name"),
                "use a name without dots, or set spec.template.spec.hostname",
            );
        }
        return;
    };
    if !is_label(&format!("{prefix}{number}")) {
        bad_hostname(problems, prefix);
    } else if prefix.ends_with(|c: char| c.is_ascii_digit()) {
        problems.warn(
            Reason::BadName,
            "spec.template.spec.hostname",
            format!("is {prefix:?}, and two sets can get nodes of the same name, because ordinals follow the digit"),
            format!("write {:?}", format!("{prefix}-")),
        );
    }
}

fn bad_hostname(problems: &mut Problems, prefix: &str) {
    problems.bad_name(
        "spec.template.spec.hostname",
        format!("is {prefix:?}, which with the pod's ordinal is not a valid host name"),
        format!("use lower-case letters, digits and dashes, at most {LABEL_LIMIT} characters with the ordinal"),
    );
}
