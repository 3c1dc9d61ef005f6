//! Slurm's compressed form for lists of names: `n[1-3,07-10],login`.
//!
//! A [`Hostlist`] is a set, ordered by prefix and number. Numbers keep their leading zeros: `n1` and `n01` are two nodes.

use std::collections::BTreeSet;
use std::fmt;

use thiserror::Error;

/// The maximum number of names. Slurm itself accepts no more in one pair of brackets (`MAX_RANGE`), and no cluster is larger, so a
/// longer list is a mistake or an attack.
pub const MAX_HOSTS: usize = 64 * 1024;

/// The maximum length of a name in DNS.
pub const MAX_NAME: usize = 255;

/// The maximum number of digits at the end of a name that are its number: more would not fit into 64 bits.
const MAX_DIGITS: usize = 18;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HostlistError {
    #[error("{0:?} has brackets that do not match")]
    Brackets(String),
    #[error("{0:?} is no range; write numbers as in [1-3,07]")]
    Range(String),
    #[error("the list has more than {MAX_HOSTS} names")]
    TooMany,
    #[error("a name is longer than {MAX_NAME} bytes")]
    TooLong,
    #[error("{0:?} is not a host name")]
    Name(String),
}

#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Hostlist {
    hosts: BTreeSet<Host>,
}

impl Hostlist {
    /// An empty text is an empty list. Spaces separate names as commas do.
    pub fn parse(text: &str) -> Result<Self, HostlistError> {
        let mut hosts = BTreeSet::new();
        let mut room = MAX_HOSTS;
        if !is_balanced(text) {
            return Err(HostlistError::Brackets(shortened(text, 64)));
        }
        for item in split_list(text) {
            let names = expand(item, room)?;
            room = room.checked_sub(names.len()).ok_or(HostlistError::TooMany)?;
            hosts.extend(names.iter().map(|name| Host::of_name(name)));
        }
        Ok(Self { hosts })
    }

    /// Creates a list of names without brackets.
    pub fn of_names<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Result<Self, HostlistError> {
        let mut hosts = BTreeSet::new();
        for name in names {
            let name = name.as_ref();
            if name.is_empty() || name.contains(|c| is_separator(c) || c == '[' || c == ']') {
                return Err(HostlistError::Name(name.to_owned()));
            }
            if name.len() > MAX_NAME {
                return Err(HostlistError::TooLong);
            }
            hosts.insert(Host::of_name(name));
            if hosts.len() > MAX_HOSTS {
                return Err(HostlistError::TooMany);
            }
        }
        Ok(Self { hosts })
    }

    pub fn contains(&self, name: &str) -> bool {
        self.hosts.contains(&Host::of_name(name))
    }

    pub fn len(&self) -> usize {
        self.hosts.len()
    }

    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    pub fn names(&self) -> impl Iterator<Item = String> {
        self.hosts.iter().map(ToString::to_string)
    }
}

/// The compressed form. As in Slurm, only the last number of a name is put into brackets.
impl fmt::Display for Hostlist {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<&Host> = self.hosts.iter().collect();
        for (at, group) in hosts
            .chunk_by(|a, b| a.prefix == b.prefix && a.tail.is_some())
            .enumerate()
        {
            if at > 0 {
                f.write_str(",")?;
            }
            fmt_group(f, group)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Hostlist {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hostlist({self})")
    }
}

fn fmt_group(f: &mut fmt::Formatter<'_>, group: &[&Host]) -> fmt::Result {
    let Some((first, rest)) = group.split_first() else {
        return Ok(());
    };
    if rest.is_empty() {
        return write!(f, "{first}");
    }
    write!(f, "{}[", first.prefix)?;
    let tails: Vec<Tail> = group.iter().filter_map(|host| host.tail).collect();
    // All numbers of a range have the width of the first one, as the parser expects.
    for (at, run) in tails.chunk_by(|a, b| a.next() == Some(*b)).enumerate() {
        if at > 0 {
            f.write_str(",")?;
        }
        match run {
            [] => {}
            [only] => write!(f, "{only}")?,
            [low, .., high] => write!(f, "{low}-{high}")?,
        }
    }
    f.write_str("]")
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Host {
    prefix: String,
    tail: Option<Tail>,
}

/// The number at the end of a name. Ordered by width first, so that `9, 10` and `07, 08` each stay together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Tail {
    width: usize,
    value: u64,
}

impl Tail {
    fn parse(digits: &str) -> Option<Self> {
        let plain = digits.len() <= MAX_DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
        let value = digits.parse().ok().filter(|_| plain)?;
        Some(Self {
            width: digits.len(),
            value,
        })
    }

    fn next(self) -> Option<Self> {
        let value = self.value.checked_add(1)?;
        let digits = value.checked_ilog10().map_or(1, |log| log as usize + 1);
        Some(Self {
            width: self.width.max(digits),
            value,
        })
    }
}

impl fmt::Display for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:0width$}", self.value, width = self.width)
    }
}

impl Host {
    fn of_name(name: &str) -> Self {
        let digits = name
            .bytes()
            .rev()
            .take(MAX_DIGITS)
            .take_while(u8::is_ascii_digit)
            .count();
        let (prefix, tail) = name.split_at_checked(name.len() - digits).unwrap_or((name, ""));
        Self {
            prefix: prefix.to_owned(),
            tail: Tail::parse(tail),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.prefix)?;
        self.tail.iter().try_for_each(|tail| write!(f, "{tail}"))
    }
}

fn is_separator(c: char) -> bool {
    matches!(c, ',' | ' ' | '\t' | '\n')
}

/// Splits at separators outside of brackets.
pub(crate) fn split_list(list: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    list.split(move |c| {
        inside = c == '[' || (inside && c != ']');
        is_separator(c) && !inside
    })
    .filter(|item| !item.is_empty())
}

/// Whether each bracket is closed before the next one is opened.
fn is_balanced(text: &str) -> bool {
    let mut inside = false;
    let mut brackets = text.chars().filter(|c| matches!(c, '[' | ']'));
    brackets.all(|bracket| std::mem::replace(&mut inside, bracket == '[') == (bracket == ']')) && !inside
}

/// Limits what a hostile text can add to conditions and events.
pub(crate) fn shortened(text: &str, longest: usize) -> String {
    let mut short: String = text.chars().take(longest).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

/// Expands one name with brackets in it, such as `r[1-2]n[1-3]-ib`, to at most `room` names.
fn expand(item: &str, room: usize) -> Result<Vec<String>, HostlistError> {
    let mut names = vec![String::new()];
    let mut longest = 0;
    let mut rest = item;
    while let Some((text, after)) = rest.split_once('[') {
        let (ranges, after) = after
            .split_once(']')
            .ok_or_else(|| HostlistError::Brackets(shortened(item, 64)))?;
        let ranges: Vec<(Tail, Tail)> = ranges.split(',').map(parse_range).collect::<Result<_, _>>()?;
        let widths = ranges.iter().map(|(low, high)| low.width.max(high.width));
        longest += text.len() + widths.max().unwrap_or(0);
        if longest > MAX_NAME {
            return Err(HostlistError::TooLong);
        }
        let counts = ranges.iter().map(|(low, high)| high.value - low.value + 1);
        let count = usize::try_from(counts.fold(0, u64::saturating_add)).unwrap_or(usize::MAX);
        if names.len().saturating_mul(count) > room {
            return Err(HostlistError::TooMany);
        }
        let numbers = |name: &String| -> Vec<String> {
            let of_range = |(low, high): &(Tail, Tail)| {
                let (name, width) = (name.clone(), low.width);
                (low.value..=high.value).map(move |value| format!("{name}{text}{value:0width$}"))
            };
            ranges.iter().flat_map(of_range).collect()
        };
        names = names.iter().flat_map(numbers).collect();
        rest = after;
    }
    if longest + rest.len() > MAX_NAME {
        return Err(HostlistError::TooLong);
    }
    for name in &mut names {
        name.push_str(rest);
    }
    Ok(names)
}

fn parse_range(range: &str) -> Result<(Tail, Tail), HostlistError> {
    let (low, high) = range.split_once('-').unwrap_or((range, range));
    match (Tail::parse(low), Tail::parse(high)) {
        (Some(low), Some(high)) if low.value <= high.value => Ok((low, high)),
        _ => Err(HostlistError::Range(shortened(range, 64))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Hostlist, HostlistError, MAX_HOSTS};

    fn names(text: &str) -> Vec<String> {
        Hostlist::parse(text).unwrap().names().collect()
    }

    #[test]
    fn ranges_keep_leading_zeros() {
        assert_eq!(names("n[1-3,07-10]"), ["n1", "n2", "n3", "n07", "n08", "n09", "n10"]);
        assert_eq!(names("n[098-101]"), ["n098", "n099", "n100", "n101"]);
        assert_eq!(names("n[9-11]"), ["n9", "n10", "n11"]);
    }

    #[test]
    fn several_brackets_multiply() {
        assert_eq!(names("r[1-2]n[1-2]-ib"), ["r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib"]);
    }

    #[test]
    fn commas_and_spaces_separate_and_duplicates_are_dropped() {
        assert_eq!(names("login, a[1,1-2],,a1\n"), ["a1", "a2", "login"]);
        assert!(names("").is_empty());
    }

    #[test]
    fn the_compressed_form_is_that_of_slurm() {
        for (long, short) in [
            ("n3,n1,n2", "n[1-3]"),
            ("slinky-0,slinky-1,slinky-3", "slinky-[0-1,3]"),
            ("n08,n09,n10", "n[08-10]"),
            ("n9,n10,n99,n100", "n[9-10,99-100]"),
            ("n1", "n1"),
            ("n,n1,n2", "n,n[1-2]"),
            ("r1n1,r1n2,r2n1", "r1n[1-2],r2n1"),
            ("n1-ib,n2-ib", "n1-ib,n2-ib"),
            ("0,1", "[0-1]"),
            ("n99999999999999999999", "n99999999999999999999"),
        ] {
            assert_eq!(Hostlist::parse(long).unwrap().to_string(), short);
        }
    }

    #[test]
    fn invalid_lists_are_rejected() {
        for text in [
            "n[1-", "n1]", "n[[1]]", "n[]", "n[1,]", "n[3-1]", "n[a-b]", "n[1--2]", "n[-1]", "n[1 - 2]", "[", "][",
        ] {
            assert!(Hostlist::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn hostile_lists_are_rejected_before_they_are_expanded() {
        assert_eq!(Hostlist::parse(&format!("n[1-{MAX_HOSTS}]")).unwrap().len(), MAX_HOSTS);
        for text in [
            "n[0-65536]",
            "n[1-999999999999999999]",
            "n[1-60000],m[1-60000]",
            "a[1-300]b[1-300]",
        ] {
            assert_eq!(Hostlist::parse(text), Err(HostlistError::TooMany), "{text}");
        }
        assert_eq!(Hostlist::parse(&"a[1-99]".repeat(40)), Err(HostlistError::TooMany));
        assert_eq!(Hostlist::parse(&"a".repeat(256)), Err(HostlistError::TooLong));
        assert_eq!(Hostlist::parse(&"[1]".repeat(256)), Err(HostlistError::TooLong));
        assert!(Hostlist::parse("n[99999999999999999999]").is_err());
    }

    #[test]
    fn a_name_with_brackets_or_commas_is_rejected() {
        for name in ["", "a,b", "n[1]", "a b"] {
            assert!(Hostlist::of_names([name]).is_err(), "{name}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = Hostlist::parse(&text);
        }

        #[test]
        fn no_text_of_the_right_characters_panics(text in "[a-c0-9\\[\\],-]{0,40}") {
            let _ = Hostlist::parse(&text);
        }

        #[test]
        fn a_written_list_is_read_back(names in prop::collection::btree_set("[a-c]{0,2}[0-9]{0,4}(-ib|[a-c])?[0-9]{0,3}", 0..60)) {
            let names: Vec<String> = names.into_iter().filter(|name| !name.is_empty()).collect();
            let list = Hostlist::of_names(&names).unwrap();
            prop_assert_eq!(list.len(), names.len());
            prop_assert!(names.iter().all(|name| list.contains(name)));
            prop_assert_eq!(Hostlist::parse(&list.to_string()).unwrap(), list);
        }

        #[test]
        fn the_compressed_form_of_a_list_is_the_same_list(text in "[ab]\\[[0-9]{1,3}(,[0-9]{1,2})?\\]([c-])?,[ab][0-9]{0,2}") {
            let list = Hostlist::parse(&text).unwrap();
            prop_assert_eq!(Hostlist::parse(&list.to_string()).unwrap(), list);
        }
    }
}
