//! TLS towards servers.

use chiplog::{Error, ErrorKind, Result};
use std::fmt;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

/// Whom a client trusts, and how it proves itself, all in PEM. A server's certificate has to name the host of the address
/// at which it is reached.
///
/// ```
/// # fn authority() -> Vec<u8> { Vec::new() }
/// let mut options = chiplog_net::client::ClientOptions::default();
/// options.tls = Some(chiplog_net::client::ClientTls { authority: authority(), identity: None });
/// ```
#[derive(Clone)]
pub struct ClientTls {
    /// Who has to have signed the servers' certificates.
    pub authority: Vec<u8>,
    /// This client's certificate and its private key, where servers want one.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl ClientTls {
    /// Whether these are certificates and a key. Whoever connects or follows looks by itself.
    ///
    /// # Errors
    /// `InvalidArgument`: the authority holds no certificate; the identity none, no key, or one that does not fit.
    pub fn check(&self) -> Result<()> {
        let identity = self.identity.as_ref().map(|(certificate, key)| (&certificate[..], &key[..]));
        crate::wire::tls::check_client(&self.authority, identity)
    }

    /// # Errors
    /// `InvalidArgument`: these are no certificates, or no key.
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
