//! The images, how they start, and the names under which pods use them.

use super::oci::Config;
use crate::slurm_release::Release;

const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const LANG: &str = "LANG=C.UTF-8";
const ENTRYPOINT: [&str; 1] = ["/usr/local/bin/entrypoint"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Root {
    /// The shared Debian root, the agent, and the files of `images/<name>`.
    Base,
    /// The agent alone.
    Scratch,
}

#[derive(Debug)]
pub(super) struct Entry {
    /// Its folder below `images`.
    pub name: &'static str,
    pub root: Root,
    pub references: Vec<String>,
    pub config: Config<'static>,
}

/// All images with all their names.
pub(super) fn images(release: Release) -> Vec<Entry> {
    let mut images = slurm_images(release);
    images.extend(other_images());
    images
}

fn slurm_images(release: Release) -> Vec<Entry> {
    let stock = |names: &[&str]| stock(release, names);
    let mut slurmd_names = stock(&["slurmd", "slurmd-pyxis"]);
    if release == Release::Current {
        slurmd_names.push("localhost/slurm:26.05".to_owned());
    }
    let under_tini = |command: &[&'static str]| [&["/usr/bin/tini", "-g", "--"], command].concat();
    let slurm = Config {
        user: "401:401",
        ..base()
    };
    vec![
        Entry {
            name: "slurmctld",
            root: Root::Base,
            references: stock(&["slurmctld"]),
            config: Config {
                entrypoint: ENTRYPOINT.to_vec(),
                ports: vec![6817],
                ..slurm.clone()
            },
        },
        Entry {
            name: "slurmd",
            root: Root::Base,
            references: slurmd_names,
            config: Config {
                entrypoint: ENTRYPOINT.to_vec(),
                ports: vec![6818, 22],
                ..base()
            },
        },
        Entry {
            name: "slurmdbd",
            root: Root::Base,
            references: stock(&["slurmdbd"]),
            config: Config {
                entrypoint: under_tini(&["slurmdbd", "-D"]),
                ports: vec![6819],
                ..slurm
            },
        },
        Entry {
            name: "slurmrestd",
            root: Root::Base,
            references: stock(&["slurmrestd"]),
            config: Config {
                entrypoint: under_tini(&["slurmrestd"]),
                cmd: vec!["0.0.0.0:6820"],
                // slurmrestd does not run as root or as the user of Slurm.
                user: "65534:65534",
                ports: vec![6820],
                ..base()
            },
        },
        Entry {
            name: "login",
            root: Root::Base,
            references: stock(&["login", "login-pyxis"]),
            config: Config {
                entrypoint: ENTRYPOINT.to_vec(),
                ports: vec![22],
                ..base()
            },
        },
    ]
}

/// What clusters use beside Slurm.
fn other_images() -> Vec<Entry> {
    vec![
        Entry {
            name: "mariadb",
            root: Root::Base,
            references: vec!["docker.io/library/mariadb:11".to_owned()],
            config: Config {
                entrypoint: ENTRYPOINT.to_vec(),
                ports: vec![3306],
                ..base()
            },
        },
        Entry {
            name: "slapd",
            root: Root::Base,
            references: vec!["localhost/slapd:latest".to_owned()],
            config: Config {
                entrypoint: ENTRYPOINT.to_vec(),
                ports: vec![389],
                ..base()
            },
        },
        Entry {
            name: "alpine",
            root: Root::Base,
            references: vec!["docker.io/library/alpine:latest".to_owned()],
            config: Config {
                cmd: vec!["/bin/sh"],
                ..base()
            },
        },
        Entry {
            name: "pause",
            root: Root::Scratch,
            references: vec!["localhost/pause:1".to_owned()],
            config: Config {
                entrypoint: vec!["/usr/local/bin/slurm-agent", "pause"],
                user: "65535:65535",
                ..Config::default()
            },
        },
    ]
}

fn base() -> Config<'static> {
    Config {
        env: vec![PATH, LANG],
        workdir: "/",
        ..Config::default()
    }
}

fn stock(release: Release, names: &[&str]) -> Vec<String> {
    let tagged = |name: &&str| {
        let name = (*name).to_owned();
        let reference = move |tag: &&str| format!("ghcr.io/slinkyproject/{name}:{tag}");
        release.tags().iter().map(reference)
    };
    names.iter().flat_map(tagged).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_name_is_used_by_two_images() {
        let names: Vec<String> = images(Release::Current)
            .into_iter()
            .flat_map(|entry| entry.references)
            .collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    }

    #[test]
    fn every_name_is_complete_for_containerd() {
        for name in images(Release::Current).into_iter().flat_map(|entry| entry.references) {
            let (registry, rest) = name.split_once('/').unwrap();
            assert!(registry.contains('.') || registry == "localhost", "{name}");
            assert!(
                rest.rsplit_once(':')
                    .is_some_and(|(path, tag)| !path.is_empty() && !tag.is_empty()),
                "{name}"
            );
        }
    }

    #[test]
    fn the_names_charts_and_seeds_use_are_there() {
        let names: BTreeSet<String> = images(Release::Current)
            .into_iter()
            .flat_map(|entry| entry.references)
            .collect();
        for wanted in [
            "docker.io/library/alpine:latest",
            "docker.io/library/mariadb:11",
            "ghcr.io/slinkyproject/login-pyxis:26.05-ubuntu26.04",
            "ghcr.io/slinkyproject/login:26.05-ubuntu26.04",
            "ghcr.io/slinkyproject/slurmctld:26.05-ubuntu26.04",
            "ghcr.io/slinkyproject/slurmd:25.05-rockylinux9",
            "ghcr.io/slinkyproject/slurmd:26.05-ubuntu26.04",
            "ghcr.io/slinkyproject/slurmdbd:26.05-ubuntu26.04",
            "ghcr.io/slinkyproject/slurmrestd:25.11-ubuntu24.04",
            "localhost/pause:1",
            "localhost/slapd:latest",
            "localhost/slurm:26.05",
        ] {
            assert!(names.contains(wanted), "{wanted} is missing");
        }
    }

    #[test]
    fn every_entrypoint_of_ours_is_in_the_repository_and_executable() {
        use std::os::unix::fs::PermissionsExt as _;
        for entry in images(Release::Current) {
            if entry.config.entrypoint == ["/usr/local/bin/entrypoint"] {
                let file = crate::paths::repository()
                    .join("images")
                    .join(entry.name)
                    .join("usr/local/bin/entrypoint");
                let mode = std::fs::metadata(&file)
                    .unwrap_or_else(|_| panic!("no {}", file.display()))
                    .permissions()
                    .mode();
                assert_eq!(mode & 0o111, 0o111, "{}", file.display());
            }
        }
    }
}
