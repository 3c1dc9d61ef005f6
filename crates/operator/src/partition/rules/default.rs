//! The default partition: at most one, and jobs that name no partition must have one.

/// Why a deleted partition must be kept.
pub(crate) const LAST_DEFAULT: &str =
    "it is the default partition, and jobs without a partition would be rejected; make another partition the default";

/// Whether a value of `Default=` makes a partition the default.
pub(crate) fn is_yes(value: &str) -> bool {
    value.trim_matches('"').eq_ignore_ascii_case("YES")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_makes_a_partition_the_default() {
        for (value, expected) in [
            ("YES", true),
            ("yes", true),
            ("\"Yes\"", true),
            ("NO", false),
            ("", false),
        ] {
            assert_eq!(is_yes(value), expected, "{value}");
        }
    }
}
