//! Reader: the log's records from any replica, each checked, without a gap or a repeat, whatever fails.
//!
//! Invariants:
//! - Once `next` is known, the records given out are `next`, `next + 1`, …; a server that sends anything else is left.
//! - A replica is read only when it has everything before `next`: a reader never goes back.

use super::backoff::Backoff;
use super::{Client, ErrorClass};
use crate::proto::v1::read_request::Start as Asked;
use crate::proto::v1::{ReadRequest, ReadResponse, StoredBatch as Wire};
use crate::status::from_status;
use chiplog::{Error, ErrorKind, Index, OwnedRecord, RecordBatch, Result, Start, StoredBatch, Timestamp};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::{Status, Streaming};

const NANOS_PER_MILLI: u64 = 1_000_000;

/// Whom a reader reads from.
///
/// ```
/// let near = chiplog_net::client::ReadFrom::Nearest("west".into());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadFrom {
    /// The leader: what was acknowledged is there at once.
    Leader,
    /// Any replica: what was acknowledged is there a moment later.
    #[default]
    Any,
    /// A replica of this zone, if one answers when a server is looked for; else any, which is then kept while it serves.
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
    /// Of which records were given out one by one; and how many.
    current: Option<(RecordBatch, u32)>,
    backoff: Backoff,
    /// Failed lately.
    avoid: BTreeSet<String>,
    /// Since when nothing has worked.
    failing: Option<Instant>,
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
    /// How often in a row another replica had more.
    behind: u32,
    /// What the replicas have, asked at a keep-alive and looked at when the next one comes: nothing waits for it.
    newest: JoinSet<Option<Index>>,
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
            current: None,
            backoff,
            avoid: BTreeSet::new(),
            failing: None,
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
        (self.stream, self.current, self.failing) = (None, None, None);
        self.waiting.clear();
        self.avoid.clear();
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
    /// the end. `Corrupt`: no replica had it whole. `Unavailable`, `Timeout`: no server could be had. The reader stays
    /// where it was and can be asked again.
    pub async fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        if let Some((mut batch, given)) = self.current.take() {
            let index = batch.first().plus(given.into());
            batch.skip_to(index);
            return Ok(Some(batch));
        }
        self.receive().await
    }

    /// The next batch from the network.
    async fn receive(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            let error = match self.step().await {
                Ok(Step::Batch(batch)) => return Ok(Some(batch)),
                Ok(Step::End) => return Ok(None),
                Ok(Step::Again) => continue,
                Err(error) => error,
            };
            self.waiting.clear();
            let Some(error) = self.leave(error).await? else { continue };
            return Err(error);
        }
    }

    async fn step(&mut self) -> Result<Step> {
        if let Some(wire) = self.waiting.pop_front() {
            return Ok(Step::Batch(self.accept(wire)?));
        }
        let Some(open) = &mut self.stream else {
            self.open().await?;
            return Ok(Step::Again);
        };
        let silence = self.options.keep_alive.saturating_mul(3);
        let message = match timeout(silence, open.stream.message()).await {
            Ok(message) => message.map_err(|status| from_status(&status))?,
            Err(_) => {
                let what = format!("{} was silent for {silence:?}", open.server);
                return Err(Error::new(ErrorKind::Unavailable, what));
            }
        };
        let Some(response) = message else {
            self.stream = None;
            return Ok(Step::End);
        };
        self.take(response)?;
        Ok(Step::Again)
    }

    fn take(&mut self, response: ReadResponse) -> Result<()> {
        if !response.batches.is_empty() {
            self.waiting = response.batches.into();
            if let Some(open) = &mut self.stream {
                open.behind = 0;
            }
            return Ok(());
        }
        if let (Place::Start(_), 1..) = (self.place, response.next) {
            self.place = Place::Next(Index(response.next));
            return Ok(());
        }
        // A keep-alive. A replica that is cut off from the others has nothing new, for ever.
        let next = match self.place {
            Place::Next(next) => next,
            Place::Start(_) => self.options.min_index,
        };
        let Some(open) = &mut self.stream else { return Ok(()) };
        while let Some(asked) = open.newest.try_join_next() {
            let Ok(Some(newest)) = asked else { continue };
            open.behind = if newest >= next { open.behind + 1 } else { 0 };
        }
        if open.newest.is_empty() {
            let client = self.client.clone();
            open.newest.spawn(async move { newest(&client).await });
        }
        if open.behind < 3 {
            return Ok(());
        }
        let what = format!("{} does not get what others have", open.server);
        Err(Error::new(ErrorKind::Unavailable, what))
    }

    /// What a server sent, checked.
    fn accept(&mut self, wire: Wire) -> Result<RecordBatch> {
        let timestamp = Timestamp(wire.timestamp_nanos / NANOS_PER_MILLI);
        let stored = StoredBatch::decode(Index(wire.first), timestamp, wire.batch)?;
        let Place::Next(next) = self.place else {
            return Err(Error::new(ErrorKind::Unavailable, "the server did not say where it begins"));
        };
        if stored.first() > next || stored.last() < next {
            let what = format!("records {} to {} came where {next} was due", stored.first(), stored.last());
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        let mut batch = stored.unpack()?;
        batch.skip_to(next);
        self.place = Place::Next(stored.last().next());
        // Only what is sound says that the server is well again.
        self.failing = None;
        self.avoid.clear();
        self.backoff.reset();
        Ok(batch)
    }

    async fn open(&mut self) -> Result<()> {
        let deadline = self.deadline();
        let servers = self.client.servers();
        let server = servers.pick(&self.options.from, &self.avoid, deadline).await?;
        let mut client = servers.stream_client(&server)?;
        let request = self.request();
        let until = deadline.min(Instant::now() + self.client.options().attempt_timeout);
        let opened = timeout_at(until, client.read(request)).await;
        let failed = |status: Status| {
            let error = from_status(&status);
            Error::new(error.kind(), format!("{server}: {error}"))
        };
        let result = match opened {
            Ok(stream) => stream.map_err(failed),
            Err(_) => Err(Error::new(ErrorKind::Unavailable, format!("{server} did not answer in time"))),
        };
        match result {
            Ok(stream) => {
                self.stream =
                    Some(Open { server, stream: stream.into_inner(), behind: 0, newest: JoinSet::new() });
                Ok(())
            }
            Err(error) => {
                self.avoid.insert(server);
                Err(error)
            }
        }
    }

    fn request(&self) -> ReadRequest {
        let (start, min_index) = match self.place {
            Place::Next(next) => (Start::Index(next), next.previous()),
            Place::Start(start) => (start, self.options.min_index),
        };
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
            min_index: min_index.max(self.options.min_index).get(),
            keep_alive_millis: self.options.keep_alive.as_millis().clamp(1, u32::MAX.into()) as u32,
        }
    }

    fn deadline(&mut self) -> Instant {
        *self.failing.get_or_insert_with(Instant::now) + self.options.timeout
    }

    /// Leaves a server that failed. Some: it is of no use to look for another one.
    async fn leave(&mut self, error: Error) -> Result<Option<Error>> {
        let first_failure = self.failing.is_none();
        if let Some(Open { server, .. }) = self.stream.take() {
            tracing::debug!(server, %error, "left a server");
            if ErrorClass::of(error.kind()) == ErrorClass::RefreshMetadata {
                self.client.servers().doubt(&server);
            }
            self.avoid.insert(server);
        }
        if error.kind() == ErrorKind::OutOfRange {
            return self.out_of_range(error).await;
        }
        let deadline = self.deadline();
        let wait = self.backoff.next();
        if ErrorClass::of(error.kind()) == ErrorClass::Fatal || Instant::now() + wait >= deadline {
            (self.failing, self.avoid) = (None, BTreeSet::new());
            return Ok(Some(error));
        }
        // The first one is left at once: another replica is there.
        if !first_failure {
            sleep(wait).await;
        }
        Ok(None)
    }

    /// The replica does not have the record that it is to start at: perhaps the leader has.
    async fn out_of_range(&mut self, error: Error) -> Result<Option<Error>> {
        let info = self.client.info().await?;
        match self.place {
            Place::Start(Start::Index(index)) if index <= info.last.next() => {
                self.place = Place::Next(index); // from now on a replica is waited for
                Ok(None)
            }
            _ => Ok(Some(error)),
        }
    }
}

/// The last record that any replica has, if one tells soon.
async fn newest(client: &Client) -> Option<Index> {
    let soon = Instant::now() + 3 * client.options().probe_timeout;
    super::stale::info(client, soon).await.ok().map(|info| Index(info.last))
}

enum Step {
    Batch(RecordBatch),
    Again,
    End,
}
