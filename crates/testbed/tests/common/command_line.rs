//! The `testbed` command for a cluster of the tests.

use std::process::Command;

use testbed::cluster::Cluster;

pub fn testbed(cluster: &Cluster) -> Command {
    let mut command = Command::new(testbed::sibling("testbed").unwrap());
    command.args(["--cluster", &cluster.layout.cluster]);
    command
}
