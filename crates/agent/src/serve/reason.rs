//! Extracts from slurmctld's last log lines why it rejected its files.

/// Returns the fatal error with the error before it; otherwise all errors; otherwise all lines. slurmctld logs harmless errors at
/// every start, so earlier ones are left out.
pub(crate) fn reason(last_words: &[String]) -> String {
    let lines: Vec<LogLine> = last_words.iter().map(|line| LogLine::parse(line)).collect();
    let fatal = lines.iter().position(|line| line.text.starts_with("fatal:"));
    let chosen: Vec<&LogLine> = match fatal {
        Some(at) => {
            let (before, from) = lines.split_at(at);
            let cause = before.iter().rev().find(|line| line.is_error());
            // A fatal error may have several lines; only the first has a date.
            let rest = from.iter().skip(1).take_while(|line| !line.dated);
            cause.into_iter().chain(from.first()).chain(rest).collect()
        }
        None if lines.iter().any(LogLine::is_error) => lines.iter().filter(|line| line.is_error()).collect(),
        None => lines.iter().collect(),
    };
    let texts = chosen.iter().map(|line| line.text);
    let texts: Vec<&str> = texts.filter(|text| !text.is_empty()).collect();
    if texts.is_empty() {
        "slurmctld did not say why".to_owned()
    } else {
        texts.join("; ")
    }
}

struct LogLine<'a> {
    dated: bool,
    text: &'a str,
}

impl<'a> LogLine<'a> {
    /// `[2026-11-15T05:25:09.733] fatal: …` or `slurmctld: fatal: …`.
    fn parse(line: &'a str) -> Self {
        let line = line.trim();
        let after_date = line.strip_prefix('[').and_then(|rest| rest.split_once("] "));
        let text = after_date.map(|(_, text)| text).or(line.strip_prefix("slurmctld: "));
        Self {
            dated: text.is_some(),
            text: text.unwrap_or(line),
        }
    }

    fn is_error(&self) -> bool {
        self.text.starts_with("error:")
    }
}

#[cfg(test)]
mod tests {
    use super::reason;

    fn of(lines: &[&str]) -> String {
        reason(&lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>())
    }

    /// Slurm 26.05.5, a partition of an unknown node.
    #[test]
    fn the_reason_is_the_fatal_error_and_the_error_before_it() {
        assert_eq!(
            of(&[
                "[2026-11-15T05:44:15.333] Reconfigure signal (SIGHUP) received",
                "[2026-11-15T05:44:15.363] error: Configured MailProg is invalid",
                "[2026-11-15T05:44:15.380] error: _find_node_record: lookup failure for node \"nope\"",
                "[2026-11-15T05:44:15.380] build_part_bitmap: invalid node name nope in partition",
                "[2026-11-15T05:44:15.380] fatal: Invalid node names in partition x",
                "[2026-11-15T05:44:15.382] Resuming operation, reconfigure failed.",
            ]),
            "error: _find_node_record: lookup failure for node \"nope\"; fatal: Invalid node names in partition x"
        );
    }

    /// Slurm 26.05.5, another ClusterName.
    #[test]
    fn a_fatal_error_may_have_several_lines() {
        assert_eq!(
            of(&[
                "[2026-11-15T05:44:15.718] fatal: CLUSTER NAME MISMATCH.",
                "slurmctld has been started with \"ClusterName=other\", but read \"lab\".",
                "[2026-11-15T05:44:15.719] Resuming operation, reconfigure failed.",
            ]),
            "fatal: CLUSTER NAME MISMATCH.; slurmctld has been started with \"ClusterName=other\", but read \"lab\"."
        );
    }

    #[test]
    fn without_a_fatal_error_all_errors_count_and_without_errors_all_lines() {
        assert_eq!(
            of(&["[x] a", "[x] error: b", "slurmctld: error: c"]),
            "error: b; error: c"
        );
        assert_eq!(of(&["slurmctld: a", "b", ""]), "a; b");
        assert_eq!(of(&[]), "slurmctld did not say why");
    }
}
