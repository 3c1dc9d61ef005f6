//! The files we write are byte for byte those of the operator we replace.

use slurm::conf::{
    AccountingStorage, Document, ExternalConf, NodeSetLines, PowerSaving, RecordKind, SlurmConf, SlurmctldHost,
    render_cgroup_conf, render_external_slurm_conf, render_slurm_conf,
};

fn cluster(cluster_name: &str, namespace: &str) -> SlurmConf {
    SlurmConf {
        cluster_name: cluster_name.to_owned(),
        slurmctld_hosts: vec![host(0, namespace)],
        slurmctld_address: format!("slurm-controller.{namespace}"),
        max_node_count: 1024,
        jwks: false,
        metrics: false,
        power_saving: None,
        accounting: None,
        prolog_slurmctld: vec![],
        epilog_slurmctld: vec![],
        prolog: vec![],
        epilog: vec![],
        node_sets: vec![],
        partitions: Vec::new(),
        extra: String::new(),
    }
}

fn host(ordinal: u32, namespace: &str) -> SlurmctldHost {
    let name = format!("slurm-controller-{ordinal}");
    let address = format!("{name}.slurm-controller-internal.{namespace}");
    SlurmctldHost { name, address }
}

fn node_set(name: &str, partition: Option<&str>) -> NodeSetLines {
    NodeSetLines {
        name: name.to_owned(),
        partition: partition.map(ToOwned::to_owned),
    }
}

fn slurmdbd() -> AccountingStorage {
    AccountingStorage {
        host: "slurm-accounting".to_owned(),
        port: 6819,
    }
}

#[test]
fn a_the_defaults() {
    let conf = cluster("g-a_slurm", "g-a");
    assert_eq!(
        render_slurm_conf(&conf).text,
        include_str!("golden/a-default.slurm.conf")
    );
}

#[test]
fn power_saving_adds_its_section_and_a_parameter() {
    let conf = SlurmConf {
        power_saving: Some(PowerSaving { resume_timeout: 1200 }),
        extra: "SlurmctldParameters=power_save_interval=5\nSuspendTimeout=60".to_owned(),
        ..cluster("g-a_slurm", "g-a")
    };
    let text = render_slurm_conf(&conf).text;
    let section = "### POWER SAVING ###\nSuspendProgram=/usr/bin/true\nResumeProgram=/usr/bin/true\nSuspendTime=1000000000\n\
                   SuspendTimeout=30\nResumeTimeout=1200\nSuspendRate=0\nResumeRate=0\n\
                   SuspendExcStates=DOWN,DRAIN,FAIL,MAINTENANCE,RESERVED\n";
    assert!(text.contains(section), "{text}");
    let conf = Document::parse(&text);
    let parameters = "enable_configless,power_save_interval=5,reconfig_on_restart,requeue_on_resume_failure";
    assert_eq!(conf.value("SlurmctldParameters"), Some(parameters));
    // The user's line is effective.
    assert_eq!(conf.value("SuspendTimeout"), Some("60"));
}

#[test]
fn b_everything() {
    let conf = SlurmConf {
        metrics: true,
        accounting: Some(slurmdbd()),
        prolog_slurmctld: vec!["prolog-slurmctld-pc.sh".to_owned()],
        prolog: vec!["prolog-p1.sh".to_owned()],
        epilog: vec!["epilog-e1.sh".to_owned()],
        node_sets: vec![
            node_set("daemon", None),
            node_set("gpu", None),
            node_set("slinky", Some("Default=YES")),
        ],
        extra: concat!(
            "SchedulerParameters=defer\n",
            "SlurmctldParameters=idle_on_node_suspend\n",
            "\n",
            "PartitionName=all Nodes=ALL Default=YES MaxTime=UNLIMITED State=UP",
        )
        .to_owned(),
        ..cluster("full", "g-b")
    };
    assert_eq!(render_slurm_conf(&conf).text, include_str!("golden/b-full.slurm.conf"));
}

#[test]
fn c_two_slurmctlds() {
    let conf = SlurmConf {
        slurmctld_hosts: vec![host(0, "g-f"), host(1, "g-f")],
        node_sets: vec![node_set("slinky", None)],
        ..cluster("g-f_slurm", "g-f")
    };
    let text = render_slurm_conf(&conf).text;
    assert_ne!(text, include_str!("golden/c-ha.slurm.conf"));
    let but_for_the_timeout = text.replace("SlurmctldTimeout=10\n", "");
    assert_eq!(but_for_the_timeout, include_str!("golden/c-ha.slurm.conf"));
}

#[test]
fn a_standby_takes_over_after_ten_seconds_unless_the_user_sets_the_timeout() {
    let timeouts = |hosts: u32, extra: &str| {
        let conf = SlurmConf {
            slurmctld_hosts: (0..hosts).map(|ordinal| host(ordinal, "n")).collect(),
            extra: extra.to_owned(),
            ..cluster("c", "n")
        };
        let text = render_slurm_conf(&conf).text;
        let is_timeout = |line: &&str| line.to_ascii_lowercase().starts_with("slurmctldtimeout");
        text.lines()
            .filter(is_timeout)
            .map(ToOwned::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(timeouts(2, ""), ["SlurmctldTimeout=10"]);
    assert_eq!(timeouts(2, "# SlurmctldTimeout=30"), ["SlurmctldTimeout=10"]);
    assert_eq!(timeouts(2, "slurmctldtimeout = 30"), ["slurmctldtimeout = 30"]);
    assert_eq!(timeouts(1, ""), [""; 0]);
}

#[test]
fn d_an_external_slurmctld() {
    let conf = ExternalConf {
        cluster_name: "g-d_slurm".to_owned(),
        slurmctld_host: "slurm-controller.example.com".to_owned(),
        slurmctld_port: 6817,
        accounting: Some(slurmdbd()),
    };
    assert_eq!(
        render_external_slurm_conf(&conf),
        include_str!("golden/d-hybrid.slurm.conf")
    );
}

#[test]
fn e_node_sets_with_and_without_settings() {
    let conf = SlurmConf {
        node_sets: vec![node_set("daemon", Some("MaxTime=1:00:00")), node_set("node", Some(""))],
        ..cluster("g-e_slurm", "g-e")
    };
    assert_eq!(render_slurm_conf(&conf).text, include_str!("golden/e-nodes.slurm.conf"));
}

#[test]
fn cgroup_conf() {
    assert_eq!(render_cgroup_conf(), include_str!("golden/cgroup.conf"));
}

/// The table of seed 001, section 2.5, with its blank at the end of the first line.
#[test]
fn the_four_rows_of_the_partition_table() {
    for (settings, line) in [
        (Some(""), Some("PartitionName=foo Nodes=foo ")),
        (Some("Default=YES"), Some("PartitionName=foo Nodes=foo Default=YES")),
        (
            Some("MaxTime=24:00:00 Default=YES"),
            Some("PartitionName=foo Nodes=foo MaxTime=24:00:00 Default=YES"),
        ),
        (None, None),
    ] {
        let conf = SlurmConf {
            node_sets: vec![node_set("foo", settings)],
            ..cluster("c", "n")
        };
        let text = render_slurm_conf(&conf).text;
        assert_eq!(text.lines().find(|line| line.starts_with("PartitionName")), line);
        assert!(text.contains("\nNodeSet=foo Feature=foo\n"));
    }
}

#[test]
fn scripts_are_sorted_so_that_their_order_does_not_matter() {
    let names = |names: [&str; 2]| names.map(ToOwned::to_owned).to_vec();
    let one = SlurmConf {
        epilog: names(["b", "a"]),
        epilog_slurmctld: names(["d", "c"]),
        ..cluster("c", "n")
    };
    let other = SlurmConf {
        epilog: names(["a", "b"]),
        epilog_slurmctld: names(["c", "d"]),
        ..cluster("c", "n")
    };
    let text = render_slurm_conf(&one).text;
    assert_eq!(text, render_slurm_conf(&other).text);
    assert!(text.contains("EpilogSlurmctld=/etc/slurm/c\nEpilogSlurmctld=/etc/slurm/d\n"));
    assert!(text.ends_with("### PROLOG & EPILOG ###\nEpilog=a\nEpilog=b\n"));
}

#[test]
fn the_origin_of_every_line_is_known() {
    let conf = SlurmConf {
        node_sets: vec![node_set("a", Some("Default=YES")), node_set("b", None)],
        extra: "SchedulerParameters=defer\n# mine\nAuthInfo=ttl=30".to_owned(),
        ..cluster("c", "n")
    };
    let rendered = render_slurm_conf(&conf);
    let line = |number: usize| rendered.text.lines().nth(number - 1).unwrap();
    let [(a, Some(partition)), (b, None)] = rendered.node_sets[..] else {
        panic!("{:?}", rendered.node_sets)
    };
    assert_eq!(line(a), "NodeSet=a Feature=a");
    assert_eq!(line(partition), "PartitionName=a Nodes=a Default=YES");
    assert_eq!(line(b), "NodeSet=b Feature=b");
    let lines =
        |range: Option<std::ops::RangeInclusive<usize>>| range.unwrap().map(line).collect::<Vec<_>>().join("\n");
    assert_eq!(lines(rendered.extra.clone()), conf.extra);
    assert_eq!(
        lines(rendered.merged.clone()),
        "#\n### MERGED CONFIG ###\nAuthInfo=ttl=30,use_client_ids"
    );
    let plain = render_slurm_conf(&cluster("c", "n"));
    assert_eq!((plain.extra, plain.merged), (None, None));
}

mod merged {
    use super::{SlurmConf, cluster, render_slurm_conf};

    fn merged(extra: &str, jwks: bool) -> Option<String> {
        let conf = SlurmConf {
            extra: extra.to_owned(),
            jwks,
            ..cluster("c", "n")
        };
        render_slurm_conf(&conf)
            .text
            .split_once("#\n### MERGED CONFIG ###\n")
            .map(|(_, merged)| merged.to_owned())
    }

    #[test]
    fn only_keys_the_user_sets_are_there_in_the_order_of_their_names() {
        assert_eq!(merged("SchedulerParameters=defer", false), None);
        assert_eq!(
            merged(
                "slurmctldparameters=b,a\nAUTHINFO=ttl=30\nAuthAltParameters=userclaimfield=UPN",
                true
            )
            .unwrap(),
            concat!(
                "AuthAltParameters=jwks=/etc/slurm/jwks.json,jwt_key=/etc/slurm/jwt.key,userclaimfield=UPN\n",
                "AuthInfo=ttl=30,use_client_ids\n",
                "SlurmctldParameters=a,b,enable_configless,reconfig_on_restart\n",
            )
        );
    }

    #[test]
    fn the_last_line_of_a_key_counts_and_comments_do_not() {
        assert_eq!(
            merged(
                "AuthInfo=ttl=1\r\nAuthInfo=ttl=2 # AuthInfo=ttl=3\n# AuthInfo=ttl=4",
                false
            )
            .unwrap(),
            "AuthInfo=ttl=2,use_client_ids\n"
        );
        assert_eq!(
            merged("AuthInfo=ttl=1,\\\ncred_expire=5", false).unwrap(),
            "AuthInfo=cred_expire=5,ttl=1,use_client_ids\n"
        );
    }

    #[test]
    fn a_user_cannot_change_where_the_keys_are() {
        assert_eq!(
            merged("AuthAltParameters=JWT_KEY=/tmp/mine", false).unwrap(),
            "AuthAltParameters=jwt_key=/etc/slurm/jwt.key\n"
        );
    }

    #[test]
    fn a_value_with_blanks_is_merged_too() {
        assert_eq!(
            merged("SlurmctldParameters=\"a, b=c d\"", false).unwrap(),
            "SlurmctldParameters=\"a,b=c d,enable_configless,reconfig_on_restart\"\n"
        );
    }
}

/// Continuation lines are the user's right, but their last one has nothing to continue with.
#[test]
fn a_users_lines_end_with_their_last_one() {
    for extra in [
        "SlurmctldParameters=idle_on_node_suspend\nPartitionName=mine \\\n  Nodes=ALL \\",
        "PartitionName=mine Nodes=ALL\nSlurmctldParameters=idle_on_node_suspend \\",
        "SlurmctldParameters=idle_on_node_suspend\nPartitionName=mine Nodes=ALL \\ # why\n",
    ] {
        let conf = SlurmConf {
            extra: extra.to_owned(),
            ..cluster("c", "n")
        };
        let text = render_slurm_conf(&conf).text;
        let document = Document::parse(&text);
        let mine = document.record(RecordKind::Partition, "mine").unwrap();
        assert_eq!(mine.settings.len(), 1, "{text}");
        assert_eq!(mine.get("Nodes"), Some("ALL"), "{text}");
        assert_eq!(
            document.value("SlurmctldParameters"),
            Some("enable_configless,idle_on_node_suspend,reconfig_on_restart"),
            "{text}"
        );
    }
}
