//! Objects that a Controller refers to.

use slurm_operator_api::{
    Controller,
    validate::{check_config_file, check_shared_claim},
};

use super::warnings;
use crate::common::objects;

#[test]
fn files_of_the_operator_cannot_be_replaced() {
    assert!(!check_config_file("files", "slurm.conf").is_ok());
    assert!(!check_config_file("files", "slurmdbd.conf").is_ok());
    assert_eq!(check_config_file("files", "gres.conf").iter().count(), 0);
    assert_eq!(
        warnings(&check_config_file("files", "gers.conf")),
        ["spec.configFileRefs"]
    );
}

#[test]
fn standbys_need_a_claim_they_can_all_mount() {
    let shared: Controller = serde_json::from_value(objects("given/upstream-c-ha.yaml").remove(0)).unwrap();
    assert!(check_shared_claim(&shared, &["ReadWriteMany".into()]).is_ok());
    assert!(!check_shared_claim(&shared, &["ReadWriteOnce".into()]).is_ok());
    let alone: Controller = serde_json::from_value(objects("given/upstream-a-default.yaml").remove(0)).unwrap();
    assert!(check_shared_claim(&alone, &["ReadWriteOnce".into()]).is_ok());
}
