//! What `PrivateData` hides from users without privileges.

use slurm::conf::Configuration;

use crate::cluster::deliver::Files;

/// Values that hide nothing that the operator reads through slurmrestd: they are about records of the accounting database, and about
/// nodes that no user sees.
const HARMLESS: [&str; 5] = ["accounts", "cloud", "events", "none", "users"];

/// Whether a slurmctld with these files hides nodes, jobs, partitions or reservations from users without privileges, or may do so.
pub(super) fn hides_records(files: &Files) -> bool {
    // Most configurations have neither word, and need not be parsed for this.
    let mentions = |word: &str| {
        let mut contents = files.values().map(|file| file.content.as_slice());
        contents.any(|content| {
            let mut windows = content.windows(word.len());
            windows.any(|part| part.eq_ignore_ascii_case(word.as_bytes()))
        })
    };
    if !mentions("PrivateData") && !mentions("include") {
        return false;
    }
    let contents = files
        .iter()
        .map(|(name, file)| (name.as_str(), file.content.as_slice()));
    let conf = Configuration::parse(contents);
    let mut values = conf.values("PrivateData").flat_map(|value| value.split(','));
    let hides = |value: &str| {
        !HARMLESS
            .iter()
            .any(|harmless| value.trim().eq_ignore_ascii_case(harmless))
    };
    conf.includes_elsewhere() || values.any(hides)
}

#[cfg(test)]
mod tests {
    use slurm::revision::{File, FileName};

    use super::*;

    fn hides(files: &[(&str, &str)]) -> bool {
        let files = files.iter().map(|(name, text)| {
            let content = text.as_bytes().to_vec();
            let executable = false;
            (FileName::new(*name).unwrap(), File { content, executable })
        });
        hides_records(&files.collect())
    }

    #[test]
    fn records_that_the_operator_reads_are_found_to_be_hidden() {
        for value in [
            "jobs",
            "Nodes",
            "accounts,partitions",
            "users,reservations",
            "usage",
            "all",
            "new",
        ] {
            assert!(
                hides(&[("slurm.conf", &format!("ClusterName=a\nprivatedata={value}\n"))]),
                "{value}"
            );
        }
        for conf in [
            "",
            "ClusterName=a",
            "PrivateData=accounts,users,events,cloud",
            "PrivateData=none",
            "# PrivateData=jobs",
        ] {
            assert!(!hides(&[("slurm.conf", conf)]), "{conf}");
        }
    }

    #[test]
    fn included_files_count_and_files_of_the_host_may_hide_records() {
        let included = |text| hides(&[("slurm.conf", "Include more.conf\n"), ("more.conf", text)]);
        assert!(included("PrivateData=jobs\n"));
        assert!(!included("MaxJobCount=5\n"));
        assert!(hides(&[("slurm.conf", "Include /srv/site.conf\n")]));
    }
}
