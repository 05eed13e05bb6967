//! Address: the network addresses of a replica. The log stores one string per member; this is its grammar.

use std::fmt;
use std::str::FromStr;

/// The addresses of a replica, for other replicas and for clients, and its zone.
///
/// Written as `PEER CLIENT ZONE`, separated by one space; the zone may be missing.
///
/// ```
/// use chiplog_net::wire::address::Address;
/// let address: Address = "10.0.0.1:7001 log1.example:7000 west".parse()?;
/// assert_eq!(address.client, "log1.example:7000");
/// assert_eq!(address.to_string(), "10.0.0.1:7001 log1.example:7000 west");
/// assert!("10.0.0.1".parse::<Address>().is_err());
/// # Ok::<(), chiplog_net::wire::address::NotAnAddress>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// `host:port` for the other replicas; IPv6 hosts in brackets.
    pub peer: String,
    /// `host:port` for clients.
    pub client: String,
    /// A label; empty: no zone.
    pub zone: String,
}

/// An error in an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAnAddress(String);

impl fmt::Display for NotAnAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotAnAddress {}

impl Address {
    /// Creates an address from these parts.
    ///
    /// # Errors
    /// An address is not `host:port`, or the zone contains a space or a control character.
    pub fn new(
        peer: impl Into<String>,
        client: impl Into<String>,
        zone: impl Into<String>,
    ) -> Result<Self, NotAnAddress> {
        let (peer, client, zone) = (peer.into(), client.into(), zone.into());
        check_host_port(&peer)?;
        check_host_port(&client)?;
        if zone.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(NotAnAddress(format!("zone {zone:?} contains a space or a control character")));
        }
        Ok(Self { peer, client, zone })
    }
}

/// Checks that `text` is `host:port` with a port from 1 to 65535, and an IPv6 host in brackets.
///
/// # Errors
/// It is not.
pub fn check_host_port(text: &str) -> Result<(), NotAnAddress> {
    let wrong = |why: &str| Err(NotAnAddress(format!("{text:?} is not host:port: {why}")));
    let Some((host, port)) = text.rsplit_once(':') else { return wrong("it has no port") };
    if !port.parse::<u16>().is_ok_and(|p| p > 0) {
        return wrong("the port must be a number from 1 to 65535");
    }
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    match bare {
        Some(v6) if v6.parse::<std::net::Ipv6Addr>().is_err() => {
            wrong("the brackets do not contain an IPv6 address")
        }
        None if host.contains(':') => wrong("an IPv6 address must be in brackets"),
        None if host.is_empty() => wrong("it has no host"),
        None if host.chars().any(|c| c.is_whitespace() || c.is_control() || "/@?#".contains(c)) => {
            wrong("the host contains an invalid character")
        }
        _ => Ok(()),
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.peer, self.client)?;
        if self.zone.is_empty() { Ok(()) } else { write!(f, " {}", self.zone) }
    }
}

impl FromStr for Address {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<Self, NotAnAddress> {
        let mut parts = text.split(' ');
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(peer), Some(client), zone, None) => Self::new(peer, client, zone.unwrap_or_default()),
            _ => Err(NotAnAddress(format!("{text:?} is not `PEER CLIENT ZONE`"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_and_port() {
        for good in ["a:1", "127.0.0.1:65535", "[::1]:7000", "log-1.example:7000"] {
            assert_eq!(check_host_port(good), Ok(()), "{good}");
        }
        for bad in ["", "a", "a:", "a:0", "a:65536", ":1", "::1:7", "[x]:1", "http://a:1", "a b:1", "a:1:2"] {
            assert!(check_host_port(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn zone_may_be_missing() {
        let address: Result<Address, _> = "a:1 b:2".parse();
        assert_eq!(address.map(|a| a.zone), Ok(String::new()));
        assert!("a:1".parse::<Address>().is_err());
        assert!("a:1 b:2 c d".parse::<Address>().is_err());
    }
}
