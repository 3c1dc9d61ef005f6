//! Values of flags, in the formats of upstream's flags.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
};

use anyhow::Context as _;
use api::time::GoDuration;
use host::Host;
use jiff::SignedDuration;
use tracing_subscriber::filter::Targets;

/// The address that a server listens on, or none. (To clap, a flag whose type is written as an Option is an optional one.)
pub(super) type Address = Option<SocketAddr>;

/// `:8080` is every address of this pod, `0` no address; anything else is an address with a port.
pub(super) fn parse_address(text: &str) -> anyhow::Result<Address> {
    if text == "0" {
        return Ok(None);
    }
    let parsed = match text.strip_prefix(':') {
        Some(port) => port.parse().map(|port| SocketAddr::new(every_address(), port)).ok(),
        None => text.parse().ok(),
    };
    let error = || format!("{text:?} is not an address; write :8080, 127.0.0.1:8080, or 0 for none");
    parsed.map(Some).with_context(error)
}

/// An IPv6 socket accepts IPv4 too, if the kernel has IPv6.
fn every_address() -> IpAddr {
    if Host::real().files().metadata(Path::new("/proc/net/if_inet6")).is_ok() {
        Ipv6Addr::UNSPECIFIED.into()
    } else {
        Ipv4Addr::UNSPECIFIED.into()
    }
}

/// A level, levels by module, or a number: 0 for info, up to 4 for debug, more for everything.
pub(super) fn parse_log_level(text: &str) -> anyhow::Result<Targets> {
    let level = match text.parse::<u8>() {
        Ok(0) => "info",
        Ok(1..=4) => "debug",
        Ok(_) => "trace",
        Err(_) => text,
    };
    let parsed = level.parse();
    parsed.with_context(|| format!("{text:?} is not a log level; write info, debug or a number"))
}

/// A positive duration in Go's format.
pub(super) fn parse_lifetime(text: &str) -> anyhow::Result<SignedDuration> {
    let length = GoDuration::from(text).length();
    let positive = length.filter(|length| *length >= SignedDuration::from_secs(1));
    positive.with_context(|| format!("{text:?} is not a duration of a second or more; write it like 24h or 1h30m"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_every_address_and_zero_is_none() {
        assert_eq!(parse_address(":8080").unwrap().unwrap().port(), 8080);
        assert_eq!(parse_address("0").unwrap(), None);
        let one = parse_address("127.0.0.1:9").unwrap().unwrap();
        assert_eq!(one, SocketAddr::from(([127, 0, 0, 1], 9)));
        assert!(parse_address("8080").unwrap_err().to_string().contains(":8080"));
    }

    #[test]
    fn numbers_and_names_are_levels() {
        for (text, level) in [("0", "info"), ("2", "debug"), ("9", "trace"), ("warn", "warn")] {
            assert_eq!(parse_log_level(text).unwrap().to_string(), level);
        }
    }
}
