//! What the last word on a command line may become. Pure.

use std::path::PathBuf;

use clap::{Arg, Command};

use crate::cli::{Common, Format};

/// The word to complete, and what it may become.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) wanted: Wanted,
    /// The part of the word that stays, such as `+compute,` or `--cluster=`.
    kept: String,
    /// The part of the word to complete.
    begun: String,
    /// Values that are given already.
    given: Vec<String>,
    /// The options that select a cluster.
    pub(super) common: Common,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Words(Vec<String>),
    Names(NameKind),
    Files,
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameKind {
    Partitions,
    Nodes,
    /// NodeSets and nodes.
    Members,
    Clusters,
    Namespaces,
    Contexts,
}

impl Request {
    /// `command` has to be built, so that each command has the global options.
    pub(super) fn new(command: &Command, words: &[String]) -> Self {
        let (begun, before) = words
            .split_last()
            .map_or(("", &[][..]), |(last, before)| (last.as_str(), before));
        let mut line = Line::new(command);
        for word in before {
            line.read(word);
        }
        line.complete(begun)
    }

    /// Returns those of the names that complete the word, as the whole word.
    pub(super) fn fitting(&self, names: &[String]) -> Vec<String> {
        let fits = |name: &&String| name.starts_with(&self.begun) && !self.given.contains(name);
        let mut found: Vec<String> = names
            .iter()
            .filter(fits)
            .map(|name| format!("{}{name}", self.kept))
            .collect();
        found.sort();
        found.dedup();
        found
    }
}

/// The words before the one to complete.
struct Line<'a> {
    command: &'a Command,
    /// The command and its parents, without the program.
    path: Vec<&'a str>,
    positional: Vec<String>,
    /// The option whose value is next.
    pending: Option<&'a Arg>,
    common: Common,
}

impl<'a> Line<'a> {
    fn new(command: &'a Command) -> Self {
        let common = Common {
            namespace: None,
            all_namespaces: false,
            context: None,
            kubeconfig: None,
            cluster: None,
            output: Format::Table,
        };
        Self {
            command,
            path: Vec::new(),
            positional: Vec::new(),
            pending: None,
            common,
        }
    }

    fn read(&mut self, word: &str) {
        if let Some(option) = self.pending.take() {
            self.take(option, word);
        } else if let Some((option, value)) = self.option(word) {
            match value {
                Some(value) => self.take(option, value),
                None if takes_value(option) => self.pending = Some(option),
                None => self.common.all_namespaces |= option.get_id() == "all_namespaces",
            }
        } else if let Some(next) = self.command.find_subcommand(word) {
            self.command = next;
            self.path.push(next.get_name());
        } else if !word.starts_with('-') {
            self.positional.push(word.to_owned());
        }
    }

    /// Returns an option of this command, with its value if that is in the same word.
    fn option<'w>(&self, word: &'w str) -> Option<(&'a Arg, Option<&'w str>)> {
        let mut options = self.command.get_arguments();
        if let Some(long) = word.strip_prefix("--") {
            let (name, value) = long
                .split_once('=')
                .map_or((long, None), |(name, value)| (name, Some(value)));
            return Some((options.find(|option| option.get_long() == Some(name))?, value));
        }
        let mut letters = word.strip_prefix('-')?.chars();
        let letter = letters.next()?;
        let option = options.find(|option| option.get_short() == Some(letter))?;
        let rest = letters.as_str();
        let value = Some(rest.strip_prefix('=').unwrap_or(rest)).filter(|_| !rest.is_empty() && takes_value(option));
        Some((option, value))
    }

    fn take(&mut self, option: &Arg, value: &str) {
        let value = value.to_owned();
        match option.get_id().as_str() {
            "namespace" => self.common.namespace = Some(value),
            "context" => self.common.context = Some(value),
            "kubeconfig" => self.common.kubeconfig = Some(PathBuf::from(value)),
            "cluster" => self.common.cluster = Some(value),
            _ => {}
        }
    }

    fn complete(self, word: &str) -> Request {
        if let Some(option) = self.pending {
            return self.value(option, "", word);
        }
        if let Some((option, Some(value))) = self.option(word) {
            let kept = word.strip_suffix(value).unwrap_or_default();
            return self.value(option, kept, value);
        }
        let wanted = if word.starts_with('-') {
            let options = self.command.get_arguments().filter(|option| !option.is_hide_set());
            let options = options.filter_map(|option| option.get_long());
            Wanted::Words(options.map(|long| format!("--{long}")).collect())
        } else if self.command.has_subcommands() {
            let commands = self.command.get_subcommands().filter(|sub| !sub.is_hide_set());
            let names = commands.map(Command::get_name).filter(|name| *name != "help");
            Wanted::Words(names.map(str::to_owned).collect())
        } else {
            let all: Vec<&Arg> = self.command.get_positionals().collect();
            let next = all
                .get(self.positional.len())
                .or_else(|| all.last().filter(|last| is_repeated(last)));
            match next {
                Some(argument) => return self.value(argument, "", word),
                None => Wanted::Nothing,
            }
        };
        self.request(wanted, "", word, Vec::new())
    }

    /// Completes the value of an option or argument.
    fn value(self, argument: &Arg, kept: &str, begun: &str) -> Request {
        let possible: Vec<String> = argument
            .get_possible_values()
            .iter()
            .map(|value| value.get_name().to_owned())
            .collect();
        if !possible.is_empty() {
            return self.request(Wanted::Words(possible), kept, begun, Vec::new());
        }
        let wanted = match (argument.get_id().as_str(), self.path.as_slice()) {
            ("namespace", _) => Wanted::Names(NameKind::Namespaces),
            ("context", _) => Wanted::Names(NameKind::Contexts),
            ("cluster", _) => Wanted::Names(NameKind::Clusters),
            ("nodes", _) => Wanted::Names(NameKind::Members),
            ("exclude", _) | ("name" | "names", ["node", ..]) => Wanted::Names(NameKind::Nodes),
            ("name", ["partition", "create"]) => Wanted::Nothing,
            ("name", ["partition", ..]) => Wanted::Names(NameKind::Partitions),
            ("kubeconfig" | "path", _) => Wanted::Files,
            _ => Wanted::Nothing,
        };
        let is_list = matches!(wanted, Wanted::Names(NameKind::Members | NameKind::Nodes));
        let length = if is_list { list_length(begun) } else { 0 };
        let (more, begun) = begun.split_at(length);
        let listed = more
            .trim_start_matches(['+', '-'])
            .split(',')
            .map(str::to_owned)
            .collect();
        self.request(wanted, &format!("{kept}{more}"), begun, listed)
    }

    fn request(self, wanted: Wanted, kept: &str, begun: &str, listed: Vec<String>) -> Request {
        Request {
            wanted,
            kept: kept.to_owned(),
            begun: begun.to_owned(),
            given: self.positional.into_iter().chain(listed).collect(),
            common: self.common,
        }
    }
}

/// Returns the length of the part of a list of members that is complete: a sign, and the items before the last one.
fn list_length(list: &str) -> usize {
    let sign = usize::from(list.starts_with(['+', '-']));
    list.rfind(',').map_or(sign, |comma| comma + 1)
}

fn takes_value(option: &Arg) -> bool {
    // An option with an optional value has it in the same word.
    option.get_action().takes_values() && !option.is_require_equals_set()
}

fn is_repeated(argument: &Arg) -> bool {
    argument.get_num_args().is_some_and(|count| count.max_values() > 1)
        || matches!(argument.get_action(), clap::ArgAction::Append)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;

    fn request(words: &[&str]) -> Request {
        let mut command = Cli::command();
        command.build();
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        Request::new(&command, &words)
    }

    fn suggested(words: &[&str]) -> Vec<String> {
        let request = request(words);
        match &request.wanted {
            Wanted::Words(words) => request.fitting(words),
            other => panic!("{words:?}: {other:?}"),
        }
    }

    #[test]
    fn subcommands_options_and_values_are_suggested() {
        assert_eq!(suggested(&["par"]), ["partition"]);
        assert!(suggested(&[""]).contains(&"status".to_owned()));
        assert_eq!(suggested(&[]), suggested(&[""]));
        assert!(suggested(&["partition", "dr"]).contains(&"drain".to_owned()));
        assert!(suggested(&["partition", "set", "gpu", "--no"]).contains(&"--nodes".to_owned()));
        assert!(suggested(&["partition", "drain", "--name"]).contains(&"--namespace".to_owned()));
        assert_eq!(suggested(&["-n", "hpc", "node", "dr"]), ["drain"]);
        assert_eq!(suggested(&["node", "list", "-o", "ya"]), ["yaml"]);
        assert_eq!(suggested(&["node", "list", "--output=ya"]), ["--output=yaml"]);
        assert_eq!(suggested(&["completion", "fi"]), ["fish"]);
    }

    #[test]
    fn names_are_wanted_where_a_command_takes_them() {
        use NameKind::{Clusters, Contexts, Members, Namespaces, Nodes, Partitions};
        for (words, kind) in [
            (&["partition", "show", ""][..], Partitions),
            (&["part", "drain", "g"], Partitions),
            (&["-n", "hpc", "partition", "delete", ""], Partitions),
            (&["partition", "set", "gpu", "--nodes", "-c"], Members),
            (&["partition", "create", "new", "--nodes", ""], Members),
            (&["partition", "create", "new", "--exclude", ""], Nodes),
            (&["node", "show", ""], Nodes),
            (&["node", "drain", "compute-0", "c"], Nodes),
            (&["node", "drain", "--reason", "disk", "c"], Nodes),
            (&["node", "drain", "--wait", "c"], Nodes),
            (&["status", "--cluster", ""], Clusters),
            (&["-n", ""], Namespaces),
            (&["--namespace=h"], Namespaces),
            (&["--context", ""], Contexts),
        ] {
            assert_eq!(request(words).wanted, Wanted::Names(kind), "{words:?}");
        }
        for words in [
            &["partition", "create", ""][..],
            &["partition", "show", "gpu", ""],
            &["node", "drain", "x", "--reason", ""],
            &["nonsense", "x"],
        ] {
            let wanted = request(words).wanted;
            assert!(!matches!(wanted, Wanted::Names(_)), "{words:?}: {wanted:?}");
        }
        assert_eq!(request(&["config", "check", ""]).wanted, Wanted::Files);
    }

    #[test]
    fn the_cluster_is_the_one_that_was_selected() {
        let common = request(&[
            "-n",
            "hpc",
            "--cluster=a",
            "-A",
            "--kubeconfig",
            "f",
            "partition",
            "show",
            "",
        ])
        .common;
        assert_eq!(
            (common.namespace.as_deref(), common.cluster.as_deref()),
            (Some("hpc"), Some("a"))
        );
        assert!(common.all_namespaces && common.kubeconfig.is_some());
    }

    #[test]
    fn a_list_is_completed_item_by_item() {
        let names: Vec<String> = ["compute", "gpu", "gpu-0"].map(str::to_owned).into();
        let fitting = |words: &[&str]| request(words).fitting(&names);
        assert_eq!(fitting(&["partition", "set", "a", "--nodes", "+g"]), ["+gpu", "+gpu-0"]);
        assert_eq!(
            fitting(&["partition", "set", "a", "--nodes", "-gpu,c"]),
            ["-gpu,compute"]
        );
        assert_eq!(
            fitting(&["partition", "set", "a", "--nodes=gpu,g"]),
            ["--nodes=gpu,gpu-0"]
        );
        // A node that is there already is not suggested again.
        assert_eq!(fitting(&["node", "drain", "gpu-0", "g"]), ["gpu"]);
    }
}
