//! Counted channel: counts the bytes of answers as they arrive. A message can take long on a slow connection: a
//! server is silent when no byte arrives, not when no message is complete.

use bytes::Bytes;
use http_body::Frame;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response};

/// A connection whose answers are counted.
#[derive(Clone, Debug)]
pub(super) struct CountedChannel<S> {
    channel: S,
    bytes: Arc<AtomicU64>,
}

impl<S> CountedChannel<S> {
    pub(super) fn new(channel: S) -> Self {
        Self { channel, bytes: Arc::default() }
    }

    /// Bytes that have arrived so far.
    pub(super) fn bytes(&self) -> Arc<AtomicU64> {
        self.bytes.clone()
    }
}

impl<S, B> Service<Request<Body>> for CountedChannel<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = Response<Counted<B>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Counted<B>>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.channel.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let bytes = self.bytes.clone();
        let answer = self.channel.call(request);
        Box::pin(async move { Ok(answer.await?.map(|body| Counted { body, bytes })) })
    }
}

/// The body of a counted answer.
#[derive(Debug)]
pub(super) struct Counted<B> {
    body: B,
    bytes: Arc<AtomicU64>,
}

impl<B: http_body::Body<Data = Bytes, Error = Status> + Unpin> http_body::Body for Counted<B> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let bytes = frame.as_ref().and_then(|f| f.as_ref().ok()?.data_ref()).map_or(0, Bytes::len);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
