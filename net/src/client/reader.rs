//! Reader: the log's records from any replica, each checked, without a gap or a repeat, whatever fails.
//!
//! Invariants:
//! - Once `next` is known, the records given out are `next`, `next + 1`, …; a server that sends anything else is left.
//! - A replica is read only when it has everything before `next`: a reader never goes back.
//! - What takes its time (a connection, a question, a wait between attempts) is an errand, which goes on when a caller
//!   gives up waiting: however short the calls are, the reader gets on.

pub(crate) mod tasks;

use super::cluster::discovery::Avoid;
use super::retry::backoff::Backoff;
use super::retry::deadline::{after, within};
use super::{Client, ErrorClass, RemoteInfo};
use crate::wire::proto::v1::read_request::Start as Asked;
use crate::wire::proto::v1::{ReadRequest, ReadResponse, StoredBatch as Wire};
use crate::wire::protocol::NANOS_PER_MILLI;
use crate::wire::status::from_status;
use chiplog::{Error, ErrorKind, Index, OwnedRecord, RecordBatch, Result, Start, StoredBatch, Timestamp};
use std::collections::VecDeque;
use std::time::Duration;
use tasks::{Opened, Wanted};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tonic::Streaming;

/// No server says more often that it is there.
const KEEP_ALIVE_MIN: Duration = Duration::from_millis(10);
/// What came while nobody asked has so long to be seen before a server counts as silent.
const GRACE: Duration = Duration::from_millis(10);

/// Whom a reader reads from.
///
/// ```
/// let near = chiplog_net::client::ReadFrom::Nearest("west".into());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadFrom {
    /// The leader: what was acknowledged is there at once. While there is none it is waited for, and when another one comes
    /// to lead the reader goes there, within about `keep_alive`.
    Leader,
    /// Any replica: what was acknowledged is there a moment later.
    #[default]
    Any,
    /// A replica of this zone, if one answers; else any, until one of the zone answers again and has as much.
    Nearest(String),
}

/// Where and how a [`RemoteReader`] reads.
///
/// ```
/// let mut options = chiplog_net::client::ReaderOptions::default();
/// options.follow = false; // ends where the log ends now
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReaderOptions {
    /// Whom it reads from, default any replica.
    pub from: ReadFrom,
    /// Waits at the end for what comes, default true; false: ends there.
    pub follow: bool,
    /// Nothing below this record's state is read: a replica that is not so far yet is waited for. For reading what
    /// was just written, at any replica. Default 0.
    pub min_index: Index,
    /// How often an idle server says that it is there, default 3 s. One that is silent for three times as long is left.
    /// At least 10 ms.
    pub keep_alive: Duration,
    /// How long servers are tried before an error is given, default 30 s.
    pub timeout: Duration,
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

/// Reads records in order, over the network. When its server fails it goes on at another one, at the next record.
/// `Send`; made by [`Client::reader`](super::Client::reader).
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
    /// Came, and not looked at yet.
    waiting: VecDeque<Wire>,
    /// The batch that holds the next record, checked, and not unpacked yet. One that does not unpack stays here.
    received: Option<StoredBatch>,
    /// Of which records were given out one by one; and how many.
    current: Option<(RecordBatch, u32)>,
    backoff: Backoff,
    /// Failed lately.
    avoid: Avoid,
    /// A server has said that nobody can repair the next record.
    lost: Option<Error>,
    /// Since when nothing has worked.
    failing: Option<Instant>,
    /// When the next stream may be opened.
    not_before: Instant,
    /// At most one, while there is no stream.
    errand: JoinSet<Done>,
    /// When the last errand began.
    errand_since: Instant,
}

/// What an errand brought.
enum Done {
    Opened(Opened),
    /// How far the log is, asked since the start is beyond what a replica has, which said this.
    Told(Error, Result<RemoteInfo>),
}

/// Where it reads next.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// No server has said yet which record that is.
    Start(Start),
    Next(Index),
}

#[derive(Debug)]
struct Open {
    server: String,
    stream: Streaming<ReadResponse>,
    /// When something last came.
    heard: Instant,
    /// Nothing came in time; when it is left, unless something is found to have come meanwhile.
    silent_at: Option<Instant>,
    /// The first response came; those without records are keep-alives from now on.
    begun: bool,
    /// How often in a row another replica had more.
    behind: u32,
    /// What the replicas have, asked at a keep-alive and looked at when the next one comes: nothing waits for it.
    newest: JoinSet<Option<Index>>,
    /// Whether it should be read elsewhere; asked now and then, and looked at likewise.
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
            errand: JoinSet::new(),
            errand_since: Instant::now(),
        }
    }

    /// Index of the record that comes next; None: no server has settled it yet.
    pub fn position(&self) -> Option<Index> {
        match (&self.current, self.place) {
            (Some((batch, given)), _) => Some(batch.first().plus((*given).into())),
            (None, Place::Next(index)) => Some(index),
            (None, Place::Start(_)) => None,
        }
    }

    /// Goes on elsewhere. Past damage, or at the first record when others were discarded.
    pub fn seek(&mut self, start: Start) {
        self.place = Place::Start(start);
        (self.stream, self.current, self.received, self.failing) = (None, None, None, None);
        self.errand = JoinSet::new();
        self.not_before = Instant::now();
        self.waiting.clear();
        self.avoid.clear();
        self.lost = None;
    }

    /// Which server it reads from now.
    pub fn server(&self) -> Option<&str> {
        self.stream.as_ref().map(|s| &*s.server)
    }

    /// The next record; `None` at the end, if it does not follow. Waits as [`next_batch`](Self::next_batch).
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

    /// The next record, if it was received already. Never waits.
    pub fn buffered_record(&mut self) -> Option<OwnedRecord> {
        let (batch, given) = self.current.as_mut()?;
        let record = batch.get_owned(*given);
        *given += 1;
        if *given >= batch.count() {
            self.current = None;
        }
        record
    }

    /// The rest of the current batch, or the next one; `None` at the end, if it does not follow. Waits for records as
    /// long as it takes; for a server, as long as `options.timeout`. Can be cancelled: nothing is lost.
    ///
    /// # Errors
    /// `Discarded`: the next record is gone: [`seek`](Self::seek) to [`Start::First`]. `OutOfRange`: the start is beyond
    /// the end. `Corrupt`: no replica that is read from had it whole; at once, and [`Error::is_lasting`], where a server says that
    /// nobody can repair it and no other server has it. `Undecodable`: it is as it was appended, and does not
    /// unpack: [`skip_batch`](Self::skip_batch) goes on behind it. `Unavailable`, `Timeout`: no server could be had. The
    /// reader stays where it was and can be asked again.
    pub async fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        if let Some((mut batch, given)) = self.current.take() {
            let index = batch.first().plus(given.into());
            batch.skip_to(index);
            return Ok(Some(batch));
        }
        self.receive().await
    }

    /// Goes on behind a batch that the last step of this reader found `Undecodable`. Where the last step found something
    /// else, nothing changes. Returns the record that comes next, as [`position`](Self::position). Never waits.
    ///
    /// # Errors
    /// None today.
    #[expect(clippy::unused_async, reason = "as the other steps, and free to wait one day")]
    pub async fn skip_batch(&mut self) -> Result<Option<Index>> {
        self.go_behind_received();
        Ok(self.position())
    }

    /// Waits as [`next_batch`](Self::next_batch), and keeps what comes for it. False: the end. Can be cancelled.
    ///
    /// # Errors
    /// As [`next_batch`](Self::next_batch).
    pub(super) async fn fill(&mut self) -> Result<bool> {
        if self.current.is_none() {
            self.current = self.receive().await?.map(|batch| (batch, 0));
        }
        Ok(self.current.is_some())
    }

    /// Whether a record was received and not given out yet.
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

    /// The batch that was received is done with. Between two steps, only a batch that did not unpack is there.
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

    /// Can be cancelled wherever it waits.
    async fn step(&mut self) -> Result<Step> {
        if let Some(wire) = self.waiting.pop_front() {
            return Ok(Step::Batch(self.accept(wire)?));
        }
        if let Some(done) = self.errand.join_next().await {
            let died = |_| Error::new(ErrorKind::Unavailable, "the reader's task ended");
            return match done.map_err(died)? {
                Done::Opened(opened) => self.opened(opened),
                Done::Told(error, info) => Ok(self.told(error, info?)),
            };
        }
        let Some(open) = &mut self.stream else {
            self.errand_since = Instant::now();
            let wanted = Wanted {
                from: self.options.from.clone(),
                avoid: self.avoid.clone(),
                copies: self.may_read_copies(),
                request: self.request(),
                not_before: self.not_before,
                deadline: self.deadline(),
            };
            let client = self.client.clone();
            self.errand.spawn(async move { Done::Opened(tasks::open(client, wanted).await) });
            return Ok(Step::Again);
        };
        let silence = self.options.keep_alive.max(KEEP_ALIVE_MIN).saturating_mul(3);
        let due = after(open.heard, silence);
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
        (open.heard, open.silent_at) = (Instant::now(), None);
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
                    heard: now,
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
                    self.client.servers().doubt(&server);
                }
                self.avoid.insert(server);
                error
            }
            (None, Err(error)) => error,
            (None, Ok(_)) => Error::new(ErrorKind::Unavailable, "no server was found"),
        };
        Err(error)
    }

    /// `error`: a replica does not have the record that is to be started at; `info`: what the leader has.
    fn told(&mut self, error: Error, info: RemoteInfo) -> Step {
        match self.place {
            Place::Start(Start::Index(index)) if index <= info.last.next() => {
                self.place = Place::Next(index); // from now on a replica is waited for
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
        // A keep-alive. A replica that is cut off from the others has nothing new, for ever.
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

    /// Whether another server is what is wanted; asks that now and then, and waits for no answer.
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

    /// The server does what it should.
    fn works(&mut self) {
        (self.failing, self.lost) = (None, None);
        self.avoid.clear();
        self.backoff.reset();
    }

    /// What a server sent, checked, and not unpacked.
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
        // Only what is sound says that the server is well again, or that there is nothing more.
        self.works();
        Ok(stored)
    }

    /// Where a stream is to start, and what the replica has to have.
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

    /// Whether a copy will do, which may keep less than the log.
    fn may_read_copies(&self) -> bool {
        may_read_copies(self.place)
    }

    /// When it is given up, if nothing works until then.
    fn deadline(&self) -> Instant {
        after(self.failing.unwrap_or_else(Instant::now), self.options.timeout)
    }

    /// A copy may keep less than the log: what is gone there need not be gone.
    fn of_copy(&self, server: &str, error: Error) -> Error {
        if error.kind() != ErrorKind::Discarded || !self.client.servers().is_mere_copy(server) {
            return error;
        }
        Error::new(
            ErrorKind::Unavailable,
            format!("{server} is a copy that holds fewer records than the log: {error}"),
        )
    }

    /// Leaves a server that failed. Some: it is of no use to look for another one.
    fn leave(&mut self, mut error: Error) -> Option<Error> {
        let now = Instant::now();
        let mut since = self.errand_since;
        if let Some(Open { server, .. }) = self.stream.take() {
            since = now;
            error = self.of_copy(&server, error);
            if ErrorClass::of(error.kind()) == ErrorClass::RefreshMetadata {
                self.client.servers().doubt(&server);
            }
            tracing::debug!(server, %error, "leaving a server");
            self.avoid.insert(server);
        }
        if error.kind() == ErrorKind::OutOfRange {
            // Perhaps the leader has the record.
            self.errand_since = since;
            let client = self.client.clone();
            self.errand.spawn(async move {
                let info = client.info().await;
                Done::Told(error, info)
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
        // It is left at once as long as there is one that did not fail; then each gets its turn, with waits between.
        self.not_before = if first_failure { now } else { now + wait };
        None
    }
}

/// Whether a copy will do for reading from there.
fn may_read_copies(place: Place) -> bool {
    matches!(place, Place::Next(_) | Place::Start(Start::Index(_)))
}

enum Step {
    Batch(StoredBatch),
    Again,
    End,
    /// For whoever asked.
    Fail(Error),
}
