//! Running other programs: one way that turns a failure into an error which says what was run and what it answered.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Runs to the end and returns standard output; a non-zero exit is an error with the last lines of both streams.
pub fn output(command: &mut Command) -> Result<String> {
    finish(command, None)
}

pub fn output_with_input(command: &mut Command, input: &str) -> Result<String> {
    finish(command, Some(input))
}

fn finish(command: &mut Command, input: Option<&str>) -> Result<String> {
    let shown = shown(command);
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot run {shown}"))?;
    if let (Some(input), Some(mut pipe)) = (input, child.stdin.take()) {
        // A program that ends without reading its input says why by itself.
        let _ = pipe.write_all(input.as_bytes());
    }
    let output = child.wait_with_output()?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{shown}: {}\n{}",
            output.status,
            last_lines(&format!("{stdout}{stderr}"), 30)
        );
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
    fn a_failure_names_the_command_and_its_last_words() {
        let error = output(Command::new("sh").args(["-c", "echo out; echo 'no disk' >&2; exit 3"])).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("sh -c") && text.contains("no disk") && text.contains('3'),
            "{text}"
        );
    }

    #[test]
    fn input_is_passed_on() {
        assert_eq!(output_with_input(&mut Command::new("cat"), "hello").unwrap(), "hello");
    }
}
