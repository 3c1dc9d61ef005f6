//! Buffers the daemon's output up to the end of a line: the supervisor writes to the same stream, and lines must not mix.

/// A longer line is forwarded in pieces of this size.
const LONGEST: usize = 8192;

#[derive(Debug, Default)]
pub struct LineBuffer {
    held: Vec<u8>,
}

impl LineBuffer {
    /// Returns the complete lines; an incomplete one is held back.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.held.extend_from_slice(bytes);
        let ready = match self.held.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => end + 1,
            None if self.held.len() >= LONGEST => self.held.len(),
            None => 0,
        };
        let rest = self.held.split_off(ready);
        std::mem::replace(&mut self.held, rest)
    }

    /// Returns the incomplete line, completed; empty if there is none.
    pub fn take(&mut self) -> Vec<u8> {
        if !self.held.is_empty() {
            self.held.push(b'\n');
        }
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incomplete_line_waits_for_its_end() {
        let mut buffer = LineBuffer::default();
        assert_eq!(buffer.push(b"one\ntw"), b"one\n");
        assert_eq!(buffer.push(b"o"), b"");
        assert_eq!(buffer.push(b"\nthree"), b"two\n");
        assert_eq!(buffer.take(), b"three\n");
        assert_eq!(buffer.take(), b"");
    }

    #[test]
    fn a_line_without_end_is_not_held_forever() {
        let mut buffer = LineBuffer::default();
        assert_eq!(buffer.push(&[b'x'; LONGEST]).len(), LONGEST);
    }
}
