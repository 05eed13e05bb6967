//! A client's TLS settings.

use chiplog::{Error, ErrorKind, Result};
use std::fmt;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

/// A client's authority and identity, all in PEM. A server's certificate must name the host in its address.
///
/// ```
/// # fn authority() -> Vec<u8> { Vec::new() }
/// let mut options = chiplog_net::client::ClientOptions::default();
/// options.tls = Some(chiplog_net::client::ClientTls { authority: authority(), identity: None });
/// ```
#[derive(Clone)]
pub struct ClientTls {
    /// Certificates of the authority that signs the servers' certificates.
    pub authority: Vec<u8>,
    /// This client's certificate and its private key, if servers require them.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl ClientTls {
    /// Checks that these are valid certificates and a key. A client or a follower checks this itself when it connects.
    ///
    /// # Errors
    /// `InvalidArgument`: the authority has no certificate; the identity has no certificate, no key, or a key that does
    /// not match.
    pub fn check(&self) -> Result<()> {
        let identity = self.identity.as_ref().map(|(certificate, key)| (&certificate[..], &key[..]));
        crate::wire::tls::check_client(&self.authority, identity)
    }

    /// # Errors
    /// `InvalidArgument`: a certificate or key is invalid.
    pub(crate) fn apply(&self, endpoint: Endpoint) -> Result<Endpoint> {
        let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&self.authority));
        if let Some((certificate, key)) = &self.identity {
            config = config.identity(Identity::from_pem(certificate, key));
        }
        endpoint
            .tls_config(config)
            .map_err(|e| Error::new(ErrorKind::InvalidArgument, format!("cannot set up TLS: {e}")))
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientTls")
    }
}
