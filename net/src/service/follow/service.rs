//! Service: the tonic service `chiplog.v1.Follow`. Not the generated one: answers are sent as they are in the log.

use super::{Follow, objects, source};
use crate::served::caller::Caller;
use crate::service::zero_copy::respond;
use crate::wire::proto::v1::FollowRequest;
use crate::wire::proto::v1::follow_server::SERVICE_NAME;
use bytes::Bytes;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{Service, StdError};
use tonic::server::NamedService;

const FOLLOW: &str = "/chiplog.v1.Follow/Follow";
const READ_OBJECT: &str = "/chiplog.v1.Follow/ReadObject";
const OBJECT_SIZE: &str = "/chiplog.v1.Follow/ObjectSize";

/// The service, to be added to a tonic server. Made by [`Follow::into_service`]. Cheap to clone.
///
/// ```
/// # use chiplog_net::service::follow::{Follow, FollowServer};
/// # use chiplog_net::served::log_slot::LogSlot;
/// let service: FollowServer = Follow::new(LogSlot::new()).into_service();
/// let router = tonic::transport::Server::builder().add_service(service);
/// # drop(router);
/// ```
#[derive(Clone, Debug)]
pub struct FollowServer(Arc<Follow>);

impl FollowServer {
    pub(super) fn new(follow: Follow) -> Self {
        Self(Arc::new(follow))
    }
}

impl NamedService for FollowServer {
    const NAME: &'static str = SERVICE_NAME;
}

impl<B> Service<Request<B>> for FollowServer
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
        let Self(follow) = self.clone();
        let payer = follow.budget.payer_of(request.extensions());
        let caller = Caller::of(request.extensions());
        let path = request.uri().path().to_owned();
        Box::pin(async move {
            Ok(match path.as_str() {
                FOLLOW => {
                    let begin = async |request: FollowRequest| {
                        source::begin(&follow.host, &caller, &request, follow.response_bytes, payer).await
                    };
                    respond(request, begin).await
                }
                READ_OBJECT => {
                    respond(request, async |asked| objects::read(&follow, &caller, asked, payer).await).await
                }
                OBJECT_SIZE => {
                    respond(request, async |asked| objects::size(&follow, &caller, asked, payer).await).await
                }
                _ => Status::unimplemented("this service has no such call").into_http(),
            })
        })
    }
}
