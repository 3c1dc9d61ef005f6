//! Files that are whole or absent, whatever happens meanwhile.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Writes a file under another name, on the disk, and then renames it, on the disk.
pub(crate) fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    rename_into_place(path, bytes, mode, File::sync_all)?;
    sync_directory(path.parent().unwrap_or(Path::new("/")))
}

/// The same without a wait for the disk: nobody sees a torn file unless the machine itself goes down.
pub(crate) fn replace_unsynced(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    rename_into_place(path, bytes, mode, |_| Ok(()))
}

fn rename_into_place(path: &Path, bytes: &[u8], mode: u32, sync: fn(&File) -> io::Result<()>) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // Pods of one Controller may share the volume.
    let temporary = directory.join(format!(".{name}.{}-{}", hostname(), std::process::id()));
    let written = write(&temporary, bytes, mode)
        .and_then(|file| sync(&file))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(()) => sync_directory(path.parent().unwrap_or(Path::new("/"))),
    }
}

pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

fn write(path: &Path, bytes: &[u8], mode: u32) -> io::Result<File> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(path)?;
    file.write_all(bytes)?;
    Ok(file)
}

pub(crate) fn hostname() -> String {
    nix::unistd::gethostname()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}
