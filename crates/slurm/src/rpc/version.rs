//! The releases of the protocol. A daemon understands its own and the three before it.

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// Slurm 24.11. All releases up to 26.05 understand it.
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

    /// As it is written in a header.
    pub const fn wire(self) -> u16 {
        (match self {
            Self::V42 => 42,
            Self::V43 => 43,
            Self::V44 => 44,
            Self::V45 => 45,
        }) << 8
    }

    pub const fn older(self) -> Option<Self> {
        match self {
            Self::V42 => None,
            Self::V43 => Some(Self::V42),
            Self::V44 => Some(Self::V43),
            Self::V45 => Some(Self::V44),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Version;

    #[test]
    fn versions_look_like_this_on_the_wire() {
        assert_eq!([Version::V42, Version::V45].map(Version::wire), [10_752, 11_520]);
    }

    #[test]
    fn from_the_newest_all_are_tried() {
        let tried: Vec<_> = std::iter::successors(Some(Version::NEWEST), |version| version.older()).collect();
        assert_eq!(tried, [Version::V45, Version::V44, Version::V43, Version::V42]);
    }
}
