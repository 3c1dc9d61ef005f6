//! Partitions that go.

use super::*;

#[test]
fn a_deleted_partition_is_closed_first_and_removed_after_its_jobs() {
    let open = || partition("both", "2026-01-02T00:00:00Z", json!({ "nodeSets": ["cpu"] }));
    let closed = || {
        partition(
            "both",
            "2026-01-02T00:00:00Z",
            json!({ "nodeSets": ["cpu"], "state": "Drain" }),
        )
    };
    let job = json!([{ "job_id": 7, "job_state": ["RUNNING"], "partition": "both", "nodes": "" }]);
    let plan = later(
        with(cluster(""), [open()]),
        with(cluster(""), [deleted(open())]),
        &[],
        json!([]),
        READ,
    );
    let conf = pushed_conf(&plan);
    assert!(line(&conf, "both").unwrap().contains("State=DRAIN"), "{conf}");
    // During the push without it, its removal is still wanted.
    let mut on_its_way = after(
        with(cluster(""), [closed()]),
        with(cluster(""), [deleted(closed())]),
        &[("both", "INACTIVE")],
        json!([]),
        READ,
    );
    on_its_way.snapshot.report.state = State::Busy;
    assert_eq!(line(&pushed_conf(&super::plan(&on_its_way)), "both"), None);
    // Once closed it is removed, unless it has jobs, or the list of jobs is older.
    for (jobs, read, is_removed) in [
        (json!([]), READ, true),
        (job.clone(), READ, false),
        (json!([]), "2026-01-02T00:00:10Z", false),
    ] {
        let before = with(cluster(""), [closed()]);
        let plan = later(
            before,
            with(cluster(""), [deleted(closed())]),
            &[("both", "DRAIN")],
            jobs.clone(),
            read,
        );
        let conf = pushed_conf(&plan);
        assert_eq!(line(&conf, "both").is_none(), is_removed, "{jobs} {read}: {conf}");
    }
}

#[test]
fn the_only_default_partition_is_kept_until_another_one_replaces_it() {
    let default = |own: &str| {
        partition(
            own,
            "2026-01-02T00:00:00Z",
            json!({ "nodeSets": ["cpu"], "default": true }),
        )
    };
    let plan = later(
        with(cluster(""), [default("a")]),
        with(cluster(""), [deleted(default("a"))]),
        &[],
        json!([]),
        READ,
    );
    assert_eq!(
        plan.configuration.partitions["a"].trouble.clone().unwrap().reason,
        "LastDefault"
    );
    assert_eq!(
        line(&pushed_conf(&plan), "a"),
        Some("PartitionName=a Nodes=cpu State=UP Default=YES")
    );
    let both = with(cluster(""), [deleted(default("a")), default("b")]);
    let plan = later(with(cluster(""), [default("a")]), both, &[], json!([]), READ);
    let conf = pushed_conf(&plan);
    assert_eq!(line(&conf, "a"), Some("PartitionName=a Nodes=cpu State=DRAIN"));
    assert_eq!(line(&conf, "b"), Some("PartitionName=b Nodes=cpu State=UP Default=YES"));
}

fn in_use(name: &str, made_by_hand: bool) -> PartitionInUse {
    PartitionInUse {
        name: name.to_owned(),
        why: "a reservation".to_owned(),
        made_by_hand,
        line: format!("PartitionName={name} Nodes=ALL State=UP"),
    }
}

#[test]
fn a_partition_in_use_keeps_its_line_and_the_rest_goes_live() {
    let closed = || {
        partition(
            "both",
            "2026-01-02T00:00:00Z",
            json!({ "nodeSets": ["cpu"], "state": "Drain" }),
        )
    };
    let before = with(cluster(""), [closed()]);
    let now = with(cluster("PartitionName=new Nodes=ALL\n"), [deleted(closed())]);
    let mut observed = after(before, now, &[("both", "DRAIN")], json!([]), READ);
    assert!(line(&pushed_conf(&plan(&observed)), "both").is_none());
    observed.snapshot.report.in_use = vec![in_use("both", false)];
    let plan = plan(&observed);
    let conf = pushed_conf(&plan);
    assert!(line(&conf, "both").is_some() && line(&conf, "new").is_some(), "{conf}");
    let trouble = plan.configuration.partitions["both"].trouble.clone().unwrap();
    assert!(trouble.message.contains("a reservation"), "{}", trouble.message);
}

#[test]
fn a_manually_created_partition_with_jobs_is_kept_in_the_file_until_it_has_an_owner() {
    let mut observed = after(cluster(""), cluster(""), &[], json!([]), READ);
    observed.snapshot.report.in_use = vec![in_use("hand", true)];
    let plan = plan(&observed);
    assert_eq!(
        line(&pushed_conf(&plan), "hand"),
        Some("PartitionName=hand Nodes=ALL State=UP")
    );
    // The name now has an owner.
    let own = with(
        cluster(""),
        [partition(
            "hand",
            "2026-01-02T00:00:00Z",
            json!({ "nodeSets": ["cpu"] }),
        )],
    );
    let mut observed = after(cluster(""), own, &[], json!([]), READ);
    observed.snapshot.report.in_use = vec![in_use("hand", true)];
    assert_eq!(
        line(&pushed_conf(&super::plan(&observed)), "hand"),
        Some("PartitionName=hand Nodes=cpu State=UP")
    );
}
