//! What the checker says, beyond the rows of `bad_configurations.rs`; above all what it does not say.

use std::collections::BTreeSet;

use slurm::conf::{Configuration, Known, Severity, check};

const MINIMAL: &str = "ClusterName=c\nSlurmctldHost=h\n";

fn parse(files: &[(&str, &str)]) -> Configuration {
    Configuration::parse(files.iter().map(|(name, text)| (*name, text.as_bytes())))
}

fn texts(configuration: &Configuration, known: &Known<'_>) -> Vec<String> {
    check(configuration, known).iter().map(ToString::to_string).collect()
}

/// What is said of a minimal slurm.conf with these lines after its two own.
fn said(lines: &str, known: &Known<'_>) -> Vec<String> {
    texts(&parse(&[("slurm.conf", &format!("{MINIMAL}{lines}"))]), known)
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn upstreams_configurations_pass() {
    let none = BTreeSet::new();
    for text in [
        include_str!("golden/a-default.slurm.conf"),
        include_str!("golden/b-full.slurm.conf"),
        include_str!("golden/c-ha.slurm.conf"),
        include_str!("golden/d-hybrid.slurm.conf"),
        include_str!("golden/e-nodes.slurm.conf"),
    ] {
        let configuration = parse(&[
            ("slurm.conf", text),
            ("cgroup.conf", include_str!("golden/cgroup.conf")),
            ("prolog-slurmctld-pc.sh", "#!/bin/sh\n"),
            ("prolog-p1.sh", "#!/bin/sh\n"),
            ("epilog-e1.sh", "#!/bin/sh\n"),
            ("plugstack.conf", "include /usr/share/pyxis/*\n"),
        ]);
        let known = Known {
            live: Some(&configuration),
            nodes: Some(&none),
            ..Known::default()
        };
        assert_eq!(check(&configuration, &known), [], "{text}");
    }
}

#[test]
fn control_characters_are_refused_but_in_comments() {
    for (lines, expected) in [
        ("KillWait=3\u{0}0\n", 1),
        ("PartitionName=a Nodes=ALL AllowGroups=a\u{1b}\n", 1),
        ("# \u{1b}[1m mine\nKillWait=30\t\r\n", 0),
    ] {
        let said = said(lines, &Known::default());
        let about = said.iter().filter(|text| text.contains("has the control character"));
        assert_eq!(about.count(), expected, "{lines:?}: {said:?}");
    }
}

/// The seeds' own extraConf, among it a partition named all and the legacy key Priority.
#[test]
fn the_seeds_configurations_pass() {
    let operators = "NodeSet=compute Feature=compute\nPartitionName=compute Nodes=compute Default=YES MaxTime=7-00:00:00 State=UP\nNodeSet=gpu Feature=gpu\nPartitionName=gpu Nodes=gpu MaxTime=24:00:00 \n";
    let users = "# 跨多個 NodeSet 的 Partition\nPartitionName=all Nodes=ALL Default=NO\n\nPartitionName=highprio Nodes=compute,gpu MaxTime=1-00:00:00 Priority=100\nPartitionName=debug Nodes=compute MaxTime=00:30:00\n";
    let first = MINIMAL.lines().count() + operators.lines().count() + 1;
    let lines = first..=first + users.lines().count();
    let none = BTreeSet::new();
    let known = Known {
        nodes: Some(&none),
        user_lines: Some(&lines),
        ..Known::default()
    };
    assert_eq!(said(&format!("{operators}{users}"), &known), [""; 0]);
}

#[test]
fn right_lines_of_all_kinds_pass_without_a_word() {
    let nodes = names(&["n1", "n2"]);
    let known = Known {
        nodes: Some(&nodes),
        ..Known::default()
    };
    for lines in [
        "NodeName=DEFAULT CPUs=4\nNodeName=x[01-10]-ib,y NodeAddr=10.0.0.[1-11] Gres=gpu:a100:2 Procs=8 Feature=a\nGresTypes=gpu",
        "PartitionName=DEFAULT MaxTime=UNLIMITED Nodes=n[1-2]\nPartitionName=p\nPartitionName=q Nodes=ALL Shared=FORCE:2",
        "PartitionName=p Nodes=n1,n2 AllowGroups=\"a b\" PreemptMode=suspend,gang Alternate=q\nPartitionName=q Nodes=\"\"",
        "PartitionName=p Nodes=switch{s1}\nPartitionName=Default State=UP\nPartitionName=n Nodes+=n1",
        "SelectTypeParameters=CR_Core_Memory,CR_LLN,site_own\nPriorityType=priority/ours\nJobSubmitPlugins=lua,ours",
        "SlurmctldDebug=7\nSlurmdDebug=debug5\nMessageTimeout=0x10\nMaxJobCount=5k\nInactiveLimit=UNLIMITED\nDefMemPerCPU=2048",
        "DebugFlags=NO_CONF_HASH,Gres\nPrologFlags=Alloc,Contain\nTaskPlugin=task/cgroup,task/affinity\nTaskPluginParam=Autobind=Cores",
        "AccountingStorageEnforce=associations,limits,qos\nPropagateResourceLimits=NONE\nPriorityMaxAge=7-0\nPriorityCalcPeriod=5",
        "Prolog=/opt/site/prolog.d/*\nEpilog=/usr/local/bin/epilog\nControlMachine=h\nJobContainerType=job_container/tmpfs\nPrologFlags=Contain",
        "PowerAction=reboot Program=/sbin/reboot Location=slurmd\nLicenses=matlab:10\nReconfigFlags=KeepPartState\nInclude /opt/site.conf",
        "NodeSet=z Nodes=nobody9\nPartitionName=p Nodes=n1 Topology=default\nSlurmctldPort=6817-6820",
    ] {
        assert_eq!(said(lines, &known), [""; 0], "{lines}");
    }
    let files = parse(&[
        (
            "slurm.conf",
            &format!("{MINIMAL}GresTypes=gpu,shard\nTopologyPlugin=topology/tree\nPartitionName=p Topology=b"),
        ),
        (
            "gres.conf",
            "AutoDetect=nvml\nNodeName=x1 Name=gpu Type=h100 File=/dev/nvidia[0-3] Cores=0-3 Flags=a\nName=shard Count=8\n",
        ),
        ("topology.conf", "not read, since there is topology.yaml"),
        (
            "topology.yaml",
            "- topology: a\n  cluster_default: true\n  flat: true\n- topology: b\n  flat: true\n",
        ),
        (
            "cgroup.conf",
            "CgroupPlugin=autodetect\nAllowedRAMSpace=90.5\nConstrainCores=yes\nMinRAMSpace=30\n",
        ),
        ("acct_gather.conf", "ProfileHDF5Dir=/x\nProfileInfluxDBFrequency=5\n"),
        (
            "job_container.conf",
            "AutoBasePath=true\nNodeName=x1 BasePath=/mnt/a Shared=true\n",
        ),
        ("oci.conf", "CreateEnvFile=newline\n"),
    ]);
    let reported = check(&files, &Known::default());
    assert!(
        reported
            .iter()
            .all(|problem| problem.file == "topology.conf" && problem.severity == Severity::Warn),
        "{reported:?}"
    );
}

#[test]
fn devices_that_no_job_would_get_are_reported() {
    for (gres_types, reported) in [
        ("GresTypes=gpu,shard\n", vec![]),
        ("GresTypes=gpu\n", vec!["shard"]),
        ("", vec!["gpu", "shard"]),
    ] {
        let files = parse(&[
            ("slurm.conf", &format!("{MINIMAL}{gres_types}")),
            (
                "gres.conf",
                "Name=gpu File=/dev/a\nName=gpu File=/dev/b\nName=shard Count=8\n",
            ),
        ]);
        let said: Vec<String> = check(&files, &Known::default())
            .iter()
            .map(|problem| format!("{:?} {} {}", problem.severity, problem.file, problem.remedy))
            .collect();
        let reported: Vec<String> = reported
            .iter()
            .map(|kind| format!("Warn gres.conf add {kind} to GresTypes"))
            .collect();
        assert_eq!(said, reported, "{gres_types}");
    }
}

#[test]
fn a_misspelled_key_is_understood() {
    for (line, remedy) in [
        ("MaxJobCont=5", "did you mean MaxJobCount?"),
        ("PartitonName=p Nodes=ALL", "did you mean PartitionName?"),
        ("PartitionName=p MaxTimes=5", "did you mean MaxTime?"),
        ("PartitionName=p RealMemory=5", "it belongs on a NodeName line"),
        ("PriorityJobFactor=5", "it belongs on a PartitionName line"),
        (
            "PartitionName=p TaskPlugin=none",
            "it has a line of its own in slurm.conf",
        ),
        ("SlurmctldPlugstack=x", "take it out"),
        ("CoreSpecPlugin=x", "take it out"),
    ] {
        let said = said(line, &Known::default());
        assert!(
            said.iter().any(|text| text.ends_with(&format!("; {remedy}"))),
            "{line}: {said:?}"
        );
    }
}

#[test]
fn a_newer_slurm_may_have_keys_and_words_we_do_not_know() {
    let lines = "BrandNew=1 Also=2\nPartitionName=p Shiny=1 State=ASLEEP\nMaxJobCount=abc";
    let newer = Known {
        release: Some((26, 11)),
        ..Known::default()
    };
    assert_eq!(
        said(lines, &newer).len(),
        1,
        "only the number is wrong in every release"
    );
    let older = Known {
        release: Some((25, 11)),
        ..Known::default()
    };
    assert_eq!(said(lines, &older).len(), 5);
}

#[test]
fn names_the_operator_renders_are_no_words_of_slurms_own() {
    let lines = "PartitionName=all Nodes=ALL\nPartitionName=default Nodes=ALL\nNodeSet=Default Feature=x";
    assert_eq!(said(lines, &Known::default()), [""; 0], "a person may write so");
    let nobodys = 100..=100;
    let known = Known {
        user_lines: Some(&nobodys),
        ..Known::default()
    };
    let said = said(lines, &known);
    assert_eq!(said.len(), 3, "{said:?}");
    assert_eq!(
        said[0],
        "slurm.conf line 3: PartitionName=all is a word of Slurm's own and no name; choose another name"
    );
}

#[test]
fn a_partition_may_have_a_nodes_name_only_if_a_person_wants_it() {
    let nodes = names(&["n1"]);
    let nobodys = 100..=100;
    for (user_lines, severity) in [(None, Severity::Warn), (Some(&nobodys), Severity::Refuse)] {
        let configuration = parse(&[("slurm.conf", &format!("{MINIMAL}PartitionName=n1 Nodes=n1"))]);
        let known = Known {
            nodes: Some(&nodes),
            user_lines,
            ..Known::default()
        };
        let problems = check(&configuration, &known);
        assert_eq!(
            problems.iter().map(|problem| problem.severity).collect::<Vec<_>>(),
            [severity]
        );
    }
}

#[test]
fn names_are_only_missed_where_the_nodes_are_known() {
    let lines = "NodeSet=z Nodes=n[1-2]\nPartitionName=p Nodes=z,m1";
    assert_eq!(said(lines, &Known::default()), [""; 0]);
    let nodes = names(&["n1"]);
    let known = Known {
        nodes: Some(&nodes),
        ..Known::default()
    };
    assert_eq!(
        said(lines, &known),
        [
            "slurm.conf line 4: partition \"p\" names NodeSet \"z\", whose node \"n2\" does not exist; a NodeSet takes names of nodes; use Feature= for dynamic ones",
            "slurm.conf line 4: partition \"p\" names \"m1\", which is neither a NodeSet nor a node; existing NodeSets: z",
        ]
    );
}

/// Slurm knows more nodes than we are ready to count.
#[test]
fn names_are_not_missed_where_a_list_of_nodes_is_too_long_to_write_out() {
    let none = BTreeSet::new();
    let known = Known {
        nodes: Some(&none),
        ..Known::default()
    };
    assert_eq!(said("NodeName=n[1-70000]\nPartitionName=p Nodes=n1", &known), [""; 0]);
}

/// What we do not find may stand in a file that only the host has.
#[test]
fn nothing_is_missed_where_slurm_conf_goes_on_elsewhere() {
    let live = parse(&[("slurm.conf", &format!("{MINIMAL}AuthType=auth/slurm\n"))]);
    let none = BTreeSet::new();
    let known = Known {
        live: Some(&live),
        nodes: Some(&none),
        ..Known::default()
    };
    let text =
        "PartitionName=p Nodes=n1,set QOS=q Alternate=r\nNodeName=x Gres=gpu:1\nAccountingStorageTRES=gres/gpu\n";
    let elsewhere = parse(&[("slurm.conf", &format!("{text}Include /opt/site.conf\n"))]);
    assert_eq!(texts(&elsewhere, &known), [""; 0]);
    let here = parse(&[("slurm.conf", text)]);
    assert!(texts(&here, &known).len() >= 6);
}

mod identity {
    use super::{Known, MINIMAL, parse, texts};

    const LIVE: &str = "AuthType=auth/slurm\nAuthAltParameters=jwt_key=/k,jwks=/j\n";

    fn said(new: &str, user_lines: Option<&std::ops::RangeInclusive<usize>>) -> Vec<String> {
        let live = parse(&[("slurm.conf", &format!("{MINIMAL}{LIVE}"))]);
        let known = Known {
            live: Some(&live),
            user_lines,
            ..Known::default()
        };
        texts(&parse(&[("slurm.conf", new)]), &known)
    }

    #[test]
    fn the_same_in_other_words_is_the_same() {
        let new = "clustername=C\nSlurmctldHost=h\nAuthType=auth/munge\nAuthType=auth/slurm\nAuthAltParameters=jwks=/j, jwt_key=/k\n";
        assert!(said(&new.replace(", ", ","), None).is_empty());
    }

    #[test]
    fn a_value_that_is_gone_or_new_is_refused_too() {
        let gone = said(&format!("{MINIMAL}AuthType=auth/slurm\n"), None);
        assert_eq!(gone.len(), 1);
        assert!(
            gone[0].starts_with("slurm.conf: AuthAltParameters=jwt_key=/k,jwks=/j is gone"),
            "{gone:?}"
        );
        let new = said(&format!("{MINIMAL}{LIVE}AuthAltTypes=auth/jwt\n"), None);
        assert!(
            new[0].starts_with("slurm.conf line 5: AuthAltTypes would be set"),
            "{new:?}"
        );
    }

    #[test]
    fn another_replica_is_allowed_and_another_host_is_not() {
        let new = format!("{MINIMAL}{LIVE}SlurmctldHost=h2\n");
        assert!(said(&new, Some(&(100..=100))).is_empty());
        for users in [Some(&(5..=5)), None] {
            let said = said(&new, users);
            assert_eq!(said.len(), 1);
            assert!(said[0].contains("SlurmctldHost would change from h to h2"), "{said:?}");
        }
    }
}

#[test]
fn partitions_lost_to_keep_part_info_and_qos_without_a_database_are_refused() {
    let keep = said("ReconfigFlags=KeepPartState,keeppartinfo", &Known::default());
    assert_eq!(
        keep,
        [
            "slurm.conf line 3: with KeepPartInfo slurmctld ignores every later change of a partition in slurm.conf; take KeepPartInfo out"
        ]
    );
    let qos = said("PartitionName=p AllowQos=a", &Known::default());
    assert_eq!(
        qos,
        [
            "slurm.conf line 3: partition \"p\" names QOS \"a\", and without accounting there are none; take AllowQos out, or set accountingRef"
        ]
    );
    let database = "AccountingStorageType=accounting_storage/slurmdbd\nPartitionName=p AllowQos=A,b QOS=c";
    assert_eq!(said(database, &Known::default()), [""; 0], "the names are not known");
    let qos = names(&["a", "b", "c"]);
    let known = Known {
        qos: Some(&qos),
        ..Known::default()
    };
    assert_eq!(said(database, &known), [""; 0]);
}

/// The dry run goes without the accounting lines, so what is wrong with them is found here or not in time.
#[test]
fn accounting_that_cannot_be_is_refused() {
    for (lines, refused) in [
        (
            "AccountingStorageType=accounting_storage/none\nAccountingStorageTRES=cpu,Mem,fs/disk",
            false,
        ),
        (
            "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageTRES=gres/gpu:a100,license/x",
            false,
        ),
        ("AccountingStorageTRES=gres/gpu", true),
        (
            "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageTRES=gres",
            true,
        ),
        ("AccountingStorageType=slurmdbd", true),
        ("AccountingStorageType=accounting_storage/mysql", true),
        (
            "AccountingStorageType=accounting_storage/slurmdbd\nPartitionName=p QOS=\"\"",
            true,
        ),
        ("AccountingStoreJobComment=YES", true),
        ("FastSchedule=0", true),
    ] {
        let configuration = parse(&[("slurm.conf", &format!("{MINIMAL}{lines}"))]);
        let qos = names(&["normal"]);
        let known = Known {
            qos: Some(&qos),
            ..Known::default()
        };
        let problems = check(&configuration, &known);
        let worst = problems.iter().map(|problem| problem.severity).max();
        assert_eq!(worst == Some(Severity::Refuse), refused, "{lines}: {problems:?}");
    }
}

#[test]
fn a_problem_in_an_included_file_is_pointed_out_there() {
    let configuration = parse(&[
        ("slurm.conf", &format!("{MINIMAL}Include more.conf\n")),
        ("more.conf", "\n\nFooBar=1\n"),
    ]);
    assert_eq!(
        texts(&configuration, &Known::default()),
        ["more.conf line 3: FooBar is no key that Slurm knows here; take it out"]
    );
}

#[test]
fn more_than_a_mebibyte_is_refused() {
    let large = "#".repeat(1 << 20);
    let said = texts(
        &parse(&[("slurm.conf", MINIMAL), ("big.sh", &large)]),
        &Known::default(),
    );
    assert_eq!(said.len(), 1);
    assert!(
        said[0].starts_with("slurm.conf: all files together have 1048606 bytes"),
        "{said:?}"
    );
}
