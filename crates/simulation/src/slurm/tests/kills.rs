//! What a killed slurmctld forgets.

use super::{Lab, long, seconds};
use crate::slurm::ledger::End;
use crate::slurm::state::JobPhase;
use crate::slurm::{HostSpec, NodeOrder, Request, Submission};

/// A person releases a held job.
fn release(lab: &mut Lab, id: u32) {
    lab.order(Request::UpdateJob {
        job: id,
        hold: Some(false),
        admin_comment: None,
    })
    .unwrap();
}

#[test]
fn kill_within_five_seconds_forgets_a_submission_and_its_number_is_used_again() {
    let mut lab = Lab::new();
    let first = lab.submit(long(&["n1"]));
    lab.wait(1);
    let second = lab.submit(long(&["n2"]));
    lab.kill_and_start();
    assert_ne!(lab.job(first), "", "saved at once after a time of rest");
    assert_eq!(lab.job(second), "");
    assert!(lab.slurm.ledger.jobs[1].durable.is_none() && lab.slurm.ledger.jobs[1].forgotten.is_some());
    assert_eq!(lab.submit(long(&["n2"])), second);
}

#[test]
fn a_graceful_stop_saves() {
    let mut lab = Lab::new();
    lab.submit(long(&["n1"]));
    lab.wait(1);
    let second = lab.submit(long(&["n2"]));
    assert!(lab.slurm.stop_controller(lab.ctl));
    lab.kill_and_start();
    assert_ne!(lab.job(second), "");
}

#[test]
fn kill_forgets_a_drain_and_keeps_it_after_six_seconds() {
    let mut lab = Lab::new();
    lab.node("n1", NodeOrder::Drain, "RMA").unwrap();
    lab.wait(1);
    lab.node("n2", NodeOrder::Drain, "RMA").unwrap();
    lab.wait(1);
    lab.kill_and_start();
    assert!(lab.shown("n1").contains("DRAIN") && !lab.shown("n2").contains("DRAIN"));
    lab.wait(10);
    lab.node("n2", NodeOrder::Drain, "RMA").unwrap();
    lab.wait(6);
    lab.kill_and_start();
    assert!(lab.shown("n2").contains("DRAIN"));
}

#[test]
fn a_forgotten_end_leaves_a_ghost_that_a_later_registration_starts_again() {
    let mut lab = Lab::new();
    let id = lab.submit(Submission::new("main", seconds(8)).on(["n1"]));
    lab.wait(1);
    lab.submit(Submission::new("main", seconds(1)).on(["n2"]));
    lab.wait(8);
    assert_eq!(lab.job(id), "COMPLETED");
    lab.kill_and_start();
    lab.wait(5);
    assert_eq!((lab.job(id).as_str(), lab.running()), ("RUNNING", 0), "a ghost");
    assert_eq!(lab.slurm.slurmdbd.records[0].phase, JobPhase::Completed);
    lab.wait(30);
    lab.slurm.reload_slurmd(lab.hosts[0]);
    lab.wait(1);
    assert_eq!(lab.job(id), "PENDING");
    lab.wait(130);
    assert_eq!(lab.slurm.ledger.jobs[0].runs.len(), 2);
}

#[test]
fn a_second_report_ends_a_ghost() {
    let mut lab = Lab::new();
    let id = lab.submit(Submission::new("main", seconds(8)).on(["n1"]));
    lab.wait(1);
    lab.submit(Submission::new("main", seconds(1)).on(["n2"]));
    lab.wait(8);
    lab.kill_and_start();
    assert_eq!(lab.job(id), "RUNNING");
    lab.order(Request::CompleteJob {
        job: id,
        exit_code: Some(0),
    })
    .unwrap();
    lab.wait(1);
    assert_eq!((lab.job(id).as_str(), lab.shown("n1").as_str()), ("COMPLETED", "IDLE"));
}

#[test]
fn a_forgotten_start_is_killed_at_the_registration_and_starts_again() {
    let mut lab = Lab::new();
    let id = lab.submit(Submission {
        hold: true,
        ..long(&["n1"])
    });
    lab.wait(10);
    lab.submit(long(&["n2"]));
    release(&mut lab, id);
    lab.wait(2);
    assert_eq!(lab.job(id), "RUNNING");
    lab.kill_and_start();
    lab.wait(200);
    let runs = &lab.slurm.ledger.jobs[0].runs;
    assert_eq!(runs.len(), 2);
    assert_eq!(runs[0].ended.unwrap().1, End::Killed);
    assert!(runs[0].ended.unwrap().0 < runs[1].began);
}

#[test]
fn a_registration_that_is_forgotten_comes_back_only_by_slurmd() {
    let mut lab = Lab::new();
    lab.node("n1", NodeOrder::Drain, "x").unwrap();
    lab.wait(1);
    let spec = HostSpec {
        name: "n9".to_owned(),
        address: "10.0.0.9".to_owned(),
        ..lab.slurm.host(lab.hosts[0]).spec.clone()
    };
    let host = lab.slurm.add_host(spec);
    lab.slurm.start_slurmd(host);
    lab.wait(1);
    assert_eq!(lab.shown("n9"), "IDLE");
    lab.kill_and_start();
    lab.wait(60);
    assert_eq!(lab.shown("n9"), "");
    lab.slurm.reload_slurmd(host);
    lab.wait(1);
    assert_eq!(lab.shown("n9"), "IDLE");
}

#[test]
fn a_registration_is_not_saved_until_something_else_is() {
    let mut lab = Lab::new();
    let spec = lab.slurm.host(lab.hosts[0]).spec.clone();
    let host = lab.slurm.add_host(HostSpec {
        name: "n9".to_owned(),
        address: "10.0.0.9".to_owned(),
        ..spec
    });
    lab.slurm.start_slurmd(host);
    lab.wait(60);
    lab.kill_and_start();
    assert_eq!(lab.shown("n9"), "");
}

#[test]
fn the_cancellation_of_a_pending_job_is_not_saved_until_something_else_is() {
    let mut lab = Lab::new();
    let hold = Submission {
        hold: true,
        ..long(&["n1"])
    };
    let id = lab.submit(hold);
    lab.wait(10);
    lab.order(Request::Cancel(id)).unwrap();
    lab.wait(60);
    lab.kill_and_start();
    assert_eq!(lab.job(id), "PENDING");
}

#[test]
fn a_requeue_after_a_nodes_death_is_forgotten_and_repeated_unless_the_job_names_the_node() {
    for (required, expected) in [(true, "NODE_FAIL"), (false, "PENDING")] {
        let mut lab = Lab::new();
        for name in ["n2", "n3"] {
            lab.node(name, NodeOrder::Drain, "x").unwrap();
        }
        let id = lab.submit(if required { long(&["n1"]) } else { long(&[]) });
        lab.wait(10);
        lab.slurm.remove_host(lab.hosts[0]);
        lab.node("n1", NodeOrder::Down, "pod deleted").unwrap();
        lab.order(Request::DeleteNode("n1".to_owned())).unwrap();
        assert_eq!(lab.job(id), "PENDING");
        lab.wait(20);
        lab.kill_and_start();
        assert_eq!(lab.job(id), expected);
    }
}

#[test]
fn a_job_whose_start_and_end_are_forgotten_runs_again_and_its_end_was_never_saved() {
    let mut lab = Lab::new();
    let id = lab.submit(Submission {
        hold: true,
        ..Submission::new("main", seconds(1)).on(["n1"])
    });
    lab.wait(10);
    // This is saved at once, and the next save comes five seconds later.
    lab.submit(long(&["n2"]));
    release(&mut lab, id);
    lab.wait(3);
    assert_eq!(lab.job(id), "COMPLETED");
    lab.kill_and_start();
    lab.wait(200);
    let history = &lab.slurm.ledger.jobs[0];
    let (runs, ends) = (&history.runs, &history.ends);
    assert_eq!((runs.len(), ends.len()), (2, 2));
    assert_eq!(history.forgotten_ends, [runs[0].launch]);
    assert!(ends[0].durable.is_none() && ends[1].durable.is_some());
}
