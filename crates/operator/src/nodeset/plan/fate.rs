//! What is to become of each worker: it stays, or it goes for a cause that is written on its pod.

use std::{collections::BTreeSet, fmt, str::FromStr};

use jiff::Timestamp;

use super::worker::Worker;

/// Why a worker goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// There are more workers than are asked for.
    ScaleIn,
    /// It was made in the other scaling mode.
    OtherMode,
    /// Its Kubernetes node is not, or no longer, one for it.
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

    /// As it is written on pods and in Slurm's reasons.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ScaleIn => "scale-in",
            Self::OtherMode => "other-mode",
            Self::Unfit => "unfit",
            Self::Update => "update",
            Self::Deletion => "deletion",
        }
    }

    /// For whom it is done, in words for people.
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

/// What is written on the pod of a worker that goes, before anything else is done about it: another operator goes on with
/// the same one.
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

/// What is to become of the workers that are neither finished nor on their way out.
#[derive(Debug, Default)]
pub(super) struct Fates<'a> {
    pub(super) stay: Vec<Worker<'a>>,
    pub(super) leave: Vec<(Worker<'a>, Cause)>,
}

impl<'a> Fates<'a> {
    /// Nothing is to become of these: they are dead.
    pub(super) fn without(mut self, dead: &BTreeSet<&str>) -> Self {
        self.stay.retain(|worker| !dead.contains(worker.uid()));
        self.leave.retain(|(worker, _)| !dead.contains(worker.uid()));
        self
    }

    /// Has these go after all, which were to stay.
    pub(super) fn condemn(&mut self, chosen: &[Worker<'a>], cause: Cause) {
        let leaving: BTreeSet<&str> = chosen.iter().map(|worker| worker.uid()).collect();
        self.stay.retain(|worker| !leaving.contains(worker.uid()));
        self.leave.extend(chosen.iter().map(|worker| (*worker, cause)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_on_a_pod_is_read_again() {
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
