//! A revision in a mounted ConfigMap, for an agent that cannot be reached: the bundle and its token, one file each. There is no
//! response; the live revision shows the outcome.

use std::time::SystemTime;

use super::fence::Fence;
use super::key::AgentKey;
use super::token::{Claims, Request};
use crate::Revision;
use crate::revision::TooLarge;

/// The entries of the ConfigMap, and the names of the files.
pub const BUNDLE_FILE: &str = "candidate";
pub const TOKEN_FILE: &str = "token";

/// The method and path of the token. No request to the agent's port can have them.
pub(super) const METHOD: &str = "MOUNT";
const PATH: &str = "/candidate";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub bundle: Vec<u8>,
    pub token: String,
}

impl Candidate {
    /// `pod` is the UID of the pod.
    pub fn new(
        revision: &Revision,
        fence: Fence,
        pod: &str,
        key: &AgentKey,
        now: SystemTime,
    ) -> Result<Self, TooLarge> {
        let bundle = revision.to_bundle()?;
        let claims = Claims::new(request(pod), &bundle, Some(fence), now);
        Ok(Self {
            // The claims cannot fail to encode.
            token: claims.sign(key).unwrap_or_default(),
            bundle,
        })
    }
}

/// The request that the token of a candidate has to be valid for.
pub fn request(pod: &str) -> Request<'_> {
    Request {
        method: METHOD,
        path: PATH,
        pod,
    }
}
