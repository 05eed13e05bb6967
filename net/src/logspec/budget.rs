//! Budget: the memory that requests may take, all streams together. A request's share is taken when its length is
//! known and before its bytes are let in, and is given back when it is answered. Who finds nothing left waits: its
//! stream is not read meanwhile, and HTTP/2 holds the client back.
//!
//! ```text
//! body:  5 bytes: compressed?, length │ message │ 5 bytes │ message …
//!                             └─ take `length`, then let this byte pass
//! ```
//!
//! Invariants:
//! - the n-th entry of a request's ledger is the share of its n-th message;
//! - what stands before a message that waits for its share is let through: nobody who waits holds anything of use.

use super::Limits;
use bytes::Bytes;
use http_body::Frame;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::NamedService;

/// Bytes are counted in pieces of this size.
const PIECE_BYTES: usize = 1024;

/// A share of the budget, or of nothing, for a message that takes no memory to speak of. Given back when dropped.
#[derive(Debug, Default)]
pub(super) struct Held(#[allow(dead_code, reason = "held for its end")] Option<OwnedSemaphorePermit>);

/// The shares of a request's messages that have come in and are not claimed.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger(Arc<Mutex<VecDeque<Held>>>);

impl Ledger {
    /// The share of the next message.
    pub(super) fn claim(&self) -> Held {
        self.shares().pop_front().unwrap_or_default()
    }

    fn enter(&self, held: Held) {
        self.shares().push_back(held);
    }

    fn shares(&self) -> std::sync::MutexGuard<'_, VecDeque<Held>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A service whose requests are let in as memory allows.
///
/// ```
/// use chiplog_net::host::Host;
/// use chiplog_net::logspec::{Limits, LogspecService};
/// let limits = Limits { memory_bytes_max: 256 << 20, ..Limits::default() };
/// let service = LogspecService::new(Host::new(), limits).into_server();
/// let router = chiplog_net::listener::server().add_service(service);
/// ```
#[derive(Clone, Debug)]
pub struct Budgeted<S> {
    inner: S,
    budget: Arc<Semaphore>,
    pieces: usize,
    message_bytes_max: usize,
}

impl<S> Budgeted<S> {
    pub(super) fn new(inner: S, limits: &Limits) -> Self {
        // One message at least.
        let bytes = limits.memory_bytes_max.max(limits.message_bytes_max);
        let pieces = bytes.div_ceil(PIECE_BYTES).clamp(1, u32::MAX as usize >> 3);
        let budget = Arc::new(Semaphore::new(pieces));
        Self { inner, budget, pieces, message_bytes_max: limits.message_bytes_max }
    }
}

impl<S: NamedService> NamedService for Budgeted<S> {
    const NAME: &'static str = S::NAME;
}

impl<S: Service<http::Request<Body>>> Service<http::Request<Body>> for Budgeted<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let ledger = Ledger::default();
        let (mut parts, inner) = request.into_parts();
        parts.extensions.insert(ledger.clone());
        let gate = Gate {
            inner,
            budget: self.budget.clone(),
            pieces: self.pieces,
            message_bytes_max: self.message_bytes_max,
            ledger,
            head: Vec::with_capacity(HEAD_BYTES),
            left: 0,
            rest: Bytes::new(),
            waiting: None,
        };
        self.inner.call(http::Request::from_parts(parts, Body::new(gate)))
    }
}

/// What stands before each message.
const HEAD_BYTES: usize = 5;

type Waiting = Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send>>;

/// A request's body that lets a message in when there is memory for it.
struct Gate {
    inner: Body,
    budget: Arc<Semaphore>,
    pieces: usize,
    message_bytes_max: usize,
    ledger: Ledger,
    /// The bytes so far of the head that is coming in.
    head: Vec<u8>,
    /// Bytes that belong to the message that is coming in.
    left: u64,
    /// What came in and was not let through.
    rest: Bytes,
    /// The message at the start of `rest` waits for its share.
    waiting: Option<Waiting>,
}

impl Gate {
    /// How much of `rest` may pass. Zero: the message at its start has to wait.
    fn scan(&mut self) -> usize {
        let mut at = 0;
        while at < self.rest.len() {
            if self.left > 0 {
                let step = self.left.min((self.rest.len() - at) as u64);
                self.left -= step;
                at += step as usize;
                continue;
            }
            self.head.push(self.rest[at]);
            at += 1;
            let Some(length) = self
                .head
                .first_chunk()
                .map(|head: &[u8; HEAD_BYTES]| u32::from_be_bytes([head[1], head[2], head[3], head[4]]))
            else {
                continue;
            };
            self.head.clear();
            self.left = length.into();
            if length == 0 || length as usize > self.message_bytes_max {
                self.ledger.enter(Held::default()); // too large a one is refused before its bytes are kept
                continue;
            }
            let pieces = (length as usize).div_ceil(PIECE_BYTES).min(self.pieces) as u32;
            match self.budget.clone().try_acquire_many_owned(pieces) {
                Ok(share) => self.ledger.enter(Held(Some(share))),
                Err(_) => {
                    self.waiting = Some(Box::pin(self.budget.clone().acquire_many_owned(pieces)));
                    self.left += 1; // the head's last byte stays behind
                    return at - 1;
                }
            }
        }
        at
    }
}

impl http_body::Body for Gate {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let gate = self.get_mut();
        loop {
            if let Some(waiting) = &mut gate.waiting {
                let share = ready!(waiting.as_mut().poll(context));
                gate.waiting = None;
                gate.ledger.enter(Held(share.ok()));
            }
            if !gate.rest.is_empty() {
                let passed = gate.scan();
                if passed > 0 {
                    return Poll::Ready(Some(Ok(Frame::data(gate.rest.split_to(passed)))));
                }
                continue;
            }
            let frame = match ready!(Pin::new(&mut gate.inner).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                other => return Poll::Ready(other),
            };
            match frame.into_data() {
                Ok(data) => gate.rest = data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.waiting.is_none() && self.inner.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body::Body as _;
    use std::task::Waker;

    /// A body of these chunks.
    struct Chunks(VecDeque<Bytes>);

    impl http_body::Body for Chunks {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            Poll::Ready(self.0.pop_front().map(|chunk| Ok(Frame::data(chunk))))
        }
    }

    fn gate(chunks: impl IntoIterator<Item = Bytes>, pieces: usize) -> Gate {
        Gate {
            inner: Body::new(Chunks(chunks.into_iter().collect())),
            budget: Arc::new(Semaphore::new(pieces)),
            pieces,
            message_bytes_max: 1 << 20,
            ledger: Ledger::default(),
            head: Vec::new(),
            left: 0,
            rest: Bytes::new(),
            waiting: None,
        }
    }

    fn message(length: usize) -> Vec<u8> {
        [&[0], &(length as u32).to_be_bytes()[..], &vec![7; length]].concat()
    }

    /// All that passes now.
    fn pull(gate: &mut Gate) -> Vec<u8> {
        let mut context = Context::from_waker(Waker::noop());
        let mut passed = Vec::new();
        while let Poll::Ready(Some(frame)) = Pin::new(&mut *gate).poll_frame(&mut context) {
            passed.extend_from_slice(&frame.unwrap().into_data().unwrap());
        }
        passed
    }

    #[test]
    fn a_message_waits_for_its_share_and_lets_those_before_it_pass() {
        let all = [message(1000), message(0), message(3000), message(10)].concat();
        for size in [1, 3, 7, 1000, all.len()] {
            let mut gate = gate(all.chunks(size).map(Bytes::copy_from_slice), 3);
            let mut passed = pull(&mut gate);
            assert_eq!(passed.len(), 1005 + 5 + 4, "chunks of {size}");
            let (first, empty) = (gate.ledger.claim(), gate.ledger.claim());
            assert!(first.0.is_some() && empty.0.is_none());
            drop(first);
            passed.extend(pull(&mut gate));
            drop(gate.ledger.claim());
            passed.extend(pull(&mut gate));
            assert_eq!(passed, all);
            assert_eq!(gate.ledger.claim().0.map(|share| share.num_permits()), Some(1));
            assert_eq!(gate.budget.available_permits(), 3);
        }
    }

    #[test]
    fn one_that_is_too_large_takes_nothing() {
        let mut gate = gate([Bytes::from(message(1 << 21))], 3);
        assert_eq!(pull(&mut gate).len(), 5 + (1 << 21));
        assert_eq!(gate.budget.available_permits(), 3);
    }
}
