//! Copies the agent to where the pod's other containers find it, so that it runs in any image.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// What the file is called there.
pub const NAME: &str = "slurm-agent";

#[derive(Debug, Error)]
#[error("cannot copy {from} to {to}: {source}", from = .from.display(), to = .to.display())]
pub struct Error {
    from: PathBuf,
    to: PathBuf,
    source: io::Error,
}

/// Copies `program` into `directory`; the path it has there. One that is running there goes on as it was.
pub fn install(program: &Path, directory: &Path) -> Result<PathBuf, Error> {
    let to = directory.join(NAME);
    copy(program, directory, &to).map_err(|source| Error {
        from: program.to_owned(),
        to: to.clone(),
        source,
    })?;
    Ok(to)
}

fn copy(program: &Path, directory: &Path, to: &Path) -> io::Result<()> {
    // Renamed into its place, since a program that runs cannot be written to.
    let mut file = tempfile::Builder::new()
        .prefix(".slurm-agent-")
        .tempfile_in(directory)?;
    io::copy(&mut fs::File::open(program)?, &mut file)?;
    file.as_file().set_permissions(fs::Permissions::from_mode(0o755))?;
    file.persist(to)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_copied_executable_and_may_be_copied_again() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("program");
        let to = directory.path().join("shared");
        fs::create_dir(&to).unwrap();
        for content in ["one", "two"] {
            fs::write(&program, content).unwrap();
            let installed = install(&program, &to).unwrap();
            assert_eq!(installed, to.join("slurm-agent"));
            assert_eq!(fs::read_to_string(&installed).unwrap(), content);
            assert_eq!(fs::metadata(&installed).unwrap().permissions().mode() & 0o777, 0o755);
        }
        assert_eq!(fs::read_dir(&to).unwrap().count(), 1);
    }

    #[test]
    fn a_missing_directory_is_an_error_in_one_sentence() {
        let error = install(Path::new("/proc/self/exe"), Path::new("/no/such")).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("cannot copy /proc/self/exe to /no/such/slurm-agent: "),
            "{error}"
        );
    }
}
