//! The `Key=Value` items of one line of a Slurm file.

/// The items, which are separated by blanks. Blanks inside double quotes are part of a value.
pub fn items(text: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    let parts = text.split(move |c: char| {
        quoted ^= c == '"';
        c.is_whitespace() && !quoted
    });
    parts.filter(|item| !item.is_empty())
}

#[cfg(test)]
mod tests {
    use super::items;

    #[test]
    fn quotes_keep_a_value_together() {
        for (text, expected) in [
            ("", &[][..]),
            ("  A=1\t B=2 ", &["A=1", "B=2"]),
            ("A=\"x  y\" B=2", &["A=\"x  y\"", "B=2"]),
            ("A=\"\" B=2", &["A=\"\"", "B=2"]),
        ] {
            assert_eq!(items(text).collect::<Vec<_>>(), expected, "{text:?}");
        }
    }
}
