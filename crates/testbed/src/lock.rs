//! Locks between processes: all checkouts on the machine share builds and images.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};

/// Holds the lock until the file is dropped; the kernel releases it when the process dies.
pub(crate) fn exclusive(path: &Path, waiting_for: &str) -> Result<File> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let file = File::create(path).with_context(|| format!("cannot open {}", path.display()))?;
    if file.try_lock().is_err() {
        eprintln!("waiting for {waiting_for}");
        file.lock()?;
    }
    Ok(file)
}
