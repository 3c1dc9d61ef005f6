//! The hosts that share a state volume. Pure.

use std::path::PathBuf;

use slurm::conf::Configuration;

/// This host among those whose slurmctld share a state volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    /// In Slurm's order: each takes over when none before it responds.
    pub hosts: Vec<String>,
    /// The index of this host.
    pub own: usize,
    pub state_dir: PathBuf,
    /// The UID of this pod, by which it differs from others that had its name.
    pub pod: Option<String>,
}

impl Membership {
    /// `None` for any other daemon than slurmctld, and for the only one if nothing distinguishes it from others of its name.
    pub fn find(configuration: &Configuration, hostname: &str, pod: Option<&str>) -> Option<Self> {
        let hosts: Vec<String> = configuration.values("SlurmctldHost").map(name_of).collect();
        let state_dir = PathBuf::from(configuration.value("StateSaveLocation")?);
        // Slurm finds itself by its name, with or without the domain.
        let short = hostname.split('.').next().unwrap_or_default();
        let own = hosts.iter().position(|host| host == hostname || host == short)?;
        // They become file names.
        let plain = |host: &String| {
            host.starts_with(|first: char| first.is_ascii_alphanumeric())
                && host
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
        };
        let fenced = hosts.len() > 1 || pod.is_some();
        (fenced && state_dir.is_absolute() && hosts.iter().all(plain)).then_some(Self {
            hosts,
            own,
            state_dir,
            pod: pod.map(str::to_owned),
        })
    }
}

/// `name(address)`, or the name alone.
fn name_of(host: &str) -> String {
    host.split('(').next().unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn membership(conf: &str, hostname: &str) -> Option<Membership> {
        Membership::find(&Configuration::parse([("slurm.conf", conf.as_bytes())]), hostname, None)
    }

    const TWO: &str = "StateSaveLocation=/state\nSlurmctldHost=c-0(c-0.c.ns)\nSlurmctldHost=c-1(c-1.c.ns)\n";

    #[test]
    fn one_of_several_finds_itself() {
        let found = membership(TWO, "c-1").unwrap();
        assert_eq!(found.hosts, ["c-0", "c-1"]);
        assert_eq!((found.own, found.state_dir), (1, PathBuf::from("/state")));
        assert_eq!(membership(TWO, "c-0.c.ns").unwrap().own, 0);
    }

    #[test]
    fn the_only_slurmctld_is_fenced_by_its_pod() {
        let conf = Configuration::parse([("slurm.conf", &b"StateSaveLocation=/state\nSlurmctldHost=c-0(a)\n"[..])]);
        let found = Membership::find(&conf, "c-0", Some("uid")).unwrap();
        assert_eq!(
            (found.hosts.len(), found.own, found.pod.as_deref()),
            (1, 0, Some("uid"))
        );
        assert_eq!(Membership::find(&conf, "worker-0", Some("uid")), None);
    }

    #[test]
    fn the_only_slurmctld_and_other_daemons_have_no_membership() {
        assert_eq!(
            membership("StateSaveLocation=/state\nSlurmctldHost=c-0(a)\n", "c-0"),
            None
        );
        assert_eq!(membership(TWO, "worker-0"), None);
        assert_eq!(membership("SlurmctldHost=a\nSlurmctldHost=b\n", "a"), None, "no volume");
        let odd = "StateSaveLocation=/state\nSlurmctldHost=a\nSlurmctldHost=../b\n";
        assert_eq!(membership(odd, "a"), None, "no file name");
    }
}
