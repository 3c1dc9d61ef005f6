//! Images unpacked once and shared by all nodes of all clusters.
//!
//! A separate containerd imports the archives into a store in the cache. A node's containerd then starts from a copy of
//! that store in which all file contents are hard links: layers and blobs are never written again once they are
//! committed, only the databases are, and those are copied. A node therefore has all images in a fraction of a second.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use sha2::{Digest, Sha256};

use crate::command;
use crate::containerd;
use crate::lock;
use crate::namespaces::{Namespaces, wait_ready};
use crate::paths;
use crate::steps::long_step;

/// Enough for a few checkouts; each is about a gigabyte.
const STORES_KEPT: usize = 3;

/// The store with exactly these archives. It is created if necessary.
pub(crate) fn store(archives: &[PathBuf]) -> Result<PathBuf> {
    let cache = paths::cache()?.join("image-stores");
    fs::create_dir_all(&cache)?;
    let done = cache.join(store_name(archives)?);
    if !done.exists() {
        let _lock = lock::exclusive(&cache.join("lock"), "another import of images to end")?;
        if !done.exists() {
            long_step("unpack images (once per set of images, about half a minute)", || {
                fill(&done, archives)
            })?;
        }
    }
    Ok(done)
}

/// Archives in the cache carry their content's hash in their path, so paths identify them.
fn store_name(archives: &[PathBuf]) -> Result<String> {
    let mut hash = Sha256::new();
    hash.update(containerd::config(""));
    for archive in archives {
        let size = fs::metadata(archive)
            .with_context(|| format!("no image archive {}", archive.display()))?
            .len();
        hash.update(format!("{} {size}\n", archive.display()));
    }
    Ok(crate::short_name(hash))
}

fn fill(done: &Path, archives: &[PathBuf]) -> Result<()> {
    let work = done.with_extension("filling");
    let _ = fs::remove_dir_all(&work);
    let root = work.join("root");
    fs::create_dir_all(&root)?;
    let config = work.join("containerd.toml");
    let log = work.join("containerd.log");
    paths::write(&config, containerd::config(&root.display().to_string()))?;

    let init = crate::init_command(&["scratch-init"])?;
    let place = Namespaces::create(None, &init, None, &log)?;
    let imported = import_all(place, &config, &log, archives);
    place.init.end(Signal::SIGKILL, Duration::from_secs(10))?;
    imported?;
    fs::rename(&root, done)?;
    let _ = fs::remove_dir_all(&work);
    keep_newest(done.parent().unwrap_or(done))
}

/// Nodes have links to the files they use, so that a store can be removed while clusters run.
fn keep_newest(cache: &Path) -> Result<()> {
    let mut stores = Vec::new();
    for entry in fs::read_dir(cache)? {
        let path = entry?.path();
        if path.is_dir() {
            stores.push((fs::metadata(&path)?.modified()?, path));
        }
    }
    stores.sort();
    for (_, store) in stores.iter().rev().skip(STORES_KEPT) {
        fs::remove_dir_all(store).with_context(|| format!("cannot remove {}", store.display()))?;
    }
    Ok(())
}

fn import_all(place: Namespaces, config: &Path, log: &Path, archives: &[PathBuf]) -> Result<()> {
    wait_ready("scratch namespace", place.init, log, || {
        command::output(place.command("test").args(["-e", "/run/ready"])).is_ok()
    })?;
    let arguments = ["--config".to_owned(), config.display().to_string()];
    let daemon = place.start("containerd", &arguments, log)?;
    wait_ready("containerd", daemon, log, || containerd::answers(place))?;
    for archive in archives {
        containerd::import(place, archive)?;
    }
    // It must close its databases before they are copied.
    daemon.end(Signal::SIGTERM, Duration::from_secs(20))
}

/// Gives a node the images of `store`, unless it has them from an earlier start.
pub(crate) fn give(store: &Path, root: &Path) -> Result<()> {
    if root.exists() {
        return Ok(());
    }
    if let Some(parent) = root.parent() {
        fs::create_dir_all(parent)?;
    }
    let copied = command::output(Command::new("cp").args(["--archive", "--link"]).arg(store).arg(root))
        .and_then(|_| databases(root))
        .and_then(|files| files.iter().try_for_each(|file| unlink_from_store(file)));
    if copied.is_err() {
        let _ = fs::remove_dir_all(root);
    }
    copied
}

fn databases(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for plugin in fs::read_dir(root)? {
        let plugin = plugin?.path();
        if !plugin.is_dir() {
            continue;
        }
        let files = fs::read_dir(&plugin)?.flatten().map(|entry| entry.path());
        found.extend(files.filter(|path| path.extension().is_some_and(|end| end == "db")));
    }
    if found.is_empty() {
        bail!("{} is not a containerd root", root.display());
    }
    Ok(found)
}

fn unlink_from_store(file: &Path) -> Result<()> {
    let copy = file.with_extension("copy");
    fs::copy(file, &copy)?;
    fs::rename(&copy, file).with_context(|| format!("cannot replace {}", file.display()))
}
