//! Kubernetes' own programs, built from `hack/kubernetes` once per machine and kept under a hash of their source.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::command;
use crate::lock;
use crate::paths;
use crate::steps::long_step;

/// The folder with `kubernetes` (all components), `kubectl`, `helm`, `helm-unittest` and `kwok`.
#[derive(Clone, Debug)]
pub struct Binaries(PathBuf);

impl Binaries {
    pub fn folder(&self) -> &Path {
        &self.0
    }

    pub fn path(&self, program: &str) -> String {
        self.0.join(program).display().to_string()
    }
}

fn source() -> PathBuf {
    paths::repository().join("hack/kubernetes")
}

/// Whether this machine has them.
pub fn are_built() -> bool {
    let built = || anyhow::Ok(paths::cache()?.join("kubernetes").join(source_hash(&source())?));
    built().is_ok_and(|built| built.exists())
}

pub fn binaries() -> Result<Binaries> {
    let source = source();
    let cache = paths::cache()?.join("kubernetes");
    fs::create_dir_all(&cache)?;
    let hash = source_hash(&source)?;
    let done = cache.join(&hash);
    if !done.exists() {
        let _lock = lock::exclusive(&cache.join("lock"), "another build of Kubernetes to end")?;
        if !done.exists() {
            let unfinished = cache.join(format!("{hash}.building"));
            long_step(
                "build Kubernetes, Helm and kwok (once per machine, about ten minutes)",
                || build(&source, &unfinished),
            )?;
            fs::rename(&unfinished, &done)?;
        }
    }
    Ok(Binaries(done))
}

fn build(source: &Path, out: &Path) -> Result<()> {
    let _ = fs::remove_dir_all(out);
    fs::create_dir_all(out)?;
    let version = kubernetes_version(&fs::read_to_string(source.join("go.mod"))?)
        .context("hack/kubernetes/go.mod does not require k8s.io/kubernetes")?;
    let stamp = |name: &str, value: &str| format!("-X k8s.io/component-base/version.{name}={value}");
    let mut numbers = version.trim_start_matches('v').split('.');
    let flags = [
        "-s -w".to_owned(),
        stamp("gitVersion", &version),
        stamp("gitMajor", numbers.next().unwrap_or_default()),
        stamp("gitMinor", numbers.next().unwrap_or_default()),
        stamp("gitTreeState", "clean"),
    ]
    .join(" ");
    let go = |arguments: &[&str]| {
        command::long_output(
            Command::new("go")
                .args(arguments)
                .current_dir(source)
                .env("CGO_ENABLED", "0")
                .env("GOTOOLCHAIN", "local")
                .env("GOBIN", out),
        )
    };
    let kubernetes = out.join("kubernetes").display().to_string();
    go(&["build", "-trimpath", "-ldflags", &flags, "-o", &kubernetes, "."])?;
    go(&["install", "-trimpath", "-ldflags", "-s -w", "tool"])?;
    symlink("kubernetes", out.join("kubectl"))?;
    Ok(())
}

fn source_hash(source: &Path) -> Result<String> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(source).with_context(|| format!("cannot read {}", source.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == "go.mod" || name == "go.sum" || Path::new(&name).extension().is_some_and(|end| end == "go") {
            files.insert(name, fs::read(entry.path())?);
        }
    }
    let mut hash = Sha256::new();
    for (name, content) in files {
        hash.update(format!("{name} {}\n", content.len()));
        hash.update(content);
    }
    Ok(crate::short_name(hash))
}

fn kubernetes_version(go_mod: &str) -> Option<String> {
    let line = go_mod
        .lines()
        .find_map(|line| line.trim().strip_prefix("k8s.io/kubernetes "))?;
    line.split_whitespace().next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_the_required_module() {
        let go_mod = "require (\n\tk8s.io/kubectl v0.37.1\n\tk8s.io/kubernetes v1.37.1 // direct\n)";
        assert_eq!(kubernetes_version(go_mod).as_deref(), Some("v1.37.1"));
    }

    #[test]
    fn hash_follows_the_source_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("main.go"), "package main").unwrap();
        let first = source_hash(folder.path()).unwrap();
        fs::write(folder.path().join("README.md"), "words").unwrap();
        assert_eq!(source_hash(folder.path()).unwrap(), first);
        fs::write(folder.path().join("main.go"), "package main // changed").unwrap();
        assert_ne!(source_hash(folder.path()).unwrap(), first);
    }
}
