//! The files of sshd and sssd in login pods. Pure.

use api::{LoginSet, wellknown};

/// Holds a pipe while sshd has to wait for sackd (`initconf.sh`, `reload.sh`), and nothing afterwards. Only root may write
/// it: its content is part of sshd_config.
pub(super) const WAIT_DIR: &str = "/etc/ssh/wait.d";

/// Renders sshd_config: upstream's text except for the first lines.
pub(super) fn render_sshd_config(login_set: &LoginSet, port: i64) -> String {
    let extra = login_set.spec.extra_sshd_config.as_deref().unwrap_or_default();
    let wait = format!("Include {WAIT_DIR}/*");
    let mut lines = vec![
        "#",
        "### GENERAL ###",
        "# sshd waits here for sackd. The directory is empty once sackd runs.",
        &wait,
        "Include /etc/ssh/sshd_config.d/*.conf",
        "UsePAM yes",
        "X11Forwarding yes",
        "Subsystem sftp internal-sftp",
    ];
    // sshd has to listen on the container's port.
    let listen = format!("Port {port}");
    if port != i64::from(wellknown::SSH_PORT) && !sets(extra, "Port") {
        lines.push(&listen);
    }
    lines.extend(["#", "### EXTRA CONFIG ###", extra, ""]);
    lines.join("\n")
}

/// Whether sshd_config sets a keyword. Keywords are case-insensitive.
fn sets(config: &str, keyword: &str) -> bool {
    let mut words = config
        .lines()
        .filter_map(|line| line.split([' ', '\t', '=']).find(|word| !word.is_empty()));
    words.any(|word| word.eq_ignore_ascii_case(keyword))
}

/// Renders root's authorized_keys: upstream's text.
pub(super) fn render_authorized_keys(login_set: &LoginSet) -> String {
    let keys = login_set.spec.root_ssh_authorized_keys.as_deref().unwrap_or_default();
    ["#", "### SLINKY ###", keys, ""].join("\n")
}

/// Returns why sssd cannot read an sssd.conf. A pod would start with it, but without any users.
pub(super) fn check_sssd_conf(bytes: &[u8]) -> Option<String> {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return Some("is not text".to_owned());
    };
    let mut begun = false;
    for (line, number) in text.lines().zip(1..) {
        let is_section = line.trim_end().starts_with('[') && line.trim_end().ends_with(']');
        let is_continued = line.starts_with([' ', '\t']);
        let is_comment = line.trim().is_empty() || line.starts_with(['#', ';']);
        let is_setting = begun && (line.contains('=') || is_continued);
        if !(is_section || is_comment || is_setting) {
            return Some(format!(
                "has {line:?} in line {number}, where a [section] or key = value should be"
            ));
        }
        begun |= is_section;
    }
    (!begun).then(|| "has no section".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(extra: &str) -> LoginSet {
        LoginSet {
            spec: api::LoginSetSpec {
                extra_sshd_config: Some(extra.to_owned()),
                ..api::LoginSetSpec::default()
            },
            ..LoginSet::default()
        }
    }

    #[test]
    fn sshd_listens_on_the_containers_port() {
        assert!(!render_sshd_config(&with(""), 22).contains("Port"));
        assert!(render_sshd_config(&with(""), 2222).contains("\nPort 2222\n#"));
        assert!(!render_sshd_config(&with("port=22"), 2222).contains("Port 2222"));
    }

    #[test]
    fn sshd_waits_for_sackd_first() {
        let config = render_sshd_config(&with("Include /run/mine"), 22);
        let first = config.lines().find(|line| !line.starts_with('#'));
        assert_eq!(first, Some("Include /etc/ssh/wait.d/*"));
    }

    #[test]
    fn an_unreadable_sssd_conf_is_found() {
        let good = "# x\n[sssd]\nservices = nss,\n  pam\n\n[domain/LDAP]\nid_provider=ldap\n";
        assert_eq!(check_sssd_conf(good.as_bytes()), None);
        for (bad, words) in [
            (&b""[..], "has no section"),
            (b"\xff", "is not text"),
            (b"services = nss\n", "\"services = nss\" in line 1"),
            (b"[sssd]\nservices\n", "\"services\" in line 2"),
        ] {
            assert!(check_sssd_conf(bad).unwrap().contains(words), "{words}");
        }
    }
}
