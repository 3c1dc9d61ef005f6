//! What helps a slurmctld that would die of the same thing for ever. Pure.

/// With accounting, slurmctld writes these every five minutes and when it is told to end. Killed before the first time, it
/// dies at every start of their absence (measured, 26.05), though nothing but the usage of its first minutes is missing.
/// Files with jobs, nodes and reservations are not among them.
const NEVER_WRITTEN: [&str; 2] = ["No Assoc usage file", "No Qos usage file"];

/// Ignore errors in state files. Those that are there were each renamed into their place when they were whole.
const FORGIVE: &str = "-i";

/// What the next start is told, in addition, after a life that ended with these words.
pub fn remedy(last_words: impl Iterator<Item = String>) -> Option<&'static str> {
    let mut last_words = last_words;
    last_words
        .any(|line| line.contains("fatal:") && NEVER_WRITTEN.iter().any(|words| line.contains(words)))
        .then_some(FORGIVE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(line: &str) -> Option<&'static str> {
        remedy(
            [
                "[2026-11-15T12:06:11.165] slurmctld version 26.05.5 started".to_owned(),
                line.to_owned(),
            ]
            .into_iter(),
        )
    }

    #[test]
    fn only_what_was_never_written_is_done_without() {
        assert_eq!(
            after("[2026-11-15T12:06:11.600] fatal: No Assoc usage file (/s/assoc_usage) to recover"),
            Some("-i")
        );
        assert_eq!(after("fatal: No job state file (/s/job_state) to recover"), None);
        assert_eq!(
            after("No Assoc usage file (/s/assoc_usage) to recover"),
            None,
            "it went on"
        );
    }
}
