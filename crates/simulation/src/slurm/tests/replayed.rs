//! Rules that replays on a real slurmctld have shown.

use super::*;

/// A long job for any nodes.
fn anywhere(nodes: usize) -> Submission {
    Submission {
        nodes,
        ..Submission::new("main", seconds(3600))
    }
}

impl Lab {
    fn batch_host(&self, id: u32) -> Option<&str> {
        self.state().jobs[&id].batch_host()
    }
}

#[test]
fn a_restart_ends_the_jobs_of_a_node_that_was_saved_as_down() {
    let mut lab = Lab::new();
    let id = lab.submit(long(&["n1"]));
    lab.wait(20);
    lab.node("n1", NodeOrder::Down, "RMA").unwrap();
    // The node is saved at once, the end of the job some seconds later.
    lab.slurm.advance(lab.slurm.now() + Duration::from_millis(1));
    assert_eq!(lab.slurm.saved(lab.volume).jobs[&id].phase, JobPhase::Running);
    lab.kill_and_start();
    assert_eq!((lab.job(id).as_str(), lab.state().jobs[&id].restarts), ("PENDING", 1));
}

#[test]
fn a_job_that_names_a_deleted_node_is_held() {
    let mut lab = Lab::new();
    lab.node("n1", NodeOrder::Drain, "RMA").unwrap();
    let id = lab.submit(long(&["n1"]));
    lab.order(Request::DeleteNode("n1".to_owned())).unwrap();
    lab.wait(2);
    assert!(lab.state().jobs[&id].held);
}

#[test]
fn the_node_that_came_first_runs_the_script() {
    let mut lab = Lab::new();
    let first = lab.submit(long(&["n1", "n2"]));
    lab.wait(2);
    assert_eq!(lab.batch_host(first), Some("n1"));
    lab.order(Request::Cancel(first)).unwrap();
    lab.wait(2);
    for name in ["n1", "n2"] {
        lab.order(Request::DeleteNode(name.to_owned())).unwrap();
    }
    for host in [1, 0] {
        lab.slurm.reload_slurmd(lab.hosts[host]);
        lab.wait(1);
    }
    let second = lab.submit(long(&["n1", "n2"]));
    lab.wait(2);
    assert_eq!(lab.batch_host(second), Some("n2"));
}

#[test]
fn a_later_job_starts_if_it_ends_before_an_earlier_one_can_start() {
    let mut lab = Lab::new();
    lab.submit(Submission {
        time_limit: Some(120),
        ..long(&["n1"])
    });
    lab.wait(2);
    let exclusive = Submission {
        exclusive: true,
        ..long(&["n1"])
    };
    let blocked = lab.submit(exclusive);
    let limited = Submission {
        time_limit: Some(60),
        ..long(&["n1"])
    };
    let (short, endless) = (lab.submit(limited), lab.submit(long(&["n1"])));
    lab.wait(2);
    let states = [blocked, short, endless].map(|id| lab.job(id));
    assert_eq!(states, ["PENDING", "RUNNING", "PENDING"]);
}

#[test]
fn a_submission_that_no_node_suits_leaves_a_failed_job() {
    let mut lab = Lab::new();
    let update = PartitionUpdate {
        nodes: Some("n1".to_owned()),
        ..PartitionUpdate::default()
    };
    let name = "main".to_owned();
    lab.order(Request::UpdatePartition { name, update }).unwrap();
    let refused = lab.order(Request::Submit(long(&["n2"])));
    assert_eq!(refused, Err(Code::NodeConfigUnavailable));
    assert_eq!(lab.job(1), "FAILED");
    assert!(lab.slurm.ledger.jobs.is_empty());
    lab.wait(10);
    lab.kill_and_start();
}

#[test]
fn a_time_limit_is_checked_every_half_minute() {
    let mut lab = Lab::new();
    let id = lab.submit(Submission {
        time_limit: Some(1),
        ..anywhere(1)
    });
    lab.wait(55);
    assert_eq!(lab.job(id), "RUNNING");
    lab.wait(36);
    assert_eq!((lab.job(id).as_str(), lab.running()), ("TIMEOUT", 0));
}

#[test]
fn a_script_that_a_forgotten_order_ended_has_failed() {
    let mut lab = Lab::new();
    let id = lab.submit(long(&["n1"]));
    lab.wait(20);
    lab.order(Request::Cancel(id)).unwrap();
    lab.kill_and_start();
    lab.wait(30);
    assert_eq!((lab.job(id).as_str(), lab.running()), ("FAILED", 0));
}

#[test]
fn a_reservation_keeps_its_nodes_from_jobs_and_from_deletion() {
    let mut lab = Lab::new();
    let reserve = ReservationUpdate {
        name: "r".to_owned(),
        minutes: Some(60),
        nodes: Some("n[1-2]".to_owned()),
        users: Some("root".to_owned()),
        flags: vec!["MAINT".to_owned()],
        ..ReservationUpdate::default()
    };
    lab.order(Request::CreateReservation(reserve.clone())).unwrap();
    assert_eq!(
        lab.order(Request::CreateReservation(reserve)),
        Err(Code::DuplicateReservation)
    );
    lab.wait(1);
    assert_eq!(lab.shown("n1"), "IDLE+RESERVED+MAINTENANCE");
    assert_eq!(lab.order(Request::DeleteNode("n1".to_owned())), Err(Code::NodesBusy));
    let (inside, outside) = (lab.submit(long(&["n2"])), lab.submit(anywhere(1)));
    lab.wait(2);
    assert_eq!(
        (lab.job(inside).as_str(), lab.batch_host(outside)),
        ("PENDING", Some("n3"))
    );
    lab.wait(10);
    lab.kill_and_start();
    lab.order(Request::DeleteReservation("r".to_owned())).unwrap();
    lab.wait(2);
    assert_eq!(lab.job(inside), "RUNNING");
}

#[test]
fn a_frozen_slurmd_is_found_later_than_a_dead_one_and_delays_the_pings_of_others() {
    let mut lab = Lab::with_conf(&CONF.replace("SlurmdTimeout=30", "SlurmdTimeout=10"));
    lab.slurm.freeze_host(lab.hosts[0]);
    lab.slurm.kill_slurmd(lab.hosts[1]);
    lab.wait(15);
    assert_eq!(lab.shown("n1"), "IDLE");
    lab.wait(50);
    assert_eq!(
        (lab.shown("n1").as_str(), lab.shown("n2").as_str()),
        ("DOWN+NOT_RESPONDING", "DOWN+NOT_RESPONDING")
    );
    lab.slurm.thaw_host(lab.hosts[0]);
    lab.wait(40);
    assert_eq!(lab.shown("n1"), "IDLE");
}

#[test]
fn a_change_of_a_job_in_an_inactive_partition_is_done_and_reported_as_an_error() {
    let mut lab = Lab::new();
    let id = lab.submit(long(&["n1"]));
    let update = PartitionUpdate {
        state: Some("INACTIVE".to_owned()),
        ..PartitionUpdate::default()
    };
    let name = "main".to_owned();
    lab.order(Request::UpdatePartition { name, update }).unwrap();
    let hold = Request::UpdateJob {
        job: id,
        hold: Some(true),
        admin_comment: None,
    };
    assert_eq!(lab.order(hold), Err(Code::PartConfigUnavailable));
    assert!(lab.state().jobs[&id].held);
}

#[test]
fn a_host_answers_what_waited_for_it() {
    let mut lab = Lab::new();
    lab.slurm.freeze_host(lab.hosts[0]);
    // A ping comes every ten seconds.
    lab.wait(11);
    lab.slurm.thaw_host(lab.hosts[0]);
    lab.wait(20);
    assert_eq!(lab.shown("n1"), "IDLE");
    lab.node("n1", NodeOrder::Down, "RMA").unwrap();
    lab.wait(15);
    assert_eq!(lab.shown("n1"), "IDLE");
}

/// The start of a job waited first, then the request to register by which slurmctld looks for the job's process.
#[test]
fn a_host_reads_what_waited_for_it_in_its_order() {
    let mut lab = Lab::new();
    lab.slurm.freeze_host(lab.hosts[0]);
    let id = lab.submit(Submission::new("main", seconds(3)).on(["n1"]));
    lab.wait(6);
    lab.kill_and_start();
    // A job without a process is spared for 20 s after a start of slurmctld.
    lab.wait(22);
    lab.slurm.thaw_host(lab.hosts[0]);
    lab.wait(10);
    assert_eq!(lab.job(id), "COMPLETED");
    assert_eq!(lab.slurm.ledger.jobs[0].launches.len(), 1);
}
