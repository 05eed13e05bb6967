//! Append: requests come in, go into the log at once, and are answered in order as they become durable.
//!
//! ```text
//! stream of requests ──> check, cut into batches, submit ──> line of tickets ──> stream of answers
//!        ^                        │ waits for room                       │ waits for the disks
//!        └── not read while the line is full ────────────────────────────┘
//! ```
//!
//! It is a state machine that is polled for its next answer, not a task: what comes one at a time on many connections
//! would cost as many switches between tasks as requests. What can take long, a request in many batches or a full queue,
//! is a future of its own that the machine polls.
//!
//! Invariants:
//! - an answer says ok only when every batch of its request is durable;
//! - after a redirect, a full or an error the stream ends, and nothing more is submitted;
//! - a log that was closed ends its streams, also idle ones;
//! - what was submitted is finished by the log, whether or not anybody still waits for the answer.

use super::leader::{Answered, leads};
use super::{AppendRequest, Limits, LogspecService, Replies, budget, within};
use crate::proto::logspec::AppendReply;
use crate::proto::logspec::append_reply::{Ok as Durable, Reply};
use chiplog::{Batch, Error, ErrorKind, Log, Ticket};
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep};
use tokio_stream::Stream;
use tonic::{Request, Status, Streaming};

/// How often an idle stream looks whether the log was closed.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// A request of at most this size is submitted on the spot, if it is one batch and the queue has room.
const SMALL_BYTES: usize = 64 << 10;

type Waiting<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A request that was taken, as it stands in line.
enum Turn {
    /// All of it is under way.
    Appended(Appended),
    /// Nothing to append: is there a leader, is there room?
    Probe { sequence: u64 },
    /// The log refused.
    Refused(Error),
    /// The client did something wrong, or is gone.
    Wrong(Status),
}

struct Appended {
    sequence: u64,
    count: usize,
    tickets: Vec<Ticket>,
    /// How many of the tickets are settled, and their indexes.
    settled: usize,
    indexes: Vec<u64>,
    /// What it takes of the stream's bytes.
    bytes: usize,
    _held: budget::Held,
}

/// What to do about requests.
enum Taking {
    /// First: wait a moment for somebody to lead.
    Begins(Waiting<()>),
    /// Read the next one.
    Reads,
    /// The one that came waits until the stream has room for it.
    Full(AppendRequest, budget::Held),
    /// Not all of it is submitted.
    Submits(Waiting<Turn>),
    /// There are no more.
    Over,
}

/// The answers of one stream.
struct Answers {
    service: LogspecService,
    log: Log,
    requests: Streaming<AppendRequest>,
    held: budget::Ledger,
    taking: Taking,
    /// Of the last request that came.
    sequence: u64,
    line: VecDeque<Turn>,
    /// Of the requests in line.
    bytes: usize,
    /// The next look at an idle log.
    look: Pin<Box<Sleep>>,
    /// The last answer, which takes a moment.
    last: Option<Waiting<Result<AppendReply, Status>>>,
    over: bool,
}

/// The stream of answers.
pub(super) fn answers(
    service: LogspecService,
    log: Log,
    request: Request<Streaming<AppendRequest>>,
) -> Replies<AppendReply> {
    let (_, extensions, requests) = request.into_parts();
    let held = extensions.get::<budget::Ledger>().cloned().unwrap_or_default();
    let begins = {
        let (service, log) = (service.clone(), log.clone());
        Box::pin(async move { drop(service.await_leader(&log).await) })
    };
    Box::pin(Answers {
        service,
        log,
        requests,
        held,
        taking: Taking::Begins(begins),
        sequence: 0,
        line: VecDeque::new(),
        bytes: 0,
        look: Box::pin(sleep(LOOK_INTERVAL)),
        last: None,
        over: false,
    })
}

impl Answers {
    fn limits(&self) -> &Limits {
        &self.service.limits
    }

    /// Takes in what there is, up to the bounds.
    fn poll_requests(&mut self, context: &mut Context<'_>) {
        loop {
            match &mut self.taking {
                Taking::Over => return,
                Taking::Begins(begins) => {
                    if begins.as_mut().poll(context).is_pending() {
                        break;
                    }
                    self.taking = Taking::Reads;
                }
                Taking::Submits(submits) => {
                    let Poll::Ready(turn) = submits.as_mut().poll(context) else { break };
                    self.taking = Taking::Reads;
                    self.enter(turn);
                }
                Taking::Full(request, _) => {
                    if !fits(self.bytes, request, &self.service.limits) {
                        break; // an answer makes room, and this is polled again
                    }
                    if let Taking::Full(request, held) = std::mem::replace(&mut self.taking, Taking::Reads) {
                        self.submit(request, held);
                    }
                }
                Taking::Reads => {
                    if self.line.len() >= self.limits().stream_requests_max.max(1) {
                        break;
                    }
                    match Pin::new(&mut self.requests).poll_next(context) {
                        Poll::Pending => break,
                        Poll::Ready(None) => self.taking = Taking::Over,
                        Poll::Ready(Some(Err(status))) => self.enter(Turn::Wrong(status)),
                        Poll::Ready(Some(Ok(request))) => self.take(request),
                    }
                }
            }
        }
        self.poll_end(context);
    }

    /// Ends the stream when the log takes nothing more.
    fn poll_end(&mut self, context: &mut Context<'_>) {
        while self.look.as_mut().poll(context).is_ready() {
            match self.log.check_room(0) {
                Err(error) if error.kind() != ErrorKind::Full => return self.enter(Turn::Refused(error)),
                _ => self.look.as_mut().reset(Instant::now() + LOOK_INTERVAL),
            }
        }
    }

    /// Puts it in line; behind a refusal or an error nothing comes.
    fn enter(&mut self, turn: Turn) {
        match &turn {
            Turn::Appended(appended) => self.bytes += appended.bytes,
            Turn::Probe { .. } => {}
            Turn::Refused(_) | Turn::Wrong(_) => self.taking = Taking::Over,
        }
        self.line.push_back(turn);
    }

    /// Takes one request, whose number has to be the next.
    fn take(&mut self, request: AppendRequest) {
        let held = self.held.claim();
        self.sequence += 1;
        let (sequence, expected) = (request.sequence(), self.sequence);
        if sequence != expected {
            let what = format!("sequence {sequence} came where {expected} was expected");
            return self.enter(Turn::Wrong(Status::invalid_argument(what)));
        }
        if request.count() == 0 {
            return self.enter(Turn::Probe { sequence });
        }
        if let Err(turn) = self.check(&request) {
            return self.enter(turn);
        }
        if fits(self.bytes, &request, self.limits()) {
            self.submit(request, held);
        } else {
            self.taking = Taking::Full(request, held);
        }
    }

    /// Refuses what can't be taken whole, before any of it is.
    fn check(&self, request: &AppendRequest) -> Result<(), Turn> {
        let most = self.limits().proposals_max;
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

    /// Submits one request, or begins to.
    fn submit(&mut self, request: AppendRequest, held: budget::Held) {
        if let Err(error) = self.service.fullness.check(&self.log, request.stored_bytes()) {
            return self.enter(Turn::Refused(error));
        }
        let appended = Appended {
            sequence: request.sequence(),
            count: request.count() as usize,
            tickets: Vec::new(),
            settled: 0,
            indexes: Vec::new(),
            bytes: request.memory_bytes(),
            _held: held,
        };
        if request.stored_bytes() > SMALL_BYTES {
            return self.taking = Taking::Submits(Box::pin(submit_all(self.log.clone(), request, appended)));
        }
        match self.submit_small(&request) {
            Some(Ok(ticket)) => self.enter(Turn::Appended(Appended { tickets: vec![ticket], ..appended })),
            Some(Err(error)) => self.enter(Turn::Refused(error)),
            None => self.taking = Taking::Submits(Box::pin(submit_all(self.log.clone(), request, appended))),
        }
    }

    /// None: it takes more than a moment, and nothing was submitted.
    fn submit_small(&self, request: &AppendRequest) -> Option<chiplog::Result<Ticket>> {
        let mut batches = request.batches(self.log.options().batch_bytes_max);
        let batch = match batches.next()? {
            Ok(batch) => batch,
            Err(error) => return Some(Err(error)),
        };
        if batches.next().is_some() {
            return None;
        }
        match self.log.try_submit_batch(&batch) {
            Err(error) if error.kind() == ErrorKind::Busy => None,
            done => Some(done),
        }
    }

    /// The answer to the oldest request; None: there is no request.
    fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<AppendReply, Status>>> {
        let settled = match self.line.front_mut() {
            None => return Poll::Ready(None),
            Some(Turn::Appended(appended)) => Some(ready!(appended.poll_settled(context))),
            Some(_) => None,
        };
        let error = match (self.line.pop_front(), settled) {
            (Some(Turn::Appended(appended)), Some(Ok(()))) => {
                self.bytes -= appended.bytes;
                return Poll::Ready(Some(Ok(ok(appended.sequence, appended.indexes))));
            }
            (_, Some(Err(error))) => {
                if error.kind() == ErrorKind::Full {
                    self.service.fullness.disk_is_full(); // the capacity had room
                }
                error
            }
            (Some(Turn::Probe { sequence }), _) => match self.probe() {
                Ok(()) => return Poll::Ready(Some(Ok(ok(sequence, Vec::new())))),
                Err(error) => error,
            },
            (Some(Turn::Refused(error)), _) => error,
            (Some(Turn::Wrong(status)), _) => {
                self.end();
                return Poll::Ready(Some(Err(status)));
            }
            (Some(Turn::Appended(_)) | None, _) => return Poll::Ready(None),
        };
        self.end();
        let (service, log) = (self.service.clone(), self.log.clone());
        let last = self.last.insert(Box::pin(async move {
            Ok(match service.answer_to(&log, &error).await {
                Answered::Redirect(redirect) => AppendReply { reply: Some(Reply::Redirect(redirect)) },
                Answered::Full(_) => AppendReply { reply: Some(Reply::Full(true)) },
                Answered::Failed(status) => return Err(status),
            })
        }));
        last.as_mut().poll(context).map(Some)
    }

    /// Nothing more is taken, and after one answer nothing more is said; what was submitted is the log's affair.
    fn end(&mut self) {
        self.over = true;
        self.taking = Taking::Over;
        self.line.clear();
    }

    /// Whether an append would be taken.
    fn probe(&self) -> chiplog::Result<()> {
        if !leads(&self.log) {
            return Err(Error::new(ErrorKind::NotLeader, "this replica does not lead"));
        }
        self.service.fullness.probe(&self.log)
    }
}

impl Stream for Answers {
    type Item = Result<AppendReply, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let answers = &mut *self;
        if let Some(last) = &mut answers.last {
            let last = ready!(last.as_mut().poll(context));
            answers.last = None;
            return Poll::Ready(Some(last));
        }
        if answers.over {
            return Poll::Ready(None);
        }
        answers.poll_requests(context);
        let was_full = matches!(answers.taking, Taking::Full(..))
            || answers.line.len() >= answers.limits().stream_requests_max.max(1);
        match ready!(answers.poll_answer(context)) {
            Some(answer) => {
                answers.last = None;
                if was_full {
                    answers.poll_requests(context); // there is room again: ask to be woken for more
                }
                Poll::Ready(Some(answer))
            }
            None if matches!(answers.taking, Taking::Over) => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

impl Appended {
    /// Whether all its records are durable, and then where.
    fn poll_settled(&mut self, context: &mut Context<'_>) -> Poll<chiplog::Result<()>> {
        self.indexes.reserve(self.count - self.indexes.len());
        while let Some(ticket) = self.tickets.get_mut(self.settled) {
            let appended = ready!(Pin::new(ticket).poll(context))?;
            self.indexes.extend(appended.first.get()..=appended.last().get());
            self.settled += 1;
        }
        assert_eq!(self.indexes.len(), self.count, "one index for each proposal");
        Poll::Ready(Ok(()))
    }
}

/// Whether a stream with so many bytes under way has room for the request. One may always be under way.
fn fits(bytes: usize, request: &AppendRequest, limits: &Limits) -> bool {
    bytes == 0 || bytes + request.memory_bytes() <= limits.stream_bytes_max
}

/// Submits batch after batch, waiting for room in the log's queue.
async fn submit_all(log: Log, request: AppendRequest, mut appended: Appended) -> Turn {
    let options = log.options();
    for batch in request.batches(options.batch_bytes_max) {
        match submit_one(&log, batch).await {
            Ok(ticket) => appended.tickets.push(ticket),
            Err(error) => return Turn::Refused(error),
        }
        tokio::task::consume_budget().await; // other streams have their turn between the batches of a large one
    }
    Turn::Appended(appended)
}

async fn submit_one(log: &Log, batch: chiplog::Result<Batch>) -> chiplog::Result<Ticket> {
    within(log.options().queue_timeout, log.submit_batch_when_room(&batch?)).await
}

fn ok(sequence: u64, indexes: Vec<u64>) -> AppendReply {
    AppendReply { reply: Some(Reply::Ok(Durable { sequence, indexes })) }
}
