//! TLS: what a listener proves itself with and whom it trusts, to be changed while it runs; and which replica a
//! certificate names.
//!
//! Invariants:
//! - What is in use was sound as a whole when it came: a key that fits its certificate, an authority that is one. What
//!   is not, changes nothing.
//! - A connection keeps what it began with. Nothing is resumed: each one shows its certificates.
//!
//! Must not know: files, sockets.

use chiplog::{Error, ErrorKind, NodeId, Result};
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use tokio_rustls::rustls::client::danger::ServerCertVerifier as _;
use tokio_rustls::rustls::client::{WebPkiServerVerifier, verify_server_name};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};

/// The only protocol that is spoken inside of TLS.
const HTTP2: &[u8] = b"h2";

/// What a listener proves itself with, all in PEM.
///
/// ```
/// use chiplog_net::wire::tls::Identity;
/// let nothing = Identity { certificate: Vec::new(), key: Vec::new(), authority: None };
/// assert!(chiplog_net::wire::tls::ServerTls::new(&nothing).is_err());
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// The certificate, then those between it and its authority.
    pub certificate: Vec<u8>,
    /// Its private key.
    pub key: Vec<u8>,
    /// Who has to have signed the certificates of those who connect. None: they need no certificate.
    pub authority: Option<Vec<u8>>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity") // the key is a secret
    }
}

/// The TLS of a listener. What it is made of can be replaced; connections that come later get the new one. `Send +
/// Sync`.
///
/// ```no_run
/// use chiplog_net::wire::tls::{Identity, ServerTls};
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
    /// With this identity.
    ///
    /// # Errors
    /// `InvalidArgument`: it holds no certificate, no key, one that does not fit, or an authority that is none.
    pub fn new(identity: &Identity) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { config: RwLock::new(config(identity)?) }))
    }

    /// Uses this identity for connections that come from now on.
    ///
    /// # Errors
    /// As [`Self::new`]; then the one before stays in use.
    pub fn replace(&self, identity: &Identity) -> Result<()> {
        let new = config(identity)?;
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// For the next connection.
    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn wrong(what: impl fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidArgument, what.to_string())
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn config(identity: &Identity) -> Result<Arc<ServerConfig>> {
    let chain = certificates("certificate", &identity.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&identity.key)
        .map_err(|e| wrong(format!("there is no private key in PEM: {e}")))?;
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|e| wrong(format!("TLS cannot be used: {e}")))?;
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
    config.alpn_protocols.push(HTTP2.to_vec());
    // Who comes again shows its certificate again: it may have expired.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// Whether a client can use these, all PEM: whom it trusts, and its own certificate with its private key.
///
/// # Errors
/// `InvalidArgument`: says which of them is none.
pub(crate) fn check_client(authority: &[u8], identity: Option<(&[u8], &[u8])>) -> Result<()> {
    let mut roots = RootCertStore::empty();
    // Of many, such as a system's, some may be of a kind that is not understood. All of them may not.
    let (usable, _) = roots.add_parsable_certificates(certificates("tls_authority", authority)?);
    if usable == 0 {
        return Err(wrong("tls_authority: there is no certificate in it that can be understood"));
    }
    let Some((certificate, key)) = identity else { return Ok(()) };
    let chain = certificates("tls_certificate", certificate)?;
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|e| wrong(format!("tls_key: there is no private key in PEM: {e}")))?;
    ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|e| wrong(format!("TLS cannot be used: {e}")))?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(|e| wrong(format!("tls_certificate and tls_key cannot be used together: {e}")))?;
    Ok(())
}

fn certificates(of: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let all: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if all.is_empty() => Err(wrong(format!("{of}: there is no certificate in PEM"))),
        Ok(all) => Ok(all),
        Err(e) => Err(wrong(format!("{of}: not PEM: {e}"))),
    }
}

fn roots(pem: &[u8]) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("authority", pem)? {
        roots.add(certificate).map_err(|e| wrong(format!("authority: {e}")))?;
    }
    Ok(roots)
}

/// The name that the certificate of a replica has among its subject's alternative names, as a DNS name. Between
/// replicas it is what is checked: not the host.
///
/// ```
/// assert_eq!(chiplog_net::wire::tls::node_name(chiplog::NodeId(3)), "node-3");
/// ```
pub fn node_name(node: NodeId) -> String {
    format!("node-{node}")
}

/// Whether the certificate, whose signatures were checked, is that of the replica.
pub(crate) fn names_node(certificate: &CertificateDer<'_>, node: NodeId) -> bool {
    let Ok(parsed) = ParsedCertificate::try_from(certificate) else { return false };
    let Ok(name) = ServerName::try_from(node_name(node)) else { return false };
    verify_server_name(&parsed, &name).is_ok()
}

/// Whether other replicas take this for the identity of `node`, as a server and as a client: it names the node, its authority
/// has signed it, and its time has come and is not over.
///
/// # Errors
/// `InvalidArgument`: says what they will not take.
pub(crate) fn check_node(identity: &Identity, node: NodeId) -> Result<()> {
    let chain = certificates("certificate", &identity.certificate)?;
    let Some((leaf, between)) = chain.split_first() else { return Err(wrong("there is no certificate")) };
    if !names_node(leaf, node) {
        let name = node_name(node);
        return Err(wrong(format!(
            "the certificate does not name {name} (subjectAltName DNS:{name}): the other replicas take this server for nobody"
        )));
    }
    let Some(authority) = &identity.authority else { return Ok(()) };
    let trusted = Arc::new(roots(authority)?);
    let of_authority = |e: &dyn fmt::Display| wrong(format!("the authority: {e}"));
    let refused = |e: &dyn fmt::Display| {
        wrong(format!(
            "the other replicas will not take the certificate, if they have the same authority: {e}"
        ))
    };
    let now = UnixTime::now();
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

/// Whether a certificate in PEM, the first one, names this host: a name or an address.
///
/// # Errors
/// `InvalidArgument`: it does not, or is none.
pub fn check_host(certificate: &[u8], host: &str) -> Result<()> {
    let chain = certificates("certificate", certificate)?;
    let leaf = chain.first().ok_or_else(|| wrong("there is no certificate"))?;
    let parsed = ParsedCertificate::try_from(leaf).map_err(|e| wrong(format!("the certificate: {e}")))?;
    let name = ServerName::try_from(host).map_err(|e| wrong(format!("{host}: {e}")))?;
    verify_server_name(&parsed, &name).map_err(|_| {
        wrong(format!("the certificate does not name {host}, by which clients reach this server"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
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
    fn a_certificate_names_its_node_and_no_other() {
        let (certificate, _) = leaf(&["node-2", "log2.example", "127.0.0.1"]);
        let named: Vec<u64> = (1..=22).filter(|n| names_node(certificate.der(), NodeId(*n))).collect();
        assert_eq!(named, [2]);
        let (certificate, _) = leaf(&["*.example", "node-*", "2"]);
        assert!(!names_node(certificate.der(), NodeId(2)));
        assert!(!names_node(&CertificateDer::from(vec![1, 2, 3]), NodeId(2)));
    }

    /// A file that was no certificate was not refused: it got as far as the connection, whose error was another one.
    #[test]
    fn what_a_client_is_given_is_refused_by_its_name() {
        let (certificate, key) = leaf(&["a"]);
        let (authority, key) = (authority().0.into_bytes(), key.serialize_pem().into_bytes());
        let certificate = certificate.pem().into_bytes();
        check_client(&authority, None).unwrap();
        check_client(&authority, Some((&certificate, &key))).unwrap();
        let garbled = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let with_garbled = [&garbled[..], &authority].concat();
        check_client(&with_garbled, None).unwrap();
        let other_key = leaf(&["a"]).1.serialize_pem().into_bytes();
        for (authority, identity, word) in [
            (&b"rubbish"[..], None, "tls_authority"),
            (&garbled[..], None, "tls_authority"),
            (&b""[..], None, "tls_authority"),
            (&authority[..], Some((&b"x"[..], &key[..])), "tls_certificate:"),
            (&authority[..], Some((&certificate[..], &b"x"[..])), "tls_key:"),
            (&authority[..], Some((&certificate[..], &other_key[..])), "together"),
        ] {
            let error = check_client(authority, identity).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains(word), "{error}");
        }
    }

    #[test]
    fn what_is_not_sound_is_refused_in_words_and_changes_nothing() {
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
