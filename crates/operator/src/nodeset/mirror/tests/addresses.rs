//! Addresses of workers that Slurm looks for elsewhere, or has forgotten.

use jiff::Timestamp;
use serde_json::json;

use super::{Scene, known, seen, steps};
use crate::nodeset::fixture::{begun, running_since, with, worker};

#[test]
fn slurm_gets_the_address_of_a_worker_that_it_misses() {
    let (registered, restarted) = ("2026-01-01T00:15:00Z", "2026-01-01T00:20:00Z");
    let sent_address_of = |container_start: &str, state: &[&str], address: &str, ready_since: &str| {
        let pod = with(
            running_since(worker(0), container_start),
            &[
                ("/status/podIP", json!("10.0.0.1")),
                ("/status/conditions/0/lastTransitionTime", json!(ready_since)),
            ],
        );
        let start: Timestamp = registered.parse().unwrap();
        let start = json!({ "set": true, "number": start.as_second() });
        let knowledge = seen(&json!({ "state": state, "address": address, "slurmd_start_time": start }));
        let mirror = Scene {
            pod,
            knowledge,
            ..Scene::default()
        }
        .mirror();
        let node_updates = mirror.node_updates.iter();
        node_updates
            .map(|(_, description)| description.address.as_ref().unwrap().to_string())
            .collect::<Vec<_>>()
            .join(" ")
    };
    let sent_address =
        |state: &[&str], address: &str, ready_since: &str| sent_address_of(restarted, state, address, ready_since);
    let (long, now) = ("2026-01-01T00:30:00Z", "2026-01-01T00:59:58Z");
    let down = &["DOWN", "DYNAMIC_NORM"];
    assert_eq!(sent_address(down, "10.0.0.9", long), "10.0.0.1");
    assert_eq!(
        sent_address(&["IDLE", "NOT_RESPONDING", "DYNAMIC_NORM"], "10.0.0.9", long),
        "10.0.0.1"
    );
    assert_eq!(
        sent_address(&["IDLE", "DYNAMIC_NORM"], "10.0.0.9", long),
        "",
        "it answers there"
    );
    assert_eq!(sent_address(down, "10.0.0.1", long), "");
    assert_eq!(sent_address(down, "10.0.0.9", now), "", "it may have registered by now");
    assert_eq!(sent_address(&["DOWN"], "10.0.0.9", long), "", "it is from slurm.conf");
    assert_eq!(
        sent_address_of("2026-01-01T00:10:00Z", down, "10.0.0.9", long),
        "",
        "it has registered, on a network of its own"
    );
}

#[test]
fn slurm_gets_the_address_of_a_ready_worker_that_its_slurmctld_has_forgotten() {
    let sent_address = |boot: Option<&str>, ready_since: &str, cordoned: bool| {
        let annotations = json!({ "slinky.slurm.net/pod-cordon": "true" });
        let pod = with(
            running_since(worker(0), "2026-01-01T00:30:00Z"),
            &[
                ("/status/podIP", json!("10.0.0.1")),
                ("/status/conditions/0/lastTransitionTime", json!(ready_since)),
            ],
        );
        let pod = if cordoned {
            with(pod, &[("/metadata/annotations", annotations)])
        } else {
            pod
        };
        let nothing = known(vec![], vec![]);
        let scene = Scene {
            pod,
            knowledge: boot.map_or(nothing.clone(), |boot| begun(nothing, boot)),
            ..Scene::default()
        };
        steps(&scene.mirror()).join("; ")
    };
    let (long, now) = ("2026-01-01T00:30:05Z", "2026-01-01T00:59:58Z");
    let restarted = Some("2026-01-01T00:40:00Z");
    assert_eq!(
        sent_address(restarted, long, false),
        r#"tell compute-0 {"address":"10.0.0.1"}"#
    );
    assert_eq!(sent_address(restarted, now, false), "", "it may have registered by now");
    assert_eq!(
        sent_address(restarted, long, true),
        "",
        "its drain is lost with the record"
    );
    for boot in [None, Some("2026-01-01T00:20:00Z")] {
        assert_eq!(
            sent_address(boot, long, false),
            "",
            "this slurmctld has not forgotten it"
        );
    }
}
