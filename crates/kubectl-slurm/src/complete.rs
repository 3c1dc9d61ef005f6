//! Completion: a script for a shell, and the suggestions for kubectl, which runs an executable named `kubectl_complete-slurm` with
//! the words so far and expects one suggestion per line.

use std::path::Path;

use clap::{Command, CommandFactory as _};

use crate::{cli::Cli, failure::Outcome, output::print};

/// The name of the executable for kubectl.
const COMPLETE_NAME: &str = "kubectl_complete-slurm";

/// kubectl's directive for "no file names".
const NO_FILES: &str = ":4";

pub(crate) fn script(shell: clap_complete::Shell) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "kubectl-slurm", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// Prints suggestions if this process was started by kubectl's completion.
pub(crate) fn answer(mut arguments: impl Iterator<Item = String>) -> Option<Outcome> {
    let program = arguments.next()?;
    let name = Path::new(&program).file_name()?.to_str()?;
    (name == COMPLETE_NAME).then(|| {
        let words: Vec<String> = arguments.collect();
        let mut lines = suggestions(&Cli::command(), &words);
        lines.push(NO_FILES.to_owned());
        print(&format!("{}\n", lines.join("\n")))
    })
}

/// Returns the subcommands and options that the last word may become. Names of objects are not completed.
fn suggestions(command: &Command, words: &[String]) -> Vec<String> {
    let (begun, before) = words
        .split_last()
        .map_or(("", &[][..]), |(last, before)| (last.as_str(), before));
    let mut command = command;
    let mut global: Vec<String> = options(command, true);
    for word in before {
        if let Some(next) = command.find_subcommand(word) {
            command = next;
            global.extend(options(command, true));
        }
    }
    let subcommands = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    let mut found: Vec<String> = subcommands.map(|sub| sub.get_name().to_owned()).collect();
    if begun.starts_with('-') {
        found = options(command, false).into_iter().chain(global).collect();
    }
    found.retain(|word| word.starts_with(begun));
    found.sort();
    found.dedup();
    found
}

/// `only_global` selects the options that subcommands accept too.
fn options(command: &Command, only_global: bool) -> Vec<String> {
    let all = command.get_arguments();
    let shown = all.filter(|argument| !argument.is_hide_set() && (!only_global || argument.is_global_set()));
    shown
        .filter_map(|argument| argument.get_long())
        .map(|long| format!("--{long}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suggested(words: &[&str]) -> Vec<String> {
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        suggestions(&Cli::command(), &words)
    }

    #[test]
    fn subcommands_and_options_are_suggested() {
        assert_eq!(suggested(&["par"]), ["partition"]);
        assert!(suggested(&[""]).contains(&"status".to_owned()));
        assert!(suggested(&["partition", "dr"]).contains(&"drain".to_owned()));
        assert!(suggested(&["partition", "set", "gpu", "--no"]).contains(&"--nodes".to_owned()));
        assert!(suggested(&["partition", "drain", "--name"]).contains(&"--namespace".to_owned()));
        assert_eq!(suggested(&["nonsense", "x"]), Vec::<String>::new());
        assert_eq!(suggested(&[]), suggested(&[""]));
    }

    #[test]
    fn only_the_name_for_kubectl_prints_suggestions() {
        let asked = |program: &str| answer([program.to_owned()].into_iter()).is_some();
        assert!(!asked("/usr/bin/kubectl-slurm"));
        assert!(asked("/usr/bin/kubectl_complete-slurm"));
        assert!(answer(std::iter::empty()).is_none());
    }
}
