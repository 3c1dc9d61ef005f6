//! The architecture of the operator: which module may use which. `docs/ARCHITECTURE.md` explains it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// From the bottom up. A module may use modules of the layers below its own, and none of its own layer: kinds do not know
/// each other, and there are no cycles. Below all of them are the crates `api`, `slurm` and `host`.
const LAYERS: [&[&str]; 12] = [
    &[
        "cluster_domain",
        "conf_server",
        "defaults",
        "layout",
        "logs",
        "overlay",
        "reason",
        "service_monitor",
        "slurm_release",
        "startup",
        "unix_time",
    ],
    &["conditions", "configuration_metrics", "fence", "kinds"],
    &["finding", "references", "worker"],
    &["secret", "template"],
    &["parent", "partition::rules"],
    &["cluster"],
    &["context"],
    &["runtime"],
    &["configuration", "key_mismatch", "kind"],
    &[
        "accounting",
        "controller",
        "loginset",
        "nodeset",
        "partition",
        "restapi",
        "token",
    ],
    &["webhook"],
    &["cli"],
];

#[test]
fn every_module_uses_only_modules_of_lower_layers() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    for file in rust_files(&source) {
        let Some(from) = module_of(file.strip_prefix(&source).unwrap()) else {
            continue;
        };
        let text = without_tests(&fs::read_to_string(&file).unwrap());
        for to in crate_paths(&text).iter().map(|path| module_in(path)) {
            if from != to && layer(&from) <= layer(&to) {
                found.push(format!("{}: {from} uses {to}", file.display()));
            }
        }
    }
    found.sort();
    found.dedup();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

fn layer(module: &str) -> usize {
    let position = LAYERS.iter().position(|layer| layer.contains(&module));
    position.unwrap_or_else(|| panic!("module {module:?} is in no layer"))
}

fn rust_files(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let is_test = [
            "tests",
            "testing",
            "tests.rs",
            "fixture.rs",
            "golden.rs",
            "end_to_end.rs",
        ]
        .contains(&name.as_str())
            || name.starts_with("model");
        if is_test {
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

/// `None` for the crate's roots, which may use everything.
fn module_of(file: &Path) -> Option<String> {
    let parts: Vec<String> = file
        .with_extension("")
        .components()
        .map(|part| part.as_os_str().to_string_lossy().into_owned())
        .collect();
    match parts.first().map(String::as_str) {
        Some("lib" | "main") | None => None,
        Some(_) => Some(module_in(&parts.join("::"))),
    }
}

fn module_in(path: &str) -> String {
    let mut parts = path.split("::");
    match (parts.next().unwrap_or_default(), parts.next()) {
        ("partition", Some("rules")) => "partition::rules".to_owned(),
        (module, _) => module.to_owned(),
    }
}

fn without_tests(text: &str) -> String {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// All paths that begin with `crate::`, without it, with groups taken apart.
fn crate_paths(text: &str) -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    for (start, marker) in text.match_indices("crate::") {
        let before = text[..start].chars().next_back();
        // `$crate::`, or `crate` as the end of another word.
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '$') {
            continue;
        }
        expand("", &text[start + marker.len()..], &mut paths);
    }
    paths
}

/// Reads one path, or a group of them; returns how much of the text that was.
fn expand(prefix: &str, text: &str, paths: &mut BTreeSet<String>) -> usize {
    let word = text
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(text.len());
    let path = if prefix.is_empty() {
        text[..word].to_owned()
    } else {
        format!("{prefix}::{}", &text[..word])
    };
    let rest = &text[word..];
    if let Some(rest) = rest.strip_prefix("::") {
        return word + 2 + expand(&path, rest, paths);
    }
    if word > 0 {
        paths.insert(path);
        return word;
    }
    let Some(group) = rest.strip_prefix('{') else {
        paths.insert(prefix.to_owned());
        return word;
    };
    let mut at = 0;
    loop {
        let blank = group[at..].find(|c: char| !c.is_whitespace() && c != ',').unwrap_or(0);
        at += blank;
        if group[at..].is_empty() || group[at..].starts_with('}') {
            return word + 2 + at;
        }
        let read = expand(prefix, &group[at..], paths);
        let end = group[at + read..].find([',', '}']).unwrap_or(group.len() - at - read);
        at += read + end;
    }
}

#[test]
fn paths_are_taken_apart() {
    let text = "use crate::{\n    a::{b, c::D},\n    e,\n};\nfn f() { crate::g::h(); }\nmacro!($crate::i)";
    let paths: Vec<String> = crate_paths(text).into_iter().collect();
    assert_eq!(paths, ["a::b", "a::c::D", "e", "g::h"]);
}

#[test]
fn the_files_that_the_architecture_names_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let document = fs::read_to_string(root.join("docs/ARCHITECTURE.md")).unwrap();
    let (_, table) = document.split_once("## Where is the rule for").unwrap();
    let rows: Vec<&str> = table.lines().filter(|line| line.contains("| `crates/")).collect();
    assert!(rows.len() >= 30, "{} rules", rows.len());
    for path in rows
        .iter()
        .flat_map(|row| row.split('`'))
        .filter(|word| word.starts_with("crates/"))
    {
        assert!(root.join(path).exists(), "{path}");
    }
    let glossary = document.split("## Crates").next().unwrap();
    let terms = glossary.lines().filter(|line| line.starts_with("| ")).count() - 1;
    assert!(terms <= 40, "{terms} terms");
}
