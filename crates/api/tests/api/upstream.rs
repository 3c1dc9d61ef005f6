//! Our schema compared with upstream's in `upstream-fields.txt`.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use slurm_operator_api::{crds::SCHEMA_REVISION, keys::annotations};

use crate::common::{KINDS, definition, schema};

/// Fields that upstream does not have or defines differently, each with the reason.
const DIFFERENCES: &[(&str, &str)] = &[
    (
        "Controller spec.configUpdate",
        "asks for a restart, which inplaceReconfigure: false no longer does",
    ),
    (
        "Controller status.configuration",
        "which revision is wanted, live and refused, and how it came there",
    ),
    (
        "Controller spec.ha.enabled",
        "has a default, so requiring it says nothing",
    ),
    (
        "Controller spec.persistence.enabled",
        "has a default, so requiring it says nothing",
    ),
    (
        "Controller spec.externalConfig.port",
        "Slurm's own port where none is said, as upstream's guide promises",
    ),
    (
        "Accounting spec.externalConfig.port",
        "Slurm's own port where none is said, as upstream's guide promises",
    ),
    (
        "NodeSet spec.ssh.enabled",
        "has a default, so requiring it says nothing",
    ),
    (
        "NodeSet spec.ssh.sssdConfRef",
        "upstream needs it even where SSH is off",
    ),
    (
        "NodeSet spec.partition.enabled",
        "a partition without it is wanted, as the seeds have it and as upstream 1.0 had it",
    ),
    (
        "NodeSet spec.volumeClaimTemplates",
        "upstream takes anything; a list of objects is the least that makes sense",
    ),
    (
        "NodeSet spec.volumeClaimTemplates[]",
        "upstream takes anything; a list of objects is the least that makes sense",
    ),
    (
        "NodeSet spec.drain",
        "upstream waits for jobs however long they take, without another choice",
    ),
    (
        "NodeSet spec.drain.timeout",
        "upstream waits for jobs however long they take, without another choice",
    ),
    (
        "NodeSet spec.drain.onTimeout",
        "upstream waits for jobs however long they take, without another choice",
    ),
    ("NodeSet spec.health", "upstream drains no node for a condition"),
    ("NodeSet spec.autoscaling", "upstream's workers do not follow the queue"),
    (
        "NodeSet spec.autoscaling.enabled",
        "upstream's workers do not follow the queue",
    ),
    (
        "NodeSet spec.autoscaling.minReplicas",
        "upstream's workers do not follow the queue",
    ),
    (
        "NodeSet spec.autoscaling.maxReplicas",
        "upstream's workers do not follow the queue",
    ),
    (
        "NodeSet spec.autoscaling.idleTime",
        "upstream's workers do not follow the queue",
    ),
    (
        "NodeSet spec.autoscaling.bootTimeout",
        "upstream's workers do not follow the queue",
    ),
    (
        "NodeSet spec.autoscaling.shape",
        "upstream's workers do not follow the queue",
    ),
    (
        "NodeSet spec.updateStrategy.paused",
        "upstream has no way to stop an update",
    ),
    (
        "NodeSet status.reservedStart",
        "upstream keeps it as the time of a condition, and then cannot tell what was made",
    ),
    (
        "NodeSet status.cutOff",
        "upstream uses the name of a worker again that may be alive",
    ),
    ("NodeSet status.cutOff{}", "the Kubernetes node it may be alive on"),
    (
        "NodeSet status.slurmOutOfService",
        "upstream counts nodes that are down and drained twice",
    ),
    (
        "NodeSet status.outOfService",
        "upstream leaves it to sinfo why, since when and by whom a node is out of service",
    ),
    (
        "*.namespace of references",
        "accepted when it is the object's own, as in the seeds and in upstream 1.0",
    ),
    (
        "* status.observedGeneration",
        "every kind says what its status is about",
    ),
];

/// The kind that upstream does not have.
const OUR_OWN: &str = "Partition";

#[test]
fn our_schema_is_upstreams_except_for_listed_differences() {
    let mut ours = BTreeMap::new();
    for kind in KINDS.iter().filter(|kind| kind.name != OUR_OWN) {
        let schema = schema(kind.name);
        for part in ["spec", "status"] {
            let part_schema = &schema.properties.as_ref().unwrap()[part];
            describe_fields(&mut ours, &format!("{} {part}", kind.name), part_schema);
        }
    }
    let theirs = upstream();
    let listed: BTreeSet<_> = DIFFERENCES.iter().map(|(field, _)| *field).collect();
    let mut met = BTreeSet::new();
    let mut unexpected = Vec::new();
    for field in ours.keys().chain(theirs.keys()).collect::<BTreeSet<_>>() {
        let (our, their) = (ours.get(field), theirs.get(field));
        if our == their {
            continue;
        }
        let entry = if their.is_none() && (field.ends_with("Ref.namespace") || field.ends_with("Refs[].namespace")) {
            "*.namespace of references"
        } else if field.starts_with("Controller status.configuration.") {
            "Controller status.configuration"
        } else if field.starts_with("NodeSet status.outOfService[]") {
            "NodeSet status.outOfService"
        } else if field.starts_with("NodeSet spec.health") {
            "NodeSet spec.health"
        } else if their.is_none() && field.ends_with(" status.observedGeneration") {
            "* status.observedGeneration"
        } else {
            field
        };
        if let Some(entry) = listed.get(entry) {
            met.insert(*entry);
        } else {
            unexpected.push(format!("{field}: ours {our:?}, upstream's {their:?}"));
        }
    }
    assert_eq!(unexpected, Vec::<String>::new());
    assert_eq!(met, listed, "an entry of the list is no difference any more");
}

/// The content of `upstream-fields.txt`, with its abbreviations expanded.
fn upstream() -> BTreeMap<String, String> {
    let mut fields = BTreeMap::new();
    let lines = include_str!("upstream-fields.txt")
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    for line in lines {
        let words: Vec<_> = line.split(' ').collect();
        let [kind, path, type_, rest @ ..] = words.as_slice() else {
            panic!("{line}")
        };
        let path = format!("{kind} {path}");
        let facts = |type_: &str, more: &[&str]| {
            let mut facts: Vec<_> = more.iter().chain(rest).copied().collect();
            facts.sort_unstable();
            [&[type_], &facts[..]].concat().join(" ")
        };
        let mut add = |below: &str, facts: &str| {
            fields.insert(format!("{path}{below}"), facts.to_owned());
        };
        match *type_ {
            "ref" => {
                add("", &facts("object", &["atomic"]));
                add(".name", r#"string default="""#);
            }
            "key" => {
                add("", &facts("object", &["atomic"]));
                add(".name", r#"string default="""#);
                add(".key", "string required");
                add(".optional", "boolean");
            }
            "template" => {
                add("", &facts("object", &[]));
                add(".spec", "object open");
                add_metadata(&mut add);
            }
            "service" => {
                add("", &facts("object", &[]));
                add(".spec", "object open");
                add(".port", "integer");
                add(".nodePort", "integer");
                add_metadata(&mut add);
            }
            "conditions" => {
                add("", "array keyed=type");
                add("[]", "object");
                add("[].type", "string maxLength=316 pattern required");
                add("[].status", "string enum=False,True,Unknown required");
                add("[].reason", "string maxLength=1024 minLength=1 pattern required");
                add("[].message", "string maxLength=32768 required");
                add("[].lastTransitionTime", "date-time required");
                add("[].observedGeneration", "integer minimum=0");
            }
            // Upstream writes a Go `int` without a format, which Kubernetes reads as 64 bits.
            "int64" => add("", &facts("integer", &[])),
            other => add("", &facts(other, &[])),
        }
    }
    fields
}

fn add_metadata(add: &mut impl FnMut(&str, &str)) {
    add(".metadata", "object");
    for map in [".metadata.labels", ".metadata.annotations"] {
        add(map, "map nullable");
        add(&format!("{map}{{}}"), "string");
    }
}

fn describe_fields(fields: &mut BTreeMap<String, String>, path: &str, schema: &JSONSchemaProps) {
    for (name, field) in schema.properties.iter().flatten() {
        let required = schema.required.iter().flatten().any(|required| required == name);
        describe(fields, &format!("{path}.{name}"), field, required);
    }
}

fn describe(fields: &mut BTreeMap<String, String>, path: &str, schema: &JSONSchemaProps, required: bool) {
    let type_ = match (schema.type_.as_deref(), schema.format.as_deref()) {
        _ if schema.x_kubernetes_int_or_string == Some(true) => "int-or-string",
        (Some("integer"), Some("int32")) => "int32",
        (Some("string"), Some("date-time")) => "date-time",
        (Some("object"), _) if schema.additional_properties.is_some() => "map",
        (type_, _) => type_.unwrap_or("any"),
    };
    let list_type = schema.x_kubernetes_list_type.as_deref();
    let atomic = schema.x_kubernetes_map_type.as_deref() == Some("atomic") || list_type == Some("atomic");
    let keys = schema
        .x_kubernetes_list_map_keys
        .as_ref()
        .filter(|_| list_type == Some("map"));
    let words = schema.enum_.as_ref().map(|words| {
        let mut words: Vec<_> = words.iter().map(|word| word.0.as_str().unwrap().to_owned()).collect();
        words.sort_unstable();
        format!("enum={}", words.join(","))
    });
    // The one pattern of a quantity belongs to its type.
    let pattern = schema.pattern.is_some() && type_ != "int-or-string";
    let mut facts: Vec<String> = [
        atomic.then(|| "atomic".into()),
        schema.default.as_ref().map(|default| format!("default={}", default.0)),
        words,
        keys.map(|keys| format!("keyed={}", keys.join(","))),
        schema.max_length.map(|length| format!("maxLength={length}")),
        schema.min_length.map(|length| format!("minLength={length}")),
        schema.maximum.map(|maximum| format!("maximum={maximum}")),
        schema.minimum.map(|minimum| format!("minimum={minimum}")),
        (schema.nullable == Some(true)).then(|| "nullable".into()),
        (schema.x_kubernetes_preserve_unknown_fields == Some(true)).then(|| "open".into()),
        pattern.then(|| "pattern".into()),
        required.then(|| "required".into()),
    ]
    .into_iter()
    .flatten()
    .collect();
    facts.sort_unstable();
    fields.insert(path.to_owned(), [&[type_.to_owned()], &facts[..]].concat().join(" "));

    describe_fields(fields, path, schema);
    if let Some(JSONSchemaPropsOrArray::Schema(item)) = &schema.items {
        describe(fields, &format!("{path}[]"), item, false);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(value)) = &schema.additional_properties {
        describe(fields, &format!("{path}{{}}"), value, false);
    }
}

/// Kind, plural, short names, columns.
const NAMES: [(&str, &str, &str, &str); 6] = [
    ("Accounting", "accountings", "slurmdbd", AGE),
    ("Controller", "controllers", "slurmctld", AGE),
    (
        "LoginSet",
        "loginsets",
        "loginsets lss sackd",
        "REPLICAS:integer:.status.replicas:0 AGE",
    ),
    (
        "NodeSet",
        "nodesets",
        "nodesets nss slurmd",
        "DESIRED:integer:.status.desired:0 REPLICAS:integer:.status.replicas:0 \
         UPDATED:integer:.status.updatedReplicas:0 READY:integer:.status.readyReplicas:0 \
         IDLE:integer:.status.slurmIdle:1 ALLOCATED:integer:.status.slurmAllocated:1 \
         DOWN:integer:.status.slurmDown:1 DRAIN:integer:.status.slurmDrain:1 AGE",
    ),
    ("RestApi", "restapis", "slurmrestd", AGE),
    (
        "Token",
        "tokens",
        "tokens jwt",
        "USER:string:.spec.username:0 IAT:date:.status.issuedAt:0 AGE",
    ),
];

const AGE: &str = "AGE";

#[test]
fn kinds_have_upstreams_names_and_columns() {
    for (kind, plural, short_names, columns) in NAMES {
        let crd = definition(kind);
        let names = crd.spec.names;
        assert_eq!(crd.metadata.name.unwrap(), format!("{plural}.slinky.slurm.net"));
        assert_eq!(
            (crd.spec.group.as_str(), crd.spec.scope.as_str()),
            ("slinky.slurm.net", "Namespaced")
        );
        assert_eq!(
            (names.plural.as_str(), names.singular.unwrap()),
            (plural, kind.to_lowercase())
        );
        assert_eq!(names.short_names.unwrap().join(" "), short_names, "{kind}");
        assert_eq!(names.categories.unwrap(), ["slurm"], "ours: kubectl get slurm");
        let [version] = crd.spec.versions.as_slice() else {
            panic!("{kind} has one version")
        };
        assert_eq!(
            (version.name.as_str(), version.served, version.storage),
            ("v1beta1", true, true)
        );
        let columns_found = version.additional_printer_columns.iter().flatten();
        let (ours, theirs): (Vec<_>, Vec<_>) = columns_found.partition(|column| column.json_path.contains("@.type=="));
        assert!(ours.iter().any(|column| column.name == "REASON"), "{kind}");
        let found = theirs.iter().map(|column| {
            let priority = column.priority.unwrap_or(0);
            let all = format!("{}:{}:{}:{priority}", column.name, column.type_, column.json_path);
            if all == "AGE:date:.metadata.creationTimestamp:0" {
                AGE.to_owned()
            } else {
                all
            }
        });
        assert_eq!(found.collect::<Vec<_>>().join(" "), columns, "{kind}");
    }
}

#[test]
fn node_and_login_sets_scale_and_every_kind_has_a_status() {
    for kind in &KINDS {
        let version = definition(kind.name).spec.versions.remove(0);
        let subresources = version.subresources.unwrap();
        assert!(subresources.status.is_some(), "{}", kind.name);
        let paths = subresources.scale.map(|scale| {
            (
                scale.spec_replicas_path,
                scale.status_replicas_path,
                scale.label_selector_path.unwrap(),
            )
        });
        let expected = (
            ".spec.replicas".into(),
            ".status.replicas".into(),
            ".status.selector".into(),
        );
        assert_eq!(paths, kind.name.ends_with("Set").then_some(expected), "{}", kind.name);
    }
}

#[test]
fn definitions_have_their_revision_and_are_kept_after_an_uninstall() {
    for kind in &KINDS {
        let marks = definition(kind.name).metadata.annotations.unwrap();
        assert_eq!(marks[annotations::SCHEMA_REVISION], SCHEMA_REVISION.to_string());
        assert_eq!(marks["helm.sh/resource-policy"], "keep");
    }
}

/// kubectl's strict validation finds a typo only where every object lists its fields.
#[test]
fn only_overlays_are_open() {
    fn look(path: &str, schema: &JSONSchemaProps) {
        let open = schema.x_kubernetes_preserve_unknown_fields == Some(true);
        let described = schema.properties.is_some() || schema.additional_properties.is_some();
        if schema.type_.as_deref() == Some("object") && path != ".metadata" {
            assert!(open != described, "{path}");
        }
        for (name, field) in schema.properties.iter().flatten() {
            look(&format!("{path}.{name}"), field);
        }
        if let Some(JSONSchemaPropsOrArray::Schema(item)) = &schema.items {
            look(&format!("{path}[]"), item);
        }
    }
    for kind in &KINDS {
        look("", &schema(kind.name));
    }
}

#[test]
fn every_field_is_explained() {
    fn look(path: &str, schema: &JSONSchemaProps) {
        for (name, field) in schema.properties.iter().flatten() {
            let path = format!("{path}.{name}");
            assert!(
                field.description.as_ref().is_some_and(|text| text.ends_with('.')),
                "{path}"
            );
            look(&path, field);
        }
        if let Some(JSONSchemaPropsOrArray::Schema(item)) = &schema.items {
            look(&format!("{path}[]"), item);
        }
    }
    for kind in &KINDS {
        for part in ["spec", "status"] {
            look(
                &format!("{} {part}", kind.name),
                &schema(kind.name).properties.unwrap()[part],
            );
        }
    }
}
