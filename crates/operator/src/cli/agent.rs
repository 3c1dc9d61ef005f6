//! Installs the agent into a directory that the pod's other containers mount.

use std::path::{Path, PathBuf};

use anyhow::Context;
use host::{Durability, FileError, Host};

const AGENT: &str = "slurm-agent";
/// Any user of any image may run the agent.
const MODE: u32 = 0o755;

/// Copies the agent from the directory of this program into another one.
pub fn install(directory: &Path) -> anyhow::Result<()> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    copy(&Host::real(), &own.with_file_name(AGENT), directory)?;
    Ok(())
}

/// Replaces the file at once by a rename: a container that starts in the meantime runs the old or the new file, and a running
/// file does not make the copy fail.
fn copy(host: &Host, agent: &Path, directory: &Path) -> Result<PathBuf, FileError> {
    let (files, target) = (host.files(), directory.join(AGENT));
    files.create_directories(directory, MODE)?;
    files.replace(&target, &files.read(agent)?, MODE, Durability::Unsynced)?;
    Ok(target)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn the_agent_is_complete_and_executable_also_the_second_time() {
        let dir = tempfile::tempdir().unwrap();
        let agent = dir.path().join("source");
        let target = dir.path().join("bin");
        for content in ["old", "new"] {
            fs::write(&agent, content).unwrap();
            fs::set_permissions(&agent, fs::Permissions::from_mode(0o400)).unwrap();
            let installed = copy(&Host::real(), &agent, &target).unwrap();
            fs::set_permissions(&agent, fs::Permissions::from_mode(0o600)).unwrap();
            assert_eq!(fs::read_to_string(&installed).unwrap(), content);
            assert_eq!(fs::metadata(&installed).unwrap().permissions().mode() & 0o777, MODE);
            assert_eq!(fs::read_dir(&target).unwrap().count(), 1, "nothing else is left behind");
        }
    }

    #[test]
    fn a_missing_agent_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = copy(&Host::real(), &dir.path().join("nothing"), dir.path()).unwrap_err();
        assert!(format!("{error:#}").contains("nothing"), "{error:#}");
    }
}
