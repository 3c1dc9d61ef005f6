//! Keys with a list of options, some of which a cluster needs.
//!
//! In slurm.conf the last line of a key is effective, so a user's `SlurmctldParameters=` would override the operator's. Both are
//! therefore merged into one more line at the end of the file.

use super::line::is_space;

/// Merges a user's comma-separated options with the required ones, which take precedence. The result is sorted, so that it does not
/// depend on the user's order.
///
/// The user's spelling is kept, since options may have paths.
pub fn merge_options(required: &[&str], user: &str) -> String {
    let is_required = |option: &str| required.iter().any(|own| name(own).eq_ignore_ascii_case(name(option)));
    let mut options = required.to_vec();
    options.extend(
        user.split(',')
            .map(|option| option.trim_matches(is_space))
            .filter(|o| !o.is_empty() && !is_required(o)),
    );
    options.sort_unstable();
    options.dedup_by(|a, b| a.eq_ignore_ascii_case(b));
    options.join(",")
}

fn name(option: &str) -> &str {
    option.split_once('=').map_or(option, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::merge_options;

    #[test]
    fn options_of_both_are_sorted() {
        assert_eq!(merge_options(&["bar", "baz"], "fizz,buzz"), "bar,baz,buzz,fizz");
        assert_eq!(merge_options(&["bar", "Thing"], "bar,Overlap"), "Overlap,Thing,bar");
    }

    #[test]
    fn the_required_value_of_an_option_takes_precedence() {
        assert_eq!(merge_options(&["overlap=0"], "overlap=1"), "overlap=0");
        assert_eq!(merge_options(&["overlap=0"], "OVERLAP"), "overlap=0");
    }

    #[test]
    fn a_path_keeps_its_case_and_empty_options_are_dropped() {
        assert_eq!(merge_options(&["a"], ",jwks=/Etc/K.json,, ,b"), "a,b,jwks=/Etc/K.json");
    }
}
