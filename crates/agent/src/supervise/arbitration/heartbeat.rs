//! The file by which the slurmctld in charge shows that it lives. Pure.
//!
//! It tells who is in charge also where slurmctld's log is set to say too little. It is written every quarter of
//! `SlurmctldTimeout`, so the log knows earlier.

/// Its name in `StateSaveLocation`.
pub const FILE: &str = "heartbeat";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heartbeat {
    /// In seconds, by the clock of who wrote it.
    time: u64,
    /// Of the host in Slurm's order.
    index: u64,
}

impl Heartbeat {
    /// Two numbers of eight bytes, the highest byte first (as 26.05 writes it).
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (time, index) = bytes.split_first_chunk()?;
        Some(Self {
            time: u64::from_be_bytes(*time),
            index: u64::from_be_bytes(index.try_into().ok()?),
        })
    }
}

/// How often this host was seen to beat in one life of its slurmctld.
#[derive(Debug, Default)]
pub struct Beats {
    last: Option<Heartbeat>,
    own: u32,
}

impl Beats {
    pub fn begin_life(&mut self) {
        self.own = 0;
    }

    /// Takes what is there now. True if it shows that the slurmctld of this life is in charge.
    pub fn look(&mut self, beat: Option<Heartbeat>, own: usize) -> bool {
        let Some(beat) = beat.filter(|beat| self.last != Some(*beat)) else {
            return false;
        };
        let is_first_look = self.last.replace(beat).is_none();
        if is_first_look || u64::try_from(own) != Ok(beat.index) {
            return false;
        }
        self.own += 1;
        // The last beat of the life before may be seen in this one. A second one cannot be: we look more often than it beats.
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
    fn slurms_file_is_understood() {
        let bytes = [0, 0, 0, 0, 0x6a, 0xfa, 0x6f, 0x0c, 0, 0, 0, 0, 0, 0, 0, 1];
        assert_eq!(Heartbeat::parse(&bytes), Some(beat(0x6afa_6f0c, 1)));
        for length in [0, 7, 8, 15] {
            assert_eq!(Heartbeat::parse(&bytes[..length]), None, "{length} bytes");
        }
        assert_eq!(Heartbeat::parse(&[0; 17]), None);
    }

    #[test]
    fn who_beats_again_and_again_is_in_charge() {
        let mut beats = Beats::default();
        assert!(!beats.look(Some(beat(10, 1)), 1), "of a life before");
        assert!(!beats.look(Some(beat(12, 1)), 1), "this one may be too");
        assert!(!beats.look(Some(beat(12, 1)), 1), "the same");
        assert!(beats.look(Some(beat(14, 1)), 1));
        assert!(!beats.look(None, 1));
        assert!(beats.look(Some(beat(16, 1)), 1));
    }

    #[test]
    fn a_new_life_and_the_others_beats_are_no_charge() {
        let mut beats = Beats::default();
        for time in [10, 12, 14] {
            beats.look(Some(beat(time, 1)), 1);
        }
        beats.begin_life();
        assert!(!beats.look(Some(beat(16, 1)), 1), "the last of the life before");
        for time in [17, 19, 21] {
            assert!(!beats.look(Some(beat(time, 0)), 1));
        }
    }
}
