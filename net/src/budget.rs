//! Budget: the memory that requests may take, of one connection and of all together. A request's share is taken when its
//! length is known and before its bytes are let in. That of the whole is given back when the message is in the log's
//! queue, which has limits of its own; that of the connection when it is answered. Who finds nothing left waits: its
//! stream is not read meanwhile, and HTTP/2 holds the client back. Who waits for too long is refused. Who has a share and
//! sends nothing loses it, with the stream. Requests other than appends are small, or refused; they need no share, and
//! have to come in time as well.
//!
//! ```text
//! body:  5 bytes: compressed?, length │ message │ 5 bytes │ message …
//!                             └─ take `length`, then let this byte pass
//! ```
//!
//! Invariants:
//! - the n-th entry of a request's ledger is the share of its n-th message;
//! - what stands before a message that waits for its share is let through;
//! - no share of the whole is held for ever: for a message that has one its sender is waited for at most [`STALL`], and
//!   the time that the bytes which did come may take at [`BYTES_PER_SECOND_MIN`];
//! - who holds a share of the whole waits for nothing more: shares of the connection are taken first.
//!
//! Must not know: what is in a message.

use crate::arrival::Arrival;
use crate::refusals::{Refusal, Refusals};
use crate::status::{KIND, to_status};
use bytes::Bytes;
use chiplog::{Error, ErrorKind};
use http_body::Frame;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::metadata::MetadataValue;
use tonic::server::NamedService;
use tonic::{Code, Status};

/// Bytes are counted in pieces of this size.
const PIECE_BYTES: usize = 1024;

/// What a request may take that is no append, and what a peer may say before it has introduced itself.
const SMALL_BYTES_MAX: usize = 64 << 10;
/// A message that is coming in may pause for so long, all in all.
const STALL: Duration = Duration::from_secs(30);
/// As good as never.
const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);
/// But for its pauses it comes in no slower than this.
const BYTES_PER_SECOND_MIN: u64 = 128 << 10;

/// How much a [`Budget`] has. A single larger message may always be under way alone.
///
/// ```
/// let limits = chiplog_net::budget::BudgetLimits::default();
/// assert_eq!((limits.bytes, limits.connection_bytes), (1 << 30, 256 << 20));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetLimits {
    /// Bytes of all messages that came and are not in the log's queue, default 1 GiB; counted in pieces of 1 KiB.
    pub bytes: usize,
    /// Bytes of one connection's messages that came and are not answered, default 256 MiB.
    pub connection_bytes: usize,
    /// How long a message waits for room before its stream is refused as RESOURCE_EXHAUSTED, default 30 s.
    pub wait: Duration,
}

impl Default for BudgetLimits {
    fn default() -> Self {
        Self { bytes: 1 << 30, connection_bytes: 256 << 20, wait: Duration::from_secs(30) }
    }
}

/// The memory that messages on their way in and under way may take. Shared by its clones.
///
/// ```
/// use chiplog_net::budget::{Budget, BudgetLimits};
/// let limits = BudgetLimits { bytes: 64 << 20, ..BudgetLimits::default() };
/// let budget = Budget::new(limits, Default::default());
/// let mut options = chiplog_net::native::NativeOptions::default();
/// options.budget = budget;
/// ```
#[derive(Clone, Debug)]
pub struct Budget {
    all: Arc<Semaphore>,
    pieces: usize,
    connection_pieces: usize,
    wait: Duration,
    refusals: Arc<Refusals>,
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(BudgetLimits::default(), Arc::default())
    }
}

fn pieces(bytes: usize) -> usize {
    bytes.div_ceil(PIECE_BYTES).clamp(1, u32::MAX as usize >> 3)
}

impl Budget {
    /// With these limits; what is refused is counted.
    pub fn new(limits: BudgetLimits, refusals: Arc<Refusals>) -> Self {
        let (all, connection) = (pieces(limits.bytes), pieces(limits.connection_bytes));
        let connection_pieces = connection.min(all);
        let semaphore = Arc::new(Semaphore::new(all));
        Self { all: semaphore, pieces: all, connection_pieces, wait: limits.wait, refusals }
    }

    /// Bytes that messages hold now which are not in the log's queue.
    pub fn used_bytes(&self) -> usize {
        (self.pieces - self.all.available_permits()) * PIECE_BYTES
    }

    /// A service whose requests are let in as there is room: appends up to `message_bytes_max`, what else there is up to
    /// 64 KiB.
    pub fn over<S>(&self, inner: S, message_bytes_max: usize) -> Budgeted<S> {
        Budgeted { inner, budget: self.clone(), message_bytes_max, mode: Mode::Appends }
    }
}

/// A service whose streams begin with a small message: nothing larger is let in before who sends it is known.
pub(crate) fn introduced<S>(inner: S, message_bytes_max: usize) -> Budgeted<S> {
    Budgeted { inner, budget: Budget::default(), message_bytes_max, mode: Mode::Introduced }
}

/// A request's body that is small, and comes in time.
pub(crate) fn small(inner: Body) -> Body {
    let mut gate = Gate::new(inner, Budget::default(), None, SMALL_BYTES_MAX, Ledger::default());
    gate.free = true;
    Body::new(gate)
}

/// A share of the budget, or of nothing, for a message that takes no memory to speak of. Given back when dropped.
#[derive(Debug, Default)]
pub(crate) struct Held {
    _connection: Option<OwnedSemaphorePermit>,
    all: Option<OwnedSemaphorePermit>,
}

impl Held {
    /// What is left of it once the message is in the log's queue.
    pub(crate) fn queued(mut self) -> Self {
        self.all = None;
        self
    }
}

/// The shares of a request's messages that have come in and are not claimed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger(Arc<Mutex<VecDeque<Held>>>);

impl Ledger {
    /// The share of the next message.
    pub(crate) fn claim(&self) -> Held {
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
/// use chiplog_net::budget::{Budget, BudgetLimits};
/// use chiplog_net::host::Host;
/// use chiplog_net::logspec::{Limits, LogspecService};
/// let budget = Budget::new(BudgetLimits { bytes: 256 << 20, ..Default::default() }, Default::default());
/// let limits = Limits { budget, ..Limits::default() };
/// let service = LogspecService::new(Host::new(), limits).into_server();
/// let router = chiplog_net::listener::server().add_service(service);
/// ```
#[derive(Clone, Debug)]
pub struct Budgeted<S> {
    inner: S,
    budget: Budget,
    message_bytes_max: usize,
    mode: Mode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Appends take shares, all else is small.
    Appends,
    /// A stream's first message is small; what follows takes no shares.
    Introduced,
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
        let arrival = parts.extensions.get::<Arrival>();
        let connection = arrival.map(|a| a.share(self.budget.connection_pieces).clone());
        parts.extensions.insert(ledger.clone());
        let (budget, message_bytes_max) = (self.budget.clone(), self.message_bytes_max);
        let mut gate = Gate::new(inner, budget, connection, message_bytes_max, ledger);
        let small = SMALL_BYTES_MAX.min(message_bytes_max);
        match self.mode {
            Mode::Appends if parts.uri.path().ends_with("/Append") => {}
            Mode::Appends => (gate.free, gate.message_bytes_max) = (true, small),
            Mode::Introduced => (gate.free, gate.first_bytes_max) = (true, small),
        }
        self.inner.call(http::Request::from_parts(parts, Body::new(gate)))
    }
}

/// What stands before each message.
const HEAD_BYTES: usize = 5;

/// The share, or which limit had no room in time.
type Waiting = Pin<Box<dyn Future<Output = Result<Held, &'static str>> + Send>>;

/// A request's body that lets a message in when there is memory for it.
struct Gate {
    inner: Body,
    budget: Budget,
    /// That of the connection.
    connection: Option<Arc<Semaphore>>,
    message_bytes_max: usize,
    /// What comes needs no share.
    free: bool,
    /// The first message may have so many bytes.
    first_bytes_max: usize,
    /// A message has come whole.
    begun: bool,
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
    /// Nothing more is let in.
    refused: Option<Status>,
}

/// A sender that is waited for in the middle of a message.
struct Slow {
    /// So many bytes were still to come when it was first waited for.
    missing: u64,
    /// So long it was waited for.
    waited: Duration,
    /// Since when it is waited for again, if it is.
    since: Option<Instant>,
    pause: Pin<Box<Sleep>>,
}

impl Gate {
    fn new(
        inner: Body,
        budget: Budget,
        connection: Option<Arc<Semaphore>>,
        message_bytes_max: usize,
        ledger: Ledger,
    ) -> Self {
        Self {
            inner,
            budget,
            connection,
            message_bytes_max,
            free: false,
            first_bytes_max: message_bytes_max,
            begun: false,
            ledger,
            head: Vec::with_capacity(HEAD_BYTES),
            left: 0,
            rest: Bytes::new(),
            waiting: None,
            slow: None,
            refused: None,
        }
    }

    /// How much of `rest` may pass. Zero: the message at its start has to wait, or is refused.
    fn scan(&mut self) -> usize {
        let mut at = 0;
        while at < self.rest.len() {
            if self.left > 0 {
                let step = self.left.min((self.rest.len() - at) as u64);
                self.left -= step;
                at += step as usize;
                if self.left == 0 {
                    (self.slow, self.begun) = (None, true);
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
            let most = if self.begun { self.message_bytes_max } else { self.first_bytes_max };
            if length as usize > most.min(self.message_bytes_max) {
                self.refused = Some(self.too_large(length));
                return at - 1;
            }
            if length == 0 {
                (self.slow, self.begun) = (None, true);
            }
            if length == 0 || self.free {
                self.ledger.enter(Held::default());
                continue;
            }
            match self.take(pieces(length as usize)) {
                Some(share) => self.ledger.enter(share),
                None => {
                    self.waiting = Some(self.wait(pieces(length as usize)));
                    self.left += 1; // the head's last byte stays behind
                    return at - 1;
                }
            }
        }
        at
    }

    /// The share of a message, if it can be had now.
    fn take(&self, pieces: usize) -> Option<Held> {
        let own = match &self.connection {
            Some(own) => {
                let pieces = pieces.min(self.budget.connection_pieces);
                Some(own.clone().try_acquire_many_owned(pieces as u32).ok()?)
            }
            None => None,
        };
        let pieces = pieces.min(self.budget.pieces);
        let all = self.budget.all.clone().try_acquire_many_owned(pieces as u32).ok()?;
        Some(Held { _connection: own, all: Some(all) })
    }

    /// The share of a message, once it can be had.
    fn wait(&self, pieces: usize) -> Waiting {
        let (budget, connection) = (self.budget.clone(), self.connection.clone());
        Box::pin(async move {
            let deadline = Instant::now() + budget.wait.min(FAR);
            let own = match connection {
                Some(own) => {
                    let pieces = pieces.min(budget.connection_pieces);
                    let taken = timeout_at(deadline, own.acquire_many_owned(pieces as u32)).await;
                    Some(taken.ok().and_then(Result::ok).ok_or("of this connection")?)
                }
                None => None,
            };
            let pieces = pieces.min(budget.pieces);
            let taken = timeout_at(deadline, budget.all.acquire_many_owned(pieces as u32)).await;
            let all = taken.ok().and_then(Result::ok).ok_or("of all connections")?;
            Ok(Held { _connection: own, all: Some(all) })
        })
    }

    /// Nothing has come. In the middle of a message this must not last, nor before the only one of a small request.
    fn poll_slow(&mut self, context: &mut Context<'_>) -> Poll<Status> {
        let awaits_first = self.free && !self.begun;
        if self.left == 0 && !awaits_first {
            return Poll::Pending;
        }
        let (now, left) = (Instant::now(), self.left);
        let slow = self.slow.get_or_insert_with(|| Slow {
            missing: left,
            waited: Duration::ZERO,
            since: None,
            pause: Box::pin(sleep_until(now)),
        });
        if slow.since.is_none() {
            // Before, the other side of this gate was not ready for more.
            slow.since = Some(now);
            let earned = Duration::from_secs(slow.missing.saturating_sub(left) / BYTES_PER_SECOND_MIN);
            slow.pause.as_mut().reset(now + (STALL + earned).saturating_sub(slow.waited));
        }
        ready!(slow.pause.as_mut().poll(context));
        self.budget.refusals.count(Refusal::Stalled);
        let what =
            "the rest of a request did not come in time; the memory set aside for it is wanted by others";
        Poll::Ready(to_status(&Error::new(ErrorKind::Busy, what), None))
    }

    /// Something has come, or nothing will.
    fn came(&mut self) {
        if let Some(slow) = &mut self.slow
            && let Some(since) = slow.since.take()
        {
            slow.waited += since.elapsed();
        }
    }

    fn too_large(&self, length: u32) -> Status {
        self.budget.refusals.count(Refusal::MessageBytes);
        let what = format!("a message of {length} bytes; {} are allowed", self.message_bytes_max);
        let mut status = Status::new(Code::OutOfRange, what);
        status.metadata_mut().insert(KIND, MetadataValue::from(ErrorKind::TooLarge.code()));
        status
    }

    fn no_room(&self, of: &str) -> Status {
        self.budget.refusals.count(Refusal::InflightBytes);
        let what = format!("in-flight bytes {of} were at their limit for {:?}", self.budget.wait);
        to_status(&Error::new(ErrorKind::Busy, what), None)
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
                match share {
                    Ok(share) => gate.ledger.enter(share),
                    Err(of) => gate.refused = Some(gate.no_room(of)),
                }
            }
            if let Some(status) = &gate.refused {
                return Poll::Ready(Some(Err(status.clone())));
            }
            if !gate.rest.is_empty() {
                let passed = gate.scan();
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
        self.rest.is_empty() && self.waiting.is_none() && self.refused.is_none() && self.inner.is_end_stream()
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

    const WAIT: Duration = Duration::from_secs(30);

    fn budget(pieces: usize) -> Budget {
        let bytes = pieces * PIECE_BYTES;
        Budget::new(BudgetLimits { bytes, connection_bytes: bytes, wait: WAIT }, Arc::default())
    }

    fn gate(chunks: impl IntoIterator<Item = Bytes>, budget: &Budget, own: Option<&Arc<Semaphore>>) -> Gate {
        let inner = Body::new(Chunks(chunks.into_iter().collect()));
        Gate::new(inner, budget.clone(), own.cloned(), 1 << 20, Ledger::default())
    }

    fn message(length: usize) -> Vec<u8> {
        [&[0], &(length as u32).to_be_bytes()[..], &vec![7; length]].concat()
    }

    /// All that passes now, and the status that it ends with.
    fn pull(gate: &mut Gate) -> (Vec<u8>, Option<Status>) {
        let mut context = Context::from_waker(Waker::noop());
        let mut passed = Vec::new();
        while let Poll::Ready(Some(frame)) = Pin::new(&mut *gate).poll_frame(&mut context) {
            match frame {
                Ok(frame) => passed.extend_from_slice(&frame.into_data().unwrap()),
                Err(status) => return (passed, Some(status)),
            }
        }
        (passed, None)
    }

    #[tokio::test]
    async fn a_message_waits_for_its_share_and_lets_those_before_it_pass() {
        let all = [message(1000), message(0), message(3000), message(10)].concat();
        for size in [1, 3, 7, 1000, all.len()] {
            let budget = budget(3);
            let mut gate = gate(all.chunks(size).map(Bytes::copy_from_slice), &budget, None);
            let mut passed = pull(&mut gate).0;
            assert_eq!(passed.len(), 1005 + 5 + 4, "chunks of {size}");
            let (first, empty) = (gate.ledger.claim(), gate.ledger.claim());
            assert!(first.all.is_some() && empty.all.is_none());
            drop(first);
            passed.extend(pull(&mut gate).0);
            drop(gate.ledger.claim());
            passed.extend(pull(&mut gate).0);
            assert_eq!(passed, all);
            assert_eq!(gate.ledger.claim().all.map(|share| share.num_permits()), Some(1));
            assert_eq!(budget.all.available_permits(), 3);
        }
    }

    #[tokio::test]
    async fn the_largest_message_passes_and_one_byte_more_is_refused_before_it_comes() {
        let budget = budget(2000);
        let (passed, status) = pull(&mut gate([Bytes::from(message(1 << 20))], &budget, None));
        assert!(status.is_none() && passed.len() == 5 + (1 << 20));
        let mut gate = gate([Bytes::from(message((1 << 20) + 1))], &budget, None);
        let (passed, status) = pull(&mut gate);
        let status = status.unwrap();
        assert_eq!((passed.len(), status.code()), (4, Code::OutOfRange));
        assert_eq!(crate::status::from_status(&status).kind(), ErrorKind::TooLarge);
        assert_eq!(budget.refusals.read(Refusal::MessageBytes), 1);
        drop(gate);
        assert_eq!(budget.all.available_permits(), 2000);
    }

    /// Full to the last byte, all is let in; with one byte more it waits, and is refused when its time is up.
    #[tokio::test(start_paused = true)]
    async fn at_the_limit_a_message_waits_and_is_then_refused() {
        let bytes = 4 * PIECE_BYTES;
        for own in [None, Some(Arc::new(Semaphore::new(4)))] {
            let budget = if own.is_some() { budget(8) } else { budget(4) };
            let budget = Budget { connection_pieces: 4, ..budget };
            let full = [message(bytes - 1024), message(1024)].concat();
            let mut first = gate([Bytes::from(full.clone())], &budget, own.as_ref());
            assert_eq!(pull(&mut first).0, full);
            let mut second = gate([Bytes::from(message(1))], &budget, own.as_ref());
            assert_eq!(pull(&mut second).0.len(), 4);
            tokio::time::advance(WAIT - Duration::from_millis(1)).await;
            assert!(pull(&mut second).1.is_none());
            tokio::time::advance(Duration::from_millis(2)).await;
            let status = pull(&mut second).1.unwrap();
            assert_eq!(status.code(), Code::ResourceExhausted);
            let of = if own.is_some() { "of this connection" } else { "of all" };
            assert!(status.message().contains(of), "{status}");
            assert_eq!(budget.refusals.read(Refusal::InflightBytes), 1);
            // Another connection has room where only this one's is used up.
            let elsewhere = Arc::new(Semaphore::new(4));
            let mut third = gate([Bytes::from(message(1))], &budget, Some(&elsewhere));
            assert_eq!(pull(&mut third).0.len() == 6, own.is_some());
            // What is answered makes room.
            drop(first.ledger.claim());
            let mut fourth = gate([Bytes::from(message(1))], &budget, own.as_ref());
            assert_eq!(pull(&mut fourth).0.len(), 6);
        }
    }

    /// In the log's queue, a message is in nobody's way but its own connection's.
    #[tokio::test]
    async fn what_is_in_the_queue_holds_the_connection_s_share_only() {
        let (budget, own) = (budget(4), Arc::new(Semaphore::new(4)));
        let mut gate = gate([Bytes::from(message(2048))], &budget, Some(&own));
        pull(&mut gate);
        let permits = || (own.available_permits(), budget.all.available_permits());
        assert_eq!(permits(), (2, 2));
        let held = gate.ledger.claim().queued();
        assert_eq!(permits(), (2, 4));
        drop(held);
        assert_eq!(permits(), (4, 4));
    }

    /// A limit of `Duration::MAX` was a panic.
    #[tokio::test]
    async fn for_ever_is_a_time_to_wait() {
        let limits = BudgetLimits { bytes: PIECE_BYTES, connection_bytes: PIECE_BYTES, wait: Duration::MAX };
        let budget = Budget::new(limits, Arc::default());
        let mut gate = gate([Bytes::from([message(1), message(1)].concat())], &budget, None);
        assert_eq!(pull(&mut gate).0.len(), 6 + 4);
        drop(gate.ledger.claim());
        assert_eq!(pull(&mut gate).0.len(), 2);
    }

    /// A head that announced 64 MiB took a share for ever; sixteen of them, 80 bytes, took all there is.
    #[tokio::test(start_paused = true)]
    async fn a_message_that_does_not_come_gives_its_share_back() {
        let (sender, chunks) = tokio::sync::mpsc::unbounded_channel();
        let frames = tokio_stream::wrappers::UnboundedReceiverStream::new(chunks);
        let budget = budget(3);
        let mut gate = gate([], &budget, None);
        gate.inner = Body::new(http_body_util::StreamBody::new(frames));
        let left = || budget.all.available_permits();
        let send =
            |bytes: &[u8]| sender.send(Ok::<_, Status>(Frame::data(Bytes::copy_from_slice(bytes)))).unwrap();
        let next = async |gate: &mut Gate| std::future::poll_fn(|c| Pin::new(&mut *gate).poll_frame(c)).await;
        let all = message(2000);
        send(&all[..10]);
        assert_eq!(next(&mut gate).await.unwrap().unwrap().into_data().unwrap().len(), 10);
        assert_eq!(left(), 1);
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
        assert_eq!(left(), 3);
        send(&all[..100]);
        assert_eq!(next(&mut gate).await.unwrap().unwrap().into_data().unwrap().len(), 100);
        let status = next(&mut gate).await.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted, "after {:?}", begun.elapsed());
        let refused = [Refusal::Stalled, Refusal::InflightBytes].map(|reason| budget.refusals.read(reason));
        assert_eq!(refused, [1, 0], "there was room");
    }

    #[tokio::test]
    async fn requests_that_are_no_appends_are_small() {
        let budget = budget(1);
        let largest = message(SMALL_BYTES_MAX);
        let small = |bytes: Vec<u8>| {
            let gate = gate([Bytes::from(bytes)], &budget, None);
            Gate { free: true, message_bytes_max: SMALL_BYTES_MAX, ..gate }
        };
        assert_eq!(pull(&mut small(largest.clone())).0, largest);
        let refused = pull(&mut small(message(SMALL_BYTES_MAX + 1))).1.unwrap();
        assert_eq!((refused.code(), budget.all.available_permits()), (Code::OutOfRange, 1));
    }

    /// A body whose frames come from somebody.
    fn fed(gate: &mut Gate) -> impl Fn(&[u8]) + use<> {
        let (sender, chunks) = tokio::sync::mpsc::unbounded_channel();
        let frames = tokio_stream::wrappers::UnboundedReceiverStream::new(chunks);
        gate.inner = Body::new(http_body_util::StreamBody::new(frames));
        move |bytes| sender.send(Ok::<_, Status>(Frame::data(Bytes::copy_from_slice(bytes)))).unwrap()
    }

    /// When the gate ends, after what it lets pass.
    async fn end_of(gate: &mut Gate) -> (Duration, Status) {
        let begun = Instant::now();
        loop {
            match std::future::poll_fn(|c| Pin::new(&mut *gate).poll_frame(c)).await.unwrap() {
                Ok(_) => {}
                Err(status) => return (begun.elapsed(), status),
            }
        }
    }

    /// The time for all of a large message was granted in advance: an announcement alone kept 64 MiB for nine minutes.
    #[tokio::test(start_paused = true)]
    async fn time_has_to_be_earned() {
        let budget = budget(70 << 10);
        let mut gate =
            Gate { message_bytes_max: 64 << 20, first_bytes_max: 64 << 20, ..gate([], &budget, None) };
        let send = fed(&mut gate);
        send(&[0, 4, 0, 0, 0]);
        let (took, status) = end_of(&mut gate).await;
        assert!(took >= STALL && took < STALL * 2, "{took:?}");
        assert_eq!(status.code(), Code::ResourceExhausted);
        drop(gate);
        // Who sends something has more.
        let mut gate = Gate {
            message_bytes_max: 64 << 20,
            first_bytes_max: 64 << 20,
            ..super::tests::gate([], &budget, None)
        };
        let send = fed(&mut gate);
        send(&[0, 4, 0, 0, 0]);
        let slowly = async {
            for _ in 0..8 {
                tokio::time::sleep(STALL / 4).await;
                send(&vec![7; BYTES_PER_SECOND_MIN as usize * 10]);
            }
            std::future::pending::<()>().await;
        };
        let (took, _) = tokio::select! {
            ended = end_of(&mut gate) => ended,
            () = slowly => unreachable!(),
        };
        assert!(took > STALL * 3 && took < STALL * 5, "{took:?}");
    }

    /// A request that was announced, or not even that, was waited for without end: each took a stream and its memory.
    #[tokio::test(start_paused = true)]
    async fn a_small_request_comes_in_time() {
        for begun in [&[][..], &[0, 0], &[0, 0, 0, 0, 9, 1, 2]] {
            let budget = budget(1);
            let mut gate = Gate { free: true, ..gate([], &budget, None) };
            let send = fed(&mut gate);
            if !begun.is_empty() {
                send(begun);
            }
            let (took, _) = end_of(&mut gate).await;
            assert!(took >= STALL && took < STALL * 2, "{took:?}");
        }
        // Once it has come the rest may take its time: answers are streamed meanwhile.
        let mut gate = Gate { free: true, ..gate([], &budget(1), None) };
        let send = fed(&mut gate);
        send(&message(3));
        let ended = tokio::time::timeout(STALL * 100, end_of(&mut gate)).await;
        assert!(ended.is_err());
    }

    /// A stranger could announce a gigabyte to the port for replicas before it had said who it was.
    #[tokio::test]
    async fn who_is_not_known_says_little() {
        let budget = budget(1);
        let first = |length| {
            let chunks = [Bytes::from(message(length)), Bytes::from(message(1 << 20))];
            Gate { free: true, first_bytes_max: SMALL_BYTES_MAX, ..gate(chunks, &budget, None) }
        };
        let (passed, status) = pull(&mut first(SMALL_BYTES_MAX));
        assert!(status.is_none() && passed.len() == SMALL_BYTES_MAX + (1 << 20) + 10);
        assert_eq!(pull(&mut first(SMALL_BYTES_MAX + 1)).1.unwrap().code(), Code::OutOfRange);
    }
}
