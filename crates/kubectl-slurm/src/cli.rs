//! The command line.

mod examples;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use thiserror::Error;

#[derive(Debug, Parser)]
#[command(
    name = "kubectl-slurm",
    bin_name = "kubectl slurm",
    version,
    about = "Slurm clusters on Kubernetes, as their administrators see them",
    after_help = examples::ALL
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The options of every command, which have a section of their own in `--help`.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Common {
    /// The namespace of the cluster
    #[arg(short, long, global = true, value_name = "NAME")]
    pub(crate) namespace: Option<String>,

    /// Clusters of all namespaces
    #[arg(short = 'A', long, global = true, conflicts_with = "namespace")]
    pub(crate) all_namespaces: bool,

    /// The context of the kubeconfig
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,

    /// The kubeconfig file
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// The name of the Controller; needed where a namespace has several
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) cluster: Option<String>,

    /// Output format
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Table)]
    pub(crate) output: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Table,
    /// A table with more columns
    Wide,
    Json,
    Yaml,
    /// Only names, as kubectl takes them
    Name,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Partitions of all kinds
    #[command(subcommand, alias = "partitions", alias = "part", after_help = examples::PARTITION)]
    Partition(PartitionCommand),
    /// Slurm nodes
    #[command(subcommand, alias = "nodes", after_help = examples::NODE)]
    Node(NodeCommand),
    /// Slurm's configuration
    #[command(subcommand, after_help = examples::CONFIG)]
    Config(ConfigCommand),
    /// One screen about a cluster
    #[command(after_help = examples::STATUS)]
    Status(Watch),
    /// Print a completion script
    #[command(after_help = examples::COMPLETION)]
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Watch {
    /// Keep running and print changes
    #[arg(short, long)]
    pub(crate) watch: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Wait {
    /// Wait until slurmctld runs with the change
    #[arg(
        long,
        num_args = 0..=1,
        require_equals = true,
        default_value_t = true,
        default_missing_value = "true",
        action = clap::ArgAction::Set,
        value_name = "BOOL"
    )]
    pub(crate) wait: bool,

    /// Timeout of --wait: 30s, 5m, 1h
    #[arg(long, default_value = "60s", value_parser = parse_duration, value_name = "TIME")]
    pub(crate) timeout: std::time::Duration,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PartitionCommand {
    /// All partitions of a cluster, of all kinds
    #[command(alias = "ls", after_help = examples::PARTITION_LIST)]
    List(Watch),
    /// Everything about one partition
    #[command(after_help = examples::PARTITION_SHOW)]
    Show {
        /// Name of the partition in Slurm
        name: String,
    },
    /// Create a Partition object
    #[command(after_help = examples::PARTITION_CREATE)]
    Create {
        /// Name of the partition in Slurm
        name: String,
        /// Members: NodeSets by name, or nodes as a hostlist such as ext[001-004]
        #[arg(long, required = true, value_name = "NODES")]
        nodes: Vec<String>,
        /// Nodes of its NodeSets that are excluded
        #[arg(long, value_name = "HOSTLIST")]
        exclude: Vec<String>,
        /// Settings as in slurm.conf, such as MaxTime=1-00:00:00
        #[arg(value_name = "KEY=VALUE")]
        settings: Vec<String>,
        #[command(flatten)]
        wait: Wait,
    },
    /// Change settings and members of a partition
    #[command(after_help = examples::PARTITION_SET)]
    Set {
        /// Name of the partition in Slurm
        name: String,
        /// Settings as in slurm.conf; a key with a trailing dash removes the setting
        #[arg(value_name = "KEY=VALUE | KEY-")]
        changes: Vec<String>,
        /// +NODES adds members, -NODES removes them; NODES replaces all
        #[arg(long, allow_hyphen_values = true, value_name = "[+-]NODES")]
        nodes: Vec<String>,
        #[command(flatten)]
        wait: Wait,
    },
    /// Accept no new jobs; queued and running ones continue
    #[command(after_help = examples::PARTITION_DRAIN)]
    Drain {
        /// Name of the partition in Slurm
        name: String,
        /// Reason, for other administrators
        #[arg(long)]
        reason: Option<String>,
        #[command(flatten)]
        wait: Wait,
    },
    /// Accept jobs again, even if the state was set manually with scontrol
    #[command(after_help = examples::PARTITION_RESUME)]
    Resume {
        /// Name of the partition in Slurm
        name: String,
        #[command(flatten)]
        wait: Wait,
    },
    /// Close the partition, wait for its jobs, remove it
    #[command(after_help = examples::PARTITION_DELETE)]
    Delete {
        /// Name of the partition in Slurm
        name: String,
        #[command(flatten)]
        wait: Wait,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// All nodes, and why, since when and by whom they are out of service
    #[command(alias = "ls", after_help = examples::NODE_LIST)]
    List(Watch),
    /// Everything about one node
    #[command(after_help = examples::NODE_SHOW)]
    Show {
        /// Pod or Slurm node
        name: String,
    },
    /// Accept no new jobs; running ones continue
    #[command(after_help = examples::NODE_DRAIN)]
    Drain {
        /// Pods or Slurm nodes, also as hostlists: compute-[0-3]
        #[arg(required = true, value_name = "NODE")]
        names: Vec<String>,
        /// Reason; it becomes the reason in Slurm
        #[arg(long)]
        reason: Option<String>,
        #[command(flatten)]
        wait: Wait,
    },
    /// Accept jobs again
    #[command(after_help = examples::NODE_RESUME)]
    Resume {
        /// Pods or Slurm nodes, also as hostlists: compute-[0-3]
        #[arg(required = true, value_name = "NODE")]
        names: Vec<String>,
        #[command(flatten)]
        wait: Wait,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Differences between the objects and what slurmctld runs with; exit code 1 if there are any
    #[command(after_help = examples::CONFIG_DIFF)]
    Diff,
    /// The last accepted and refused revisions
    #[command(after_help = examples::CONFIG_HISTORY)]
    History {
        /// Show one revision with its difference
        revision: Option<u64>,
    },
    /// Check files without a cluster; exit code 1 if slurmctld would refuse them
    #[command(after_help = examples::CONFIG_CHECK)]
    Check {
        /// A file, a directory with slurm.conf in it, or - for standard input
        #[arg(value_name = "FILE | DIR | -")]
        path: PathBuf,
    },
}

#[derive(Debug, Error)]
#[error("give a duration such as 30s, 5m or 1h")]
struct InvalidDuration;

/// Parses durations in kubectl's form: 30s, 1m30s, 1h; a number alone is seconds.
fn parse_duration(text: &str) -> Result<std::time::Duration, InvalidDuration> {
    let text = if text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty() {
        format!("{text}s")
    } else {
        text.to_owned()
    };
    api::time::GoDuration::from(text)
        .length()
        .and_then(|length| std::time::Duration::try_from(length).ok())
        .ok_or(InvalidDuration)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once("kubectl-slurm").chain(line.split_whitespace()))
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    /// Returns the words of an example as a shell would.
    fn words(example: &str) -> Vec<String> {
        let line = example
            .split(" #")
            .next()
            .unwrap_or_default()
            .split(" > ")
            .next()
            .unwrap_or_default();
        let mut words = vec![String::new()];
        let mut is_quoted = false;
        for c in line.trim().chars() {
            match (c, words.last_mut()) {
                ('\'', _) => is_quoted = !is_quoted,
                (' ', _) if !is_quoted => words.push(String::new()),
                (c, Some(word)) => word.push(c),
                (_, None) => {}
            }
        }
        words.retain(|word| !word.is_empty());
        words
    }

    fn check_examples(command: &clap::Command) {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let examples: Vec<&str> = help
            .lines()
            .filter(|line| line.starts_with("  kubectl slurm "))
            .collect();
        assert!(
            help.starts_with("Examples:\n") && !examples.is_empty(),
            "{} has no example",
            command.get_name()
        );
        for example in examples {
            let words = words(example).into_iter().skip(2);
            let parsed = Cli::try_parse_from(std::iter::once("kubectl-slurm".to_owned()).chain(words));
            assert!(parsed.is_ok(), "{example}: {parsed:?}");
        }
        command.get_subcommands().for_each(check_examples);
    }

    #[test]
    fn every_command_has_examples_that_are_right() {
        check_examples(&Cli::command());
    }

    #[test]
    fn global_options_have_a_section_of_their_own() {
        let mut command = Cli::command();
        command.build();
        let list = command
            .find_subcommand_mut("node")
            .and_then(|node| node.find_subcommand_mut("list"));
        let help = list.unwrap().render_help().to_string();
        let (own, global) = help.split_once("Global options:").unwrap();
        assert!(own.contains("--watch") && !own.contains("--kubeconfig"), "{help}");
        assert!(
            global.contains("--kubeconfig") && !global.contains("-w, --watch"),
            "{help}"
        );
    }

    #[test]
    fn members_may_begin_with_a_dash() {
        let cli =
            parse("partition set compute MaxTime- --nodes -node[001-002] --nodes +node[005-010] -n slurm").unwrap();
        let Command::Partition(PartitionCommand::Set { changes, nodes, .. }) = cli.command else {
            panic!("{cli:?}");
        };
        assert_eq!(changes, ["MaxTime-"]);
        assert_eq!(nodes, ["-node[001-002]", "+node[005-010]"]);
        assert_eq!(cli.common.namespace.as_deref(), Some("slurm"));
    }

    #[test]
    fn waiting_can_be_switched_off_as_with_kubectl() {
        for (line, expected) in [
            ("partition delete a", true),
            ("partition delete a --wait", true),
            ("partition delete a --wait=false", false),
            ("partition delete --wait=true a", true),
        ] {
            let Command::Partition(PartitionCommand::Delete { wait, name }) = parse(line).unwrap().command else {
                panic!("{line}");
            };
            assert_eq!((wait.wait, name.as_str()), (expected, "a"), "{line}");
        }
    }

    #[test]
    fn durations_have_kubectls_form() {
        for (text, seconds) in [
            ("30s", Some(30)),
            ("1m30s", Some(90)),
            ("15", Some(15)),
            ("-1s", None),
            ("", None),
            ("soon", None),
        ] {
            assert_eq!(
                parse_duration(text).ok().map(|length| length.as_secs()),
                seconds,
                "{text}"
            );
        }
    }

    #[test]
    fn wrong_usage_ends_with_two() {
        for line in [
            "",
            "partition",
            "partition set",
            "node drain",
            "partition list -o xml",
            "partition list -A -n x",
        ] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }
}
