//! The settings with which slurmd registers: the argument of `--conf`.

use std::collections::{BTreeMap, BTreeSet};

use api::{NodeSet, autoscaling::Autoscaling};

/// Renders the settings of a node: the user's `extraConf`, and the feature by which slurm.conf selects the nodes of the
/// NodeSet.
///
/// The result is in single quotes: the entrypoint of the image passes all arguments to a shell as one text.
///
/// `Topology=` is included only if the topology is known. Upstream always writes it, with a variable for the value: empty,
/// it swallows the next setting, and with CPU or memory limits the stock entrypoint takes the quotes apart and loses the
/// rest of the line.
pub(super) fn render_conf(set: &str, extra_conf: &str, topology: Option<&str>) -> String {
    let mut settings = parse_extra_conf(extra_conf);
    let mut features: BTreeSet<String> = [set.to_owned()].into();
    for key in ["Feature", "Features"] {
        features.extend(settings.remove(key).unwrap_or_default());
    }
    let features: Vec<String> = features.into_iter().collect();
    let mut items = vec![format!("Features={}", features.join(","))];
    // The topology is an annotation of the Kubernetes node, which may hold any text. More than one word is rejected when
    // the node is updated.
    let breaks_the_line = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '#' | '"' | '\\');
    if let Some(topology) = topology.filter(|topology| !topology.is_empty() && !topology.contains(breaks_the_line))
        && !settings.contains_key("Topology")
    {
        items.push(format!("Topology={topology}"));
    }
    let settings = settings.into_iter();
    items.extend(settings.map(|(key, values)| format!("{key}={}", values.join(","))));
    items.sort();
    let line = items.join(" ");
    // A quote in a value would end the quoting; no node setting of Slurm contains one.
    format!("'{}'", line.replace('\'', ""))
}

pub fn topology_in(extra_conf: &str) -> Option<String> {
    let values = parse_extra_conf(extra_conf).remove("Topology")?;
    Some(values.join(",")).filter(|place| !place.is_empty())
}

/// Renders the settings of the record of a worker that power saving starts and stops. slurmd does not change them when it
/// registers.
pub fn render_record(nodeset: &NodeSet, autoscaling: &Autoscaling, marks: &[String], is_kept: bool) -> String {
    let mut settings = parse_extra_conf(nodeset.spec.extra_conf.as_deref().unwrap_or_default());
    settings.extend(parse_extra_conf(autoscaling.shape()));
    let mut features: BTreeSet<String> = [nodeset.slurm_name()].into();
    features.extend(marks.iter().cloned());
    for key in ["Feature", "Features"] {
        features.extend(settings.remove(key).unwrap_or_default());
    }
    let features: Vec<String> = features.into_iter().collect();
    let suspend_time = if is_kept {
        "INFINITE".to_owned()
    } else {
        autoscaling.idle_time().as_secs().to_string()
    };
    let own = [
        ("State", "CLOUD".to_owned()),
        ("Features", features.join(",")),
        ("Suspendtime", suspend_time),
    ];
    let settings = settings.into_iter().map(|(key, values)| (key, values.join(",")));
    let mut items: BTreeMap<String, String> = settings.collect();
    items.extend(own.map(|(key, value)| (key.to_owned(), value)));
    let items = items.into_iter().map(|(key, value)| format!("{key}={value}"));
    items.collect::<Vec<_>>().join(" ")
}

/// Returns the settings by key, each with the values of all its items. Keys are in title case as in upstream; Slurm ignores
/// the case.
fn parse_extra_conf(extra_conf: &str) -> BTreeMap<String, Vec<String>> {
    let mut settings: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for item in extra_conf.split_whitespace() {
        let Some((key, values)) = item.split_once('=').filter(|(key, _)| !key.is_empty()) else {
            continue;
        };
        let values = values.split(',').map(str::trim).filter(|value| !value.is_empty());
        let setting = settings.entry(title_case(key)).or_default();
        setting.extend(values.map(str::to_owned));
    }
    settings
}

fn title_case(key: &str) -> String {
    let mut chars = key.chars();
    let first = chars.next().map(char::to_uppercase).into_iter().flatten();
    first.chain(chars.flat_map(char::to_lowercase)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::render_conf;

    #[test]
    fn settings_are_sorted_and_the_sets_feature_is_among_them() {
        for (extra_conf, topology, line) in [
            ("", None, "'Features=node'"),
            ("Weight=5 Features=big,fast", None, "'Features=big,fast,node Weight=5'"),
            ("Gres=gpu:1", None, "'Features=node Gres=gpu:1'"),
            (
                "RealMemory=100 gres=a,b Gres=c",
                None,
                "'Features=node Gres=a,b,c Realmemory=100'",
            ),
            ("Feature=x Features=node,x", None, "'Features=node,x'"),
            (
                "Weight=5",
                Some("default:s0"),
                "'Features=node Topology=default:s0 Weight=5'",
            ),
            ("Topology=mine", Some("theirs"), "'Features=node Topology=mine'"),
            ("Weight=5", Some("a Weight=9"), "'Features=node Weight=5'"),
            ("Weight=5", Some("a\\"), "'Features=node Weight=5'"),
            ("nothing =x", None, "'Features=node'"),
        ] {
            assert_eq!(render_conf("node", extra_conf, topology), line, "{extra_conf:?}");
        }
    }

    proptest! {
        #[test]
        fn it_is_one_word_to_a_shell_and_never_has_an_empty_topology(extra in ".{0,40}", topology in "[a-z:,]{0,6}") {
            let line = render_conf("n", &extra, Some(&topology));
            let inner = line.strip_prefix('\'').and_then(|line| line.strip_suffix('\'')).unwrap();
            prop_assert!(!inner.contains('\''));
            if !extra.to_lowercase().contains("topology") {
                prop_assert!(!inner.split(' ').any(|item| item == "Topology="));
            }
        }
    }
}
