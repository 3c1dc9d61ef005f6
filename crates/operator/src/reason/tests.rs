//! `docs/conditions.md` lists every condition type, reason and event, and no reason is written anywhere else.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use api::{conditions, keys::POD_CONDITION_PREFIX};

use super::ALL;

/// Every condition type, the kinds that have it, and its meaning.
const TYPES: &[(&str, &str, &str)] = &[
    (
        conditions::READY,
        "every kind",
        "the object is in the state that its spec describes",
    ),
    (
        conditions::PROGRESSING,
        "every kind",
        "the operator is working towards that state; the message says what it waits for",
    ),
    (
        conditions::DEGRADED,
        "every kind",
        "something needs attention; what runs continues to run",
    ),
    (
        conditions::CRDS_OUTDATED,
        "every kind",
        "the installed definitions are older than this operator; absent otherwise",
    ),
    (
        conditions::UNKNOWN_FIELDS,
        "every kind",
        "a template or an overlay has fields that Kubernetes does not have; absent otherwise",
    ),
    (
        conditions::CONFIG_APPLIED,
        "Controller",
        "slurmctld runs with all inputs as they are written; `Unknown` for an external slurmctld",
    ),
    (
        conditions::CONFIG_DOUBTFUL,
        "Controller",
        "slurmctld runs with a setting that is probably a mistake; absent otherwise",
    ),
    (
        conditions::SUPERVISED,
        "Controller",
        "slurmctld runs under the agent, which restarts it and keeps its last output",
    ),
    (
        conditions::DRIFTED,
        "Controller, Partition",
        "a partition was changed manually in Slurm; absent otherwise",
    ),
    (
        conditions::PARTITION_RETAINED,
        "Controller, Partition",
        "a removed partition stays, closed, until its jobs have ended; absent otherwise",
    ),
    (
        conditions::NOT_PERSISTENT,
        "Partition",
        "an external slurmctld loses the partition when it restarts; absent otherwise",
    ),
    (conditions::SLURM_REACHABLE, "NodeSet", "Slurm answers"),
    (
        conditions::RESERVATION_CREATED,
        "NodeSet",
        "Slurm holds the reservation of a scheduled update; absent without one",
    ),
];

const INTRODUCTION: &str = "\
# Conditions, reasons and events

<!-- Made from crates/operator/src/reason.rs by `UPDATE_DOCS=1 cargo test -p slurm-operator reason`. -->

`kubectl describe` shows the conditions and events of an object. The message of a condition names the field or the object that causes a
problem, and the remedy; the reason is one of the words below, for programs and for a search on this page. The same reason means the same on all kinds.
Where the tables name no status, `Ready`, `Progressing` and `ConfigurationApplied` are `False` for the reason, and other conditions are `True`.

```bash
kubectl get slurm --all-namespaces      # READY and REASON of every object
kubectl wait controller/slurm --for=condition=Ready --timeout=5m
```
";

fn repository() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", ".."].iter().collect()
}

fn render() -> String {
    let mut page = INTRODUCTION.to_owned();
    page.push_str("\n## Condition types\n\n| type | on | when it is `True` |\n|---|---|---|\n");
    for (type_, kinds, meaning) in TYPES {
        writeln!(page, "| `{type_}` | {kinds} | {meaning} |").unwrap();
    }
    let pods = "Pods of workers have the conditions that [nodesets.md](nodesets.md) lists";
    writeln!(
        page,
        "\n{pods}: `{POD_CONDITION_PREFIX}` and a state of their node in Slurm."
    )
    .unwrap();
    for (section, reasons) in ALL {
        write!(
            page,
            "\n## {section}\n\n| reason | where | meaning | what to do |\n|---|---|---|---|\n"
        )
        .unwrap();
        for [reason, used, meaning, remedy] in *reasons {
            writeln!(page, "| `{reason}` | {used} | {} | {remedy} |", meaning.trim()).unwrap();
        }
    }
    page
}

#[test]
fn the_page_of_conditions_is_current() {
    let file = repository().join("docs/conditions.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&file, render()).unwrap();
    }
    let remedy = "run: UPDATE_DOCS=1 cargo test -p slurm-operator reason";
    let text = fs::read_to_string(&file).unwrap_or_default();
    assert!(text == render(), "docs/conditions.md is not current; {remedy}");
}

#[test]
fn every_reason_is_listed_once_and_used_on_a_known_condition() {
    let mut seen = BTreeSet::new();
    for [reason, used, meaning, remedy] in ALL.iter().flat_map(|(_, reasons)| *reasons) {
        assert!(seen.insert(*reason), "{reason} is listed twice");
        assert!(meaning.ends_with('.') && remedy.ends_with('.'), "{reason}");
        for place in used.split(", ") {
            let (type_, status) = place.split_once('=').unwrap_or((place, "True"));
            let is_type =
                TYPES.iter().any(|(known, ..)| *known == type_) && ["True", "False", "Unknown"].contains(&status);
            assert!(is_type || place == "event", "{reason}: {place}");
        }
    }
}

#[test]
fn every_condition_type_is_listed() {
    let source = fs::read_to_string(repository().join("crates/api/src/conditions.rs")).unwrap();
    for line in source.lines().filter(|line| line.starts_with("pub const ")) {
        let type_ = line.split('"').nth(1).unwrap();
        assert!(TYPES.iter().any(|(known, ..)| *known == type_), "{type_}");
    }
}

/// Calls that take a reason, as their first literal.
const TAKERS: &[&str] = &[
    "true_(",
    "false_(",
    "DesiredCondition::unknown(",
    "Finding::new(",
    "Finding::blocking(",
    "event(",
    ".warn(",
    ".normal(",
    ".normal_about(",
];

/// Words of Kubernetes and Slurm that are also reasons.
const OTHER_MEANINGS: &[&str] = &[
    "type_ == \"Ready\"",
    "\"type\": \"RollingUpdate\"",
    "(reason::RESERVATION_CREATED, \"Created\")",
];

#[test]
fn reasons_are_written_in_this_module_only() {
    let known: BTreeSet<&str> = ALL
        .iter()
        .flat_map(|(_, all)| all.iter().map(|[reason, ..]| *reason))
        .collect();
    let mut found = Vec::new();
    for (crate_, own) in [
        ("operator", &["reason.rs"][..]),
        ("runtime", &["finish.rs", "watch.rs"]),
    ] {
        let source = repository().join("crates").join(crate_).join("src");
        for file in rust_files(&source) {
            let name = file.strip_prefix(&source).unwrap().to_string_lossy().into_owned();
            let text = without_tests(&fs::read_to_string(&file).unwrap());
            for literal in literals(&text).filter(|literal| known.contains(literal) && !own.contains(&name.as_str())) {
                found.push(format!("{crate_}/{name} has {literal:?}"));
            }
            let fields = text
                .split("reason: \"")
                .skip(1)
                .filter_map(|field| field.split('"').next());
            let fields = fields.filter(|word| is_word(word));
            found.extend(fields.map(|reason| format!("{crate_}/{name} gives the reason {reason:?}")));
            for call in TAKERS.iter().flat_map(|taker| text.split(taker).skip(1)) {
                let call: String = call.chars().take(200).collect();
                // Another statement has literals of its own.
                let call = call.split([';', '{']).next().unwrap_or_default();
                for word in literals(call).take(1).filter(|word| is_word(word)) {
                    found.push(format!("{crate_}/{name} gives the reason {word:?}"));
                }
            }
        }
    }
    assert!(found.is_empty(), "write these in reason.rs:\n{}", found.join("\n"));
}

/// The string literals without escapes.
fn literals(text: &str) -> impl Iterator<Item = &str> {
    text.split('"').skip(1).step_by(2)
}

/// Whether this looks like a reason: letters in camel case.
fn is_word(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_uppercase()) && text.chars().all(|c| c.is_ascii_alphabetic())
}

fn without_tests(text: &str) -> String {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().filter(|line| {
        let is_other = OTHER_MEANINGS.iter().any(|words| line.contains(words));
        !line.trim_start().starts_with("//") && !is_other
    });
    // Escaped quotes and the quote as a character are not the ends of literals.
    let lines = lines.map(|line| line.replace("\\\"", "").replace("'\"'", ""));
    lines.collect::<Vec<_>>().join("\n")
}

fn rust_files(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let of_tests = [
            "tests",
            "testing",
            "fake",
            "tests.rs",
            "fixture.rs",
            "golden.rs",
            "end_to_end.rs",
        ];
        if of_tests.contains(&name.as_str()) || name.starts_with("model") {
            continue;
        }
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}
