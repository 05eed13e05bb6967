//! From the URL of a server and options to an HTTP client: TLS, the token, time limits. Makes no request.
//!
//! Invariant: a token is not sent over plain text to another machine, unless that is permitted.
//!
//! Must not know: raft, segments, which requests there are.

use super::listing::Kind;
use super::options::ServerVaultOptions;
use crate::http::{client_builder, machine_roots, tls};
use crate::location::invalid;
use chiplog::{Error, ErrorKind, Result};
use http::HeaderValue;
use reqwest::Client;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::net::IpAddr;
use std::time::Duration;
use url::Url;

/// The server, and how requests reach it.
pub(super) struct Server {
    /// `https://log1:7411`.
    pub(super) base: String,
    /// The things that are read of it.
    pub(super) kind: Kind,
    pub(super) client: Client,
    pub(super) token: Option<HeaderValue>,
    pub(super) timeout: Duration,
}

impl Server {
    /// See [`ServerVault::open`](crate::ServerVault::open).
    ///
    /// # Errors
    /// `InvalidArgument`: the URL or an option is refused. `Io`: TLS cannot be set up.
    pub(super) fn open(url: &str, kind: Kind, options: ServerVaultOptions) -> Result<Self> {
        let (base, is_secret, is_local) = base_of(url)?;
        let ServerVaultOptions { authority, identity, token, token_in_plain_text, timeout } = options;
        if !(Duration::from_millis(50)..=Duration::from_secs(3_600)).contains(&timeout) {
            return Err(invalid(format!("timeout is {timeout:?} and must be 50 ms to 1 h")));
        }
        if !is_secret && (authority.is_some() || identity.is_some()) {
            return Err(invalid("certificates are for https://, and the location has http://: correct it"));
        }
        if token.is_some() && !is_secret && !is_local && !token_in_plain_text {
            return Err(invalid(format!("not sending the token to {base} in plain text; use https://")));
        }
        let token = token.map(|token| {
            let value = HeaderValue::from_str(&format!("Bearer {}", token.trim()));
            let mut value = value.map_err(|_| invalid("the token is not printable ASCII"))?;
            value.set_sensitive(true);
            Ok::<_, Error>(value)
        });
        let tls = tls_with(authority.as_deref(), identity.as_ref(), is_secret)?;
        let client = client_builder(tls, timeout)
            .read_timeout(timeout / 2)
            .no_proxy()
            .build()
            .map_err(|e| Error::with_cause(ErrorKind::Io, format!("cannot set up HTTP: {e}"), e))?;
        Ok(Self { base, kind, client, token: token.transpose()?, timeout })
    }
}

/// The URL of a server without a slash at its end, whether it is over TLS, and whether it is this machine.
fn base_of(text: &str) -> Result<(String, bool, bool)> {
    // The text is not shown: it can contain a secret.
    let wrong =
        || invalid("the location of a server is https://HOST:PORT or http://HOST:PORT, and nothing else");
    let url = Url::parse(text).map_err(|_| wrong())?;
    let is_secret = match url.scheme() {
        "https" => true,
        "http" => false,
        _ => return Err(wrong()),
    };
    let has_more = !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some();
    let host = url.host_str().unwrap_or_default();
    if has_more || host.is_empty() || !url.username().is_empty() || url.password().is_some() {
        return Err(wrong());
    }
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    let is_local = host == "localhost" || address.is_ok_and(|address| address.is_loopback());
    Ok((url.as_str().trim_end_matches('/').to_owned(), is_secret, is_local))
}

/// The settings of TLS.
fn tls_with(
    authority: Option<&[u8]>,
    identity: Option<&(Vec<u8>, Vec<u8>)>,
    is_used: bool,
) -> Result<ClientConfig> {
    let mut roots = if authority.is_none() && is_used { machine_roots() } else { RootCertStore::empty() };
    for certificate in authority.map_or(Ok(Vec::new()), |pem| chain(pem, "the authority"))? {
        roots.add(certificate).map_err(|e| invalid(format!("the authority: {e}")))?;
    }
    if is_used && roots.is_empty() {
        return Err(invalid(
            "this machine has no certificates of authorities: give the authority of the servers, or install ca-certificates",
        ));
    }
    let builder = tls(roots)?;
    let Some((certificate, key)) = identity else { return Ok(builder.with_no_client_auth()) };
    let key =
        PrivateKeyDer::from_pem_slice(key).map_err(|e| invalid(format!("no private key in PEM: {e}")))?;
    let made = builder.with_client_auth_cert(chain(certificate, "the certificate")?, key);
    made.map_err(|e| invalid(format!("certificate and key cannot be used together: {e}")))
}

fn chain(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|e| invalid(format!("{what} is not PEM: {e}")))?;
    if found.is_empty() {
        return Err(invalid(format!("{what} has no certificate in PEM")));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_urls_of_servers_are_taken() {
        for (text, base, is_secret, is_local) in [
            ("http://127.0.0.1:7411", "http://127.0.0.1:7411", false, true),
            ("https://log1:7411/", "https://log1:7411", true, false),
            ("http://[::1]:7411", "http://[::1]:7411", false, true),
            ("http://localhost:7411", "http://localhost:7411", false, true),
        ] {
            assert_eq!(base_of(text).unwrap(), (base.to_owned(), is_secret, is_local));
        }
        for text in [
            "log1:7411",
            "ftp://log1",
            "https://",
            "https://log1/v1",
            "https://a:secret@log1",
            "https://log1?x",
        ] {
            let error = base_of(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(!error.to_string().contains("secret"));
        }
    }

    #[test]
    fn token_stays_within_tls_and_this_machine() {
        let open = |url, plain| {
            let options = ServerVaultOptions::default().token("t".to_owned()).token_in_plain_text(plain);
            Server::open(url, Kind::Objects, options).map(drop)
        };
        open("http://127.0.0.1:7411", false).unwrap();
        open("http://log1:7411", true).unwrap();
        let error = open("http://log1:7411", false).unwrap_err();
        assert!(error.to_string().contains("in plain text"), "{error}");
        let options = ServerVaultOptions::default().authority(b"x".to_vec());
        assert!(Server::open("http://127.0.0.1:7411", Kind::Objects, options.clone()).is_err());
        assert!(Server::open("https://log1:7411", Kind::Objects, options).is_err(), "no certificate");
        let options = ServerVaultOptions::default().timeout(Duration::ZERO);
        assert!(Server::open("http://127.0.0.1:7411", Kind::Objects, options).is_err());
    }
}
