//! TLS: the clients that are let in and those that are not; HTTP/2 authorities rewritten within it; certificates
//! replaced at run time.

use crate::pki::Authority;
use crate::support::{PATIENCE, Served};
use chiplog::ErrorKind;
use chiplog_net::client::{Client, ClientOptions, ClientTls};
use chiplog_net::listener::Settings;
use chiplog_net::listener::tls::ServerTls;
use chiplog_net::served::refusals::Refusal;
use chiplog_net::wire::connect_error::TlsMismatch;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

const HOST: &str = "log1.example";

fn settings(tls: &Arc<ServerTls>) -> Settings {
    let mut settings = Settings::default();
    settings.tls = Some(tls.clone());
    settings
}

#[track_caller]
fn refused(asked: Result<(), String>, words: &[&str]) {
    let why = asked.expect_err("the call succeeded");
    assert!(words.iter().any(|w| why.contains(w)), "{why}");
}

#[tokio::test]
async fn only_clients_with_the_right_authority_and_name_connect() {
    let (ours, foreign) = (Authority::new(), Authority::new());
    let tls = ServerTls::new(&ours.leaf(&[HOST]).identity(None)).unwrap();
    let server = Served::start(settings(&tls)).await;
    server.ask(&ours, HOST, None).await.unwrap();
    refused(server.ask(&foreign, HOST, None).await, &["UnknownIssuer", "BadSignature"]);
    refused(server.ask(&ours, "log2.example", None).await, &["NotValidForName"]);
    server.refused(Refusal::Handshake, 2).await;
    // Plain bytes are not a handshake; and a server without TLS does not answer a TLS client.
    assert!(server.ask_plainly().await.is_err());
    server.refused(Refusal::Handshake, 3).await;
    let plain = Served::start(Settings::default()).await;
    assert!(plain.ask(&ours, HOST, None).await.is_err());
}

/// A listener rejects it, and clients do not trust a server that has one.
#[tokio::test]
async fn expired_certificate_is_rejected_by_both_sides() {
    let ours = Authority::new();
    let expired = ours.expired(&["127.0.0.1"]);
    let why = ServerTls::new(&expired.identity(None)).unwrap_err().to_string();
    assert!(why.contains("the certificate expired at "), "{why}");

    let chain = CertificateDer::pem_slice_iter(expired.certificate.as_bytes()).map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_slice(expired.key.as_bytes()).unwrap();
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let acceptor =
        TlsAcceptor::from(Arc::new(config.with_no_client_auth().with_single_cert(chain, key).unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serving = tokio::spawn(async move {
        loop {
            let _ = acceptor.accept(listener.accept().await.unwrap().0).await;
        }
    });
    let mut options = ClientOptions::default();
    options.tls = Some(ClientTls { authority: ours.pem.clone().into_bytes(), identity: None });
    let error = Client::connect([&address], options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let (told, error) = (format!("{address}: the server's certificate expired at "), error.to_string());
    assert!(error.starts_with(&told), "{error}");
    serving.abort();
}

/// A client that did not use TLS only got "h2 protocol error: http2 error".
#[tokio::test]
async fn tls_mismatch_is_reported() {
    let (ours, foreign) = (Authority::new(), Authority::new());
    let tls = ServerTls::new(&ours.leaf(&["127.0.0.1"]).identity(None)).unwrap();
    let (secured, plain) = (Served::start(settings(&tls)).await, Served::start(Settings::default()).await);
    let trust = |authority: &Authority| {
        Some(ClientTls { authority: authority.pem.clone().into_bytes(), identity: None })
    };
    for (server, tls, mismatch) in [
        (&secured, None, TlsMismatch::Wanted),
        (&plain, trust(&ours), TlsMismatch::NotSpoken),
        (&secured, trust(&foreign), TlsMismatch::Untrusted),
    ] {
        let mut options = ClientOptions::default();
        (options.tls, options.timeout) = (tls, Duration::from_secs(5));
        let error = Client::connect([&server.address], options).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert_eq!(error.to_string(), format!("{}: {mismatch}", server.address), "only the explanation");
    }
    let mut options = ClientOptions::default();
    options.tls = trust(&ours);
    Client::connect([&secured.address], options).await.unwrap();
}

#[tokio::test]
async fn required_client_certificates_must_be_valid() {
    let (ours, clients, foreign) = (Authority::new(), Authority::new(), Authority::new());
    let tls = ServerTls::new(&ours.leaf(&[HOST]).identity(Some(&clients))).unwrap();
    let server = Served::start(settings(&tls)).await;
    let good = clients.leaf(&["somebody"]);
    server.ask(&ours, HOST, Some(&good)).await.unwrap();
    server.refused(Refusal::Handshake, 0).await;
    for (n, shown) in [
        (1, None),
        (2, Some(foreign.leaf(&["somebody"]))),
        (3, Some(ours.leaf(&["somebody"]))),
        (4, Some(clients.expired(&["somebody"]))),
    ] {
        assert!(server.ask(&ours, HOST, shown.as_ref()).await.is_err(), "{n}");
        server.refused(Refusal::Handshake, n).await;
    }
    server.ask(&ours, HOST, Some(&good)).await.unwrap();
}

#[tokio::test]
async fn replaced_identity_applies_to_new_connections() {
    let (old, new) = (Authority::new(), Authority::new());
    let tls = ServerTls::new(&old.leaf(&[HOST]).identity(Some(&old))).unwrap();
    let server = Served::start(settings(&tls)).await;
    let (old_client, new_client) = (old.leaf(&["c"]), new.leaf(&["c"]));
    server.ask(&old, HOST, Some(&old_client)).await.unwrap();
    tls.replace(&new.leaf(&[HOST]).identity(Some(&new))).unwrap();
    server.ask(&new, HOST, Some(&new_client)).await.unwrap();
    assert!(server.ask(&old, HOST, Some(&old_client)).await.is_err());
    assert!(server.ask(&new, HOST, Some(&old_client)).await.is_err());
    // An invalid identity changes nothing.
    let mut broken = old.leaf(&[HOST]).identity(Some(&old));
    broken.key.truncate(60);
    tls.replace(&broken).unwrap_err();
    server.ask(&new, HOST, Some(&new_client)).await.unwrap();
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Clients that send an invalid host name in HTTP/2 are served within TLS as without.
#[tokio::test]
async fn any_authority_is_served_within_tls() {
    let ours = Authority::new();
    let tls = ServerTls::new(&ours.leaf(&[HOST]).identity(None)).unwrap();
    let server = Served::start(settings(&tls)).await;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ours.pem.as_bytes()).unwrap()).unwrap();
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TcpStream::connect(&server.address).await.unwrap();
    let name = ServerName::try_from(HOST).unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();

    let mut block = vec![0x83, 0x87]; // POST, https
    let authority = "StaticLocator(len=3, first=tcp://log1.example:7000)";
    for (name, value) in [(4, "/logspec.Log/Discard"), (1, authority), (31, "application/grpc")] {
        block.extend_from_slice(&[0x40 | name, value.len() as u8]);
        block.extend_from_slice(value.as_bytes());
    }
    block.extend_from_slice(b"\x40\x02te\x08trailers");
    let mut call = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    call.extend(frame(4, 0, 0, b""));
    call.extend(frame(1, 4, 1, &block));
    call.extend(frame(0, 1, 1, b"\0\0\0\0\x02\x08\x01"));
    stream.write_all(&call).await.unwrap();
    let reading = async {
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).await.unwrap();
            let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
            stream.read_exact(&mut payload).await.unwrap();
            assert!(![3, 7].contains(&head[3]), "reset or going away: {payload:?}");
            if head[3] == 0 {
                return payload;
            }
        }
    };
    let answer = tokio::time::timeout(PATIENCE, reading).await.expect("no answer");
    assert_eq!(answer, b"\0\0\0\0\x02\x0a\x00");
}
