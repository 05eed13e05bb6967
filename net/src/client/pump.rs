//! Pump: the producer's task: stamps batches, keeps a window of them under way to the leader, settles them in order.
//!
//! One append stream at a time. Whatever goes wrong on it ends it; the next one, perhaps to another server, begins with
//! all that is not acknowledged, in order, byte for byte as before: the log knows what it has already.
//!
//! Invariants:
//! - `unacked` holds consecutive sequence numbers of one session, the last being `next - 1`.
//! - A batch that may be in the log is never given another number: where the numbers cannot go on, it fails.
//! - The pump's end settles everything, however it ends.

use super::backoff::Backoff;
use super::gather::{Gather, Take, Tellings};
use super::producer::{ProducerOptions, Unacknowledged};
use super::{Client, ErrorClass};
use crate::proto::v1::append_response::Result as Outcome;
use crate::proto::v1::{AppendRequest, AppendResponse};
use crate::status::{from_status, leader_of};
use bytes::Bytes;
use chiplog::{Batch, BatchBuilder, Error, ErrorKind, Index, Result, Sequence, SessionId};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// How long ending the session may take: it is a courtesy.
const CLOSE_SESSION: Duration = Duration::from_secs(2);

pub(super) struct Pump {
    client: Client,
    gather: Arc<Gather>,
    options: ProducerOptions,
    /// None: there is none, or it has to be opened anew.
    session: Option<SessionId>,
    /// The next batch's number in the session.
    next: u64,
    unacked: VecDeque<Sent>,
    /// When something was last acknowledged, or began to be under way with nothing else.
    progress: Instant,
    backoff: Backoff,
    /// The server of the last stream.
    server: Option<String>,
    left: Arc<Mutex<Vec<Unacknowledged>>>,
}

/// A batch that was sent and not acknowledged.
struct Sent {
    batch: Batch,
    number: u64,
    since: Instant,
    cost: usize,
    tellings: Tellings,
    /// On how many streams.
    tries: u32,
}

/// What ended a stream.
struct Broken {
    error: Error,
    /// Where the server says that the leader is.
    leader: Option<String>,
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        Self { error, leader: None }
    }
}

impl From<Status> for Broken {
    fn from(status: Status) -> Self {
        Self { error: from_status(&status), leader: leader_of(&status) }
    }
}

impl Pump {
    pub(super) fn new(
        client: Client,
        gather: Arc<Gather>,
        options: ProducerOptions,
        session: Option<SessionId>,
        left: Arc<Mutex<Vec<Unacknowledged>>>,
    ) -> Self {
        let backoff = Backoff::new(client.options().backoff_min, client.options().backoff_max);
        Self {
            client,
            gather,
            options,
            session,
            next: 1,
            unacked: VecDeque::new(),
            progress: Instant::now(),
            backoff,
            server: None,
            left,
        }
    }

    /// Until the producer is closed and everything is settled, or it fails, or is told to give up.
    pub(super) async fn run(mut self) {
        let gather = self.gather.clone();
        tokio::select! {
            biased;
            () = gather.wait_abandoned() => {}
            () = self.pump() => {}
        }
    }

    async fn pump(&mut self) {
        loop {
            while self.unacked.is_empty() && self.gather.is_empty() {
                if self.gather.is_ended() {
                    if let Some(session) = self.session {
                        let _ = timeout(CLOSE_SESSION, self.client.close_session(session)).await;
                    }
                    return;
                }
                self.gather.work.notified().await;
            }
            if let Err(broken) = self.stream().await {
                tracing::debug!(error = %broken.error, server = ?self.server, "append stream ended");
                if !self.recover(broken).await {
                    return;
                }
            }
        }
    }

    /// Appends on one stream until it breaks, or all is done and the producer closed.
    async fn stream(&mut self) -> Result<(), Broken> {
        let due = self.due();
        let timed_out = |_| Error::new(ErrorKind::Timeout, "no connection to a leader in time");
        let leader = timeout_at(due, self.client.servers().leader(due)).await.map_err(timed_out)??;
        if self.options.exactly_once && self.session.is_none() {
            let session = timeout_at(due, self.client.open_session()).await.map_err(timed_out)??;
            self.renumber(session)?;
        }
        let mut client = self.client.servers().stream_client(&leader)?;
        self.server = Some(leader);
        let window = self.window();
        let (requests, receiver) = mpsc::channel(window.max(self.unacked.len()) + 1);
        for sent in &mut self.unacked {
            sent.tries += 1;
            let _ = requests.try_send(request(&self.client, &sent.batch));
        }
        let opening = timeout(self.options.request_timeout, client.append(ReceiverStream::new(receiver)));
        let silent = |_| Error::new(ErrorKind::Unavailable, "the server did not answer in time");
        let mut answers = opening.await.map_err(silent)??.into_inner();
        self.progress = Instant::now();
        loop {
            let linger = self.fill(&requests, window)?;
            if self.unacked.is_empty() && self.gather.is_ended() && self.gather.is_empty() {
                return Ok(());
            }
            let now = Instant::now();
            let silent_at = self.progress + self.options.request_timeout;
            let mut wake = linger.unwrap_or(now + self.options.delivery_timeout).min(self.due());
            if !self.unacked.is_empty() {
                wake = wake.min(silent_at);
            }
            tokio::select! {
                biased;
                answer = answers.message() => match answer? {
                    Some(answer) => self.answered(answer)?,
                    None => return Err(Error::new(ErrorKind::Unavailable, "the server ended the stream").into()),
                },
                () = self.gather.work.notified() => {}
                () = sleep_until(wake) => {
                    let now = Instant::now();
                    if !self.unacked.is_empty() && now >= silent_at {
                        return Err(Error::new(ErrorKind::Unavailable, "no answer in time").into());
                    }
                    if now >= self.due() {
                        return Err(Error::new(ErrorKind::Timeout, "not acknowledged in time").into());
                    }
                }
            }
        }
    }

    fn window(&self) -> usize {
        let window = self.options.inflight_max;
        if !self.options.exactly_once {
            return window.into();
        }
        window.min(self.client.servers().limits().session_window).into()
    }

    /// When the oldest record will have waited for too long.
    fn due(&self) -> Instant {
        let oldest = self.unacked.front().map(|s| s.since).or_else(|| self.gather.oldest());
        oldest.unwrap_or_else(Instant::now) + self.options.delivery_timeout
    }

    /// Sends what may be sent. Some: when a batch that lingers goes.
    fn fill(&mut self, requests: &mpsc::Sender<AppendRequest>, window: usize) -> Result<Option<Instant>> {
        while self.unacked.len() < window {
            let mut gathered = match self.gather.take(Instant::now()) {
                Take::Batch(gathered) => gathered,
                Take::Linger(until) => return Ok(Some(until)),
                Take::Nothing => return Ok(None),
            };
            if self.unacked.is_empty() {
                self.progress = Instant::now();
            }
            let batch = match self.stamp(&mut gathered.builder, self.unacked.len() as u16) {
                Ok(batch) => batch,
                Err(error) => {
                    // Its number is not used up.
                    self.gather.settle(
                        gathered.number,
                        gathered.cost,
                        gathered.tellings,
                        &Err(error.clone()),
                    );
                    return Err(error);
                }
            };
            // A stream that has ended says why when it is asked for an answer.
            let _ = requests.try_send(request(&self.client, &batch));
            self.unacked.push_back(Sent {
                batch,
                number: gathered.number,
                since: gathered.since,
                cost: gathered.cost,
                tellings: gathered.tellings,
                tries: 1,
            });
        }
        Ok(None)
    }

    /// `inflight`: batches before it that are not acknowledged.
    fn stamp(&mut self, builder: &mut BatchBuilder, inflight: u16) -> Result<Batch> {
        builder.codec(self.options.codec);
        if let Some(session) = self.session {
            builder.session(session, Sequence(self.next), inflight);
        }
        let batch = builder.build()?;
        self.next += 1;
        Ok(batch)
    }

    fn answered(&mut self, answer: AppendResponse) -> Result<(), Broken> {
        let Some(front) = self.unacked.front() else {
            return Err(
                Error::new(ErrorKind::Unavailable, "the server answered what it was not asked").into()
            );
        };
        let result = match answer.result {
            Some(Outcome::Appended(at)) if at.count == front.batch.count() && at.first > 0 => {
                Ok(Index(at.first))
            }
            Some(Outcome::Refused(refused)) => {
                let kind = ErrorKind::from_code(refused.kind).unwrap_or(ErrorKind::Unavailable);
                let leader = Some(refused.leader).filter(|l| !l.is_empty());
                match kind {
                    // It is in the log, since an earlier stream.
                    ErrorKind::SequenceForgotten if front.tries > 1 => {}
                    ErrorKind::SequenceForgotten => {
                        let what = format!("somebody else appends in this session: {}", refused.message);
                        return Err(Error::new(ErrorKind::SequenceGap, what).into());
                    }
                    _ => return Err(Broken { error: Error::new(kind, refused.message), leader }),
                }
                Err(Error::new(kind, refused.message))
            }
            _ => return Err(Error::new(ErrorKind::Unavailable, "the server's answer makes no sense").into()),
        };
        if let Some(sent) = self.unacked.pop_front() {
            self.gather.settle(sent.number, sent.cost, sent.tellings, &result);
        }
        self.progress = Instant::now();
        self.backoff.reset();
        Ok(())
    }

    /// Gets ready for another stream. False: there is none.
    async fn recover(&mut self, broken: Broken) -> bool {
        let Broken { error, leader } = broken;
        if error.kind() == ErrorKind::SessionExpired && self.unacked.iter().all(|s| s.tries == 1) {
            // Refused, so that none of them is in the log: they get numbers of a new session.
            self.session = None;
            return true;
        }
        match ErrorClass::of(error.kind()) {
            ErrorClass::Fatal => return self.fail(error),
            ErrorClass::Retriable => {}
            ErrorClass::RefreshMetadata => {
                if let Some(server) = &self.server {
                    self.client.servers().doubt(server);
                }
                if let Some(leader) = leader {
                    self.client.servers().suggest(&leader);
                }
            }
        }
        self.expire(&error);
        let wait = self.backoff.next();
        sleep(wait.min(self.due().saturating_duration_since(Instant::now()))).await;
        true
    }

    /// Goes on in a new session; what is not acknowledged, and is not in the log, gets its numbers.
    fn renumber(&mut self, session: SessionId) -> Result<()> {
        (self.session, self.next) = (Some(session), 1);
        let count = self.unacked.len();
        for _ in 0..count {
            let Some(mut sent) = self.unacked.pop_front() else { break };
            let stamped = sent.batch.records().and_then(|records| {
                let mut builder = BatchBuilder::new();
                for record in &records {
                    builder.push(record)?;
                }
                self.stamp(&mut builder, (self.next - 1) as u16)
            });
            sent.tries = 0;
            let failed = stamped.map(|batch| sent.batch = batch).err();
            self.unacked.push_back(sent);
            if let Some(error) = failed {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Fails what has waited for too long; with it all that is under way, whose numbers would leave a gap.
    fn expire(&mut self, cause: &Error) {
        let now = Instant::now();
        let timeout = self.options.delivery_timeout;
        let what = format!("not acknowledged within {timeout:?}: {cause}");
        if self.unacked.front().is_some_and(|s| s.since + timeout <= now) {
            let error = Error::new(ErrorKind::Timeout, format!("{what}; it may be in the log"));
            for sent in self.unacked.drain(..) {
                self.gather.settle(sent.number, sent.cost, sent.tellings, &Err(error.clone()));
            }
            (self.session, self.next) = (None, 1);
        }
        while self.unacked.is_empty() && self.gather.oldest().is_some_and(|since| since + timeout <= now) {
            let Take::Batch(gathered) = self.gather.take(now + timeout) else { break };
            let error = Error::new(ErrorKind::Timeout, format!("{what}; it was not sent"));
            self.gather.settle(gathered.number, gathered.cost, gathered.tellings, &Err(error));
        }
    }

    /// The producer is of no more use.
    fn fail(&mut self, error: Error) -> bool {
        tracing::warn!(%error, "a producer failed");
        self.gather.end(error.clone());
        self.give_up(&error);
        false
    }

    /// Settles everything, and keeps the records for whoever closes the producer.
    fn give_up(&mut self, error: &Error) {
        let mut left = Vec::new();
        let mut keep = |records: Vec<Vec<u8>>, in_doubt| {
            left.extend(records.into_iter().map(|r| Unacknowledged { record: Bytes::from(r), in_doubt }));
        };
        for sent in self.unacked.drain(..) {
            keep(sent.batch.records().unwrap_or_default(), sent.tries > 0);
            self.gather.settle(sent.number, sent.cost, sent.tellings, &Err(error.clone()));
        }
        let late = Instant::now() + Duration::from_secs(1 << 30);
        while let Take::Batch(mut gathered) = self.gather.take(late) {
            let records = gathered.builder.build().and_then(|b| b.records());
            keep(records.unwrap_or_default(), false);
            self.gather.settle(gathered.number, gathered.cost, gathered.tellings, &Err(error.clone()));
        }
        self.left.lock().unwrap_or_else(PoisonError::into_inner).append(&mut left);
    }
}

impl Drop for Pump {
    /// Also when the runtime ends under it: nobody waits for ever.
    fn drop(&mut self) {
        let error = Error::new(ErrorKind::Closed, "the producer ended before the record was acknowledged");
        self.gather.end(error.clone());
        self.give_up(&error);
    }
}

fn request(client: &Client, batch: &Batch) -> AppendRequest {
    AppendRequest { log: client.log_name(), batch: batch.as_bytes().clone() }
}
