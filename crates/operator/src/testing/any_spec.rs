//! Specs that the API server would store: whatever the schema of a kind lets through. A few of them are as large as it allows.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use proptest::{collection, option, prelude::*, sample, string::string_regex};
use serde_json::{Map, Value};

/// A spec of this kind.
pub(crate) fn any_spec(kind: &str) -> BoxedStrategy<Value> {
    let definition = api::crds().into_iter().find(|crd| crd.spec.names.kind == kind).unwrap();
    let version = definition.spec.versions.into_iter().next().unwrap();
    let schema = version.schema.and_then(|schema| schema.open_api_v3_schema).unwrap();
    any_value(&schema.properties.unwrap()["spec"])
        .prop_filter("too large for the API server", |spec| size(spec) <= MAX_SIZE)
        .boxed()
}

fn any_value(schema: &JSONSchemaProps) -> BoxedStrategy<Value> {
    let longest = schema.max_length.map(|longest| usize::try_from(longest).unwrap());
    let text = |pattern: &Option<String>| match pattern {
        Some(pattern) => string_regex(pattern.trim_start_matches('^').trim_end_matches('$'))
            .unwrap()
            .prop_map(Value::from)
            .boxed(),
        None => any_text()
            .prop_map(move |text| {
                text.chars()
                    .take(longest.unwrap_or(MAX_SIZE))
                    .collect::<String>()
                    .into()
            })
            .boxed(),
    };
    if schema.x_kubernetes_int_or_string == Some(true) {
        return prop_oneof![any::<i64>().prop_map(Value::from), text(&schema.pattern)].boxed();
    }
    if schema.x_kubernetes_preserve_unknown_fields == Some(true) {
        return any_overlay().boxed();
    }
    if let Some(words) = &schema.enum_ {
        return sample::select(words.iter().map(|word| word.0.clone()).collect::<Vec<_>>()).boxed();
    }
    match schema.type_.as_deref() {
        Some("boolean") => any::<bool>().prop_map(Value::from).boxed(),
        Some("integer") => any_integer(schema),
        Some("string") => text(&schema.pattern),
        Some("array") => match &schema.items {
            Some(JSONSchemaPropsOrArray::Schema(item)) => {
                let most = schema.max_items.map_or(MANY, |most| usize::try_from(most).unwrap());
                // Different ones are expensive to make.
                let many = (any_value(item), 3..=most.max(3)).prop_map(|(item, count)| {
                    let room = MAX_SIZE / (size(&item) + 1);
                    vec![item; count.min(room)]
                });
                prop_oneof![9 => collection::vec(any_value(item), 0..3), 1 => many]
                    .prop_map(Value::from)
                    .boxed()
            }
            _ => Just(Value::from(Vec::<Value>::new())).boxed(),
        },
        _ => match &schema.additional_properties {
            Some(JSONSchemaPropsOrBool::Schema(value)) => {
                collection::btree_map("[a-z./-]{1,8}", any_value(value), 0..3)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect()))
                    .boxed()
            }
            _ => any_fields(schema),
        },
    }
}

/// etcd stores no more.
const MAX_SIZE: usize = 3 << 19;
/// More than a person would write.
const MANY: usize = 1024;

fn size(value: &Value) -> usize {
    value.to_string().len()
}

fn any_integer(schema: &JSONSchemaProps) -> BoxedStrategy<Value> {
    #[expect(clippy::cast_possible_truncation, reason = "the schema's bounds are whole numbers")]
    let bound = |bound: Option<f64>, none: i64| bound.map_or(none, |bound| bound as i64);
    let (low, high) = match schema.format.as_deref() {
        Some("int64") => (i64::MIN, i64::MAX),
        _ => (i32::MIN.into(), i32::MAX.into()),
    };
    let (low, high) = (bound(schema.minimum, low), bound(schema.maximum, high));
    prop_oneof![
        4 => (0..3_i64).prop_map(move |small| small.clamp(low, high)),
        3 => low..=high,
        1 => Just(low),
        1 => Just(high),
    ]
    .prop_map(Value::from)
    .boxed()
}

fn any_fields(schema: &JSONSchemaProps) -> BoxedStrategy<Value> {
    let required = schema.required.clone().unwrap_or_default();
    let mut fields = Just(Map::new()).boxed();
    for (name, field) in schema.properties.iter().flatten() {
        let (name, value) = (name.clone(), any_value(field));
        let value = if required.contains(&name) {
            value.prop_map(Some).boxed()
        } else {
            option::of(value).boxed()
        };
        fields = (fields, value)
            .prop_map(move |(mut fields, value)| {
                fields.extend(value.map(|value| (name.clone(), value)));
                fields
            })
            .boxed();
    }
    fields.prop_map(Value::Object).boxed()
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        // Names the tests have objects of.
        sample::select(vec!["slurm", "slurm-config", "slurm-auth-slurm", "files"]).prop_map(str::to_owned),
        "[a-z]([-a-z0-9]{0,10}[a-z0-9])?",
        "([A-Z][a-z]{1,6}=[a-z0-9,]{0,6}[ \\n]){0,3}",
        "\\PC{0,20}",
        "(.|\\n){0,8}",
        any_burden(),
    ]
}

/// Short texts that stand for much, and long ones.
fn any_burden() -> impl Strategy<Value = String> {
    let repeated = [
        "x",
        "\n",
        "a,",
        "((",
        "\"\\\"",
        "# \\\n",
        "Include files\n",
        "MaxJobCount=5\n",
    ];
    let lines =
        |line: fn(usize) -> String| (1..4000_usize).prop_map(move |count| (0..count).map(line).collect::<String>());
    prop_oneof![
        (sample::select(repeated.to_vec()), 0..30_000_usize).prop_map(|(text, count)| text.repeat(count)),
        lines(|number| format!("PartitionName=p{number} Nodes=ALL\n")),
        lines(|number| format!("NodeSet=s{number} Feature=f{number}\n")),
        sample::select(vec![
            "NodeName=n[0-65535] CPUs=1",
            "NodeName=n[0-99999999999]",
            "PartitionName=p Nodes=n[0-4294967295]",
            "PartitionName=p Nodes=a[1-99][1-99][1-99][1-99]",
            "NodeName=a[0-9],b[0-9],[0-9][0-9][0-9][0-9][0-9][0-9]",
            "MaxNodeCount=18446744073709551615",
        ])
        .prop_map(str::to_owned),
    ]
}

/// Fields of containers, pods and Services, with values that are right or wrong.
fn any_overlay() -> impl Strategy<Value = Value> {
    let name = prop_oneof![
        sample::select(vec![
            "affinity",
            "args",
            "command",
            "containers",
            "env",
            "externalIPs",
            "externalName",
            "hostname",
            "image",
            "initContainers",
            "livenessProbe",
            "metadata",
            "name",
            "ports",
            "resources",
            "securityContext",
            "selector",
            "spec",
            "volumeMounts",
            "volumes",
        ])
        .prop_map(str::to_owned),
        "[a-zA-Z]{1,8}",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
    ];
    let value = leaf.prop_recursive(4, 24, 3, move |inner| {
        prop_oneof![
            collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            collection::btree_map(name.clone(), inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    });
    collection::btree_map("image|args|env|command|volumes|containers|[a-z]{1,6}", value, 0..4)
        .prop_map(|fields| Value::Object(fields.into_iter().collect()))
}
