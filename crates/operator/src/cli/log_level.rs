//! The log level, as a name or as a number of upstream's chart.

use std::str::FromStr;

use tracing_subscriber::filter::Targets;

/// A level, levels by module, or a number: 0 for info, up to 4 for debug, more for everything.
#[derive(Debug, Clone)]
pub struct LogLevel(pub Targets);

impl FromStr for LogLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let level = match text.parse::<u8>() {
            Ok(0) => "info",
            Ok(1..=4) => "debug",
            Ok(_) => "trace",
            Err(_) => text,
        };
        level
            .parse()
            .map(Self)
            .map_err(|error| format!("{text:?} is not a log level ({error}); write info, debug or a number"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_levels() {
        for (text, level) in [("0", "info"), ("2", "debug"), ("9", "trace"), ("warn", "warn")] {
            assert_eq!(text.parse::<LogLevel>().unwrap().0.to_string(), level);
        }
    }
}
