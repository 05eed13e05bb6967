//! TLS: a listener's identity and its trusted authority, which can be replaced while it runs; and the replica that a
//! certificate names.
//!
//! Invariants:
//! - The identity in use was valid as a whole when it was set: the key matches the certificate, and the authority is
//!   valid. An invalid one changes nothing.
//! - A connection keeps the identity that it began with. No session is resumed: each connection sends its certificates.
//!
//! Must not know: files, sockets.

use crate::wire::dates::utc;
use crate::wire::tls::{certificates, provider, wrong};
use chiplog::{NodeId, Result};
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio_rustls::rustls::client::danger::ServerCertVerifier as _;
use tokio_rustls::rustls::client::{
    WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor, verify_server_name,
};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use tokio_rustls::rustls::{self, CertificateError, RootCertStore, ServerConfig};

/// The protocols within TLS, the better one first. HTTP/1 is for [plain HTTP](crate::listener::plain_http) alone.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// A listener's identity, all in PEM.
///
/// ```
/// use chiplog_net::listener::tls::Identity;
/// let nothing = Identity { certificate: Vec::new(), key: Vec::new(), authority: None };
/// assert!(chiplog_net::listener::tls::ServerTls::new(&nothing).is_err());
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// The certificate, then the certificates between it and its authority.
    pub certificate: Vec<u8>,
    /// Its private key.
    pub key: Vec<u8>,
    /// Certificates of the authority that signs the clients' certificates. None: clients need no certificate.
    pub authority: Option<Vec<u8>>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity") // the key is a secret
    }
}

/// The TLS settings of a listener. They can be replaced; new connections use the new ones. `Send + Sync`.
///
/// ```no_run
/// use chiplog_net::listener::tls::{Identity, ServerTls};
/// let load = || -> std::io::Result<Identity> {
///     let (certificate, key) = (std::fs::read("tls.pem")?, std::fs::read("tls.key")?);
///     Ok(Identity { certificate, key, authority: None })
/// };
/// let tls = ServerTls::new(&load()?)?;
/// // Later, when the files have changed:
/// tls.replace(&load()?)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ServerTls {
    config: RwLock<Arc<ServerConfig>>,
}

impl ServerTls {
    /// Creates settings with this identity.
    ///
    /// # Errors
    /// `InvalidArgument`: it has no certificate, no key, a key that does not match, or an invalid authority; or the
    /// certificate has expired or is not valid yet.
    pub fn new(identity: &Identity) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { config: RwLock::new(config(identity)?) }))
    }

    /// Uses this identity for new connections.
    ///
    /// # Errors
    /// As [`Self::new`]; then the previous identity stays in use.
    pub fn replace(&self, identity: &Identity) -> Result<()> {
        let new = config(identity)?;
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// The settings for the next connection.
    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn config(identity: &Identity) -> Result<Arc<ServerConfig>> {
    let chain = certificates("certificate", &identity.certificate)?;
    let leaf = chain[0].clone(); // it has at least one
    let key = PrivateKeyDer::from_pem_slice(&identity.key)
        .map_err(|e| wrong(format!("no private key in PEM: {e}")))?;
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|e| wrong(format!("cannot set up TLS: {e}")))?;
    let builder = match &identity.authority {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let roots = roots(authority)?;
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider()).build();
            builder.with_client_cert_verifier(verifier.map_err(|e| wrong(format!("the authority: {e}")))?)
        }
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|e| wrong(format!("certificate and key cannot be used together: {e}")))?;
    Validity::of_der(&leaf)?.check(UnixTime::now())?;
    config.alpn_protocols.extend(PROTOCOLS.map(<[u8]>::to_vec));
    // A client that reconnects sends its certificate again: it may have expired.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

fn roots(pem: &[u8]) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("authority", pem)? {
        roots.add(certificate).map_err(|e| wrong(format!("authority: {e}")))?;
    }
    Ok(roots)
}

/// The name that a replica's certificate has as a DNS name among its subject's alternative names. Between replicas this
/// name is checked, not the host.
///
/// ```
/// assert_eq!(chiplog_net::listener::tls::node_name(chiplog::NodeId(3)), "node-3");
/// ```
pub fn node_name(node: NodeId) -> String {
    format!("node-{node}")
}

/// The time in which a certificate is valid, in seconds since 1970-01-01 UTC, both ends included.
///
/// ```
/// assert!(chiplog_net::listener::tls::Validity::of(b"no certificate").is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Its first second.
    pub not_before: u64,
    /// Its last second.
    pub not_after: u64,
}

impl Validity {
    /// Reads the validity of a certificate in PEM; of several, the first.
    ///
    /// # Errors
    /// `InvalidArgument`: it is not a certificate.
    pub fn of(certificate: &[u8]) -> Result<Self> {
        Self::of_der(&certificates("certificate", certificate)?[0]) // it has at least one
    }

    /// Verification checks the time first, and its error contains the bound that was missed.
    fn of_der(leaf: &CertificateDer<'_>) -> Result<Self> {
        let parsed = ParsedCertificate::try_from(leaf).map_err(|e| wrong(format!("the certificate: {e}")))?;
        let verified = |seconds| {
            let now = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
            let algorithms = provider().signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&parsed, &RootCertStore::empty(), &[], now, algorithms)
        };
        let not_after = match verified(u64::MAX) {
            Err(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext {
                not_after, ..
            })) => not_after.as_secs(),
            Err(e) => return Err(wrong(format!("the certificate: {e}"))),
            Ok(()) => u64::MAX,
        };
        let not_before = match verified(0) {
            Err(rustls::Error::InvalidCertificate(CertificateError::NotValidYetContext {
                not_before,
                ..
            })) => not_before.as_secs(),
            _ => 0,
        };
        Ok(Self { not_before, not_after })
    }

    fn check(self, now: UnixTime) -> Result<()> {
        let Self { not_before, not_after } = self;
        let now = now.as_secs();
        if now > not_after {
            let what =
                format!("the certificate expired at {}; this machine's time is {}", utc(not_after), utc(now));
            return Err(wrong(what));
        }
        if now < not_before {
            let what = format!(
                "the certificate is valid only from {}; this machine's time is {}",
                utc(not_before),
                utc(now)
            );
            return Err(wrong(what));
        }
        Ok(())
    }
}

/// Whether the certificate, whose signatures were checked, names this replica.
pub(crate) fn names_node(certificate: &CertificateDer<'_>, node: NodeId) -> bool {
    let Ok(parsed) = ParsedCertificate::try_from(certificate) else { return false };
    let Ok(name) = ServerName::try_from(node_name(node)) else { return false };
    verify_server_name(&parsed, &name).is_ok()
}

/// Checks that other replicas will accept this identity for `node`, as a server and as a client: it names the node, the
/// authority signed it, and it is valid now.
///
/// # Errors
/// `InvalidArgument`: the reason why they will reject it.
pub(crate) fn check_node(identity: &Identity, node: NodeId) -> Result<()> {
    let chain = certificates("certificate", &identity.certificate)?;
    let Some((leaf, between)) = chain.split_first() else { return Err(wrong("no certificate was given")) };
    if !names_node(leaf, node) {
        let name = node_name(node);
        return Err(wrong(format!(
            "the certificate does not name {name}, so other replicas will reject this server; add subjectAltName DNS:{name}"
        )));
    }
    let now = UnixTime::now();
    Validity::of_der(leaf)?.check(now)?;
    let Some(authority) = &identity.authority else { return Ok(()) };
    let trusted = Arc::new(roots(authority)?);
    let of_authority = |e: &dyn fmt::Display| wrong(format!("the authority: {e}"));
    let refused = |e: &dyn fmt::Display| {
        wrong(format!("replicas with the same authority will reject the certificate: {e}"))
    };
    let name = ServerName::try_from(node_name(node)).map_err(wrong)?;
    WebPkiServerVerifier::builder_with_provider(trusted.clone(), provider())
        .build()
        .map_err(|e| of_authority(&e))?
        .verify_server_cert(leaf, between, &name, &[], now)
        .map_err(|e| refused(&e))?;
    WebPkiClientVerifier::builder_with_provider(trusted, provider())
        .build()
        .map_err(|e| of_authority(&e))?
        .verify_client_cert(leaf, between, now)
        .map_err(|e| refused(&e))?;
    Ok(())
}

/// Checks that a certificate in PEM (of several, the first) names this host, which is a name or an IP address.
///
/// # Errors
/// `InvalidArgument`: it does not, or is not a certificate.
pub fn check_host(certificate: &[u8], host: &str) -> Result<()> {
    let chain = certificates("certificate", certificate)?;
    let leaf = chain.first().ok_or_else(|| wrong("no certificate was given"))?;
    let parsed = ParsedCertificate::try_from(leaf).map_err(|e| wrong(format!("the certificate: {e}")))?;
    let name = ServerName::try_from(host).map_err(|e| wrong(format!("{host}: {e}")))?;
    verify_server_name(&parsed, &name)
        .map_err(|_| wrong(format!("the certificate does not name {host}, the host that clients connect to")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use chiplog::ErrorKind;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

    fn authority() -> (String, Issuer<'static, KeyPair>) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        (pem, Issuer::new(params, key))
    }

    fn leaf(names: &[&str]) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
        (CertificateParams::new(names).unwrap().signed_by(&key, &authority().1).unwrap(), key)
    }

    #[test]
    fn certificate_names_only_its_own_node() {
        let (certificate, _) = leaf(&["node-2", "log2.example", "127.0.0.1"]);
        let named: Vec<u64> = (1..=22).filter(|n| names_node(certificate.der(), NodeId(*n))).collect();
        assert_eq!(named, [2]);
        let (certificate, _) = leaf(&["*.example", "node-*", "2"]);
        assert!(!names_node(certificate.der(), NodeId(2)));
        assert!(!names_node(&CertificateDer::from(vec![1, 2, 3]), NodeId(2)));
    }

    /// Valid on these days, from midnight to midnight.
    fn valid(from: (i32, u8, u8), to: (i32, u8, u8)) -> Identity {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["node-2".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(from.0, from.1, from.2);
        params.not_after = rcgen::date_time_ymd(to.0, to.1, to.2);
        let certificate = params.signed_by(&key, &authority().1).unwrap().pem().into_bytes();
        Identity { certificate, key: key.serialize_pem().into_bytes(), authority: None }
    }

    #[test]
    fn validity_has_both_ends() {
        for (from, to, not_before, not_after) in [
            ((1970, 1, 1), (1970, 1, 2), 0, 86_400),
            ((2000, 3, 1), (2049, 12, 31), 951_868_800, 2_524_521_600),
            ((2060, 1, 1), (4096, 1, 1), 2_840_140_800, 67_090_118_400),
        ] {
            let validity = Validity::of(&valid(from, to).certificate).unwrap();
            assert_eq!(validity, Validity { not_before, not_after });
            for (now, word) in [
                (not_before.checked_sub(1), "is valid only from"),
                (Some(not_before), ""),
                (Some(not_after), ""),
                (Some(not_after + 1), "expired at"),
            ] {
                let Some(now) = now else { continue };
                let error = validity.check(UnixTime::since_unix_epoch(Duration::from_secs(now))).err();
                let error = error.map_or_else(String::new, |e| e.to_string());
                assert!(error.contains(word) && error.is_empty() == word.is_empty(), "{now}: {error}");
            }
        }
    }

    /// An expired certificate replaced a valid one: no client could connect any more.
    #[test]
    fn expired_certificate_is_rejected_and_changes_nothing() {
        let tls = ServerTls::new(&valid((2020, 1, 1), (4000, 1, 1))).unwrap();
        let before = tls.current();
        let expired = valid((2020, 1, 1), (2021, 2, 3));
        let early = valid((3999, 1, 1), (4000, 1, 1));
        for (bad, word) in
            [(&expired, "expired at 2021-02-03T00:00:00Z"), (&early, "valid only from 3999-01-01T00:00:00Z")]
        {
            assert!(ServerTls::new(bad).is_err());
            for error in [tls.replace(bad).unwrap_err(), check_node(bad, NodeId(2)).unwrap_err()] {
                assert_eq!(error.kind(), ErrorKind::InvalidArgument);
                assert!(error.to_string().contains(word), "{error}");
            }
            assert!(Arc::ptr_eq(&before, &tls.current()));
        }
    }

    #[test]
    fn invalid_identity_is_rejected_and_changes_nothing() {
        let (certificate, key) = leaf(&["a"]);
        let (_, other_key) = leaf(&["a"]);
        let good = Identity {
            certificate: certificate.pem().into_bytes(),
            key: key.serialize_pem().into_bytes(),
            authority: Some(authority().0.into_bytes()),
        };
        let tls = ServerTls::new(&good).unwrap();
        let before = tls.current();
        let garbled = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_vec();
        for (bad, word) in [
            (Identity { certificate: Vec::new(), ..good.clone() }, "no certificate"),
            (Identity { certificate: garbled.clone(), ..good.clone() }, "certificate"),
            (Identity { key: Vec::new(), ..good.clone() }, "private key"),
            (Identity { key: other_key.serialize_pem().into_bytes(), ..good.clone() }, "together"),
            (Identity { authority: Some(Vec::new()), ..good.clone() }, "authority"),
            (Identity { authority: Some(garbled), ..good.clone() }, "authority"),
        ] {
            let error = tls.replace(&bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains(word), "{error}");
            assert!(Arc::ptr_eq(&before, &tls.current()));
        }
        tls.replace(&good).unwrap();
        assert!(!Arc::ptr_eq(&before, &tls.current()));
    }
}
