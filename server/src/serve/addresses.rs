//! The addresses of a server: listening at them, and whether others reach it there safely.
//!
//! Invariant: no listener is open to other machines without TLS, unless the configuration permits that.
//!
//! Must not know: logs, services, tokens.

use super::config::{Config, LogAt, Tls};
use crate::common::failure::{Failure, Result};
use chiplog::ErrorKind;
use chiplog_net::listener::tls::check_host;
use chiplog_net::wire::address::Address;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};

/// A listener at the first address that `place` resolves to.
pub(super) fn bind(key: &str, place: &str) -> Result<(TcpListener, SocketAddr)> {
    let failed = |e: std::io::Error| {
        let kind = match e.kind() {
            std::io::ErrorKind::AddrInUse => ErrorKind::Locked,
            _ => ErrorKind::Io,
        };
        let advice = match kind {
            ErrorKind::Locked => {
                "; another process listens there: stop it, or choose another address for this option"
            }
            _ => {
                "; give an address of this machine, such as 127.0.0.1:7411, or a name that it resolves to one"
            }
        };
        Failure::new(kind, format!("cannot listen at {key} {place}: {e}{advice}"))
    };
    let addresses: Vec<SocketAddr> = place.to_socket_addrs().map_err(failed)?.collect();
    let listener = TcpListener::bind(addresses.as_slice()).map_err(failed)?;
    let at = listener.local_addr().map_err(failed)?;
    Ok((listener, at))
}

/// The listener, registered with the runtime.
pub(super) fn listening(listener: TcpListener) -> Result<tokio::net::TcpListener> {
    listener
        .set_nonblocking(true)
        .and_then(|()| tokio::net::TcpListener::from_std(listener))
        .map_err(|e| Failure::new(ErrorKind::Io, format!("cannot listen: {e}")))
}

/// Listens for clients of `logspec.Log` that use a named log.
///
/// # Errors
/// An address cannot be used, or other machines could reach it without TLS.
pub(super) fn bind_logspec(config: &Config, address: &Address) -> Result<Vec<(String, TcpListener)>> {
    let bound = config.listen.logspec.iter().map(|at| {
        let (listener, bound) = bind(&format!("listen.logspec of {}", at.log), &at.address)?;
        check_log_port(config, at, bound, address)?;
        Ok((at.log.clone(), listener))
    });
    bound.collect()
}

/// Like [`reachable_address`], before any port is opened, as far as names can be resolved. Other names are checked
/// when the server listens.
pub(super) fn check_places(config: &Config) -> Result<()> {
    let first = |place: &str| {
        let mut at = place.to_socket_addrs().ok()?.next()?;
        at.set_port(at.port().max(1)); // 0: any free port
        Some(at)
    };
    match (first(&config.listen.client), first(&config.listen.peer)) {
        (Some(client_at), Some(peer_at)) => {
            let address = reachable_address(config, client_at, peer_at)?;
            let mut logspec = config.listen.logspec.iter().filter_map(|at| Some((at, first(&at.address)?)));
            logspec.try_for_each(|(at, bound)| check_log_port(config, at, bound, &address))
        }
        _ => Ok(()),
    }
}

/// The address at which others reach a server that listens at these addresses.
///
/// # Errors
/// Other machines could reach it without TLS, or it is unknown how others reach it.
pub(super) fn reachable_address(
    config: &Config,
    client_at: SocketAddr,
    peer_at: SocketAddr,
) -> Result<Address> {
    let tls = &config.tls;
    check_safe(config, "listen.client", client_at, tls.key.is_some())?;
    check_safe(config, "listen.peer", peer_at, tls.peer_key.is_some())?;
    let advertise = &config.advertise;
    Address::new(
        reached("advertise.peer", &advertise.peer, peer_at)?,
        reached("advertise.client", &advertise.client, client_at)?,
        config.zone.as_str(),
    )
    .map_err(|e| Failure::usage(e.to_string()))
}

/// Checks that the certificate for clients, if there is one, names the host of this address.
///
/// # Errors
/// It does not name it, or it is not a certificate.
pub(super) fn check_host_named(tls: &Tls, place: &str) -> Result<()> {
    let Some(file) = &tls.certificate else { return Ok(()) };
    let host = place.rsplit_once(':').map_or("", |(host, _)| host).trim_matches(['[', ']']);
    let certificate = std::fs::read(file).map_err(|e| Failure::option_file("tls.certificate", file, &e))?;
    check_host(&certificate, host).map_err(|e| Failure::usage(format!("tls.certificate: {e}")))
}

/// Checks that a listener is not open to other machines without TLS, unless the configuration permits that.
///
/// # Errors
/// `InvalidArgument`.
fn check_safe(config: &Config, key: &str, at: SocketAddr, is_safe: bool) -> Result<()> {
    if is_safe || at.ip().is_loopback() || config.insecure {
        return Ok(());
    }
    let tokens = if config.auth.tokens.is_some() { ", and tokens could be read on the network" } else { "" };
    let what = format!(
        "{key} {at} is open to other machines without TLS{tokens}: configure tls, or pass --insecure"
    );
    Err(Failure::usage(what))
}

/// Checks the address of a listener for a named log of a server that others reach at `address`.
///
/// # Errors
/// `InvalidArgument`: other machines could reach it without TLS, or would be redirected to an address that is their own.
pub(super) fn check_log_port(
    config: &Config,
    at: &LogAt,
    bound: SocketAddr,
    address: &Address,
) -> Result<()> {
    check_safe(config, &format!("listen.logspec of {}", at.log), bound, config.tls.key.is_some())?;
    let host = address.client.rsplit_once(':').map_or("", |(host, _)| host).trim_matches(['[', ']']);
    let is_local = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if bound.ip().is_loopback() || !is_local {
        return Ok(());
    }
    let what = format!(
        "listen.logspec of {} is open to other machines, but clients are redirected to the host of listen.client or advertise.client, {host}: set one of these to a host that they can reach",
        at.log
    );
    Err(Failure::usage(what))
}

/// The address at which others reach a listener.
fn reached(key: &str, said: &str, at: SocketAddr) -> Result<String> {
    if !said.is_empty() {
        return Ok(said.to_owned());
    }
    if at.ip().is_unspecified() {
        let what = format!(
            "the server listens at {at}, at all addresses of this machine: set {key} to the address at which others reach it"
        );
        return Err(Failure::usage(what));
    }
    Ok(at.to_string())
}
