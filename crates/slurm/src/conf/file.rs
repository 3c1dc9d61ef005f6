//! Which of Slurm's files a name stands for.

/// Where Slurm's files lie in every pod.
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
    /// A script, a file that slurm.conf includes, or one of those whose inside we do not look at (`oci.conf`, `mpi.conf`,
    /// `namespace.yaml` …).
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

/// The name a path has in [`DIRECTORY`]; none if it points elsewhere. Slurm looks there for paths without a directory.
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
