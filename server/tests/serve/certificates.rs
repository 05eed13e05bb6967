//! A certificate authority and the certificates it signs: one per node, for servers and clients.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) struct Authority {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new(dir: &Path, name: &str) -> Self {
        let dir = dir.join(name);
        fs::create_dir(&dir).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        fs::write(dir.join("authority.pem"), certificate.pem()).unwrap();
        Self { dir, issuer: Issuer::new(params, key) }
    }

    /// Makes the files of a node: `1.pem`, `1.key`.
    pub(crate) fn sign(&self, node: u64) {
        self.sign_with(node, |_| {});
    }

    /// Like `sign`, with a certificate that expired at the end of 2021.
    pub(crate) fn sign_expired(&self, node: u64) {
        self.sign_with(node, |params| {
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(2022, 1, 1);
        });
    }

    fn sign_with(&self, node: u64, change: impl FnOnce(&mut CertificateParams)) {
        let key = KeyPair::generate().unwrap();
        let names = vec!["127.0.0.1".to_owned(), format!("node-{node}")];
        let mut params = CertificateParams::new(names).unwrap();
        // Other libraries take a certificate with the name of its authority for one that signed itself.
        params.distinguished_name.push(DnType::CommonName, format!("node {node}"));
        change(&mut params);
        let leaf = params.signed_by(&key, &self.issuer).unwrap();
        fs::write(self.dir.join(format!("{node}.pem")), leaf.pem()).unwrap();
        fs::write(self.dir.join(format!("{node}.key")), key.serialize_pem()).unwrap();
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.dir.join(name).to_str().unwrap().to_owned()
    }

    /// The settings of a server that uses its own certificates for clients, and those of `peers` between
    /// replicas.
    pub(crate) fn settings(&self, node: u64, peers: &Self) -> Vec<String> {
        let (pem, key) = (format!("{node}.pem"), format!("{node}.key"));
        let keys = [
            ("tls.certificate", self.file(&pem)),
            ("tls.key", self.file(&key)),
            ("tls.client_authority", self.file("authority.pem")),
            ("tls.peer_certificate", peers.file(&pem)),
            ("tls.peer_key", peers.file(&key)),
            ("tls.peer_authority", peers.file("authority.pem")),
        ];
        keys.iter().flat_map(|(key, file)| ["--set".to_owned(), format!("{key}={file}")]).collect()
    }

    /// The options of a client.
    pub(crate) fn client(&self) -> [String; 6] {
        let flag = |flag: &str| flag.to_owned();
        [
            flag("--tls-authority"),
            self.file("authority.pem"),
            flag("--tls-certificate"),
            self.file("1.pem"),
            flag("--tls-key"),
            self.file("1.key"),
        ]
    }
}
