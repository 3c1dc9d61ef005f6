//! "Did you mean …": the known name nearest to a misspelled one.

/// Longer words are not compared, to save time.
const LONGEST: usize = 48;

pub(super) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > LONGEST {
        return None;
    }
    // A third of the letters may be wrong: enough for a typo or two, too few to turn one key into another.
    let allowed = (word.chars().count() / 3).clamp(1, 3);
    known
        .into_iter()
        .filter(|name| name.len() <= LONGEST)
        .map(|name| (distance(word, name), name))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// The edit distance, ignoring case.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().map(|c| c.to_ascii_lowercase()).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (at, left) in a.chars().map(|c| c.to_ascii_lowercase()).enumerate() {
        let mut next = Vec::with_capacity(row.len());
        let mut before = at + 1;
        next.push(before);
        for (pair, right) in row.windows(2).zip(&b) {
            let &[diagonal, above] = pair else { continue };
            let replaced = diagonal + usize::from(left != *right);
            before = replaced.min(above + 1).min(before + 1);
            next.push(before);
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{distance, nearest};

    #[test]
    fn insertions_deletions_and_replacements_count() {
        for (a, b, expected) in [
            ("", "abc", 3),
            ("abc", "ABC", 0),
            ("kitten", "sitting", 3),
            ("ab", "", 2),
        ] {
            assert_eq!(distance(a, b), expected, "{a} {b}");
        }
    }

    #[test]
    fn a_typo_is_recognised_and_other_words_are_not() {
        let known = ["MaxTime", "MaxNodes", "State", "Nodes"];
        assert_eq!(nearest("Maxtimes", known), Some("MaxTime"));
        assert_eq!(nearest("Stat", known), Some("State"));
        assert_eq!(nearest("FooBar", known), None);
        assert_eq!(nearest(&"MaxTime".repeat(20), known), None);
    }
}
