//! Which programs read objects: tokens, TLS, and no web page.

use super::client::{Client, few_bytes_at_a_time, listed, over_http2};
use super::store::{WAITS, served, small};
use super::wait_for;
use crate::pki::Authority;
use crate::support::{PATIENCE, Served};
use chiplog_net::listener::Settings;
use chiplog_net::listener::auth::roles::{Tokens, digest_of};
use chiplog_net::listener::tls::ServerTls;
use http_body_util::BodyExt as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tonic::body::Body;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

/// A page at a name that leads to this server would be let by the browser to read what the server answers.
#[tokio::test]
async fn web_pages_get_nothing() {
    let (server, _store) = small().await;
    let evil = "Host: evil.example:7411\r\n";
    for (host, path, code) in [
        ("", "/v1/objects", 200),
        ("Host: [::1]:7411\r\n", "/v1/objects", 200),
        ("Host: LOCALHOST\r\n", "/v1/objects", 200),
        (evil, "/v1/objects", 403),
        (evil, "/v1/objects/x", 403),
        (evil, "http://127.0.0.1/v1/objects", 403),
        ("Host: 127.0.0.1\r\n", "http://evil.example/v1/objects", 403),
        ("Host: 127.0.0.1\r\nHost: evil.example\r\n", "/v1/objects", 403),
    ] {
        let mut client = Client::of(&server).await;
        client.send_to(host, "GET", path, "").await;
        let answer = tokio::time::timeout(PATIENCE, client.answer(false)).await.expect("no answer");
        assert_eq!(answer.code, code, "{host} {path}: {answer:?}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.text().contains("evil.example"), code == 403, "{answer:?}");
    }
    for (origin, code) in [("http://evil.example:7411", 403), ("http://localhost:7411", 200)] {
        let endpoint = server.endpoint().origin(origin.parse().unwrap());
        let mut channel = endpoint.connect().await.unwrap();
        let request = http::Request::get("/v1/objects").body(Body::empty()).unwrap();
        assert_eq!(over_http2(&mut channel, request).await.unwrap().status(), code, "{origin}");
    }
    for (header, code) in [
        ("Origin: http://127.0.0.1:7411", 403),
        ("Origin: null", 403),
        ("Sec-Fetch-Site: same-origin", 403),
        ("Sec-Fetch-Site: cross-site", 403),
        ("Sec-Fetch-Site: none", 200),
    ] {
        let answer = Client::of(&server).await.get("/v1/objects", &[header]).await;
        assert_eq!(answer.code, code, "{header}: {answer:?}");
    }

    // With a token the name does not matter: pages have none.
    let tokens: Tokens = format!("read:{}\n", digest_of("secret")).parse().unwrap();
    let server = Served::with_tokens(Settings::default(), Some(tokens)).await;
    for (headers, code) in [("", 401), ("Authorization: Bearer secret\r\n", 200)] {
        let mut client = Client::of(&server).await;
        client.send_to("Host: log1.example\r\n", "GET", "/v1/objects", headers).await;
        let answer = tokio::time::timeout(PATIENCE, client.answer(false)).await.expect("no answer");
        assert_eq!(answer.code, code);
    }
}

#[tokio::test]
async fn tokens_are_checked_within_tls() {
    let ours = Authority::new();
    let mut settings = Settings::default();
    settings.tls = Some(ServerTls::new(&ours.leaf(&["log1"]).identity(None)).unwrap());
    let tokens = |roles: &[&str]| -> Tokens {
        let line = |role: &&str| {
            let (role, scope) = role.split_once(' ').unwrap_or((role, ""));
            format!("{role}:{} {scope}\n", digest_of(format!("{role} {scope}").trim()))
        };
        roles.iter().map(line).collect::<String>().replace(" \n", "\n").parse().unwrap()
    };
    let all = ["read", "append", "admin", "read logs=orders"];
    let sizes = (8 << 20, 6 << 20);
    let (server, store) = served(settings, Some(tokens(&all)), sizes, 6000).await;
    let connect = async |protocols: &[&[u8]]| {
        let stream = TcpStream::connect(&server.address).await.unwrap();
        let name = ServerName::try_from("log1").unwrap();
        Client { io: trusting(&ours, protocols).connect(name, stream).await.unwrap() }
    };
    let header = |token: &str| format!("Authorization: Bearer {token}");
    for protocols in [&[b"http/1.1".as_slice()][..], &[], &[b"http/1.0", b"http/1.1"]] {
        let mut client = connect(protocols).await;
        let none = client.get("/v1/objects", &[]).await.is(401, "no token was sent");
        assert_eq!(none.header("www-authenticate"), Some("Bearer"));
        client.get("/v1/objects", &[&header("x")]).await.is(401, "does not know the token");
        client.get("/v1/objects/x", &[]).await.is(401, "");
        client
            .get("/v1/objects", &[&header("read logs=orders")])
            .await
            .is(403, "use a token without a scope");
        for token in ["read", "append", "admin"] {
            let list = client.get("/v1/objects", &[&header(token)]).await.is(200, "default");
            assert!(!listed(&list.text()).is_empty());
        }
    }
    let mut client = connect(&[b"http/1.1"]).await;
    let list = client.get("/v1/objects", &[&header("read")]).await.text();
    let (name, bytes, _) = listed(&list).into_iter().max_by_key(|(_, bytes, _)| *bytes).unwrap();
    let path = format!("/v1/objects/{name}");
    assert_eq!(client.get(&path, &[&header("read")]).await.body.len() as u64, bytes);

    // HTTP/2, as gRPC's clients speak it.
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&ours.pem)).domain_name("log1");
    let endpoint = Endpoint::from_shared(format!("https://{}", server.address)).unwrap();
    let mut channel = endpoint.tls_config(tls).unwrap().connect().await.unwrap();
    for (token, code) in [("read", 206), ("x", 401)] {
        let request = http::Request::get(format!("https://log1{path}")).header("range", "bytes=0-9");
        let request = request.header("authorization", format!("Bearer {token}")).body(Body::empty()).unwrap();
        let answer = over_http2(&mut channel, request).await.unwrap();
        assert_eq!((answer.status().as_u16(), answer.version()), (code, http::Version::HTTP_2));
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body.len() == 10, code == 206, "{body:?}");
    }

    // An answer that has begun breaks off with its token, and one that has not is not sent.
    let stream = few_bytes_at_a_time(&server).await;
    let name = ServerName::try_from("log1").unwrap();
    let mut begun = Client { io: trusting(&ours, &[]).connect(name, stream).await.unwrap() };
    begun.send("GET", &path, &[&header("append")]).await;
    assert_eq!(begun.line().await.as_deref(), Some("HTTP/1.1 200 OK"));
    let before = store.gets.load(Ordering::SeqCst);
    store.set(WAITS);
    client.send("GET", &path, &[&header("append")]).await;
    wait_for(|| store.gets.load(Ordering::SeqCst) > before).await;
    server.access.replace(tokens(&["read"]));
    store.go_on();
    for (connection, most) in [(&mut client, 1000), (&mut begun, bytes as usize - 1)] {
        let mut rest = Vec::new();
        let reading = tokio::time::timeout(PATIENCE, connection.io.read_to_end(&mut rest)).await;
        // An error is an end, too: TLS without its goodbye.
        let ended = reading.expect("the connection stays open");
        assert!(rest.len() <= most, "{ended:?}: {} of {bytes} bytes", rest.len());
    }
    let mut client = connect(&[]).await;
    client.get(&path, &[&header("append")]).await.is(401, "does not know the token");
    assert_eq!(client.get(&path, &[&header("read")]).await.body.len() as u64, bytes);
}

/// A client over TLS that offers these protocols.
fn trusting(ours: &Authority, protocols: &[&[u8]]) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ours.pem.as_bytes()).unwrap()).unwrap();
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    TlsConnector::from(Arc::new(config))
}
