//! Names that Kubernetes accepts.

use super::Problems;

/// Maximum length of a DNS label, and of the value of a Kubernetes label.
pub(super) const LABEL_LIMIT: usize = 63;
/// Maximum length of a DNS name.
const SUBDOMAIN_LIMIT: usize = 253;
/// Maximum length of the name of a StatefulSet: its pods have a label with the name, a dash and a hash of ten digits.
const STATEFUL_SET_LIMIT: usize = LABEL_LIMIT - 11;

/// Names that mean something else in slurm.conf: the defaults of all partitions, and all nodes.
const RESERVED: [&str; 2] = ["default", "all"];

/// Whether Slurm gives a name of a partition or NodeSet another meaning.
pub(super) fn is_reserved(name: &str) -> bool {
    RESERVED.iter().any(|reserved| name.eq_ignore_ascii_case(reserved))
}

/// Whether a name has lower-case letters, digits and inner dashes, and at most 63 of them.
pub(super) fn is_label(name: &str) -> bool {
    name.len() <= LABEL_LIMIT && is_part(name)
}

/// Whether a name has parts with dots between them, and at most 253 characters.
pub(super) fn is_subdomain(name: &str) -> bool {
    // The parts may be longer than a label: Kubernetes limits the whole name only.
    name.len() <= SUBDOMAIN_LIMIT && name.split('.').all(is_part)
}

fn is_part(part: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !part.is_empty() && part.chars().all(inner) && !part.starts_with('-') && !part.ends_with('-')
}

/// Checks the name of an object whose Service has that name and `suffix`.
pub(super) fn check_service_parent(problems: &mut Problems, kind: &str, name: &str, suffix: &str) {
    check_parent(problems, kind, name, suffix, LABEL_LIMIT, "Service");
}

/// Checks the name of an object whose StatefulSet and Service have that name and `suffix`.
pub(super) fn check_stateful_set_parent(problems: &mut Problems, kind: &str, name: &str, suffix: &str) {
    check_parent(problems, kind, name, suffix, STATEFUL_SET_LIMIT, "StatefulSet");
}

fn check_parent(problems: &mut Problems, kind: &str, name: &str, suffix: &str, limit: usize, child: &str) {
    let longest = limit.saturating_sub(suffix.len());
    if name.len() > longest {
        problems.bad_name(
            "metadata.name",
            format!(
                "has {} characters, which makes the name of its {child} {name}{suffix} too long",
                name.len()
            ),
            format!("give the {kind} a name of at most {longest} characters"),
        );
    } else if !is_label(name) {
        problems.bad_name(
            "metadata.name",
            format!("is {name:?}, which is not a valid name of a Service"),
            format!("give the {kind} a name of lower-case letters, digits and dashes, without dots"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_subdomains_are_distinguished() {
        for good in ["a", "a-1", "0", "slurm-worker-slinky"] {
            assert!(is_label(good) && is_subdomain(good), "{good}");
        }
        for dotted in ["a.b", "jwt.key.d"] {
            assert!(!is_label(dotted) && is_subdomain(dotted), "{dotted}");
        }
        for bad in ["", "-", "a-", "-a", "A", "a b", "a\n", ".", "a.", "ä", "a_b"] {
            assert!(!is_label(bad) && !is_subdomain(bad), "{bad:?}");
        }
        let long = "a".repeat(64);
        assert!(!is_label(&long) && is_subdomain(&long));
        assert!(!is_subdomain(&"a".repeat(254)));
    }

    #[test]
    fn a_name_leaves_room_for_its_suffix() {
        let check = |name: &str| {
            let mut problems = Problems::default();
            check_stateful_set_parent(&mut problems, "Controller", name, "-controller");
            problems
        };
        assert!(check(&"a".repeat(41)).is_ok());
        assert!(!check(&"a".repeat(42)).is_ok());
        assert!(!check("my.cluster").is_ok());
    }
}
