//! States that people set in Slurm are delivered before other changes.

use super::*;

#[test]
fn a_state_that_a_person_set_goes_to_slurmctld_before_other_changes() {
    let objects = |state: &str, extra: &str| {
        let spec = json!({ "nodeSets": ["cpu"], "state": state });
        with(cluster(extra), [partition("both", "2026-01-02T00:00:00Z", spec)])
    };
    let before = objects("Up", "");
    let closed = plan(&after(
        before.clone(),
        before.clone(),
        &[("both", "DRAIN")],
        json!([]),
        READ,
    ));
    for (was_closed, now, slurm, expected, has_others) in [
        (false, objects("Up", "MaxJobCount=5\n"), "DRAIN", "DRAIN", false),
        (false, objects("Up", "MaxJobCount=5\n"), "UP", "UP", true),
        (true, objects("Up", "MaxJobCount=5\n"), "UP", "UP", false),
        (true, objects("Up", "MaxJobCount=5\n"), "DRAIN", "DRAIN", true),
        // The owner lifts it. Alone, that would open the partition for a moment.
        (true, objects("Inactive", "MaxJobCount=5\n"), "DRAIN", "INACTIVE", true),
    ] {
        let case = format!("{was_closed} {slurm} {expected}");
        let mut observed = after(
            before.clone(),
            now,
            &[("both", slurm)],
            json!([]),
            "2026-01-02T00:03:00Z",
        );
        if was_closed {
            let live = LiveRevision {
                sequence: 9,
                digest: pushed(&closed).digest,
            };
            let snapshot = &mut observed.snapshot;
            snapshot.report.live = Some(live);
            snapshot
                .lives
                .push((live.digest, "2026-01-02T00:02:00Z".parse().unwrap()));
            snapshot.served = Some(live).zip(closed.configuration.sent.clone().map(Arc::new));
        }
        let conf = pushed_conf(&plan(&observed));
        let line = line(&conf, "both").unwrap();
        assert!(line.contains(&format!(" State={expected}")), "{case}: {line}");
        assert_eq!(conf.contains("MaxJobCount=5"), has_others, "{case}: {conf}");
    }
}
