//! Rules for `spec.autoscaling`.

use jiff::SignedDuration;

use super::super::{
    Cel, Check, Reason, Rule,
    cel::{self, is_duration},
    lines::check_line,
};
use crate::{
    autoscaling::{Autoscaling, MAX_BOOT_TIMEOUT},
    nodeset::{self, DEFAULT_REPLICAS, NodeSet, ScalingMode},
    time::GoDuration,
};

const SHORTEST_TIME: SignedDuration = SignedDuration::from_secs(1);
const SHAPE_FIELD: &str = "spec.autoscaling.shape";
const SHAPE_REMEDY: &str =
    "write the resources as in slurm.conf, separated by blanks: CPUs=4 RealMemory=15000 Gres=gpu:1";
/// Settings of a node that the operator writes itself, or that are not resources.
const OWN_KEYS: &[&str] = &[
    "NodeName",
    "NodeHostname",
    "NodeAddr",
    "State",
    "Feature",
    "Features",
    "SuspendTime",
    "Topology",
    "Weight",
    "Reason",
    "Port",
];

/// Whether autoscaling is enabled.
macro_rules! is_elastic {
    () => {
        "has(self.spec.autoscaling) && has(self.spec.autoscaling.enabled) && self.spec.autoscaling.enabled"
    };
}

pub(super) const MAX_REPLICAS: Rule<NodeSet> = Rule {
    id: "autoscaling-max-replicas",
    field: "spec.autoscaling.maxReplicas",
    holds: "must be from 1 to 65536",
    remedy: "set the number of nodes that Slurm may use",
    cel: Cel::Value("{} >= 1 && {} <= 65536"),
    check: Check::Fault(Reason::BadValue, |set| {
        let most = set.spec.autoscaling.as_ref()?.max_replicas?;
        (!(1..=nodeset::MAX_REPLICAS).contains(&most)).then(|| format!("is {most}"))
    }),
    good: &["spec: {autoscaling: {maxReplicas: 1}}"],
    bad: &[
        "spec: {autoscaling: {maxReplicas: 0}}",
        "spec: {autoscaling: {maxReplicas: 65537}}",
    ],
};

pub(super) const MIN_REPLICAS: Rule<NodeSet> = Rule {
    id: "autoscaling-min-replicas",
    field: "spec.autoscaling.minReplicas",
    holds: "must be from 0 to spec.autoscaling.maxReplicas",
    remedy: "set 0 or more, and no more than maxReplicas",
    cel: Cel::Object {
        reads: &["spec.autoscaling"],
        holds: "!has(self.spec.autoscaling) || !has(self.spec.autoscaling.minReplicas) || \
            (self.spec.autoscaling.minReplicas >= 0 && (!has(self.spec.autoscaling.maxReplicas) || \
            self.spec.autoscaling.minReplicas <= self.spec.autoscaling.maxReplicas))",
    },
    check: Check::Fault(Reason::BadValue, |set| {
        let Autoscaling {
            min_replicas,
            max_replicas,
            ..
        } = set.spec.autoscaling.as_ref()?;
        let least = (*min_replicas)?;
        if least < 0 {
            return Some(format!("is {least}"));
        }
        let most = (*max_replicas)?;
        (least > most).then(|| format!("is {least}, but spec.autoscaling.maxReplicas is {most}"))
    }),
    good: &["spec: {autoscaling: {minReplicas: 2, maxReplicas: 2}}"],
    bad: &[
        "spec: {autoscaling: {minReplicas: -1}}",
        "spec: {autoscaling: {minReplicas: 3, maxReplicas: 2}}",
    ],
};

pub(super) const REQUIRED: Rule<NodeSet> = Rule {
    id: "autoscaling-required",
    field: "spec.autoscaling",
    holds: "must have maxReplicas and shape if it is enabled",
    remedy: "set both: Slurm has to know the nodes before they exist",
    cel: Cel::Object {
        reads: &["spec.autoscaling"],
        holds: concat!(
            "!(",
            is_elastic!(),
            ") || (has(self.spec.autoscaling.maxReplicas) && has(self.spec.autoscaling.shape))"
        ),
    },
    check: Check::Fault(Reason::Missing, |set| {
        let Autoscaling {
            max_replicas, shape, ..
        } = set.spec.autoscaling()?;
        match (max_replicas, shape) {
            (Some(_), Some(_)) => None,
            (None, _) => Some("is enabled without maxReplicas".into()),
            (_, None) => Some("is enabled without shape".into()),
        }
    }),
    good: &["spec: {autoscaling: {enabled: true, maxReplicas: 4, shape: CPUs=2}}"],
    bad: &[
        "spec: {autoscaling: {enabled: true, shape: CPUs=2}}",
        "spec: {autoscaling: {enabled: true, maxReplicas: 4}}",
    ],
};

pub(super) const IDLE_TIME: Rule<NodeSet> = Rule {
    id: "autoscaling-idle-time",
    field: "spec.autoscaling.idleTime",
    holds: "must be a duration of at least a second",
    remedy: "write it like 90s, 10m or 1h",
    cel: Cel::Value(concat!(is_duration!("{}"), " && duration({}) >= duration('1s')")),
    check: Check::Fault(Reason::BadValue, |set| {
        let time = set.spec.autoscaling.as_ref()?.idle_time.as_ref()?;
        let is_long_enough = time.length().is_some_and(|length| length >= SHORTEST_TIME);
        (!is_long_enough).then(|| format!("is {:?}, which is not a duration of at least a second", time.as_str()))
    }),
    good: &["spec: {autoscaling: {idleTime: 1s}}"],
    bad: &[
        "spec: {autoscaling: {idleTime: 0s}}",
        "spec: {autoscaling: {idleTime: 1d}}",
    ],
};

pub(super) const BOOT_TIMEOUT: Rule<NodeSet> = Rule {
    id: "autoscaling-boot-timeout",
    field: "spec.autoscaling.bootTimeout",
    holds: "must be a duration from a second to 18 hours",
    remedy: "write it like 90s, 10m or 1h",
    cel: Cel::Value(concat!(
        is_duration!("{}"),
        " && duration({}) >= duration('1s') && duration({}) <= duration('18h')"
    )),
    check: Check::Fault(Reason::BadValue, |set| {
        let time = set.spec.autoscaling.as_ref()?.boot_timeout.as_ref()?;
        let is_bad = |length: SignedDuration| !(SHORTEST_TIME..=MAX_BOOT_TIMEOUT).contains(&length);
        let is_bad = GoDuration::length(time).is_none_or(is_bad);
        is_bad.then(|| {
            format!(
                "is {:?}, which is not a duration from a second to 18 hours",
                time.as_str()
            )
        })
    }),
    good: &["spec: {autoscaling: {bootTimeout: 18h}}"],
    bad: &[
        "spec: {autoscaling: {bootTimeout: 19h}}",
        "spec: {autoscaling: {bootTimeout: soon}}",
    ],
};

pub(super) const SHAPE: Rule<NodeSet> = Rule {
    id: "autoscaling-shape",
    field: SHAPE_FIELD,
    holds: "must be resources of a node as in slurm.conf",
    remedy: SHAPE_REMEDY,
    cel: Cel::Value(r"{}.matches(r'^[\s\v\pZ]*([^=\s\pZ\p{Cc}\\#]+=[^\s\pZ\p{Cc}\\#]+([\s\v\pZ]+|$))+$')"),
    check: Check::Problems(|set, problems| {
        let Some(shape) = set.spec.autoscaling.as_ref().and_then(|it| it.shape.as_deref()) else {
            return;
        };
        let line: Vec<&str> = shape.split_whitespace().collect();
        if line.is_empty() {
            problems.bad_value(SHAPE_FIELD, "has no resource", SHAPE_REMEDY);
        }
        if !check_line(problems, SHAPE_FIELD, &line.join(" ")) {
            return;
        }
        for item in line {
            match item.split_once('=') {
                Some((key, value)) if !key.is_empty() && !value.is_empty() => {
                    if OWN_KEYS.iter().any(|own| own.eq_ignore_ascii_case(key)) {
                        let remedy = "remove it; spec.extraConf takes other settings of the nodes";
                        problems.bad_value(SHAPE_FIELD, format!("sets {key}, which is not a resource"), remedy);
                    }
                }
                _ => problems.bad_value(
                    SHAPE_FIELD,
                    format!("has {item:?}, which is not Key=Value"),
                    SHAPE_REMEDY,
                ),
            }
        }
    }),
    good: &["spec: {autoscaling: {shape: 'CPUs=4 RealMemory=15000 Gres=gpu:a100:2'}}"],
    bad: &[
        "spec: {autoscaling: {shape: ''}}",
        "spec: {autoscaling: {shape: big}}",
        "spec: {autoscaling: {shape: CPUs=}}",
        "spec: {autoscaling: {shape: 'CPUs=4 #'}}",
    ],
};

pub(super) const NAMED_NODES: Rule<NodeSet> = Rule {
    id: "autoscaling-mode",
    field: "spec.autoscaling.enabled",
    holds: "cannot be combined with scalingMode DaemonSet and with pinToNode",
    remedy: "remove the other; Slurm chooses which ordinals run, and Kubernetes where",
    cel: Cel::Object {
        reads: &["spec.autoscaling", "spec.scalingMode", "spec.pinToNode"],
        holds: concat!(
            "!(",
            is_elastic!(),
            ") || ((!has(self.spec.scalingMode) || self.spec.scalingMode != 'DaemonSet') && ",
            "(!has(self.spec.pinToNode) || !self.spec.pinToNode))"
        ),
    },
    check: Check::Fault(Reason::BadValue, |set| {
        set.spec.autoscaling()?;
        if set.spec.scaling_mode() == ScalingMode::DaemonSet {
            return Some("is true, but spec.scalingMode is DaemonSet".into());
        }
        set.spec
            .pin_to_node
            .unwrap_or(false)
            .then(|| "is true, but spec.pinToNode is too".into())
    }),
    good: &["spec: {autoscaling: {enabled: true, maxReplicas: 4, shape: CPUs=2}, scalingMode: StatefulSet}"],
    bad: &[
        "spec: {autoscaling: {enabled: true, maxReplicas: 4, shape: CPUs=2}, scalingMode: DaemonSet}",
        "spec: {autoscaling: {enabled: true, maxReplicas: 4, shape: CPUs=2}, pinToNode: true}",
    ],
};

pub(super) const HOST_NETWORK: Rule<NodeSet> = Rule {
    id: "autoscaling-host-network",
    field: "spec.autoscaling.enabled",
    holds: "cannot be combined with hostNetwork",
    remedy: "remove spec.template.spec.hostNetwork: Slurm has to know the names of the nodes before they exist",
    cel: cel::OPEN,
    check: Check::Fault(Reason::BadValue, |set| {
        set.spec.autoscaling()?;
        set.spec
            .uses_host_network()
            .then(|| "is true, but spec.template.spec.hostNetwork is too".into())
    }),
    good: &[
        "spec: {autoscaling: {enabled: true, maxReplicas: 4, shape: CPUs=2}, template: {spec: {hostNetwork: false}}}",
    ],
    bad: &[
        "spec: {autoscaling: {enabled: true, maxReplicas: 4, shape: CPUs=2}, template: {spec: {hostNetwork: true}}}",
    ],
};

pub(super) const REPLICAS: Rule<NodeSet> = Rule {
    id: "autoscaling-replicas",
    field: "spec.replicas",
    holds: "is ignored if autoscaling is enabled",
    remedy: "remove it; spec.autoscaling has minReplicas and maxReplicas",
    cel: cel::WARNING,
    check: Check::Warning(Reason::Ignored, |set| {
        set.spec.autoscaling()?;
        // The API server sets the default.
        let replicas = set.spec.replicas.filter(|replicas| *replicas != DEFAULT_REPLICAS)?;
        Some(format!("is {replicas}, but spec.autoscaling.enabled is true"))
    }),
    good: &["spec: {autoscaling: {enabled: true, maxReplicas: 4, shape: CPUs=2}, replicas: 1}"],
    bad: &["spec: {autoscaling: {enabled: true, maxReplicas: 4, shape: CPUs=2}, replicas: 3}"],
};
