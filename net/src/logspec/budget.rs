//! Budget: the memory that requests may take, all streams together. A request's share is taken when its length is
//! known and before its bytes are let in, and is given back when it is in the log's queue, which has limits of its own.
//! Who finds nothing left waits: its stream is not read meanwhile, and HTTP/2 holds the client back. Who has a share and
//! sends nothing loses it, with the stream. Requests other than appends are small, or refused; they need no share.
//!
//! ```text
//! body:  5 bytes: compressed?, length │ message │ 5 bytes │ message …
//!                             └─ take `length`, then let this byte pass
//! ```
//!
//! Invariants:
//! - the n-th entry of a request's ledger is the share of its n-th message;
//! - no share is held for ever: for a message that has one its sender is waited for at most [`STALL`], and the time that it
//!   takes at [`BYTES_PER_SECOND_MIN`];
//! - what stands before a message that waits for its share is let through: nobody who waits holds anything of use.

use super::Limits;
use bytes::Bytes;
use http_body::Frame;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::NamedService;

/// Bytes are counted in pieces of this size.
const PIECE_BYTES: usize = 1024;

/// What a request may take that is no append.
const SMALL_BYTES_MAX: usize = 64 << 10;
/// A message that is coming in may pause for so long, all in all.
const STALL: Duration = Duration::from_secs(30);
/// But for its pauses it comes in no slower than this.
const BYTES_PER_SECOND_MIN: u64 = 128 << 10;

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
        let large = parts.uri.path().ends_with("/Append");
        let gate = Gate {
            inner,
            budget: large.then(|| self.budget.clone()),
            pieces: self.pieces,
            message_bytes_max: if large { self.message_bytes_max } else { SMALL_BYTES_MAX },
            ledger,
            head: Vec::with_capacity(HEAD_BYTES),
            left: 0,
            rest: Bytes::new(),
            waiting: None,
            slow: None,
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
    /// None: what comes is small, or refused.
    budget: Option<Arc<Semaphore>>,
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
    /// The message that is coming in is not all there yet.
    slow: Option<Slow>,
}

/// A sender that is waited for in the middle of a message.
struct Slow {
    /// It has so much time left.
    left: Duration,
    /// Whether its time runs, and since when.
    counts: bool,
    since: Instant,
    pause: Pin<Box<Sleep>>,
}

impl Gate {
    /// How much of `rest` may pass. Zero: the message at its start has to wait.
    ///
    /// # Errors
    /// It is larger than anything but an append may be.
    fn scan(&mut self) -> Result<usize, Status> {
        let mut at = 0;
        while at < self.rest.len() {
            if self.left > 0 {
                let step = self.left.min((self.rest.len() - at) as u64);
                self.left -= step;
                at += step as usize;
                if self.left == 0 {
                    self.slow = None;
                }
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
            let Some(budget) = &self.budget else {
                if length as usize > self.message_bytes_max {
                    let what = format!("a request of {length} bytes; {} are allowed", self.message_bytes_max);
                    return Err(Status::out_of_range(what));
                }
                continue;
            };
            if length == 0 || length as usize > self.message_bytes_max {
                self.ledger.enter(Held::default()); // too large a one is refused before its bytes are kept
                continue;
            }
            let pieces = (length as usize).div_ceil(PIECE_BYTES).min(self.pieces) as u32;
            match budget.clone().try_acquire_many_owned(pieces) {
                Ok(share) => self.ledger.enter(Held(Some(share))),
                Err(_) => {
                    self.waiting = Some(Box::pin(budget.clone().acquire_many_owned(pieces)));
                    self.left += 1; // the head's last byte stays behind
                    return Ok(at - 1);
                }
            }
        }
        Ok(at)
    }

    /// Nothing has come. In the middle of a message that has its share this must not last.
    fn poll_slow(&mut self, context: &mut Context<'_>) -> Poll<Status> {
        if self.left == 0 || self.budget.is_none() {
            return Poll::Pending;
        }
        let now = Instant::now();
        let slow = self.slow.get_or_insert_with(|| {
            let left = STALL + Duration::from_secs(self.left / BYTES_PER_SECOND_MIN);
            Slow { left, counts: true, since: now, pause: Box::pin(sleep_until(now + left)) }
        });
        if !slow.counts {
            // Before, the other side of this gate was not ready for more.
            slow.counts = true;
            slow.since = now;
            slow.pause.as_mut().reset(now + slow.left);
        }
        ready!(slow.pause.as_mut().poll(context));
        let what =
            "the rest of an append did not come in time; the memory set aside for it is wanted by others";
        Poll::Ready(Status::resource_exhausted(what))
    }

    /// Something has come, or nothing will.
    fn came(&mut self) {
        if let Some(slow) = &mut self.slow {
            slow.counts = false;
            slow.left = slow.left.saturating_sub(slow.since.elapsed());
        }
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
                let passed = match gate.scan() {
                    Ok(passed) => passed,
                    Err(status) => return Poll::Ready(Some(Err(status))),
                };
                if passed > 0 {
                    return Poll::Ready(Some(Ok(Frame::data(gate.rest.split_to(passed)))));
                }
                continue;
            }
            let frame = match Pin::new(&mut gate.inner).poll_frame(context) {
                Poll::Pending => return gate.poll_slow(context).map(|status| Some(Err(status))),
                Poll::Ready(Some(Ok(frame))) => frame,
                Poll::Ready(other) => return Poll::Ready(other),
            };
            gate.came();
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
            budget: Some(Arc::new(Semaphore::new(pieces))),
            pieces,
            message_bytes_max: 1 << 20,
            ledger: Ledger::default(),
            head: Vec::new(),
            left: 0,
            rest: Bytes::new(),
            waiting: None,
            slow: None,
        }
    }

    fn left(gate: &Gate) -> Option<usize> {
        gate.budget.as_ref().map(|budget| budget.available_permits())
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
            assert_eq!(left(&gate), Some(3));
        }
    }

    #[test]
    fn one_that_is_too_large_takes_nothing() {
        let mut gate = gate([Bytes::from(message(1 << 21))], 3);
        assert_eq!(pull(&mut gate).len(), 5 + (1 << 21));
        assert_eq!(left(&gate), Some(3));
    }

    /// A head that announced 64 MiB took a share for ever; sixteen of them, 80 bytes, took all there is.
    #[tokio::test(start_paused = true)]
    async fn a_message_that_does_not_come_gives_its_share_back() {
        let (sender, chunks) = tokio::sync::mpsc::unbounded_channel();
        let frames = tokio_stream::wrappers::UnboundedReceiverStream::new(chunks);
        let body = Body::new(http_body_util::StreamBody::new(frames));
        let mut gate = Gate { inner: body, ..gate([], 3) };
        let send =
            |bytes: &[u8]| sender.send(Ok::<_, Status>(Frame::data(Bytes::copy_from_slice(bytes)))).unwrap();
        let next = async |gate: &mut Gate| std::future::poll_fn(|c| Pin::new(&mut *gate).poll_frame(c)).await;
        let all = message(2000);
        send(&all[..10]);
        assert_eq!(next(&mut gate).await.unwrap().unwrap().into_data().unwrap().len(), 10);
        assert_eq!(left(&gate), Some(1));
        // Slow is not stalled; and what is late because nobody asked for it is not slow.
        let begun = Instant::now();
        tokio::time::sleep(STALL * 2).await;
        for part in all[10..].chunks(200) {
            let (came, ()) = tokio::join!(next(&mut gate), async {
                tokio::time::sleep(STALL / 20).await;
                send(part);
            });
            assert_eq!(came.unwrap().unwrap().into_data().unwrap(), part);
        }
        drop(gate.ledger.claim());
        assert_eq!(left(&gate), Some(3));
        send(&all[..100]);
        assert_eq!(next(&mut gate).await.unwrap().unwrap().into_data().unwrap().len(), 100);
        let status = next(&mut gate).await.unwrap().unwrap_err();
        assert_eq!(status.code(), tonic::Code::ResourceExhausted, "after {:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn requests_that_are_no_appends_are_small() {
        let largest = message(SMALL_BYTES_MAX);
        let mut gate = Gate { budget: None, message_bytes_max: SMALL_BYTES_MAX, ..gate([], 1) };
        gate.inner = Body::new(Chunks([Bytes::from(largest.clone())].into()));
        assert_eq!(pull(&mut gate), largest);
        gate.inner = Body::new(Chunks([Bytes::from(message(SMALL_BYTES_MAX + 1))].into()));
        let refused = std::future::poll_fn(|c| Pin::new(&mut gate).poll_frame(c)).await.unwrap();
        assert_eq!(refused.unwrap_err().code(), tonic::Code::OutOfRange);
    }
}
