//! Reader: the log's records from any replica, each checked, without a gap or a repeat, across failures.
//!
//! Invariants:
//! - Once `next` is known, the reader returns the records `next`, `next + 1`, …; it leaves a server that sends anything
//!   else.
//! - It reads only from a replica that has everything before `next`: a reader never goes back.
//! - Slow work (a connection, a request, a wait between attempts) is a background job that continues when a caller
//!   stops waiting. A reader makes progress however short the calls are.

pub(crate) mod tasks;

use super::cluster::discovery::Avoid;
use super::retry::backoff::Backoff;
use super::retry::deadline::{after, within};
use super::{Client, ErrorClass, RemoteInfo};
use crate::wire::proto::v1::read_request::Start as Asked;
use crate::wire::proto::v1::{ReadRequest, ReadResponse, StoredBatch as Wire};
use crate::wire::protocol::NANOS_PER_MILLI;
use crate::wire::status::from_status;
use chiplog::{
    Error, ErrorKind, Index, OwnedRecord, RecordBatch, Result, Start, StoredBatch, Timestamp, options,
};
use std::collections::VecDeque;
use std::time::Duration;
use tasks::{Opened, Wanted};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tonic::Streaming;

/// The shortest interval of a server's keep-alives.
const KEEP_ALIVE_MIN: Duration = Duration::from_millis(10);
/// Messages that arrived between two calls are read for up to this long before the server counts as silent.
const GRACE: Duration = Duration::from_millis(10);

/// The replica that a reader reads from.
///
/// ```
/// let near = chiplog_net::client::ReadFrom::Nearest("west".into());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadFrom {
    /// The leader, which has every acknowledged record at once. Without a leader the reader waits for one. When another
    /// leader is elected, the reader switches to it within about `keep_alive`.
    Leader,
    /// Any replica. It gets acknowledged records with a short delay.
    #[default]
    Any,
    /// A replica of this zone, if one answers. Otherwise any replica, until one of the zone answers again and has as
    /// many records.
    Nearest(String),
}

options! {
    /// Options of a [`RemoteReader`].
    ///
    /// ```
    /// use chiplog_net::client::ReaderOptions;
    /// let options = ReaderOptions::default().follow(false); // ends where the log ends now
    /// ```
    #[derive(Clone, Debug)]
    pub struct ReaderOptions {
        /// The replica to read from, default any.
        pub from: ReadFrom,
        /// Whether to wait for new records at the end, default true. If false, the reader ends there.
        pub follow: bool,
        /// Read only from a replica that has everything up to this record; wait for a replica that is behind. Useful to
        /// read one's own writes from any replica. Default 0.
        pub min_index: Index,
        /// How often an idle server sends a keep-alive, default 3 s, at least 10 ms. The reader leaves a server that is
        /// silent for three times as long.
        pub keep_alive: Duration,
        /// How long servers are tried before an error is returned, default 30 s.
        pub timeout: Duration,
    }
}

impl Default for ReaderOptions {
    fn default() -> Self {
        Self {
            from: ReadFrom::Any,
            follow: true,
            min_index: Index(0),
            keep_alive: Duration::from_secs(3),
            timeout: Duration::from_secs(30),
        }
    }
}

/// Reads records in order, over the network. When its server fails, it continues with the next record at another
/// server. `Send`; made by [`Client::reader`](super::Client::reader).
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/support/serve.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_dir, address) = serve().await?;
/// # let client = chiplog_net::client::Client::connect([address], Default::default()).await?;
/// # client.producer(Default::default()).await?.append(b"x").await?.await?;
/// use chiplog::Start;
/// use chiplog_net::client::ReadFrom;
/// let mut reader = client.reader(Start::First, ReadFrom::Any);
/// while let Some(batch) = reader.next_batch().await? {
///     for record in batch.iter() {
///         println!("{}: {} bytes", record.index, record.data.len());
///     }
/// #   break;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RemoteReader {
    client: Client,
    options: ReaderOptions,
    place: Place,
    stream: Option<Open>,
    /// Received, not yet checked.
    waiting: VecDeque<Wire>,
    /// The batch that holds the next record, checked but not decompressed. A batch that cannot be decompressed stays
    /// here.
    received: Option<StoredBatch>,
    /// The batch whose records are returned one by one, and how many of them were.
    current: Option<(RecordBatch, u32)>,
    backoff: Backoff,
    /// Servers that failed recently.
    avoid: Avoid,
    /// A server reported that waiting does not bring the next record.
    lost: Option<Error>,
    /// Since when nothing has worked.
    failing: Option<Instant>,
    /// The earliest time for the next stream.
    not_before: Instant,
    /// The background job; at most one, while there is no stream.
    job: JoinSet<Done>,
    /// When the last background job began.
    job_since: Instant,
}

/// The result of a background job.
enum Done {
    Opened(Opened),
    /// A replica returned this error because the start is beyond its end; the info shows how far the log is.
    BeyondEnd(Error, Result<RemoteInfo>),
}

/// Where the reader continues.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// No server has resolved it to a record yet.
    Start(Start),
    Next(Index),
}

#[derive(Debug)]
struct Open {
    server: String,
    stream: Streaming<ReadResponse>,
    /// When the last message arrived.
    received_at: Instant,
    /// Set when nothing arrived in time: when to leave the server, unless a message is found to have arrived meanwhile.
    silent_at: Option<Instant>,
    /// The first response arrived; later responses without records are keep-alives.
    begun: bool,
    /// The number of times in a row that another replica had more records.
    behind: u32,
    /// The replicas' last index: requested at one keep-alive and read at the next, so that nothing waits for it.
    newest: JoinSet<Option<Index>>,
    /// Whether another server should be read instead: requested from time to time, and read the same way.
    better: JoinSet<bool>,
    ask_at: Instant,
}

impl RemoteReader {
    pub(super) fn new(client: Client, start: Start, options: ReaderOptions) -> Self {
        let place = match start {
            Start::Index(index) if index <= options.min_index => Place::Next(index),
            _ => Place::Start(start),
        };
        let backoff = Backoff::new(client.options().backoff_min, client.options().backoff_max);
        Self {
            client,
            options,
            place,
            stream: None,
            waiting: VecDeque::new(),
            received: None,
            current: None,
            backoff,
            avoid: Avoid::default(),
            lost: None,
            failing: None,
            not_before: Instant::now(),
            job: JoinSet::new(),
            job_since: Instant::now(),
        }
    }

    /// The index of the next record. None: no server has resolved it yet.
    pub fn position(&self) -> Option<Index> {
        match (&self.current, self.place) {
            (Some((batch, given)), _) => Some(batch.first().plus((*given).into())),
            (None, Place::Next(index)) => Some(index),
            (None, Place::Start(_)) => None,
        }
    }

    /// Continues at another position: behind damage, or at the first record after others were discarded.
    pub fn seek(&mut self, start: Start) {
        self.place = Place::Start(start);
        (self.stream, self.current, self.received, self.failing) = (None, None, None, None);
        self.job = JoinSet::new();
        self.not_before = Instant::now();
        self.waiting.clear();
        self.avoid.clear();
        self.lost = None;
    }

    /// The server that it reads from now.
    pub fn server(&self) -> Option<&str> {
        self.stream.as_ref().map(|s| &*s.server)
    }

    /// Returns the next record, or `None` at the end if it does not follow. Waits like
    /// [`next_batch`](Self::next_batch).
    ///
    /// # Errors
    /// As [`next_batch`](Self::next_batch).
    pub async fn next_record(&mut self) -> Result<Option<OwnedRecord>> {
        loop {
            if let Some(record) = self.buffered_record() {
                return Ok(Some(record));
            }
            match self.receive().await? {
                Some(batch) => self.current = Some((batch, 0)),
                None => return Ok(None),
            }
        }
    }

    /// Returns the next record if it was received already. Never blocks.
    pub fn buffered_record(&mut self) -> Option<OwnedRecord> {
        let (batch, given) = self.current.as_mut()?;
        let record = batch.get_owned(*given);
        *given += 1;
        if *given >= batch.count() {
            self.current = None;
        }
        record
    }

    /// Returns the rest of the current batch, or the next one; `None` at the end if it does not follow. Waits for
    /// records without a time limit, and for a server for up to `options.timeout`. Can be cancelled: nothing is lost.
    ///
    /// # Errors
    /// `Discarded`: the next record was discarded; [`seek`](Self::seek) to [`Start::First`]. `OutOfRange`: the start is
    /// beyond the end. `Corrupt`: no replica that may be read has the record undamaged. `Corrupt` is returned at once,
    /// with [`Error::is_lasting`], if a server reports that it cannot be repaired and no other server has it; so is `Unavailable`, if the
    /// record is in an object store alone and no server has that.
    /// `Undecodable`: the batch is as it was appended, and cannot be decompressed; [`skip_batch`](Self::skip_batch)
    /// continues behind it. `Unavailable`, `Timeout`: no server could be reached. The reader keeps its position, and
    /// the call can be repeated.
    pub async fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        if let Some((mut batch, given)) = self.current.take() {
            let index = batch.first().plus(given.into());
            batch.skip_to(index);
            return Ok(Some(batch));
        }
        self.receive().await
    }

    /// Continues behind a batch that the last step of this reader found `Undecodable`. If the last step had another
    /// result, nothing changes. Returns the index of the next record, like [`position`](Self::position). Never blocks.
    ///
    /// # Errors
    /// None today.
    #[expect(clippy::unused_async, reason = "like the other steps; may wait in a later version")]
    pub async fn skip_batch(&mut self) -> Result<Option<Index>> {
        self.go_behind_received();
        Ok(self.position())
    }

    /// Waits like [`next_batch`](Self::next_batch), and keeps what it receives for that call. False: the end. Can be
    /// cancelled.
    ///
    /// # Errors
    /// As [`next_batch`](Self::next_batch).
    pub(super) async fn fill(&mut self) -> Result<bool> {
        if self.current.is_none() {
            self.current = self.receive().await?.map(|batch| (batch, 0));
        }
        Ok(self.current.is_some())
    }

    /// Whether a record was received and not returned yet.
    pub(super) fn is_filled(&self) -> bool {
        self.current.is_some()
    }

    /// The next batch from the network.
    async fn receive(&mut self) -> Result<Option<RecordBatch>> {
        if !self.receive_stored().await? {
            return Ok(None);
        }
        let Some(stored) = &self.received else { return Ok(None) };
        let mut batch = stored.unpack()?;
        if let Place::Next(next) = self.place {
            batch.skip_to(next);
        }
        self.go_behind_received();
        Ok(Some(batch))
    }

    /// Drops the received batch. Between two steps only a batch that cannot be decompressed is there.
    fn go_behind_received(&mut self) {
        if let Some(stored) = self.received.take() {
            self.place = Place::Next(stored.last().next());
        }
    }

    /// Receives the batch that holds the next record. False: the end.
    async fn receive_stored(&mut self) -> Result<bool> {
        while self.received.is_none() {
            let error = match self.step().await {
                Ok(Step::Batch(batch)) => {
                    self.received = Some(batch);
                    break;
                }
                Ok(Step::End) => return Ok(false),
                Ok(Step::Again) => continue,
                Ok(Step::Fail(error)) => return Err(error),
                Err(error) => error,
            };
            self.waiting.clear();
            if let Some(error) = self.leave(error) {
                return Err(error);
            }
        }
        Ok(true)
    }

    /// Can be cancelled at every wait.
    async fn step(&mut self) -> Result<Step> {
        if let Some(wire) = self.waiting.pop_front() {
            return Ok(Step::Batch(self.accept(wire)?));
        }
        if let Some(done) = self.job.join_next().await {
            let died = |_| Error::new(ErrorKind::Unavailable, "the reader's task ended");
            return match done.map_err(died)? {
                Done::Opened(opened) => self.opened(opened),
                Done::BeyondEnd(error, info) => Ok(self.beyond_end(error, info?)),
            };
        }
        let Some(open) = &mut self.stream else {
            self.job_since = Instant::now();
            let wanted = Wanted {
                from: self.options.from.clone(),
                avoid: self.avoid.clone(),
                copies: self.may_read_copies(),
                request: self.request(),
                not_before: self.not_before,
                deadline: self.deadline(),
            };
            let client = self.client.clone();
            self.job.spawn(async move { Done::Opened(tasks::open(client, wanted).await) });
            return Ok(Step::Again);
        };
        let silence = self.options.keep_alive.max(KEEP_ALIVE_MIN).saturating_mul(3);
        let due = after(open.received_at, silence);
        let overdue = due <= Instant::now();
        let silent_at = open.silent_at.unwrap_or_else(|| due.max(within(GRACE)));
        open.silent_at = overdue.then_some(silent_at);
        let message = match timeout_at(silent_at, open.stream.message()).await {
            Ok(message) => message.map_err(|status| from_status(&status))?,
            Err(_) => {
                let what = format!("{} sent nothing for {silence:?}", open.server);
                return Err(Error::new(ErrorKind::Unavailable, what));
            }
        };
        (open.received_at, open.silent_at) = (Instant::now(), None);
        let Some(response) = message else {
            if self.options.follow {
                let what = format!("{} ended the stream", open.server);
                return Err(Error::new(ErrorKind::Unavailable, what));
            }
            self.stream = None;
            return Ok(Step::End);
        };
        self.take(response)?;
        Ok(Step::Again)
    }

    fn opened(&mut self, Opened { server, stream }: Opened) -> Result<Step> {
        let error = match (server, stream) {
            (Some(server), Ok(stream)) => {
                let now = Instant::now();
                self.stream = Some(Open {
                    server,
                    stream,
                    received_at: now,
                    silent_at: None,
                    begun: false,
                    behind: 0,
                    newest: JoinSet::new(),
                    better: JoinSet::new(),
                    ask_at: after(now, self.options.keep_alive),
                });
                return Ok(Step::Again);
            }
            (Some(server), Err(error)) => {
                let error = self.of_copy(&server, error);
                if ErrorClass::of(error.kind()) == ErrorClass::RefreshMetadata {
                    self.client.servers().depose(&server);
                }
                self.avoid.insert(server);
                error
            }
            (None, Err(error)) => error,
            (None, Ok(_)) => Error::new(ErrorKind::Unavailable, "no server was found"),
        };
        Err(error)
    }

    /// `error`: a replica does not have the start record yet; `info`: the leader's info.
    fn beyond_end(&mut self, error: Error, info: RemoteInfo) -> Step {
        match self.place {
            Place::Start(Start::Index(index)) if index <= info.last.next() => {
                self.place = Place::Next(index); // from now on the reader waits for a replica
                Step::Again
            }
            _ => Step::Fail(error),
        }
    }

    fn take(&mut self, response: ReadResponse) -> Result<()> {
        if self.has_better() {
            tracing::debug!(server = self.server(), "switching to a preferred server");
            self.stream = None;
            self.avoid.clear();
        }
        let Some(open) = &mut self.stream else { return Ok(()) };
        let begun = std::mem::replace(&mut open.begun, true);
        if !response.batches.is_empty() {
            self.waiting = response.batches.into();
            open.behind = 0;
            return Ok(());
        }
        if let (Place::Start(_), 1..) = (self.place, response.next) {
            self.place = Place::Next(Index(response.next));
        }
        if !begun {
            return Ok(());
        }
        if response.short {
            let mut others = self.avoid.clone();
            others.insert(open.server.clone());
            if self.client.servers().has_other(&self.options.from, &others, may_read_copies(self.place)) {
                let what = format!("{} cannot store new records: it is full", open.server);
                return Err(Error::new(ErrorKind::Full, what));
            }
        }
        // A keep-alive. A replica that is cut off from the others never has new records.
        let next = match self.place {
            Place::Next(next) => next,
            Place::Start(_) => self.options.min_index,
        };
        let mut level = false;
        while let Some(asked) = open.newest.try_join_next() {
            let Ok(Some(newest)) = asked else { continue };
            level = newest < next;
            open.behind = if level { 0 } else { open.behind + 1 };
        }
        if open.newest.is_empty() {
            open.newest.spawn(tasks::newest(self.client.clone()));
        }
        if open.behind >= 3 {
            let what = format!("{} does not receive records that other servers have", open.server);
            return Err(Error::new(ErrorKind::Unavailable, what));
        }
        if level {
            self.works();
        }
        Ok(())
    }

    /// Whether another server is preferred. Checks this from time to time, without waiting for an answer.
    fn has_better(&mut self) -> bool {
        let next = self.request_from().1.next();
        let Some(open) = &mut self.stream else { return false };
        let now = Instant::now();
        if now >= open.ask_at && open.better.is_empty() {
            open.ask_at = after(now, self.options.keep_alive);
            let (from, server) = (self.options.from.clone(), open.server.clone());
            open.better.spawn(tasks::better_elsewhere(self.client.clone(), from, server, next));
        }
        matches!(open.better.try_join_next(), Some(Ok(true)))
    }

    /// The server works as it should.
    fn works(&mut self) {
        (self.failing, self.lost) = (None, None);
        self.avoid.clear();
        self.backoff.reset();
    }

    /// Checks a message that a server sent; does not decompress it.
    fn accept(&mut self, wire: Wire) -> Result<StoredBatch> {
        let timestamp = Timestamp(wire.timestamp_nanos / NANOS_PER_MILLI);
        let stored = StoredBatch::decode(Index(wire.first), timestamp, wire.batch)?;
        let Place::Next(next) = self.place else {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "the server did not send the start of the stream",
            ));
        };
        if stored.first() > next || stored.last() < next {
            let what = format!("received records {} to {}, expected {next}", stored.first(), stored.last());
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        // Only a valid message shows that the server works, or that there is nothing more.
        self.works();
        Ok(stored)
    }

    /// Where a stream must start, and what the replica must have.
    fn request_from(&self) -> (Start, Index) {
        let (start, min_index) = match self.place {
            Place::Next(next) => (Start::Index(next), next.previous()),
            Place::Start(start) => (start, self.options.min_index),
        };
        (start, min_index.max(self.options.min_index))
    }

    fn request(&self) -> ReadRequest {
        let (start, min_index) = self.request_from();
        let start = match start {
            Start::Index(index) => Asked::Index(index.get()),
            Start::Last(count) => Asked::Last(count),
            Start::Timestamp(t) => Asked::TimestampNanos(t.get().saturating_mul(NANOS_PER_MILLI)),
            Start::Next => Asked::Newest(true),
            _ => Asked::Oldest(true),
        };
        ReadRequest {
            log: self.client.log_name(),
            start: Some(start),
            follow: self.options.follow,
            bytes_max: 0,
            records_max: 0,
            min_index: min_index.get(),
            keep_alive_millis: self.options.keep_alive.as_millis().clamp(1, u32::MAX.into()) as u32,
        }
    }

    /// Whether a follower's copy may be read, which may hold fewer records than the log.
    fn may_read_copies(&self) -> bool {
        may_read_copies(self.place)
    }

    /// When to give up if nothing works until then.
    fn deadline(&self) -> Instant {
        after(self.failing.unwrap_or_else(Instant::now), self.options.timeout)
    }

    /// A copy may hold fewer records than the log: a record that is discarded there may still be in the log.
    fn of_copy(&self, server: &str, error: Error) -> Error {
        if error.kind() != ErrorKind::Discarded || !self.client.servers().is_mere_copy(server) {
            return error;
        }
        Error::new(
            ErrorKind::Unavailable,
            format!("{server} is a copy that holds fewer records than the log: {error}"),
        )
    }

    /// Leaves a server that failed. Some: an error that no other server can avoid.
    fn leave(&mut self, mut error: Error) -> Option<Error> {
        let now = Instant::now();
        let mut since = self.job_since;
        if let Some(Open { server, .. }) = self.stream.take() {
            since = now;
            error = self.of_copy(&server, error);
            if ErrorClass::of(error.kind()) == ErrorClass::RefreshMetadata {
                self.client.servers().depose(&server);
            }
            tracing::debug!(server, %error, "leaving a server");
            self.avoid.insert(server);
        }
        if error.kind() == ErrorKind::OutOfRange {
            // The leader may have the record.
            self.job_since = since;
            let client = self.client.clone();
            self.job.spawn(async move {
                let info = client.info().await;
                Done::BeyondEnd(error, info)
            });
            return None;
        }
        if error.is_lasting() {
            self.lost = Some(error.clone());
        }
        let has_other =
            self.client.servers().has_other(&self.options.from, &self.avoid, self.may_read_copies());
        if let Some(lost) = self.lost.take_if(|_| !has_other) {
            (self.failing, self.avoid) = (None, Avoid::default());
            return Some(lost);
        }
        let first_failure = self.failing.is_none();
        self.failing.get_or_insert(since);
        let wait = if has_other { Duration::ZERO } else { self.backoff.next() };
        if ErrorClass::of(error.kind()) == ErrorClass::Fatal || now + wait >= self.deadline() {
            (self.failing, self.avoid) = (None, Avoid::default());
            return Some(error);
        }
        // The first failure switches servers at once, while there is one that did not fail. After that each server gets
        // its turn, with waits between.
        self.not_before = if first_failure { now } else { now + wait };
        None
    }
}

/// Whether a follower's copy may be read at this place.
fn may_read_copies(place: Place) -> bool {
    matches!(place, Place::Next(_) | Place::Start(Start::Index(_)))
}

enum Step {
    Batch(StoredBatch),
    Again,
    End,
    /// An error for the caller.
    Fail(Error),
}
