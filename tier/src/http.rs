//! The HTTP clients of this crate: TLS by ring, time-outs; below the stores also proxies, and the last status that a call has seen.
//!
//! `object_store` keeps the status of a failed request in a private type. The client below the stores is between the two, and remembers
//! the status in the task that makes the call.
//!
//! Invariant: an attempt to which no answer begins ends after half of its request's time limit, which grows with the bytes that it sends.
//!
//! Must not know: which store it serves.

use crate::options::is_true;
use async_trait::async_trait;
use chiplog::{Error, ErrorKind, Result};
use http::StatusCode;
use http::header::CONTENT_LENGTH;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions};
use reqwest::redirect::Policy;
use rustls::client::WantsClientCert;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore};
use std::cell::RefCell;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// An answer of a store that was no success.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    /// The store's own code, for example `NoSuchBucket`; empty if it gave none.
    pub(crate) code: String,
}

tokio::task_local! {
    /// The answer to the last request of this call, if it was no success.
    static REFUSAL: RefCell<Option<Refusal>>;
}

/// Runs the work of one call. [`refusal`] works within it.
pub(crate) async fn remember_refusal<T>(work: impl Future<Output = T>) -> T {
    REFUSAL.scope(RefCell::new(None), work).await
}

/// The answer to the last request of this call, if there was one and it was no success.
pub(crate) fn refusal() -> Option<Refusal> {
    REFUSAL.try_with(|last| last.borrow().clone()).ok().flatten()
}

fn remember(refusal: Option<Refusal>) {
    let _ = REFUSAL.try_with(|last| last.replace(refusal)); // outside of a call, nobody asks
}

/// The authorities that this machine trusts.
pub(crate) fn machine_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// The settings of TLS with these authorities, so far without a certificate of this client.
///
/// # Errors
/// `Io`: TLS cannot be set up.
pub(crate) fn tls(roots: RootCertStore) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>> {
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| Error::with_cause(ErrorKind::Io, format!("cannot set up TLS: {e}"), e))?;
    Ok(builder.with_root_certificates(roots))
}

/// A request has its time limit once for each of as many bytes. Objects above this size go up in parts of at least this size, if the
/// store has parts.
pub(crate) const PART_BYTES: u64 = 8 << 20;

/// The time limit of a request that moves this many bytes: `timeout`, for each 8 MiB.
pub(crate) fn limit(timeout: Duration, bytes: u64) -> Duration {
    let parts = bytes.div_ceil(PART_BYTES).clamp(1, 1_000);
    timeout.saturating_mul(parts as u32)
}

/// The settings of every client, apart from the time that an answer may take. `timeout` is the limit of a call with all its attempts.
pub(crate) fn client_builder(tls: ClientConfig, timeout: Duration) -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .user_agent(concat!("chiplog/", env!("CARGO_PKG_VERSION")))
        .tls_backend_preconfigured(tls)
        .http1_only() // one connection a request is faster than streams of one connection
        .redirect(Policy::none()) // a signature or a token holds for one host
        .tcp_nodelay(true)
        .connect_timeout(CONNECT_TIMEOUT.min(timeout / 2))
}

/// Makes the clients of a store. All of them share their connections if they have the same options.
#[derive(Debug)]
pub(crate) struct Connector {
    tls: ClientConfig,
    has_roots: bool,
    timeout: Duration,
}

/// How long a connection may take; a working one takes far less.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

impl Connector {
    /// Reads the machine's certificates. `timeout` is the limit of a request with all its attempts.
    ///
    /// # Errors
    /// `Io`: TLS cannot be set up.
    pub(crate) fn new(timeout: Duration) -> Result<Self> {
        let roots = machine_roots();
        let has_roots = !roots.is_empty();
        Ok(Self { tls: tls(roots)?.with_no_client_auth(), has_roots, timeout })
    }

    fn client(&self, options: &ClientOptions) -> Result<Client, Box<dyn std::error::Error + Send + Sync>> {
        let value = |key| options.get_config_value(&key);
        let allow_http = value(ClientConfigKey::AllowHttp).is_some_and(|text| is_true(&text));
        if !allow_http && !self.has_roots {
            return Err("this machine has no certificates of authorities: install ca-certificates, or set SSL_CERT_FILE".into());
        }
        let builder = || {
            let mut builder = client_builder(self.tls.clone(), self.timeout).https_only(!allow_http);
            if let Some(url) = value(ClientConfigKey::ProxyUrl) {
                let excludes =
                    value(ClientConfigKey::ProxyExcludes).and_then(|e| reqwest::NoProxy::from_string(&e));
                builder = builder.proxy(reqwest::Proxy::all(url)?.no_proxy(excludes));
            }
            Ok::<_, reqwest::Error>(builder)
        };
        let general = builder()?.read_timeout(self.timeout / 2).build()?;
        Ok(Client { general, uploads: builder()?.build()?, timeout: self.timeout })
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = self.client(options);
        let client =
            client.map_err(|source| object_store::Error::Generic { store: "HTTP client", source })?;
        Ok(HttpClient::new(client))
    }
}

/// The clients below one store.
#[derive(Debug)]
struct Client {
    general: reqwest::Client,
    /// For large bodies: the time-out of the other counts while a body goes up, whatever its size.
    uploads: reqwest::Client,
    timeout: Duration,
}

impl Client {
    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let bytes = request.body().content_length() as u64;
        if bytes <= PART_BYTES {
            return self.general.call(request).await;
        }
        let limit = limit(self.timeout, bytes) / 2;
        let answer = timeout(limit, self.uploads.call(request)).await;
        answer.unwrap_or_else(|elapsed| Err(HttpError::new(HttpErrorKind::Timeout, elapsed)))
    }
}

/// The body of a refusal is read up to this size. Stores send less than 1 KiB.
const REFUSAL_BYTES_MAX: u64 = 64 << 10;

#[async_trait]
impl HttpService for Client {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        remember(None);
        let response = self.send(request).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        let (parts, body) = response.into_parts();
        let status = parts.status;
        let code = parts.headers.get("x-ms-error-code").and_then(|code| code.to_str().ok()); // Azure's
        remember(Some(Refusal { status, code: code.unwrap_or_default().to_owned() }));
        let length =
            parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        if code.is_some() || length.is_none_or(|length| length > REFUSAL_BYTES_MAX) {
            return Ok(HttpResponse::from_parts(parts, body));
        }
        let body = body.bytes().await?;
        let text = String::from_utf8_lossy(&body);
        let code = text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>")); // S3's, in XML
        if let Some((code, _)) = code {
            remember(Some(Refusal { status, code: code.to_owned() }));
        }
        Ok(HttpResponse::from_parts(parts, body.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_grow_with_the_bytes() {
        let second = Duration::from_secs(1);
        for (bytes, seconds) in [(0, 1), (8 << 20, 1), ((8 << 20) + 1, 2), (64 << 20, 8), (u64::MAX, 1_000)] {
            assert_eq!(limit(second, bytes), second * seconds);
        }
    }
}
