//! Bytes: an object, or a range of it, read from the store while it is sent: 4 MiB at a time.
//!
//! Invariants:
//! - The first bytes are read before the request is answered: a store that does not answer is a status. An answer that has begun waits for
//!   its turn at the store, and breaks off only if none comes for a long time.
//! - An answer with a whole object has the bytes that the log's checksum is of, or breaks off before its end. A range is passed on as the
//!   store returned it, unless it is all of the object: its reader has the checksum of the whole.
//! - An object that the log has and the store has not is lost, which is no 404: that is the answer about an object that the log does not
//!   have.
//!
//! Must not know: what is in an object.

use super::Wanted;
use super::range::{Selected, select};
use crate::listener::auth::methods::OBJECTS;
use crate::listener::auth::tokens::Payer;
use crate::listener::stalled_calls::PaidFor;
use crate::served::log_slot::{LogSlot, abandoned, status_of};
use crate::service::store_access::{READ_BYTES_MAX, Stage, StoreAccess, pieces};
use crate::service::zero_copy::paid;
use crate::wire::status::from_status;
use bytes::Bytes;
use chiplog::internal::{Crc, LogObject};
use chiplog::{Error, ErrorKind, Log};
use data_encoding::BASE64;
use futures_util::{Stream, stream};
use http::header::{ACCEPT_RANGES, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body::Frame;
use std::collections::VecDeque;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::task::spawn_blocking;
use tonic::Status;
use tonic::body::Body;

/// The checksum of the whole object, whatever part of it an answer has (RFC 9530).
const REPR_DIGEST: HeaderName = HeaderName::from_static("repr-digest");

/// Answers a request for an object of a log.
///
/// # Errors
/// NOT_FOUND: the log has no such object. DATA_LOSS: it is damaged or lost in the store. UNIMPLEMENTED: there is no object store
/// here. RESOURCE_EXHAUSTED: there are too many requests. Those of the store, and of another object than the log's.
pub(super) async fn respond(
    host: Arc<LogSlot>,
    log: Log,
    wanted: Wanted<'_>,
    payer: Arc<Payer>,
) -> Result<Response<Body>, Status> {
    let Wanted { headers, is_head, number } = wanted;
    let object = find(&log, number).await?.ok_or_else(|| missing(&log, number))?;
    let access = StoreAccess::new(host, log, payer)?;
    let whole = Whole { bytes: object.bytes, crc32c: object.crc32c };
    let head = whole.select(headers, is_head);
    let range = head.1.clone();
    if range.is_empty() || is_head {
        return whole.answer(head, Body::empty());
    }
    let is_whole = range == (0..object.bytes);
    let mut reading =
        Reading { access, object, left: range, sum: is_whole.then(Crc::default), pieces: VecDeque::new() };
    reading.fill(Stage::New).await?;
    let read = stream::try_unfold(reading, Reading::next);
    let mut response = whole.answer(head, body(read))?;
    response.extensions_mut().insert(PaidFor);
    Ok(response)
}

/// All of an object or a file of which an answer has a part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole {
    pub(super) bytes: u64,
    pub(super) crc32c: u32,
}

/// The status of an answer, and the bytes that it has.
pub(super) type Head = (StatusCode, Range<u64>);

impl Whole {
    fn tag(self) -> String {
        format!("\"crc32c-{:08x}\"", self.crc32c)
    }

    /// The answer to a request with these headers.
    pub(super) fn select(self, headers: &HeaderMap, is_head: bool) -> Head {
        match select(headers, !is_head, &self.tag(), self.bytes) {
            Selected::Whole => (StatusCode::OK, 0..self.bytes),
            Selected::Part(range) => (StatusCode::PARTIAL_CONTENT, range),
            Selected::Beyond => (StatusCode::RANGE_NOT_SATISFIABLE, 0..0),
            Selected::NotModified => (StatusCode::NOT_MODIFIED, 0..0),
            Selected::PreconditionFailed => (StatusCode::PRECONDITION_FAILED, 0..0),
        }
    }

    /// An answer with these bytes of it.
    pub(super) fn answer(self, (code, range): Head, body: Body) -> Result<Response<Body>, Status> {
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

/// An object that is being read.
struct Reading {
    access: StoreAccess,
    object: LogObject,
    left: Range<u64>,
    /// The checksum so far, if the whole object is read.
    sum: Option<Crc>,
    pieces: VecDeque<Bytes>,
}

impl Reading {
    async fn next(mut self) -> Result<Option<(Bytes, Self)>, Status> {
        if self.pieces.is_empty() && !self.left.is_empty() {
            self.fill(Stage::Begun).await?;
        }
        Ok(self.pieces.pop_front().map(|piece| (piece, self)))
    }

    /// Reads the next bytes.
    async fn fill(&mut self, stage: Stage) -> Result<(), Status> {
        let end = self.left.end.min(self.left.start + READ_BYTES_MAX);
        let read = self.access.read(stage, &self.object.name, self.left.start..end).await;
        let (read, memory) = read.map_err(|status| self.of_store(status))?;
        self.left.start = end;
        self.sum = self.sum.take().map(|sum| sum.add(&read));
        if self.left.is_empty()
            && let Some(sum) = self.sum.take().map(Crc::sum)
            && sum != self.object.crc32c
        {
            let LogObject { name, crc32c, .. } = &self.object;
            let what = format!(
                "object {name} is damaged in the object store: its checksum is {sum:08x}, and that of the log's object {crc32c:08x}; a \
                 replica with its records repairs it, or read the records from the log"
            );
            tracing::warn!(name, "an object that was read over HTTP is damaged in the object store");
            return Err(self.access.status(&Error::new(ErrorKind::Corrupt, what)));
        }
        self.pieces.extend(pieces(&read).map(|piece| paid(piece, &memory)));
        Ok(())
    }

    /// The status of a failed request to the store. The caller's token is not what the store refuses, and an object that the log
    /// still has is not one that there is not.
    fn of_store(&self, status: Status) -> Status {
        let error = from_status(&status);
        let LogObject { number, name, .. } = &self.object;
        let (kind, what) = match error.kind() {
            ErrorKind::PermissionDenied => {
                (ErrorKind::Unavailable, format!("the object store refuses this server: {error}"))
            }
            ErrorKind::NotFound | ErrorKind::OutOfRange if self.access.log().has_stored_object(*number) => {
                tracing::warn!(name, %error, "an object that was read over HTTP is lost or cut off in the object store");
                let what = format!(
                    "object {name} is lost or cut off in the object store: {error}; a replica with its records repairs it, or read the \
                     records from the log"
                );
                (ErrorKind::Corrupt, what)
            }
            ErrorKind::NotFound | ErrorKind::OutOfRange => return missing(self.access.log(), *number),
            _ => return status,
        };
        self.access.status(&Error::new(kind, what))
    }
}

/// The object of this number, if the log has it. Its row can be in the object store alone.
async fn find(log: &Log, number: u64) -> Result<Option<LogObject>, Status> {
    if !log.has_stored_object(number) {
        return Ok(None);
    }
    let reading = log.clone();
    let found = spawn_blocking(move || reading.stored_objects(number, 1)).await.map_err(|_| abandoned())?;
    let mut found = found.map_err(|error| status_of(log, &error))?;
    Ok(found.pop().filter(|object| object.number == number))
}

/// The status of a request for an object that the log does not have.
fn missing(log: &Log, number: u64) -> Status {
    let what = format!(
        "log {:032x} has no stored object {number}: it is not stored yet, or all its records are discarded; GET {OBJECTS} lists those \
         there are",
        log.log_id().get()
    );
    status_of(log, &Error::new(ErrorKind::NotFound, what))
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
