//! Which of several slurmctld this one is. Pure.

use std::path::PathBuf;

use slurm::conf::Configuration;

/// This slurmctld among those that share a state volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// In Slurm's order: each takes over when all before it are silent.
    pub hosts: Vec<String>,
    pub own: usize,
    /// Where all of them keep their state.
    pub state: PathBuf,
}

impl Place {
    /// `None` for the only one, and for a daemon that is no slurmctld of this cluster.
    pub fn find(configuration: &Configuration, hostname: &str) -> Option<Self> {
        let hosts: Vec<String> = configuration.values("SlurmctldHost").map(name_of).collect();
        let state = PathBuf::from(configuration.value("StateSaveLocation")?);
        // As Slurm finds itself: by its name, with or without the domain.
        let short = hostname.split('.').next().unwrap_or_default();
        let own = hosts.iter().position(|host| host == hostname || host == short)?;
        // They become names of files.
        let plain = |host: &String| {
            host.starts_with(|first: char| first.is_ascii_alphanumeric())
                && host
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
        };
        (hosts.len() > 1 && state.is_absolute() && hosts.iter().all(plain)).then_some(Self { hosts, own, state })
    }
}

/// `name(address)`, or the name alone.
fn name_of(host: &str) -> String {
    host.split('(').next().unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(conf: &str, hostname: &str) -> Option<Place> {
        Place::find(&Configuration::parse([("slurm.conf", conf.as_bytes())]), hostname)
    }

    const TWO: &str = "StateSaveLocation=/state\nSlurmctldHost=c-0(c-0.c.ns)\nSlurmctldHost=c-1(c-1.c.ns)\n";

    #[test]
    fn one_of_several_knows_its_place() {
        let found = place(TWO, "c-1").unwrap();
        assert_eq!(found.hosts, ["c-0", "c-1"]);
        assert_eq!((found.own, found.state), (1, PathBuf::from("/state")));
        assert_eq!(place(TWO, "c-0.c.ns").unwrap().own, 0);
    }

    #[test]
    fn the_only_one_and_a_stranger_have_none() {
        assert_eq!(place("StateSaveLocation=/state\nSlurmctldHost=c-0(a)\n", "c-0"), None);
        assert_eq!(place(TWO, "worker-0"), None);
        assert_eq!(place("SlurmctldHost=a\nSlurmctldHost=b\n", "a"), None, "no volume");
        let odd = "StateSaveLocation=/state\nSlurmctldHost=a\nSlurmctldHost=../b\n";
        assert_eq!(place(odd, "a"), None, "no name of a file");
    }
}
