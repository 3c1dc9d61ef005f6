//! The API reference in Markdown, generated from the definitions.

use std::fmt::Write;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion, JSONSchemaProps, JSONSchemaPropsOrArray,
    JSONSchemaPropsOrBool,
};

/// Renders the reference of these kinds.
pub fn render_markdown(crds: &[CustomResourceDefinition]) -> String {
    let mut page = String::from(
        "# API reference\n\n\
         <!-- Made from the definitions by `cargo run -p slurm-operator-api --example reference > docs/api.md`. -->\n\n\
         A field marked * is required. `[]` stands for the items of a list.\n\
         A field of type *core/v1* is open: it takes any field of the Kubernetes type its description names.\n",
    );
    for crd in crds {
        for version in &crd.spec.versions {
            render_kind(&mut page, crd, version);
        }
    }
    page
}

fn render_kind(page: &mut String, crd: &CustomResourceDefinition, version: &CustomResourceDefinitionVersion) {
    let Some(schema) = version
        .schema
        .as_ref()
        .and_then(|schema| schema.open_api_v3_schema.as_ref())
    else {
        return;
    };
    let names = &crd.spec.names;
    let description = schema.description.as_deref().unwrap_or_default();
    let (group, plural) = (&crd.spec.group, &names.plural);
    // Writing to a String cannot fail, here and below.
    let _ = write!(page, "\n## {}\n\n{description}\n\n", names.kind);
    let _ = write!(page, "`{group}/{}`, `kubectl get {plural}`", version.name);
    for short in names.short_names.iter().flatten().filter(|short| *short != plural) {
        let _ = write!(page, " or `{short}`");
    }
    if version
        .subresources
        .as_ref()
        .is_some_and(|subresources| subresources.scale.is_some())
    {
        let singular = names.singular.as_deref().unwrap_or(plural);
        let _ = write!(page, ", `kubectl scale {singular}`");
    }
    page.push_str("\n\n");

    for part in ["spec", "status"] {
        let Some(schema) = schema.properties.as_ref().and_then(|properties| properties.get(part)) else {
            continue;
        };
        page.push_str("| Field | Type | Default | Meaning |\n|---|---|---|---|\n");
        render_fields(page, part, schema);
        page.push('\n');
    }
    let kind = &names.kind;
    let _ = writeln!(
        page,
        "What its values must fulfil: [rules](admission.md#{}).",
        kind.to_lowercase()
    );
}

fn render_fields(page: &mut String, path: &str, schema: &JSONSchemaProps) {
    for (name, field) in schema.properties.iter().flatten() {
        let path = format!("{path}.{name}");
        let required = if schema.required.iter().flatten().any(|required| required == name) {
            " *"
        } else {
            ""
        };
        let default = field
            .default
            .as_ref()
            .map_or_else(String::new, |default| format!("`{}`", default.0));
        let (type_, meaning) = (type_of(field), cell(field.description.as_deref().unwrap_or_default()));
        let _ = writeln!(page, "| `{path}`{required} | {type_} | {default} | {meaning} |");
        render_fields(page, &path, field);
        if let Some(item) = item_of(field) {
            render_fields(page, &format!("{path}[]"), item);
        }
    }
}

fn type_of(schema: &JSONSchemaProps) -> String {
    if schema.x_kubernetes_preserve_unknown_fields == Some(true) {
        return "core/v1".into();
    }
    if schema.x_kubernetes_int_or_string == Some(true) {
        return "integer or string".into();
    }
    if let Some(words) = &schema.enum_ {
        return words
            .iter()
            .map(|word| format!("`{}`", word.0))
            .collect::<Vec<_>>()
            .join(", ");
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &schema.additional_properties {
        return format!("map of {}", type_of(values));
    }
    if let Some(item) = item_of(schema) {
        return format!("list of {}", type_of(item));
    }
    match (schema.type_.as_deref(), schema.format.as_deref()) {
        (Some("string"), Some("date-time")) => "time".into(),
        (Some(name), _) => name.into(),
        (None, _) => "any".into(),
    }
}

fn item_of(schema: &JSONSchemaProps) -> Option<&JSONSchemaProps> {
    match schema.items.as_ref()? {
        JSONSchemaPropsOrArray::Schema(item) => Some(item),
        JSONSchemaPropsOrArray::Schemas(_) => None,
    }
}

/// Escapes text for a table cell, which a bar or a line break would end.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}
