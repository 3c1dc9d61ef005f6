//! Checks whether this machine can run a cluster, before anything is started. Each problem is one sentence.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::command;
use crate::kubernetes;
use crate::steps::long_step;

/// Required programs, each with its Debian package.
const PROGRAMS: [(&str, &str); 11] = [
    ("containerd", "containerd"),
    ("runc", "runc"),
    ("/usr/lib/cni/bridge", "containernetworking-plugins"),
    ("nft", "nftables"),
    ("iptables", "iptables"),
    ("conntrack", "conntrack"),
    ("ip", "iproute2"),
    ("nsenter", "util-linux"),
    ("mmdebstrap", "mmdebstrap"),
    ("apt-get", "apt"),
    ("bindfs", "bindfs"),
];

/// A three-node cluster with Slurm, MariaDB and the tests' pods was measured to use 3 GiB.
const MEMORY_NEEDED_MIB: u64 = 4 * 1024;
/// The images with their unpacked copy (2 GB), and room for clusters.
const DISK_NEEDED_MIB: u64 = 5 * 1024;
/// Go's caches, the first time.
const BUILD_NEEDED_MIB: u64 = 7 * 1024;

/// cgroup v1 hierarchies that the kubelet and runc manage.
pub const CGROUP_CONTROLLERS: [&str; 9] = [
    "cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd",
];

/// Facts about the machine.
#[derive(Clone, Debug)]
pub struct Ground {
    pub root: bool,
    pub namespaces: bool,
    pub memory_mib: u64,
    pub disk_mib: u64,
    pub disk_needed_mib: u64,
    pub missing_cgroups: Vec<&'static str>,
    pub debian: bool,
}

/// Rejects an unsuitable machine, then installs missing packages.
pub fn prepare(cache: &Path) -> Result<()> {
    let ground = observe(cache);
    if let Some(problem) = check(&ground) {
        bail!(problem);
    }
    allow_watches();
    install_missing()
}

/// Kubelets and log followers use inotify instances; the default limit of 128 suffices for about four clusters.
fn allow_watches() {
    const LIMIT: &str = "/proc/sys/fs/inotify/max_user_instances";
    const ENOUGH: u32 = 1024;
    let now = fs::read_to_string(LIMIT).ok().and_then(|now| now.trim().parse().ok());
    if now.is_some_and(|now: u32| now < ENOUGH) {
        // If that is not permitted, a few clusters run nevertheless.
        let _ = fs::write(LIMIT, ENOUGH.to_string());
    }
}

pub fn observe(cache: &Path) -> Ground {
    let unshare = Command::new("unshare")
        .args(["--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "true"])
        .output();
    Ground {
        root: nix::unistd::geteuid().is_root(),
        namespaces: unshare.is_ok_and(|done| done.status.success()),
        memory_mib: available_memory_mib(&fs::read_to_string("/proc/meminfo").unwrap_or_default()),
        disk_mib: free_disk_mib(cache),
        disk_needed_mib: disk_needed_mib(kubernetes::are_built()),
        missing_cgroups: CGROUP_CONTROLLERS
            .into_iter()
            .filter(|controller| {
                !Path::new("/sys/fs/cgroup")
                    .join(controller)
                    .join("cgroup.procs")
                    .exists()
            })
            .collect(),
        debian: Path::new("/etc/debian_version").exists(),
    }
}

/// The first problem.
pub fn check(ground: &Ground) -> Option<String> {
    let Ground {
        root,
        namespaces,
        memory_mib,
        disk_mib,
        disk_needed_mib,
        missing_cgroups,
        debian,
    } = ground;
    if !root {
        return Some("the test bed makes namespaces and mounts, so it must run as root (try sudo)".to_owned());
    }
    if !debian {
        return Some(
            "the test bed takes containerd, runc and Slurm from Debian's packages, and this is not Debian".to_owned(),
        );
    }
    if !namespaces {
        return Some(
            "this machine does not let root make namespaces (`unshare --mount --net --pid` fails); \
             inside a container, run it privileged"
                .to_owned(),
        );
    }
    if *memory_mib < MEMORY_NEEDED_MIB {
        return Some(format!(
            "a cluster needs {MEMORY_NEEDED_MIB} MiB of free memory, this machine has {memory_mib} MiB"
        ));
    }
    if disk_mib < disk_needed_mib {
        return Some(format!(
            "builds and images need {disk_needed_mib} MiB of free disk, there are {disk_mib} MiB"
        ));
    }
    if !missing_cgroups.is_empty() {
        return Some(format!(
            "unsupported cgroup layout: the test bed needs cgroup v1 with the controllers {} under /sys/fs/cgroup, missing here: {}",
            CGROUP_CONTROLLERS.join(", "),
            missing_cgroups.join(", ")
        ));
    }
    None
}

/// A machine that has built Kubernetes needs less.
fn disk_needed_mib(kubernetes_is_built: bool) -> u64 {
    DISK_NEEDED_MIB + if kubernetes_is_built { 0 } else { BUILD_NEEDED_MIB }
}

fn available_memory_mib(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        .map_or(0, |kib| kib / 1024)
}

fn free_disk_mib(path: &Path) -> u64 {
    nix::sys::statvfs::statvfs(path).map_or(0, |disk| disk.blocks_available() * disk.fragment_size() / (1024 * 1024))
}

fn install_missing() -> Result<()> {
    let missing: Vec<&str> = PROGRAMS
        .iter()
        .filter(|(program, _)| !is_installed(program))
        .map(|&(_, package)| package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    long_step(&format!("install {}", missing.join(" ")), || {
        let apt = |arguments: &[&str]| {
            command::long_output(
                Command::new("apt-get")
                    .env("DEBIAN_FRONTEND", "noninteractive")
                    // Another process may hold the lock of apt.
                    .args(["-q", "-o", "DPkg::Lock::Timeout=300"])
                    .args(arguments),
            )
        };
        let install = [&["install", "-y", "--no-install-recommends"], missing.as_slice()].concat();
        if let Err(error) = apt(&["update"]).and_then(|_| apt(&install)) {
            bail!(
                "the Debian packages {} cannot be installed: {}",
                missing.join(", "),
                apt_reason(&error.to_string())
            );
        }
        Ok(())
    })
}

/// apt explains itself on a line that starts with E:; the rest is its progress.
fn apt_reason(output: &str) -> &str {
    let said = |line: &&str| line.starts_with("E: ");
    output.lines().find(said).or(output.lines().last()).unwrap_or_default()
}

fn is_installed(program: &str) -> bool {
    let system = [
        "/usr/local/sbin",
        "/usr/local/bin",
        "/usr/sbin",
        "/usr/bin",
        "/sbin",
        "/bin",
    ];
    Path::new(program).is_absolute() && Path::new(program).exists()
        || system.iter().any(|folder| Path::new(folder).join(program).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Ground {
        Ground {
            root: true,
            namespaces: true,
            memory_mib: 8192,
            disk_mib: 40_000,
            disk_needed_mib: disk_needed_mib(false),
            missing_cgroups: vec![],
            debian: true,
        }
    }

    #[test]
    fn a_suitable_machine_is_accepted() {
        assert_eq!(check(&good()), None);
    }

    #[test]
    fn a_machine_that_has_built_kubernetes_needs_less_disk() {
        let ground = Ground {
            disk_mib: 6 * 1024,
            ..good()
        };
        assert!(check(&ground).is_some());
        let built = Ground {
            disk_needed_mib: disk_needed_mib(true),
            ..ground
        };
        assert_eq!(check(&built), None);
    }

    #[test]
    fn each_problem_of_a_machine_is_named() {
        let cases = [
            (Ground { root: false, ..good() }, "root"),
            (
                Ground {
                    namespaces: false,
                    ..good()
                },
                "namespaces",
            ),
            (
                Ground {
                    memory_mib: 500,
                    ..good()
                },
                "memory",
            ),
            (
                Ground {
                    disk_mib: 500,
                    ..good()
                },
                "disk",
            ),
            (
                Ground {
                    missing_cgroups: vec!["memory"],
                    ..good()
                },
                "cgroup",
            ),
            (
                Ground {
                    debian: false,
                    ..good()
                },
                "Debian",
            ),
        ];
        for (ground, word) in cases {
            let sentence = check(&ground).unwrap();
            assert!(sentence.contains(word), "{sentence}");
            assert!(!sentence.contains('\n'), "{sentence}");
        }
    }

    #[test]
    fn apt_is_quoted_with_the_line_that_tells_why() {
        let output = "apt-get install x: exit status: 100\nReading package lists...\nE: Unable to locate package x\n";
        assert_eq!(apt_reason(output), "E: Unable to locate package x");
        assert_eq!(apt_reason("cannot run apt-get"), "cannot run apt-get");
    }

    #[test]
    fn available_memory_is_read_in_mebibytes() {
        assert_eq!(available_memory_mib("MemTotal: 9 kB\nMemAvailable:    2048 kB\n"), 2);
        assert_eq!(available_memory_mib("nothing"), 0);
    }
}
