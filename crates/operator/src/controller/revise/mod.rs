//! Which version of each input goes into the next revision. One that is bad, or that must wait, is held at the last
//! version that was good, and the others go live without it. Pure.

/// An input that is not live as its owner wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// The field it stands in: `spec.extraConf`, `NodeSet "a" spec.partition`, `ConfigMap "b" entry "gres.conf"`.
    pub(super) source: String,
    /// One of [`super::reason`].
    pub(super) reason: &'static str,
    /// What is wrong and what to do, or what it waits for.
    pub(super) why: String,
}
