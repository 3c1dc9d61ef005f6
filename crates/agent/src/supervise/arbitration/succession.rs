//! The pods that had this host's name, one after another. Pure.
//!
//! A pod that was deleted by force may still run where its kubelet does not respond, while Kubernetes starts another of its name
//! elsewhere. The newer one announces itself in the list of pods and waits until the older one has stopped its slurmctld, or has
//! proven dead by not noticing. The older one never starts slurmctld again, also not after a restart of its container.
//!
//! After a restore of etcd Kubernetes may have the older pod again, and not the newer one. The older one cannot know that, so it asks
//! on the volume whether the newer one is alive, and reports the response: the operator knows which pod Kubernetes has.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::record::{NOTICE_TIMEOUT, YIELD_TIMEOUT};

/// More pods of one name than can be alive at once.
const REMEMBERED: usize = 8;

/// Between two questions to a pod that responds.
const ASK_INTERVAL: Duration = Duration::from_secs(10);

/// What a pod with this name says about its slurmctld.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Tenure {
    /// It may run.
    Running,
    /// The supervisor has noticed its successor and stops it.
    Yielding,
    /// It has exited.
    Ended,
}

/// The pods of this host's name, as the volume has them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Succession {
    /// The UID of this pod. Without one the host is not fenced against others of its name.
    pub own: Option<String>,
    /// Their UIDs, in the order in which they began.
    pub pods: Vec<String>,
    /// The last pod whose slurmctld was started.
    pub tenure: Option<(String, Tenure)>,
    /// The later pod has not responded to a question of this one.
    pub is_silent: bool,
}

/// A question of a superseded pod on the volume: is there a pod that is not superseded? That one responds with the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    pub number: u64,
    pub since: Instant,
}

impl Question {
    /// Whether a pod has responded.
    pub fn is_answered(self, answered: Option<u64>) -> bool {
        answered == Some(self.number)
    }

    /// Whether the later pod has had the time to respond, and has not.
    pub fn is_ignored(self, answered: Option<u64>, now: Instant) -> bool {
        !self.is_answered(answered) && now.saturating_duration_since(self.since) >= NOTICE_TIMEOUT
    }

    /// Whether it is time for another one: the later pod may have died since.
    pub fn is_outdated(self, answered: Option<u64>, now: Instant) -> bool {
        self.is_answered(answered) && now.saturating_duration_since(self.since) >= ASK_INTERVAL
    }
}

impl Succession {
    /// Adds this pod, unless it began before. Returns whether the list has changed.
    pub fn join(&mut self) -> bool {
        let Some(own) = self.own.as_ref().filter(|own| !self.pods.contains(own)) else {
            return false;
        };
        self.pods.push(own.clone());
        self.pods.drain(..self.pods.len().saturating_sub(REMEMBERED));
        true
    }

    /// The last pod of this name, if that is another one.
    pub fn later_pod(&self) -> Option<&str> {
        let own = self.own.as_deref()?;
        self.pods.last().map(String::as_str).filter(|last| *last != own)
    }

    /// Whether a later pod has this name.
    pub fn is_superseded(&self) -> bool {
        self.later_pod().is_some()
    }

    /// Whether another pod has started its slurmctld since.
    pub fn is_replaced(&self) -> bool {
        self.tenure.as_ref().is_some_and(|(pod, _)| !self.is_own(pod))
    }

    fn is_own(&self, pod: &str) -> bool {
        self.own.as_deref() == Some(pod)
    }

    /// The pod that has to stop before this one may start, with the time to wait for it.
    pub fn predecessor(&self) -> Option<(&str, Duration)> {
        let (pod, tenure) = self.tenure.as_ref()?;
        let limit = match tenure {
            Tenure::Running => NOTICE_TIMEOUT,
            Tenure::Yielding => YIELD_TIMEOUT,
            Tenure::Ended => return None,
        };
        (self.own.is_some() && !self.is_own(pod)).then_some((pod, limit))
    }

    /// Whether the records of this host are another pod's: it began later and has started its slurmctld.
    pub fn is_over(&self) -> bool {
        self.is_superseded() && self.is_replaced()
    }

    /// Whether this pod may write this: a pod that was superseded does not overwrite its successor.
    pub fn may_write(&self, tenure: Tenure) -> bool {
        let Some(own) = &self.own else { return false };
        self.tenure.as_ref() != Some(&(own.clone(), tenure)) && !self.is_over()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn succession(own: &str, pods: &[&str], tenure: Option<(&str, Tenure)>) -> Succession {
        Succession {
            own: Some(own.to_owned()),
            pods: pods.iter().map(|pod| (*pod).to_owned()).collect(),
            tenure: tenure.map(|(pod, tenure)| (pod.to_owned(), tenure)),
            is_silent: false,
        }
    }

    #[test]
    fn a_later_pod_that_does_not_respond_in_time_is_silent() {
        let since = Instant::now();
        let question = Question { number: 7, since };
        let later = since + NOTICE_TIMEOUT;
        assert!(!question.is_ignored(Some(6), since));
        assert!(question.is_ignored(Some(6), later));
        assert!(question.is_ignored(None, later));
        assert!(!question.is_ignored(Some(7), later));
        assert!(!question.is_outdated(Some(7), later));
        assert!(question.is_outdated(Some(7), since + ASK_INTERVAL));
        assert!(!question.is_outdated(None, since + ASK_INTERVAL), "it stays open");
    }

    #[test]
    fn a_pod_joins_once_and_the_last_one_is_the_rightful() {
        let mut newer = succession("b", &["a"], None);
        assert!(newer.join());
        assert_eq!(newer.pods, ["a", "b"]);
        assert!(!newer.is_superseded());
        // Its container was restarted.
        let mut older = succession("a", &["a", "b"], None);
        assert!(!older.join());
        assert!(older.is_superseded());
        let mut many = succession("z", &["a", "b", "c", "d", "e", "f", "g", "h"], None);
        assert!(many.join());
        assert_eq!((many.pods.len(), many.pods.last().unwrap().as_str()), (REMEMBERED, "z"));
    }

    #[test]
    fn a_pod_waits_for_another_that_has_not_stopped() {
        let wait = |tenure| {
            succession("b", &["a", "b"], tenure)
                .predecessor()
                .map(|(_, limit)| limit)
        };
        assert_eq!(wait(None), None, "the first pod");
        assert_eq!(wait(Some(("a", Tenure::Running))), Some(NOTICE_TIMEOUT));
        assert_eq!(wait(Some(("a", Tenure::Yielding))), Some(YIELD_TIMEOUT));
        assert_eq!(wait(Some(("a", Tenure::Ended))), None, "it has stopped");
        assert_eq!(wait(Some(("b", Tenure::Running))), None, "its container was restarted");
    }

    #[test]
    fn a_superseded_pod_does_not_overwrite_its_successor() {
        let superseded = |tenure| succession("a", &["a", "b"], Some(tenure)).may_write(Tenure::Ended);
        assert!(superseded(("a", Tenure::Running)));
        assert!(!superseded(("b", Tenure::Running)));
        let last = |tenure| succession("b", &["a", "b"], Some(tenure)).may_write(Tenure::Running);
        assert!(last(("a", Tenure::Running)), "it has waited long enough");
        assert!(!last(("b", Tenure::Running)), "it is written already");
    }

    #[test]
    fn without_a_uid_nothing_is_arbitrated() {
        let mut unknown = Succession {
            own: None,
            ..succession("", &["a"], Some(("a", Tenure::Running)))
        };
        assert!(!unknown.join() && !unknown.is_superseded() && !unknown.may_write(Tenure::Running));
        assert_eq!(unknown.predecessor(), None);
    }
}
