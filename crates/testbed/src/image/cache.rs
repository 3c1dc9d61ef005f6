//! Cleans the cache: removes killed builds and old results.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Removes the remains of killed builds. The caller must hold the lock of those builds.
pub(super) fn remove_unfinished(folder: &Path, prefix: &str) -> Result<()> {
    for path in named(folder, prefix)? {
        let removed = if path.is_dir() {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        removed.with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

/// Keeps the `count` newest tars with this prefix and removes the others with the files beside them.
pub(super) fn keep_newest(folder: &Path, prefix: &str, count: usize) -> Result<()> {
    let mut tars = Vec::new();
    for path in named(folder, prefix)? {
        if path.extension().is_some_and(|end| end == "tar") {
            tars.push((fs::metadata(&path)?.modified()?, path));
        }
    }
    tars.sort();
    for (_, tar) in tars.iter().rev().skip(count) {
        fs::remove_file(tar).with_context(|| format!("cannot remove {}", tar.display()))?;
        let _ = fs::remove_file(tar.with_extension("sha256"));
    }
    Ok(())
}

fn named(folder: &Path, prefix: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            found.push(entry.path());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::{Duration, SystemTime};

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = named(folder, "").unwrap();
        names.sort();
        names
            .iter()
            .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn the_oldest_are_removed_with_their_digests() {
        let folder = tempfile::tempdir().unwrap();
        for (age, name) in ["base-c.tar", "base-b.tar", "base-a.tar", "other.tar"]
            .iter()
            .enumerate()
        {
            let file = File::create(folder.path().join(name)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(60 * age as u64))
                .unwrap();
            fs::write(folder.path().join(name).with_extension("sha256"), "").unwrap();
        }
        keep_newest(folder.path(), "base-", 2).unwrap();
        let left = [
            "base-b.sha256",
            "base-b.tar",
            "base-c.sha256",
            "base-c.tar",
            "other.sha256",
            "other.tar",
        ];
        assert_eq!(names(folder.path()), left);
    }

    #[test]
    fn unfinished_files_and_folders_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("unfinished-1/root")).unwrap();
        fs::write(folder.path().join("unfinished-2"), "").unwrap();
        fs::write(folder.path().join("done"), "").unwrap();
        remove_unfinished(folder.path(), "unfinished-").unwrap();
        assert_eq!(names(folder.path()), ["done"]);
    }
}
