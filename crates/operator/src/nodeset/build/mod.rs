//! The children of a NodeSet, as values. Pure.

mod claims;
mod conf;
mod pod;
mod pre_stop;
mod revision;
mod service;
mod ssh;

pub use self::{
    claims::{build_claims, claims_of, is_made_for},
    conf::topology_in,
    pod::{Blueprint, Place, build_pod, hostname_on, topology_of, worker_labels},
    pre_stop::TERMINATING,
    revision::{build_revision, build_revision_data, hash, hash_of, makes_same_pods, revision_name},
    service::{build_disruption_budget, build_service},
    ssh::{build_ssh_config_map, render_sshd_config, takes_changed_sssd_conf},
};
