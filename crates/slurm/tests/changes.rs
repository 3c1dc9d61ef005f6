//! What a change takes to become live.

use slurm::conf::keys::{KeySpec, Needs, Place};
use slurm::conf::{Changes, Configuration, Event, Key, Part, Subject};

const BASE: &str = "\
ClusterName=lab
SlurmctldHost=ctl
MaxNodeCount=1024
GresTypes=gpu
SchedulerParameters=defer
NodeName=x[1-2] CPUs=4 Weight=1
NodeSet=gpu Feature=gpu
PartitionName=gpu Nodes=gpu MaxTime=60 DefaultTime=30 PriorityTier=2
PartitionName=old Nodes=gpu
";

fn changes(old: &[(&str, &str)], new: &[(&str, &str)]) -> Changes {
    let parse =
        |files: &[(&str, &str)]| Configuration::parse(files.iter().map(|(name, text)| (*name, text.as_bytes())));
    Changes::between(&parse(old), &parse(new))
}

fn edit(from: &str, to: &str) -> Changes {
    assert!(BASE.contains(from), "{from}");
    changes(&[("slurm.conf", BASE)], &[("slurm.conf", &BASE.replace(from, to))])
}

/// The key that a part is about.
fn spec(part: &Part) -> Option<&'static KeySpec> {
    match &part.subject {
        Subject::Global { key } => Place::Global.find(&Key::new(key)),
        Subject::Record {
            kind,
            event: Event::Changed { key },
            ..
        } => Place::Record(*kind).find(&Key::new(key)),
        _ => None,
    }
}

fn is_identity(part: &Part) -> bool {
    spec(part).is_some_and(|spec| spec.identity)
}

fn summary(changes: &Changes) -> Vec<(String, Needs, bool, bool)> {
    changes
        .parts
        .iter()
        .map(|part| {
            (
                part.subject.to_string(),
                part.needs,
                part.can_abort_jobs,
                is_identity(part),
            )
        })
        .collect()
}

/// The edit, the reported changes, their need, and whether they can end running jobs.
const EDITS: &[(&str, &str, &str, Needs, bool)] = &[
    (
        "MaxTime=60",
        "MaxTime=90",
        "PartitionName=gpu MaxTime changed",
        Needs::PartitionRpc,
        false,
    ),
    (
        "MaxTime=60 ",
        "",
        "PartitionName=gpu MaxTime changed",
        Needs::PartitionRpc,
        false,
    ),
    (
        "DefaultTime=30",
        "DefaultTime=20",
        "PartitionName=gpu DefaultTime changed",
        Needs::PartitionRpc,
        false,
    ),
    (
        "DefaultTime=30",
        "",
        "PartitionName=gpu DefaultTime changed",
        Needs::Reconfigure,
        false,
    ),
    (
        "PriorityTier=2",
        "PriorityTier=2 Priority=5",
        "PartitionName=gpu Priority changed",
        Needs::PartitionRpc,
        false,
    ),
    (
        "PriorityTier=2",
        "PriorityTier=2 SuspendTime=5",
        "PartitionName=gpu SuspendTime changed",
        Needs::Reconfigure,
        false,
    ),
    (
        "PartitionName=old Nodes=gpu\n",
        "",
        "PartitionName=old removed",
        Needs::PartitionRpc,
        true,
    ),
    (
        "PartitionName=old",
        "PartitionName=new Nodes=gpu\nPartitionName=old",
        "PartitionName=new added",
        Needs::PartitionRpc,
        false,
    ),
    (
        "PartitionName=old",
        "PartitionName=new AllocNodes=a\nPartitionName=old",
        "PartitionName=new added",
        Needs::Reconfigure,
        false,
    ),
    (
        "NodeSet=gpu Feature=gpu",
        "NodeSet=gpu Feature=a100",
        "NodeSet=gpu Feature changed",
        Needs::Reconfigure,
        false,
    ),
    (
        "CPUs=4",
        "CPUs=8",
        "NodeName=x[1-2] CPUs changed",
        Needs::Reconfigure,
        true,
    ),
    (
        "Weight=1",
        "Weight=2",
        "NodeName=x[1-2] Weight changed",
        Needs::Reconfigure,
        false,
    ),
    (
        "NodeName=x[1-2] CPUs=4 Weight=1\n",
        "",
        "NodeName=x[1-2] removed",
        Needs::Reconfigure,
        true,
    ),
    (
        "defer",
        "defer,nohold",
        "SchedulerParameters changed",
        Needs::Reconfigure,
        false,
    ),
    (
        "GresTypes=gpu",
        "GresTypes=gpu,shard",
        "GresTypes changed",
        Needs::Reconfigure,
        true,
    ),
    (
        "MaxNodeCount=1024",
        "MaxNodeCount=2048",
        "MaxNodeCount changed",
        Needs::Reconfigure,
        false,
    ),
    (
        "MaxNodeCount=1024",
        "MaxNodeCount=512",
        "MaxNodeCount changed",
        Needs::Reconfigure,
        true,
    ),
    (
        "GresTypes",
        "SelectType=select/linear\nGresTypes",
        "SelectType changed",
        Needs::Reconfigure,
        true,
    ),
    (
        "GresTypes",
        "SlurmctldPort=7000\nGresTypes",
        "SlurmctldPort changed",
        Needs::ControllerRestart,
        false,
    ),
    (
        "GresTypes",
        "SlurmdPort=7000\nGresTypes",
        "SlurmdPort changed",
        Needs::NodeRestart,
        false,
    ),
    (
        "GresTypes",
        "NobodyKnows=1\nGresTypes",
        "NobodyKnows changed",
        Needs::Reconfigure,
        false,
    ),
    (
        "GresTypes",
        "rubbish\nGresTypes",
        "slurm.conf changed",
        Needs::Reconfigure,
        false,
    ),
];

#[test]
fn each_edit_of_slurm_conf_has_its_need() {
    for (from, to, what, needs, aborts) in EDITS {
        let changes = edit(from, to);
        let identity = what.starts_with("SlurmctldPort ");
        assert_eq!(
            summary(&changes),
            [((*what).to_owned(), *needs, *aborts, identity)],
            "{from} → {to}"
        );
        assert_eq!(changes.needs(), *needs);
        let is_documented = |part: &Part| spec(part).is_none_or(|spec| !spec.documented.is_empty());
        assert!(changes.parts.iter().all(is_documented));
    }
}

#[test]
fn identity_settings_are_marked() {
    for key in ["ClusterName=lab", "SlurmctldHost=ctl"] {
        let changes = edit(key, &format!("{key}x"));
        assert!(
            changes.parts.iter().all(is_identity) && !changes.parts.is_empty(),
            "{key}"
        );
    }
}

#[test]
fn comments_order_and_spelling_need_nothing() {
    assert_eq!(
        edit("GresTypes=gpu", "# why\ngrestypes = \"gpu\"").needs(),
        Needs::Nothing
    );
    let files = [
        ("gres.conf", "Name=gpu Count=2\n", "# two\nname=gpu  Count=2\n"),
        (
            "topology.yaml",
            "- topology: a\n  flat: true\n",
            "# one\n- {topology: a, flat: true}\n",
        ),
        ("plugstack.conf", "required a.so\n", "required   a.so # it\n"),
    ];
    for (name, old, new) in files {
        assert_eq!(changes(&[(name, old)], &[(name, new)]), Changes::default(), "{name}");
    }
}

#[test]
fn each_other_file_has_its_need() {
    use Needs::{ControllerRestart, NodeRestart, Reconfigure};
    let rows: &[(&str, &str, &str, Needs, bool)] = &[
        (
            "cgroup.conf",
            "CgroupPlugin=disabled\n",
            "CgroupPlugin=cgroup/v2\n",
            Reconfigure,
            false,
        ),
        (
            "gres.conf",
            "Name=gpu Count=2\n",
            "Name=gpu Count=3\n",
            Reconfigure,
            true,
        ),
        (
            "gres.conf",
            "Name=gpu Count=2\n",
            "Name=gpu Count=2 Cores=0-3\n",
            ControllerRestart,
            true,
        ),
        (
            "topology.conf",
            "SwitchName=a Nodes=n1\n",
            "SwitchName=a Nodes=n2\n",
            Reconfigure,
            false,
        ),
        (
            "topology.yaml",
            "- topology: a\n  flat: true\n",
            "- topology: b\n  flat: true\n",
            Reconfigure,
            false,
        ),
        (
            "acct_gather.conf",
            "SysfsInterfaces=a\n",
            "SysfsInterfaces=b\n",
            Reconfigure,
            false,
        ),
        (
            "job_container.conf",
            "BasePath=/a\n",
            "BasePath=/b\n",
            NodeRestart,
            true,
        ),
        (
            "plugstack.conf",
            "required a.so\n",
            "optional a.so\n",
            Reconfigure,
            false,
        ),
        ("prolog.sh", "a", "b", Reconfigure, false),
    ];
    for (name, old, new, needs, aborts) in rows {
        let expected = [(format!("{name} changed"), *needs, *aborts, false)];
        assert_eq!(summary(&changes(&[(name, old)], &[(name, new)])), expected, "{name}");
        if *needs != ControllerRestart {
            assert_eq!(summary(&changes(&[], &[(name, new)])), expected, "{name} comes");
            assert_eq!(summary(&changes(&[(name, old)], &[])), expected, "{name} goes");
        }
    }
}

#[test]
fn an_included_file_counts_as_part_of_slurm_conf() {
    let changes = changes(
        &[
            ("slurm.conf", "Include more.conf\n"),
            ("more.conf", "PartitionName=p Nodes=ALL MaxTime=1\n"),
        ],
        &[
            ("slurm.conf", "Include more.conf\n"),
            ("more.conf", "PartitionName=p Nodes=ALL MaxTime=2\n"),
        ],
    );
    let expected = (
        "PartitionName=p MaxTime changed".to_owned(),
        Needs::PartitionRpc,
        false,
        false,
    );
    assert_eq!(summary(&changes), [expected]);
}

#[test]
fn the_greatest_need_serves_all_parts() {
    let both = edit("MaxTime=60", "MaxTime=90")
        .parts
        .into_iter()
        .chain(edit("defer", "nohold").parts);
    let both = Changes { parts: both.collect() };
    assert_eq!(both.needs(), Needs::Reconfigure);
    assert_eq!(both.job_sensitive().count(), 0);
    assert_eq!(edit("CPUs=4", "CPUs=8").job_sensitive().count(), 1);
    assert_eq!(Changes::default().needs(), Needs::Nothing);
}
