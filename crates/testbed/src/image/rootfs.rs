//! The root that all images share, made by mmdebstrap from the recipe in `images/base`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::cache;
use super::layer::{Digest, Layer, Tree};
use super::sources;
use crate::lock;
use crate::slurm_release::Release;
use crate::steps::long_step;

const OPTIONS: [&str; 10] = [
    "--variant=minbase",
    "--mode=root",
    "--architectures=amd64",
    "--aptopt=Acquire::Languages \"none\"",
    // A mirror of this suite may be older than the week for which its signatures are valid.
    "--aptopt=Acquire::Check-Valid-Until \"false\"",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-exclude=/usr/share/info/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    // Container runtimes provide these files.
    "--skip=output/dev",
];

/// One per release of Slurm, and checkouts may differ in their recipe.
const ROOTS_KEPT: usize = 3;
/// Suffix of the folder in which a root is built.
const UNFINISHED: &str = "unfinished-base-";

const HOOKS: [&str; 3] = ["setup", "essential", "customize"];

#[derive(Debug)]
pub(super) struct Recipe {
    folder: PathBuf,
    suites: &'static [&'static str],
    packages: Vec<String>,
    /// The hash of everything that determines the result, except the state of the mirror.
    key: Digest,
}

impl Recipe {
    pub(super) fn read(folder: &Path, release: Release) -> Result<Self> {
        let suites = release.suites();
        let tree = Tree::read(folder)?;
        let packages = tree
            .get("packages")
            .with_context(|| format!("{} lists no packages", folder.display()))?;
        let packages = parse_packages(&String::from_utf8_lossy(packages));
        let inputs = format!("{} {OPTIONS:?} {HOOKS:?} {}", suites.join(" "), tree.digest());
        Ok(Self {
            folder: folder.to_owned(),
            suites,
            packages,
            key: Digest::of(inputs.as_bytes()),
        })
    }

    pub(super) fn tar(&self, cache: &Path) -> Result<PathBuf> {
        let tar = cache.join(format!("base-{}.tar", self.key.short()));
        if !tar.exists() {
            fs::create_dir_all(cache).with_context(|| format!("cannot create {}", cache.display()))?;
            let _lock = lock::exclusive(&cache.join("base.lock"), "another build of the base image to end")?;
            if !tar.exists() {
                long_step(
                    "make the base image (once per recipe, about two minutes, needs the network)",
                    || self.build(cache, &tar),
                )?;
            }
        }
        Ok(tar)
    }

    fn suite(&self) -> &'static str {
        self.suites.first().copied().unwrap_or_default()
    }

    fn build(&self, cache: &Path, tar: &Path) -> Result<()> {
        let mirror = sources::of_this_machine()?;
        cache::remove_unfinished(cache, UNFINISHED)?;
        let work = tempfile::Builder::new().prefix(UNFINISHED).tempdir_in(cache)?;
        let unfinished = work.path().join("base.tar");
        let log = work.path().join("log");
        let mut command = Command::new("mmdebstrap");
        command
            .current_dir(&self.folder)
            .args(OPTIONS)
            .arg(format!("--include={}", self.packages.join(",")));
        for hook in HOOKS {
            command.arg(format!("--{hook}-hook=./{hook}.sh \"$1\""));
        }
        command.arg(self.suite()).arg(&unfinished);
        command.args(self.suites.iter().map(|suite| format!("deb {mirror} {suite} main")));
        let status = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .status()
            .context("cannot run mmdebstrap; `apt-get install mmdebstrap` installs it")?;
        if !status.success() {
            let said = fs::read_to_string(&log).unwrap_or_default();
            let why = explain(&said.replace(&mirror, "the mirror"), self.suite());
            bail!("cannot make the base image: {why}");
        }
        // The digest is written before the tar, so that a tar always has one.
        fs::write(digest_file(tar), Digest::of_reader(File::open(&unfinished)?)?.as_hex())?;
        fs::rename(&unfinished, tar).with_context(|| format!("cannot write {}", tar.display()))?;
        cache::keep_newest(cache, "base-", ROOTS_KEPT)
    }
}

/// The layer in a tar that [`Recipe::tar`] returned.
pub(super) fn layer(tar: &Path) -> Result<Layer> {
    let file = digest_file(tar);
    let digest = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    Layer::of_file(tar, Digest::parse(digest.trim())?)
}

fn digest_file(tar: &Path) -> PathBuf {
    tar.with_extension("sha256")
}

fn parse_packages(text: &str) -> Vec<String> {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(str::to_owned)
        .collect()
}

/// Extracts one sentence from the output of mmdebstrap and apt.
fn explain(said: &str, suite: &str) -> String {
    let errors: Vec<&str> = said
        .lines()
        .filter_map(|line| line.trim().strip_prefix("E: "))
        .collect();
    let missing: Vec<&str> = errors
        .iter()
        .filter_map(|error| error.strip_prefix("Unable to locate package "))
        .map(str::trim)
        .collect();
    if !missing.is_empty() {
        let list = missing.join(", ");
        return format!("Debian {suite} has no package {list}; see images/base/packages");
    }
    let unmet = said
        .lines()
        .map(str::trim)
        .find(|line| line.contains("Depends:") && line.contains("but"));
    if let Some(line) = unmet {
        return format!("a package cannot be installed at present: {line}");
    }
    match errors.first() {
        Some(error) => (*error).to_owned(),
        None => said.lines().last().unwrap_or("mmdebstrap did not say why").to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_lines_without_comments() {
        assert_eq!(parse_packages("# Slurm\nslurmd\n\n  tini\n"), ["slurmd", "tini"]);
    }

    #[test]
    fn a_missing_package_is_named() {
        let said = "I: running apt-get update...\nE: Unable to locate package sssd-ldap\nE: Unable to locate package tinny\n\
                    E: apt-get failed\n";
        assert_eq!(
            explain(said, "forky"),
            "Debian forky has no package sssd-ldap, tinny; see images/base/packages"
        );
    }

    #[test]
    fn an_uninstallable_package_is_explained_by_its_dependency() {
        let said = "The following packages have unmet dependencies:\n \
                    sssd-common : Depends: libldb2 (>= 9) but 2.1 is to be installed\n\
                    E: Unable to correct problems, you have held broken packages.\n";
        assert_eq!(
            explain(said, "forky"),
            "a package cannot be installed at present: sssd-common : Depends: libldb2 (>= 9) but 2.1 is to be installed"
        );
    }

    #[test]
    fn anything_else_is_the_first_error() {
        assert_eq!(explain("I: x\nE: must be root\nE: later\n", "forky"), "must be root");
        assert_eq!(explain("", "forky"), "mmdebstrap did not say why");
    }

    #[test]
    fn the_recipe_in_the_repository_can_be_read() {
        let read = |release| Recipe::read(&crate::paths::repository().join("images/base"), release).unwrap();
        let recipe = read(Release::Current);
        assert!(recipe.packages.iter().any(|package| package == "slurmctld"));
        assert!(!recipe.packages.iter().any(|package| package.contains("emulator")));
        assert_ne!(recipe.key.as_hex(), read(Release::V24_11).key.as_hex());
    }
}
