use std::fmt;

/// The supported versions of Slurm's data parser, in the order in which they are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ApiVersion {
    /// Slurm 26.05.
    V45,
    /// Slurm 25.11 and 26.05.
    V44,
}

impl ApiVersion {
    pub const ALL: [Self; 2] = [Self::V45, Self::V44];
}

impl fmt::Display for ApiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V45 => "v0.0.45",
            Self::V44 => "v0.0.44",
        })
    }
}
