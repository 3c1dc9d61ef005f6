//! Runs the tests with [`any_spec`](super::any_spec) once more, in a process that the kernel ends if they take too much.

use std::process::Command;

/// Of the address space, in KiB. The chart gives the operator 512 MiB; threads and this binary reserve more than they use.
const MEMORY: u32 = 1 << 20;
/// Of the CPU, for all tests together. They take a few seconds.
const SECONDS: u32 = 60;

/// Finds a plan of NodeSets that allocates 32 KiB for each replica: such a defect was planted, and found in each of nine runs.
#[test]
fn no_manifest_takes_much_memory_or_time() {
    let limits = format!("ulimit -v {MEMORY} -t {SECONDS}; exec \"$0\" \"$@\"");
    let tests = ["no_manifest_makes_a_plan_panic", "no_manifest_makes_a_review_panic"];
    let ran = Command::new("bash")
        .args(["-c", &limits])
        .arg(std::env::current_exe().unwrap())
        .args(tests)
        .arg("--test-threads=1")
        .output()
        .unwrap();
    let (said, errors) = (
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr),
    );
    assert!(ran.status.success(), "{}\n{said}\n{errors}", ran.status);
    let passed = said.lines().filter(|line| line.ends_with("... ok")).count();
    // One for each kind, and the webhook's.
    assert_eq!(passed, 8, "{said}");
}
