//! Task: feeds the copy, from one server at a time, until the follower is closed or a permanent error occurs.
//!
//! ```text
//! choose a server ──> Follow, from behind the last block here ──> decode ──> take (on a thread that may block on the disk)
//!       ^                                                                       |
//!       └── leave it: silent, ended, damaged, behind the others; wait if all others failed recently
//! ```
//!
//! | error | reaction |
//! |---|---|
//! | the network; a server ends the stream, is silent, damaged, or behind others | another server, at once if there is one; later the same |
//! | a server has discarded the next records | ask others first; when all that answer have, the copy jumps |
//! | a server has another log or history | never use that server again; when none is left, stop |
//! | the named log was deleted | stop; if servers only answer that there is none, stop once all of them have for 30 s |
//! | the local disk is full | the same again, after a wait |
//! | the local files fail, are closed, or cannot hold a block | stop |

use super::counted_channel::CountedChannel;
use super::sources::{ExistingCopy, Sources};
use super::{FollowerEvent, Shared};
use crate::client::own_thread::{AtWork, For};
use crate::client::retry::backoff::Backoff;
use crate::wire::ids;
use crate::wire::proto::v1::follow_client::FollowClient;
use crate::wire::proto::v1::follow_request::Start as Asked;
use crate::wire::proto::v1::{FollowPlace, FollowRecords, FollowRequest, FollowResponse};
use crate::wire::protocol::NANOS_PER_MILLI;
use chiplog::follower::{FollowFrom, FollowMessage, FollowSnapshot};
use chiplog::{Error, ErrorKind, FollowerLog, Index, LogId, Result, Start};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, sleep_until, timeout};
use tonic::Streaming;

/// The largest message: anything that fits into a segment of any size, as between replicas.
const MESSAGE_BYTES_MAX: usize = (1 << 30) + (64 << 20);

/// A server that starts does not know its named logs at once. A follower whose log is found at no server waits this long.
const MISSING_MAX: Duration = Duration::from_secs(30);

/// Feeds the copy until the follower is closed or a permanent error occurs.
pub(super) async fn run(shared: Arc<Shared>, sources: Sources) {
    let mut closing = shared.closing.subscribe();
    let backoff = Backoff::new(shared.options.backoff_min, shared.options.backoff_max);
    let first = shared.followed.get().map(|f| f.log().first_index());
    let task = Task {
        shared: shared.clone(),
        sources,
        backoff,
        before: None,
        last_failure: None,
        fresh: true,
        stuck: false,
        first,
        elsewhere: Index(0),
    };
    tokio::select! {
        biased;
        _ = closing.wait_for(|closing| *closing) => {}
        error = task.keep() => shared.stop(error),
    }
}

/// Why the current server no longer feeds the copy.
enum Failure {
    /// The error is the server's or the network's.
    Server(Error),
    /// The server has another log or history.
    Refused(Error),
    /// The server has discarded the next records; others may have them.
    Elsewhere(Error),
    /// The error is local and temporary.
    Here(Error),
    /// The error is permanent.
    Fatal(Error),
}

struct Task {
    shared: Arc<Shared>,
    sources: Sources,
    backoff: Backoff,
    /// The last server that sent something.
    before: Option<String>,
    /// The failure that was last reported, so that each is reported once.
    last_failure: Option<(Option<String>, ErrorKind)>,
    /// Nothing has failed since something was received.
    fresh: bool,
    /// The last response could not be stored here: a reconnect to the same server is no event.
    stuck: bool,
    /// The first record of the copy, as last reported.
    first: Option<Index>,
    /// The highest last record that another server reported.
    elsewhere: Index,
}

/// The server that feeds the copy.
struct Upstream {
    server: String,
    stream: Streaming<FollowResponse>,
    /// Bytes received from it.
    bytes: Arc<AtomicU64>,
    /// Its last record, as it reports.
    last: Index,
    fed: bool,
}

impl Task {
    async fn keep(mut self) -> Error {
        loop {
            let mut server = None;
            let Err(failure) = self.feed(&mut server).await;
            self.disconnected();
            let error = match failure {
                Failure::Fatal(error) => return error,
                Failure::Refused(error) => {
                    if let Some(server) = &server {
                        self.sources.refuse(server, error.clone());
                    }
                    error
                }
                Failure::Server(error) => {
                    if let Some(server) = &server {
                        self.sources.failed(server);
                    }
                    error
                }
                Failure::Elsewhere(error) => error,
                Failure::Here(error) => {
                    self.stuck = true;
                    error
                }
            };
            self.report_failure(server, &error);
            if let Some(error) = self.sources.nobody_left() {
                return error;
            }
            // After the first failure, switch at once if there is another server.
            let at_once = std::mem::replace(&mut self.fresh, false) && self.sources.has_other("");
            if !at_once {
                sleep(self.backoff.next()).await;
            }
        }
    }

    /// Uses one server, from its choice until it is left; returns why.
    async fn feed(&mut self, server: &mut Option<String>) -> Result<std::convert::Infallible, Failure> {
        let want = self.followed().map(FollowerLog::resume_point).transpose().map_err(Failure::Fatal)?;
        let log = self.followed().map(|f| f.log().log_id());
        let is_of_one_log = matches!(want, Some(FollowFrom::AfterRecord { .. }));
        let copy = log.map(|log| ExistingCopy { log, is_of_one_log });
        let chosen = self.sources.choose(copy).await.map_err(|error| self.unchosen(error))?;
        *server = Some(chosen.clone());
        self.elsewhere = Index(0);
        let mut upstream = self.open(chosen, log, want).await?;
        let silence = self.shared.options.keep_alive.saturating_mul(3);
        let every = self.shared.options.compare_interval;
        let mut compare = interval_at(Instant::now() + every, every);
        compare.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut asking: Option<Pin<Box<dyn Future<Output = Option<Index>> + Send>>> = None;
        let (mut received_at, mut arrived) = (Instant::now(), 0);
        let (mut behind, mut stored) = (0, false);
        loop {
            let asked = async {
                match &mut asking {
                    Some(asking) => asking.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = sleep_until(received_at + silence) => {
                    let now = upstream.bytes.load(Ordering::Relaxed);
                    if std::mem::replace(&mut arrived, now) == now {
                        let what = format!("{} sent nothing for {silence:?}", upstream.server);
                        return Err(Failure::Server(Error::new(ErrorKind::Unavailable, what)));
                    }
                    received_at = Instant::now(); // a large message is arriving
                }
                message = upstream.stream.message() => {
                    let message = message.map_err(|status| self.end_of(&upstream.server, &status))?;
                    let Some(response) = message else {
                        let what = format!("{} ended the stream", upstream.server);
                        return Err(Failure::Server(Error::new(ErrorKind::Unavailable, what)));
                    };
                    self.on_response(&mut upstream, &response);
                    stored |= !response.head.is_empty();
                    self.take(&upstream.server, response).await?;
                    (self.fresh, self.stuck, self.last_failure) = (true, false, None);
                    self.backoff.reset();
                    self.sources.works(&upstream.server);
                    received_at = Instant::now();
                }
                last = asked => {
                    asking = None;
                    self.elsewhere = self.elsewhere.max(last.unwrap_or_default());
                }
                _ = compare.tick() => {
                    // While it sends, its report of its own position can be delayed for long.
                    let lags = upstream.last < self.elsewhere && !std::mem::take(&mut stored);
                    behind = if lags { behind + 1 } else { 0 };
                    if behind >= 3 && self.sources.has_other(&upstream.server) {
                        let what = format!("{} does not receive records that other servers have", upstream.server);
                        return Err(Failure::Server(Error::new(ErrorKind::Unavailable, what)));
                    }
                    if asking.is_none() {
                        let log = self.followed().map(|f| f.log().log_id());
                        let asked = self.sources.last_elsewhere(&upstream.server, upstream.fed, log);
                        asking = Some(Box::pin(asked));
                    }
                }
            }
        }
    }

    fn followed(&self) -> Option<&FollowerLog> {
        self.shared.followed.get()
    }

    /// Requests the next blocks from a server, and waits for its first response.
    async fn open(
        &mut self,
        server: String,
        log: Option<LogId>,
        want: Option<FollowFrom>,
    ) -> Result<Upstream, Failure> {
        let channel = self.sources.channel(&server).map_err(Failure::Fatal)?;
        let channel = CountedChannel::new(channel);
        let bytes = channel.bytes();
        let mut client = FollowClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let request = self.request(want);
        let opening = async {
            let mut stream = client.follow(request).await?.into_inner();
            Ok((stream.message().await?, stream))
        };
        let unavailable = |what| Failure::Server(Error::new(ErrorKind::Unavailable, what));
        let (first, stream) = match timeout(self.shared.options.attempt_timeout, opening).await {
            Err(_) => return Err(unavailable(format!("{server} did not answer in time"))),
            Ok(Err(status)) => return Err(self.refusal(&server, &status)),
            Ok(Ok((None, _))) => return Err(unavailable(format!("{server} ended the stream"))),
            Ok(Ok((Some(first), stream))) => (first, stream),
        };
        let theirs = ids::from_bytes(&first.log_id).filter(|id| *id != 0).map(LogId);
        let Some(theirs) = theirs else {
            return Err(unavailable(format!("{server} did not send its log's id")));
        };
        if let Some(ours) = log.filter(|ours| *ours != theirs) {
            return Err(Failure::Refused(super::other_log(&server, ours, theirs)));
        }
        if let Some(FollowFrom::After { raft, .. } | FollowFrom::AfterRecord { raft, .. }) = want
            && first.committed < raft.get()
            && self.sources.has_other(&server)
        {
            return Err(unavailable(format!("{server} has fewer records than this copy")));
        }
        let mut upstream = Upstream { server, stream, bytes, last: Index(0), fed: false };
        self.connected(&upstream.server);
        self.on_response(&mut upstream, &first);
        self.take(&upstream.server, first).await?;
        Ok(upstream)
    }

    /// `want`: None: the copy does not exist yet.
    fn request(&self, want: Option<FollowFrom>) -> FollowRequest {
        let mut records = FollowRecords::default();
        if let Some(FollowFrom::AfterRecord { next, first, time, .. }) = want {
            let timestamp_nanos = time.get().saturating_mul(NANOS_PER_MILLI);
            records = FollowRecords { next: next.get(), first: first.get(), timestamp_nanos };
        }
        let (log_id, start) = match want {
            Some(FollowFrom::After { log, raft, term } | FollowFrom::AfterRecord { log, raft, term, .. }) => {
                let place = FollowPlace { index: raft.get(), term: term.get() };
                (ids::to_bytes(log.get()), Asked::After(place))
            }
            _ => (
                ids::to_bytes(0),
                match self.shared.from {
                    Start::Index(index) => Asked::Index(index.get()),
                    Start::Next => Asked::Newest(true),
                    Start::Last(count) => Asked::Last(count),
                    Start::Timestamp(time) => {
                        Asked::TimestampNanos(time.get().saturating_mul(NANOS_PER_MILLI))
                    }
                    _ => Asked::Oldest(true),
                },
            ),
        };
        let keep_alive = self.shared.options.keep_alive.as_millis().clamp(1, u32::MAX.into());
        FollowRequest {
            log: self.shared.options.log.clone(),
            log_id,
            start: Some(start),
            keep_alive_millis: keep_alive as u32,
            records: Some(records),
            skips_stored: self.shared.options.files.vault.is_some(),
        }
    }

    /// The meaning of an error of the choice of a server.
    fn unchosen(&self, error: Error) -> Failure {
        let is_new = self.followed().is_none();
        match self.sources.missing() {
            Some(missing) if is_new || missing >= MISSING_MAX => Failure::Fatal(error),
            _ => Failure::Server(error),
        }
    }

    /// The meaning of the status that ends a stream.
    fn end_of(&mut self, server: &str, status: &tonic::Status) -> Failure {
        let error = Sources::error(server, status);
        if error.kind() != ErrorKind::NotFound {
            return self.refusal(server, status);
        }
        // The log's group has dropped the log that it fed.
        let what = format!("log {:?} was deleted: {error}", self.shared.options.log);
        Failure::Fatal(Error::new(ErrorKind::NotFound, what))
    }

    /// The meaning of a server's status.
    fn refusal(&mut self, server: &str, status: &tonic::Status) -> Failure {
        let error = Sources::error(server, status);
        match error.kind() {
            // A server that starts does not know its named logs yet: see `MISSING_MAX`.
            ErrorKind::NotFound if self.followed().is_some() => Failure::Server(error),
            ErrorKind::Diverged | ErrorKind::NotFound | ErrorKind::Unsupported => Failure::Refused(error),
            // The record at which a new copy must start.
            ErrorKind::Discarded if self.followed().is_none() => match self.sources.is_gone(server) {
                true => Failure::Fatal(error),
                false => Failure::Elsewhere(error),
            },
            _ => Failure::Server(error),
        }
    }

    /// Reads the state that a server sends with each response.
    fn on_response(&self, upstream: &mut Upstream, response: &FollowResponse) {
        (upstream.last, upstream.fed) = (Index(response.last), response.fed);
        self.shared.serve_as_fed(response.fed);
        let mut state = self.shared.state();
        (state.source_last, state.fed) = (upstream.last, response.fed);
    }

    /// Stores a response.
    async fn take(&mut self, server: &str, response: FollowResponse) -> Result<(), Failure> {
        if response.head.is_empty() {
            self.notice_discard();
            return Ok(());
        }
        let of_server = |e: Error| Error::new(e.kind(), format!("{server}: {e}"));
        let fed = FollowMessage::decode(response.head, response.bodies);
        let fed = fed.map_err(|error| match error.kind() {
            // The server has a later version: a retry changes nothing.
            ErrorKind::Unsupported => Failure::Refused(of_server(error)),
            _ => Failure::Server(of_server(error)),
        })?;
        // A copy that reads objects lacks nothing if it skips entries that are in them.
        let lacks =
            |state: &FollowSnapshot| self.shared.options.files.vault.is_none() || !state.has_objects();
        if let (FollowMessage::State(state), Some(_)) = (&fed, self.followed())
            && lacks(state)
            && !self.sources.is_gone(server)
        {
            let what = format!("{server} has discarded the records that follow this copy");
            return Err(Failure::Elsewhere(Error::new(ErrorKind::Discarded, what)));
        }
        let (shared, from) = (self.shared.clone(), server.to_owned());
        let taking = tokio::task::spawn_blocking(move || {
            let _at_work = AtWork::begin(For::Follower);
            let taken = store(&shared, &from, fed);
            drop(shared);
            taken
        });
        let panicked =
            |_| Failure::Fatal(Error::new(ErrorKind::Poisoned, "storing received records panicked"));
        let jumped = taking.await.map_err(panicked)??;
        self.sources.came();
        if let Some((from, to)) = jumped.filter(|(from, to)| from < to) {
            self.first = self.followed().map(|f| f.log().first_index());
            self.shared.state().jumps += 1;
            self.shared.events.push(FollowerEvent::Jumped { from, to });
        }
        self.notice_discard();
        Ok(())
    }

    /// Reports records that were discarded since the last call.
    fn notice_discard(&mut self) {
        let Some(first) = self.followed().map(|f| f.log().first_index()) else { return };
        if self.first.replace(first).is_some_and(|before| before < first) {
            self.shared.events.push(FollowerEvent::Discarded { first });
        }
    }

    fn connected(&mut self, server: &str) {
        {
            let mut state = self.shared.state();
            state.connects += 1;
            state.server = Some(server.to_owned());
            state.connected_since = Some(std::time::Instant::now());
        }
        let to = server.to_owned();
        self.shared.events.push(match self.before.replace(to.clone()) {
            Some(from) if from != to => FollowerEvent::Switched { from, to },
            Some(_) if self.stuck => return,
            _ => FollowerEvent::Connected { server: to },
        });
    }

    fn disconnected(&self) {
        self.shared.serve_as_fed(false);
        let mut state = self.shared.state();
        (state.server, state.connected_since, state.fed) = (None, None, false);
    }

    fn report_failure(&mut self, server: Option<String>, error: &Error) {
        tracing::debug!(server, %error, "a follower is looking for another server");
        self.shared.state().last_error = Some(error.clone());
        let now = (server.clone(), error.kind());
        if self.last_failure.as_ref() != Some(&now) {
            self.last_failure = Some(now);
            self.shared.events.push(FollowerEvent::Failed { server, error: error.clone() });
        }
    }
}

/// Stores received blocks. Some: the copy jumped, from where to where. Only before it takes `storing`, for which the end of the follower
/// waits, it may have to wait for the object store.
fn store(shared: &Shared, server: &str, fed: FollowMessage) -> Result<Option<(Index, Index)>, Failure> {
    if let Some(followed) = shared.followed.get() {
        // Unavailable: its object store has returned nothing yet, so its files stay.
        followed.check_objects(&fed).map_err(Failure::Here)?;
    }
    let _storing = shared.storing.lock().unwrap_or_else(PoisonError::into_inner);
    if *shared.closing.borrow() {
        return Err(Failure::Here(Error::new(ErrorKind::Closed, "the follower is closed")));
    }
    let of_server = |e: Error| Error::new(e.kind(), format!("{server}: {e}"));
    let bytes = fed.bytes() as u64;
    let records = match &fed {
        FollowMessage::Entries(entries) => entries.iter().map(|e| u64::from(e.records())).sum(),
        _ => 0,
    };
    {
        // Before the records can be read: a waiting caller then finds them counted.
        let mut state = shared.state();
        state.received_bytes += bytes;
        state.received_records += records;
    }
    let jumped = match (shared.followed.get(), &fed) {
        (Some(followed), _) => followed.apply_checked(fed).map_err(|error| match error.kind() {
            ErrorKind::Diverged => Failure::Refused(of_server(error)),
            // Damaged in a way that checksums do not detect, or not what was requested.
            ErrorKind::Corrupt | ErrorKind::InvalidArgument => Failure::Server(of_server(error)),
            ErrorKind::Full | ErrorKind::Unavailable => Failure::Here(error),
            // A file could not be created, for example for lack of descriptors. Nothing was written incorrectly.
            ErrorKind::Io if followed.log().poison_cause().is_none() => Failure::Here(error),
            _ => Failure::Fatal(error),
        })?,
        (None, FollowMessage::State(state)) => {
            let files = shared.options.files.clone();
            let followed = FollowerLog::create(&shared.dir, files, state).map_err(Failure::Fatal)?;
            shared.begin(followed);
            None
        }
        (None, _) => {
            let what = format!("{server} did not send where the log begins");
            return Err(Failure::Server(Error::new(ErrorKind::Corrupt, what)));
        }
    };
    Ok(jumped.map(|jumped| (jumped.from, jumped.to)))
}
