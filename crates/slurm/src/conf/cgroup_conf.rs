/// The cgroup.conf of a cluster whose user brings none.
pub fn render_cgroup_conf() -> String {
    // A container has no systemd to ask for scopes.
    "CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\n".to_owned()
}
