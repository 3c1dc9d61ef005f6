//! What an external slurmctld lacks is named in the Controller's conditions.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::json;
use testbed::network;
use testbed::process::Process;

use super::external_slurm::Hybrid;
use crate::common::clusters::{change_spec, wait_said};

/// A Controller without other objects.
const PROBE: &str = "
apiVersion: slinky.slurm.net/v1beta1
kind: Controller
metadata:
  name: probe
spec:
  external: true
  externalConfig:
    host: HOST
  slurmKeyRef:
    name: external-auth-slurm
    key: slurm.key
  jwtKeyRef:
    name: external-auth-jwths256
    key: jwt_hs256.key
";

/// Missing settings of slurmctld and a wrong address are named; each heals by itself.
pub(super) fn missing_requirements_are_named(hybrid: &Hybrid) -> Process {
    let probe = "controller/probe";
    hybrid
        .namespace
        .apply(&PROBE.replace("HOST", &hybrid.ctl.address))
        .unwrap();
    wait_said(&hybrid.namespace, probe, "Ready", &["False SlurmctldAway", "6817"]);
    for (without, named) in [
        ("SlurmctldParameters=enable_configless", "lacks configless"),
        ("AuthInfo=use_client_ids", "lacks use_client_ids"),
        ("AuthAltTypes=auth/jwt", "auth/jwt"),
    ] {
        let slurmctld = hybrid.start_slurmctld(without);
        wait_said(&hybrid.namespace, probe, "Ready", &["False RequirementMissing", named]);
        slurmctld.end(Signal::SIGTERM, Duration::from_secs(20)).unwrap();
    }
    let slurmctld = hybrid.start_slurmctld("nothing");
    wait_said(&hybrid.namespace, probe, "Ready", &["True External"]);
    let something_else = json!({ "externalConfig": { "host": network::CONTROL_PLANE, "port": network::API_PORT } });
    change_spec(&hybrid.namespace, probe, &something_else).unwrap();
    wait_said(
        &hybrid.namespace,
        probe,
        "Ready",
        &["False", "6443", "correct spec.externalConfig"],
    );
    change_spec(
        &hybrid.namespace,
        probe,
        &json!({ "externalConfig": { "host": hybrid.ctl.address, "port": null } }),
    )
    .unwrap();
    wait_said(&hybrid.namespace, probe, "Ready", &["True External"]);
    hybrid.namespace.ask(&["delete", probe]).unwrap();
    slurmctld
}
