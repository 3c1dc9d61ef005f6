//! No input makes reading, checking or comparing panic, or take more than time in proportion to its length.

use std::collections::BTreeSet;

use proptest::prelude::*;
use slurm::conf::{Changes, Configuration, Known, Severity, check};

const REAL: [&str; 4] = [
    include_str!("golden/b-full.slurm.conf"),
    include_str!("golden/c-ha.slurm.conf"),
    include_str!("golden/e-nodes.slurm.conf"),
    include_str!("bad/base.slurm.conf"),
];

/// Everything the crate does with a configuration.
fn exercise(files: &[(&str, &[u8])]) -> Configuration {
    let live = Configuration::parse([("slurm.conf", REAL[3].as_bytes())]);
    let nodes: BTreeSet<String> = ["n1", "n2"].map(str::to_owned).into();
    let configuration = Configuration::parse(files.iter().copied());
    let lines = 5..=9;
    let known = Known {
        live: Some(&live),
        nodes: Some(&nodes),
        qos: Some(&nodes),
        user_lines: Some(&lines),
        release: None,
    };
    for problem in check(&configuration, &known) {
        assert!(!problem.reason.is_empty() && !problem.remedy.is_empty());
        // A condition's message holds 32 KiB, and an event's 1 KiB.
        assert!(problem.to_string().len() < 1000, "{problem}");
    }
    assert_eq!(Changes::between(&configuration, &configuration), Changes::default());
    let there = Changes::between(&live, &configuration);
    let needs = there.needs();
    assert!(there.parts.iter().all(|part| part.needs <= needs));
    configuration
}

/// A real file with a few bytes put in, taken out or replaced.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let edits = prop::collection::vec((any::<prop::sample::Index>(), 0..3_u8, any::<u8>()), 0..6);
    (prop::sample::select(REAL.to_vec()), edits).prop_map(|(text, edits)| {
        let mut bytes = text.as_bytes().to_vec();
        for (at, edit, byte) in edits {
            let at = at.index(bytes.len());
            match edit {
                0 => bytes.insert(at, byte),
                1 => drop(bytes.remove(at)),
                _ => {
                    bytes.splice(at..=at, [byte]);
                }
            }
        }
        bytes
    })
}

proptest! {
    #[test]
    fn real_files_with_slips_in_them_are_judged(slurm_conf in mutated(), other in mutated()) {
        exercise(&[("slurm.conf", &slurm_conf), ("gres.conf", &other), ("topology.yaml", &other), ("a.conf", &other)]);
    }

    #[test]
    fn any_bytes_are_judged(slurm_conf in prop::collection::vec(any::<u8>(), 0..400)) {
        exercise(&[("slurm.conf", &slurm_conf), ("cgroup.conf", &slurm_conf), ("plugstack.conf", &slurm_conf)]);
    }

    /// A comment anywhere, and blanks at the end of a line, change nothing.
    #[test]
    fn comments_and_blanks_mean_nothing(text in prop::sample::select(REAL.to_vec()), at in any::<prop::sample::Index>()) {
        let mut lines: Vec<&str> = text.lines().collect();
        lines.insert(at.index(lines.len()), "# ünrelated = [ \" \\");
        let changed = lines.join("  \n");
        let old = Configuration::parse([("slurm.conf", text.as_bytes())]);
        let new = Configuration::parse([("slurm.conf", changed.as_bytes())]);
        prop_assert_eq!(Changes::between(&old, &new), Changes::default());
        let refused = |configuration| check(configuration, &Known::default()).iter().any(|problem| problem.severity == Severity::Refuse);
        prop_assert_eq!(refused(&old), refused(&new));
    }
}

/// Inputs that have made parsers and checkers of this kind quadratic: a piece, repeated to the length asked for, after a
/// beginning.
const HOSTILE: [(&str, &str); 22] = [
    ("", "\\"),
    ("", "\\\n"),
    ("", "#"),
    ("", "\""),
    ("", "a=\""),
    ("", "a=b "),
    ("", "a=b\n"),
    ("", "include "),
    ("", "Include slurm.conf\n"),
    ("", "Include x\n"),
    ("", "\\#"),
    ("", "x"),
    ("", "PartitionName=a\n"),
    ("", "PartitionName=DEFAULT Nodes=n\nPartitionName=a\n"),
    ("", "PartitionName=a Nodes=n[1-60000]\n"),
    ("", "NodeName=n[1-60000]\n"),
    ("PartitionName=a Nodes=", "n,"),
    ("PartitionName=a Nodes=", "n["),
    ("NodeSet=z Nodes=a,a,a,a,a,a,a,a,a,a,a,a\nPartitionName=a Nodes=", "z,"),
    ("AccountingStorageTRES=", "x,"),
    ("PartitionName=a Topology=", "x"),
    ("PartitionName=a ", "Nodes=x "),
];

fn hostile(beginning: &str, piece: &str, length: usize) -> String {
    let mut text = beginning.to_owned();
    while text.len() < length {
        text.push_str(piece);
    }
    text
}

/// How long this thread has had a processor, in nanoseconds: what others do on the machine is not in it. The kernel
/// brings it up to date every few milliseconds.
fn processor_time() -> Option<u64> {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    schedstat.split_whitespace().next()?.parse().ok()
}

/// What one run costs, by as many runs as make fifty milliseconds.
fn cost(text: &str) -> Option<u64> {
    let before = processor_time()?;
    for runs in 1.. {
        exercise(&[("slurm.conf", text.as_bytes())]);
        let spent = processor_time()? - before;
        if spent > 50_000_000 {
            return Some(spent / runs);
        }
    }
    None
}

/// Eight times the input may take eight times as long; in a quadratic piece of code it takes 64 times.
#[test]
fn time_grows_with_the_length_and_no_faster() {
    for (beginning, piece) in HOSTILE {
        let cost_of = |length| cost(&hostile(beginning, piece, length)).unwrap();
        let (short, long) = (cost_of(1 << 13), cost_of(1 << 16));
        assert!(long < 24 * short, "{beginning:?} {piece:?}: {short} ns, {long} ns");
    }
}

#[test]
fn a_file_of_rubbish_has_no_more_problems_than_anybody_reads() {
    let text = "rubbish\n".repeat(10_000);
    let configuration = Configuration::parse([("slurm.conf", text.as_bytes()), ("cgroup.conf", text.as_bytes())]);
    assert_eq!(check(&configuration, &Known::default()).len(), 100);
}
