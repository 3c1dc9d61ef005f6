//! Rules for a NodeSet.

mod autoscaling;
mod health;
mod names;

use jiff::SignedDuration;
use serde_json::Value;

use self::{
    autoscaling as elastic,
    names::{check_host_names, check_name_length, check_slurm_name},
};
use super::{
    Cel, Check, Problems, Reason, Rule, Validate,
    cel::{self, is_duration, is_entry},
    core_fields,
    fields::{check_entry, check_known, negative},
    lines::{ONE_LINE, check_line},
    names::is_label,
    shared::{Fields, controller_immutable, controller_name, controller_namespace, entry_rule, overlays, replicas},
};
use crate::{
    drain::OnDrainTimeout,
    int_or_string::IntOrString,
    items::items,
    nodeset::{ClaimRetention, MAX_ORDINAL_PADDING, NodeSet, NodeSetSpec, PruneNodeRecords, ScalingMode},
    overlay::{ClaimTemplate, ContainerOverlay},
    references::ObjectRef,
    templates::PodTemplate,
    update_strategy::{ScheduledUpdate, UpdateStrategyType},
};

const PARTITION_CONFIG: &str = "spec.partition.config";
const MAX_UNAVAILABLE: &str = "spec.updateStrategy.rollingUpdate.maxUnavailable";
/// Minimum duration of a reservation in Slurm.
const SHORTEST_UPDATE: SignedDuration = SignedDuration::from_mins(1);

impl Fields for NodeSet {
    fn controller_ref(&self) -> &ObjectRef {
        &self.spec.controller_ref
    }

    fn replicas(&self) -> Option<i32> {
        self.spec.replicas
    }

    fn containers(&self) -> Vec<(&'static str, &Option<ContainerOverlay>)> {
        vec![("spec.slurmd", &self.spec.slurmd), ("spec.logfile", &self.spec.logfile)]
    }

    fn template(&self) -> Option<&PodTemplate> {
        self.spec.template.as_ref()
    }
}

/// The rule for a number that must not be negative.
macro_rules! not_negative {
    ($id:literal, $field:literal, $member:ident) => {
        Rule {
            id: $id,
            field: concat!("spec.", $field),
            holds: "must not be negative",
            remedy: "set 0 or more",
            cel: Cel::Value("{} >= 0"),
            check: Check::Fault(Reason::BadValue, |set| negative(set.spec.$member)),
            good: &[concat!("spec: {", $field, ": 0}")],
            bad: &[concat!("spec: {", $field, ": -1}"), concat!("spec: {", $field, ": -2}")],
        }
    };
}

/// Whether pods are replaced in a reservation.
macro_rules! is_scheduled {
    () => {
        "has(self.spec.updateStrategy) && has(self.spec.updateStrategy.type) && \
         self.spec.updateStrategy.type == 'ScheduledUpdate'"
    };
}

impl Validate for NodeSet {
    const SMALLEST: &'static str = "spec: {controllerRef: {name: slurm}}";

    const FREE: &'static [&'static str] = &["oversubscribeNode", "pinToNode", "workloadDisruptionProtection"];

    const RULES: &'static [Rule<Self>] = &[
        controller_name(),
        controller_namespace(),
        Rule {
            id: "words",
            field: "spec.scalingMode, spec.updateStrategy.type, spec.pruneSlurmNodeRecords, spec.drain.onTimeout, \
                    spec.persistentVolumeClaimRetentionPolicy.whenDeleted, \
                    spec.persistentVolumeClaimRetentionPolicy.whenScaled",
            holds: "must be one of the words in the API reference",
            remedy: "use one of them",
            cel: Cel::Schema,
            check: Check::Problems(|set, problems| check_words(problems, &set.spec)),
            good: &["spec: {scalingMode: DaemonSet}"],
            bad: &[
                "spec: {scalingMode: Spiral}",
                "spec: {drain: {onTimeout: Kill, timeout: 1h}}",
            ],
        },
        Rule {
            id: "reserved-name",
            field: "metadata.name, spec.template.spec.hostname",
            holds: "must not make default or all the name of the set in slurm.conf",
            remedy: "use another name, or set spec.template.spec.hostname",
            cel: cel::OPEN,
            check: Check::Problems(|set, problems| check_slurm_name(problems, set)),
            good: &["metadata: {name: all}\nspec: {template: {spec: {hostname: gpu-}}}"],
            bad: &[
                "metadata: {name: all}",
                "spec: {template: {spec: {hostname: default-}}}",
            ],
        },
        Rule {
            id: "name-length",
            field: "metadata.name",
            holds: "must leave room for the ordinal in 63 characters: pods and their nodes have that name",
            remedy: "give the NodeSet a shorter name",
            cel: Cel::Object {
                reads: &["spec.replicas", "spec.ordinalPadding", "spec.scalingMode"],
                holds: "has(self.spec.scalingMode) && self.spec.scalingMode == 'DaemonSet' ? \
                    size(self.metadata.name) <= 63 : size(self.metadata.name) + 1 + \
                    (has(self.spec.replicas) && self.spec.replicas > 1 ? size(string(self.spec.replicas - 1)) : 1) <= 63 && \
                    size(self.metadata.name) + 1 + (has(self.spec.ordinalPadding) ? self.spec.ordinalPadding : 0) <= 63",
            },
            check: Check::Problems(|set, problems| check_name_length(problems, set)),
            good: &["metadata: {name: abcdefghijklmnopqrstuvwxyz-abcdefghijklmnopqrstuvwxyz-abcdefg}"],
            bad: &[
                "metadata: {name: abcdefghijklmnopqrstuvwxyz-abcdefghijklmnopqrstuvwxyz-abcdefgh}",
                "metadata: {name: abcdefghijklmnopqrstuvwxyz-abcdefghijklmnopqrstuvwxyz-abcdefg}\nspec: {replicas: 11}",
                "metadata: {name: abcdefghijklmnopqrstuvwxyz-abcdefghijklmnopqrstuvwxyz-abcdefg}\nspec: {ordinalPadding: 2}",
            ],
        },
        Rule {
            id: "host-names",
            field: "metadata.name, spec.template.spec.hostname",
            holds: "must make valid host names with the ordinals of the pods",
            remedy: "use lower-case letters, digits and dashes, at most 63 characters with the ordinal",
            cel: cel::OPEN,
            check: Check::Problems(|set, problems| check_host_names(problems, set)),
            good: &["metadata: {name: my.nodes}\nspec: {template: {spec: {hostname: gpu-}}}"],
            bad: &[
                "metadata: {name: my.nodes}",
                "spec: {template: {spec: {hostname: GPU-}}}",
            ],
        },
        replicas(),
        not_negative!("revision-history-limit", "revisionHistoryLimit", revision_history_limit),
        not_negative!("min-ready-seconds", "minReadySeconds", min_ready_seconds),
        not_negative!("ordinal-padding", "ordinalPadding", ordinal_padding),
        Rule {
            id: "ordinal-padding-limit",
            field: "spec.ordinalPadding",
            holds: "must be at most 20",
            remedy: "set 20 or less",
            cel: Cel::Value("{} <= 20"),
            check: Check::Fault(Reason::BadValue, |set| {
                let digits = set.spec.ordinal_padding?;
                let is_more = usize::try_from(digits).is_ok_and(|digits| digits > MAX_ORDINAL_PADDING);
                is_more.then(|| format!("is {digits}"))
            }),
            good: &["spec: {ordinalPadding: 20}"],
            bad: &["spec: {ordinalPadding: 21}"],
        },
        entry_rule!(
            "sssd-conf-entry", "ssh.sssdConfRef", "Secret", set => set.spec.wanted_sssd(),
            "spec: {ssh: {sssdConfRef: {name: a, key: k}}}", ["spec: {ssh: {sssdConfRef: {name: '', key: k}}}"]
        ),
        Rule {
            id: "sssd-conf",
            field: "spec.ssh.sssdConfRef",
            holds: "is required if spec.ssh.enabled is true",
            remedy: "name the Secret entry that holds sssd.conf",
            cel: Cel::Object {
                reads: &["spec.ssh.enabled", "spec.ssh.sssdConfRef"],
                holds: "!has(self.spec.ssh) || !has(self.spec.ssh.enabled) || !self.spec.ssh.enabled || \
                    has(self.spec.ssh.sssdConfRef)",
            },
            check: Check::Fault(Reason::Missing, |set| {
                let is_absent = set.spec.wanted_ssh()?.sssd_conf_ref.is_none();
                is_absent.then(|| "is absent although spec.ssh.enabled is true".into())
            }),
            good: &["spec: {ssh: {enabled: true, sssdConfRef: {name: a, key: k}}}"],
            bad: &["spec: {ssh: {enabled: true}}"],
        },
        Rule {
            id: "extra-conf",
            field: "spec.extraConf",
            holds: "must be Key=Value items that can be written to one line of slurm.conf",
            remedy: "write Key=Value items separated by blanks, without blanks inside an item, backslashes and #",
            cel: Cel::Value(r"{}.matches(r'^[\s\v\pZ]*([^=\s\pZ\p{Cc}\\#]+=[^\s\pZ\p{Cc}\\#]*([\s\v\pZ]+|$))*$')"),
            check: Check::Problems(|set, problems| {
                check_extra_conf(problems, set.spec.extra_conf.as_deref().unwrap_or_default());
            }),
            good: &[
                "spec: {extraConf: \"Weight=5\\n  Features=a,b\\n\"}",
                "spec: {extraConf: ''}",
            ],
            bad: &[
                "spec: {extraConf: big}",
                "spec: {extraConf: '=5'}",
                "spec: {extraConf: 'Features=a#b'}",
                "spec: {extraConf: 'Weight=5 \\'}",
                "spec: {extraConf: \"Features=a\\0\"}",
            ],
        },
        Rule {
            id: "partition-config",
            field: PARTITION_CONFIG,
            holds: "must be part of one line of slurm.conf",
            remedy: "write it in one line, without backslashes and #, and close double quotes",
            cel: Cel::Value(ONE_LINE),
            check: Check::Problems(|set, problems| {
                check_line(problems, PARTITION_CONFIG, partition_config(set));
            }),
            good: &["spec: {partition: {config: \"Default=YES\\tTopology='a b' QOS=\\\"a b\\\"\"}}"],
            bad: &[
                "spec: {partition: {config: 'AllowGroups=x,\\'}}",
                "spec: {partition: {config: 'Default=YES # usual'}}",
                "spec: {partition: {config: 'Topology=\"a'}}",
            ],
        },
        Rule {
            id: "partition-own-keys",
            field: PARTITION_CONFIG,
            holds: "should not set PartitionName and Nodes",
            remedy: "remove it; for a partition of other nodes create a Partition",
            cel: cel::WARNING,
            check: Check::Problems(|set, problems| {
                let config = partition_config(set);
                if !check_line(&mut Problems::default(), PARTITION_CONFIG, config) {
                    return;
                }
                let is_own = |key: &&str| {
                    ["PartitionName", "Nodes"]
                        .iter()
                        .any(|own| key.eq_ignore_ascii_case(own))
                };
                for key in items(config).filter_map(|item| item.split('=').next()).filter(is_own) {
                    problems.warn(
                        Reason::BadValue,
                        PARTITION_CONFIG,
                        format!("sets {key}, which the operator sets already"),
                        "remove it; for a partition of other nodes create a Partition",
                    );
                }
            }),
            good: &["spec: {partition: {config: Default=YES}}"],
            bad: &["spec: {partition: {config: Nodes=ALL}}"],
        },
        Rule {
            id: "claim-templates",
            field: "spec.volumeClaimTemplates[]",
            holds: "must have unique names, and the types of core/v1",
            remedy: "give each template a name of lower-case letters, digits and dashes",
            cel: cel::OPEN,
            check: Check::Problems(|set, problems| check_claims(problems, set.spec.claim_templates())),
            good: &["spec: {volumeClaimTemplates: [{metadata: {name: a}}, {metadata: {name: b}}]}"],
            bad: &[
                "spec: {volumeClaimTemplates: [{}]}",
                "spec: {volumeClaimTemplates: [{metadata: {name: a}}, {metadata: {name: a}}]}",
            ],
        },
        Rule {
            id: "max-unavailable",
            field: MAX_UNAVAILABLE,
            holds: "must be at least 1 or 1%: otherwise no pod could ever be replaced",
            remedy: "set a number of at least 1 or a percentage of at least 1%",
            cel: Cel::Value(r"type({}) == int ? {} >= 1 : !string({}).matches(r'^(-\d+|[+]?0+)%$')"),
            check: Check::Fault(Reason::BadValue, |set| {
                let unavailable = max_unavailable(set)?;
                let is_none = unavailable.out_of(100).is_some_and(|number| number < 1);
                is_none.then(|| format!("is {unavailable}, so that no pod could ever be replaced"))
            }),
            good: &[
                "spec: {updateStrategy: {rollingUpdate: {maxUnavailable: 1}}}",
                "spec: {updateStrategy: {rollingUpdate: {maxUnavailable: 10%}}}",
            ],
            bad: &[
                "spec: {updateStrategy: {rollingUpdate: {maxUnavailable: 0}}}",
                "spec: {updateStrategy: {rollingUpdate: {maxUnavailable: 0%}}}",
                "spec: {updateStrategy: {rollingUpdate: {maxUnavailable: -5%}}}",
            ],
        },
        Rule {
            id: "max-unavailable-text",
            field: MAX_UNAVAILABLE,
            holds: "should be a number or a percentage",
            remedy: "set a number of at least 1 or a percentage of at least 1%",
            cel: cel::WARNING,
            check: Check::Warning(Reason::BadValue, |set| {
                let unavailable = max_unavailable(set)?;
                let is_text = unavailable.out_of(100).is_none();
                is_text.then(|| format!("is \"{unavailable}\", which is not a number or percentage; it counts as 1"))
            }),
            good: &["spec: {updateStrategy: {rollingUpdate: {maxUnavailable: 1}}}"],
            bad: &["spec: {updateStrategy: {rollingUpdate: {maxUnavailable: many}}}"],
        },
        Rule {
            id: "schedule",
            field: "spec.updateStrategy.scheduledUpdate",
            holds: "must have startTime and duration if the type is ScheduledUpdate",
            remedy: "set startTime and duration",
            cel: Cel::Object {
                reads: &["spec.updateStrategy.type", "spec.updateStrategy.scheduledUpdate"],
                holds: concat!(
                    "!(",
                    is_scheduled!(),
                    ") || (has(self.spec.updateStrategy.scheduledUpdate) && ",
                    "has(self.spec.updateStrategy.scheduledUpdate.startTime) && ",
                    "has(self.spec.updateStrategy.scheduledUpdate.duration))"
                ),
            },
            check: Check::Problems(|set, problems| {
                let strategy = set.spec.update_strategy();
                let is_scheduled = strategy.kind() == UpdateStrategyType::ScheduledUpdate;
                match &strategy.scheduled_update {
                    Some(scheduled) => check_start(problems, scheduled, is_scheduled),
                    None if is_scheduled => problems.missing(
                        "spec.updateStrategy.scheduledUpdate",
                        "is absent although the type is ScheduledUpdate",
                        "set startTime and duration",
                    ),
                    None => {}
                }
            }),
            good: &[
                "spec: {updateStrategy: {type: ScheduledUpdate, scheduledUpdate: {startTime: '2026-11-15T22:00:00Z', duration: 1h}}}",
            ],
            bad: &[
                "spec: {updateStrategy: {type: ScheduledUpdate}}",
                "spec: {updateStrategy: {type: ScheduledUpdate, scheduledUpdate: {duration: 1h}}}",
            ],
        },
        Rule {
            id: "schedule-duration",
            field: "spec.updateStrategy.scheduledUpdate.duration",
            holds: "must be a duration of at least a minute",
            remedy: "write it like 30m or 1h30m",
            cel: Cel::Value(concat!(
                "{} == '0' || (",
                is_duration!("{}"),
                " && (duration({}) == duration('0s') || duration({}) >= duration('1m')))"
            )),
            check: Check::Fault(Reason::BadValue, bad_duration),
            good: &["spec: {updateStrategy: {scheduledUpdate: {duration: 30m}}}"],
            bad: &[
                "spec: {updateStrategy: {scheduledUpdate: {duration: 30s}}}",
                "spec: {updateStrategy: {scheduledUpdate: {duration: soon}}}",
            ],
        },
        Rule {
            id: "drain-timeout",
            field: "spec.drain.timeout",
            holds: "must be a positive duration",
            remedy: "write it like 30m or 12h, or remove it to wait for jobs without a timeout",
            cel: Cel::Value(concat!(is_duration!("{}"), " && duration({}) > duration('0s')")),
            check: Check::Fault(Reason::BadValue, |set| {
                let drain = set.spec.drain();
                let text = drain.timeout.as_ref().filter(|_| drain.timeout().is_none())?;
                Some(format!("is {:?}, which is not a positive duration", text.as_str()))
            }),
            good: &["spec: {drain: {timeout: 1h, onTimeout: Requeue}}"],
            bad: &["spec: {drain: {timeout: 0s}}", "spec: {drain: {timeout: 1d}}"],
        },
        Rule {
            id: "drain-timeout-ignored",
            field: "spec.drain.timeout",
            holds: "is ignored if spec.drain.onTimeout is Wait",
            remedy: "set spec.drain.onTimeout to Requeue or Cancel, or remove the timeout",
            cel: cel::WARNING,
            check: Check::Warning(Reason::Ignored, |set| {
                let drain = set.spec.drain();
                let is_ignored = drain.timeout().is_some() && drain.on_timeout() == OnDrainTimeout::Wait;
                let text = drain.timeout.as_ref().filter(|_| is_ignored)?;
                Some(format!("is {:?}, but spec.drain.onTimeout is Wait", text.as_str()))
            }),
            good: &["spec: {drain: {timeout: 1h, onTimeout: Cancel}}"],
            bad: &["spec: {drain: {timeout: 1h}}"],
        },
        Rule {
            id: "drain-timeout-missing",
            field: "spec.drain.timeout",
            holds: "is required if spec.drain.onTimeout is Requeue or Cancel",
            remedy: "set a duration like 30m or 12h",
            cel: Cel::Object {
                reads: &["spec.drain"],
                holds: "!has(self.spec.drain) || !has(self.spec.drain.onTimeout) || \
                    !(self.spec.drain.onTimeout in ['Requeue', 'Cancel']) || has(self.spec.drain.timeout)",
            },
            check: Check::Fault(Reason::Missing, |set| {
                let drain = set.spec.drain();
                let action = drain.on_timeout();
                let needs = matches!(action, OnDrainTimeout::Requeue | OnDrainTimeout::Cancel);
                (needs && drain.timeout.is_none())
                    .then(|| format!("is absent although spec.drain.onTimeout is {action}"))
            }),
            good: &["spec: {drain: {onTimeout: Wait}}"],
            bad: &["spec: {drain: {onTimeout: Requeue}}"],
        },
        health::count(),
        health::condition(),
        health::status(),
        health::duration(),
        health::unique(),
        elastic::MAX_REPLICAS,
        elastic::MIN_REPLICAS,
        elastic::REQUIRED,
        elastic::IDLE_TIME,
        elastic::BOOT_TIMEOUT,
        elastic::SHAPE,
        elastic::NAMED_NODES,
        elastic::HOST_NETWORK,
        elastic::REPLICAS,
        overlays(
            "spec.slurmd, spec.logfile, spec.template.spec",
            &["spec: {slurmd: {args: -v}}"],
        ),
        controller_immutable("its Slurm nodes would stay in the old cluster; create another NodeSet"),
        Rule {
            id: "claim-templates-immutable",
            field: "spec.volumeClaimTemplates",
            holds: "cannot be changed",
            remedy: "existing claims cannot be changed; create another NodeSet",
            cel: cel::OPEN,
            check: Check::Unchanged(|old, new| old.spec.claim_templates() == new.spec.claim_templates()),
            good: &["spec: {volumeClaimTemplates: []}", "spec: {}"],
            bad: &["spec: {volumeClaimTemplates: [{metadata: {name: b}}]}"],
        },
    ];
}

fn max_unavailable(set: &NodeSet) -> Option<&IntOrString> {
    let rolling = set.spec.update_strategy.as_ref()?.rolling_update.as_ref()?;
    rolling.max_unavailable.as_ref()
}

fn partition_config(set: &NodeSet) -> &str {
    let partition = set.spec.partition.as_ref();
    partition
        .and_then(|partition| partition.config.as_deref())
        .unwrap_or_default()
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

fn check_start(problems: &mut Problems, scheduled: &ScheduledUpdate, is_scheduled: bool) {
    let field = "spec.updateStrategy.scheduledUpdate";
    match &scheduled.start_time {
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
}

fn bad_duration(set: &NodeSet) -> Option<String> {
    let strategy = set.spec.update_strategy();
    let is_scheduled = strategy.kind() == UpdateStrategyType::ScheduledUpdate;
    let duration = strategy.scheduled_update?.duration?;
    let length = duration.length();
    let is_too_short = length.is_none_or(|length| length < SHORTEST_UPDATE);
    // Zero counts as absent, as in upstream; absent means the default.
    let counts = is_scheduled || length != Some(SignedDuration::ZERO);
    let text = duration.as_str();
    (is_too_short && counts).then(|| format!("is {text:?}, which is not a duration of at least a minute"))
}
