//! The signature of the bundle's ConfigMap, from which slurmctld's pod starts and which the operator takes for its memory.
//! Otherwise whoever can write ConfigMaps could run programs as slurmctld's user at its next start.

use serde::{Deserialize, Serialize};

use super::key::{EmptyKey, derive};
use crate::jws::Key;
use crate::revision::Digest;

/// The entry of the ConfigMap, beside the bundle's, and the name of the file.
pub const SIGNATURE_FILE: &str = "bundle.sig";

/// More than a signature has.
pub const MAX_SIGNATURE: usize = 512;

/// Separates this key from the one of requests and responses.
const PURPOSE: &[u8] = b"slurm-agent/v1/bundle";

/// The secret that signs bundles, derived from the cluster's `jwt.key`.
#[derive(Debug, Clone)]
pub struct BundleKey(Key);

/// What a signature covers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedBundle {
    bundle: Digest,
    /// The record of the inputs, which the operator keeps beside the bundle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    inputs: Option<Digest>,
}

impl SignedBundle {
    pub fn covers(&self, bundle: &[u8]) -> bool {
        self.bundle == Digest::of(bundle)
    }

    pub fn covers_inputs(&self, inputs: &[u8]) -> bool {
        self.inputs == Some(Digest::of(inputs))
    }
}

impl BundleKey {
    pub fn derive(jwt_key: &[u8]) -> Result<Self, EmptyKey> {
        derive(jwt_key, PURPOSE).map(Self)
    }

    /// Signs a bundle and the record of its inputs.
    pub fn sign(&self, bundle: &[u8], inputs: Option<&[u8]>) -> String {
        let signed = SignedBundle {
            bundle: Digest::of(bundle),
            inputs: inputs.map(Digest::of),
        };
        // Two digests cannot fail to encode.
        self.0.encode(&signed).unwrap_or_default()
    }

    /// Returns what a signature of this key covers.
    pub fn read(&self, signature: &[u8]) -> Option<SignedBundle> {
        let signature = std::str::from_utf8(signature).ok()?;
        self.0.verify(signature.trim()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::AgentKey;

    #[test]
    fn a_signature_covers_the_bundle_and_its_inputs() {
        let key = BundleKey::derive(b"key").unwrap();
        let signature = key.sign(b"bundle", Some(b"inputs"));
        assert!(signature.len() < MAX_SIGNATURE, "{}", signature.len());
        let signed = key.read(signature.as_bytes()).unwrap();
        assert!(signed.covers(b"bundle") && signed.covers_inputs(b"inputs"));
        assert!(!signed.covers(b"other") && !signed.covers_inputs(b"other"));
        let alone = key.sign(b"bundle", None);
        let alone = key.read(alone.as_bytes()).unwrap();
        assert!(alone.covers(b"bundle") && !alone.covers_inputs(b""));
    }

    #[test]
    fn another_key_or_an_altered_signature_is_rejected() {
        let key = BundleKey::derive(b"key").unwrap();
        let signature = key.sign(b"bundle", None);
        assert!(
            BundleKey::derive(b"other")
                .unwrap()
                .read(signature.as_bytes())
                .is_none()
        );
        for altered in ["", "x", &format!("{signature}x"), &signature[1..]] {
            assert!(key.read(altered.as_bytes()).is_none(), "{altered}");
        }
        assert!(key.read(&[0xff]).is_none());
        // The key of requests is another one.
        let request = AgentKey::derive(b"key")
            .unwrap()
            .0
            .encode(&serde_json::json!({ "bundle": Digest::of(b"bundle") }));
        assert!(key.read(request.unwrap().as_bytes()).is_none());
        assert!(BundleKey::derive(b"").is_err());
    }
}
