//! Settings that identify a cluster. A dry run replaces these values, so it cannot check them, and a reconfigure that fails because of
//! them has sent them to the nodes by then.

use std::collections::BTreeSet;

use super::keys::{WHOLE, global_settings, last_setting};
use super::meaning::words;
use super::problem::{Problems, shortened};
use super::{At, Known};
use crate::conf::configuration::Configuration;
use crate::conf::keys::Place;

pub(super) fn check(configuration: &Configuration, known: &Known<'_>, problems: &mut Problems) {
    let Some(live) = known.live else { return };
    for spec in Place::Global.keys().into_iter().flatten().filter(|spec| spec.identity) {
        if spec.name == SLURMCTLD_HOST {
            check_hosts(configuration, live, known, problems);
            continue;
        }
        let new = last_setting(configuration, spec.name);
        let old = live.value(spec.name);
        let value = new.map(|(_, setting)| setting.value.as_str());
        // Without a line Slurm has its default, which differs from the explicit value.
        let may_be_elsewhere = value.is_none() && configuration.includes_elsewhere();
        if may_be_elsewhere || is_same(spec.name, old, value) {
            continue;
        }
        let at = new.map_or(WHOLE, |(at, _)| at);
        refuse(at, spec.name, old, value, problems);
    }
}

const SLURMCTLD_HOST: &str = "SlurmctldHost";
/// Slurm's default.
const PORT: &str = "6817";

/// The operator's lines follow its replicas, which all run a slurmctld; another host in the user's lines has none.
fn check_hosts(configuration: &Configuration, live: &Configuration, known: &Known<'_>, problems: &mut Problems) {
    let hosts: BTreeSet<&str> = live.values(SLURMCTLD_HOST).collect();
    let foreign = global_settings(configuration, SLURMCTLD_HOST)
        .filter(|(at, setting)| known.is_users(*at) && !hosts.contains(setting.value.as_str()));
    let old = live.values(SLURMCTLD_HOST).collect::<Vec<_>>().join(", ");
    for (at, setting) in foreign {
        refuse(at, SLURMCTLD_HOST, Some(&old), Some(&setting.value), problems);
    }
}

fn is_same(key: &str, old: Option<&str>, new: Option<&str>) -> bool {
    match (old, new) {
        (old, new) if key == "SlurmctldPort" => old.unwrap_or(PORT) == new.unwrap_or(PORT),
        (Some(old), Some(new)) if key == "ClusterName" => old.eq_ignore_ascii_case(new),
        (Some(old), Some(new)) if key.starts_with("AuthAlt") => {
            words(old).collect::<BTreeSet<_>>() == words(new).collect()
        }
        (old, new) => old == new,
    }
}

fn refuse(at: At<'_>, key: &str, old: Option<&str>, new: Option<&str>, problems: &mut Problems) {
    let old = old.map(shortened);
    let new = new.map(shortened);
    let reason = match (&old, &new) {
        (Some(old), Some(new)) => {
            format!("{key} would change from {old} to {new}, which a running cluster cannot take")
        }
        (Some(old), None) => format!("{key}={old} is gone, and a running cluster cannot do without it"),
        (None, _) => format!("{key} would be set, and a running cluster that started without it cannot take it"),
    };
    let remedy = match &old {
        Some(old) => format!("keep {key}={old}; another value takes a new cluster"),
        None => format!("take {key} out; it takes a new cluster"),
    };
    problems.refuse(at, Some(key), reason, remedy);
}
