//! Whether an existing object is ours. Pure.
//!
//! The name of a child is derived from the name of its owner, so there may already be a foreign object of that name. An
//! object is changed and deleted only if it is ours.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::change::in_group;

/// Helm's annotation with the release that an object belongs to.
const HELM_RELEASE: &str = "meta.helm.sh/release-name";

/// The relation of an existing object to the owners that want it as their child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// It has one of them as owner. Children that upstream created are ours too: they have the same owners.
    Ours,
    /// Its owner was deleted and one of them has the same name. The garbage collector will delete it.
    Leftover { owner: String },
    /// It belongs to another owner, described as the predicate of a sentence.
    Foreign { owner: String },
}

impl Ownership {
    /// `wanted` are the owners that the child should have, `applied` is whether our field manager has applied to the
    /// object: one whose owner references were removed, or that was orphaned on purpose, is still ours.
    pub(crate) fn of(meta: &ObjectMeta, wanted: &[OwnerReference], applied: bool) -> Self {
        let owners = meta.owner_references.as_deref().unwrap_or_default();
        let is_wanted = |owner: &OwnerReference| wanted.iter().any(|wanted| wanted.uid == owner.uid);
        let controller = controller(meta);
        if controller.is_none_or(is_wanted) && owners.iter().any(is_wanted) || owners.is_empty() && applied {
            return Self::Ours;
        }
        let decisive = controller.map_or(owners, std::slice::from_ref);
        let earlier = decisive
            .iter()
            .find(|owner| wanted.iter().any(|wanted| is_earlier(owner, wanted)));
        match earlier {
            Some(earlier) => Self::Leftover { owner: name(earlier) },
            None => Self::Foreign { owner: describe(meta) },
        }
    }
}

/// The owner that controls the object: there is at most one, and it takes precedence.
pub(crate) fn controller(meta: &ObjectMeta) -> Option<&OwnerReference> {
    let mut owners = meta.owner_references.iter().flatten();
    owners.find(|owner| owner.controller == Some(true))
}

/// Whether the owner is an earlier object with the name of the wanted one.
fn is_earlier(owner: &OwnerReference, wanted: &OwnerReference) -> bool {
    let group = wanted.api_version.rsplit_once('/').map_or("", |(group, _)| group);
    owner.kind == wanted.kind && owner.name == wanted.name && in_group(&owner.api_version, group)
}

fn describe(meta: &ObjectMeta) -> String {
    let owners = meta.owner_references.as_deref().unwrap_or_default();
    if let Some(owner) = controller(meta).or(owners.first()) {
        return format!("belongs to {}", name(owner));
    }
    let release = meta.annotations.as_ref().and_then(|notes| notes.get(HELM_RELEASE));
    release.map_or_else(
        || "has no owner".to_owned(),
        |release| format!("belongs to Helm release {release}"),
    )
}

fn name(owner: &OwnerReference) -> String {
    format!("{} {}", owner.kind, owner.name)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn owner(kind: &str, name: &str, uid: &str, controller: bool) -> Value {
        json!({"apiVersion": "slinky.slurm.net/v1beta1", "kind": kind, "name": name, "uid": uid, "controller": controller})
    }

    fn ownership(owners: &[Value], wanted: &[Value], applied: bool) -> Ownership {
        let meta: ObjectMeta = serde_json::from_value(json!({ "ownerReferences": owners })).unwrap();
        let wanted: Vec<OwnerReference> = serde_json::from_value(json!(wanted)).unwrap();
        Ownership::of(&meta, &wanted, applied)
    }

    fn foreign(owner: &str) -> Ownership {
        Ownership::Foreign {
            owner: owner.to_owned(),
        }
    }

    #[test]
    fn an_object_is_ours_if_it_has_our_uid_as_owner() {
        let ours = owner("LoginSet", "a", "1", true);
        let wanted = std::slice::from_ref(&ours);
        assert_eq!(ownership(wanted, wanted, false), Ownership::Ours);
        let others = owner("LoginSet", "b", "2", true);
        assert_eq!(ownership(&[others], wanted, false), foreign("belongs to LoginSet b"));
        let borrowed = [
            owner("LoginSet", "a", "1", false),
            owner("Deployment", "web", "3", true),
        ];
        assert_eq!(ownership(&borrowed, wanted, true), foreign("belongs to Deployment web"));
        let older: Value =
            json!({"apiVersion": "slinky.slurm.net/v1alpha1", "kind": "LoginSet", "name": "a", "uid": "1"});
        assert_eq!(ownership(&[older], wanted, false), Ownership::Ours);
    }

    #[test]
    fn without_an_owner_only_an_object_that_we_applied_is_ours() {
        let wanted = [owner("LoginSet", "a", "1", true)];
        assert_eq!(ownership(&[], &wanted, false), foreign("has no owner"));
        assert_eq!(ownership(&[], &wanted, true), Ownership::Ours);
        let annotations = [(HELM_RELEASE.to_owned(), "web".to_owned())].into();
        let helms = ObjectMeta {
            annotations: Some(annotations),
            ..ObjectMeta::default()
        };
        assert_eq!(
            Ownership::of(&helms, &[], false),
            foreign("belongs to Helm release web")
        );
    }

    #[test]
    fn a_child_of_an_earlier_object_of_the_same_name_is_a_leftover() {
        let leftover = Ownership::Leftover {
            owner: "LoginSet a".to_owned(),
        };
        let wanted = [owner("LoginSet", "a", "2", true)];
        for controller in [true, false] {
            let earlier = [owner("LoginSet", "a", "1", controller)];
            assert_eq!(ownership(&earlier, &wanted, true), leftover);
        }
        let other_group = json!({"apiVersion": "example.org/v1", "kind": "LoginSet", "name": "a", "uid": "1"});
        assert_eq!(
            ownership(&[other_group], &wanted, false),
            foreign("belongs to LoginSet a")
        );
    }

    #[test]
    fn a_shared_object_is_ours_by_any_of_its_owners() {
        let [a, b] = ["a", "b"].map(|name| owner("NodeSet", name, name, false));
        let again = owner("NodeSet", "a", "another", false);
        assert_eq!(
            ownership(&[a.clone(), b.clone()], &[again.clone(), b], false),
            Ownership::Ours
        );
        assert!(matches!(ownership(&[a], &[again], false), Ownership::Leftover { .. }));
    }
}
