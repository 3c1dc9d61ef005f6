//! The files beside slurm.conf, and slurm.conf with what it includes.

use proptest::prelude::*;
use slurm::conf::{BadIncludeReason, ConfFile, Configuration, Document, Plugstack, PlugstackEntry, TopologyYaml};

const GRES: &str = "\
# zwei Karten — größere zuerst\n\
AutoDetect=nvml\n\
NodeName=gpu[1-2] Name=gpu Type=h100 File=/dev/nvidia[0-3] \\\n\
    Cores=0-31\n\
Name=shard Count=8\r\n";

const TOPOLOGY: &str = "\
SwitchName=s0 Nodes=n[1-4] LinkSpeed=100\n\
\n\
SwitchName=root Switches=s[0-3] # core\n";

const TOPOLOGY_YAML: &str = "\
---\n\
# Größe\n\
- topology: topo1\n  cluster_default: true\n  tree:\n    switches:\n      - switch: root\n        children: s[1-2]\n\
- topology: topo2\n  block:\n    block_sizes: [4, 16]\n    blocks:\n      - block: b1\n        nodes: n[1-4]\n\
- topology: topo3\n  flat: true\n";

const PLUGSTACK: &str = "\
# pyxis\n\
include /usr/share/pyxis/*\n\
\n\
required\tspank_lua.so failonfail=1 /etc/slurm/a.lua\n\
  optional /opt/x.so  # maybe\n\
Required\n";

fn parse(files: &[(&'static str, &'static str)]) -> Configuration {
    Configuration::parse(files.iter().map(|(name, text)| (*name, text.as_bytes())))
}

#[test]
fn every_byte_of_every_kind_of_file_comes_back() {
    for text in [
        GRES,
        TOPOLOGY,
        "CgroupPlugin=cgroup/v1\nConstrainCores=yes",
        "ProfileHDF5Dir=/x\n",
        "AutoBasePath=true\nBasePath=/tmp/x Shared=false\n",
    ] {
        assert_eq!(Document::parse(text).to_string(), text);
        assert_eq!(Document::parse(text).unreadable().count(), 0, "{text}");
    }
    assert_eq!(TopologyYaml::parse(TOPOLOGY_YAML).to_string(), TOPOLOGY_YAML);
    assert_eq!(Plugstack::parse(PLUGSTACK).to_string(), PLUGSTACK);
}

#[test]
fn the_lines_of_plugstack_are_includes_and_plugins() {
    let plugstack = Plugstack::parse(PLUGSTACK);
    let plugin = |required, path: &str, arguments: &str| PlugstackEntry::Plugin {
        required,
        path: path.to_owned(),
        arguments: arguments.to_owned(),
    };
    assert_eq!(
        plugstack.entries().collect::<Vec<_>>(),
        [
            &PlugstackEntry::Include("/usr/share/pyxis/*".to_owned()),
            &plugin(true, "spank_lua.so", "failonfail=1 /etc/slurm/a.lua"),
            &plugin(false, "/opt/x.so", ""),
            &PlugstackEntry::Unreadable("Required".to_owned()),
        ]
    );
    assert_eq!(plugstack.lines()[5].number, 6);
}

#[test]
fn topologies_have_names_and_broken_yaml_has_a_line() {
    let topology = TopologyYaml::parse(TOPOLOGY_YAML);
    assert_eq!(topology.names().collect::<Vec<_>>(), ["topo1", "topo2", "topo3"]);
    let broken = TopologyYaml::parse("- topology: a\n  tree: [\n");
    let error = broken.content().unwrap_err();
    assert!(error.line.is_some() && !error.message.is_empty(), "{error:?}");
    assert_eq!(broken.names().count(), 0);
}

#[test]
fn an_included_file_replaces_its_line() {
    let configuration = parse(&[
        (
            "slurm.conf",
            "ClusterName=lab\nMaxJobCount=1\ninclude %c.conf\nMinJobAge=4\nInclude /opt/site.conf\n",
        ),
        (
            "lab.conf",
            "MaxJobCount=2\nInclude /etc/slurm/more.conf\nPartitionName=p Nodes=ALL\n",
        ),
        ("more.conf", "MaxJobCount=3\n"),
        ("cgroup.conf", "CgroupPlugin=disabled\n"),
        ("prolog.sh", "#!/bin/sh\n"),
    ]);
    let places: Vec<_> = configuration
        .slurm_conf()
        .iter()
        .map(|at| (&*at.file, at.line.number))
        .collect();
    assert_eq!(
        places[2..6],
        [("slurm.conf", 3), ("lab.conf", 1), ("lab.conf", 2), ("more.conf", 1)]
    );
    assert_eq!(configuration.value("maxjobcount"), Some("3"));
    assert_eq!(configuration.value("MinJobAge"), Some("4"));
    // Only the host can tell what lies in /opt.
    assert_eq!(configuration.bad_includes(), []);
    let names: Vec<_> = configuration.files().map(|(name, _)| name).collect();
    assert_eq!(names, ["cgroup.conf", "prolog.sh"]);
    assert!(matches!(configuration.file("cgroup.conf"), Some(ConfFile::Lines(_))));
    assert!(matches!(configuration.file("prolog.sh"), Some(ConfFile::Opaque(_))));
    assert!(configuration.has("more.conf") && !configuration.has("site.conf"));
}

#[test]
fn a_missing_or_circular_include_is_pointed_out_and_a_second_one_is_none() {
    let configuration = parse(&[
        (
            "slurm.conf",
            "Include a.conf\nInclude a.conf\nInclude gone.conf\nInclude sub/a.conf\nInclude *.conf\n",
        ),
        ("a.conf", "Include b.conf\n"),
        ("b.conf", "\nInclude a.conf\n"),
    ]);
    let bad: Vec<_> = configuration
        .bad_includes()
        .iter()
        .map(|bad| (&*bad.file, bad.line, bad.path.as_str(), bad.reason))
        .collect();
    assert_eq!(
        bad,
        [
            ("b.conf", 2, "a.conf", BadIncludeReason::Circular),
            ("slurm.conf", 3, "gone.conf", BadIncludeReason::Missing),
            ("slurm.conf", 4, "sub/a.conf", BadIncludeReason::Missing),
            ("slurm.conf", 5, "*.conf", BadIncludeReason::Missing),
        ]
    );
}

#[test]
fn a_comment_in_another_encoding_is_no_obstacle() {
    let configuration = Configuration::parse([("slurm.conf", b"# Gr\xf6\xdfe\nMaxJobCount=7\n".as_slice())]);
    assert_eq!(configuration.value("MaxJobCount"), Some("7"));
}

/// Files that include each other twice would double with each level if every line were followed.
#[test]
fn includes_of_includes_do_not_multiply() {
    let names: Vec<String> = (0..200).map(|at| format!("f{at}.conf")).collect();
    let texts: Vec<String> = (1..=200).map(|at| format!("Include f{at}.conf\n").repeat(2)).collect();
    let files = names
        .iter()
        .zip(&texts)
        .map(|(name, text)| (name.as_str(), text.as_bytes()));
    let configuration = Configuration::parse(files.chain([("slurm.conf", b"Include f0.conf\n".as_slice())]));
    assert_eq!(configuration.slurm_conf().len(), 401);
}

proptest! {
    #[test]
    fn any_text_is_kept_whole(text in "(\\PC|\n|\t|required |include |#|- topology: |: |\\[){0,80}") {
        prop_assert_eq!(Plugstack::parse(&text).to_string(), text.clone());
        prop_assert_eq!(TopologyYaml::parse(&text).to_string(), text);
    }

    #[test]
    fn any_bytes_can_be_read(files in prop::collection::vec((
        prop::sample::select(vec!["slurm.conf", "gres.conf", "topology.yaml", "plugstack.conf", "a.conf"]),
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..200),
            "(Include a.conf|Include slurm.conf|Include %c|ClusterName=a|\n| ){0,8}".prop_map(String::into_bytes),
        ],
    ), 0..5)) {
        let configuration = Configuration::parse(files.iter().map(|(name, content)| (*name, content.as_slice())));
        let lines = |content: &[u8]| String::from_utf8_lossy(content).split_inclusive('\n').count();
        let all: usize = files.iter().map(|(_, content)| lines(content)).sum();
        prop_assert!(configuration.slurm_conf().len() <= all);
    }
}
