//! Sender task: numbers batches, keeps a window of them in flight to the leader, settles them in order.
//!
//! There is one append stream at a time, while there is something to append. Any error ends it. The next stream, perhaps
//! to another server, starts with all unacknowledged batches, in order and with the same bytes: the log recognizes those
//! that it has already.
//!
//! Invariants:
//! - `unacked` holds consecutive sequence numbers of one session, up to `next - 1`; the first `under_way` of them are
//!   on the stream.
//! - A batch that may be in the log never gets another number: if the numbers cannot continue, it fails. In a session,
//!   batches in doubt come first: a batch behind one that is not in the log cannot be there either.
//! - A session is closed before the next one is opened: none of its late batches can follow records of the next
//!   session.
//! - The task's end settles everything, whatever the reason, and closes a session that the task opened itself, if a server
//!   answers soon.

use super::accumulator::{Accumulator, Take, Waiting};
use super::close_report::Unacknowledged;
use super::options::ProducerOptions;
use crate::client::cluster::connections::Connection;
use crate::client::cluster::discovery::Stub;
use crate::client::cluster::leader_watchdog::LeaderWatchdog;
use crate::client::retry::backoff::Backoff;
use crate::client::retry::deadline::{after, within};
use crate::client::{Client, ErrorClass};
use crate::wire::durability;
use crate::wire::proto::v1::append_response::Result as Outcome;
use crate::wire::proto::v1::{AppendRequest, AppendResponse, InfoRequest, Refused};
use crate::wire::status::{from_status, leader_of, reported};
use bytes::Bytes;
use chiplog::{Appended, Batch, BatchBuilder, Codec, Error, ErrorKind, Index, Result, Sequence, SessionId};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// The time limit of closing the session, which is optional: a session also expires.
const CLOSE_SESSION: Duration = Duration::from_secs(2);
/// Times that a server names for the next attempt count up to this many time-outs of a record after the last acknowledgement.
const NAMED_TIMES_MAX: u32 = 10;
/// How long a stream that shares its connection stays open without an append.
const IDLE: Duration = Duration::from_secs(1);
/// How long the end of a stream may take.
const END_STREAM: Duration = Duration::from_millis(100);

pub(crate) struct SenderTask {
    client: Client,
    accumulator: Arc<Accumulator>,
    options: ProducerOptions,
    stamp: Stamp,
    /// A session that is no longer used and is not closed yet.
    retired: Option<SessionId>,
    unacked: VecDeque<Sent>,
    /// How many of them are on the stream.
    under_way: usize,
    /// A server rejected a batch: the oldest one is sent alone until it is accepted.
    careful: bool,
    /// When the last acknowledgement arrived, or when sending began with nothing else in flight.
    progress: Instant,
    /// When the last batch was acknowledged, or this began.
    acknowledged: Instant,
    /// The last rejection for lack of room.
    refused_as: Option<Error>,
    /// When a server that rejected the oldest batch wants it again, as it said last.
    try_again_at: Option<Instant>,
    /// Since when the log has been full.
    full_since: Option<Instant>,
    backoff: Backoff,
    /// Backoff of the search for another leader.
    search: Backoff,
    /// The server of the last stream, and its connection while that works.
    server: Option<String>,
    connection: Option<(Stub, Arc<Connection>)>,
    /// A server that has shown, since the last acknowledgement, that it knows everything committed before.
    proven: Option<String>,
    left: Vec<Unacknowledged>,
}

/// A batch that was taken from the accumulator and is not acknowledged.
struct Sent {
    batch: Batch,
    waiting: Waiting,
    /// A stream that has ended may have appended it, or another process of the session.
    in_doubt: bool,
    /// A stream of this producer that has ended may have appended it.
    unanswered: bool,
}

/// The session and numbers that batches get.
struct Stamp {
    codec: Codec,
    /// None: there is no session, or it must be opened again.
    session: Option<SessionId>,
    /// The next batch's number in the session.
    next: u64,
}

impl Stamp {
    /// `inflight`: the number of unacknowledged batches before it.
    fn build(&mut self, builder: &mut BatchBuilder, inflight: usize) -> Result<Batch> {
        builder.codec(self.codec);
        if let Some(session) = self.session {
            builder.session(session, Sequence(self.next), inflight as u16);
        }
        let batch = builder.build()?;
        self.next += 1;
        Ok(batch)
    }
}

/// The reason that ended a stream.
struct Broken {
    error: Error,
    /// The leader's address according to the server.
    leader: Option<String>,
    /// The server rejected the oldest batch: this attempt did not append it.
    refused: bool,
    /// The server did not answer in time.
    silent: bool,
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        Self { error, leader: None, refused: false, silent: false }
    }
}

impl From<Status> for Broken {
    fn from(status: Status) -> Self {
        Self { error: from_status(&status), leader: leader_of(&status), refused: false, silent: false }
    }
}

impl From<Refused> for Broken {
    fn from(refused: Refused) -> Self {
        let kind = ErrorKind::from_code(refused.kind);
        Self {
            error: reported(
                kind.unwrap_or(ErrorKind::Unavailable),
                refused.message,
                refused.retry_after_millis,
            ),
            leader: Some(refused.leader).filter(|l| !l.is_empty()),
            refused: kind.is_some() && !refused.outcome_unknown,
            silent: false,
        }
    }
}

impl SenderTask {
    pub(crate) fn new(
        client: Client,
        accumulator: Arc<Accumulator>,
        options: ProducerOptions,
        session: Option<SessionId>,
    ) -> Self {
        let (min, max) = (client.options().backoff_min, client.options().backoff_max);
        Self {
            client,
            accumulator,
            stamp: Stamp {
                codec: options.codec,
                session,
                next: options.session.map_or(1, |(_, next)| next.get()),
            },
            options,
            retired: None,
            unacked: VecDeque::new(),
            under_way: 0,
            careful: false,
            progress: Instant::now(),
            acknowledged: Instant::now(),
            refused_as: None,
            try_again_at: None,
            full_since: None,
            backoff: Backoff::new(min, max),
            search: Backoff::searching(min, max),
            server: None,
            connection: None,
            proven: None,
            left: Vec::new(),
        }
    }

    /// Runs until the producer is closed and everything is settled, or until it fails or must give up.
    pub(crate) async fn run(mut self) {
        let accumulator = self.accumulator.clone();
        tokio::select! {
            biased;
            () = accumulator.wait_abandoned() => {
                self.end(); // `close` waits for this, and not for a server
                self.close_own_session().await;
            }
            () = self.send_until_done() => {}
        }
    }

    async fn send_until_done(&mut self) {
        loop {
            if self.unacked.is_empty() && self.accumulator.oldest().is_none() {
                self.connection = None; // it has no stream, and nothing to send
            }
            if self.unacked.is_empty() && !self.accumulator.wait_for_work().await {
                self.close_session().await;
                return;
            }
            if let Err(broken) = self.stream().await {
                tracing::debug!(error = %broken.error, server = self.server, "append stream ended");
                self.stream_ended(&broken);
                if !self.recover(broken).await {
                    self.close_own_session().await;
                    return;
                }
            }
        }
    }

    /// Closes the session after an end that left records. The caller's session stays: it may go on in another process.
    async fn close_own_session(&mut self) {
        if self.options.session.is_none() {
            self.close_session().await;
        }
    }

    /// Closes the session, if a server answers soon. One whose close was cancelled can be closed again.
    async fn close_session(&mut self) {
        if let Some(session) = self.stamp.session.or(self.retired) {
            let _ = timeout(CLOSE_SESSION, self.client.close_session(session)).await;
            (self.stamp.session, self.retired) = (None, None);
        }
    }

    /// Appends on one stream until it breaks, or everything is settled and the producer closed, or idle for long.
    async fn stream(&mut self) -> Result<(), Broken> {
        let mut client = self.prepare().await?;
        let window = self.window();
        let (requests, receiver) = mpsc::channel(window + 1);
        let (answer_due, due) = (within(self.options.request_timeout), self.due());
        let opening = timeout_at(answer_due.min(due), client.append(ReceiverStream::new(receiver)));
        self.progress = Instant::now();
        let mut watchdog = LeaderWatchdog::default();
        let opened = tokio::select! {
            opened = opening => opened.map_err(|_| if answer_due <= due { silent(NO_ANSWER) } else { overdue() })??,
            () = watchdog.is_deposition(&self.client, &self.server, self.progress) => return Err(silent(DEPOSED)),
        };
        let mut answers = opened.into_inner();
        self.progress = Instant::now();
        loop {
            let linger = self.fill(&requests, window)?;
            if self.unacked.is_empty() && self.accumulator.is_done() {
                return Ok(());
            }
            let idle_at = self.idle_at();
            if idle_at.is_some_and(|idle_at| idle_at <= Instant::now()) {
                drop(requests);
                let _ = timeout(END_STREAM, answers.message()).await; // else HTTP/2 cancels the stream
                return Ok(());
            }
            let silent_at = after(self.progress, self.options.request_timeout);
            let mut wake = linger.map_or(self.due(), |linger| linger.min(self.due()));
            if self.under_way > 0 {
                wake = wake.min(silent_at);
            }
            wake = idle_at.map_or(wake, |idle_at| idle_at.min(wake));
            tokio::select! {
                biased;
                answer = answers.message() => match answer? {
                    Some(answer) => self.answered(answer)?,
                    None => return Err(Error::new(ErrorKind::Unavailable, "the server ended the stream").into()),
                },
                () = self.accumulator.work.notified() => {}
                () = watchdog.is_deposition(&self.client, &self.server, self.progress), if self.under_way > 0 => {
                    return Err(silent(DEPOSED));
                }
                () = sleep_until(wake) => {
                    let now = Instant::now();
                    if self.under_way > 0 && now >= silent_at {
                        return Err(silent(NO_ANSWER));
                    }
                    if now >= self.due() {
                        return Err(overdue());
                    }
                }
            }
        }
    }

    /// Finds the leader, opens a session if needed, and returns the connection.
    async fn prepare(&mut self) -> Result<Stub> {
        let due = self.due();
        let timed_out = |_| Error::new(ErrorKind::Timeout, "could not connect to a leader in time");
        let leader = timeout_at(due, self.client.servers().leader(due)).await.map_err(timed_out)??;
        if self.options.exactly_once && self.stamp.session.is_none() {
            if let Some(old) = self.retired {
                timeout_at(due, self.client.close_session(old)).await.map_err(timed_out)??;
                self.retired = None;
            }
            let session = timeout_at(due, self.client.open_session()).await.map_err(timed_out)??;
            self.renumber(session)?;
        }
        self.accumulator.bound(self.options.bounds(self.client.servers().limits()));
        if self.server.as_ref() != Some(&leader) {
            self.connection = None;
        }
        let opened = match self.connection.take() {
            Some(opened) => opened,
            None => self.client.servers().append_client(&leader)?,
        };
        self.server = Some(leader);
        Ok(self.connection.insert(opened).0.clone())
    }

    /// When to end a stream without appends, so that the number of streams follows the producers that append. None: it has some, or
    /// may stay open.
    fn idle_at(&self) -> Option<Instant> {
        let (_, connection) = self.connection.as_ref().filter(|_| self.unacked.is_empty())?;
        let ends =
            self.client.servers().connections().is_to_end(connection) && self.accumulator.oldest().is_none();
        ends.then(|| after(self.progress, IDLE))
    }

    fn window(&self) -> usize {
        let window = self.options.inflight_max;
        if !self.options.exactly_once {
            return window.into();
        }
        window.min(self.client.servers().limits().session_window).into()
    }

    /// The deadline of the oldest record.
    fn due(&self) -> Instant {
        self.due_of(self.oldest().unwrap_or_else(Instant::now), self.options.delivery_timeout)
    }

    /// Since when the oldest record has waited.
    fn oldest(&self) -> Option<Instant> {
        self.unacked.front().map(|sent| sent.waiting.since).or_else(|| self.accumulator.oldest())
    }

    /// The deadline of the oldest record, which was given then.
    fn due_of(&self, given: Instant, patience: Duration) -> Instant {
        if !self.options.ends_at_failure {
            return after(given, patience);
        }
        let due = after(given.max(self.acknowledged), patience);
        // One more attempt at the time that the server named.
        let attempt = self.options.request_timeout.min(patience);
        self.try_again_at.map_or(due, |at| due.max(after(at, attempt)))
    }

    /// Sends what the window allows. Some: the time at which a lingering batch must be sent.
    fn fill(&mut self, requests: &mpsc::Sender<AppendRequest>, window: usize) -> Result<Option<Instant>> {
        while self.under_way < if self.careful { 1 } else { window } {
            if self.under_way == self.unacked.len() {
                match self.accumulator.take(Instant::now()) {
                    Take::Batch(mut sealed) => {
                        match self.stamp.build(&mut sealed.builder, self.unacked.len()) {
                            Ok(batch) => {
                                let waiting = sealed.waiting;
                                // Another process may have sent it before.
                                let in_doubt = self.options.session.is_some();
                                self.unacked.push_back(Sent { batch, waiting, in_doubt, unanswered: false });
                            }
                            Err(error) => {
                                // Its number stays unused.
                                self.accumulator.settle(sealed.waiting, &Err(error.clone()));
                                return Err(error);
                            }
                        }
                    }
                    Take::Linger(until) => return Ok(Some(until)),
                    Take::Nothing => return Ok(None),
                }
            }
            if self.under_way == 0 {
                self.progress = Instant::now();
            }
            // If the stream has ended, reading the next answer returns the reason.
            let _ = requests.try_send(request(&self.client, &self.unacked[self.under_way].batch));
            self.under_way += 1;
        }
        Ok(None)
    }

    fn answered(&mut self, answer: AppendResponse) -> Result<(), Broken> {
        let nonsense = |what| Err(Broken::from(Error::new(ErrorKind::Unavailable, what)));
        let Some(front) = self.unacked.front().filter(|_| self.under_way > 0) else {
            return nonsense("the server sent an acknowledgement for no batch of this stream");
        };
        let result = match answer.result {
            Some(Outcome::Appended(at)) if at.count == front.batch.count() && at.first > 0 => {
                let durability = durability::from_wire(at.durability);
                Ok(Appended { durability, ..Appended::new(Index(at.first), at.count) })
            }
            Some(Outcome::Refused(refused)) => {
                let mut broken = Broken::from(refused);
                if broken.error.kind() != ErrorKind::SequenceForgotten {
                    return Err(broken);
                }
                if !front.in_doubt {
                    let what = format!("another producer appends in this session: {}", broken.error);
                    broken.error = Error::new(ErrorKind::SequenceGap, what);
                    return Err(broken);
                }
                // An earlier stream appended it.
                Err(broken.error)
            }
            _ => return nonsense("the server's answer is invalid"),
        };
        self.under_way -= 1;
        self.settle_front(&result);
        self.progress = Instant::now();
        self.acknowledged = self.progress;
        self.backoff.reset();
        self.search.reset();
        (self.careful, self.proven) = (false, None);
        (self.refused_as, self.full_since, self.try_again_at) = (None, None, None);
        Ok(())
    }

    fn settle_front(&mut self, result: &Result<Appended>) {
        if let Some(sent) = self.unacked.pop_front() {
            self.accumulator.settle(sent.waiting, result);
        }
    }

    /// Batches in flight may be in the log, unless it is known that they are not.
    fn stream_ended(&mut self, broken: &Broken) {
        let under_way = std::mem::take(&mut self.under_way);
        self.careful |= broken.refused;
        let leaves_gap = broken.refused && self.unacked.front().is_some_and(|sent| !sent.unanswered);
        if !leaves_gap {
            self.unacked.iter_mut().take(under_way).for_each(|sent| sent.unanswered = true);
        }
        if !broken.refused {
            // A connection that was closed is opened again by its next user. One on which nothing answers may be dead.
            if let Some((_, connection)) = self.connection.take().filter(|_| broken.silent) {
                self.client.servers().connections().retire(&connection);
            }
        } else if self.stamp.session.is_some() && self.front_is_clear() {
            return; // batches behind it would leave a gap
        }
        for sent in self.unacked.iter_mut().take(under_way).skip(broken.refused.into()) {
            sent.in_doubt = true;
        }
    }

    /// Whether the oldest batch is certainly not in the log.
    fn front_is_clear(&self) -> bool {
        self.unacked.front().is_some_and(|sent| !sent.in_doubt)
    }

    /// Prepares for another stream. False: there is none.
    async fn recover(&mut self, Broken { error, leader, refused, .. }: Broken) -> bool {
        let clear = refused && self.front_is_clear();
        match error.kind() {
            // None of them is in the log: they get numbers of a new session.
            ErrorKind::SessionExpired if clear => self.retire(),
            ErrorKind::SessionExpired | ErrorKind::SequenceGap => {
                if self.server == self.proven {
                    return self.fail(error);
                }
                self.prove().await;
            }
            ErrorKind::TooLarge | ErrorKind::InvalidArgument if clear => {
                if self.options.ends_at_failure {
                    return self.fail(error);
                }
                // A new leader can have other limits: request them again.
                self.doubt_server();
                self.settle_front(&Err(error.clone()));
                self.retire();
            }
            kind => match ErrorClass::of(kind) {
                ErrorClass::Fatal => return self.fail(error),
                ErrorClass::Retriable => {}
                ErrorClass::RefreshMetadata => {
                    self.doubt_server();
                    if let Some(leader) = leader {
                        self.client.servers().suggest(&leader);
                    }
                }
            },
        }
        if matches!(error.kind(), ErrorKind::Full | ErrorKind::Busy | ErrorKind::TooManySessions) {
            self.refused_as = Some(error.clone());
        }
        let full = error.kind() == ErrorKind::Full;
        match error.retry_after() {
            Some(wait) => {
                let begun = self.oldest().map_or(self.acknowledged, |given| given.max(self.acknowledged));
                let last = after(begun, self.options.delivery_timeout.saturating_mul(NAMED_TIMES_MAX));
                self.try_again_at = Some(after(Instant::now(), wait)).filter(|at| *at <= last);
            }
            None if full => self.try_again_at = None, // another reason, with a limit of its own
            None => {}
        }
        self.full_since = full.then(|| self.full_since.unwrap_or_else(Instant::now));
        if let Some(error) = self.expire(&error) {
            return self.fail(error);
        }
        let wait = match ErrorClass::of(error.kind()) {
            ErrorClass::RefreshMetadata => self.search.next(),
            ErrorClass::Retriable | ErrorClass::Fatal => self.backoff.next(),
        };
        let wait = wait.max(error.retry_after().unwrap_or_default());
        sleep(wait.min(self.due().saturating_duration_since(Instant::now()))).await;
        true
    }

    fn doubt_server(&self) {
        if let Some(server) = &self.server {
            self.client.servers().depose(server);
        }
    }

    /// A leader that was cut off does not know the latest state of a session. Its rejection is final only after it has
    /// shown, with a majority, that it knows all.
    async fn prove(&mut self) {
        let Some(server) = &self.server else { return };
        let Ok(mut client) = self.client.servers().client(server) else { return };
        let request = InfoRequest { log: self.client.log_name(), allow_stale: false };
        let asked = timeout(self.client.options().attempt_timeout, client.info(request)).await;
        self.proven = matches!(asked, Ok(Ok(_))).then(|| server.clone());
        if self.proven.is_none() {
            self.doubt_server();
        }
    }

    /// The session's numbers cannot continue.
    fn retire(&mut self) {
        if let Some(session) = self.stamp.session.take() {
            self.retired = Some(session);
        }
        self.proven = None;
    }

    /// Continues in a new session. Unacknowledged batches, which are not in the log, get its numbers.
    fn renumber(&mut self, session: SessionId) -> Result<()> {
        (self.stamp.session, self.stamp.next) = (Some(session), 1);
        for (n, sent) in self.unacked.iter_mut().enumerate() {
            let mut builder = BatchBuilder::new();
            for record in &sent.batch.records()? {
                builder.push(record)?;
            }
            sent.batch = self.stamp.build(&mut builder, n)?;
        }
        Ok(())
    }

    /// Fails the batches that have waited too long, and with them all batches in doubt, whose numbers would leave a
    /// gap. Some: the producer ends instead, because it is to, or because the session was given by the caller and there is no other one to
    /// continue in.
    fn expire(&mut self, cause: &Error) -> Option<Error> {
        let now = Instant::now();
        let full_for_long = self.full_since.is_some_and(|since| after(since, self.options.full_max) <= now);
        let patience = self.options.delivery_timeout;
        let patience = if full_for_long { patience.min(self.options.full_max) } else { patience };
        let is_due = |since| after(since, patience) <= now;
        // Of a time-out the last rejection says more.
        let cause = self.refused_as.as_ref().filter(|_| cause.kind() == ErrorKind::Timeout).unwrap_or(cause);
        let what = format!("not acknowledged within {patience:?}: {cause}");
        let kind = self.refused_as.as_ref().map_or(ErrorKind::Timeout, Error::kind);
        let clear = Error::new(kind, format!("{what}; the append is not in the log"));
        let in_doubt = Error::new(ErrorKind::Timeout, format!("{what}; the append may be in the log"));
        let has_session = self.options.session.is_some();
        if has_session || self.options.ends_at_failure {
            let what = format!(
                "{what}; the append is not in the log, unless another process of the session has sent it"
            );
            let error = match self.unacked.iter().any(|sent| sent.unanswered) {
                false if !has_session && !self.unacked.iter().any(|sent| sent.in_doubt) => clear,
                false if has_session && matches!(kind, ErrorKind::Full | ErrorKind::Busy) => {
                    Error::new(kind, what)
                }
                _ => in_doubt,
            };
            return self.oldest().is_some_and(|given| self.due_of(given, patience) <= now).then_some(error);
        }
        let mut gap = false;
        while let Some(front) = self.unacked.front()
            && (is_due(front.waiting.since) || (gap && front.in_doubt))
        {
            gap = front.in_doubt && self.options.exactly_once;
            let error = if front.in_doubt { &in_doubt } else { &clear };
            self.settle_front(&Err(error.clone()));
            self.retire();
        }
        while self.unacked.is_empty() && self.accumulator.oldest().is_some_and(is_due) {
            let Take::Batch(sealed) = self.accumulator.take(after(now, patience)) else { break };
            self.accumulator.settle(sealed.waiting, &Err(clear.clone()));
        }
        None
    }

    /// The producer cannot continue.
    fn fail(&mut self, error: Error) -> bool {
        tracing::warn!(%error, "a producer failed");
        // A caller takes `Busy` for want of room, and waits.
        self.accumulator.end(match error.kind() {
            ErrorKind::Busy => {
                Error::with_source(ErrorKind::Closed, format!("the producer ended: {error}"), &error)
            }
            _ => error.clone(),
        });
        self.give_up(&error);
        false
    }

    /// Settles everything, and lets `close` return. A second call finds nothing to settle.
    fn end(&mut self) {
        let error = Error::new(ErrorKind::Closed, "the producer ended before the record was acknowledged");
        self.accumulator.end(error.clone());
        self.give_up(&error);
        self.accumulator.gone(std::mem::take(&mut self.left));
    }

    /// Settles everything, and keeps the records for `close`. A record that may be in the log never gets a rejection as
    /// its result, whatever ended the producer.
    fn give_up(&mut self, error: &Error) {
        let open = match error.kind() {
            ErrorKind::Timeout | ErrorKind::Closed => error.clone(),
            _ => Error::with_source(
                ErrorKind::Closed,
                format!("it may be in the log; the producer failed: {error}"),
                error,
            ),
        };
        let reason = |in_doubt| if in_doubt { open.clone() } else { error.clone() };
        let keep = |left: &mut Vec<Unacknowledged>, records: Result<Vec<Vec<u8>>>, in_doubt| {
            let records = records.unwrap_or_default().into_iter().map(Bytes::from);
            left.extend(records.map(|record| Unacknowledged { record, in_doubt }));
        };
        let under_way = std::mem::take(&mut self.under_way);
        for (n, sent) in self.unacked.drain(..).enumerate() {
            let in_doubt = sent.in_doubt || n < under_way;
            keep(&mut self.left, sent.batch.records(), in_doubt);
            self.accumulator.leave(sent.waiting, reason(in_doubt));
        }
        // This includes lingering records: the producer has ended. With a session that another process opened, that
        // process may have sent these records.
        let in_doubt = self.options.session.is_some();
        while let Take::Batch(mut sealed) = self.accumulator.take(Instant::now()) {
            let records = sealed.builder.build().and_then(|b| b.records());
            keep(&mut self.left, records, in_doubt);
            self.accumulator.leave(sealed.waiting, reason(in_doubt));
        }
    }
}

impl Drop for SenderTask {
    /// This also runs when the runtime ends first: no caller waits forever.
    fn drop(&mut self) {
        self.end();
    }
}

const NO_ANSWER: &str = "the server did not answer in time";
const DEPOSED: &str = "the server does not answer, and another server leads";

/// The reason to leave a server that does not answer.
fn silent(what: &str) -> Broken {
    Broken { silent: true, ..Error::new(ErrorKind::Unavailable, what).into() }
}

/// The end of a stream whose oldest record was to be acknowledged by now.
fn overdue() -> Broken {
    Error::new(ErrorKind::Timeout, "not acknowledged in time").into()
}

fn request(client: &Client, batch: &Batch) -> AppendRequest {
    AppendRequest { log: client.log_name(), batch: batch.as_bytes().clone(), ..AppendRequest::default() }
}
