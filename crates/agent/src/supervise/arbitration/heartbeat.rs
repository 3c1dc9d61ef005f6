//! The file in which the primary slurmctld shows that it is alive. Pure.
//!
//! It names the primary even where slurmctld's log level hides that. It is written every quarter of `SlurmctldTimeout`, so the
//! log shows it earlier.

/// Its name in `StateSaveLocation`.
pub const FILE: &str = "heartbeat";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heartbeat {
    /// In seconds, by the writer's clock.
    time: u64,
    /// The writer's index in Slurm's order.
    index: u64,
}

impl Heartbeat {
    /// Two big-endian numbers of eight bytes (Slurm 26.05).
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (time, index) = bytes.split_first_chunk()?;
        Some(Self {
            time: u64::from_be_bytes(*time),
            index: u64::from_be_bytes(index.try_into().ok()?),
        })
    }
}

/// Counts this host's heartbeats in one run of its slurmctld.
#[derive(Debug, Default)]
pub struct HeartbeatWatch {
    last: Option<Heartbeat>,
    own: u32,
}

impl HeartbeatWatch {
    pub fn restart(&mut self) {
        self.own = 0;
    }

    /// Takes the current heartbeat. Returns whether it shows that the slurmctld of this run is primary.
    pub fn observe(&mut self, beat: Option<Heartbeat>, own: usize) -> bool {
        let Some(beat) = beat.filter(|beat| self.last != Some(*beat)) else {
            return false;
        };
        let is_first = self.last.replace(beat).is_none();
        if is_first || u64::try_from(own) != Ok(beat.index) {
            return false;
        }
        self.own += 1;
        // The first may be the last one of the previous run. The second is not: we poll more often than slurmctld writes.
        self.own > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beat(time: u64, index: u64) -> Heartbeat {
        Heartbeat { time, index }
    }

    #[test]
    fn slurms_file_is_parsed() {
        let bytes = [0, 0, 0, 0, 0x6a, 0xfa, 0x6f, 0x0c, 0, 0, 0, 0, 0, 0, 0, 1];
        assert_eq!(Heartbeat::parse(&bytes), Some(beat(0x6afa_6f0c, 1)));
        for length in [0, 7, 8, 15] {
            assert_eq!(Heartbeat::parse(&bytes[..length]), None, "{length} bytes");
        }
        assert_eq!(Heartbeat::parse(&[0; 17]), None);
    }

    #[test]
    fn a_host_that_writes_repeatedly_is_primary() {
        let mut beats = HeartbeatWatch::default();
        assert!(!beats.observe(Some(beat(10, 1)), 1), "of a previous run");
        assert!(!beats.observe(Some(beat(12, 1)), 1), "this one may be of it, too");
        assert!(!beats.observe(Some(beat(12, 1)), 1), "the same");
        assert!(beats.observe(Some(beat(14, 1)), 1));
        assert!(!beats.observe(None, 1));
        assert!(beats.observe(Some(beat(16, 1)), 1));
    }

    #[test]
    fn heartbeats_of_a_previous_run_or_another_host_do_not_count() {
        let mut beats = HeartbeatWatch::default();
        for time in [10, 12, 14] {
            beats.observe(Some(beat(time, 1)), 1);
        }
        beats.restart();
        assert!(!beats.observe(Some(beat(16, 1)), 1), "the last one of the previous run");
        for time in [17, 19, 21] {
            assert!(!beats.observe(Some(beat(time, 0)), 1));
        }
    }
}
