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
//! - after a redirect, a full or an error the stream ends, and nothing more is submitted;
//! - a log that was closed ends its streams, also idle ones;
//! - what was submitted is finished by the log, whether or not anybody still waits for the answer.

use super::leader::{Answered, leads};
use super::{AppendRequest, LogspecService, Replies};
use crate::budget;
use crate::proto::logspec::AppendReply;
use crate::proto::logspec::append_reply::{Ok as Durable, Reply};
use chiplog::{Error, ErrorKind, Log, Ticket};
use futures_util::stream;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
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
        _room: (OwnedSemaphorePermit, budget::Held),
    },
    /// Nothing to append: is there a leader, is there room?
    Probe { sequence: u64 },
    /// The log refused.
    Refused(Error),
    /// The client did something wrong, or is gone.
    Wrong(Status),
}

/// The stream of answers.
pub(super) fn answers(
    service: LogspecService,
    log: Log,
    request: Request<Streaming<AppendRequest>>,
) -> Replies<AppendReply> {
    let (line, turns) = mpsc::channel(service.limits.stream_requests_max.max(1));
    let (_, extensions, requests) = request.into_parts();
    let held = extensions.get::<budget::Ledger>().cloned().unwrap_or_default();
    let pieces = (service.limits.stream_bytes_max / PIECE_BYTES).clamp(1, Semaphore::MAX_PERMITS);
    let room = Arc::new(Semaphore::new(pieces));
    let taker = Taker { service: service.clone(), log: log.clone(), line, pieces, room, held };
    tokio::spawn(taker.run(requests));
    let answerer = Answerer { service, log, turns, over: false };
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
    held: budget::Ledger,
}

impl Taker {
    /// Until the client has sent all, or something is wrong, or nobody waits for answers any more.
    async fn run(self, mut requests: Streaming<AppendRequest>) {
        let gone = self.line.clone();
        let log = self.log.clone();
        tokio::select! {
            () = gone.closed() => {}
            () = self.take_all(&mut requests) => {}
            error = end_of(&log) => drop(gone.send(Turn::Refused(error)).await),
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
            let over = matches!(turn, Turn::Refused(_) | Turn::Wrong(_));
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
            return Ok(Turn::Probe { sequence });
        }
        self.check(&request)?;
        let pieces = request.memory_bytes().div_ceil(PIECE_BYTES).clamp(1, self.pieces);
        let room = self.room.clone().acquire_many_owned(pieces as u32).await;
        let room = room.map_err(|_| Turn::Wrong(Status::internal("the stream's account was closed")))?;
        self.service.fullness.check(&self.log, request.stored_bytes()).map_err(Turn::Refused)?;
        let options = self.log.options();
        let mut tickets = Vec::new();
        for batch in request.batches(options.batch_bytes_max) {
            let submitting = async { self.log.submit_batch_when_room(&batch?).await };
            let submitted = timeout(options.queue_timeout, submitting).await;
            let submitted =
                submitted.unwrap_or_else(|_| Err(no_room(options.queue_timeout, tickets.is_empty())));
            tickets.push(submitted.map_err(|error| Turn::Refused(in_part(error, tickets.len())))?);
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
        let most = self.log.options().record_bytes_max;
        if request.largest() > most as usize {
            let what =
                format!("a proposal of {} bytes; option record_bytes_max allows {most}", request.largest());
            return Err(Turn::Refused(Error::new(ErrorKind::TooLarge, what)));
        }
        Ok(())
    }
}

/// What waited for room in the log's queue is not in the log. `first`: nothing of its request went in before it.
fn no_room(waited: Duration, first: bool) -> Error {
    let nothing = if first { ": nothing of the request is in the log" } else { "" };
    Error::new(ErrorKind::Busy, format!("the log's queue was full for {waited:?}{nothing}"))
}

/// A refusal is of the whole request only if none of its batches went in: else nobody is told that it is not in the log.
fn in_part(error: Error, taken: usize) -> Error {
    match taken {
        0 => error,
        n => Error::new(
            ErrorKind::Unavailable,
            format!("outcome unknown: {n} batches of the request went in; then: {error}"),
        ),
    }
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
    over: bool,
}

impl Answerer {
    async fn next(&mut self) -> Option<Result<AppendReply, Status>> {
        if self.over {
            return None;
        }
        let error = match self.turns.recv().await? {
            Turn::Appended { sequence, count, tickets, _room } => match await_all(tickets, count).await {
                Ok(indexes) => return Some(Ok(ok(sequence, indexes))),
                Err(error) => {
                    if error.kind() == ErrorKind::Full {
                        self.service.fullness.disk_is_full(); // the capacity had room
                    }
                    error
                }
            },
            Turn::Probe { sequence } => match self.probe() {
                Ok(()) => return Some(Ok(ok(sequence, Vec::new()))),
                Err(error) => error,
            },
            Turn::Refused(error) => error,
            Turn::Wrong(status) => {
                self.over = true;
                return Some(Err(status));
            }
        };
        self.over = true;
        self.turns.close(); // the taker ends; what it has submitted is the log's affair
        let reply = match self.service.answer_to(&self.log, &error).await {
            Answered::Redirect(redirect) => Reply::Redirect(redirect),
            Answered::Full(_) => Reply::Full(true),
            Answered::Failed(status) => return Some(Err(status)),
        };
        Some(Ok(AppendReply { reply: Some(reply) }))
    }

    /// Whether an append would be taken.
    fn probe(&self) -> chiplog::Result<()> {
        if !leads(&self.log) {
            return Err(Error::new(ErrorKind::NotLeader, "this replica does not lead"));
        }
        self.service.fullness.probe(&self.log)
    }
}

/// The indexes of all records of a request, once all of them are durable. Waits for all batches: where some failed, what
/// became of the others decides what may be told.
async fn await_all(tickets: Vec<Ticket>, count: usize) -> chiplog::Result<Vec<u64>> {
    let (mut indexes, mut taken, mut failed) = (Vec::with_capacity(count), 0, None);
    for ticket in tickets {
        match ticket.await {
            Ok(appended) => {
                taken += 1;
                indexes.extend(appended.first.get()..=appended.last().get());
            }
            Err(error) => _ = failed.get_or_insert(error),
        }
    }
    if let Some(error) = failed {
        return Err(in_part(error, taken));
    }
    assert_eq!(indexes.len(), count, "one index for each proposal");
    Ok(indexes)
}

fn ok(sequence: u64, indexes: Vec<u64>) -> AppendReply {
    AppendReply { reply: Some(Reply::Ok(Durable { sequence, indexes })) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "Full" means to a client that nothing of its request is in the log.
    #[test]
    fn a_request_of_which_some_went_in_is_not_refused() {
        let full = || Error::new(ErrorKind::Full, "no room");
        assert_eq!(in_part(full(), 0).kind(), ErrorKind::Full);
        let unknown = in_part(full(), 2);
        assert_eq!(unknown.kind(), ErrorKind::Unavailable);
        assert!(unknown.to_string().contains("outcome unknown"), "{unknown}");
    }
}
