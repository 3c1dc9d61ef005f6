//! Generated files are current.

use std::{collections::BTreeSet, fs, path::PathBuf};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use slurm_operator_api::{crds, crds::render_yaml, reference::render_markdown, validate};

fn repository() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", ".."].iter().collect()
}

#[test]
fn the_definitions_in_the_chart_are_current() {
    let folder = repository().join("charts/slurm-operator-crds/templates");
    let remedy = "run: cargo run -p slurm-operator-api --example crds -- charts/slurm-operator-crds/templates";
    let mut expected = BTreeSet::new();
    for crd in crds() {
        let file = format!("{}.yaml", crd.spec.names.plural);
        let text = fs::read_to_string(folder.join(&file)).unwrap_or_default();
        assert!(text == render_yaml(&crd).unwrap(), "{file} is not current; {remedy}");
        expected.insert(file);
    }
    let present: BTreeSet<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(present, expected, "files without a definition");
}

#[test]
fn the_yaml_is_equal_to_the_definition() {
    for crd in crds() {
        let text = render_yaml(&crd).unwrap();
        let again: CustomResourceDefinition = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(again, crd);
        // Helm would interpret them.
        assert!(!text.contains("{{"), "{}", crd.spec.names.kind);
    }
}

#[test]
fn the_reference_is_current() {
    let text = fs::read_to_string(repository().join("docs/api.md")).unwrap_or_default();
    let remedy = "run: cargo run -p slurm-operator-api --example reference > docs/api.md";
    assert!(text == render_markdown(&crds()), "docs/api.md is not current; {remedy}");
}

#[test]
fn the_list_of_rules_is_current() {
    let text = fs::read_to_string(repository().join("docs/admission.md")).unwrap_or_default();
    let remedy = "run: cargo run -p slurm-operator-api --example admission > docs/admission.md";
    assert!(
        text == validate::render_markdown(),
        "docs/admission.md is not current; {remedy}"
    );
}

/// `kubectl apply` stores the whole object in an annotation, which has at most 256 KiB.
#[test]
fn a_definition_can_be_applied() {
    for crd in crds() {
        let length = serde_json::to_string(&crd).unwrap().len();
        assert!(length < 250_000, "{} has {length} bytes", crd.spec.names.kind);
    }
}
