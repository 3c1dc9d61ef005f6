//! Reading and comparing files in Slurm's manner.

use slurm::conf::{Change, Content, Difference, Document, Key, RecordChange, RecordKind};

const FILE: &str = "\
# Größe: groß   \r
clustername=demo
SlurmctldHost=a(10.0.0.1)
SlurmctldHost=b
\tMaxJobCount = 10 # why
MaxJobCount=20
SchedulerParameters=defer,\\
    bf_interval=30
Epilog=\"/opt/my scripts/e.sh\"
PreemptParameters=a\\#b
iNclude  more.conf 

NodeName=DEFAULT CPUs=4
NodeName=n[1-3,07] RealMemory=100
NodeSet=gpu Feature=gpu
PartitionName=default MaxTime=60 State=UP
PartitionName=one Nodes=gpu maxtime=30
PartitionName=two Nodes=n1 Nodes=n2 AllowAccounts=\"\"
DownNodes=n3 State=DOWN Reason=\"new fan\"
";

#[test]
fn every_byte_comes_back() {
    assert_eq!(Document::parse(FILE).to_string(), FILE);
    for golden in [
        include_str!("golden/a-default.slurm.conf"),
        include_str!("golden/b-full.slurm.conf"),
    ] {
        assert_eq!(Document::parse(golden).to_string(), golden);
        assert_eq!(Document::parse(golden).unreadable().count(), 0);
    }
}

#[test]
fn globals_are_found_whatever_the_case_and_the_last_one_counts() {
    let file = Document::parse(FILE);
    assert_eq!(file.value("ClusterName"), Some("demo"));
    assert_eq!(file.values("slurmctldhost").collect::<Vec<_>>(), ["a(10.0.0.1)", "b"]);
    assert_eq!(file.value("MaxJobCount"), Some("20"));
    assert_eq!(file.value("NodeSet"), None);
    assert_eq!(file.includes().collect::<Vec<_>>(), ["more.conf"]);
}

#[test]
fn quotes_continuations_and_escapes_are_slurms() {
    let file = Document::parse(FILE);
    assert_eq!(file.value("Epilog"), Some("/opt/my scripts/e.sh"));
    assert_eq!(file.value("PreemptParameters"), Some("a#b"));
    // The blanks before the second half end the value, and the rest of the line is then no setting.
    let continued = file
        .lines()
        .iter()
        .find(|line| line.raw().starts_with("SchedulerParameters"))
        .unwrap();
    assert_eq!(continued.number, 7);
    assert_eq!(continued.settings().len(), 2);

    let one = |text: &str| Document::parse(text).lines().first().unwrap().content().clone();
    let value = |text: &str| Document::parse(text).value("A").map(ToOwned::to_owned);
    assert_eq!(value("A=1,\\  \n2"), Some("1,2".to_owned()));
    assert_eq!(value("A=1 # a comment \\\nB=2"), Some("1".to_owned()));
    assert_eq!(value("A=1\\\\\nB=2"), Some("1\\".to_owned()));
    assert_eq!(value("A=\"b\"c"), Some("\"b\"c".to_owned()));
    assert_eq!(value("A=\"# b\""), Some("\"".to_owned()));
    assert_eq!(value("A=\\"), None);
    assert_eq!(one("A=a, \\\nb\n"), Content::Unreadable("b".to_owned()));
    assert_eq!(one("include\ta.conf"), Content::Include("a.conf".to_owned()));
    for text in ["Include", "Include  a b", " Include a"] {
        assert!(matches!(one(text), Content::Unreadable(_)), "{text}");
    }
    assert_eq!(one("A+=1 B-=2"), one(" A += 1  B -=2\n"));
}

#[test]
fn lines_that_slurm_rejects_are_unreadable() {
    for text in [
        "DebugFlags=",
        "this is not a config line",
        "A=1 b",
        "=1",
        "\u{1}\u{2}Foo=1",
        "A==",
        "Ä=1",
    ] {
        let file = Document::parse(text);
        let unreadable = file.unreadable().count();
        assert_eq!(unreadable, usize::from(text != "A=="), "{text}");
        assert_eq!(file.to_string(), text);
    }
    let file = Document::parse("A=1\n\nB=2 \\\n C=3\nnonsense\n");
    assert_eq!(file.unreadable().map(|line| line.number).collect::<Vec<_>>(), [5]);
}

#[test]
fn records_have_a_name_and_settings() {
    let file = Document::parse(FILE);
    let two = file.record(RecordKind::Partition, "two").unwrap();
    assert_eq!(
        (two.get("nodes"), two.get("AllowAccounts"), two.get("State")),
        (Some("n2"), Some(""), None)
    );
    assert_eq!(two.line, 18);
    let down = file.records(RecordKind::DownNodes).next().unwrap();
    assert_eq!((down.name, down.get("Reason")), ("n3", Some("new fan")));
    assert_eq!(
        file.records(RecordKind::Node).map(|node| node.name).collect::<Vec<_>>(),
        ["DEFAULT", "n[1-3,07]"]
    );
}

#[test]
fn defaults_reach_the_lines_after_them() {
    let file = Document::parse(
        "PartitionName=a Nodes=x\nPartitionName=DEFAULT MaxTime=60\nPartitionName=default State=UP\nPartitionName=b Nodes=y maxtime=5",
    );
    let effective = file.effective(RecordKind::Partition);
    let get = |at: usize, key: &str| effective[at].1.get(&Key::new(key)).map(String::as_str);
    assert_eq!(effective.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(get(0, "MaxTime"), None);
    assert_eq!(
        (get(1, "MaxTime"), get(1, "State"), get(1, "Nodes")),
        (Some("5"), Some("UP"), Some("y"))
    );
}

mod difference {
    use super::{Change, Difference, Document, FILE, Key, RecordChange};

    fn between(old: &str, new: &str) -> Difference {
        Difference::between(&Document::parse(old), &Document::parse(new))
    }

    fn only_partitions(difference: &Difference) -> bool {
        let partitions = Vec::new();
        let rest = Difference {
            partitions,
            ..difference.clone()
        };
        !difference.partitions.is_empty() && rest == Difference::default()
    }

    fn change(key: &str, old: &[&str], new: &[&str]) -> Change {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Change {
            key: Key::new(key),
            old: texts(old),
            new: texts(new),
        }
    }

    #[test]
    fn comments_spelling_and_order_are_none() {
        assert_eq!(between(FILE, FILE), Difference::default());
        assert_eq!(
            between(
                "A=1\nPartitionName=p Nodes=n State=UP",
                "# new\npartitionname=p STATE=\"UP\" Nodes=n\na = 1\n"
            ),
            Difference::default()
        );
    }

    #[test]
    fn a_global_key_is_reported_with_all_its_values() {
        let difference = between(
            "SlurmctldHost=a\nX=1\nGone=1",
            "SlurmctldHost=a\nSlurmctldHost=b\nX=2\nNew=1",
        );
        assert_eq!(
            difference.globals,
            [
                change("Gone", &["1"], &[]),
                change("New", &[], &["1"]),
                change("SlurmctldHost", &["a"], &["a", "b"]),
                change("X", &["1"], &["2"]),
            ]
        );
        assert!(!only_partitions(&difference));
    }

    #[test]
    fn a_partition_is_reported_by_name_and_key() {
        let difference = between(
            "PartitionName=a Nodes=x MaxTime=1\nPartitionName=b Nodes=x\nPartitionName=c Nodes=x",
            "PartitionName=a Nodes=x State=DRAIN\nPartitionName=c Nodes=x\nPartitionName=d Nodes=y",
        );
        assert!(only_partitions(&difference));
        let names: Vec<_> = difference.partitions.iter().map(RecordChange::name).collect();
        assert_eq!(names, ["a", "b", "d"]);
        assert_eq!(
            difference.partitions[0],
            RecordChange::Changed {
                name: "a".to_owned(),
                changes: vec![change("MaxTime", &["1"], &[]), change("State", &[], &["DRAIN"])],
            }
        );
        assert!(matches!(&difference.partitions[1], RecordChange::Removed { settings, .. } if settings.len() == 1));
        assert!(matches!(&difference.partitions[2], RecordChange::Added { .. }));
    }

    #[test]
    fn a_changed_default_changes_every_partition_after_it() {
        let difference = between(
            "PartitionName=DEFAULT MaxTime=1\nPartitionName=a Nodes=x\nPartitionName=b Nodes=x MaxTime=5",
            "PartitionName=DEFAULT MaxTime=2\nPartitionName=a Nodes=x\nPartitionName=b Nodes=x MaxTime=5",
        );
        assert_eq!(
            difference.partitions.iter().map(RecordChange::name).collect::<Vec<_>>(),
            ["a"]
        );
    }

    #[test]
    fn a_second_definition_of_a_name_is_seen() {
        let difference = between(
            "PartitionName=a Nodes=x",
            "PartitionName=a Nodes=x\nPartitionName=a Nodes=x",
        );
        assert!(matches!(&difference.partitions[..], [RecordChange::Added { name, .. }] if name == "a"));
    }

    #[test]
    fn other_files_and_unreadable_lines_differ() {
        assert!(between("Include a", "Include b").includes);
        assert!(between("rubbish", "more rubbish").unreadable);
        assert!(!only_partitions(&between(
            "NodeSet=a Feature=a\nPartitionName=p",
            "NodeSet=a Feature=b\nPartitionName=q"
        )));
    }
}

mod properties {
    use proptest::prelude::*;
    use slurm::conf::{Difference, Document, RecordKind};

    fn conf_text() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            Just("PartitionName=a".to_owned()),
            Just("NodeName=DEFAULT".to_owned()),
            Just("Include ".to_owned()),
            Just("=".to_owned()),
            Just("\\\n".to_owned()),
            Just("\r\n".to_owned()),
            Just("\"".to_owned()),
            Just("#".to_owned()),
            Just("\n".to_owned()),
            Just(" ".to_owned()),
            Just("\\".to_owned()),
            "[A-Za-z0-9,]{1,4}",
            "\\PC{0,3}",
        ];
        prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
    }

    fn exercise(text: &str) -> Result<(), TestCaseError> {
        let document = Document::parse(text);
        prop_assert_eq!(document.to_string(), text);
        prop_assert_eq!(&Document::parse(&document.to_string()), &document);
        prop_assert_eq!(Difference::between(&document, &document), Difference::default());
        for kind in RecordKind::ALL {
            prop_assert!(document.effective(kind).len() <= document.records(kind).count());
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn any_text_is_kept_whole(text in conf_text()) {
            exercise(&text)?;
        }

        #[test]
        fn any_bytes_are_kept_whole(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            exercise(&String::from_utf8_lossy(&bytes))?;
        }

        #[test]
        fn a_setting_that_is_written_is_read(key in "[A-Za-z][A-Za-z0-9]{0,9}", value in "[a-z0-9/:,=._-]{1,20}") {
            let document = Document::parse(&format!("X_{key}={value}\n"));
            prop_assert_eq!(document.value(&format!("x_{}", key.to_uppercase())), Some(value.as_str()));
        }
    }
}
