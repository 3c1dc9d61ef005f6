//! The versions of the protocol. A daemon supports its own version and the three before it.

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// Slurm 24.11. All releases up to 26.05 support it.
    V42,
    /// Slurm 25.05.
    V43,
    /// Slurm 25.11.
    V44,
    /// Slurm 26.05.
    V45,
}

impl Version {
    pub const NEWEST: Self = Self::V45;
    pub const ALL: [Self; 4] = [Self::V42, Self::V43, Self::V44, Self::V45];

    /// The number in a header.
    pub const fn wire(self) -> u16 {
        (match self {
            Self::V42 => 42,
            Self::V43 => 43,
            Self::V44 => 44,
            Self::V45 => 45,
        }) << 8
    }

    pub fn older(self) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|version| *version < self)
    }
}

#[cfg(test)]
mod tests {
    use super::Version;

    #[test]
    fn versions_have_this_wire_format() {
        assert_eq!([Version::V42, Version::V45].map(Version::wire), [10_752, 11_520]);
    }

    #[test]
    fn all_versions_follow_from_the_newest() {
        let tried: Vec<_> = std::iter::successors(Some(Version::NEWEST), |version| version.older()).collect();
        assert_eq!(tried, [Version::V45, Version::V44, Version::V43, Version::V42]);
    }
}
