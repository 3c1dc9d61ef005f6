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

#[test]
fn a_line_without_an_object_is_closed_like_a_deleted_one() {
    let object = |own: &str, state: &str| {
        let spec = json!({ "nodeSets": ["cpu"], "state": state, "partitionName": "both" });
        partition(own, "2026-01-02T00:00:00Z", spec)
    };
    let job = json!([{ "job_id": 7, "job_state": ["RUNNING"], "partition": "both", "nodes": "" }]);
    for (state, slurm, jobs, expected) in [
        ("Up", "UP", json!([]), Some("DRAIN")),
        ("Up", "UP", job.clone(), Some("DRAIN")),
        ("Drain", "DRAIN", job, Some("DRAIN")),
        ("Drain", "DRAIN", json!([]), None),
    ] {
        let before = with(cluster(""), [object("a", state)]);
        let plan = later(before, cluster(""), &[("both", slurm)], jobs.clone(), READ);
        assert!(plan.configuration.depends_on_slurm, "the next poll decides");
        let conf = pushed_conf(&plan);
        let expected = expected.map(|state| format!("PartitionName=both Nodes=cpu State={state}"));
        assert_eq!(line(&conf, "both"), expected.as_deref(), "{state} {jobs}");
    }
    // Another object has the name now.
    let (before, now) = (
        with(cluster(""), [object("a", "Up")]),
        with(cluster(""), [object("b", "Up")]),
    );
    let plan = later(before, now, &[("both", "UP")], json!([]), READ);
    let conf = pushed_conf(&plan);
    assert_eq!(line(&conf, "both"), Some("PartitionName=both Nodes=cpu State=UP"));
}

#[test]
fn a_blocked_controller_reports_the_lines_that_slurmctld_has() {
    let open = || partition("both", "2026-01-02T00:00:00Z", json!({ "nodeSets": ["cpu"] }));
    let both = || with(cluster(""), [open()]);
    let deleted = with(cluster(""), [deleted(open())]);
    let mut blocked = after(both(), deleted.clone(), &[], json!([]), READ);
    blocked.rival = Some(crate::runtime::Key::new("hpc", "older"));
    let report = |observed: &Observed| super::plan(observed).configuration.partitions["both"].clone();
    let reported = report(&blocked);
    assert_eq!(reported.line.map(|line| line.state).as_deref(), Some("UP"));
    assert!(!reported.may_have_line);
    // Without the record of its lines, slurmctld may have any.
    blocked.inputs.bundle = None;
    let reported = report(&blocked);
    assert_eq!((reported.line, reported.may_have_line), (None, true));
    // No slurmctld ever ran.
    let mut new = observed(deleted, Report::default());
    new.rival = blocked.rival;
    assert!(!report(&new).may_have_line);
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
