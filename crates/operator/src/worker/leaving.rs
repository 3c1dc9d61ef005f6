//! Why and since when a worker is leaving, as the annotation on its pod has it.

use std::{fmt, str::FromStr};

use jiff::Timestamp;

/// Why a worker is leaving.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The NodeSet has more workers than desired.
    ScaleIn,
    /// It was created in the other scaling mode.
    OtherMode,
    /// Its Kubernetes node does not match the NodeSet.
    Unfit,
    /// It is of an older revision.
    Update,
    /// Its NodeSet is deleted.
    Deletion,
}

impl Cause {
    const ALL: [Self; 5] = [
        Self::ScaleIn,
        Self::OtherMode,
        Self::Unfit,
        Self::Update,
        Self::Deletion,
    ];

    /// Returns the text in the annotation.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ScaleIn => "scale-in",
            Self::OtherMode => "other-mode",
            Self::Unfit => "unfit",
            Self::Update => "update",
            Self::Deletion => "deletion",
        }
    }

    /// Returns the text in drain reasons and messages.
    pub fn purpose(self) -> &'static str {
        match self {
            Self::ScaleIn => "scale-in",
            Self::OtherMode => "another scaling mode",
            Self::Unfit => "its Kubernetes node, where it should not be",
            Self::Update => "an update",
            Self::Deletion => "deletion of its NodeSet",
        }
    }
}

/// The annotation of a leaving worker. It is written before anything else happens, so that the next leader continues with the same
/// worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaving {
    pub cause: Cause,
    pub since: Timestamp,
}

impl fmt::Display for Leaving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:.0}", self.cause.as_str(), self.since)
    }
}

impl FromStr for Leaving {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (cause, since) = text.split_once(' ').ok_or(())?;
        let cause = Cause::ALL.into_iter().find(|known| known.as_str() == cause).ok_or(())?;
        let since = since.parse().map_err(|_| ())?;
        Ok(Self { cause, since })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_annotation_parses_what_it_displays() {
        for cause in Cause::ALL {
            let leaving = Leaving {
                cause,
                since: "2026-01-01T00:00:00Z".parse().unwrap(),
            };
            assert_eq!(leaving.to_string().parse(), Ok(leaving));
        }
        for text in [
            "",
            "update",
            "update ",
            "update yesterday",
            "lunch 2026-01-01T00:00:00Z",
        ] {
            assert_eq!(text.parse::<Leaving>(), Err(()), "{text:?}");
        }
    }
}
