//! Service: the tonic service `logspec.Log`. It is the generated one, except for `Read`, whose answers are sent as they
//! are in the log, or as they were decompressed.

use super::LogspecService;
use crate::listener::memory_budget::Budgeted;
use crate::service::zero_copy::respond;
use crate::wire::proto::logspec::ReadRequest;
use crate::wire::proto::logspec::log_server::{LogServer, SERVICE_NAME};
use bytes::Bytes;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{Service, StdError};
use tonic::server::NamedService;

const READ: &str = "/logspec.Log/Read";

/// The service `logspec.Log`, to be added to a tonic server. Made by [`LogspecService::into_server`]. Cheap to clone.
///
/// ```
/// # use chiplog_net::served::log_slot::LogSlot;
/// # use chiplog_net::service::logspec::{Limits, LogspecServer, LogspecService};
/// let service: LogspecServer = LogspecService::new(LogSlot::new(), Limits::default()).into_server();
/// let router = tonic::transport::Server::builder().add_service(service);
/// # drop(router);
/// ```
#[derive(Clone, Debug)]
pub struct LogspecServer {
    logspec: LogspecService,
    others: Budgeted<LogServer<LogspecService>>,
}

impl LogspecServer {
    pub(super) fn new(logspec: LogspecService) -> Self {
        let limits = logspec.limits.clone();
        let server = LogServer::new(logspec.clone())
            .max_decoding_message_size(limits.message_bytes_max)
            .max_encoding_message_size(usize::MAX);
        Self { logspec, others: limits.budget.over(server, limits.message_bytes_max) }
    }
}

impl NamedService for LogspecServer {
    const NAME: &'static str = SERVICE_NAME;
}

impl<B> Service<Request<B>> for LogspecServer
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
        if request.uri().path() != READ {
            return self.others.call(request.map(Body::new));
        }
        let logspec = self.logspec.clone();
        let payer = logspec.limits.budget.payer_of(request.extensions());
        let extensions = request.extensions().clone();
        Box::pin(async move {
            let replies = async |request: ReadRequest| {
                let log = logspec.log(&extensions).await?;
                Ok(logspec.replies(log.log, &request, payer))
            };
            Ok(respond(request, replies).await)
        })
    }
}
