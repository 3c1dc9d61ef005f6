//! The release of Slurm in the images. Each is that of a Debian suite.

use anyhow::{Result, bail};

/// The variable that chooses the release for clusters that are brought up, and for the tests on them.
pub const VARIABLE: &str = "TESTBED_SLURM";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// That of the charts' default images.
    Current,
    V24_11,
}

impl Release {
    /// The release that the environment chooses.
    pub fn chosen() -> Result<Self> {
        Self::parse(std::env::var(VARIABLE).unwrap_or_default().as_str())
    }

    fn parse(name: &str) -> Result<Self> {
        match name {
            "" | "26.05" => Ok(Self::Current),
            "24.11" => Ok(Self::V24_11),
            other => bail!("there are no images of Slurm {other:?}; {VARIABLE} is 26.05 or 24.11"),
        }
    }

    /// The suite with the packages, and one for those that images/base/sid.pref names.
    pub(crate) fn suites(self) -> &'static [&'static str] {
        match self {
            Self::Current => &["forky", "sid"],
            Self::V24_11 => &["trixie"],
        }
    }

    /// Tags of the stock images that charts, examples and users' manifests name. All of them get the Slurm that the root has.
    pub(crate) fn tags(self) -> &'static [&'static str] {
        match self {
            Self::Current => &[
                "26.05-ubuntu26.04",
                "26.05-rockylinux9",
                "25.11-ubuntu24.04",
                "25.05-rockylinux9",
            ],
            Self::V24_11 => &["24.11-ubuntu24.04"],
        }
    }

    /// The tag that clusters of tests have to name. `None` if it is the default of operator and charts.
    pub fn tag(self) -> Option<&'static str> {
        match self {
            Self::Current => None,
            Self::V24_11 => self.tags().first().copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Release;

    #[test]
    fn an_unknown_release_is_refused() {
        assert_eq!(Release::parse("").unwrap(), Release::Current);
        assert_eq!(Release::parse("24.11").unwrap(), Release::V24_11);
        let error = Release::parse("23.02").unwrap_err().to_string();
        assert!(error.contains("26.05 or 24.11"), "{error}");
    }
}
