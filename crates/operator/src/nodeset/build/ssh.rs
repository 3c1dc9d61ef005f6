//! sshd_config and sssd.conf of workers. The kubelet never refreshes a file that is mounted with subPath, so sssd reads a
//! copy, which a script in the same container updates when the Secret changes.

use api::{NodeSet, overlay::ContainerOverlay, references::SecretKeyRef, wellknown};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{
    pod::{OWNER_ONLY, projected},
    worker_labels,
};
use crate::template::{
    container::{default_pull_policy, user_image},
    metadata::owner,
};

/// Volume of the Secret.
const WANTED_VOLUME: &str = "sssd-conf";
/// Volume of the copy.
const USED_VOLUME: &str = "sssd-conf-used";
const INIT: &str = "sssd-conf";
const FILE: &str = "sssd.conf";
const PATH: &str = "/etc/sssd/sssd.conf";
const WANTED_DIR: &str = "/mnt/wanted/sssd";

const COPY: &str = "umask 077; cat /mnt/wanted/sssd/sssd.conf >/mnt/used/sssd.conf";
const FOLLOW: &str = concat!(
    include_str!("../../template/sssd_readable.sh"),
    "\n",
    include_str!("sssd.sh")
);
/// Kubernetes waits for the hook and for every process that shares its output.
const START: &str = r#"sh -c "$0" </dev/null >/dev/null 2>&1 &"#;

pub(super) fn sssd_volumes(reference: &SecretKeyRef) -> [Value; 2] {
    let item = json!({ "key": reference.key, "path": FILE, "mode": OWNER_ONLY });
    [
        projected(WANTED_VOLUME, "secret", &reference.name, &item),
        json!({ "name": USED_VOLUME, "emptyDir": { "medium": "Memory" } }),
    ]
}

fn wanted_mount() -> Value {
    json!({ "name": WANTED_VOLUME, "mountPath": WANTED_DIR, "readOnly": true })
}

/// Mounts of slurmd's container. Only the file of the copy is mounted: its directory would be writable for jobs.
pub(super) fn sssd_mounts() -> [Value; 2] {
    [
        json!({ "name": USED_VOLUME, "mountPath": PATH, "subPath": FILE }),
        wanted_mount(),
    ]
}

pub(super) fn post_start() -> Value {
    json!({ "exec": { "command": ["/usr/bin/sh", "-c", START, FOLLOW] } })
}

/// The container that makes the copy, which has to exist before it is mounted. It uses slurmd's image, which is pulled
/// anyway, and the resources of the logfile container, so that a pod whose containers all have limits stays one.
pub(super) fn init_container(nodeset: &NodeSet, default_image: &str) -> Value {
    let slurmd = nodeset.spec.slurmd.as_ref();
    let of = |container: Option<&ContainerOverlay>, field: &str| container.and_then(|given| given.get(field)).cloned();
    let policy = of(slurmd, "imagePullPolicy").or_else(|| default_pull_policy(slurmd).map(Value::from));
    json!({
        "name": INIT,
        "image": user_image(slurmd).unwrap_or(default_image),
        "imagePullPolicy": policy,
        "command": ["/usr/bin/sh", "-c", COPY],
        "resources": of(nodeset.spec.logfile.as_ref(), "resources"),
        "volumeMounts": [wanted_mount(), { "name": USED_VOLUME, "mountPath": "/mnt/used" }],
    })
}

/// Whether this worker follows changes of sssd.conf. Pods of upstream and older pods keep the file they started with.
pub fn takes_changed_sssd_conf(pod: &Pod) -> bool {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    volumes.into_iter().flatten().any(|volume| volume.name == USED_VOLUME)
}

/// Renders sshd_config as upstream does: its digest is on every pod. `None` without SSH.
pub(super) fn render_sshd_config(nodeset: &NodeSet) -> Option<String> {
    let extra = nodeset.spec.wanted_ssh()?.extra_sshd_config.as_deref();
    let lines = [
        "#",
        "### GENERAL ###",
        "Include /etc/ssh/sshd_config.d/*.conf",
        "UsePAM yes",
        "Subsystem sftp internal-sftp",
        "AuthenticationMethods publickey password",
        "#",
        "### EXTRA CONFIG ###",
        extra.unwrap_or_default(),
        "",
    ];
    Some(lines.join("\n"))
}

pub fn build_ssh_config_map(nodeset: &NodeSet) -> Option<Value> {
    let sshd_config = render_sshd_config(nodeset)?;
    Some(json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "namespace": nodeset.namespace(),
            "name": nodeset.child_names().ssh_config_map(),
            "labels": worker_labels(nodeset),
            "ownerReferences": [owner(nodeset)],
        },
        "immutable": false,
        "data": { (wellknown::SSHD_CONFIG_FILE): sshd_config },
    }))
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        path::Path,
        process::{Child, Command, Stdio},
        time::{Duration, Instant},
    };

    use super::*;

    const FIRST: &str = "[sssd]\nservices = nss\n";
    const SECOND: &str = "# x\n[sssd]\nservices = nss,\n  pam\n";

    struct Follower(Child);

    impl Drop for Follower {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Runs the script in a directory without sssd. Its output goes to a file.
    fn follow(dir: &Path) -> Follower {
        let at = |name: &str| dir.join(name).display().to_string();
        let script = FOLLOW
            .replace(WANTED_DIR, &at("wanted"))
            .replace(PATH, &at("used"))
            .replace("/proc/1", &at("nobody"))
            .replace("/proc/[0-9]*", &at("nobody"))
            .replace("sleep 2", "sleep 0.05");
        let said = fs::File::create(dir.join("said")).unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).stdout(said).stderr(Stdio::null());
        Follower(shell.spawn().unwrap())
    }

    /// Replaces the file as the kubelet does.
    fn bring(dir: &Path, text: &str) {
        fs::write(dir.join("next"), text).unwrap();
        fs::rename(dir.join("next"), dir.join("wanted/sssd.conf")).unwrap();
    }

    fn wait_for(what: &str, file: &Path, holds: impl Fn(&str) -> bool) {
        let begun = Instant::now();
        while !fs::read_to_string(file).is_ok_and(|text| holds(&text)) {
            assert!(begun.elapsed() < Duration::from_mins(1), "{what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_changed_file_is_used_unless_sssd_could_not_parse_it() {
        let dir = tempfile::tempdir().unwrap();
        let (used, said) = (dir.path().join("used"), dir.path().join("said"));
        fs::create_dir(dir.path().join("wanted")).unwrap();
        fs::write(&used, FIRST).unwrap();
        bring(dir.path(), FIRST);
        let _follower = follow(dir.path());
        bring(dir.path(), SECOND);
        wait_for("the second", &used, |text| text == SECOND);
        wait_for("it is told", &said, |text| text == "sssd.conf: in use\n");
        for (bad, times) in [("services = nss\n", 1), ("[sssd]\nservices\n", 2)] {
            bring(dir.path(), bad);
            wait_for(bad, &said, |text| text.matches("refused").count() == times);
            assert_eq!(fs::read_to_string(&used).unwrap(), SECOND);
        }
        bring(dir.path(), FIRST);
        wait_for("the first again", &used, |text| text == FIRST);
    }
}
