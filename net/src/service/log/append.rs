//! Append: one stream of batches, of one log or of several, answered in order.
//!
//! It is a state machine that is polled for its next response, not a task: it reads, submits and answers in that poll.
//! Dropping it abandons the rest. Submitted batches are appended all the same.
//!
//! Invariants:
//! - Responses are sent in the order of the requests, one for each.
//! - Nothing is read while `bytes` or the number of batches in flight is at its limit, or a batch waits for room.
//! - A large batch that must be decompressed gets a separate thread; few of them run at a time, with pauses.
//! - However fast requests arrive, other tasks of the thread get to run: each request, and each [`STEP_BYTES`] of it,
//!   uses the task's budget.
//! - A batch in flight and a finished answer each hold at least one piece of the request budget.
//! - A batch goes to the log that its request names, or to none: not to the log of an earlier request because its own was not found.

use super::NativeOptions;
use super::stream_logs::StreamLogs;
use crate::listener::auth::tokens::Payer;
use crate::listener::memory_budget::{Held, Ledger, UNPACKED_AT_ONCE_MAX};
use crate::served::caller::Caller;
use crate::served::log_slot::{LogSlot, another_leader};
use crate::service::blocking_work::run_paced;
use crate::service::submit::submit_when_allowed;
use crate::wire::durability;
use crate::wire::proto::v1::append_response::Result as Outcome;
use crate::wire::proto::v1::{AppendRequest, AppendResponse, Appended, Durability, Refused};
use crate::wire::status::{from_status, leader_of, leaves_unknown, millis};
use chiplog::{Batch, Codec, Error, ErrorKind, Log, Ticket};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::task::coop;
use tokio::time::timeout;
use tokio_stream::Stream;
use tonic::{Status, Streaming};

/// Checking or decompressing a batch counts in steps of this size: about as much work as a small request.
pub(super) const STEP_BYTES: usize = 16 << 10;

type Waiting<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The responses of one append stream.
pub struct AppendStream {
    host: Arc<LogSlot>,
    requests: Streaming<AppendRequest>,
    /// The requests' shares of the budget.
    shares: Ledger,
    payer: Arc<Payer>,
    caller: Caller,
    logs: StreamLogs,
    /// A request, while this replica finds out whether there is its log.
    finding: Option<Finding>,
    pending: VecDeque<Pending>,
    /// Bytes of batches in flight.
    bytes: usize,
    bytes_max: usize,
    pending_max: usize,
    room_timeout: Duration,
    /// A batch that is being decompressed, or that found the log's queue full.
    stalled: Option<Stalled>,
    /// No more requests follow; and the reason, unless the client ended the stream.
    ended: Option<Option<Status>>,
    /// The server is shutting down.
    drained: Waiting<()>,
    /// The task that is woken for it.
    registered: Option<Waker>,
}

enum Pending {
    Submitted {
        /// The number of its log.
        log: usize,
        ticket: Ticket,
        bytes: usize,
        _held: Held,
    },
    /// Its answer is ready, and waits for earlier ones.
    Answered { response: AppendResponse, _held: Held },
}

/// Returns the batches, each decompressed once, so that the log need not do so on a runtime thread.
pub(super) async fn measured(payer: &Arc<Payer>, mut batches: Vec<Batch>) -> chiplog::Result<Vec<Batch>> {
    let measuring =
        run_paced(payer, move || batches.iter_mut().try_for_each(Batch::measure).map(|()| batches));
    let gone = |_| Error::new(ErrorKind::Unavailable, "this server is shutting down");
    measuring.await.map_err(gone)?
}

struct Finding {
    request: AppendRequest,
    held: Held,
    log: Waiting<Result<Log, Status>>,
}

struct Stalled {
    log: usize,
    bytes: usize,
    held: Held,
    /// None: it waited too long.
    ticket: Waiting<Option<chiplog::Result<Ticket>>>,
}

impl AppendStream {
    pub(super) fn new(
        host: Arc<LogSlot>,
        options: &NativeOptions,
        requests: Streaming<AppendRequest>,
        shares: Ledger,
        payer: Arc<Payer>,
        caller: Caller,
        meant: Option<Vec<u8>>,
    ) -> Self {
        let drained = {
            let host = host.clone();
            Box::pin(async move { host.drained().await })
        };
        Self {
            drained,
            registered: None,
            host,
            requests,
            shares,
            payer,
            caller,
            logs: StreamLogs::new(meant),
            finding: None,
            pending: VecDeque::new(),
            bytes: 0,
            bytes_max: options.append_inflight_bytes,
            pending_max: options.append_inflight_max,
            room_timeout: options.room_timeout,
            stalled: None,
            ended: None,
        }
    }

    /// Accepts the available requests, up to the limits.
    fn poll_requests(&mut self, context: &mut Context<'_>) {
        if self.ended.is_none() && self.is_drained(context) {
            let error = Error::new(ErrorKind::Unavailable, "this server is shutting down");
            self.ended = Some(Some(self.host.status_of(&error)));
        }
        while self.ended.is_none() {
            if let Some(mut finding) = self.finding.take() {
                let Poll::Ready(found) = finding.log.as_mut().poll(context) else {
                    return self.finding = Some(finding);
                };
                spend(self.found(found, finding.request, finding.held), context);
                continue;
            }
            if let Some(mut stalled) = self.stalled.take() {
                let Poll::Ready(ticket) = stalled.ticket.as_mut().poll(context) else {
                    self.stalled = Some(stalled);
                    return;
                };
                self.submitted(stalled.log, ticket, stalled.bytes, stalled.held);
            }
            if self.bytes >= self.bytes_max || self.pending.len() >= self.pending_max {
                return;
            }
            let Poll::Ready(step) = coop::poll_proceed(context) else { return };
            match Pin::new(&mut self.requests).poll_next(context) {
                Poll::Pending => return,
                Poll::Ready(Some(Ok(request))) => {
                    step.made_progress();
                    spend(self.begin(request), context);
                }
                Poll::Ready(Some(Err(status))) => self.ended = Some(Some(status)),
                Poll::Ready(None) => self.ended = Some(None),
            }
        }
    }

    /// Whether the server is shutting down; if not, the task is woken when it is. Registering for each request would
    /// cost about as much as submitting a small batch, so it is done once per task.
    fn is_drained(&mut self, context: &mut Context<'_>) -> bool {
        let is_registered =
            self.registered.as_ref().is_some_and(|registered| registered.will_wake(context.waker()));
        if is_registered && !self.host.is_draining() {
            return false;
        }
        self.registered = Some(context.waker().clone());
        self.drained.as_mut().poll(context).is_ready()
    }

    /// Accepts a request once its log is known. Returns about how many bytes this thread had to process.
    fn begin(&mut self, mut request: AppendRequest) -> usize {
        let held = self.shares.claim();
        if let Some(log) = self.logs.turn_to(&mut request) {
            return self.take(log, request, held);
        }
        let meant = match self.logs.look_up(&request) {
            Ok(meant) => meant,
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                self.ended = Some(Some(self.host.status_of(&error)));
                return 0;
            }
            Err(error) => return self.found(Err(self.host.status_of(&error)), request, held),
        };
        if let Some(found) = self.host.peek(&self.caller, &request.log, meant.as_deref()) {
            return self.found(found, request, held);
        }
        let (host, caller, name) = (self.host.clone(), self.caller.clone(), request.log.clone());
        let log = Box::pin(async move { host.find(&caller, &name, meant.as_deref()).await });
        self.finding = Some(Finding { request, held, log });
        0
    }

    /// Takes a request whose log was looked for. Returns as [`Self::begin`].
    fn found(&mut self, log: Result<Log, Status>, request: AppendRequest, held: Held) -> usize {
        match log {
            Ok(log) => {
                let log = self.logs.add(&request.log, log);
                return self.take(log, request, held);
            }
            Err(status) if self.logs.is_empty() => self.ended = Some(Some(status)),
            Err(status) => {
                let mut refused = refusal(&from_status(&status), false);
                refused.leader = leader_of(&status).unwrap_or_default();
                self.answered(AppendResponse { result: Some(Outcome::Refused(refused)) }, held);
            }
        }
        0
    }

    /// Takes a request for this log. Returns as [`Self::begin`].
    fn take(&mut self, log: usize, request: AppendRequest, held: Held) -> usize {
        let bytes = request.batch.len();
        if bytes == 0 {
            self.answered(appended(0, 0, Durability::Unspecified), held);
            return 0;
        }
        match Batch::decode(request.batch) {
            Err(error) => {
                self.refuse(log, &error, held);
                bytes
            }
            Ok(batch) => {
                let unpacked = if batch.codec() == Codec::None { 0 } else { UNPACKED_AT_ONCE_MAX };
                self.submit(log, batch, held);
                bytes + unpacked
            }
        }
    }

    fn submit(&mut self, number: usize, batch: Batch, held: Held) {
        let log = self.logs.get(number);
        let (bytes, options) = (batch.as_bytes().len(), log.options());
        let unpacked = batch.unmeasured_bytes(log.record_bytes_max());
        let is_large = (UNPACKED_AT_ONCE_MAX + 1..=options.batch_bytes_max as usize).contains(&unpacked);
        if !is_large {
            match log.try_submit(&batch) {
                Err(error) if error.kind() == ErrorKind::Busy => {}
                done => return self.submitted(number, Some(done), bytes, held),
            }
        }
        let (log, payer, patience) = (log.clone(), self.payer.clone(), self.room_timeout);
        let submitting = async move {
            let batch = if is_large { measured(&payer, vec![batch]).await?.swap_remove(0) } else { batch };
            submit_when_allowed(&log, &batch, patience).await
        };
        let ticket = async move { timeout(patience, submitting).await.ok() };
        self.stalled = Some(Stalled { log: number, bytes, held, ticket: Box::pin(ticket) });
    }

    /// None: there was no room in time.
    fn submitted(&mut self, log: usize, ticket: Option<chiplog::Result<Ticket>>, bytes: usize, held: Held) {
        match ticket {
            Some(Ok(ticket)) => {
                self.bytes += bytes;
                self.pending.push_back(Pending::Submitted { log, ticket, bytes, _held: held.queued() });
            }
            Some(Err(error)) => self.refuse(log, &error, held),
            None => {
                let what = format!(
                    "no room for the batch within {:?}, in the log's queue or to decompress it; try again later",
                    self.room_timeout
                );
                self.refuse(log, &Error::new(ErrorKind::Busy, what), held);
            }
        }
    }

    fn refuse(&mut self, log: usize, error: &Error, held: Held) {
        let response = self.refused(log, error, false);
        self.answered(response, held);
    }

    fn answered(&mut self, response: AppendResponse, held: Held) {
        self.pending.push_back(Pending::Answered { response, _held: held.answered() });
    }

    /// `in_doubt`: the batch was submitted, so some errors leave its outcome open.
    fn refused(&mut self, number: usize, error: &Error, in_doubt: bool) -> AppendResponse {
        let (log, kind) = (self.logs.get(number), error.kind());
        self.host.refused(log, error);
        let mut refused = refusal(error, in_doubt);
        refused.message = self.host.words(log, error);
        if kind == ErrorKind::NotLeader {
            refused.leader = another_leader(log).unwrap_or_default();
        }
        if matches!(kind, ErrorKind::NotFound | ErrorKind::Closed | ErrorKind::Removed) {
            self.logs.forget(number);
        }
        AppendResponse { result: Some(Outcome::Refused(refused)) }
    }

    /// Returns the answer to the oldest request; None: there is no request.
    fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<Option<AppendResponse>> {
        let settled = match self.pending.front_mut() {
            None => return Poll::Ready(None),
            Some(Pending::Answered { .. }) => None,
            Some(Pending::Submitted { ticket, .. }) => Some(ready!(Pin::new(ticket).poll(context))),
        };
        let front = self.pending.pop_front();
        if let Some(Pending::Submitted { bytes, .. }) = &front {
            self.bytes -= bytes;
        }
        Poll::Ready(match (front, settled) {
            (Some(Pending::Answered { response, .. }), _) => Some(response),
            (_, Some(Ok(at))) => Some(appended(at.first.get(), at.count, durability::to_wire(at.durability))),
            (Some(Pending::Submitted { log, .. }), Some(Err(error))) => Some(self.refused(log, &error, true)),
            _ => None,
        })
    }
}

impl Stream for AppendStream {
    type Item = Result<AppendResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let stream = &mut *self;
        stream.poll_requests(context);
        let was_full = stream.bytes >= stream.bytes_max || stream.pending.len() >= stream.pending_max;
        if let Some(response) = ready!(stream.poll_answer(context)) {
            if was_full {
                stream.poll_requests(context); // there is room again: register for more
            }
            return Poll::Ready(Some(Ok(response)));
        }
        match &mut stream.ended {
            None => Poll::Pending,
            Some(why) => Poll::Ready(why.take().map(Err)),
        }
    }
}

/// Uses the task's budget for the bytes that this thread had to process.
fn spend(bytes: usize, context: &mut Context<'_>) {
    let mut proceeds = (0..bytes / STEP_BYTES).map(|_| coop::poll_proceed(context));
    proceeds.all(|step| step.map(|step| step.made_progress()).is_ready());
}

fn refusal(error: &Error, in_doubt: bool) -> Refused {
    let kind = error.kind();
    Refused {
        kind: kind.code(),
        message: error.to_string(),
        retryable: error.is_retryable(),
        outcome_unknown: in_doubt && leaves_unknown(kind),
        leader: String::new(),
        retry_after_millis: error.retry_after().map_or(0, millis),
    }
}

fn appended(first: u64, count: u32, durability: Durability) -> AppendResponse {
    let appended = Appended { first, count, durability: durability.into() };
    AppendResponse { result: Some(Outcome::Appended(appended)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::auth::tokens::Resource;
    use crate::listener::memory_budget::{Budget, unpackings};
    use crate::service::blocking_work::tests::frees_its_turn;
    use bytes::Bytes;
    use chiplog::BatchBuilder;
    use http_body_util::BodyExt as _;
    use prost::Message as _;
    use tokio_stream::StreamExt as _;
    use tonic::body::Body;
    use tonic_prost::ProstCodec;

    /// It decompresses to 2 MiB.
    fn packed() -> Batch {
        let mut builder = BatchBuilder::new();
        builder.codec(Codec::Lz4).push(&[7; 2 << 20]).unwrap();
        Batch::decode(builder.build().unwrap().as_bytes().clone()).unwrap()
    }

    #[tokio::test]
    async fn measuring_releases_its_turn() {
        let payer = Budget::default().payer_of(&http::Extensions::new());
        frees_its_turn(&payer, measured(&payer, vec![packed()])).await;
    }

    /// A stream with a compressed batch. Its record is too large.
    fn appending(options: &NativeOptions) -> (tempfile::TempDir, Arc<Payer>, AppendStream) {
        bringing(options, packed().as_bytes(), 1)
    }

    /// A stream with this batch, repeated this many times.
    fn bringing(
        options: &NativeOptions,
        batch: &Bytes,
        times: usize,
    ) -> (tempfile::TempDir, Arc<Payer>, AppendStream) {
        let dir = tempfile::tempdir().unwrap();
        let mut of_log = chiplog::Options::with_segment_bytes(16 << 20);
        of_log.record_bytes_max = 1 << 20;
        let host = LogSlot::new();
        host.open(Log::open(dir.path(), of_log).unwrap());
        let request = AppendRequest { batch: batch.clone(), ..AppendRequest::default() };
        let request = request.encode_to_vec();
        let length = (request.len() as u32).to_be_bytes();
        let frames = [&[0], &length[..], &request].concat().repeat(times);
        let body = http_body_util::Full::new(Bytes::from(frames));
        let body = Body::new(body.map_err(|never| match never {}));
        let decoder = ProstCodec::<(), AppendRequest>::raw_decoder(Default::default());
        let requests = Streaming::new_request(decoder, body, None, None);
        let payer = options.budget.payer_of(&http::Extensions::new());
        let (shares, caller) = (Ledger::default(), Caller::default());
        let stream = AppendStream::new(host, options, requests, shares, payer.clone(), caller, None);
        (dir, payer, stream)
    }

    fn kind(response: Option<Result<AppendResponse, Status>>) -> u32 {
        match response.unwrap().unwrap().result {
            Some(Outcome::Refused(refused)) => refused.kind,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn batch_waits_a_limited_time_to_be_decompressed() {
        for resource in [Resource::Turns, Resource::Paced] {
            let options = NativeOptions::default().room_timeout(Duration::from_millis(50));
            let (_dir, payer, mut stream) = appending(&options);
            let _all = payer.take(resource, 1 << 20).await;
            let response = timeout(Duration::from_secs(5), stream.next()).await.expect("waits forever");
            assert_eq!(kind(response), ErrorKind::Busy.code(), "{resource:?}");
        }
    }

    /// A stream accepted everything that had arrived, a thousand compressed batches for 40 ms, before another task
    /// could run.
    #[tokio::test]
    async fn flood_of_requests_lets_other_tasks_run() {
        let mut builder = BatchBuilder::new();
        let small = builder.push(b"x").unwrap().build().unwrap();
        builder = BatchBuilder::new();
        let packed = builder.codec(Codec::Lz4).push(&[7; 60 << 10]).unwrap().build().unwrap();
        for (batch, most) in [(small, 128), (packed, 32)] {
            let options = NativeOptions::default();
            let (_dir, _, mut stream) = bringing(&options, batch.as_bytes(), 1000);
            let early = std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut stream).poll_next(context)));
            drop(early.await);
            assert!(stream.pending.len() <= most, "{} of 1000 were accepted at once", stream.pending.len());
            let rest = timeout(Duration::from_secs(60), stream.fold(0, |n, _| n + 1)).await;
            assert!(rest.expect("no progress") >= 999);
        }
    }

    /// A batch of 32 MiB kept a runtime thread busy for about 13 ms.
    #[test]
    fn large_batches_are_decompressed_on_other_threads() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            let (release, released) = std::sync::mpsc::channel::<()>();
            let busy = tokio::task::spawn_blocking(move || released.recv());
            let options = NativeOptions::default();
            let (_dir, payer, mut stream) = appending(&options);
            let early = timeout(Duration::from_millis(50), stream.next()).await;
            assert!(early.is_err(), "decompressed on this thread");
            assert!(payer.try_take(Resource::Paced, unpackings()).is_err(), "its use is not counted");
            drop(release);
            assert_eq!(kind(stream.next().await), ErrorKind::TooLarge.code());
            drop(payer.take(Resource::Paced, unpackings()).await); // its pause is over
            let _ = busy.await;
        });
    }
}
