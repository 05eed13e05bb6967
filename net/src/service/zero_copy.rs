//! Zero copy: the answers of a server-streaming call as encoded bytes, without a copy of large parts: the socket gets
//! the log's mapping. A generated service would copy every answer into its own buffer.
//!
//! The maker of an answer pays for its memory (its small parts, and everything that is not part of a mapping) before
//! the answer is made. The memory is held until HTTP/2 has dropped the last piece.
//!
//! Must not know: the contents of messages.

use crate::listener::auth::tokens::{Payer, Resource, Share, Spare};
use crate::listener::memory_budget::pieces;
use crate::listener::stalled_calls::PaidFor;
use crate::wire::status::trailers;
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::Stream;
use http_body::Frame;
use prost::encoding::{WireType, encode_key, encode_varint};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tonic::body::Body;
use tonic::codegen::StdError;
use tonic::codegen::http::header::CONTENT_TYPE;
use tonic::codegen::http::{Request, Response};
use tonic::metadata::GRPC_CONTENT_TYPE;
use tonic::{Status, Streaming};
use tonic_prost::ProstCodec;

/// Byte strings of at least this size are not copied. A smaller one would cost more as a separate piece than as a copy.
pub(crate) const SHARED_BYTES_MIN: usize = 8 << 10;
/// The head of a gRPC frame: the compression flag and the length.
const FRAME_HEAD_BYTES: usize = 5;
/// The largest request of such a call: numbers, and the name of a log.
const REQUEST_BYTES_MAX: usize = 4 << 10;

/// The answers of one call.
pub(crate) type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// An answer that can encode itself.
pub(crate) trait EncodeFrame: Send + 'static {
    /// Adds one gRPC frame, in chunks.
    fn encode(&self, chunks: &mut VecDeque<Bytes>);
}

/// The bytes of an answer that may be sent without a share, if no earlier one of them is pending: keep-alives and
/// positions reach a client while large answers wait for memory.
pub(crate) const SPARE_BYTES: usize = 4 << 10;

/// The memory that an answer's bytes hold until HTTP/2 has dropped them.
#[derive(Debug)]
pub(crate) enum Hold {
    /// A share of the memory for answers.
    Share(#[expect(dead_code, reason = "held")] Share),
    /// The call's right to one small message.
    Spare(#[expect(dead_code, reason = "held")] Spare),
}

/// The memory of an answer, held by its bytes. None: it is not counted.
pub(crate) type Memory = Option<Arc<Hold>>;

/// Pays for this number of bytes of an answer, once there is room.
pub(crate) async fn pay(payer: &Arc<Payer>, bytes: usize) -> Memory {
    let share = payer.take(Resource::Answers, pieces(bytes));
    let hold = if bytes <= SPARE_BYTES {
        tokio::select! {
            biased;
            spare = payer.spare() => Hold::Spare(spare),
            share = share => Hold::Share(share),
        }
    } else {
        Hold::Share(share.await)
    };
    Some(Arc::new(hold))
}

/// Takes memory for this number of bytes before they are read, once there is room.
pub(crate) async fn ahead(payer: &Arc<Payer>, bytes: usize) -> Share {
    payer.take(Resource::Answers, pieces(bytes)).await
}

/// Pays for bytes that were read, from the share that was taken for them. None: the share is too small. The caller then
/// drops the bytes and reads them again with a share of this size, because a call that waits for memory must hold no
/// uncounted memory. The caller also gives up its share: answers that hold some memory and wait for more could wait for
/// each other.
pub(crate) fn settle(mut share: Share, bytes: usize) -> Option<Memory> {
    if share.amount() < pieces(bytes) {
        return None;
    }
    share.shrink(pieces(bytes));
    Some(Some(Arc::new(Hold::Share(share))))
}

/// Bytes of an answer, with the memory that they hold.
struct Paid {
    bytes: Bytes,
    _memory: Arc<Hold>,
}

impl AsRef<[u8]> for Paid {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Has bytes hold their memory.
pub(crate) fn paid(bytes: Bytes, memory: &Memory) -> Bytes {
    match memory {
        Some(memory) => Bytes::from_owner(Paid { bytes, _memory: memory.clone() }),
        None => bytes,
    }
}

/// Builds one gRPC frame: copies small parts, shares large ones.
pub(crate) struct FrameWriter<'a> {
    pub(crate) head: BytesMut,
    chunks: &'a mut VecDeque<Bytes>,
    memory: Memory,
    /// Shared bytes take memory as well: they are not part of a mapping.
    all_is_paid: bool,
}

impl<'a> FrameWriter<'a> {
    /// `length`: of the message. `copied`: about how many of its bytes are small.
    pub(crate) fn new(
        length: usize,
        copied: usize,
        chunks: &'a mut VecDeque<Bytes>,
        memory: &Memory,
    ) -> Self {
        let mut head = BytesMut::with_capacity(FRAME_HEAD_BYTES + copied);
        head.put_u8(0);
        head.put_u32(length as u32);
        Self { head, chunks, memory: memory.clone(), all_is_paid: false }
    }

    /// Bytes that are shared from here on are not part of a mapping, and hold their memory.
    pub(crate) fn shares_memory(mut self) -> Self {
        self.all_is_paid = true;
        self
    }

    fn push_copied(&mut self) {
        if !self.head.is_empty() {
            let bytes = self.head.split().freeze();
            let bytes = self.paid(bytes);
            self.chunks.push_back(bytes);
        }
    }

    fn paid(&self, bytes: Bytes) -> Bytes {
        paid(bytes, &self.memory)
    }

    /// A field of bytes.
    pub(crate) fn bytes(&mut self, tag: u32, bytes: &Bytes) {
        self.shared(tag, bytes, self.all_is_paid);
    }

    /// A field of bytes that were made for this answer: not part of a mapping.
    pub(crate) fn made(&mut self, tag: u32, bytes: &Bytes) {
        self.shared(tag, bytes, true);
    }

    fn shared(&mut self, tag: u32, bytes: &Bytes, is_paid: bool) {
        encode_key(tag, WireType::LengthDelimited, &mut self.head);
        encode_varint(bytes.len() as u64, &mut self.head);
        if bytes.len() < SHARED_BYTES_MIN {
            self.head.put_slice(bytes);
        } else {
            self.push_copied();
            let bytes = if is_paid { self.paid(bytes.clone()) } else { bytes.clone() };
            self.chunks.push_back(bytes);
        }
    }

    /// A field of few bytes.
    pub(crate) fn small(&mut self, tag: u32, bytes: &[u8]) {
        encode_key(tag, WireType::LengthDelimited, &mut self.head);
        encode_varint(bytes.len() as u64, &mut self.head);
        self.head.put_slice(bytes);
    }

    /// Completes the frame.
    pub(crate) fn end(mut self) {
        self.push_copied();
    }
}

/// The body of a response.
struct Frames<T> {
    /// None: everything was sent.
    answers: Option<Answers<T>>,
    chunks: VecDeque<Bytes>,
}

impl<T: EncodeFrame> http_body::Body for Frames<T> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            if let Some(chunk) = self.chunks.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(chunk))));
            }
            let Some(answers) = &mut self.answers else { return Poll::Ready(None) };
            let status = match ready!(answers.as_mut().poll_next(context)) {
                Some(Ok(answer)) => {
                    answer.encode(&mut self.chunks);
                    continue;
                }
                Some(Err(status)) => status,
                None => Status::ok(""),
            };
            self.answers = None;
            return Poll::Ready(Some(trailers(&status)));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.answers.is_none() && self.chunks.is_empty()
    }
}

/// Answers a server-streaming call: reads its one request, and streams the answers that `begin` returns.
pub(crate) async fn respond<B, Q, T, F>(request: Request<B>, begin: impl FnOnce(Q) -> F) -> Response<Body>
where
    F: Future<Output = Result<Answers<T>, Status>>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
    Q: prost::Message + Default + 'static,
    T: EncodeFrame,
{
    let decoder = ProstCodec::<(), Q>::raw_decoder(Default::default());
    let body = crate::listener::memory_budget::small(Body::new(request.into_body()));
    let mut requests = Streaming::new_request(decoder, body, None, Some(REQUEST_BYTES_MAX));
    let answers = match requests.message().await {
        Ok(Some(request)) => begin(request).await,
        Ok(None) => Err(Status::invalid_argument("the call has no request message")),
        Err(status) => Err(status),
    };
    match answers {
        Ok(answers) => {
            let frames = Frames { answers: Some(answers), chunks: VecDeque::new() };
            let mut response = Response::new(Body::new(frames));
            response.headers_mut().insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
            response.extensions_mut().insert(PaidFor);
            response
        }
        Err(status) => status.into_http(),
    }
}
