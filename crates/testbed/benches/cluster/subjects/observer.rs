//! Sees from inside a pod or its network when a value changes. Both read the machine's own clock, so what it takes to tell us is in
//! no figure.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use testbed::harness::Namespace;

/// A program that tells each new value and when it was seen first.
#[derive(Debug)]
pub(crate) struct Observer {
    shell: Child,
    seen: Receiver<(SystemTime, String)>,
}

impl Observer {
    /// Looks at what a shell line prints, again and again with a pause of so many seconds.
    pub(crate) fn start(namespace: &Namespace, pod: &str, line: &str, pause: f32) -> Result<Self> {
        // It ends by itself, since nothing ends it when `kubectl exec` is gone.
        let script = format!(
            r#"last=; while [ "$SECONDS" -lt 1800 ]; do now=$({line}); [ "$now" = "$last" ] || echo "$EPOCHREALTIME $now"; last=$now; sleep {pause}; done"#
        );
        let mut exec = namespace.kubectl(&["exec"]);
        exec.args(pod.split(' ')).args(["--", "bash", "-c", &script]);
        Self::of(exec)
    }

    /// Looks at what a program prints: times and values.
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

    /// When the value was seen first.
    pub(crate) fn wait_for(&self, value: &str, patience: Duration) -> Result<SystemTime> {
        self.wait_until(value, patience, |seen| seen == value)
    }

    /// When a value was seen first that is as wanted.
    pub(crate) fn wait_until(
        &self,
        what: &str,
        patience: Duration,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<SystemTime> {
        loop {
            let (at, seen) = self
                .seen
                .recv_timeout(patience)
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
