//! Strings that other programs, scripts and documents match. They do not change.
//!
//! Who matches them: selectors, dashboards and scripts written for upstream; upstream's documentation with its diagnostic commands;
//! upstream's recorded objects (`crates/operator/tests/golden`); NVSentinel, which reads pod conditions and node reasons and sets
//! annotations; operators of earlier releases, which read what is stored on objects.

use std::collections::BTreeSet;

use slurm_operator_api::{
    conditions,
    keys::{self, annotations, apps, components, labels},
    names::{AccountingName, ControllerName, LoginSetName, NodeSetName, RestApiName},
    wellknown,
};

use crate::files;

/// Every constant of `api::keys` with its value.
const KEYS: &[(&str, &str)] = &[
    (labels::NAME, "app.kubernetes.io/name"),
    (labels::INSTANCE, "app.kubernetes.io/instance"),
    (labels::COMPONENT, "app.kubernetes.io/component"),
    (labels::CLUSTER, "slinky.slurm.net/cluster"),
    (labels::SLINKY_COMPONENT, "slinky.slurm.net/component"),
    (labels::CONTROLLER_ACTIVE, "controller.slinky.slurm.net/active"),
    (labels::POD_NAME, "nodeset.slinky.slurm.net/pod-name"),
    (labels::POD_INDEX, "nodeset.slinky.slurm.net/pod-index"),
    (labels::POD_HOSTNAME, "nodeset.slinky.slurm.net/pod-hostname"),
    (labels::POD_PROTECT, "nodeset.slinky.slurm.net/pod-protect"),
    (labels::SCALING_MODE, "nodeset.slinky.slurm.net/scaling-mode"),
    (labels::REVISION, "controller.kubernetes.io/hash"),
    (apps::SLURMCTLD, "slurmctld"),
    (apps::SLURMD, "slurmd"),
    (apps::SLURMRESTD, "slurmrestd"),
    (apps::SLURMDBD, "slurmdbd"),
    (apps::LOGIN, "login"),
    (components::CONTROLLER, "controller"),
    (components::WORKER, "worker"),
    (components::RESTAPI, "restapi"),
    (components::ACCOUNTING, "accounting"),
    (components::LOGIN, "login"),
    (annotations::POD_CORDON, "nodeset.slinky.slurm.net/pod-cordon"),
    (annotations::POD_CORDON_OLD, "slinky.slurm.net/pod-cordon"),
    (
        annotations::POD_CORDON_REASON,
        "nodeset.slinky.slurm.net/pod-cordon-reason",
    ),
    (annotations::LEAVING, "nodeset.slinky.slurm.net/leaving"),
    (
        annotations::POD_DELETION_COST,
        "nodeset.slinky.slurm.net/pod-deletion-cost",
    ),
    (annotations::POD_DEADLINE, "nodeset.slinky.slurm.net/pod-deadline"),
    (annotations::FORCE_DELETION, "nodeset.slinky.slurm.net/force-deletion"),
    (annotations::FORCE_CONFIG, "slinky.slurm.net/force-config"),
    (annotations::RESUMED_AT, "slinky.slurm.net/resumed-at"),
    (annotations::PARTITION_MADE_AT, "slinky.slurm.net/made-at"),
    (annotations::PARTITION_REASON, "slinky.slurm.net/drain-reason"),
    (annotations::CANDIDATE, "slinky.slurm.net/candidate"),
    // NVSentinel sets it.
    (
        annotations::NODE_CORDON_REASON,
        "nodeset.slinky.slurm.net/node-cordon-reason",
    ),
    (
        annotations::HOSTNAME_OVERRIDE,
        "nodeset.slinky.slurm.net/hostname-override",
    ),
    (annotations::TOPOLOGY, "topology.slinky.slurm.net/spec"),
    (annotations::FEATURES, "features.slinky.slurm.net/spec"),
    (annotations::SLURM_KEY_HASH, "slinky.slurm.net/slurm-key-hash"),
    (annotations::JWT_KEY_HASH, "slinky.slurm.net/jwt-key-hash"),
    (annotations::SLURM_CONFIG_HASH, "slinky.slurm.net/slurm-config-hash"),
    (annotations::SLURMDBD_CONF_HASH, "slinky.slurm.net/slurmdbd-conf-hash"),
    (annotations::SSHD_CONF_HASH, "slinky.slurm.net/sshd-conf-hash"),
    (annotations::SSSD_CONF_HASH, "slinky.slurm.net/sssd-conf-hash"),
    (annotations::SSH_HOST_KEYS_HASH, "slinky.slurm.net/ssh-host-keys-hash"),
    (
        annotations::DEFAULT_CONTAINER,
        "kubectl.kubernetes.io/default-container",
    ),
    (annotations::SCHEMA_REVISION, "slinky.slurm.net/schema-revision"),
    (annotations::HELM_RESOURCE_POLICY, "helm.sh/resource-policy"),
    (keys::ON, "true"),
    (keys::NODESET_FINALIZER, "nodeset.slinky.slurm.net/reservation"),
    (keys::PARTITION_FINALIZER, "partition.slinky.slurm.net/slurm"),
    (keys::WORKER_TAINT, "nodeset.slinky.slurm.net/worker"),
    // NVSentinel takes a node reason without this prefix for one that a person or another program gave.
    (keys::NODE_REASON_PREFIX, "slurm-operator: "),
    (keys::NODE_FEATURE_PREFIX, "k8s/"),
    (keys::POD_CONDITION_PREFIX, "SlurmNodeState"),
];

/// Every condition type that is a constant of `api::conditions`.
const CONDITION_TYPES: &[(&str, &str)] = &[
    (conditions::READY, "Ready"),
    (conditions::PROGRESSING, "Progressing"),
    (conditions::DEGRADED, "Degraded"),
    (conditions::CONFIG_APPLIED, "ConfigurationApplied"),
    (conditions::CONFIG_DOUBTFUL, "ConfigDoubtful"),
    (conditions::SUPERVISED, "Supervised"),
    (conditions::SLURM_REACHABLE, "SlurmReachable"),
    (conditions::RESERVATION_CREATED, "ReservationCreated"),
    (conditions::PARTITION_RETAINED, "PartitionRetained"),
    (conditions::NOT_PERSISTENT, "NotPersistent"),
    (conditions::DRIFTED, "Drifted"),
    (conditions::CRDS_OUTDATED, "CRDsOutdated"),
    (conditions::UNKNOWN_FIELDS, "UnknownFields"),
];

/// Text of the named crate's source outside its tests.
const IN_SOURCE: &[(&str, &[&str])] = &[
    (
        "agent",
        &[
            // Lines of the container `reconfigure` that upstream's script writes and its documentation shows.
            "[{date}] Start '{}' polling",
            "[{date}] Reconfiguring Slurm...",
            "[{date}] SUCCESS",
            "[{date}] Failed to reconfigure, try again...",
            // As GNU date prints, which the script calls.
            "\"%a %b %d %H:%M:%S UTC %Y\"",
        ],
    ),
    (
        "operator",
        &[
            // What follows `slurm-operator: ` in the reason of a node; the first four are upstream's.
            ") is pending termination for ",
            "\"scale-in\"",
            ") was cordoned\"",
            ") must be cordoned\"",
            "\"Pod is terminating\"",
            "\"lost: ",
            "\"another scaling mode\"",
            "\"its Kubernetes node, where it should not be\"",
            "\"an update\"",
            "\"deletion of its NodeSet\"",
            // What follows `SlurmNodeState` in the type of a pod condition. NVSentinel reads `SlurmNodeStateDrain`.
            "\"Allocated\"",
            "\"Down\"",
            "\"Error\"",
            "\"Future\"",
            "\"Idle\"",
            "\"Mixed\"",
            "\"Unknown\"",
            "\"Completing\"",
            "\"Drain\"",
            "\"Fail\"",
            "\"Invalid\"",
            "\"InvalidReg\"",
            "\"Maintenance\"",
            "\"NotResponding\"",
            "\"Undrain\"",
            // Reasons of `ReservationCreated`.
            "\"Created\"",
            "\"NotExists\"",
            // Events that upstream sends under the same reason.
            "\"ScalingUp\"",
            "\"ScalingDown\"",
            "\"RollingUpdate\"",
            "\"DefunctSlurmNodePruned\"",
            "\"FailedCreate\"",
            "\"SuccessfulDelete\"",
            // Annotations that an operator of an earlier release may have written.
            "\"nodeset.slinky.slurm.net/drained\"",
            "\"nodeset.slinky.slurm.net/resumed\"",
            "\"nodeset.slinky.slurm.net/drain-reason\"",
            "\"slinky.slurm.net/restart-reasons\"",
            "\"slinky.slurm.net/template-version\"",
            // Fields of a Slurm node's comment, in camel case.
            "\"nodeSetUID\"",
            // Metrics; the registry adds the prefix, and `_total` to counters.
            "\"slurm_operator\"",
            "\"reconciles\"",
            "\"reconcile_seconds\"",
            "\"queue_depth\"",
            "\"reconciles_running\"",
            "\"api_writes\"",
            "\"api_writes_skipped\"",
            "\"leader\"",
            "\"watch_restarts\"",
            "\"undecodable_objects\"",
            "\"events_dropped\"",
            "\"crds_outdated\"",
            "\"configuration_seconds\"",
            "\"configuration_changes\"",
            "\"configuration_actions\"",
        ],
    ),
];

/// What comes before the tests of a source file; nothing of a file that holds only tests.
fn without_tests<'a>(path: &str, text: &'a str) -> &'a str {
    if path.contains("/tests/") || path.ends_with("/tests.rs") {
        return "";
    }
    text.find("#[cfg(test)]\nmod tests {")
        .map_or(text, |start| &text[..start])
}

/// The values of the string constants of a file of this crate.
fn string_constants(file: &str) -> Vec<String> {
    let text = files("crates/api/src", file).remove(0).1.replace("=\n", "=");
    let lines = text
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("pub const "));
    lines
        .filter_map(|line| line.split_once(": &str = \"")?.1.strip_suffix("\";"))
        .map(str::to_owned)
        .collect()
}

#[track_caller]
fn check_list(file: &str, list: &[(&str, &str)]) {
    for (constant, frozen) in list {
        assert_eq!(constant, frozen, "{file}: other programs match the old value");
    }
    let frozen: Vec<&str> = list.iter().map(|(_, frozen)| *frozen).collect();
    assert_eq!(string_constants(file), frozen, "{file}: list new constants here");
}

#[test]
fn labels_annotations_and_prefixes_do_not_change() {
    check_list("/keys.rs", KEYS);
}

#[test]
fn condition_types_do_not_change() {
    check_list("/conditions.rs", CONDITION_TYPES);
}

#[test]
fn log_lines_node_reasons_events_and_metrics_do_not_change() {
    for (name, strings) in IN_SOURCE {
        // The operator's runtime is a crate of its own, and the plugin knows the reasons of nodes too.
        let others = if *name == "operator" {
            [
                files("crates/runtime/src", ".rs"),
                files("crates/api/src", "/node_reason.rs"),
            ]
            .concat()
        } else {
            Vec::new()
        };
        let source: String = files(&format!("crates/{name}/src"), ".rs")
            .iter()
            .chain(&others)
            .map(|(path, text)| without_tests(path, text))
            .collect();
        for string in *strings {
            assert!(
                source.contains(string),
                "crates/{name}/src no longer has {string}, which others match"
            );
        }
    }
}

#[test]
fn upstreams_objects_use_no_key_but_those_listed() {
    let listed: BTreeSet<&str> = KEYS.iter().map(|(_, frozen)| *frozen).collect();
    let mut seen = 0;
    for (path, text) in files("crates/operator/tests/golden", ".yaml") {
        for word in text.split([' ', '"', '\'', '\n']) {
            let key = word.trim_end_matches(':');
            let Some((prefix, _)) = key.split_once("slinky.slurm.net/") else {
                continue;
            };
            // `apiVersion: slinky.slurm.net/v1beta1`, and parts of Slurm's own values.
            if key.ends_with("/v1beta1") || !prefix.chars().all(|c| c.is_ascii_lowercase() || c == '.') {
                continue;
            }
            seen += 1;
            assert!(listed.contains(key), "{path}: {key}");
        }
    }
    assert!(seen > 100, "{seen}");
}

#[test]
fn names_ports_and_files_in_diagnostic_commands_do_not_change() {
    // `kubectl get configmap <controller>-config`, `kubectl delete pod <controller>-controller-0` and the like.
    let controller = ControllerName::new("c");
    for (name, frozen) in [
        (controller.config_map(), "c-config"),
        (controller.stateful_set(), "c-controller"),
        (controller.service(), "c-controller"),
        (controller.internal_service(), "c-controller-internal"),
        (controller.pod(0), "c-controller-0"),
        (controller.state_claim(), "statesave-c-controller-0"),
        (controller.workers_service(), "slurm-workers-c"),
        (controller.workers_disruption_budget(), "slurm-workers-pdb-c"),
        (AccountingName::new("a").stateful_set(), "a-accounting"),
        (RestApiName::new("r").deployment(), "r-restapi"),
        (LoginSetName::new("l").deployment(), "l"),
        (LoginSetName::new("l").ssh_config_map(), "l-ssh-config"),
        (LoginSetName::new("l").ssh_host_keys_secret(), "l-ssh-host-keys"),
        (NodeSetName::new("n").pod(2, 3), "n-002"),
        (NodeSetName::new("n").reservation(), "SlurmOperatorMaint-n"),
        (NodeSetName::new("n").ssh_config_map(), "n-ssh-config"),
    ] {
        assert_eq!(name, frozen);
    }
    assert_eq!(
        [
            wellknown::SLURMCTLD_PORT,
            wellknown::SLURMD_PORT,
            wellknown::SLURMDBD_PORT,
            wellknown::SLURMRESTD_PORT
        ],
        [6817, 6818, 6819, 6820]
    );
    for (name, frozen) in [
        (wellknown::SLURM_ETC_DIR, "/etc/slurm"),
        (wellknown::STATE_DIR, "/var/spool/slurmctld"),
        (wellknown::SLURM_CONF_FILE, "slurm.conf"),
        (wellknown::CGROUP_CONF_FILE, "cgroup.conf"),
        (wellknown::SLURM_KEY_FILE, "slurm.key"),
        (wellknown::STATE_VOLUME, "statesave"),
        (wellknown::TOKEN_SECRET_KEY, "SLURM_JWT"),
    ] {
        assert_eq!(name, frozen);
    }
}

#[test]
fn status_fields_that_scripts_read_do_not_change() {
    let crds = slurm_operator_api::crds();
    let nodeset = crds.iter().find(|crd| crd.spec.names.kind == "NodeSet").unwrap();
    let schema = serde_json::to_value(&nodeset.spec.versions[0].schema).unwrap();
    let status = &schema["openAPIV3Schema"]["properties"]["status"]["properties"];
    for field in [
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
        "desired",
        "slurmIdle",
        "slurmAllocated",
        "slurmDown",
        "slurmDrain",
        "observedGeneration",
        "nodeSetHash",
        "collisionCount",
        "conditions",
        "ordinalToNode",
        "selector",
    ] {
        assert!(status.get(field).is_some(), "status.{field}");
    }
}
