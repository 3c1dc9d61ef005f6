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
    let spec = &schema.properties.unwrap()["spec"];
    // Objects with many odd fields are invalid, and what is planned for them is little. Most objects therefore have what is
    // required and few fields more, or one that is as large as possible.
    let required = spec.required.clone().unwrap_or_default();
    let sparse = (any_value(spec), any::<[sample::Index; 2]>()).prop_map(move |(mut spec, kept)| {
        let fields = spec.as_object_mut().unwrap();
        let names: Vec<String> = fields.keys().cloned().collect();
        let kept = kept.map(|index| (!names.is_empty()).then(|| index.get(&names)));
        fields.retain(|name, _| required.contains(name) || kept.contains(&Some(name)));
        spec
    });
    prop_oneof![1 => any_value(spec), 1 => sparse, 2 => extreme_spec(spec)]
        .prop_filter("too large for the API server", |spec| size(spec) <= MAX_SIZE)
        .boxed()
}

/// The required fields and one more: a number that is as large as rules beyond the schema allow, or a long list.
fn extreme_spec(spec: &JSONSchemaProps) -> BoxedStrategy<Value> {
    let required = spec.required.clone().unwrap_or_default();
    let fields = spec.properties.iter().flatten();
    let (needed, others): (Vec<_>, Vec<_>) = fields.partition(|(name, _)| required.contains(name));
    let needed = JSONSchemaProps {
        properties: Some(
            needed
                .into_iter()
                .map(|(name, field)| (name.clone(), field.clone()))
                .collect(),
        ),
        required: Some(required),
        ..JSONSchemaProps::default()
    };
    let extreme = |(name, field): (&String, &JSONSchemaProps)| {
        let value = match field.type_.as_deref() {
            Some("integer") => any_large_integer(field),
            Some("array") => any_long_list(field)?,
            _ => return None,
        };
        let name = name.clone();
        Some(value.prop_map(move |value| (name.clone(), value)).boxed())
    };
    let extremes: Vec<_> = others.into_iter().filter_map(extreme).collect();
    if extremes.is_empty() {
        return any_fields(&needed);
    }
    (any_fields(&needed), proptest::strategy::Union::new(extremes))
        .prop_map(|(mut spec, (name, value))| {
            spec.as_object_mut().unwrap().insert(name, value);
            spec
        })
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
                let few = collection::vec(any_value(item), 0..3).prop_map(Value::from).boxed();
                match any_long_list(schema) {
                    Some(many) => prop_oneof![9 => few, 1 => many].boxed(),
                    None => few,
                }
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

/// One item many times: different ones are expensive to make.
fn any_long_list(schema: &JSONSchemaProps) -> Option<BoxedStrategy<Value>> {
    let Some(JSONSchemaPropsOrArray::Schema(item)) = &schema.items else {
        return None;
    };
    let most = schema.max_items.map_or(MANY, |most| usize::try_from(most).unwrap());
    let many = (any_value(item), 3..=most.max(3)).prop_map(|(item, count)| {
        let room = MAX_SIZE / (size(&item) + 1);
        Value::from(vec![item; count.min(room)])
    });
    Some(many.boxed())
}

fn bounds(schema: &JSONSchemaProps) -> (i64, i64) {
    #[expect(clippy::cast_possible_truncation, reason = "the schema's bounds are whole numbers")]
    let bound = |bound: Option<f64>, none: i64| bound.map_or(none, |bound| bound as i64);
    let (low, high) = match schema.format.as_deref() {
        Some("int64") => (i64::MIN, i64::MAX),
        _ => (i32::MIN.into(), i32::MAX.into()),
    };
    (bound(schema.minimum, low), bound(schema.maximum, high))
}

/// The largest numbers that rules beyond the schema let through, among them the most replicas.
fn any_large_integer(schema: &JSONSchemaProps) -> BoxedStrategy<Value> {
    let (low, high) = bounds(schema);
    sample::select(vec![8, 256, 65_535, 65_536, i64::MAX])
        .prop_map(move |large| large.clamp(low, high).into())
        .boxed()
}

fn any_integer(schema: &JSONSchemaProps) -> BoxedStrategy<Value> {
    let (low, high) = bounds(schema);
    prop_oneof![
        4 => (0..3_i64).prop_map(move |small| small.clamp(low, high).into()),
        2 => any_large_integer(schema),
        3 => (low..=high).prop_map(Value::from),
        1 => Just(low.into()),
        1 => Just(high.into()),
    ]
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
