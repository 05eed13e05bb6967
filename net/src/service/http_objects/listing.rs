//! Listing: the objects or sealed segments of logs as JSON, made piece by piece while it is sent.
//!
//! Invariant: the list of a log has no gap: the numbers of objects follow each other, and the entries of segments. If some went while they
//! were listed, so that there would be one, the answer breaks off.
//!
//! Must not know: sockets.

use super::Kind;
use crate::listener::auth::tokens::Payer;
use crate::listener::plain_http::json_text;
use crate::served::log_slot::LogSlot;
use crate::service::store_access::{Stage as Access, StorePlaces};
use crate::wire::ids::to_hex;
use crate::wire::status::to_status;
use bytes::Bytes;
use chiplog::internal::{LogObject, SealedSegment};
use chiplog::{Error, ErrorKind, Index, Log};
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response};
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Arc;
use tonic::Status;
use tonic::body::Body;

/// The most rows that are made at a time: about 50 KB.
const ROWS_AT_A_TIME: usize = 256;

/// A log in a list.
pub(super) struct Shown {
    pub(super) name: String,
    pub(super) log: Log,
    /// Why its objects are not served, if so: it is a branch. The list has its own ones, and not those that it reads from other logs.
    pub(super) not_served: Option<String>,
}

/// Answers with the objects or segments of these logs. Rows of old objects can be in the object store alone: the call takes a place among
/// the requests to it for each piece with such rows.
///
/// # Errors
/// Those of the first piece, which is made before the answer.
pub(super) async fn respond(
    kind: Kind,
    logs: impl IntoIterator<Item = Shown>,
    host: Arc<LogSlot>,
    payer: Arc<Payer>,
) -> Result<Response<Body>, Status> {
    let listing = Listing::of(kind, logs.into_iter().collect(), ROWS_AT_A_TIME);
    let mut pieces = Pieces { listing, host, payer, made: None };
    pieces.made = pieces.make().await?;
    let pieces = stream::try_unfold(pieces, Pieces::next);
    let mut response = Response::new(super::answer::body(pieces));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// A list that is being made.
struct Listing {
    kind: Kind,
    /// The logs that are not listed to their end yet.
    logs: VecDeque<Shown>,
    /// Of the first of them: behind what was listed. None: nothing of it is listed yet.
    behind: Option<Behind>,
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

/// The end of a part of a list.
#[derive(Clone, Copy)]
struct Behind {
    /// The lowest number that the next row can have.
    number: u64,
    /// The beginning of the next row.
    begins: u64,
}

/// An object or a segment in a list.
struct Row {
    begins: u64,
    behind: Behind,
    text: String,
}

impl Listing {
    fn of(kind: Kind, logs: VecDeque<Shown>, at_a_time: usize) -> Self {
        Self { kind, logs, behind: None, stage: Stage::New, at_a_time }
    }

    /// The log whose objects are listed next, and the number of the first of them. None: there is none.
    fn next_objects(&self) -> Option<(Log, u64)> {
        let Shown { log, not_served, .. } = self.logs.front().filter(|_| self.kind == Kind::Objects)?;
        let first = if not_served.is_some() { log.own_objects_from() } else { 0 };
        Some((log.clone(), self.behind.map_or(first, |behind| behind.number)))
    }

    /// The next piece of the text, with these objects, of [`Self::next_objects`]. None: all was made.
    fn piece(&mut self, objects: &[LogObject]) -> Result<Option<String>, Status> {
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
        let kind = self.kind;
        let rows: Vec<Row> = match kind {
            Kind::Objects => objects.iter().map(row_of_object).collect(),
            // Records that are in none of them are in objects.
            Kind::Segments if not_served.is_some() => Vec::new(),
            Kind::Segments => {
                let from = self.behind.map_or(0, |behind| behind.number);
                let segments = log.sealed_segments(from, self.at_a_time);
                let segments = segments.map_err(|error| to_status(&error, None))?;
                let id = to_hex(log.log_id().get());
                segments.iter().map(|segment| row_of_segment(&id, segment)).collect()
            }
        };
        let what = match kind {
            Kind::Objects => "objects",
            Kind::Segments => "segments",
        };
        match (self.behind, rows.first()) {
            (Some(behind), Some(row)) if row.begins != behind.begins => {
                let what = format!("{what} of log {name:?} went while they were listed: list them again");
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
                _ = write!(text, "\"{what}\":[");
            }
        }
        self.stage = Stage::Begun;
        for (n, row) in rows.iter().enumerate() {
            text.push_str(if n == 0 && self.behind.is_none() { "\n" } else { ",\n" });
            text.push_str(&row.text);
        }
        self.behind = rows.last().map(|last| last.behind);
        if rows.len() < self.at_a_time {
            text.push_str("\n]}");
            self.logs.pop_front();
            self.behind = None;
        }
        Ok(Some(text))
    }
}

fn row_of_object(object: &LogObject) -> Row {
    let LogObject { number, name, first, next, timestamp, bytes, crc32c } = object;
    let mut text = format!("{{\"name\":{},\"number\":{number},", json_text(name));
    push_records(&mut text, *first, *next);
    _ = write!(text, "\"last_timestamp\":{},\"bytes\":{bytes},\"crc32c\":\"{crc32c:08x}\"}}", timestamp.0);
    Row { begins: *number, behind: Behind { number: number + 1, begins: number + 1 }, text }
}

fn row_of_segment(log: &str, segment: &SealedSegment) -> Row {
    let SealedSegment { number, first_entry, last_entry, first, next, timestamp, bytes } = segment;
    let name = Kind::Segments.name_of(*number);
    let mut text = format!("{{\"name\":\"{log}/{name}\",\"number\":{number},");
    push_records(&mut text, *first, *next);
    _ = write!(text, "\"first_entry\":{},\"last_entry\":{},", first_entry.0, last_entry.0);
    _ = write!(text, "\"last_timestamp\":{},\"bytes\":{bytes}}}", timestamp.0);
    let behind = Behind { number: number + 1, begins: last_entry.0 + 1 };
    Row { begins: first_entry.0, behind, text }
}

fn push_records(text: &mut String, first: Index, next: Index) {
    _ = match next > first {
        true => write!(text, "\"first\":{first},\"last\":{},", next.previous()),
        false => write!(text, "\"first\":null,\"last\":null,"),
    };
}

/// The pieces of a list that are not sent yet.
struct Pieces {
    listing: Listing,
    host: Arc<LogSlot>,
    payer: Arc<Payer>,
    /// The next one, if it is made already.
    made: Option<Bytes>,
}

impl Pieces {
    async fn next(mut self) -> Result<Option<(Bytes, Self)>, Status> {
        let piece = match self.made.take() {
            Some(made) => Some(made),
            None => self.make().await?,
        };
        Ok(piece.map(|piece| (piece, self)))
    }

    /// Makes the next piece. None: all were made.
    async fn make(&mut self) -> Result<Option<Bytes>, Status> {
        let stage = match self.listing.stage {
            Stage::New => Access::New,
            Stage::Begun | Stage::Ended => Access::Begun,
        };
        let objects = match self.listing.next_objects() {
            Some((log, number)) => {
                let places = StorePlaces::new(self.host.clone(), log, self.payer.clone());
                places.objects(stage, number, self.listing.at_a_time).await?
            }
            None => Vec::new(),
        };
        Ok(self.listing.piece(&objects)?.map(Bytes::from))
    }
}
