//! Append: one stream of batches, answered in order.
//!
//! It is a state machine that is polled for its next response, not a task: reading, submitting and answering happen
//! in that poll, and dropping it gives up whatever is left. What was submitted is appended all the same.
//!
//! Invariants:
//! - Responses come in the order of the requests, one for each.
//! - Nothing is read while `bytes` or the number of those under way is at its bound, or a batch waits for room.
//! - A batch under way and an answer that is ready each hold at least one piece of the request budget.

use super::NativeOptions;
use crate::budget::{Held, Ledger};
use crate::host::Host;
use crate::proto::v1::append_response::Result as Outcome;
use crate::proto::v1::{AppendRequest, AppendResponse, Appended, Durability, Refused};
use crate::status::leaves_unknown;
use chiplog::{Batch, Error, ErrorKind, Log, Ticket};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio_stream::Stream;
use tonic::{Status, Streaming};

type Waiting<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The responses of one append stream.
pub struct AppendStream {
    host: Arc<Host>,
    requests: Streaming<AppendRequest>,
    /// The requests' shares of what may be under way.
    shares: Ledger,
    /// Named by the first request.
    log: Option<Log>,
    pending: VecDeque<Pending>,
    /// Of batches that are under way.
    bytes: usize,
    bytes_max: usize,
    pending_max: usize,
    room_timeout: Duration,
    /// A batch that found the log's queue full.
    stalled: Option<Stalled>,
    /// No request comes any more; and why, if not because the client said so.
    ended: Option<Option<Status>>,
    /// The server is about to end.
    drained: Waiting<()>,
    /// Who hears of that.
    told: Option<Waker>,
}

enum Pending {
    Submitted {
        ticket: Ticket,
        bytes: usize,
        _held: Held,
    },
    /// Its answer is ready, and waits for those before it.
    Answered {
        response: AppendResponse,
        _held: Held,
    },
}

struct Stalled {
    bytes: usize,
    held: Held,
    /// None: it waited for too long.
    ticket: Waiting<Option<chiplog::Result<Ticket>>>,
}

impl AppendStream {
    pub(super) fn new(
        host: Arc<Host>,
        options: &NativeOptions,
        requests: Streaming<AppendRequest>,
        shares: Ledger,
    ) -> Self {
        let drained = {
            let host = host.clone();
            Box::pin(async move { host.drained().await })
        };
        Self {
            drained,
            told: None,
            host,
            requests,
            shares,
            log: None,
            pending: VecDeque::new(),
            bytes: 0,
            bytes_max: options.append_inflight_bytes,
            pending_max: options.append_inflight_max,
            room_timeout: options.room_timeout,
            stalled: None,
            ended: None,
        }
    }

    /// Takes in what there is, up to the bounds.
    fn poll_requests(&mut self, context: &mut Context<'_>) {
        if self.ended.is_none() && self.is_drained(context) {
            let error = Error::new(ErrorKind::Unavailable, "this server is about to end");
            self.ended = Some(Some(self.host.status_of(&error)));
        }
        while self.ended.is_none() {
            if let Some(mut stalled) = self.stalled.take() {
                let Poll::Ready(ticket) = stalled.ticket.as_mut().poll(context) else {
                    self.stalled = Some(stalled);
                    return;
                };
                self.submitted(ticket, stalled.bytes, stalled.held);
            }
            if self.bytes >= self.bytes_max || self.pending.len() >= self.pending_max {
                return;
            }
            match Pin::new(&mut self.requests).poll_next(context) {
                Poll::Pending => return,
                Poll::Ready(Some(Ok(request))) => self.take(request),
                Poll::Ready(Some(Err(status))) => self.ended = Some(Some(status)),
                Poll::Ready(None) => self.ended = Some(None),
            }
        }
    }

    /// Whether the server is about to end; if not, the task is woken when it is. Asking for that at every request would
    /// cost about as much as submitting a small batch, so it is done once a task.
    fn is_drained(&mut self, context: &mut Context<'_>) -> bool {
        let is_told = self.told.as_ref().is_some_and(|told| told.will_wake(context.waker()));
        if is_told && !self.host.is_draining() {
            return false;
        }
        self.told = Some(context.waker().clone());
        self.drained.as_mut().poll(context).is_ready()
    }

    fn take(&mut self, request: AppendRequest) {
        let held = self.shares.claim();
        if self.log.is_none() {
            match self.host.log(&request.log) {
                Ok(log) => self.log = Some(log.clone()),
                Err(status) => {
                    self.ended = Some(Some(status));
                    return;
                }
            }
        }
        if request.batch.is_empty() {
            return self.answered(appended(0, 0), held);
        }
        match Batch::decode(request.batch) {
            Err(error) => self.refuse(&error, held),
            Ok(batch) => self.submit(batch, held),
        }
    }

    fn submit(&mut self, batch: Batch, held: Held) {
        let Some(log) = &self.log else { return };
        let bytes = batch.as_bytes().len();
        match log.try_submit_batch(&batch) {
            Err(error) if error.kind() == ErrorKind::Busy => {
                let (log, patience) = (log.clone(), self.room_timeout);
                let room = async move {
                    tokio::time::timeout(patience, log.submit_batch_when_room(&batch)).await.ok()
                };
                self.stalled = Some(Stalled { bytes, held, ticket: Box::pin(room) });
            }
            done => self.submitted(Some(done), bytes, held),
        }
    }

    /// None: there was no room in time.
    fn submitted(&mut self, ticket: Option<chiplog::Result<Ticket>>, bytes: usize, held: Held) {
        match ticket {
            Some(Ok(ticket)) => {
                self.bytes += bytes;
                self.pending.push_back(Pending::Submitted { ticket, bytes, _held: held.queued() });
            }
            Some(Err(error)) => self.refuse(&error, held),
            None => {
                let what = format!("the log's queue was full for {:?}", self.room_timeout);
                self.refuse(&Error::new(ErrorKind::Busy, what), held);
            }
        }
    }

    fn refuse(&mut self, error: &Error, held: Held) {
        let response = refused(&self.host, error, false);
        self.answered(response, held);
    }

    fn answered(&mut self, response: AppendResponse, held: Held) {
        self.pending.push_back(Pending::Answered { response, _held: held.answered() });
    }

    /// The answer to the oldest request; None: there is no request.
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
            (_, Some(Ok(at))) => Some(appended(at.first.get(), at.count)),
            (_, Some(Err(error))) => Some(refused(&self.host, &error, true)),
            (_, None) => None,
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
                stream.poll_requests(context); // there is room again: ask to be woken for more
            }
            return Poll::Ready(Some(Ok(response)));
        }
        match &mut stream.ended {
            None => Poll::Pending,
            Some(why) => Poll::Ready(why.take().map(Err)),
        }
    }
}

fn appended(first: u64, count: u32) -> AppendResponse {
    let durability = if count == 0 { Durability::Unspecified } else { Durability::Majority };
    let appended = Appended { first, count, durability: durability.into() };
    AppendResponse { result: Some(Outcome::Appended(appended)) }
}

/// `in_doubt`: the batch was submitted, so that some errors leave its outcome open.
fn refused(host: &Host, error: &Error, in_doubt: bool) -> AppendResponse {
    let kind = error.kind();
    let leader = if kind == ErrorKind::NotLeader { host.another_leader() } else { None };
    let refused = Refused {
        kind: kind.code(),
        message: error.to_string(),
        retryable: error.is_retryable(),
        outcome_unknown: in_doubt && leaves_unknown(kind),
        leader: leader.unwrap_or_default(),
    };
    AppendResponse { result: Some(Outcome::Refused(refused)) }
}
