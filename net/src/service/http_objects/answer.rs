//! Answer: an object or a file, or a range of it, which is read while it is sent: 4 MiB at a time.
//!
//! Invariants:
//! - The first bytes are read before the request is answered: a source that does not answer is a status. An answer that has begun waits for
//!   its turn, and breaks off only if none comes for a long time.
//! - An answer with all bytes has those that its checksum is of, or breaks off before its end.
//!
//! Must not know: where the bytes are.

use super::range::{Selected, select};
use crate::listener::stalled_calls::PaidFor;
use crate::service::store_access::{READ_BYTES_MAX, Stage, pieces};
use crate::service::zero_copy::{Memory, paid};
use bytes::Bytes;
use chiplog::internal::Crc;
use data_encoding::BASE64;
use futures_util::{Stream, stream};
use http::header::{ACCEPT_RANGES, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body::Frame;
use std::collections::VecDeque;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};
use tonic::Status;
use tonic::body::Body;

/// The checksum of the whole object, whatever part of it an answer has (RFC 9530).
const REPR_DIGEST: HeaderName = HeaderName::from_static("repr-digest");

/// Where the bytes of an answer come from.
pub(super) trait Origin: Send + Sync + 'static {
    /// Reads these bytes, which are at most [`READ_BYTES_MAX`]. Returns the memory with them.
    fn read(
        &self,
        stage: Stage,
        range: Range<u64>,
    ) -> impl Future<Output = Result<(Bytes, Memory), Status>> + Send;

    /// The status of an answer all of whose bytes have this checksum, which is not the one that they should have.
    fn differs(&self, sum: u32) -> Status;
}

/// All of an object or a file of which an answer has a part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole {
    pub(super) bytes: u64,
    pub(super) crc32c: u32,
}

/// The status of an answer, and the bytes that it has.
type Head = (StatusCode, Range<u64>);

impl Whole {
    /// Answers a request with these headers.
    ///
    /// # Errors
    /// Those of `origin`.
    pub(super) async fn respond(
        self,
        headers: &HeaderMap,
        is_head: bool,
        origin: impl Origin,
    ) -> Result<Response<Body>, Status> {
        let head = self.select(headers, is_head);
        let left = head.1.clone();
        if left.is_empty() || is_head {
            return self.answer(head, Body::empty());
        }
        let sum = (left == (0..self.bytes)).then(Crc::default);
        let mut reading = Reading { origin, crc32c: self.crc32c, left, sum, pieces: VecDeque::new() };
        reading.fill(Stage::New).await?;
        let mut response = self.answer(head, body(stream::try_unfold(reading, Reading::next)))?;
        response.extensions_mut().insert(PaidFor);
        Ok(response)
    }

    fn tag(self) -> String {
        format!("\"crc32c-{:08x}\"", self.crc32c)
    }

    /// The answer to a request with these headers.
    fn select(self, headers: &HeaderMap, is_head: bool) -> Head {
        match select(headers, !is_head, &self.tag(), self.bytes) {
            Selected::Whole => (StatusCode::OK, 0..self.bytes),
            Selected::Part(range) => (StatusCode::PARTIAL_CONTENT, range),
            Selected::Beyond => (StatusCode::RANGE_NOT_SATISFIABLE, 0..0),
            Selected::NotModified => (StatusCode::NOT_MODIFIED, 0..0),
            Selected::PreconditionFailed => (StatusCode::PRECONDITION_FAILED, 0..0),
        }
    }

    /// An answer with these bytes of it.
    fn answer(self, (code, range): Head, body: Body) -> Result<Response<Body>, Status> {
        let digest = format!("crc32c=:{}:", BASE64.encode(&self.crc32c.to_be_bytes()));
        let shown = match code {
            StatusCode::PARTIAL_CONTENT => {
                Some(format!("bytes {}-{}/{}", range.start, range.end - 1, self.bytes))
            }
            StatusCode::RANGE_NOT_SATISFIABLE => Some(format!("bytes */{}", self.bytes)),
            _ => None,
        };
        let value = |text: &str| HeaderValue::from_str(text).map_err(|e| Status::internal(e.to_string()));
        let mut response = Response::new(body);
        *response.status_mut() = code;
        let headers = response.headers_mut();
        headers.insert(ETAG, value(&self.tag())?);
        headers.insert(REPR_DIGEST, value(&digest)?);
        headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        // A cache on the way must not give a client what it has fetched for another one with a token.
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-transform"));
        if let Some(shown) = shown {
            headers.insert(CONTENT_RANGE, value(&shown)?);
        }
        if code != StatusCode::NOT_MODIFIED {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
            headers.insert(CONTENT_LENGTH, (range.end - range.start).into());
        }
        Ok(response)
    }
}

/// Bytes that are being read.
struct Reading<O> {
    origin: O,
    crc32c: u32,
    left: Range<u64>,
    /// The checksum so far, if all bytes are read.
    sum: Option<Crc>,
    pieces: VecDeque<Bytes>,
}

impl<O: Origin> Reading<O> {
    async fn next(mut self) -> Result<Option<(Bytes, Self)>, Status> {
        if self.pieces.is_empty() && !self.left.is_empty() {
            self.fill(Stage::Begun).await?;
        }
        Ok(self.pieces.pop_front().map(|piece| (piece, self)))
    }

    /// Reads the next bytes.
    async fn fill(&mut self, stage: Stage) -> Result<(), Status> {
        let end = self.left.end.min(self.left.start + READ_BYTES_MAX);
        let (read, memory) = self.origin.read(stage, self.left.start..end).await?;
        self.left.start = end;
        self.sum = self.sum.take().map(|sum| sum.add(&read));
        if self.left.is_empty()
            && let Some(sum) = self.sum.take().map(Crc::sum)
            && sum != self.crc32c
        {
            return Err(self.origin.differs(sum));
        }
        self.pieces.extend(pieces(&read).map(|piece| paid(piece, &memory)));
        Ok(())
    }
}

/// The body of an answer whose bytes are these.
pub(super) fn body(pieces: impl Stream<Item = Result<Bytes, Status>> + Send + 'static) -> Body {
    Body::new(Streamed { pieces: Box::pin(pieces) })
}

struct Streamed {
    pieces: Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>,
}

impl http_body::Body for Streamed {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.pieces.as_mut().poll_next(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}
