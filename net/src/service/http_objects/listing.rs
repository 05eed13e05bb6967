//! Listing: the objects of logs as JSON, made piece by piece while it is sent.
//!
//! Invariant: the numbers in the list of a log have no gap. If objects went while they were listed, so that there would be one, the
//! answer breaks off.
//!
//! Must not know: tokens, sockets.

use crate::listener::plain_http::json_text;
use crate::served::log_slot::abandoned;
use crate::wire::ids::to_hex;
use crate::wire::status::to_status;
use bytes::Bytes;
use chiplog::internal::LogObject;
use chiplog::{Error, ErrorKind, Log};
use futures_util::{Stream, stream};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response};
use std::collections::VecDeque;
use std::fmt::Write as _;
use tokio::task::spawn_blocking;
use tonic::Status;
use tonic::body::Body;

/// The most objects that are listed at a time: about 50 KB.
const OBJECTS_AT_A_TIME: usize = 256;

/// A log in a list.
pub(super) struct Shown {
    pub(super) name: String,
    pub(super) log: Log,
    /// Why its objects are not served, if so: it is a branch. The list has its own ones, and not those that it reads from other logs.
    pub(super) not_served: Option<String>,
}

/// Answers with the objects of these logs.
pub(super) fn respond(logs: impl IntoIterator<Item = Shown>) -> Response<Body> {
    let listing = Listing::of(logs.into_iter().collect(), OBJECTS_AT_A_TIME);
    let mut response = Response::new(super::bytes::body(pieces(listing)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A list that is being made.
struct Listing {
    /// The logs that are not listed to their end yet.
    logs: VecDeque<Shown>,
    /// Of the first of them: the number of the next object. None: nothing of it is listed yet.
    next: Option<u64>,
    stage: Stage,
    at_a_time: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing was made yet.
    New,
    Begun,
    Ended,
}

impl Listing {
    fn of(logs: VecDeque<Shown>, at_a_time: usize) -> Self {
        Self { logs, next: None, stage: Stage::New, at_a_time }
    }

    /// The next piece of the text. None: all was made.
    fn piece(&mut self) -> Result<Option<String>, Status> {
        let mut text = match self.stage {
            Stage::New => "{\"logs\":[".to_owned(),
            Stage::Begun => String::new(),
            Stage::Ended => return Ok(None),
        };
        let Some(Shown { name, log, not_served }) = self.logs.front() else {
            self.stage = Stage::Ended;
            text.push_str("\n]}\n");
            return Ok(Some(text));
        };
        let first = if not_served.is_some() { log.own_objects_from() } else { 0 };
        let objects = log.stored_objects(self.next.unwrap_or(first), self.at_a_time);
        let objects = objects.map_err(|error| to_status(&error, None))?;
        match (self.next, objects.first()) {
            (Some(next), Some(object)) if object.number != next => {
                let what = format!("objects of log {name:?} went while they were listed: list them again");
                return Err(to_status(&Error::new(ErrorKind::Unavailable, what), None));
            }
            (Some(_), _) => {}
            (None, _) => {
                let between = if self.stage == Stage::New { "" } else { "," };
                let (name, id) = (json_text(name), to_hex(log.log_id().get()));
                _ = write!(text, "{between}\n{{\"log\":{name},\"log_id\":\"{id}\",");
                if let Some(why) = not_served {
                    _ = write!(text, "\"not_served\":{},", json_text(why));
                }
                text.push_str("\"objects\":[");
            }
        }
        self.stage = Stage::Begun;
        for (n, object) in objects.iter().enumerate() {
            text.push_str(if n == 0 && self.next.is_none() { "\n" } else { ",\n" });
            push(&mut text, object);
        }
        self.next = objects.last().map(|last| last.number + 1);
        if objects.len() < self.at_a_time {
            text.push_str("\n]}");
            self.logs.pop_front();
            self.next = None;
        }
        Ok(Some(text))
    }
}

fn push(text: &mut String, object: &LogObject) {
    let LogObject { number, name, first, next, timestamp, bytes, crc32c } = object;
    _ = write!(text, "{{\"name\":{},\"number\":{number},", json_text(name));
    _ = match next > first {
        true => write!(text, "\"first\":{first},\"last\":{},", next.previous()),
        false => write!(text, "\"first\":null,\"last\":null,"),
    };
    _ = write!(text, "\"last_timestamp\":{},\"bytes\":{bytes},\"crc32c\":\"{crc32c:08x}\"}}", timestamp.0);
}

fn pieces(listing: Listing) -> impl Stream<Item = Result<Bytes, Status>> + Send + 'static {
    stream::try_unfold(listing, |mut listing| async move {
        // The rows of old objects can be in the object store alone.
        let making = spawn_blocking(move || (listing.piece(), listing));
        let (piece, listing) = making.await.map_err(|_| abandoned())?;
        Ok(piece?.map(|text| (Bytes::from(text), listing)))
    })
}
