//! States of nodes that power saving starts and stops, as Slurm 26.05.5 showed them.

use slurm::NodeState;

#[test]
fn a_node_is_stopped_starting_or_up() {
    for (shown, off, starting) in [
        ("IDLE+CLOUD+DYNAMIC_NORM+POWERED_DOWN", true, false),
        ("ALLOCATED+CLOUD+DYNAMIC_NORM+NOT_RESPONDING+POWERING_UP", false, true),
        ("MIXED+CLOUD+DYNAMIC_NORM", false, false),
        // After `scontrol power down force`, for some seconds.
        ("IDLE+CLOUD+DYNAMIC_NORM+POWER_DOWN+NOT_RESPONDING", false, false),
        ("IDLE+CLOUD+DYNAMIC_NORM+POWERING_DOWN", true, false),
        // It did not register within ResumeTimeout.
        ("DOWN+CLOUD+DYNAMIC_NORM+POWERED_DOWN", true, false),
    ] {
        let state = NodeState::of_names(shown.split('+'));
        assert!(state.is_cloud() && state.is_dynamic(), "{shown}");
        assert_eq!((state.is_off(), state.is_starting()), (off, starting), "{shown}");
    }
}
