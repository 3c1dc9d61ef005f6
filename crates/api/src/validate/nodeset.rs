//! Checks of a NodeSet.

use jiff::SignedDuration;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{
    Problems, Reason, Validate, core_fields,
    fields::{
        check_container, check_known, check_not_negative, check_ref, check_replicas, check_secret_key, check_template,
    },
    lines::check_line,
    names::{LABEL_LIMIT, is_label, is_reserved, is_subdomain},
};
use crate::{
    drain::{Drain, OnDrainTimeout},
    items::items,
    nodeset::{ClaimRetention, MAX_ORDINAL_PADDING, NodeSet, NodeSetSpec, PruneNodeRecords, ScalingMode},
    overlay::ClaimTemplate,
    time::GoDuration,
    update_strategy::{ScheduledUpdate, UpdateStrategyType},
};

const PARTITION_CONFIG: &str = "spec.partition.config";
/// Minimum duration of a reservation in Slurm.
const SHORTEST_UPDATE: SignedDuration = SignedDuration::from_mins(1);

impl Validate for NodeSet {
    fn find_problems(&self, problems: &mut Problems) {
        // Without `..`, so that a new field does not compile until its checks are decided.
        let NodeSetSpec {
            controller_ref,
            replicas,
            scaling_mode: _,
            slurmd,
            ssh: _,
            logfile,
            template,
            extra_conf,
            partition: _,
            volume_claim_templates: _,
            update_strategy: _,
            drain: _,
            revision_history_limit,
            persistent_volume_claim_retention_policy: _,
            min_ready_seconds,
            ordinal_padding,
            pin_to_node: _,
            workload_disruption_protection: _,
            prune_slurm_node_records: _,
            oversubscribe_node: _,
        } = &self.spec;

        check_ref(
            problems,
            "spec.controllerRef",
            "Controller",
            controller_ref,
            self.metadata.namespace.as_deref(),
        );
        check_words(problems, &self.spec);
        check_slurm_name(problems, self);
        check_pod_names(problems, self);
        check_replicas(problems, *replicas);
        check_not_negative(problems, "spec.revisionHistoryLimit", *revision_history_limit);
        check_not_negative(problems, "spec.minReadySeconds", *min_ready_seconds);
        check_not_negative(problems, "spec.ordinalPadding", *ordinal_padding);
        if let Some(digits) =
            ordinal_padding.filter(|digits| usize::try_from(*digits).is_ok_and(|digits| digits > MAX_ORDINAL_PADDING))
        {
            problems.bad_value(
                "spec.ordinalPadding",
                format!("is {digits}"),
                format!("set {MAX_ORDINAL_PADDING} or less"),
            );
        }
        check_ssh(problems, &self.spec);
        check_extra_conf(problems, extra_conf.as_deref().unwrap_or_default());
        check_partition(problems, &self.spec);
        check_claims(problems, self.spec.claim_templates());
        check_update(problems, &self.spec);
        check_drain(problems, &self.spec);
        check_container(problems, "spec.slurmd", slurmd.as_ref());
        check_container(problems, "spec.logfile", logfile.as_ref());
        check_template(problems, template.as_ref());
    }

    fn immutable(&self) -> Vec<(&'static str, Value, &'static str)> {
        vec![
            (
                "spec.controllerRef.name",
                json!(self.spec.controller_ref.name),
                "its Slurm nodes would stay in the old cluster; create another NodeSet",
            ),
            (
                "spec.volumeClaimTemplates",
                json!(self.spec.claim_templates()),
                "existing claims cannot be changed; create another NodeSet",
            ),
        ]
    }
}

fn check_words(problems: &mut Problems, spec: &NodeSetSpec) {
    let strategy = spec.update_strategy().kind();
    let policy = "spec.persistentVolumeClaimRetentionPolicy";
    let (deleted, scaled) = (spec.claims_when_deleted(), spec.claims_when_scaled());
    for (field, word, known) in [
        ("spec.scalingMode", spec.scaling_mode().as_str(), ScalingMode::KNOWN),
        ("spec.updateStrategy.type", strategy.as_str(), UpdateStrategyType::KNOWN),
        (
            "spec.pruneSlurmNodeRecords",
            spec.prune_node_records().as_str(),
            PruneNodeRecords::KNOWN,
        ),
        (
            "spec.drain.onTimeout",
            spec.drain().on_timeout().as_str(),
            OnDrainTimeout::KNOWN,
        ),
        (
            &format!("{policy}.whenDeleted"),
            deleted.as_str(),
            ClaimRetention::KNOWN,
        ),
        (&format!("{policy}.whenScaled"), scaled.as_str(), ClaimRetention::KNOWN),
    ] {
        check_known(problems, field, word, known);
    }
}

/// The field from which Slurm's name of the set is derived.
fn origin_of_slurm_name(nodeset: &NodeSet) -> &'static str {
    match nodeset.spec.hostname_prefix() {
        Some(prefix) if prefix.contains(|c| c != '-') => "spec.template.spec.hostname",
        _ => "metadata.name",
    }
}

fn check_slurm_name(problems: &mut Problems, nodeset: &NodeSet) {
    let name = nodeset.slurm_name();
    if is_reserved(&name) {
        problems.bad_name(
            origin_of_slurm_name(nodeset),
            format!("makes {name:?} Slurm's name of the set, but that name is reserved in slurm.conf"),
            "use another name, or set spec.template.spec.hostname",
        );
    }
}

/// The host name of a pod is the name of its Slurm node, and Kubernetes accepts only DNS labels.
fn check_pod_names(problems: &mut Problems, nodeset: &NodeSet) {
    let name = nodeset.name_any();
    if name.len() > LABEL_LIMIT {
        problems.bad_name(
            "metadata.name",
            format!("has {} characters, but it is used as a label value", name.len()),
            format!("give the NodeSet a name of at most {LABEL_LIMIT} characters"),
        );
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
    let last = nodeset.spec.replicas().saturating_sub(1);
    let number = format!("{last:0padding$}", padding = nodeset.spec.ordinal_padding());
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

fn check_ssh(problems: &mut Problems, spec: &NodeSetSpec) {
    match spec.wanted_sssd() {
        Some(reference) => check_secret_key(problems, "spec.ssh.sssdConfRef", reference),
        None if spec.wanted_ssh().is_none() => {}
        None => problems.missing(
            "spec.ssh.sssdConfRef",
            "is absent although spec.ssh.enabled is true",
            "name the Secret entry that holds sssd.conf",
        ),
    }
}

fn check_extra_conf(problems: &mut Problems, extra_conf: &str) {
    // It becomes one line of slurmd's `--conf`, with runs of blanks replaced by one.
    let line: Vec<&str> = extra_conf.split_whitespace().collect();
    if !check_line(problems, "spec.extraConf", &line.join(" ")) {
        return;
    }
    for item in line {
        if item.split_once('=').is_none_or(|(key, _)| key.is_empty()) {
            problems.bad_value(
                "spec.extraConf",
                format!("has {item:?}, which is not Key=Value"),
                "write Key=Value items separated by blanks, without blanks inside an item",
            );
        }
    }
}

/// Checks `spec.partition.config` before it is written to slurm.conf.
pub fn check_partition_config(config: &str) -> Problems {
    let mut problems = Problems::default();
    check_line(&mut problems, PARTITION_CONFIG, config);
    problems
}

fn check_partition(problems: &mut Problems, spec: &NodeSetSpec) {
    let config = spec
        .partition
        .as_ref()
        .and_then(|partition| partition.config.as_deref())
        .unwrap_or_default();
    if !check_line(problems, PARTITION_CONFIG, config) {
        return;
    }
    for item in items(config) {
        let key = item.split('=').next().unwrap_or_default();
        if ["PartitionName", "Nodes"]
            .iter()
            .any(|own| key.eq_ignore_ascii_case(own))
        {
            problems.warn(
                Reason::BadValue,
                PARTITION_CONFIG,
                format!("sets {key}, which the operator sets already"),
                "remove it; for a partition of other nodes create a Partition",
            );
        }
    }
}

fn check_claims(problems: &mut Problems, claims: &[ClaimTemplate]) {
    let mut names = Vec::new();
    for (index, claim) in claims.iter().enumerate() {
        let field = format!("spec.volumeClaimTemplates[{index}]");
        core_fields::check(problems, &field, claim);
        let name = claim
            .get("metadata")
            .and_then(|metadata| metadata.get("name"))
            .and_then(Value::as_str);
        match name {
            Some(name) if is_label(name) => {
                if names.contains(&name) {
                    problems.bad_name(
                        format!("{field}.metadata.name"),
                        format!("is {name:?}, which another template has too"),
                        "give each template a unique name",
                    );
                }
                names.push(name);
            }
            _ => problems.bad_name(
                format!("{field}.metadata.name"),
                format!(
                    "is {}, but the name of the volume is derived from it",
                    name.map_or_else(|| "absent".into(), |name| format!("{name:?}"))
                ),
                "give the template a name of lower-case letters, digits and dashes",
            ),
        }
    }
}

fn check_update(problems: &mut Problems, spec: &NodeSetSpec) {
    let strategy = spec.update_strategy.as_ref();
    let unavailable = strategy
        .and_then(|strategy| strategy.rolling_update.as_ref())
        .and_then(|rolling| rolling.max_unavailable.as_ref());
    let field = "spec.updateStrategy.rollingUpdate.maxUnavailable";
    match unavailable.map(|unavailable| (unavailable, unavailable.out_of(100))) {
        Some((unavailable, Some(number))) if number < 1 => problems.bad_value(
            field,
            format!("is {unavailable}, so that no pod could ever be replaced"),
            "set a number of at least 1 or a percentage of at least 1%",
        ),
        Some((unavailable, None)) => problems.warn(
            Reason::BadValue,
            field,
            format!("is \"{unavailable}\", which is not a number or percentage; it counts as 1"),
            "set a number of at least 1 or a percentage of at least 1%",
        ),
        _ => {}
    }
    let scheduled = strategy.and_then(|strategy| strategy.scheduled_update.as_ref());
    let is_scheduled = spec.update_strategy().kind() == UpdateStrategyType::ScheduledUpdate;
    match scheduled {
        Some(scheduled) => check_schedule(problems, scheduled, is_scheduled),
        None if is_scheduled => problems.missing(
            "spec.updateStrategy.scheduledUpdate",
            "is absent although the type is ScheduledUpdate",
            "set startTime and duration",
        ),
        None => {}
    }
}

fn check_schedule(problems: &mut Problems, scheduled: &ScheduledUpdate, is_scheduled: bool) {
    let ScheduledUpdate {
        start_time,
        duration,
        flags: _,
    } = scheduled;
    let field = "spec.updateStrategy.scheduledUpdate";
    match start_time {
        Some(start_time) if start_time.instant().is_none() => problems.bad_value(
            format!("{field}.startTime"),
            format!("is {:?}, which is not a timestamp", start_time.as_str()),
            "write it like 2026-11-15T22:00:00Z",
        ),
        None if is_scheduled => problems.missing(
            format!("{field}.startTime"),
            "is absent although the type is ScheduledUpdate",
            "set the start of the reservation",
        ),
        _ => {}
    }
    let length = duration.as_ref().map(GoDuration::length);
    let too_short = |length: &Option<SignedDuration>| length.is_none_or(|length| length < SHORTEST_UPDATE);
    // Zero counts as absent, as in upstream; absent means the default.
    if length
        .filter(too_short)
        .is_some_and(|length| is_scheduled || length != Some(SignedDuration::ZERO))
    {
        let text = duration.as_ref().map(GoDuration::as_str).unwrap_or_default();
        problems.bad_value(
            format!("{field}.duration"),
            format!("is {text:?}, which is not a duration of at least a minute"),
            "write it like 30m or 1h30m",
        );
    }
}

fn check_drain(problems: &mut Problems, spec: &NodeSetSpec) {
    let drain = spec.drain();
    let action = drain.on_timeout();
    let Drain { timeout, on_timeout: _ } = &drain;
    let field = "spec.drain.timeout";
    match timeout {
        Some(text) if drain.timeout().is_none() => problems.bad_value(
            field,
            format!("is {:?}, which is not a positive duration", text.as_str()),
            "write it like 30m or 12h, or remove it to wait for jobs without a timeout",
        ),
        Some(text) if action == OnDrainTimeout::Wait => problems.warn(
            Reason::Ignored,
            field,
            format!("is {:?}, but spec.drain.onTimeout is Wait", text.as_str()),
            "set spec.drain.onTimeout to Requeue or Cancel, or remove the timeout",
        ),
        None if matches!(action, OnDrainTimeout::Requeue | OnDrainTimeout::Cancel) => problems.missing(
            field,
            format!("is absent although spec.drain.onTimeout is {action}"),
            "set a duration like 30m or 12h",
        ),
        _ => {}
    }
}
