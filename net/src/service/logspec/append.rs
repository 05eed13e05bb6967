//! Append: requests enter the log at once, and are answered in order as they become durable.
//!
//! ```text
//! stream of requests ──> task: check, cut into batches, submit ──> line of tickets ──> stream of answers
//!        ^                        │ waits for room                       │ waits for durability
//!        └── not read while the line is full ────────────────────────────┘
//! ```
//!
//! Invariants:
//! - an answer is `ok` only when every batch of its request is durable;
//! - a redirect or a full means that nothing of its request, or of any request behind it on the stream, is in the log:
//!   a client sends all of them again. An unknown outcome is an error;
//! - after a redirect, a full or an error the stream ends, and nothing more is submitted;
//! - a log that was closed ends its streams, also idle ones;
//! - the log finishes everything that was submitted, whether or not a client still waits for the answer.

use super::leader::{Answered, leads};
use super::{AppendRequest, LogspecService, Replies, ServedLog};
use crate::listener::memory_budget;
use crate::served::log_slot::status_of;
use crate::service::submit::submit_when_allowed;
use crate::wire::proto::logspec::AppendReply;
use crate::wire::proto::logspec::append_reply::{Ok as Durable, Reply};
use crate::wire::status::leaves_unknown;
use chiplog::{Appended, Error, ErrorKind, Log, Ticket};
use futures_util::stream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::{Request, Status, Streaming};

/// The unit of bytes in flight.
const PIECE_BYTES: usize = 1024;

/// How often an idle stream checks whether the log was closed.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// An accepted request, in line.
enum PendingReply {
    /// All of it is in flight.
    Appended {
        sequence: u64,
        count: usize,
        tickets: Vec<Ticket>,
        _room: (OwnedSemaphorePermit, memory_budget::Held),
    },
    /// An empty request: it checks for a leader and for room.
    Probe { sequence: u64, _held: memory_budget::Held },
    /// The log did not accept all of it.
    Failed(Failure),
    /// The request is invalid, or the client has left.
    Wrong(Status),
}

/// Why a request got no `ok`.
#[derive(Clone, Debug)]
enum Failure {
    /// Nothing of it is in the log.
    Refused(Error),
    /// All or a part of it may be in the log.
    Unknown(Error),
}

/// Returns the stream of answers.
pub(super) fn answers(
    service: LogspecService,
    log: ServedLog,
    request: Request<Streaming<AppendRequest>>,
) -> Replies<AppendReply> {
    let (line, pending_replies) = mpsc::channel(service.limits.stream_requests_max.max(1));
    let (_, extensions, requests) = request.into_parts();
    let held = extensions.get::<memory_budget::Ledger>().cloned().unwrap_or_default();
    let pieces = (service.limits.stream_bytes_max / PIECE_BYTES).clamp(1, Semaphore::MAX_PERMITS);
    let room = Arc::new(Semaphore::new(pieces));
    let submitted = Arc::new(AtomicU64::new(0));
    let taker = Taker {
        service: service.clone(),
        log: log.clone(),
        line,
        pieces,
        room,
        held,
        submitted: submitted.clone(),
    };
    let taker = tokio::spawn(taker.run(requests));
    let answerer = Answerer { service, log, pending_replies, taker, submitted, settled: 0, over: false };
    Box::pin(stream::unfold(answerer, |mut answerer| async {
        answerer.next().await.map(|answer| (answer, answerer))
    }))
}

/// Accepts requests.
struct Taker {
    service: LogspecService,
    log: ServedLog,
    line: mpsc::Sender<PendingReply>,
    /// The limit of bytes in flight.
    pieces: usize,
    room: Arc<Semaphore>,
    held: memory_budget::Ledger,
    /// The last request of which anything was submitted.
    submitted: Arc<AtomicU64>,
}

impl Taker {
    /// Runs until the client has sent everything, an error occurs, or the client does not read answers any more.
    async fn run(self, mut requests: Streaming<AppendRequest>) {
        let gone = self.line.clone();
        let log = self.log.clone();
        tokio::select! {
            () = gone.closed() => {}
            () = self.take_all(&mut requests) => {}
            error = end_of(&log) => drop(gone.send(PendingReply::Failed(Failure::Refused(error))).await),
        }
    }

    async fn take_all(self, requests: &mut Streaming<AppendRequest>) {
        self.service.await_leader(&self.log).await;
        let mut sequence = 0;
        loop {
            let pending = match requests.message().await {
                Ok(None) => return,
                Ok(Some(request)) => {
                    sequence += 1;
                    self.take(request, sequence).await.unwrap_or_else(|pending| pending)
                }
                Err(status) => PendingReply::Wrong(status),
            };
            let over = matches!(pending, PendingReply::Failed(_) | PendingReply::Wrong(_));
            if self.line.send(pending).await.is_err() || over {
                return;
            }
        }
    }

    /// Submits one request, whose number must be `expected`.
    async fn take(&self, request: AppendRequest, expected: u64) -> Result<PendingReply, PendingReply> {
        let held = self.held.claim();
        let sequence = request.sequence();
        if sequence != expected {
            let what = format!("sequence {sequence} came where {expected} was expected");
            return Err(PendingReply::Wrong(Status::invalid_argument(what)));
        }
        if request.count() == 0 {
            return Ok(PendingReply::Probe { sequence, _held: held.answered() });
        }
        self.check(&request)?;
        let pieces = request.memory_bytes().div_ceil(PIECE_BYTES).clamp(1, self.pieces);
        // Bounded: the request holds memory of its address and token, and the client may not read its answers.
        let wait = self.service.limits.budget.wait();
        let room = timeout(wait, self.room.clone().acquire_many_owned(pieces as u32)).await;
        let room = room.map_err(|_| {
            let what =
                format!("too many requests of this stream were unanswered for {wait:?}; read the answers");
            PendingReply::Failed(Failure::Refused(Error::new(ErrorKind::Busy, what)))
        })?;
        let room =
            room.map_err(|_| PendingReply::Wrong(Status::internal("the stream's account was closed")))?;
        let refused = |error| PendingReply::Failed(Failure::Refused(error));
        self.service.fullness.check(&self.log, request.stored_bytes()).map_err(refused)?;
        let options = self.log.options();
        let mut tickets = Vec::new();
        for batch in request.batches(options.batch_bytes_max) {
            let patience = options.queue_timeout;
            let submitting = async { submit_when_allowed(&self.log, &batch?, patience).await };
            let submitted = timeout(options.queue_timeout, submitting).await;
            let submitted =
                submitted.unwrap_or_else(|_| Err(no_room(options.queue_timeout, tickets.is_empty())));
            tickets.push(submitted.map_err(|error| PendingReply::Failed(in_part(error, tickets.len())))?);
            self.submitted.store(sequence, Ordering::Relaxed);
            tokio::task::consume_budget().await; // other streams run between the batches of a large request
        }
        // From here on the log's own limits count it: a client that does not read its answers takes nothing from
        // others.
        let room = (room, held.queued());
        Ok(PendingReply::Appended { sequence, count: request.count() as usize, tickets, _room: room })
    }

    /// Rejects a request that cannot be accepted whole, before any of it is submitted.
    fn check(&self, request: &AppendRequest) -> Result<(), PendingReply> {
        let most = self.service.limits.proposals_max;
        if request.count() > most {
            let what = format!("the request has {} proposals; the limit is {most}", request.count());
            return Err(PendingReply::Wrong(Status::invalid_argument(what)));
        }
        let most = self.log.record_bytes_max();
        if request.largest() > most as usize {
            let what =
                format!("a proposal has {} bytes; option record_bytes_max allows {most}", request.largest());
            return Err(PendingReply::Failed(Failure::Refused(Error::new(ErrorKind::TooLarge, what))));
        }
        Ok(())
    }
}

/// The error of a request without room in the log's queue, which is not in the log. `first`: none of its batches was
/// submitted before.
fn no_room(waited: Duration, first: bool) -> Error {
    let nothing = if first { ": nothing of the request is in the log" } else { "" };
    Error::new(ErrorKind::Busy, format!("the log's queue was full for {waited:?}{nothing}"))
}

/// The failure of a batch that was rejected before it was submitted: a rejection of the request if none of its batches
/// was submitted.
fn in_part(error: Error, submitted: usize) -> Failure {
    match submitted {
        0 => Failure::Refused(error),
        n => unknown(n, &error),
    }
}

fn unknown(taken: usize, error: &Error) -> Failure {
    let what = format!("outcome unknown: {taken} batches of the request were queued, then: {error}");
    Failure::Unknown(Error::new(ErrorKind::Unavailable, what))
}

/// Waits until the log accepts nothing more, and returns the reason.
async fn end_of(log: &Log) -> Error {
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        match log.check_room(0) {
            Err(error) if error.kind() != ErrorKind::Full => return error,
            _ => {}
        }
    }
}

/// Answers the requests in line.
struct Answerer {
    service: LogspecService,
    log: ServedLog,
    pending_replies: mpsc::Receiver<PendingReply>,
    taker: JoinHandle<()>,
    /// The last request of which anything was submitted.
    submitted: Arc<AtomicU64>,
    /// The last submitted request with a known outcome.
    settled: u64,
    over: bool,
}

impl Answerer {
    async fn next(&mut self) -> Option<Result<AppendReply, Status>> {
        if self.over {
            return None;
        }
        let mut is_probe = false;
        let failure = match self.pending_replies.recv().await? {
            PendingReply::Appended { sequence, count, tickets, _room } => {
                self.settled = sequence;
                match await_all(tickets, count).await {
                    Ok(indexes) => return Some(Ok(ok(sequence, indexes))),
                    Err(failure) => {
                        if let Failure::Refused(error) = &failure
                            && error.kind() == ErrorKind::Full
                        {
                            self.service.fullness.disk_is_full(&self.log); // the capacity had room, so it was the disk
                        }
                        failure
                    }
                }
            }
            PendingReply::Probe { sequence, .. } => match self.probe() {
                Ok(()) => return Some(Ok(ok(sequence, Vec::new()))),
                Err(error) => {
                    is_probe = true;
                    Failure::Refused(error)
                }
            },
            PendingReply::Failed(failure) => failure,
            PendingReply::Wrong(status) => {
                self.over = true;
                return Some(Err(status));
            }
        };
        self.over = true;
        self.pending_replies.close(); // the taker ends; the log finishes what it submitted
        Some(self.answer_to(failure, is_probe).await)
    }

    /// `is_probe`: the request had no records. Its refusal says nothing new: the server's status keeps the reason of the one before.
    async fn answer_to(&mut self, failure: Failure, is_probe: bool) -> Result<AppendReply, Status> {
        let error = match failure {
            Failure::Unknown(error) => return Err(status_of(&self.log, &error)),
            Failure::Refused(error) => error,
        };
        if !is_probe {
            self.service.host.refused(&self.log, &error);
        }
        if self.may_be_in_the_log_behind().await {
            let what = format!(
                "outcome unknown: a later request of the stream may be in the log; this one is not: {error}"
            );
            return Err(status_of(&self.log, &Error::new(ErrorKind::Unavailable, what)));
        }
        let reply = match self.service.answer_to(&self.log, &error).await {
            Answered::Redirect(redirect) => Reply::Redirect(redirect),
            Answered::Full(_) => Reply::Full(true),
            Answered::Failed(status) => return Err(status),
        };
        Ok(AppendReply { reply: Some(reply) })
    }

    /// Whether anything of the requests behind a rejected one may be in the log. Waits until that is known; the line
    /// was closed.
    async fn may_be_in_the_log_behind(&mut self) -> bool {
        let _ = (&mut self.taker).await; // it ends because the line is closed: nothing more is submitted
        while let Some(pending) = self.pending_replies.recv().await {
            match pending {
                PendingReply::Appended { sequence, count, tickets, _room } => {
                    self.settled = sequence;
                    if !matches!(await_all(tickets, count).await, Err(Failure::Refused(_))) {
                        return true;
                    }
                }
                PendingReply::Failed(Failure::Unknown(_)) => return true,
                PendingReply::Failed(Failure::Refused(_))
                | PendingReply::Probe { .. }
                | PendingReply::Wrong(_) => {}
            }
        }
        // The taker may have ended between the batches of a request.
        self.submitted.load(Ordering::Relaxed) > self.settled
    }

    /// Checks whether an append would be accepted.
    fn probe(&self) -> chiplog::Result<()> {
        if !leads(&self.log) {
            return Err(Error::new(ErrorKind::NotLeader, "this replica does not lead"));
        }
        self.service.fullness.probe(&self.log)
    }
}

/// Returns the indexes of all records of a request, once all of them are durable. Waits for all batches, also after a
/// failure.
async fn await_all(tickets: Vec<Ticket>, count: usize) -> Result<Vec<u64>, Failure> {
    let mut outcomes = Vec::with_capacity(tickets.len());
    for ticket in tickets {
        outcomes.push(ticket.await);
    }
    let indexes = combine(outcomes)?;
    assert_eq!(indexes.len(), count, "one index for each proposal");
    Ok(indexes)
}

/// The outcome of a request from those of its batches, all of which were submitted: rejected if all of them were.
fn combine(outcomes: Vec<chiplog::Result<Appended>>) -> Result<Vec<u64>, Failure> {
    let (mut indexes, mut taken, mut refused) = (Vec::new(), 0, None);
    let mut in_doubt = None;
    for outcome in outcomes {
        match outcome {
            Ok(appended) => {
                taken += 1;
                indexes.extend(appended.first.get()..=appended.last().get());
            }
            Err(error) if leaves_unknown(error.kind()) => _ = in_doubt.get_or_insert(error),
            Err(error) => _ = refused.get_or_insert(error),
        }
    }
    match (in_doubt, refused) {
        (Some(error), _) => Err(Failure::Unknown(error)),
        (None, Some(error)) if taken == 0 => Err(Failure::Refused(error)),
        (None, Some(error)) => Err(unknown(taken, &error)),
        (None, None) => Ok(indexes),
    }
}

fn ok(sequence: u64, indexes: Vec<u64>) -> AppendReply {
    AppendReply { reply: Some(Reply::Ok(Durable { sequence, indexes })) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(kind: ErrorKind) -> chiplog::Result<Appended> {
        Err(Error::new(kind, "no"))
    }

    /// A request was sent in several batches. The first was rejected, the outcome of the second was unknown. The client
    /// was redirected, and appended the second one again.
    #[test]
    fn unknown_outcome_of_one_batch_makes_the_request_unknown() {
        use ErrorKind::{Closed, Full, Io, NotLeader, Poisoned, Timeout, Unavailable};
        let taken = || Ok(Appended::new(7.into(), 2));
        for unknown in [Unavailable, Poisoned, Closed, Timeout, Io] {
            for outcomes in [
                vec![failed(NotLeader), failed(unknown)],
                vec![failed(unknown), failed(NotLeader)],
                vec![failed(Full), failed(NotLeader), failed(unknown)],
                vec![taken(), failed(unknown), taken()],
            ] {
                let Err(Failure::Unknown(error)) = combine(outcomes) else { panic!("{unknown}") };
                assert_eq!(error.kind(), unknown);
            }
        }
        let Err(Failure::Unknown(error)) = combine(vec![taken(), failed(NotLeader)]) else { panic!() };
        assert!(error.to_string().contains("outcome unknown: 1 batches"), "{error}");
        let Err(Failure::Refused(error)) = combine(vec![failed(NotLeader), failed(Full)]) else { panic!() };
        assert_eq!(error.kind(), NotLeader);
        assert_eq!(combine(vec![taken(), taken()]).unwrap(), [7, 8, 7, 8]);
    }

    /// The answer to a request that was rejected for lack of room, with these behind it in line. `submitted`: the last
    /// request of which anything was submitted.
    async fn answer_with_behind(behind: Vec<PendingReply>, submitted: u64) -> Result<AppendReply, Status> {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20)).unwrap();
        let host = crate::served::log_slot::LogSlot::new();
        host.open(log.clone());
        let service = LogspecService::new(host, crate::service::logspec::Limits::default());
        let (line, pending_replies) = mpsc::channel(9);
        line.send(PendingReply::Failed(Failure::Refused(Error::new(ErrorKind::Full, "no room"))))
            .await
            .unwrap();
        for pending in behind {
            line.send(pending).await.unwrap();
        }
        let log = ServedLog { log, port: None };
        let (taker, submitted) = (tokio::spawn(async move { drop(line) }), Arc::new(submitted.into()));
        let mut answerer =
            Answerer { service, log, pending_replies, taker, submitted, settled: 1, over: false };
        let answer = answerer.next().await.unwrap();
        assert!(answerer.next().await.is_none());
        answer
    }

    /// A client sends unanswered requests again, and all requests behind a rejected one. None of those may be in the
    /// log, or its records are in the log twice.
    #[tokio::test]
    async fn rejection_before_a_queued_request_is_unknown() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20)).unwrap();
        let room = Arc::new(Semaphore::new(1)).acquire_many_owned(1).await.unwrap();
        let _room = (room, memory_budget::Ledger::default().claim().queued());
        let went_in = PendingReply::Appended {
            sequence: 3,
            count: 1,
            tickets: vec![log.submit(b"x").unwrap().into()],
            _room,
        };
        let refused = || PendingReply::Failed(Failure::Refused(Error::new(ErrorKind::Busy, "no room")));
        let in_part = PendingReply::Failed(unknown(1, &Error::new(ErrorKind::Busy, "no room")));
        for (behind, submitted) in [
            (vec![PendingReply::Probe { sequence: 2, _held: memory_budget::Held::default() }, went_in], 3),
            (vec![in_part], 1),
            (vec![refused()], 2),
        ] {
            let status = answer_with_behind(behind, submitted).await.unwrap_err();
            assert_eq!(status.code(), tonic::Code::Unavailable, "{status}");
            assert!(status.message().contains("outcome unknown: a later request"), "{status}");
        }
        for behind in [
            vec![],
            vec![refused()],
            vec![PendingReply::Probe { sequence: 2, _held: memory_budget::Held::default() }],
        ] {
            let reply = answer_with_behind(behind, 1).await.unwrap();
            assert_eq!(reply.reply, Some(Reply::Full(true)));
        }
    }

    /// The server's status said "the disk was full less than a second ago", and not what was full.
    #[tokio::test]
    async fn probe_keeps_the_reason_of_the_refusal() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20)).unwrap();
        let host = crate::served::log_slot::LogSlot::new();
        host.open(log.clone());
        let service = LogspecService::new(host.clone(), crate::service::logspec::Limits::default());
        let own = host.opened().unwrap().clone();
        let full = || PendingReply::Failed(Failure::Refused(Error::new(ErrorKind::Full, "no space left")));
        let probe = || PendingReply::Probe { sequence: 1, _held: memory_budget::Held::default() };
        for request in [full(), probe()] {
            if matches!(request, PendingReply::Probe { .. }) {
                service.fullness.disk_is_full(&log);
            }
            let (line, pending_replies) = mpsc::channel(1);
            line.send(request).await.unwrap();
            let taker = tokio::spawn(async move { drop(line) });
            let (service, log) = (service.clone(), ServedLog { log: log.clone(), port: None });
            let submitted = Arc::default();
            let mut answerer =
                Answerer { service, log, pending_replies, taker, submitted, settled: 0, over: false };
            let reply = answerer.next().await.unwrap().unwrap();
            assert_eq!(reply.reply, Some(Reply::Full(true)));
            assert_eq!(host.fullness(&own).as_deref(), Some("no space left"));
        }
    }

    /// "Full" tells a client that nothing of its request is in the log.
    #[test]
    fn partly_queued_request_is_not_rejected() {
        let full = || Error::new(ErrorKind::Full, "no room");
        assert!(matches!(in_part(full(), 0), Failure::Refused(error) if error.kind() == ErrorKind::Full));
        let Failure::Unknown(unknown) = in_part(full(), 2) else { panic!("refused") };
        assert_eq!(unknown.kind(), ErrorKind::Unavailable);
        assert!(unknown.to_string().contains("outcome unknown"), "{unknown}");
    }
}
