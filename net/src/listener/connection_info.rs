//! ConnectionInfo: the data about a call's connection that services use.
//!
//! Every call on a [`Connection`](crate::listener::connection::Connection) has it in its request's extensions, with TLS
//! and without.

use crate::listener::auth::tokens::{Accounts, Payer, Resource, Share};
use crate::listener::bill::Bill;
use crate::listener::connection_limit::{Seat, address};
use crate::listener::stalled_calls::{Calls, Weight};
use crate::listener::tls::names_node;
use chiplog::NodeId;
use http::{Request, Response};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tower_layer::Layer;

/// A connection, as services see it. Cheap to clone.
///
/// ```
/// use chiplog_net::listener::connection_info::ConnectionInfo;
/// fn who<T>(request: &tonic::Request<T>) -> Option<std::net::SocketAddr> {
///     request.extensions().get::<ConnectionInfo>().map(ConnectionInfo::remote)
/// }
/// assert_eq!(who(&tonic::Request::new(())), None, "the call did not come through this module's listener");
/// ```
#[derive(Clone, Debug)]
pub struct ConnectionInfo {
    inner: Arc<Inner>,
}

/// A listener that is for one named log, as far as `logspec.Log` is concerned.
#[derive(Debug)]
pub(crate) struct LogPort {
    /// The log's name.
    pub(crate) log: String,
    /// Its port.
    pub(crate) port: u16,
}

#[derive(Debug)]
struct Inner {
    remote: SocketAddr,
    log_port: Option<Arc<LogPort>>,
    secret: bool,
    certificate: Option<CertificateDer<'static>>,
    calls: Arc<Calls>,
    payer: OnceLock<Arc<Payer>>,
    /// The tokens used on it, by their digests, each with its place among the token's connections.
    tokens: Mutex<Vec<([u8; 32], Share)>>,
    seat: Seat,
}

impl ConnectionInfo {
    /// `secret`: over TLS. `certificate`: the client's, verified. `log_port`: None at the listener for all clients.
    pub(crate) fn new(
        remote: SocketAddr,
        secret: bool,
        certificate: Option<CertificateDer<'static>>,
        seat: Seat,
        log_port: Option<Arc<LogPort>>,
    ) -> Self {
        let calls = Calls::new();
        seat.of_calls(&calls);
        if certificate.is_some() {
            seat.prove();
        }
        let (payer, tokens) = (OnceLock::new(), Mutex::default());
        let inner = Inner { remote, log_port, secret, certificate, calls, payer, tokens, seat };
        Self { inner: Arc::new(inner) }
    }

    /// The client's address.
    pub fn remote(&self) -> SocketAddr {
        self.inner.remote
    }

    /// The listener, if it is for one named log.
    pub(crate) fn log_port(&self) -> Option<&Arc<LogPort>> {
        self.inner.log_port.as_ref()
    }

    /// Whether it is over TLS.
    pub fn is_secret(&self) -> bool {
        self.inner.secret
    }

    /// The client's certificate (DER), signed by the listener's authority; None: it sent none.
    pub fn certificate(&self) -> Option<&[u8]> {
        self.inner.certificate.as_deref()
    }

    /// Whether the client's certificate belongs to this replica: it contains
    /// [`node_name`](crate::listener::tls::node_name).
    pub fn is_node(&self, node: NodeId) -> bool {
        self.inner.certificate.as_ref().is_some_and(|c| names_node(c, node))
    }

    /// A call with limited access was let in: the connection keeps its place.
    pub(crate) fn prove(&self) {
        self.inner.seat.prove();
    }

    /// An open call of this method was rejected.
    pub(crate) fn refused(&self, method: &str) {
        if weight_of(method) == Weight::Full {
            self.inner.calls.refused();
        }
    }

    /// Counts a call with this token, which `payer` pays for. False: the token is used on too many connections. A
    /// connection that uses no other token is then unproven.
    pub(crate) fn shows(&self, token: [u8; 32], payer: &Arc<Payer>) -> bool {
        let mut tokens = self.inner.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        if tokens.iter().any(|(shown, _)| *shown == token) {
            return true;
        }
        match payer.try_take(Resource::Connections, 1) {
            Ok(share) => tokens.push((token, share)),
            Err(_) if tokens.is_empty() && self.inner.certificate.is_none() => {
                self.inner.seat.disprove();
                return false;
            }
            Err(_) => return false,
        }
        true
    }

    pub(crate) fn calls(&self) -> &Arc<Calls> {
        &self.inner.calls
    }

    /// The payer of the connection, without a token. Its account is created at the first call.
    pub(crate) fn payer(&self, accounts: &Arc<Accounts>) -> &Arc<Payer> {
        self.inner.payer.get_or_init(|| accounts.connection(address(self.inner.remote.ip())))
    }
}

/// Every client may check a server's health: that call does not keep its connection's place.
const HEALTH: &str = "/grpc.health.v1.Health/";
/// Every client may watch it without limit: this call alone does not keep a connection open.
const WATCH: &str = "/grpc.health.v1.Health/Watch";

fn weight_of(method: &str) -> Weight {
    match method {
        WATCH => Weight::Quiet,
        _ if method.starts_with(HEALTH) => Weight::Light,
        _ => Weight::Full,
    }
}

/// Tracks the calls of connections: without it, idle connections and slow readers cannot be distinguished from busy
/// ones. The outermost layer of a server; part of [`listener::server`](crate::listener::server).
///
/// ```
/// use chiplog_net::listener::connection_info::CallLayer;
/// let server = tonic::transport::Server::builder().layer(CallLayer);
/// # drop(server);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct CallLayer;

impl<S> Layer<S> for CallLayer {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted { inner }
    }
}

/// A service within a [`CallLayer`].
///
/// ```
/// use chiplog_net::listener::connection_info::{CallLayer, Counted};
/// use tower_layer::Layer;
/// let counted: Counted<&str> = CallLayer.layer("a service");
/// # drop(counted);
/// ```
#[derive(Clone, Debug)]
pub struct Counted<S> {
    inner: S,
}

/// The answer of a layer of a listener.
pub(super) type Answering<E> = Pin<Box<dyn Future<Output = Result<Response<Body>, E>> + Send>>;

/// The answer to a call that a layer refuses. Its connection learns of it.
pub(super) fn refuse_call<E: Send + 'static>(request: &Request<Body>, status: Status) -> Answering<E> {
    if let Some(arrival) = request.extensions().get::<ConnectionInfo>() {
        arrival.refused(request.uri().path());
    }
    Box::pin(std::future::ready(Ok(status.into_http())))
}

impl<S> Service<Request<Body>> for Counted<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Answering<S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let (arrival, bill) = (request.extensions().get::<ConnectionInfo>(), Bill::default());
        let weight = weight_of(request.uri().path());
        let call = arrival.map(|arrival| arrival.calls().begin(bill.clone(), weight));
        request.extensions_mut().insert(bill);
        let answering = self.inner.call(request);
        Box::pin(async move {
            let response = answering.await?;
            Ok(match call {
                Some(call) => call.answer(response),
                None => response,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::connection_limit::Places;

    /// A rejected watch was counted as open, and a later call of full weight counted as rejected.
    #[tokio::test]
    async fn rejected_health_calls_leave_no_count() {
        let (place, _) = Places::new(1, 1).take([127, 0, 0, 1].into()).unwrap();
        let arrival = ConnectionInfo::new("127.0.0.1:1".parse().unwrap(), false, None, place.seat(), None);
        for method in ["/grpc.health.v1.Health/Check", WATCH] {
            let call = arrival.calls().begin(Bill::default(), weight_of(method));
            arrival.refused(method);
            drop(call);
        }
        let method = "/chiplog.v1.Log/Info";
        let call = arrival.calls().begin(Bill::default(), weight_of(method));
        assert!(arrival.calls().has_one_let_in());
        arrival.refused(method);
        assert!(!arrival.calls().has_one_let_in());
        drop(call);
    }
}
