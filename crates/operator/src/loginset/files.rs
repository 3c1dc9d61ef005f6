//! The files of sshd and sssd in login pods. Pure.

use api::{LoginSet, wellknown};

/// Holds a pipe while sshd has to wait for sackd (`initconf.sh`, `reload.sh`), and nothing afterwards. Only root may write
/// it: its content is part of sshd_config.
pub(super) const WAIT_DIR: &str = "/etc/ssh/wait.d";

/// Authentication by a password, which is refused unless the user's lines say otherwise. With PAM, a keyboard-interactive
/// login asks for the same password.
const BY_PASSWORD: [&str; 2] = ["PasswordAuthentication", "KbdInteractiveAuthentication"];

/// Renders sshd_config: upstream's text except for the waiting at the beginning and the refusal of passwords.
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
    // sshd takes the first value: files in sshd_config.d come before these lines, so they can allow passwords too.
    let refused = BY_PASSWORD.map(|keyword| (keyword, format!("{keyword} no")));
    for (keyword, line) in &refused {
        if !sets(extra, keyword) {
            lines.push(line);
        }
    }
    lines.extend(["#", "### EXTRA CONFIG ###", extra, ""]);
    lines.join("\n")
}

/// Whether sshd_config sets a keyword for everybody, that is before the first `Match`. Keywords are case-insensitive.
fn sets(config: &str, keyword: &str) -> bool {
    let words = config
        .lines()
        .filter_map(|line| line.split([' ', '\t', '=']).find(|word| !word.is_empty()));
    let mut words = words.take_while(|word| !word.eq_ignore_ascii_case("Match"));
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
        assert!(render_sshd_config(&with(""), 2222).contains("\nPort 2222\n"));
        assert!(!render_sshd_config(&with("port=22"), 2222).contains("Port 2222"));
    }

    #[test]
    fn passwords_are_refused_unless_the_user_allows_them() {
        let refuses = |extra: &str| {
            let config = render_sshd_config(&with(extra), 22);
            BY_PASSWORD.map(|keyword| config.contains(&format!("\n{keyword} no\n")))
        };
        assert_eq!(refuses(""), [true, true]);
        assert_eq!(refuses("passwordauthentication yes"), [false, true]);
        assert_eq!(refuses("KbdInteractiveAuthentication=yes"), [true, false]);
        assert_eq!(refuses("Match User alice\n  PasswordAuthentication yes"), [true, true]);
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
