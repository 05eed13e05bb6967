//! Variables of the environment, and certificates of one's own authority. The vault runs in a child process: a process with
//! threads must not change its environment.

use crate::s3_server::S3Server;
use chiplog::vault::Vault;
use chiplog_tier::{ObjectVault, VaultOptions};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use std::path::{Path, PathBuf};
use std::process::Command;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// The part of the tests below that is in the child. By itself it does nothing.
#[test]
fn child() {
    if std::env::var_os("CHIPLOG_TIER_CHILD").is_none() {
        return;
    }
    let vault =
        ObjectVault::open("s3://bucket/p", VaultOptions::default().retries(0)).map_err(|e| e.to_string());
    let outcome = vault.and_then(|vault| {
        vault.put("o/7", &["seven".into()]).map_err(|e| format!("{e:?}"))?;
        Ok(vault.get("o/7", 0..5).unwrap())
    });
    println!("outcome: {outcome:?}");
}

/// Runs the child with these variables and the keys, and returns its outcome.
fn outcome(variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "environment::child", "--nocapture"]);
    for (name, _) in std::env::vars() {
        if name.starts_with("AWS_") || name.starts_with("SSL_") {
            command.env_remove(name);
        }
    }
    command.env("CHIPLOG_TIER_CHILD", "1");
    command
        .env("AWS_ACCESS_KEY_ID", "key")
        .env("AWS_SECRET_ACCESS_KEY", "secret")
        .env("AWS_REGION", "eu-west-1");
    let output = command.envs(variables.iter().copied()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_once("outcome: ").unwrap().1.lines().next().unwrap().to_owned()
}

#[test]
fn variables_give_keys_and_endpoint() {
    let server = S3Server::start();
    let endpoint = server.options.endpoint.as_deref().unwrap();
    let allowed = outcome(&[("AWS_ENDPOINT_URL", endpoint), ("AWS_ALLOW_HTTP", "1")]);
    assert_eq!(allowed, r#"Ok(b"seven")"#);
    let refused = outcome(&[("AWS_ENDPOINT_URL", endpoint)]);
    assert!(refused.contains("allow_http"), "{refused}");
    let wrong_key =
        [("AWS_ENDPOINT_URL", endpoint), ("AWS_ALLOW_HTTP", "1"), ("AWS_SECRET_ACCESS_KEY", "wrong")];
    assert!(outcome(&wrong_key).contains("permission_denied"));
}

/// A server's TLS, and the file with the certificate of its authority.
pub(crate) fn tls(dir: &Path) -> (ServerConfig, PathBuf) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key).unwrap();
    let file = dir.join("authority.pem");
    std::fs::write(&file, authority.pem()).unwrap();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(["localhost".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    let config = ServerConfig::builder_with_provider(ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![leaf.der().clone()],
            PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
        )
        .unwrap();
    (config, file)
}

#[test]
fn tls_trusts_the_authority_of_ssl_cert_file_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (config, authority) = tls(dir.path());
    let (_, other) = {
        let folder = dir.path().join("other");
        std::fs::create_dir(&folder).unwrap();
        tls(&folder)
    };
    let server = S3Server::with_tls(Some(config));
    let endpoint = server.options.endpoint.as_deref().unwrap();
    let with =
        |file: &Path| outcome(&[("AWS_ENDPOINT_URL", endpoint), ("SSL_CERT_FILE", file.to_str().unwrap())]);
    assert_eq!(with(&authority), r#"Ok(b"seven")"#);
    let refused = with(&other);
    assert!(refused.contains("unavailable") && refused.contains("certificate"), "{refused}");
    let empty = dir.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    assert!(with(&empty).contains("SSL_CERT_FILE"), "{}", with(&empty));
}
