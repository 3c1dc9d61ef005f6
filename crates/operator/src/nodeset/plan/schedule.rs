//! When a scheduled update happens: once, or repeatedly. Knows nothing of Slurm but the names of the flags.

use api::NodeSetSpec;
use jiff::{SignedDuration, Timestamp, civil::Weekday, tz::TimeZone};

/// Slurm counts the length of a reservation in minutes.
const SHORTEST: SignedDuration = SignedDuration::from_mins(1);
const DAY: SignedDuration = SignedDuration::from_hours(24);
/// Lets a recurring reservation start in the past. Slurm rejects it for others, so for those the operator requests the
/// remaining time instead.
const FORCE_START: &str = "FORCE_START";
/// Flags of every reservation of the operator.
const OPERATOR_FLAGS: [&str; 2] = ["MAINT", "IGNORE_JOBS"];

/// A flag with which a reservation recurs, how often, and whether on weekends only or on weekdays only.
pub(super) type Recurrence = (&'static str, SignedDuration, Option<bool>);

const RECURRENCES: [Recurrence; 5] = [
    ("HOURLY", SignedDuration::from_hours(1), None),
    ("DAILY", DAY, None),
    ("WEEKLY", SignedDuration::from_hours(7 * 24), None),
    ("WEEKDAY", DAY, Some(false)),
    ("WEEKEND", DAY, Some(true)),
];

/// Returns the recurrence among the flags of a reservation.
pub(super) fn recurrence(flags: &[String]) -> Option<Recurrence> {
    let has = |name: &str| flags.iter().any(|flag| flag.eq_ignore_ascii_case(name));
    RECURRENCES.into_iter().find(|(name, ..)| has(name))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Schedule {
    pub(super) start: Timestamp,
    pub(super) length: SignedDuration,
    /// All flags of the reservation.
    pub(super) flags: Vec<String>,
    pub(super) recurrence: Option<Recurrence>,
    forced: bool,
}

impl Schedule {
    pub(super) fn of(spec: &NodeSetSpec) -> Option<Self> {
        let scheduled = spec.scheduled_update()?;
        let mut flags = OPERATOR_FLAGS.map(str::to_owned).to_vec();
        for flag in scheduled.flags.iter().flatten() {
            let flag = flag.trim().to_ascii_uppercase();
            if !flag.is_empty() && !flags.contains(&flag) {
                flags.push(flag);
            }
        }
        let recurrence = recurrence(&flags);
        let forced = flags.iter().any(|flag| flag == FORCE_START);
        if recurrence.is_none() {
            flags.retain(|flag| flag != FORCE_START);
        }
        Some(Self {
            start: scheduled.start_time.as_ref()?.instant()?,
            length: scheduled.length().max(SHORTEST),
            flags,
            recurrence,
            forced,
        })
    }

    /// Returns the start and the length of a reservation that is created now. `None` if its time has passed.
    pub(super) fn beginning(&self, now: Timestamp) -> Option<(Timestamp, SignedDuration)> {
        if self.start > now {
            return Some((self.start, self.length));
        }
        match self.recurrence {
            Some(_) if self.forced && self.start + self.length > now => Some((self.start, self.length)),
            None if !self.forced => None,
            _ => self.again(now),
        }
    }

    /// Like [`Self::beginning`], for one that is created again: at its next start, or for the remaining time.
    pub(super) fn again(&self, now: Timestamp) -> Option<(Timestamp, SignedDuration)> {
        if self.recurrence.is_some() {
            return Some((self.next(now)?, self.length));
        }
        let end = self.start.checked_add(self.length).ok()?;
        let left = end.duration_since(now).min(self.length);
        (left >= SHORTEST).then_some((now, left))
    }

    /// Returns the first start after `now`.
    pub(super) fn next(&self, now: Timestamp) -> Option<Timestamp> {
        let (_, step, on_weekends) = self.recurrence?;
        let over = now.duration_since(self.start).as_secs().max(-1);
        let mut time = self.start;
        if over >= 0 {
            let rounds = i32::try_from(over / step.as_secs() + 1).ok()?;
            time = time.checked_add(step.checked_mul(rounds)?).ok()?;
        }
        // A weekday or a weekend is at most five days away.
        for _ in 0..7 {
            let weekday = time.to_zoned(TimeZone::UTC).weekday();
            let is_weekend = matches!(weekday, Weekday::Saturday | Weekday::Sunday);
            if on_weekends.is_none_or(|wanted| wanted == is_weekend) {
                return Some(time);
            }
            time = time.checked_add(step).ok()?;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schedule(start: &str, length: &str, flags: &[&str]) -> Schedule {
        let spec = json!({ "controllerRef": { "name": "slurm" }, "updateStrategy": {
            "type": "ScheduledUpdate", "scheduledUpdate": { "startTime": start, "duration": length, "flags": flags },
        } });
        Schedule::of(&serde_json::from_value(spec).unwrap()).unwrap()
    }

    /// A Thursday.
    const NOW: &str = "2026-01-01T01:00:00Z";

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_reservation_begins_when_it_is_asked_for_or_as_soon_as_it_still_makes_sense() {
        for (start, flags, expected) in [
            ("2026-01-01T02:00:00Z", &[][..], Some(("2026-01-01T02:00:00Z", 30))),
            ("2026-01-01T00:59:59Z", &[], None),
            ("2026-01-01T00:40:00Z", &["force_start"], Some((NOW, 10))),
            ("2026-01-01T00:29:00Z", &["FORCE_START"], None),
            ("2025-12-01T02:00:00Z", &["DAILY"], Some(("2026-01-01T02:00:00Z", 30))),
            ("2025-12-01T01:00:00Z", &["daily"], Some(("2026-01-02T01:00:00Z", 30))),
            ("2026-01-01T00:50:00Z", &["HOURLY"], Some(("2026-01-01T01:50:00Z", 30))),
            (
                "2026-01-01T00:50:00Z",
                &["HOURLY", "FORCE_START"],
                Some(("2026-01-01T00:50:00Z", 30)),
            ),
            (
                "2025-12-31T00:50:00Z",
                &["WEEKLY", "FORCE_START"],
                Some(("2026-01-07T00:50:00Z", 30)),
            ),
            ("2025-12-31T00:50:00Z", &["WEEKDAY"], Some(("2026-01-02T00:50:00Z", 30))),
            ("2025-12-31T00:50:00Z", &["WEEKEND"], Some(("2026-01-03T00:50:00Z", 30))),
        ] {
            let found = schedule(start, "30m", flags).beginning(time(NOW));
            let expected = expected.map(|(start, minutes)| (time(start), SignedDuration::from_mins(minutes)));
            assert_eq!(found, expected, "{start} {flags:?}");
        }
    }

    #[test]
    fn a_deleted_reservation_returns_for_the_rest_of_its_time_or_the_next_start() {
        for (start, flags, expected) in [
            ("2026-01-01T00:40:00Z", &[][..], Some((NOW, 10))),
            ("2026-01-01T00:30:30Z", &[], None),
            ("2026-01-01T00:40:00Z", &["DAILY"], Some(("2026-01-02T00:40:00Z", 30))),
        ] {
            let found = schedule(start, "30m", flags).again(time(NOW));
            let expected = expected.map(|(start, minutes)| (time(start), SignedDuration::from_mins(minutes)));
            assert_eq!(found, expected, "{start} {flags:?}");
        }
    }

    #[test]
    fn force_start_is_sent_only_with_a_recurrence() {
        assert_eq!(
            schedule(NOW, "0s", &["FORCE_START", "FLEX"]).flags,
            ["MAINT", "IGNORE_JOBS", "FLEX"]
        );
        assert_eq!(
            schedule(NOW, "0s", &["FORCE_START", "DAILY"]).flags,
            ["MAINT", "IGNORE_JOBS", "FORCE_START", "DAILY"]
        );
        assert_eq!(schedule(NOW, "0s", &[]).length, SignedDuration::from_mins(30));
    }
}
