//! Slurm's files by name.

/// The directory of Slurm's files in every pod.
pub const DIRECTORY: &str = "/etc/slurm";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileKind {
    SlurmConf,
    CgroupConf,
    GresConf,
    TopologyConf,
    TopologyYaml,
    AcctGatherConf,
    JobContainerConf,
    PlugstackConf,
    /// A script, an included file, or a file that is not parsed (`oci.conf`, `mpi.conf`, `namespace.yaml` …).
    Other,
}

impl FileKind {
    pub fn of_name(name: &str) -> Self {
        match name {
            "slurm.conf" => Self::SlurmConf,
            "cgroup.conf" => Self::CgroupConf,
            "gres.conf" => Self::GresConf,
            "topology.conf" => Self::TopologyConf,
            "topology.yaml" => Self::TopologyYaml,
            "acct_gather.conf" => Self::AcctGatherConf,
            "job_container.conf" => Self::JobContainerConf,
            "plugstack.conf" => Self::PlugstackConf,
            _ => Self::Other,
        }
    }
}

/// Returns the name of a path in [`DIRECTORY`], where Slurm looks for paths without a directory; `None` if it points elsewhere.
pub(super) fn name_in_directory(path: &str) -> Option<&str> {
    let name = path
        .strip_prefix(DIRECTORY)
        .and_then(|rest| rest.strip_prefix('/'))
        .unwrap_or(path);
    (!name.contains('/')).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::name_in_directory;

    #[test]
    fn only_files_of_the_directory_have_a_name_in_it() {
        assert_eq!(name_in_directory("more.conf"), Some("more.conf"));
        assert_eq!(name_in_directory("/etc/slurm/more.conf"), Some("more.conf"));
        for elsewhere in [
            "/etc/slurmish/x",
            "/opt/x.conf",
            "sub/x.conf",
            "/etc/slurm/sub/x",
            "../x",
        ] {
            assert_eq!(name_in_directory(elsewhere), None, "{elsewhere}");
        }
    }
}
