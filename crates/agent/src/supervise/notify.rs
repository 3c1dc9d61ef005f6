//! The messages of the notify protocol, `sd_notify(3)`: lines of `KEY=value`.

use nix::unistd::Pid;

/// The fields of a message that matter for Slurm. The response to `BARRIER=1` is to close the descriptor that comes with it,
/// whatever the text says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Message {
    pub ready: bool,
    pub main_pid: Option<Pid>,
    pub status: Option<String>,
}

impl Message {
    /// Never fails: unknown fields belong to another version.
    pub fn parse(datagram: &[u8]) -> Self {
        let text = String::from_utf8_lossy(datagram);
        let mut message = Self::default();
        for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
            match key {
                "READY" => message.ready = value == "1",
                // 0 and negative numbers mean process groups to kill(2), 1 is a container's init.
                "MAINPID" => message.main_pid = value.parse().ok().filter(|pid| *pid > 1).map(Pid::from_raw),
                "STATUS" => message.status = Some(value.to_owned()),
                _ => {}
            }
        }
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reconfigure_names_the_new_main_process() {
        let message = Message::parse(b"READY=1\nMAINPID=4711");
        assert_eq!(message.main_pid, Some(Pid::from_raw(4711)));
        assert!(message.ready);
    }

    #[test]
    fn a_status_is_kept_with_its_equals_signs() {
        let message = Message::parse(b"STATUS=a=b\n");
        assert_eq!(message.status.as_deref(), Some("a=b"));
    }

    #[test]
    fn a_pid_that_would_signal_a_group_or_init_is_ignored() {
        for text in [
            "MAINPID=0",
            "MAINPID=-1",
            "MAINPID=1",
            "MAINPID=",
            "MAINPID=99999999999",
            "MAINPID=12x",
        ] {
            assert_eq!(Message::parse(text.as_bytes()).main_pid, None, "{text}");
        }
    }

    #[test]
    fn unknown_fields_are_ignored() {
        assert_eq!(Message::parse(b"BARRIER=1"), Message::default());
        assert_eq!(Message::parse(b"\xff\xfe\0garbage\n\n=\n"), Message::default());
    }
}
