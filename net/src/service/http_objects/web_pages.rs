//! Web pages: keeps those of others from reading objects through the browser of somebody who can reach this server.
//!
//! A page at `http://evil.example:7411` can have the name of its host resolved to this server's address. The browser then takes the server
//! for the page's own, and lets the page read all answers. With TLS the certificate does not name that host, and a page has no token: so
//! the check is for servers without both.
//!
//! Invariant: without TLS and tokens, a request is answered only if its host is an address, this machine, or a name of a server of the
//! log.
//!
//! Must not know: tokens, sockets.

use crate::served::log_slot::LogSlot;
use crate::wire::address::Address;
use crate::wire::status::to_status;
use chiplog::{Error, ErrorKind};
use http::request::Parts;
use http::uri::Authority;
use std::net::{Ipv4Addr, Ipv6Addr};
use tonic::Status;

/// Checks the host for which a request is.
///
/// # Errors
/// PERMISSION_DENIED: it is a name that is none of this log's servers.
pub(super) fn check_host(host: &LogSlot, request: &Parts) -> Result<(), Status> {
    let headers = request.headers.get_all(http::header::HOST).iter();
    let named = headers.map(|value| value.to_str().unwrap_or_default().to_owned());
    let asked = request.uri.authority().map(ToString::to_string);
    // Browsers name a host always: a request without one is not theirs.
    for wanted in named.chain(asked) {
        if !is_address(&wanted) && !is_advertised(host, &wanted) {
            let what = format!(
                "this server has neither tokens nor TLS, so it serves objects only at an IP address, at localhost and at the names of \
                 the log's servers (advertise.client), and the request is for {wanted:?}: a web page at a name of its own could read \
                 them through a browser"
            );
            return Err(to_status(&Error::new(ErrorKind::PermissionDenied, what), None));
        }
    }
    Ok(())
}

/// The host in `host:port` or `host`, without brackets.
fn bare(text: &str) -> String {
    let authority = text.parse::<Authority>();
    let host = authority.as_ref().map_or("", |authority| authority.host());
    host.trim_matches(['[', ']']).trim_end_matches('.').to_ascii_lowercase()
}

fn is_address(text: &str) -> bool {
    let host = bare(text);
    host == "localhost" || host.parse::<Ipv4Addr>().is_ok() || host.parse::<Ipv6Addr>().is_ok()
}

fn is_advertised(host: &LogSlot, wanted: &str) -> bool {
    let members = host.opened().map(|log| log.status().replica.members).unwrap_or_default();
    let addresses: Vec<Address> = members.iter().filter_map(|member| member.address.parse().ok()).collect();
    is_of(&addresses, wanted)
}

fn is_of(servers: &[Address], wanted: &str) -> bool {
    let wanted = bare(wanted);
    let mut known = servers.iter().flat_map(|address| [&address.client, &address.peer]);
    !wanted.is_empty() && known.any(|known| bare(known) == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_addresses_or_names_of_servers() {
        for address in ["127.0.0.1", "10.0.0.7:7411", "[::1]:7411", "[fe80::1]", "localhost", "LOCALHOST.:1"]
        {
            assert!(is_address(address), "{address}");
        }
        let server = |text: &str| text.parse::<Address>().unwrap();
        let servers = [server("log1.example:7412 log1.example:7411"), server("[::2]:1 db:2")];
        for name in ["log1.example", "LOG1.example:80", "log1.example.:7411", "db"] {
            assert!(!is_address(name) && is_of(&servers, name), "{name}");
        }
        for other in [
            "evil.example",
            "log1.example.evil.example:7411",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "1",
            "",
            ":7411",
            "[]",
            "a b",
            "log1.example@evil.example",
        ] {
            assert!(!is_address(other) && !is_of(&servers, other), "{other}");
        }
    }
}
