//! Observes from inside a pod or its network when a value changes. Both use the clock of the machine, so that reporting
//! delays are not measured.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use testbed::harness::Namespace;

/// A program that prints each new value with the time of its first observation.
#[derive(Debug)]
pub(crate) struct Observer {
    shell: Child,
    seen: Receiver<(SystemTime, String)>,
}

impl Observer {
    /// Polls the output of a shell command, with a pause of this many seconds.
    pub(crate) fn start(namespace: &Namespace, pod: &str, line: &str, pause: f32) -> Result<Self> {
        // It exits by itself, because nothing ends it when `kubectl exec` has exited.
        let script = format!(
            r#"last=; while [ "$SECONDS" -lt 1800 ]; do now=$({line}); [ "$now" = "$last" ] || echo "$EPOCHREALTIME $now"; last=$now; sleep {pause}; done"#
        );
        let mut exec = namespace.kubectl(&["exec"]);
        exec.args(pod.split(' ')).args(["--", "bash", "-c", &script]);
        Self::of(exec)
    }

    /// Reads times and values from the output of a program.
    pub(crate) fn of(mut program: Command) -> Result<Self> {
        let mut shell = program.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let output = shell.stdout.take().context("there is no output")?;
        let (sender, seen) = channel();
        thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines
                .filter_map(|line| parse(&line))
                .try_for_each(|seen| sender.send(seen))
        });
        Ok(Self { shell, seen })
    }

    /// Time of the first observation of the value.
    pub(crate) fn wait_for(&self, value: &str, timeout: Duration) -> Result<SystemTime> {
        self.wait_until(value, timeout, |seen| seen == value)
    }

    /// Time of the first observation of a matching value.
    pub(crate) fn wait_until(
        &self,
        what: &str,
        timeout: Duration,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<SystemTime> {
        loop {
            let (at, seen) = self
                .seen
                .recv_timeout(timeout)
                .with_context(|| format!("{what:?} was not seen"))?;
            if wanted(&seen) {
                return Ok(at);
            }
        }
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

/// `1700000000.123456 value`
fn parse(line: &str) -> Option<(SystemTime, String)> {
    let (at, value) = line.split_once(' ')?;
    let at = Duration::try_from_secs_f64(at.parse().ok()?).ok()?;
    Some((UNIX_EPOCH + at, value.to_owned()))
}
