//! A revision in a mounted ConfigMap, for an agent that cannot be reached: the bundle and its token, one file each. There is no
//! response; the live revision shows the outcome.

use std::time::{Duration, SystemTime};

use super::fence::Fence;
use super::key::AgentKey;
use super::token::{Claims, Request};
use crate::Revision;
use crate::revision::{Digest, TooLarge};

/// The entries of the ConfigMap, and the names of the files.
pub const BUNDLE_FILE: &str = "candidate";
pub const TOKEN_FILE: &str = "token";

/// The method and path of the token. No request to the agent's port can have them.
pub(super) const METHOD: &str = "MOUNT";
const PATH: &str = "/candidate";

/// The clock of an agent that cannot be reached is not known. The operator's may be this far ahead of it.
const MAX_LEAD: Duration = Duration::from_mins(1);

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
        let now = now.checked_sub(MAX_LEAD).unwrap_or(now);
        let claims = Claims::new(request(pod), &bundle, Some(fence), now);
        Ok(Self {
            // The claims cannot fail to encode.
            token: claims.sign(key).unwrap_or_default(),
            bundle,
        })
    }
}

impl Candidate {
    /// Whether a holder of the key made it, for whichever pod and whenever.
    pub fn is_signed(&self, key: &AgentKey) -> bool {
        let claims: Option<Claims> = key.0.verify(&self.token).ok();
        claims.is_some_and(|claims| {
            (claims.method.as_str(), claims.path.as_str()) == (METHOD, PATH) && claims.body == Digest::of(&self.bundle)
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

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::revision::ControllerUid;

    #[test]
    fn a_candidate_is_valid_if_the_clocks_are_a_minute_apart() {
        let revision = Revision {
            sequence: 1,
            controller: ControllerUid::new("a").unwrap(),
            files: BTreeMap::new(),
            closed_by_hand: BTreeSet::new(),
        };
        let (key, fence) = (AgentKey::derive(b"key").unwrap(), Fence { term: 1, sequence: 1 });
        let at = |seconds: u64| UNIX_EPOCH + Duration::from_secs(seconds);
        let candidate = Candidate::new(&revision, fence, "pod", &key, at(10_000)).unwrap();
        let verify = |now: u64| Claims::verify(&candidate.token, &key, request("pod"), at(now));
        // Five minutes later the operator renews it.
        for now in [9_940, 10_000, 10_360] {
            verify(now).unwrap();
        }
        verify(10_600).unwrap_err();
        assert!(candidate.is_signed(&key));
        assert!(!candidate.is_signed(&AgentKey::derive(b"other").unwrap()));
        let other = Candidate {
            bundle: b"other".to_vec(),
            ..candidate
        };
        assert!(!other.is_signed(&key));
    }
}
