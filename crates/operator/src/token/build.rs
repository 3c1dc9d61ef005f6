//! The Secret of a Token. Pure: values in, objects out.

use std::collections::BTreeMap;

use api::Token;
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::ResourceExt as _;

use crate::template::metadata::{Marks, owner};

pub(super) fn build_secret(token: &Token, text: &str) -> Secret {
    let entry = (token.spec.secret_key().to_owned(), ByteString(text.as_bytes().to_vec()));
    Secret {
        metadata: Marks::of_for_pods(&token.metadata).into_meta(
            &token.namespace().unwrap_or_default(),
            token.secret_name(),
            owner(token),
        ),
        type_: Some("Opaque".to_owned()),
        data: Some(BTreeMap::from([entry])),
        ..Secret::default()
    }
}
