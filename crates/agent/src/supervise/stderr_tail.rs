//! The last lines that a daemon wrote to standard error, which say why it died.

use std::collections::VecDeque;
use std::fmt;

/// A Slurm daemon reports a fatal error in one to three lines; the rest is what led to it.
const LINES: usize = 20;
/// Longer lines are cut: they are quoted in log lines and conditions.
const LINE_BYTES: usize = 1024;

#[derive(Debug, Default)]
pub struct StderrTail {
    lines: VecDeque<Vec<u8>>,
    /// The last line is incomplete: the next bytes belong to it.
    open: bool,
}

impl StderrTail {
    pub fn clear(&mut self) {
        self.lines.clear();
        self.open = false;
    }

    pub fn push(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let ends = piece.last() == Some(&b'\n');
            let text = piece.strip_suffix(b"\n").unwrap_or(piece);
            if !self.open {
                if self.lines.len() == LINES {
                    self.lines.pop_front();
                }
                self.lines.push_back(Vec::new());
            }
            if let Some(line) = self.lines.back_mut() {
                let room = LINE_BYTES - line.len();
                line.extend(text.iter().take(room));
            }
            self.open = !ends;
        }
    }

    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.lines.iter().map(|line| String::from_utf8_lossy(line).into_owned())
    }
}

impl fmt::Display for StderrTail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, line) in self.lines().enumerate() {
            let separator = if n == 0 { "" } else { " | " };
            write!(f, "{separator}{line}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_may_arrive_in_pieces() {
        let mut tail = StderrTail::default();
        for piece in ["fat", "al: no", " key\nerr", "or"] {
            tail.push(piece.as_bytes());
        }
        assert_eq!(tail.to_string(), "fatal: no key | error");
    }

    #[test]
    fn only_the_last_lines_are_kept() {
        let mut tail = StderrTail::default();
        for n in 0..100 {
            tail.push(format!("{n}\n").as_bytes());
        }
        let lines: Vec<_> = tail.lines().collect();
        assert_eq!(lines.len(), LINES);
        assert_eq!(lines.first().map(String::as_str), Some("80"));
        assert_eq!(lines.last().map(String::as_str), Some("99"));
    }

    #[test]
    fn a_line_without_end_does_not_fill_the_memory() {
        let mut tail = StderrTail::default();
        for _ in 0..100 {
            tail.push(&[b'x'; 4096]);
        }
        assert_eq!(tail.to_string().len(), LINE_BYTES);
    }
}
