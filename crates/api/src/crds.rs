//! The CustomResourceDefinitions of all kinds.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceValidation,
};
use kube::CustomResourceExt;
use schemars::JsonSchema;

use crate::{
    accounting::{Accounting, AccountingSpec, AccountingStatus},
    controller::{Controller, ControllerSpec, ControllerStatus},
    keys::annotations,
    loginset::{LoginSet, LoginSetSpec, LoginSetStatus},
    nodeset::{NodeSet, NodeSetSpec, NodeSetStatus},
    partition::{Partition, PartitionSpec, PartitionStatus},
    restapi::{RestApi, RestApiSpec, RestApiStatus},
    schema,
    token::{Token, TokenSpec, TokenStatus},
    validate::{Validate, cel},
};

/// Number of the schema in these definitions, written on them as [`annotations::SCHEMA_REVISION`].
///
/// It is incremented with the first change after a release. An operator that finds a lower number, or none (as on
/// upstream's definitions), does not write newer fields: the API server would drop them silently.
pub const SCHEMA_REVISION: u32 = 2;

/// Returns the definitions of all kinds, ordered by name.
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![
        definition::<Accounting, AccountingSpec, AccountingStatus>(),
        definition::<Controller, ControllerSpec, ControllerStatus>(),
        definition::<LoginSet, LoginSetSpec, LoginSetStatus>(),
        definition::<NodeSet, NodeSetSpec, NodeSetStatus>(),
        definition::<Partition, PartitionSpec, PartitionStatus>(),
        definition::<RestApi, RestApiSpec, RestApiStatus>(),
        definition::<Token, TokenSpec, TokenStatus>(),
    ]
}

/// Renders a definition as the YAML in the chart.
pub fn render_yaml(crd: &CustomResourceDefinition) -> Result<String, serde_saphyr::ser::Error> {
    serde_saphyr::to_string(crd)
}

fn definition<Kind, Spec, Status>() -> CustomResourceDefinition
where
    Kind: CustomResourceExt + Validate,
    Spec: JsonSchema,
    Status: JsonSchema,
{
    let mut crd = Kind::crd();
    crd.metadata.annotations = Some(BTreeMap::from([
        (annotations::SCHEMA_REVISION.to_owned(), SCHEMA_REVISION.to_string()),
        // Deleting the definitions would delete every cluster.
        (annotations::HELM_RESOURCE_POLICY.to_owned(), "keep".to_owned()),
    ]));
    for version in &mut crd.spec.versions {
        let mut schema = schema::of_kind::<Spec, Status>();
        let entries = Kind::entries();
        let rules = entries.iter().flat_map(|rule| cel::validations(rule, &schema));
        schema.x_kubernetes_validations = Some(cel::spec_is_required().into_iter().chain(rules).collect());
        version.schema = Some(CustomResourceValidation {
            open_api_v3_schema: Some(schema),
        });
    }
    crd
}
