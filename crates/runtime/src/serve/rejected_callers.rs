//! Addresses whose tokens were rejected. The API server reviews every token, so that whoever can connect would decide how many
//! requests it gets.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// For so long an address is not served after too many rejected tokens.
const WINDOW: Duration = Duration::from_secs(10);
/// A reader of metrics whose token has expired tries a few times.
pub(super) const MOST: u32 = 10;
/// More than there are pods on a machine. Further addresses count as one.
pub(super) const MAX_ADDRESSES: usize = 256;

/// Rejections by address, in windows of time.
#[derive(Debug, Default)]
pub(super) struct RejectedCallers(Mutex<HashMap<Option<IpAddr>, Window>>);

#[derive(Debug)]
struct Window {
    begun: Instant,
    rejections: u32,
}

impl RejectedCallers {
    /// Whether tokens from this address are rejected without a review.
    pub(super) fn is_blocked(&self, address: Option<IpAddr>, now: Instant) -> bool {
        let mut windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        windows.retain(|_, window| now.duration_since(window.begun) < WINDOW);
        let window = windows.get(&counted_as(&windows, address));
        window.is_some_and(|window| window.rejections >= MOST)
    }

    /// Counts a rejected token.
    pub(super) fn note(&self, address: Option<IpAddr>, now: Instant) {
        let mut windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let address = counted_as(&windows, address);
        let window = windows.entry(address).or_insert(Window {
            begun: now,
            rejections: 0,
        });
        window.rejections = window.rejections.saturating_add(1);
    }
}

fn counted_as(windows: &HashMap<Option<IpAddr>, Window>, address: Option<IpAddr>) -> Option<IpAddr> {
    address.filter(|_| windows.contains_key(&address) || windows.len() < MAX_ADDRESSES)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn an_address_is_blocked_for_a_while_after_too_many_rejections() {
        let (callers, start) = (RejectedCallers::default(), Instant::now());
        let (bad, good) = (Some(Ipv4Addr::LOCALHOST.into()), Some(Ipv4Addr::UNSPECIFIED.into()));
        for _ in 0..MOST {
            assert!(!callers.is_blocked(bad, start));
            callers.note(bad, start);
        }
        assert!(callers.is_blocked(bad, start) && !callers.is_blocked(good, start));
        assert!(!callers.is_blocked(bad, start + WINDOW));
    }

    #[test]
    fn many_addresses_take_little_memory_and_count_as_one() {
        let (callers, start) = (RejectedCallers::default(), Instant::now());
        for number in 0..100_000 {
            callers.note(Some(Ipv4Addr::from_bits(number).into()), start);
        }
        assert_eq!(callers.0.lock().unwrap().len(), MAX_ADDRESSES + 1);
        assert!(callers.is_blocked(Some(Ipv4Addr::BROADCAST.into()), start));
        assert!(!callers.is_blocked(Some(Ipv4Addr::BROADCAST.into()), start + WINDOW));
    }
}
