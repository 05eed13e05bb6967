//! Service: the tonic service. It is the generated one, except for `Read`, whose answers are sent as they are in the
//! log. A call for another log is rejected first.

use super::LogService;
use crate::listener::memory_budget::Budgeted;
use crate::served::caller::Caller;
use crate::service::zero_copy::respond;
use crate::wire::proto::v1::ReadRequest;
use crate::wire::proto::v1::log_server::{LogServer, SERVICE_NAME};
use crate::wire::status::LOG_ID;
use bytes::Bytes;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{Service, StdError};
use tonic::server::NamedService;

const READ: &str = "/chiplog.v1.Log/Read";
/// Returns the server's log, so it is accepted with any log id.
const SERVER_INFO: &str = "/chiplog.v1.Log/ServerInfo";

/// The native service, to be added to a tonic server. Made by [`LogService::into_service`]. Cheap to clone.
///
/// ```
/// # use chiplog_net::served::log_slot::LogSlot;
/// # use chiplog_net::service::log::{LogService, NativeServer};
/// let service: NativeServer = LogService::new(LogSlot::new()).into_service();
/// let router = tonic::transport::Server::builder().add_service(service);
/// # drop(router);
/// ```
#[derive(Clone, Debug)]
pub struct NativeServer {
    native: Arc<LogService>,
    others: Budgeted<LogServer<LogService>>,
}

impl NativeServer {
    pub(super) fn new(native: LogService) -> Self {
        let bytes = native.options.message_bytes_max;
        let native = Arc::new(native);
        let others = LogServer::from_arc(native.clone()).max_decoding_message_size(bytes);
        let others = native.options.budget.over(others, bytes);
        Self { native, others }
    }
}

impl NamedService for NativeServer {
    const NAME: &'static str = SERVICE_NAME;
}

impl<B> Service<Request<B>> for NativeServer
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if request.uri().path() != SERVER_INFO
            && let Err(status) = self.native.host.check_log_id(request.headers())
        {
            return Box::pin(async move { Ok(status.into_http()) });
        }
        if request.uri().path() != READ {
            return self.others.call(request.map(Body::new));
        }
        let native = self.native.clone();
        let payer = native.options.budget.payer_of(request.extensions());
        let caller = Caller::of(request.extensions());
        let meant = request.headers().get(LOG_ID).map(|id| id.as_bytes().to_vec());
        Box::pin(async move {
            let reply =
                async |request: ReadRequest| native.replies(&request, &caller, meant.as_deref(), payer).await;
            Ok(respond(request, reply).await)
        })
    }
}
