//! The address that a server listens on, in the format of upstream's flags.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
    str::FromStr,
};

use host::Host;

/// `:8080` is every address of this pod, `0` no address; anything else is an address with a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address(pub Option<SocketAddr>);

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "0" {
            return Ok(Self(None));
        }
        let parsed = match text.strip_prefix(':') {
            Some(port) => port.parse().map(|port| SocketAddr::new(every_address(), port)).ok(),
            None => text.parse().ok(),
        };
        match parsed {
            Some(address) => Ok(Self(Some(address))),
            None => Err(format!(
                "{text:?} is not an address; write :8080, 127.0.0.1:8080, or 0 for none"
            )),
        }
    }
}

/// An IPv6 socket accepts IPv4 too, if the kernel has IPv6.
fn every_address() -> IpAddr {
    if Host::real().files().metadata(Path::new("/proc/net/if_inet6")).is_ok() {
        Ipv6Addr::UNSPECIFIED.into()
    } else {
        Ipv4Addr::UNSPECIFIED.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_every_address_and_zero_is_none() {
        assert_eq!(":8080".parse::<Address>().unwrap().0.unwrap().port(), 8080);
        assert_eq!("0".parse::<Address>().unwrap().0, None);
        let one = "127.0.0.1:9".parse::<Address>().unwrap().0.unwrap();
        assert_eq!(one, SocketAddr::from(([127, 0, 0, 1], 9)));
        assert!("8080".parse::<Address>().unwrap_err().contains(":8080"));
    }
}
