//! TLS: the options of clients, checked before they connect, and PEM for both sides.
//!
//! Must not know: files, sockets.

use chiplog::{Error, ErrorKind, Result};
use std::fmt;
use std::sync::Arc;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

pub(crate) fn wrong(what: impl fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidArgument, what.to_string())
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Checks that a client can use these, all PEM: the trusted authority, and its own certificate with the private key.
///
/// # Errors
/// `InvalidArgument`: names the invalid one.
pub(crate) fn check_client(authority: &[u8], identity: Option<(&[u8], &[u8])>) -> Result<()> {
    let mut roots = RootCertStore::empty();
    // Of many certificates, such as a system's, some may be of an unsupported kind, but not all.
    let (usable, _) = roots.add_parsable_certificates(certificates("tls_authority", authority)?);
    if usable == 0 {
        return Err(wrong("tls_authority: no valid certificate found"));
    }
    let Some((certificate, key)) = identity else { return Ok(()) };
    let chain = certificates("tls_certificate", certificate)?;
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|e| wrong(format!("tls_key: no private key in PEM: {e}")))?;
    ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|e| wrong(format!("cannot set up TLS: {e}")))?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(|e| wrong(format!("tls_certificate and tls_key cannot be used together: {e}")))?;
    Ok(())
}

/// The certificates in a text in PEM, at least one.
pub(crate) fn certificates(of: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let all: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if all.is_empty() => Err(wrong(format!("{of}: no certificate in PEM"))),
        Ok(all) => Ok(all),
        Err(e) => Err(wrong(format!("{of}: not PEM: {e}"))),
    }
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

    fn leaf() -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["a".to_owned()]).unwrap();
        (params.signed_by(&key, &authority().1).unwrap(), key)
    }

    /// A file without a certificate was accepted, and only the connection failed, with an unrelated error.
    #[test]
    fn invalid_client_tls_option_is_named() {
        let (certificate, key) = leaf();
        let (authority, key) = (authority().0.into_bytes(), key.serialize_pem().into_bytes());
        let certificate = certificate.pem().into_bytes();
        check_client(&authority, None).unwrap();
        check_client(&authority, Some((&certificate, &key))).unwrap();
        let garbled = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let with_garbled = [&garbled[..], &authority].concat();
        check_client(&with_garbled, None).unwrap();
        let other_key = leaf().1.serialize_pem().into_bytes();
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
}
