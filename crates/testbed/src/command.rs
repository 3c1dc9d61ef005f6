//! Runs other programs. An error contains the command and its output.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// Timeout of a command: a `kubectl` that hangs must fail its test, not block the whole run.
const TIMEOUT: Duration = Duration::from_mins(5);

/// For builds and downloads, whose duration depends on the machine and its network.
const LONG: Duration = Duration::from_hours(1);

/// Runs a command and returns its standard output. A non-zero exit is an error with the last lines of both streams.
pub fn output(command: &mut Command) -> Result<String> {
    finish(command, None, TIMEOUT)
}

pub fn output_with_input(command: &mut Command, input: &str) -> Result<String> {
    finish(command, Some(input), TIMEOUT)
}

pub fn long_output(command: &mut Command) -> Result<String> {
    finish(command, None, LONG)
}

fn finish(command: &mut Command, input: Option<&str>, timeout: Duration) -> Result<String> {
    let shown = shown(command);
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    // Its own process group, so that its children can be killed with it.
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().with_context(|| format!("cannot run {shown}"))?;
    if let (Some(input), Some(mut pipe)) = (input, child.stdin.take()) {
        // A program that exits without reading its input reports its own error.
        let _ = pipe.write_all(input.as_bytes());
    }
    let group = Pid::from_raw(i32::try_from(child.id())?);
    let (ended, end) = channel::<()>();
    let watch = thread::spawn(move || {
        let late = end.recv_timeout(timeout) == Err(RecvTimeoutError::Timeout);
        late && killpg(group, Signal::SIGKILL).is_ok()
    });
    let output = child.wait_with_output();
    drop(ended);
    let killed = watch.join().unwrap_or_default();
    let output = output?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let outcome = if killed {
            format!("ended by us, it took longer than {timeout:?}")
        } else {
            output.status.to_string()
        };
        bail!("{shown}: {outcome}\n{}", last_lines(&format!("{stdout}{stderr}"), 30));
    }
    Ok(stdout)
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let line = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    line.chars().take(300).collect()
}

pub fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines
        .get(lines.len().saturating_sub(count)..)
        .unwrap_or_default()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_the_command_and_its_last_lines() {
        let error = output(Command::new("sh").args(["-c", "echo out; echo 'no disk' >&2; exit 3"])).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("sh -c") && text.contains("no disk") && text.contains('3'),
            "{text}"
        );
    }

    #[test]
    fn a_hanging_command_is_killed_with_its_children() {
        let mut hangs = Command::new("sh");
        hangs.args(["-c", "echo so far; sleep 1000 | cat"]);
        let error = finish(&mut hangs, None, Duration::from_millis(100)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("longer than 100ms") && text.contains("so far"), "{text}");
    }

    #[test]
    fn input_is_passed_on() {
        assert_eq!(output_with_input(&mut Command::new("cat"), "hello").unwrap(), "hello");
    }
}
