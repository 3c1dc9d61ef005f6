//! What slurmctld does with reservations. No job of the model runs inside one.

use std::collections::BTreeSet;
use std::time::Duration;

use super::controller::Controller;
use super::request::{Code, ReservationUpdate};
use super::state::{JobPhase, Reservation, State};

/// Flags of reservations that may share nodes with others.
const SHARING: [&str; 2] = ["MAINT", "OVERLAP"];

impl Controller {
    pub(super) fn create_reservation(&mut self, update: &ReservationUpdate, now: Duration) -> Result<(), Code> {
        let start = update.start.unwrap_or(now);
        let mut reservation = Reservation {
            name: update.name.clone(),
            start,
            end: start + Duration::from_mins(update.minutes.ok_or(Code::InvalidTime)?),
            nodes: BTreeSet::new(),
            users: update.users.clone().ok_or(Code::ReservationEmpty)?,
            flags: ["SPEC_NODES".to_owned()].into(),
        };
        reservation.flags.extend(update.flags.iter().cloned());
        let nodes = update.nodes.as_deref().ok_or(Code::ReservationInvalid)?;
        reservation.nodes = self.expand(nodes)?;
        self.check_nodes(&reservation, None)?;
        if self.state.reservations.contains_key(&update.name) {
            return Err(Code::DuplicateReservation);
        }
        self.store_reservation(reservation, now);
        Ok(())
    }

    /// Keeps what is not given.
    pub(super) fn update_reservation(&mut self, update: &ReservationUpdate, now: Duration) -> Result<(), Code> {
        let known = self.state.reservations.get(&update.name);
        let mut reservation = known.cloned().ok_or(Code::ReservationInvalid)?;
        let is_active = reservation.start <= now;
        if let Some(start) = update.start {
            if is_active && start != reservation.start {
                return Err(Code::InvalidTime);
            }
            reservation.end = start + (reservation.end.saturating_sub(reservation.start));
            reservation.start = start;
        }
        if let Some(minutes) = update.minutes {
            reservation.end = reservation.start + Duration::from_mins(minutes);
        }
        reservation.flags.extend(update.flags.iter().cloned());
        reservation.users = update.users.clone().unwrap_or(reservation.users);
        if let Some(nodes) = &update.nodes {
            reservation.nodes = self.expand(nodes)?;
        }
        self.check_nodes(&reservation, Some(&update.name))?;
        self.store_reservation(reservation, now);
        Ok(())
    }

    pub(super) fn delete_reservation(&mut self, name: &str, now: Duration) -> Result<(), Code> {
        self.state.reservations.remove(name).ok_or(Code::ReservationInvalid)?;
        self.save_reservations(now);
        Ok(())
    }

    fn check_nodes(&self, reservation: &Reservation, itself: Option<&str>) -> Result<(), Code> {
        let shares = |reservation: &Reservation| SHARING.iter().any(|flag| reservation.flags.contains(*flag));
        let overlaps = |other: &&Reservation| {
            let in_time = other.start < reservation.end && reservation.start < other.end;
            let on_nodes = !other.nodes.is_disjoint(&reservation.nodes);
            Some(other.name.as_str()) != itself && in_time && on_nodes && !shares(other) && !shares(reservation)
        };
        if self.state.reservations.values().any(|other| overlaps(&other)) {
            return Err(Code::ReservationOverlap);
        }
        let is_busy = |name: &String| self.state.jobs_on(name).any(|job| job.phase == JobPhase::Running);
        let has_jobs = !reservation.flags.contains("IGNORE_JOBS") && reservation.nodes.iter().any(is_busy);
        if has_jobs { Err(Code::NodesBusy) } else { Ok(()) }
    }

    fn store_reservation(&mut self, reservation: Reservation, now: Duration) {
        self.state.reservations.insert(reservation.name.clone(), reservation);
        self.save_reservations(now);
    }

    fn save_reservations(&mut self, now: Duration) {
        self.dirty.reservations = true;
        self.plan_save(now);
        self.plan_schedule(now);
    }

    /// Removes reservations that are over.
    pub(super) fn end_reservations(&mut self, now: Duration) {
        let over = |reservation: &Reservation| reservation.end <= now;
        if self.state.reservations.values().any(over) {
            self.state.reservations.retain(|_, reservation| !over(reservation));
            self.save_reservations(now);
        }
    }
}

impl State {
    /// Returns the reservations that keep a job of this length from a node.
    pub fn reserved<'a>(
        &'a self,
        node: &'a str,
        now: Duration,
        ends: Duration,
    ) -> impl Iterator<Item = &'a Reservation> {
        let keeps = move |reservation: &&Reservation| {
            reservation.nodes.contains(node) && reservation.start < ends && now < reservation.end
        };
        self.reservations.values().filter(keeps)
    }
}
