//! The `testbed` command on the tests' cluster.

use std::process::Command;

use testbed::paths::Layout;

pub fn testbed() -> Command {
    let mut command = Command::new(testbed::sibling("testbed").unwrap());
    command.args(["--cluster", &Layout::test_cluster()]);
    command
}
