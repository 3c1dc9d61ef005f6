//! Keys that hold a list of options, some of which a cluster cannot do without.
//!
//! In slurm.conf the last line of a key wins, so a user's own `SlurmctldParameters=` would take away the operator's.
//! Both are therefore joined into one more line at the end of the file.

use super::line::is_space;

/// Joins a user's comma-separated options with the required ones. Where both name the same option the required one
/// stands. The result is sorted, so that it does not depend on how the user ordered them.
///
/// The user's spelling is kept: options may hold paths.
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
    fn the_required_value_of_an_option_stands() {
        assert_eq!(merge_options(&["overlap=0"], "overlap=1"), "overlap=0");
        assert_eq!(merge_options(&["overlap=0"], "OVERLAP"), "overlap=0");
    }

    #[test]
    fn a_path_keeps_its_case_and_empty_options_go() {
        assert_eq!(merge_options(&["a"], ",jwks=/Etc/K.json,, ,b"), "a,b,jwks=/Etc/K.json");
    }
}
