//! Append: requests come in, go into the log at once, and are answered in order as they become durable.
//!
//! ```text
//! stream of requests ──> task: check, cut into batches, submit ──> line of tickets ──> stream of answers
//!        ^                        │ waits for room                       │ waits for the disks
//!        └── not read while the line is full ────────────────────────────┘
//! ```
//!
//! Invariants:
//! - an answer says ok only when every batch of its request is durable;
//! - a redirect or a full says that nothing of its request, or of any behind it on the stream, is in the log: a client
//!   sends all of that again. An unknown outcome is an error;
//! - after a redirect, a full or an error the stream ends, and nothing more is submitted;
//! - a log that was closed ends its streams, also idle ones;
//! - what was submitted is finished by the log, whether or not anybody still waits for the answer.

use super::leader::{Answered, leads};
use super::{AppendRequest, LogspecService, Replies};
use crate::listener::memory_budget;
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

/// Bytes under way are counted in pieces of this size.
const PIECE_BYTES: usize = 1024;

/// How often an idle stream looks whether the log was closed.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// A request that was taken, as it stands in line.
enum Turn {
    /// All of it is under way.
    Appended {
        sequence: u64,
        count: usize,
        tickets: Vec<Ticket>,
        _room: (OwnedSemaphorePermit, memory_budget::Held),
    },
    /// Nothing to append: is there a leader, is there room?
    Probe { sequence: u64, _held: memory_budget::Held },
    /// The log did not take all of it.
    Failed(Failure),
    /// The client did something wrong, or is gone.
    Wrong(Status),
}

/// Why a request got no ok.
#[derive(Clone, Debug)]
enum Failure {
    /// Nothing of it is in the log.
    Refused(Error),
    /// All of it or a part may be in the log.
    Unknown(Error),
}

/// The stream of answers.
pub(super) fn answers(
    service: LogspecService,
    log: Log,
    request: Request<Streaming<AppendRequest>>,
) -> Replies<AppendReply> {
    let (line, turns) = mpsc::channel(service.limits.stream_requests_max.max(1));
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
    let answerer = Answerer { service, log, turns, taker, submitted, settled: 0, over: false };
    Box::pin(stream::unfold(answerer, |mut answerer| async {
        answerer.next().await.map(|answer| (answer, answerer))
    }))
}

/// Takes requests in.
struct Taker {
    service: LogspecService,
    log: Log,
    line: mpsc::Sender<Turn>,
    /// How much may be under way.
    pieces: usize,
    room: Arc<Semaphore>,
    held: memory_budget::Ledger,
    /// The last request of which anything was submitted.
    submitted: Arc<AtomicU64>,
}

impl Taker {
    /// Until the client has sent all, or something is wrong, or nobody waits for answers any more.
    async fn run(self, mut requests: Streaming<AppendRequest>) {
        let gone = self.line.clone();
        let log = self.log.clone();
        tokio::select! {
            () = gone.closed() => {}
            () = self.take_all(&mut requests) => {}
            error = end_of(&log) => drop(gone.send(Turn::Failed(Failure::Refused(error))).await),
        }
    }

    async fn take_all(self, requests: &mut Streaming<AppendRequest>) {
        self.service.await_leader(&self.log).await;
        let mut sequence = 0;
        loop {
            let turn = match requests.message().await {
                Ok(None) => return,
                Ok(Some(request)) => {
                    sequence += 1;
                    self.take(request, sequence).await.unwrap_or_else(|turn| turn)
                }
                Err(status) => Turn::Wrong(status),
            };
            let over = matches!(turn, Turn::Failed(_) | Turn::Wrong(_));
            if self.line.send(turn).await.is_err() || over {
                return;
            }
        }
    }

    /// Submits one request, the one whose number has to be `expected`.
    async fn take(&self, request: AppendRequest, expected: u64) -> Result<Turn, Turn> {
        let held = self.held.claim();
        let sequence = request.sequence();
        if sequence != expected {
            let what = format!("sequence {sequence} came where {expected} was expected");
            return Err(Turn::Wrong(Status::invalid_argument(what)));
        }
        if request.count() == 0 {
            return Ok(Turn::Probe { sequence, _held: held.answered() });
        }
        self.check(&request)?;
        let pieces = request.memory_bytes().div_ceil(PIECE_BYTES).clamp(1, self.pieces);
        // Bounded: the request holds memory of its address and token, and the client may read no answers.
        let wait = self.service.limits.budget.wait();
        let room = timeout(wait, self.room.clone().acquire_many_owned(pieces as u32)).await;
        let room = room.map_err(|_| {
            let what = format!(
                "this stream's requests under way were at their limit for {wait:?}: read its answers"
            );
            Turn::Failed(Failure::Refused(Error::new(ErrorKind::Busy, what)))
        })?;
        let room = room.map_err(|_| Turn::Wrong(Status::internal("the stream's account was closed")))?;
        let refused = |error| Turn::Failed(Failure::Refused(error));
        self.service.fullness.check(&self.log, request.stored_bytes()).map_err(refused)?;
        let options = self.log.options();
        let mut tickets = Vec::new();
        for batch in request.batches(options.batch_bytes_max) {
            let submitting = async { self.log.submit_batch_when_room(&batch?).await };
            let submitted = timeout(options.queue_timeout, submitting).await;
            let submitted =
                submitted.unwrap_or_else(|_| Err(no_room(options.queue_timeout, tickets.is_empty())));
            tickets.push(submitted.map_err(|error| Turn::Failed(in_part(error, tickets.len())))?);
            self.submitted.store(sequence, Ordering::Relaxed);
            tokio::task::consume_budget().await; // other streams have their turn between the batches of a large one
        }
        // From here on the log's own limits count it: a client that reads no answers keeps nothing from others.
        let room = (room, held.queued());
        Ok(Turn::Appended { sequence, count: request.count() as usize, tickets, _room: room })
    }

    /// Refuses what can't be taken whole, before any of it is.
    fn check(&self, request: &AppendRequest) -> Result<(), Turn> {
        let most = self.service.limits.proposals_max;
        if request.count() > most {
            let what = format!("{} proposals in one request; {most} are allowed", request.count());
            return Err(Turn::Wrong(Status::invalid_argument(what)));
        }
        let most = self.log.record_bytes_max();
        if request.largest() > most as usize {
            let what =
                format!("a proposal of {} bytes; option record_bytes_max allows {most}", request.largest());
            return Err(Turn::Failed(Failure::Refused(Error::new(ErrorKind::TooLarge, what))));
        }
        Ok(())
    }
}

/// What waited for room in the log's queue is not in the log. `first`: nothing of its request went in before it.
fn no_room(waited: Duration, first: bool) -> Error {
    let nothing = if first { ": nothing of the request is in the log" } else { "" };
    Error::new(ErrorKind::Busy, format!("the log's queue was full for {waited:?}{nothing}"))
}

/// A batch was refused before it was submitted: that is a refusal of the request if none of its batches went in.
fn in_part(error: Error, submitted: usize) -> Failure {
    match submitted {
        0 => Failure::Refused(error),
        n => unknown(n, &error),
    }
}

fn unknown(taken: usize, error: &Error) -> Failure {
    let what = format!("outcome unknown: {taken} batches of the request went in; then: {error}");
    Failure::Unknown(Error::new(ErrorKind::Unavailable, what))
}

/// Waits until the log takes nothing more, and tells why.
async fn end_of(log: &Log) -> Error {
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        match log.check_room(0) {
            Err(error) if error.kind() != ErrorKind::Full => return error,
            _ => {}
        }
    }
}

/// Answers those in line.
struct Answerer {
    service: LogspecService,
    log: Log,
    turns: mpsc::Receiver<Turn>,
    taker: JoinHandle<()>,
    /// The last request of which anything was submitted.
    submitted: Arc<AtomicU64>,
    /// The last submitted request whose outcome is known.
    settled: u64,
    over: bool,
}

impl Answerer {
    async fn next(&mut self) -> Option<Result<AppendReply, Status>> {
        if self.over {
            return None;
        }
        let failure = match self.turns.recv().await? {
            Turn::Appended { sequence, count, tickets, _room } => {
                self.settled = sequence;
                match await_all(tickets, count).await {
                    Ok(indexes) => return Some(Ok(ok(sequence, indexes))),
                    Err(failure) => {
                        if let Failure::Refused(error) = &failure
                            && error.kind() == ErrorKind::Full
                        {
                            self.service.fullness.disk_is_full(); // the capacity had room
                        }
                        failure
                    }
                }
            }
            Turn::Probe { sequence, .. } => match self.probe() {
                Ok(()) => return Some(Ok(ok(sequence, Vec::new()))),
                Err(error) => Failure::Refused(error),
            },
            Turn::Failed(failure) => failure,
            Turn::Wrong(status) => {
                self.over = true;
                return Some(Err(status));
            }
        };
        self.over = true;
        self.turns.close(); // the taker ends; what it has submitted is the log's affair
        Some(self.answer_to(failure).await)
    }

    async fn answer_to(&mut self, failure: Failure) -> Result<AppendReply, Status> {
        let error = match failure {
            Failure::Unknown(error) => return Err(self.service.host.status_of(&error)),
            Failure::Refused(error) => error,
        };
        self.service.host.refused(&error);
        if self.may_be_in_the_log_behind().await {
            let what = format!(
                "outcome unknown: a later request of the stream may be in the log; this one is not: {error}"
            );
            return Err(self.service.host.status_of(&Error::new(ErrorKind::Unavailable, what)));
        }
        let reply = match self.service.answer_to(&self.log, &error).await {
            Answered::Redirect(redirect) => Reply::Redirect(redirect),
            Answered::Full(_) => Reply::Full(true),
            Answered::Failed(status) => return Err(status),
        };
        Ok(AppendReply { reply: Some(reply) })
    }

    /// Whether anything of the requests behind one that was refused may be in the log. Waits until that is known; the
    /// line was closed.
    async fn may_be_in_the_log_behind(&mut self) -> bool {
        let _ = (&mut self.taker).await; // it ends as the line is closed: nothing more is submitted
        while let Some(turn) = self.turns.recv().await {
            match turn {
                Turn::Appended { sequence, count, tickets, _room } => {
                    self.settled = sequence;
                    if !matches!(await_all(tickets, count).await, Err(Failure::Refused(_))) {
                        return true;
                    }
                }
                Turn::Failed(Failure::Unknown(_)) => return true,
                Turn::Failed(Failure::Refused(_)) | Turn::Probe { .. } | Turn::Wrong(_) => {}
            }
        }
        // The taker may have ended between the batches of a request.
        self.submitted.load(Ordering::Relaxed) > self.settled
    }

    /// Whether an append would be taken.
    fn probe(&self) -> chiplog::Result<()> {
        if !leads(&self.log) {
            return Err(Error::new(ErrorKind::NotLeader, "this replica does not lead"));
        }
        self.service.fullness.probe(&self.log)
    }
}

/// The indexes of all records of a request, once all of them are durable. Waits for all batches, also when one failed.
async fn await_all(tickets: Vec<Ticket>, count: usize) -> Result<Vec<u64>, Failure> {
    let mut outcomes = Vec::with_capacity(tickets.len());
    for ticket in tickets {
        outcomes.push(ticket.await);
    }
    let indexes = combine(outcomes)?;
    assert_eq!(indexes.len(), count, "one index for each proposal");
    Ok(indexes)
}

/// The outcome of a request from those of its batches, all of which were submitted: refused if all of them were.
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

    /// A request went out in several batches: the first was refused, of the second nobody knew what became of it. The
    /// client was redirected, and appended the second one again.
    #[test]
    fn unknown_outcome_of_one_batch_is_that_of_the_request() {
        use ErrorKind::{Closed, Full, Io, NotLeader, Poisoned, Timeout, Unavailable};
        let taken = || Ok(Appended { first: 7.into(), count: 2 });
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

    /// The answer to a request that was refused for lack of room, with these behind it in line. `submitted`: the last request
    /// of which anything was submitted.
    async fn answer_with_behind(behind: Vec<Turn>, submitted: u64) -> Result<AppendReply, Status> {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20)).unwrap();
        let host = crate::served::log_slot::LogSlot::new();
        host.open(log.clone());
        let service = LogspecService::new(host, crate::service::logspec::Limits::default());
        let (line, turns) = mpsc::channel(9);
        line.send(Turn::Failed(Failure::Refused(Error::new(ErrorKind::Full, "no room")))).await.unwrap();
        for turn in behind {
            line.send(turn).await.unwrap();
        }
        let (taker, submitted) = (tokio::spawn(async move { drop(line) }), Arc::new(submitted.into()));
        let mut answerer = Answerer { service, log, turns, taker, submitted, settled: 1, over: false };
        let answer = answerer.next().await.unwrap();
        assert!(answerer.next().await.is_none());
        answer
    }

    /// A client sends again what it got no answer to, and all that it sent behind a request that was refused: of that
    /// nothing may be in the log, or it stands there twice.
    #[tokio::test]
    async fn refusal_before_a_request_that_went_in_is_unknown() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20)).unwrap();
        let room = Arc::new(Semaphore::new(1)).acquire_many_owned(1).await.unwrap();
        let _room = (room, memory_budget::Ledger::default().claim().queued());
        let went_in =
            Turn::Appended { sequence: 3, count: 1, tickets: vec![log.submit(b"x").unwrap()], _room };
        let refused = || Turn::Failed(Failure::Refused(Error::new(ErrorKind::Busy, "no room")));
        let in_part = Turn::Failed(unknown(1, &Error::new(ErrorKind::Busy, "no room")));
        for (behind, submitted) in [
            (vec![Turn::Probe { sequence: 2, _held: memory_budget::Held::default() }, went_in], 3),
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
            vec![Turn::Probe { sequence: 2, _held: memory_budget::Held::default() }],
        ] {
            let reply = answer_with_behind(behind, 1).await.unwrap();
            assert_eq!(reply.reply, Some(Reply::Full(true)));
        }
    }

    /// "Full" means to a client that nothing of its request is in the log.
    #[test]
    fn a_request_of_which_some_went_in_is_not_refused() {
        let full = || Error::new(ErrorKind::Full, "no room");
        assert!(matches!(in_part(full(), 0), Failure::Refused(error) if error.kind() == ErrorKind::Full));
        let Failure::Unknown(unknown) = in_part(full(), 2) else { panic!("refused") };
        assert_eq!(unknown.kind(), ErrorKind::Unavailable);
        assert!(unknown.to_string().contains("outcome unknown"), "{unknown}");
    }
}
