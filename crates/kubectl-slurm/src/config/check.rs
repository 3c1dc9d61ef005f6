//! `config check`: the operator's checks of files, without a cluster.

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use slurm::conf::{Configuration, FileKind, Known, Severity, check};

use crate::failure::{Failure, Outcome};
use crate::output::print;

const SLURM_CONF: &str = "slurm.conf";

pub(crate) fn run(path: &Path) -> Outcome {
    let files = read(path)?;
    let name = match path.to_str() {
        Some("-") => "standard input".to_owned(),
        _ => path.display().to_string(),
    };
    let (text, refused) = findings(&files);
    print(&text)?;
    if refused {
        return Err(Failure::refused(format!("slurmctld would refuse {name}")));
    }
    print(&format!("no problems that slurmctld would refuse in {name}\n"))
}

/// Returns the problems, one per line, and whether the files are refused. Pure.
fn findings(files: &[(String, Vec<u8>)]) -> (String, bool) {
    let configuration = Configuration::parse(files.iter().map(|(name, content)| (name.as_str(), content.as_slice())));
    let mut problems = check(&configuration, &Known::default());
    // Without slurm.conf, its required settings are not checked.
    if !files.iter().any(|(name, _)| name == SLURM_CONF) {
        problems.retain(|problem| files.iter().any(|(name, _)| *name == problem.file));
    }
    let line = |problem: &slurm::conf::Problem| match problem.severity {
        Severity::Refuse => format!("{problem}\n"),
        Severity::Warn => format!("{problem} (a warning)\n"),
    };
    let refused = problems.iter().any(|problem| problem.severity == Severity::Refuse);
    (problems.iter().map(line).collect(), refused)
}

fn read(path: &Path) -> Outcome<Vec<(String, Vec<u8>)>> {
    let failed = |path: &Path, error: &io::Error| match error.kind() {
        io::ErrorKind::NotFound => Failure::not_found(format!("{} does not exist", path.display())),
        _ => Failure::refused(format!("cannot read {}: {error}", path.display())),
    };
    if path == Path::new("-") {
        let mut content = Vec::new();
        let read = io::stdin().lock().read_to_end(&mut content);
        read.map_err(|error| failed(path, &error))?;
        return Ok(vec![(SLURM_CONF.to_owned(), content)]);
    }
    if !path.is_dir() {
        let content = fs::read(path).map_err(|error| failed(path, &error))?;
        return Ok(vec![(known_name(path), content)]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(|error| failed(path, &error))? {
        let file = entry.map_err(|error| failed(path, &error))?.path();
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // Hidden files belong to the kubelet, and keys are not read.
        let is_key = file
            .extension()
            .is_some_and(|extension| extension == "key" || extension == "jwks");
        if file.is_file() && !name.starts_with('.') && !is_key {
            files.push((name, fs::read(&file).map_err(|error| failed(&file, &error))?));
        }
    }
    if !files.iter().any(|(name, _)| name == SLURM_CONF) {
        return Err(Failure::not_found(format!("{} has no slurm.conf", path.display())));
    }
    Ok(files)
}

/// Returns the file name by which Slurm would read the file.
fn known_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    match FileKind::of_name(&name) {
        FileKind::Other => SLURM_CONF.to_owned(),
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "ClusterName=a\nSlurmctldHost=b\nNodeName=n[1-2]\nPartitionName=p Nodes=n[1-2]\n";

    #[test]
    fn files_are_checked_by_their_name_in_slurm() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = directory.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let good = write("slurm.conf", GOOD);
        let bad = write("mine.txt", &GOOD.replace("PartitionName=p", "PartitonName=p"));
        let cgroup = write("cgroup.conf", "CgroupPlugin=cgroup/v1\n");
        write("slurm.key", "secret");
        assert!(run(&good).is_ok());
        assert!(run(&cgroup).is_ok());
        assert!(run(directory.path()).is_ok());
        assert_eq!(run(&bad).unwrap_err().exit_code(), 1);
        assert_eq!(run(&directory.path().join("nope")).unwrap_err().exit_code(), 3);
    }

    #[test]
    fn a_problem_has_line_and_remedy() {
        let (text, refused) = findings(&[("slurm.conf".to_owned(), format!("{GOOD}FooBar=1\n").into_bytes())]);
        assert!(
            refused && text.starts_with("slurm.conf line 5: ") && text.contains("FooBar"),
            "{text}"
        );
        assert_eq!(
            findings(&[("slurm.conf".to_owned(), GOOD.as_bytes().to_vec())]),
            (String::new(), false)
        );
    }
}
