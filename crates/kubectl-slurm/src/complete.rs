//! Completion: a script for a shell, and the suggestions for kubectl, which runs an executable named `kubectl_complete-slurm` with
//! the words so far and expects one suggestion per line, in bash, zsh and fish alike.

mod names;
mod request;

use std::path::Path;

use clap::CommandFactory as _;

use self::request::{Request, Wanted};
use crate::{cli::Cli, failure::Outcome, output::print};

/// The name of the executable for kubectl.
const COMPLETE_NAME: &str = "kubectl_complete-slurm";

/// kubectl's directives: the default, which completes names of files, and "no file names".
const FILES: &str = ":0";
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
    (name == COMPLETE_NAME).then(|| print(&suggest(&arguments.collect::<Vec<String>>())))
}

fn suggest(words: &[String]) -> String {
    let mut command = Cli::command();
    command.build();
    let request = Request::new(&command, words);
    let (mut lines, directive) = match &request.wanted {
        Wanted::Words(words) => (request.fitting(words), NO_FILES),
        Wanted::Names(kind) => (request.fitting(&names::find(*kind, &request.common)), NO_FILES),
        Wanted::Files => (Vec::new(), FILES),
        Wanted::Nothing => (Vec::new(), NO_FILES),
    };
    lines.push(directive.to_owned());
    format!("{}\n", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_name_for_kubectl_prints_suggestions() {
        let asked = |program: &str| answer([program.to_owned()].into_iter()).is_some();
        assert!(!asked("/usr/bin/kubectl-slurm"));
        assert!(asked("/usr/bin/kubectl_complete-slurm"));
        assert!(answer(std::iter::empty()).is_none());
    }

    #[test]
    fn a_suggestion_ends_with_kubectls_directive() {
        let suggested = |words: &[&str]| suggest(&words.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(suggested(&["par"]), "partition\n:4\n");
        assert_eq!(suggested(&["config", "check", ""]), ":0\n");
        assert_eq!(suggested(&["partition", "create", ""]), ":4\n");
    }
}
