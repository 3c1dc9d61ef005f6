//! The argument that helps a slurmctld that would die of the same cause at every start. Pure.

/// With accounting, slurmctld writes these files every five minutes and on SIGTERM. If it is killed before the first time, it
/// dies at every start because they are missing (measured, 26.05), although only the usage of its first minutes is lost.
/// Files with jobs, nodes and reservations are not among them.
const NEVER_WRITTEN: [&str; 2] = ["No Assoc usage file", "No Qos usage file"];

/// Ignores errors in state files. Each existing one is complete, since it was renamed into place.
const FORGIVE: &str = "-i";

/// Returns the additional argument for the next start after a run that ended with these lines.
pub fn remedy(mut last_words: impl Iterator<Item = String>) -> Option<&'static str> {
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
    fn only_files_that_were_never_written_are_ignored() {
        assert_eq!(
            after("[2026-11-15T12:06:11.600] fatal: No Assoc usage file (/s/assoc_usage) to recover"),
            Some("-i")
        );
        assert_eq!(after("fatal: No job state file (/s/job_state) to recover"), None);
        assert_eq!(
            after("No Assoc usage file (/s/assoc_usage) to recover"),
            None,
            "it is not fatal"
        );
    }
}
