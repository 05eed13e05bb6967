//! Requests to a server, attempt after attempt, and the checks of their answers.
//!
//! Invariants:
//! - An object that is read as a whole has the checksum that the log says.
//! - Bytes are those of the range and the object that were asked for: the answer says so in `Content-Range` and `ETag`.
//! - An attempt without a byte that arrives uses up a call's time: no server makes a call go on for ever by answering.
//!
//! Must not know: raft, segments, how the server is reached.

use super::connection::Server;
use super::failures::{Failed, broken, refused, stranger, unsent};
use super::listing::{Kind, Listed, OBJECT_BYTES_MAX, parse};
use bytes::{Bytes, BytesMut};
use chiplog::internal::Crc;
use chiplog::{Error, ErrorKind, Result};
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, ETAG, IF_MATCH, RANGE};
use http::{HeaderMap, HeaderName, Method, StatusCode};
use reqwest::Response;
use std::ops::Range;
use std::sync::mpsc::Sender;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// The waits between attempts grow from the first to the last of these.
const WAITS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];
/// The largest list that is read: of about a million objects.
const LIST_BYTES_MAX: usize = 256 << 20;
/// A list may take this many times the time limit of a call: 10 min by default, in which all of the largest arrives at 450 KB/s.
const LIST_TIMES: u32 = 20;

/// An object, as the headers of an answer say.
#[derive(PartialEq, Eq)]
pub(super) struct Described {
    pub(super) bytes: u64,
    crc32c: u32,
}

impl Described {
    /// None: it is no object of a chiplog server.
    fn of(headers: &HeaderMap) -> Option<Self> {
        let bytes =
            text_of(headers, CONTENT_LENGTH)?.parse().ok().filter(|bytes| *bytes <= OBJECT_BYTES_MAX)?;
        Some(Self { bytes, crc32c: crc32c_in(headers)? })
    }

    /// As a request names it.
    fn tag(&self) -> String {
        format!("\"crc32c-{:08x}\"", self.crc32c)
    }
}

fn text_of(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// The CRC-32C in the tag of an answer. A proxy makes a tag weak when it touches the answer; the checksum is still that of the object.
fn crc32c_in(headers: &HeaderMap) -> Option<u32> {
    let tag = text_of(headers, ETAG)?;
    let digits = tag.strip_prefix("W/").unwrap_or(tag).strip_prefix("\"crc32c-")?.strip_suffix('"')?;
    let is_sum = digits.len() == 8 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    u32::from_str_radix(digits, 16).ok().filter(|_| is_sum)
}

/// The object of which an answer has a range, and that range.
fn part_in(headers: &HeaderMap) -> Option<(Described, Range<u64>)> {
    let (part, bytes) = text_of(headers, CONTENT_RANGE)?.strip_prefix("bytes ")?.split_once('/')?;
    let bytes = bytes.parse().ok().filter(|bytes| *bytes <= OBJECT_BYTES_MAX)?;
    let (first, last) = part.split_once('-')?;
    let end = last.parse::<u64>().ok()?.checked_add(1).filter(|end| *end <= bytes)?;
    Some((Described { bytes, crc32c: crc32c_in(headers)? }, first.parse().ok()?..end))
}

/// The attempts of one call: it fails once nothing has arrived for its time limit.
struct Patience {
    until: Instant,
    wait: Duration,
}

impl Server {
    fn patience(&self) -> Patience {
        Patience { until: Instant::now() + self.timeout, wait: WAITS[0] }
    }

    pub(super) fn read_only(&self, name: &str) -> Error {
        let what = format!(
            "{name:?} cannot be written through the server {}: give the location of the object store itself, as the servers have it",
            self.base
        );
        Error::new(ErrorKind::PermissionDenied, what)
    }

    pub(super) fn too_short(&self, name: &str, bytes: u64, range: &Range<u64>) -> Error {
        let what = format!("object {name:?} at {} has {bytes} bytes, and {range:?} are wanted", self.base);
        Error::new(ErrorKind::OutOfRange, what)
    }

    /// Makes a request. An answer that is no success is an error.
    async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(HeaderName, String)],
    ) -> Result<Response, Failed> {
        let url = format!("{}{}{path}", self.base, self.kind.folder());
        let is_head = method == Method::HEAD;
        let mut request = self.client.request(method, &url);
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token.clone());
        }
        let request = headers.iter().fold(request, |request, (name, value)| request.header(name, value));
        let response = request.send().await.map_err(|error| unsent(&url, error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(refused(&url, response, is_head).await)
    }

    /// The logs in the list at a path.
    pub(super) async fn list(&self, path: &str) -> Result<Vec<Listed>> {
        let longest = self.timeout * LIST_TIMES;
        timeout(longest, self.list_with_patience(path)).await.unwrap_or_else(|_| {
            let what = format!(
                "the list of {} at {} did not arrive within {longest:?}; try again, or ask another server",
                self.kind.name(),
                self.base
            );
            Err(Error::new(ErrorKind::Timeout, what))
        })
    }

    async fn list_with_patience(&self, path: &str) -> Result<Vec<Listed>> {
        let mut patience = self.patience();
        loop {
            match self.try_list(path).await {
                Ok(listed) => return Ok(listed),
                Err(failed) => patience.again(failed).await?,
            }
        }
    }

    async fn try_list(&self, path: &str) -> Result<Vec<Listed>, Failed> {
        let mut response = self.ask(Method::GET, path, &[]).await?;
        let url = response.url().to_string();
        let mut text = BytesMut::new();
        while let Some(piece) = response.chunk().await.map_err(|e| Failed::Now(broken(&url, e)))? {
            if text.len() + piece.len() > LIST_BYTES_MAX {
                let what = format!("the list at {url} is larger than {LIST_BYTES_MAX} bytes");
                return Err(Failed::ForGood(Error::new(ErrorKind::TooLarge, what)));
            }
            text.extend_from_slice(&piece);
        }
        parse(self.kind, &text).ok_or_else(|| Failed::ForGood(stranger(&url)))
    }

    /// An object's size and tag; None if there is none.
    pub(super) async fn head(&self, name: &str) -> Result<Option<Described>> {
        let mut patience = self.patience();
        loop {
            let described = self.ask(Method::HEAD, &format!("/{name}"), &[]).await;
            let described = described.and_then(|response| {
                let described = Described::of(response.headers());
                described.ok_or_else(|| Failed::ForGood(stranger(response.url().as_str())))
            });
            match described {
                Ok(described) => return Ok(Some(described)),
                Err(Failed::ForGood(error)) if error.kind() == ErrorKind::NotFound => return Ok(None),
                Err(failed) => patience.again(failed).await?,
            }
        }
    }

    /// Passes bytes of an object on as they arrive. The answers say what the object is: no request only asks for that.
    pub(super) async fn get(&self, name: &str, range: Range<u64>, pieces: &Sender<Bytes>) -> Result<()> {
        if range.is_empty() {
            return self.check_is_within(name, &range).await;
        }
        let mut reading = Reading { name, object: None, left: range.clone(), sum: None };
        let mut patience = self.patience();
        while !reading.left.is_empty() {
            let before = reading.left.start;
            let read = self.read(&mut reading, pieces).await;
            if reading.left.start > before {
                patience = self.patience();
            }
            if let Err(failed) = read {
                patience.again(failed).await?;
            }
        }
        match (reading.object, reading.sum.map(Crc::sum)) {
            (Some(object), Some(sum)) if sum != object.crc32c => {
                let place = match self.kind {
                    Kind::Objects => "in the object store of the server",
                    Kind::Segments => "as it came from the server",
                };
                let what = format!(
                    "{name} is damaged {place} {}: its checksum is {sum:08x}, and that of the log's own {:08x}",
                    self.base, object.crc32c
                );
                Err(Error::new(ErrorKind::Corrupt, what))
            }
            _ => Ok(()),
        }
    }

    /// The result for an empty range, which HTTP does not have.
    async fn check_is_within(&self, name: &str, range: &Range<u64>) -> Result<()> {
        match self.head(name).await? {
            Some(object) if range.end <= object.bytes => Ok(()),
            Some(object) => Err(self.too_short(name, object.bytes, range)),
            None => {
                let what = format!("the server {} has no object {name:?}", self.base);
                Err(Error::new(ErrorKind::NotFound, what))
            }
        }
    }

    /// Makes one attempt to read what is left.
    async fn read(&self, reading: &mut Reading<'_>, pieces: &Sender<Bytes>) -> Result<(), Failed> {
        let Reading { name, object, left, .. } = &*reading;
        let mut headers = vec![(RANGE, format!("bytes={}-{}", left.start, left.end - 1))];
        headers.extend(object.as_ref().map(|object| (IF_MATCH, object.tag())));
        let mut response = self.ask(Method::GET, &format!("/{name}"), &headers).await?;
        let url = response.url().to_string();
        // A cache or a proxy on the way can have another range, or another object.
        let (answered, part) = part_in(response.headers()).ok_or_else(|| Failed::ForGood(stranger(&url)))?;
        if answered.bytes < left.end && part == (left.start..answered.bytes) {
            return Err(Failed::ForGood(self.too_short(name, answered.bytes, left)));
        }
        let is_same = object.as_ref().is_none_or(|object| *object == answered);
        if response.status() != StatusCode::PARTIAL_CONTENT || part != *left || !is_same {
            return Err(Failed::ForGood(stranger(&url)));
        }
        reading.is(answered);
        while let Some(piece) = response.chunk().await.map_err(|e| Failed::Now(broken(&url, e)))? {
            if piece.len() as u64 > reading.left.end - reading.left.start {
                return Err(Failed::ForGood(stranger(&url)));
            }
            reading.add(&piece);
            let unwanted = |_| Failed::ForGood(Error::new(ErrorKind::Closed, "the caller has gone"));
            pieces.send(piece).map_err(unwanted)?;
        }
        match reading.left.end - reading.left.start {
            0 => Ok(()),
            missing => Err(Failed::Now(Error::new(
                ErrorKind::Unavailable,
                format!("cannot get {url}: the answer ended {missing} bytes early"),
            ))),
        }
    }
}

/// A read that goes on over several attempts.
struct Reading<'a> {
    name: &'a str,
    /// As the first answer says.
    object: Option<Described>,
    left: Range<u64>,
    /// The checksum so far, if all of the object is read.
    sum: Option<Crc>,
}

impl Reading<'_> {
    /// Notes what an answer says of the object.
    fn is(&mut self, object: Described) {
        if self.object.is_none() && self.left == (0..object.bytes) {
            self.sum = Some(Crc::default());
        }
        self.object = Some(object);
    }

    /// Counts bytes that have arrived.
    fn add(&mut self, piece: &[u8]) {
        self.left.start += piece.len() as u64;
        self.sum = self.sum.take().map(|sum| sum.add(piece));
    }
}

impl Patience {
    /// Waits for the next attempt.
    ///
    /// # Errors
    /// That of the last one, if it is not worth it, or there is no time left.
    async fn again(&mut self, failed: Failed) -> Result<()> {
        let error = match failed {
            Failed::ForGood(error) => return Err(error),
            Failed::Now(error) => error,
        };
        if Instant::now() + self.wait >= self.until {
            return Err(Error::with_source(error.kind(), format!("{error}; try again"), &error));
        }
        sleep(self.wait).await;
        self.wait = (self.wait * 2).min(WAITS[1]);
        Ok(())
    }
}
