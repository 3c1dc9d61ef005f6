//! Copies the agent to a directory that the pod's other containers mount, so that it runs in any image.

use std::path::{Path, PathBuf};

use host::{FileError, Host};
use thiserror::Error;

/// The name of the copy.
pub const NAME: &str = "slurm-agent";

#[derive(Debug, Error)]
#[error("cannot copy {from} to {to}: {source}", from = .from.display(), to = .to.display())]
pub struct Error {
    from: PathBuf,
    to: PathBuf,
    source: FileError,
}

/// Copies `program` into `directory` and returns the path of the copy. A process that runs an earlier copy is not disturbed.
pub fn install(host: &Host, program: &Path, directory: &Path) -> Result<PathBuf, Error> {
    let to = directory.join(NAME);
    copy(host, program, directory, &to).map_err(|source| Error {
        from: program.to_owned(),
        to: to.clone(),
        source,
    })?;
    Ok(to)
}

fn copy(host: &Host, program: &Path, directory: &Path, to: &Path) -> Result<(), FileError> {
    let files = host.files();
    // Renamed into place, since a program that runs cannot be written to.
    let temporary = directory.join(format!(".{NAME}-{:016x}", host.random().u64()));
    let copied = files
        .create(&temporary, &files.read(program)?, 0o755)
        .and_then(|()| files.rename(&temporary, to));
    if copied.is_err() {
        let _ = files.remove(&temporary);
    }
    copied
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_program_is_copied_executable_and_may_be_copied_again() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("program");
        let to = directory.path().join("shared");
        fs::create_dir(&to).unwrap();
        for content in ["one", "two"] {
            fs::write(&program, content).unwrap();
            let installed = install(&Host::real(), &program, &to).unwrap();
            assert_eq!(installed, to.join("slurm-agent"));
            assert_eq!(fs::read_to_string(&installed).unwrap(), content);
            assert_eq!(fs::metadata(&installed).unwrap().permissions().mode() & 0o777, 0o755);
        }
        assert_eq!(fs::read_dir(&to).unwrap().count(), 1);
    }

    #[test]
    fn a_missing_directory_is_an_error_in_one_sentence() {
        let error = install(&Host::real(), Path::new("/proc/self/exe"), Path::new("/no/such")).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("cannot copy /proc/self/exe to /no/such/slurm-agent: "),
            "{error}"
        );
    }
}
