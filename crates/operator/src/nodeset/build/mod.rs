//! The children of a NodeSet, as values. Pure.

mod claims;
mod conf;
mod pod;
mod pre_stop;
mod service;
mod ssh;

pub use self::{
    claims::{build_claims, claims_of, is_made_for},
    conf::{render_record, topology_in},
    pod::{Blueprint, Place, build_pod, hostname_on, topology_of, worker_labels},
    service::{build_disruption_budget, build_service},
    ssh::{build_ssh_config_map, takes_changed_sssd_conf},
};
