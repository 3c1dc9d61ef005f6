//! The commands of the documentation work as a reader types them (hack/test-docs).

use std::process::Command;

use testbed::command::output;
use testbed::harness::cluster;
use testbed::paths;

use crate::common::operator::install;
use crate::common::shell::search_path;

fn test_docs(pages: &[&str]) -> Command {
    let cluster = cluster();
    install(cluster);
    let mut command = Command::new(paths::repository().join("hack/test-docs"));
    command
        .args(pages)
        .env("KUBECONFIG", cluster.layout.kubeconfig())
        .env("PATH", search_path(cluster));
    command
}

/// The sample that is part of `make test`.
#[test]
fn the_quickstart_works_as_written() {
    output(&mut test_docs(&["quickstart"])).unwrap();
}

/// `PAGES` names some of them.
#[test]
#[ignore = "takes twenty minutes: make test-docs"]
fn every_page_works_as_written() {
    let pages = std::env::var("PAGES").unwrap_or_default();
    let pages: Vec<&str> = pages.split_whitespace().collect();
    assert!(test_docs(&pages).status().unwrap().success());
}
