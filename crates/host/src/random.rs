//! Random numbers from the host's random bytes.

use crate::Host;

/// Random numbers of one host.
#[derive(Debug, Clone, Copy)]
pub struct Random<'a>(pub(crate) &'a Host);

impl Random<'_> {
    /// Any of the 64-bit numbers.
    pub fn u64(self) -> u64 {
        let mut bytes = [0; 8];
        self.0.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// At least 0 and less than 1.
    #[allow(clippy::cast_precision_loss, reason = "53 bits fit")]
    pub fn fraction(self) -> f64 {
        const BITS: u32 = f64::MANTISSA_DIGITS;
        (self.u64() >> (u64::BITS - BITS)) as f64 / (1_u64 << BITS) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_at_least_zero_and_less_than_one() {
        let host = Host::real();
        for _ in 0..1000 {
            let fraction = host.random().fraction();
            assert!((0.0..1.0).contains(&fraction), "{fraction}");
        }
    }
}
