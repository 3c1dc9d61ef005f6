/// Returns the cgroup.conf of a cluster whose user provides none.
pub fn render_cgroup_conf() -> String {
    // A container has no systemd that could create scopes.
    "CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\n".to_owned()
}
