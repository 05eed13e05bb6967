//! A certificate authority, and certificates that it signs.

use chiplog_net::listener::tls::Identity;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};

pub(crate) struct Authority {
    pub(crate) pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub(crate) struct Leaf {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    pub(crate) fn leaf(&self, names: &[&str]) -> Leaf {
        self.sign(names, |_| ())
    }

    /// A certificate that expired in 2020.
    pub(crate) fn expired(&self, names: &[&str]) -> Leaf {
        self.sign(names, |params| {
            params.not_before = date_time_ymd(2019, 1, 1);
            params.not_after = date_time_ymd(2020, 1, 1);
        })
    }

    fn sign(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Leaf {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Leaf { certificate, key: key.serialize_pem() }
    }
}

impl Leaf {
    /// The identity for a listener; `authority` signs the clients' certificates.
    pub(crate) fn identity(&self, authority: Option<&Authority>) -> Identity {
        Identity {
            certificate: self.certificate.clone().into_bytes(),
            key: self.key.clone().into_bytes(),
            authority: authority.map(|a| a.pem.clone().into_bytes()),
        }
    }
}
