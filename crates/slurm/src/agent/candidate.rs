//! A revision that comes by a mounted ConfigMap, where the agent cannot be reached: the same bundle with the same kind of
//! token, one file each. Nobody answers; what is live tells how it ended.

use std::time::SystemTime;

use super::fence::Fence;
use super::key::AgentKey;
use super::token::{Claims, Request};
use crate::Revision;
use crate::revision::TooLarge;

/// The entries of the ConfigMap, and the names of the files.
pub const BUNDLE_FILE: &str = "candidate";
pub const TOKEN_FILE: &str = "token";

/// What the token is for: nothing that could be sent to the agent's port.
pub(super) const METHOD: &str = "MOUNT";
const PATH: &str = "/candidate";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub bundle: Vec<u8>,
    pub token: String,
}

impl Candidate {
    /// For the pod of this UID.
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
            // Our own claims have nothing that JSON does not have.
            token: claims.sign(key).unwrap_or_default(),
            bundle,
        })
    }
}

/// What a candidate's token has to be for.
pub fn request(pod: &str) -> Request<'_> {
    Request {
        method: METHOD,
        path: PATH,
        pod,
    }
}
