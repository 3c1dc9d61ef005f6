//! Checks of text that becomes part of a line in a Slurm file.
//!
//! Slurm cuts a line at `#`, also inside quotes, and then joins it with the next line if it ends in a backslash. Text
//! that the operator writes into a line may therefore contain neither: the rest of the line or the next line would be
//! lost or read as part of it.

use super::Problems;

/// What [`check_line`] checks, as an expression of the API server on the value of a field.
pub(super) const ONE_LINE: &str = r"{}.matches(r'^([^\\#\x22\p{Cc}]|\t|\x22([^\\#\x22\p{Cc}]|\t)*\x22)*$')";

/// Checks text that becomes part of one line. Returns whether it can.
pub(super) fn check_line(problems: &mut Problems, field: &str, text: &str) -> bool {
    let control = text.chars().find(|c| c.is_control() && *c != '\t');
    let (fault, remedy) = match control {
        Some('\n' | '\r') => ("has a line break".to_owned(), "write it in one line"),
        Some(other) => (format!("has the control character {other:?}"), "remove that character"),
        None if text.contains('\\') => (
            "has a backslash, which at the end of a line joins it with the next line".to_owned(),
            "remove it; a value with blanks is written in double quotes",
        ),
        None if text.contains('#') => (
            "has a #, which starts a comment, also inside quotes".to_owned(),
            "remove it and what follows it",
        ),
        None if text.matches('"').count() % 2 == 1 => (
            "has a double quote that is not closed".to_owned(),
            "close it, or remove it",
        ),
        None => return true,
    };
    problems.bad_value(field, fault, remedy);
    false
}

/// Whether text is a single word of a line: it does not affect the text around it, nor the other way round.
pub(super) fn is_word(text: &str) -> bool {
    let harmful = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '#' | '"' | '\\');
    !text.is_empty() && !text.contains(harmful)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_affects_the_following_text_is_rejected() {
        for (text, fault) in [
            ("AllowGroups=x,\\", "backslash"),
            ("State=UP \\ ", "backslash"),
            ("State=UP \\ #", "backslash"),
            ("State=UP \\\\", "backslash"),
            ("Topology=a\\ b", "backslash"),
            ("State=UP # closed", "#"),
            ("Topology=\"a # b\"", "#"),
            ("MaxTime=5\nNodes=ALL", "line break"),
            ("MaxTime=5\r", "line break"),
            ("MaxTime=5\u{0}", "control character"),
            ("MaxTime=5\u{b}", "control character"),
            ("MaxTime=5\u{85}", "control character"),
            ("Topology=\"a", "double quote"),
            ("Topology=\"a b\" Qos=\"", "double quote"),
        ] {
            let mut problems = Problems::default();
            assert!(!check_line(&mut problems, "spec.config", text), "{text:?}");
            let reported: Vec<String> = problems.errors().map(ToString::to_string).collect();
            let [one] = reported.as_slice() else {
                panic!("{text:?}: {reported:?}")
            };
            assert!(
                one.starts_with("spec.config has ") && one.contains(fault),
                "{text:?}: {one}"
            );
            assert!(one.contains("; "), "{text:?} without a remedy: {one}");
        }
    }

    #[test]
    fn text_that_slurm_reads_as_written_is_accepted() {
        for text in [
            "",
            "Default=YES MaxTime=1-00:00:00",
            "  A=1\tB=2 ",
            "Topology=\"a b\" AllowGroups=x,y",
            "A=\"\"",
            "TRESBillingWeights=CPU=1.0,Mem=0.25G,GRES/gpu=2.0",
            "JobDefaults=DefCpuPerGPU=5",
            "Nodes=a[1-3],b AllowAccounts=ä",
        ] {
            let mut problems = Problems::default();
            assert!(check_line(&mut problems, "spec.config", text));
            assert!(problems.is_ok(), "{text:?}: {problems}");
        }
    }
}
