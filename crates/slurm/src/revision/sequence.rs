use thiserror::Error;

/// A cluster whose configuration changes once a second has this many revisions after 35 million years. A higher sequence is
/// damage or an attack, and counting on from it could overflow.
pub const MAX_SEQUENCE: u64 = 1 << 50;

/// How far the next revision may be ahead of the live one. Sequences that were never live are those of rejected revisions,
/// which are tried again no more often than every ten minutes.
pub const MAX_JUMP: u64 = 1_000_000;

/// A sequence that no series of changes leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Implausible {
    #[error("sequence {0} is above the maximum of {MAX_SEQUENCE}")]
    TooHigh(u64),
    #[error("sequence {sequence} is more than {MAX_JUMP} above {live}, that of the live revision")]
    Jump { sequence: u64, live: u64 },
}

/// Returns the sequence after the highest known one.
pub fn next_sequence(highest: u64) -> Result<u64, Implausible> {
    if highest >= MAX_SEQUENCE {
        return Err(Implausible::TooHigh(highest));
    }
    Ok(highest + 1)
}

/// Checks that a sequence can have been reached from the live one.
pub fn check_jump(sequence: u64, live: u64) -> Result<(), Implausible> {
    if sequence > live.saturating_add(MAX_JUMP) {
        return Err(Implausible::Jump { sequence, live });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_sequence_overflows() {
        assert_eq!(next_sequence(0), Ok(1));
        assert_eq!(next_sequence(MAX_SEQUENCE - 1), Ok(MAX_SEQUENCE));
        for highest in [MAX_SEQUENCE, u64::MAX] {
            assert_eq!(next_sequence(highest), Err(Implausible::TooHigh(highest)));
        }
    }

    #[test]
    fn a_sequence_does_not_jump() {
        for (sequence, live, good) in [
            (8, 7, true),
            (3, 7, true),
            (7 + MAX_JUMP, 7, true),
            (8 + MAX_JUMP, 7, false),
            (u64::MAX, u64::MAX, true),
        ] {
            assert_eq!(check_jump(sequence, live).is_ok(), good, "{sequence} {live}");
        }
    }
}
