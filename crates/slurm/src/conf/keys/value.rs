//! The syntax of values. Only values that Slurm rejects are rejected; each rule was tried on slurmctld 26.05.5.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// Anything: names, paths, plugins and their options, which may be custom.
    Text,
    U16,
    U32,
    U64,
    /// A number of megabytes without a unit.
    Megabytes,
    Float,
    Boolean,
    /// Minutes, `minutes:seconds`, `hours:minutes:seconds`, `days-hours…`, or no limit.
    Time,
    /// A port or a range of ports.
    Ports,
    /// A level by name or by number.
    LogLevel,
    OverSubscribe,
    /// One of these, in any case.
    Word(&'static [&'static str]),
    /// Some of these, separated by commas.
    Words(&'static [&'static str]),
    /// Some of these, separated by commas; slurmctld ignores others.
    IgnoredWords(&'static [&'static str]),
    /// A plugin of Slurm that only nodes load, so that a dry run does not find a missing one. Others may exist.
    NodePlugin(&'static [&'static str]),
}

const UNLIMITED: [&str; 2] = ["INFINITE", "UNLIMITED"];
const LOG_LEVELS: [&str; 10] = [
    "quiet", "fatal", "error", "info", "verbose", "debug", "debug2", "debug3", "debug4", "debug5",
];

impl ValueKind {
    pub fn accepts(self, value: &str) -> bool {
        match self {
            Self::Text => true,
            Self::U16 => is_number(value, u16::MAX.into(), false),
            Self::U32 => is_number(value, u32::MAX.into(), true),
            Self::U64 | Self::Megabytes => is_number(value, u64::MAX.into(), true),
            Self::Float => is_one_of(value, &UNLIMITED) || value.trim_start().parse::<f64>().is_ok(),
            Self::Boolean => is_one_of(value, &["YES", "UP", "TRUE", "1", "NO", "DOWN", "FALSE", "0"]),
            Self::Time => is_time(value),
            Self::Ports => is_ports(value),
            Self::LogLevel => is_one_of(value, &LOG_LEVELS) || value.starts_with(|c: char| c.is_ascii_digit()),
            Self::OverSubscribe => {
                let (word, count) = value.split_once(':').map_or((value, None), |(word, n)| (word, Some(n)));
                is_one_of(word, &["YES", "FORCE"]) || (count.is_none() && is_one_of(word, &["NO", "EXCLUSIVE"]))
            }
            Self::Word(words) => is_one_of(value, words),
            Self::Words(words) | Self::IgnoredWords(words) | Self::NodePlugin(words) => value
                .split(',')
                .map(str::trim)
                .all(|word| word.is_empty() || is_one_of(word, words)),
        }
    }

    /// Describes valid values, as the end of a sentence.
    pub fn expected(self) -> String {
        match self {
            Self::Text => "a text".to_owned(),
            Self::U16 => format!("a number from 0 to {}, or UNLIMITED", u16::MAX),
            Self::U32 => format!("a number from 0 to {}, or UNLIMITED", u32::MAX),
            Self::U64 => "a number, or UNLIMITED".to_owned(),
            Self::Megabytes => "a number of megabytes without a unit, such as 4096 for four gigabytes".to_owned(),
            Self::Float => "a number".to_owned(),
            Self::Boolean => "YES or NO".to_owned(),
            Self::Time => {
                "a number of minutes, hours:minutes:seconds, days-hours:minutes:seconds, or UNLIMITED".to_owned()
            }
            Self::Ports => "a port, or a range of ports such as 6817-6820".to_owned(),
            Self::LogLevel => format!("one of {}", LOG_LEVELS.join(", ")),
            Self::OverSubscribe => "NO, EXCLUSIVE, YES[:count] or FORCE[:count]".to_owned(),
            Self::Word(words) => format!("one of {}", words.join(", ")),
            Self::Words(words) | Self::IgnoredWords(words) | Self::NodePlugin(words) => {
                format!("some of {}", words.join(","))
            }
        }
    }
}

fn is_one_of(value: &str, words: &[&str]) -> bool {
    words.iter().any(|word| value.eq_ignore_ascii_case(word))
}

/// As C's `strtol`: leading spaces and a plus sign, hexadecimal with 0x; an empty value is zero.
fn is_number(value: &str, max: u128, thousands: bool) -> bool {
    if is_one_of(value, &UNLIMITED) || value.is_empty() {
        return true;
    }
    let text = value.trim_start();
    let text = text.strip_prefix('+').unwrap_or(text);
    let text = match text.strip_suffix(['k', 'K']) {
        Some(shorter) if thousands => shorter,
        _ => text,
    };
    let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let digits = hexadecimal.unwrap_or(text);
    let radix = if hexadecimal.is_some() { 16 } else { 10 };
    digits.starts_with(|c: char| c.is_digit(radix))
        && u128::from_str_radix(digits, radix).is_ok_and(|number| number <= max)
}

fn is_time(value: &str) -> bool {
    if is_one_of(value, &UNLIMITED) || value == "-1" {
        return true;
    }
    let (days, clock) = value
        .split_once('-')
        .map_or((None, value), |(days, clock)| (Some(days), clock));
    let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> = clock.split(':').take(4).collect();
    let clock_is_right = parts.len() <= 3 && parts.iter().all(|part| !part.is_empty() && are_digits(part));
    match days {
        // `1-` is one day.
        Some(days) => !days.is_empty() && are_digits(days) && (clock.is_empty() || clock_is_right),
        None => clock_is_right,
    }
}

fn is_ports(value: &str) -> bool {
    let port = |text: &str| text.parse::<u32>().ok().filter(|port| *port > 0);
    match value.split_once('-') {
        Some((first, last)) => port(first).zip(port(last)).is_some_and(|(first, last)| first <= last),
        None => port(value).is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::ValueKind::{
        self, Boolean, Float, LogLevel, Megabytes, OverSubscribe, Ports, Time, U16, U32, Word, Words,
    };

    /// The values that slurmctld 26.05.5 accepted and rejected.
    #[test]
    fn values_are_accepted_and_rejected_as_by_slurm() {
        let rows: [(ValueKind, &[&str], &[&str]); 11] = [
            (
                U16,
                &["5", "0x10", "010", "INFINITE", "unlimited", "+5", "", " 5"],
                &[
                    "-1",
                    "70000",
                    "5k",
                    "1.5",
                    "99999999999999999999999999999999999999999",
                    "abc",
                    " ",
                    "5 ",
                    "0x",
                    "INF",
                ],
            ),
            (
                U32,
                &["5", "5k", "0x10k", "UNLIMITED"],
                &["-1", "5000000000", "5m", "5kk", "-5x", "1:00"],
            ),
            (
                Megabytes,
                &["5", "5k", "UNLIMITED"],
                &["-1", "5M", "5G", "1T", "1GB", "4.5"],
            ),
            (Float, &["50.5", "5", "INFINITE"], &["abc", "5%"]),
            (
                Boolean,
                &["yes", "YES", "true", "up", "1", "0", "no", "down", "false"],
                &["on", "t", "y", "maybe", "2", ""],
            ),
            (
                Time,
                &[
                    "60",
                    "1:00",
                    "1:00:00",
                    "1-0",
                    "1-00:00:00",
                    "1-",
                    "UNLIMITED",
                    "infinite",
                    "-1",
                    "0",
                    "90:90",
                    "1-25:61",
                ],
                &[
                    "abc", "1:2:3:4", "1d", "NONE", "1--2", ":", "1-2-3", "5:", "-5", "--1", " 5", "",
                ],
            ),
            (
                Ports,
                &["6817", "6817-6820", "70000"],
                &["abc", "6820-6817", "0", "6817,6818", "", "6817-", "0x10"],
            ),
            (LogLevel, &["info", "DEBUG5", "7", "99", "5x"], &["nope", "-1", ""]),
            (
                OverSubscribe,
                &["NO", "yes", "FORCE:4", "YES:4", "EXCLUSIVE", "force:x"],
                &["foo", "SHARED", "", "NO:4", "NOPE:4", "FORCED"],
            ),
            (Word(&["UP", "DOWN"]), &["up", "DOWN"], &["IDLE", "", "UP,DOWN"]),
            (
                Words(&["AS", "CPU"]),
                &["AS", "as,cpu", "AS, CPU", "AS,,CPU", ""],
                &["nope", "AS,nope"],
            ),
        ];
        for (kind, taken, refused) in rows {
            for value in taken {
                assert!(kind.accepts(value), "{kind:?} {value:?}");
            }
            for value in refused {
                assert!(!kind.accepts(value), "{kind:?} {value:?}");
            }
        }
    }
}
