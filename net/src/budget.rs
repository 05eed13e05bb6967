//! Budget: the memory that requests and answers may take, and how many streams there may be: of a connection, an address,
//! a token, of all. A request's share grows with the bytes that arrive, and is taken before they are let in. Its address,
//! its token and the whole have it back when the message is in the log's queue, which has limits of its own; its
//! connection when it is answered. A request that finds no room waits: its stream is not read meanwhile, and HTTP/2 holds
//! the client back. One that waits for too long is refused. A sender that holds a share and pauses loses it, with the
//! stream. A request other than an append has one small message and no share. Its body has to end in time.
//!
//! ```text
//! body:  5 bytes: compressed?, length │ message │ 5 bytes │ message …
//!                                       └─ take what is there of it, then let it pass
//! ```
//!
//! Invariants:
//! - the n-th entry of an append's ledger is the share of its n-th message; an empty message holds one piece;
//! - only appends have entries in a ledger: nothing claims those of other calls;
//! - a message holds no more than arrived of it, in pieces; it is granted whole only where little is left
//!   ([`accounts`](crate::accounts));
//! - bytes that have no share yet are not let through, those before them are;
//! - no share is held for ever: for the rest of a message its sender is waited for at most [`STALL`], and the time that
//!   the bytes which did come may take at [`BYTES_PER_SECOND_MIN`].
//!
//! Must not know: what is in a message.

use crate::access::Bearer;
use crate::accounts::{Accounts, ConnectionShare, Payer, Resource, Share, Tier};
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
use tokio::time::{Instant, Sleep, sleep_until, timeout};
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::metadata::MetadataValue;
use tonic::server::NamedService;
use tonic::{Code, Status};

/// Bytes are counted in pieces of this size.
const PIECE_BYTES: usize = 1024;

/// What a request may take that is no append, and what a peer may say before it has introduced itself.
const SMALL_BYTES_MAX: usize = 64 << 10;
/// Where there are tokens, calls that need none have this part of all streams together, and at least so many.
const TOKENLESS_PART: usize = 16;
const TOKENLESS_MIN: usize = 4;
/// A message that is coming in may pause for so long, all in all.
const STALL: Duration = Duration::from_secs(30);
/// As good as never.
const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);
/// But for its pauses it comes in no slower than this.
const BYTES_PER_SECOND_MIN: u64 = 128 << 10;

/// How much a [`Budget`] has. A single larger message may always be under way alone, and a single larger answer.
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
    /// Bytes of all answers that are made and not sent, default 512 MiB; counted in pieces of 1 KiB. What is sent from the
    /// log's mapping takes no memory and does not count.
    pub answer_bytes: usize,
    /// The same of one connection, default 64 MiB.
    pub answer_connection_bytes: usize,
    /// Calls that are open at a time, of all connections, default 16,384. One more is refused as RESOURCE_EXHAUSTED.
    pub streams: usize,
    /// How many percent of all request bytes, answer bytes and streams one address may have, and one token, default 25.
    pub share_percent: u8,
}

impl Default for BudgetLimits {
    fn default() -> Self {
        Self {
            bytes: 1 << 30,
            connection_bytes: 256 << 20,
            wait: Duration::from_secs(30),
            answer_bytes: 512 << 20,
            answer_connection_bytes: 64 << 20,
            streams: 16_384,
            share_percent: 25,
        }
    }
}

impl BudgetLimits {
    /// What each account may hold: of connections, addresses, tokens, and in all.
    fn caps(&self) -> [[usize; 4]; 3] {
        let of = |connection: usize, all: usize| {
            let percent = usize::from(self.share_percent.clamp(1, 100));
            let share = (all / 100 * percent + all % 100 * percent / 100).max(1);
            [connection, share, share, all]
        };
        [
            of(pieces(self.connection_bytes), pieces(self.bytes)),
            of(pieces(self.answer_connection_bytes), pieces(self.answer_bytes)),
            of(usize::MAX, self.streams.clamp(1, u32::MAX as usize)),
        ]
    }
}

/// The memory that messages and answers may take, and the streams there may be. Shared by its clones.
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
    accounts: Arc<Accounts>,
    wait: Duration,
    refusals: Arc<Refusals>,
    /// Places of calls that need no token, where there are tokens.
    tokenless: Arc<Semaphore>,
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(BudgetLimits::default(), Arc::default())
    }
}

/// So many bytes, in pieces.
pub(crate) fn pieces(bytes: usize) -> usize {
    bytes.div_ceil(PIECE_BYTES).clamp(1, u32::MAX as usize >> 3)
}

impl Budget {
    /// With these limits; what is refused is counted.
    pub fn new(limits: BudgetLimits, refusals: Arc<Refusals>) -> Self {
        let places = (limits.streams / TOKENLESS_PART).clamp(TOKENLESS_MIN, Semaphore::MAX_PERMITS);
        let tokenless = Arc::new(Semaphore::new(places));
        Self { accounts: Accounts::new(limits.caps()), wait: limits.wait, refusals, tokenless }
    }

    /// Bytes that messages hold now which are not in the log's queue.
    pub fn used_bytes(&self) -> usize {
        self.accounts.used(Resource::Requests) * PIECE_BYTES
    }

    /// Bytes that answers hold now which are made and not sent.
    pub fn answer_bytes(&self) -> usize {
        self.accounts.used(Resource::Answers) * PIECE_BYTES
    }

    /// Answers that wait for memory.
    pub fn answers_waiting(&self) -> usize {
        self.accounts.waiting(Resource::Answers)
    }

    /// Calls that are open. Counted by [`CallBudgetLayer`](crate::paying::CallBudgetLayer).
    pub fn streams(&self) -> usize {
        self.accounts.used(Resource::Streams)
    }

    /// How long a message waits for room.
    pub(crate) fn wait(&self) -> Duration {
        self.wait.min(FAR)
    }

    /// A place for a call that needs no token. None: all are taken.
    pub(crate) fn tokenless_place(&self) -> Option<OwnedSemaphorePermit> {
        self.tokenless.clone().try_acquire_owned().ok()
    }

    pub(crate) fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// A service whose requests are let in as there is room: appends up to `message_bytes_max`, what else there is up to
    /// 64 KiB. Every call except an append and the server reflection has one message: another one is refused.
    pub fn over<S>(&self, inner: S, message_bytes_max: usize) -> Budgeted<S> {
        self.accounts.reserve(Resource::Requests, pieces(message_bytes_max));
        Budgeted { inner, budget: self.clone(), message_bytes_max, mode: Mode::Appends }
    }

    /// From whose accounts a call takes.
    pub(crate) fn payer_of(&self, extensions: &http::Extensions) -> Arc<Payer> {
        if let Some(Paying(payer)) = extensions.get() {
            return payer.clone();
        }
        let Some(arrival) = extensions.get::<Arrival>() else { return self.accounts.anybody() };
        let payer = arrival.payer(&self.accounts);
        match extensions.get::<Bearer>() {
            Some(bearer) => payer.with_token(bearer.0),
            None => payer.clone(),
        }
    }
}

/// Whose accounts a call takes from, among its request's extensions.
#[derive(Clone, Debug)]
pub(crate) struct Paying(pub(crate) Arc<Payer>);

/// A service whose streams begin with a small message: nothing larger is let in before who sends it is known.
pub(crate) fn introduced<S>(inner: S, message_bytes_max: usize) -> Budgeted<S> {
    Budgeted { inner, budget: Budget::default(), message_bytes_max, mode: Mode::Introduced }
}

/// A request's body that is small, and comes in time.
pub(crate) fn small(inner: Body) -> Body {
    let gate = Gate::new(inner, None, Arc::default(), SMALL_BYTES_MAX, Ledger::default());
    Body::new(Gate { has_many: false, ..gate })
}

/// A share of the budget, or of nothing, for a message that takes no memory to speak of. Given back when dropped.
#[derive(Debug, Default)]
pub(crate) struct Held {
    share: Option<Share>,
    _queued: Option<ConnectionShare>,
}

impl Held {
    /// What is left of it once the message is in the log's queue.
    pub(crate) fn queued(self) -> Self {
        Self { share: None, _queued: self.share.and_then(Share::keep_to_connection).or(self._queued) }
    }
}

/// The shares of an append's messages that have come in and are not claimed. Empty for other calls.
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
    /// Appends take shares. All other calls are small.
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
        parts.extensions.insert(ledger.clone());
        let (budget, message_bytes_max) = (&self.budget, self.message_bytes_max);
        let is_append = self.mode == Mode::Appends && parts.uri.path().ends_with("/Append");
        let is_reflection = parts.uri.path().ends_with(REFLECTION);
        let paying = is_append.then(|| (budget.payer_of(&parts.extensions), budget.wait));
        let mut gate = Gate::new(inner, paying, budget.refusals.clone(), message_bytes_max, ledger);
        let small = SMALL_BYTES_MAX.min(message_bytes_max);
        match self.mode {
            Mode::Appends if is_append => {}
            Mode::Appends => {
                gate.message_bytes_max = small;
                gate.has_many = is_reflection;
            }
            Mode::Introduced => gate.first_bytes_max = small,
        }
        self.inner.call(http::Request::from_parts(parts, Body::new(gate)))
    }
}

/// The one small call whose client sends several requests.
const REFLECTION: &str = "/ServerReflectionInfo";

/// What stands before each message.
const HEAD_BYTES: usize = 5;

/// The share, or that there was no room in time.
type Waiting = Pin<Box<dyn Future<Output = Option<Share>> + Send>>;

/// A request's body that lets a message in when there is memory for it.
struct Gate {
    inner: Body,
    refusals: Arc<Refusals>,
    /// Who pays for what comes, and how long it may wait for room. None: it needs no share.
    paying: Option<(Arc<Payer>, Duration)>,
    message_bytes_max: usize,
    /// The first message may have so many bytes.
    first_bytes_max: usize,
    /// A message has come whole.
    begun: bool,
    /// Several messages may come. Otherwise the body has to end after the first one, in time.
    has_many: bool,
    ledger: Ledger,
    /// The bytes so far of the head that is coming in.
    head: Vec<u8>,
    /// Bytes still to be let through of the message that is coming in, and all that it has.
    left: usize,
    length: usize,
    /// What it holds so far; None: nothing, or its share waits.
    share: Option<Share>,
    /// What came in and was not let through.
    rest: Bytes,
    /// The message at the start of `rest` waits for its share, which lacked room there.
    waiting: Option<(Waiting, Tier)>,
    /// The message that is coming in is not all there yet.
    slow: Option<Slow>,
    /// Nothing more is let in.
    refused: Option<Status>,
}

/// A sender that is waited for in the middle of a message.
struct Slow {
    /// So many bytes were still to come when it was first waited for.
    missing: usize,
    /// So long it was waited for.
    waited: Duration,
    /// Since when it is waited for again, if it is.
    since: Option<Instant>,
    pause: Pin<Box<Sleep>>,
}

impl Gate {
    fn new(
        inner: Body,
        paying: Option<(Arc<Payer>, Duration)>,
        refusals: Arc<Refusals>,
        message_bytes_max: usize,
        ledger: Ledger,
    ) -> Self {
        Self {
            inner,
            refusals,
            paying,
            message_bytes_max,
            first_bytes_max: message_bytes_max,
            begun: false,
            has_many: true,
            ledger,
            head: Vec::with_capacity(HEAD_BYTES),
            left: 0,
            length: 0,
            share: None,
            rest: Bytes::new(),
            waiting: None,
            slow: None,
            refused: None,
        }
    }

    /// How much of `rest` may pass. Zero: what stands at its start has to wait, or is refused.
    fn scan(&mut self) -> usize {
        let mut at = 0;
        while at < self.rest.len() {
            if self.left > 0 {
                let step = self.left.min(self.rest.len() - at);
                if !self.covers(self.length - self.left + step) {
                    return at;
                }
                self.left -= step;
                at += step;
                if self.left == 0 {
                    self.is_whole();
                }
                continue;
            }
            if self.begun && !self.has_many {
                self.refused = Some(one_message());
                return at;
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
            let most = if self.begun { self.message_bytes_max } else { self.first_bytes_max };
            if length as usize > most.min(self.message_bytes_max) {
                self.refused = Some(self.too_large(length));
                return at - 1;
            }
            (self.left, self.length) = (length as usize, length as usize);
            if length == 0 && !self.covers(0) {
                // With its last byte the message would be whole. That byte waits for the share.
                self.head.truncate(HEAD_BYTES - 1);
                return at - 1;
            }
            self.head.clear();
            if length == 0 {
                self.is_whole();
            }
        }
        at
    }

    /// A message has passed.
    fn is_whole(&mut self) {
        (self.slow, self.begun) = (None, true);
        if self.paying.is_some() {
            self.ledger.enter(Held { share: self.share.take(), _queued: None });
        }
    }

    /// Whether the message that is coming in holds its share of so many bytes. If not, it waits for it.
    fn covers(&mut self, bytes: usize) -> bool {
        let Some((payer, wait)) = &self.paying else { return true };
        let mut share = self.share.take().unwrap_or_else(|| payer.nothing(Resource::Requests));
        let (want, total) = (pieces(bytes), pieces(self.length));
        match share.try_grow(want, total) {
            Ok(()) => {
                self.share = Some(share);
                true
            }
            Err(tier) => {
                let wait = (*wait).min(FAR);
                let growing = async move { timeout(wait, share.grow(want, total)).await.ok() };
                self.waiting = Some((Box::pin(growing), tier));
                false
            }
        }
    }

    /// Nothing has come. The wait is bounded in the middle of a message, before the first message of a call that is no
    /// append, and before the end of a body that has one message.
    fn poll_slow(&mut self, context: &mut Context<'_>) -> Poll<Status> {
        let is_awaited = self.paying.is_none() && !(self.begun && self.has_many);
        if self.left == 0 && !is_awaited {
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
            let earned = slow.missing.saturating_sub(left) as u64 / BYTES_PER_SECOND_MIN;
            let earned = Duration::from_secs(earned);
            slow.pause.as_mut().reset(now + (STALL + earned).saturating_sub(slow.waited));
        }
        ready!(slow.pause.as_mut().poll(context));
        self.refusals.count(Refusal::Stalled);
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
        self.refusals.count(Refusal::MessageBytes);
        let what = format!("a message of {length} bytes; {} are allowed", self.message_bytes_max);
        let mut status = Status::new(Code::OutOfRange, what);
        status.metadata_mut().insert(KIND, MetadataValue::from(ErrorKind::TooLarge.code()));
        status
    }

    fn no_room(&self, of: &str) -> Status {
        self.refusals.count(Refusal::InflightBytes);
        let wait = self.paying.as_ref().map_or(Duration::ZERO, |(_, wait)| *wait);
        let what = format!("in-flight bytes {of} were at their limit for {wait:?}");
        to_status(&Error::new(ErrorKind::Busy, what), None)
    }
}

fn one_message() -> Status {
    let what = "this call has one request message: end the request after it";
    to_status(&Error::new(ErrorKind::InvalidArgument, what), None)
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
            if let Some((waiting, tier)) = &mut gate.waiting {
                let (share, of) = (ready!(waiting.as_mut().poll(context)), tier.name());
                gate.waiting = None;
                match share {
                    Some(share) => gate.share = Some(share),
                    None => gate.refused = Some(gate.no_room(of)),
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
        limited(pieces, pieces)
    }

    fn limited(all: usize, connection: usize) -> Budget {
        let (bytes, connection_bytes) = (all * PIECE_BYTES, connection * PIECE_BYTES);
        let limits = BudgetLimits { bytes, connection_bytes, wait: WAIT, ..Default::default() };
        Budget::new(BudgetLimits { share_percent: 100, ..limits }, Arc::default())
    }

    fn connection(budget: &Budget) -> Arc<Payer> {
        budget.accounts.connection([10, 0, 0, 1].into())
    }

    fn gate(chunks: impl IntoIterator<Item = Bytes>, budget: &Budget, own: Option<&Arc<Payer>>) -> Gate {
        let inner = Body::new(Chunks(chunks.into_iter().collect()));
        let payer = own.cloned().unwrap_or_else(|| budget.accounts.anybody());
        Gate::new(inner, Some((payer, WAIT)), budget.refusals.clone(), 1 << 20, Ledger::default())
    }

    fn left(budget: &Budget, of: usize) -> usize {
        of - budget.used_bytes() / PIECE_BYTES
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
            assert_eq!(gate.ledger.shares().len(), 2);
            let covered = 1005 + 5 + 5..=1005 + 5 + 5 + 1024;
            assert!(covered.contains(&passed.len()), "chunks of {size}: {} passed", passed.len());
            let (first, empty) = (gate.ledger.claim(), gate.ledger.claim());
            assert!(first.share.is_some());
            assert_eq!(empty.share.as_ref().map(Share::amount), Some(1));
            drop((first, empty));
            passed.extend(pull(&mut gate).0);
            drop(gate.ledger.claim());
            passed.extend(pull(&mut gate).0);
            assert_eq!(passed, all);
            assert_eq!(gate.ledger.claim().share.as_ref().map(Share::amount), Some(1));
            assert_eq!(left(&budget, 3), 3);
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
        assert_eq!(left(&budget, 2000), 2000);
    }

    /// Full to the last byte, all is let in; with one byte more it waits, and is refused when its time is up.
    #[tokio::test(start_paused = true)]
    async fn at_the_limit_a_message_waits_and_is_then_refused() {
        let bytes = 4 * PIECE_BYTES;
        for is_own in [false, true] {
            let budget = limited(if is_own { 8 } else { 4 }, 4);
            let own = is_own.then(|| connection(&budget));
            let full = [message(bytes - 1024), message(1024)].concat();
            let mut first = gate([Bytes::from(full.clone())], &budget, own.as_ref());
            assert_eq!(pull(&mut first).0, full);
            let mut second = gate([Bytes::from(message(1))], &budget, own.as_ref());
            assert_eq!(pull(&mut second).0.len(), 5);
            tokio::time::advance(WAIT - Duration::from_millis(1)).await;
            assert!(pull(&mut second).1.is_none());
            tokio::time::advance(Duration::from_millis(2)).await;
            let status = pull(&mut second).1.unwrap();
            assert_eq!(status.code(), Code::ResourceExhausted);
            let of = if own.is_some() { "of this connection" } else { "of all" };
            assert!(status.message().contains(of), "{status}");
            assert_eq!(budget.refusals.read(Refusal::InflightBytes), 1);
            // Another connection has room where only this one's is used up.
            let elsewhere = connection(&budget);
            let mut third = gate([Bytes::from(message(1))], &budget, Some(&elsewhere));
            assert_eq!(pull(&mut third).0.len() == 6, own.is_some());
            // What is answered makes room.
            drop((first.ledger.claim(), second));
            let mut fourth = gate([Bytes::from(message(1))], &budget, own.as_ref());
            assert_eq!(pull(&mut fourth).0.len(), 6);
        }
    }

    /// In the log's queue, a message is in nobody's way but its own connection's.
    #[tokio::test]
    async fn what_is_in_the_queue_holds_the_connection_s_share_only() {
        let budget = budget(4);
        let own = connection(&budget);
        let mut gate = gate([Bytes::from(message(2048))], &budget, Some(&own));
        pull(&mut gate);
        let has = |pieces| own.try_take(Resource::Requests, pieces).is_ok();
        assert!(has(2) && !has(3) && left(&budget, 4) == 2);
        let held = gate.ledger.claim().queued();
        assert!(has(2) && !has(3) && left(&budget, 4) == 4);
        drop(held);
        assert!(has(4));
    }

    /// A limit of `Duration::MAX` was a panic.
    #[tokio::test]
    async fn for_ever_is_a_time_to_wait() {
        let budget = budget(1);
        let mut gate = gate([Bytes::from([message(1), message(1)].concat())], &budget, None);
        gate.paying.as_mut().unwrap().1 = Duration::MAX;
        assert_eq!(pull(&mut gate).0.len(), 6 + 5);
        drop(gate.ledger.claim());
        assert_eq!(pull(&mut gate).0.len(), 1);
    }

    /// A head that announced 64 MiB took a share for ever; sixteen of them, 80 bytes, took all there is.
    #[tokio::test(start_paused = true)]
    async fn a_message_that_does_not_come_gives_its_share_back() {
        let (sender, chunks) = tokio::sync::mpsc::unbounded_channel();
        let frames = tokio_stream::wrappers::UnboundedReceiverStream::new(chunks);
        let budget = budget(3);
        let mut gate = gate([], &budget, None);
        gate.inner = Body::new(http_body_util::StreamBody::new(frames));
        let left = || left(&budget, 3);
        let send =
            |bytes: &[u8]| sender.send(Ok::<_, Status>(Frame::data(Bytes::copy_from_slice(bytes)))).unwrap();
        let next = async |gate: &mut Gate| std::future::poll_fn(|c| Pin::new(&mut *gate).poll_frame(c)).await;
        let all = message(2000);
        send(&all[..10]);
        assert_eq!(next(&mut gate).await.unwrap().unwrap().into_data().unwrap().len(), 10);
        assert_eq!(left(), 2, "what was announced is not held");
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

    /// A head of 5 bytes held the 30 MiB that it announced.
    #[tokio::test]
    async fn a_message_holds_what_arrived() {
        let budget = budget(100);
        let all = message(60 << 10);
        let mut gate = gate(all.chunks(5000).map(Bytes::copy_from_slice), &budget, None);
        let next = async |gate: &mut Gate| std::future::poll_fn(|c| Pin::new(&mut *gate).poll_frame(c)).await;
        let mut passed: usize = 0;
        while let Some(frame) = next(&mut gate).await {
            passed += frame.unwrap().into_data().unwrap().len();
            assert_eq!(
                budget.used_bytes(),
                passed.saturating_sub(HEAD_BYTES).div_ceil(PIECE_BYTES) * PIECE_BYTES
            );
        }
        assert_eq!(passed, all.len());
    }

    #[tokio::test]
    async fn requests_that_are_no_appends_are_small() {
        let budget = budget(1);
        let largest = message(SMALL_BYTES_MAX);
        let small = |bytes: Vec<u8>| {
            let gate = gate([Bytes::from(bytes)], &budget, None);
            Gate { paying: None, message_bytes_max: SMALL_BYTES_MAX, ..gate }
        };
        assert_eq!(pull(&mut small(largest.clone())).0, largest);
        let refused = pull(&mut small(message(SMALL_BYTES_MAX + 1))).1.unwrap();
        assert_eq!((refused.code(), budget.used_bytes()), (Code::OutOfRange, 0));
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
            let mut gate = Gate { paying: None, ..gate([], &budget, None) };
            let send = fed(&mut gate);
            if !begun.is_empty() {
                send(begun);
            }
            let (took, _) = end_of(&mut gate).await;
            assert!(took >= STALL && took < STALL * 2, "{took:?}");
        }
        // A stream of several requests may pause between them.
        let mut gate = Gate { paying: None, ..gate([], &budget(1), None) };
        let send = fed(&mut gate);
        send(&message(3));
        let ended = tokio::time::timeout(STALL * 100, end_of(&mut gate)).await;
        assert!(ended.is_err());
    }

    /// A health check whose request never ended stayed open, and its connection with it.
    #[tokio::test(start_paused = true)]
    async fn a_request_of_one_message_ends_in_time() {
        let budget = budget(1);
        let mut gate = Gate { paying: None, has_many: false, ..gate([], &budget, None) };
        let send = fed(&mut gate);
        send(&message(3));
        let (took, status) = end_of(&mut gate).await;
        assert!(took >= STALL && took < STALL * 2, "{took:?}");
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(budget.refusals.read(Refusal::Stalled), 1);
    }

    /// Each message had an entry of 48 bytes in a ledger that only appends claim from.
    #[tokio::test]
    async fn ledger_stays_empty_for_calls_that_pay_nothing() {
        let budget = budget(1);
        let empty = Bytes::from(message(0).repeat(1000));
        let chunks = [Bytes::from(message(3))].into_iter().chain((0..1000).map(|_| empty.clone()));
        let mut gate = Gate { paying: None, first_bytes_max: 64, ..gate(chunks, &budget, None) };
        let (passed, status) = pull(&mut gate);
        assert!(status.is_none());
        assert_eq!((passed.len(), gate.ledger.shares().len()), (8 + 1000 * 5000, 0));
    }

    #[tokio::test]
    async fn request_of_one_message_is_refused_when_it_goes_on() {
        let budget = budget(1);
        for (first, size) in [(0, 1), (0, 5000), (3, 7), (3, 5000)] {
            let all = [message(first), message(0).repeat(1000)].concat();
            let chunks = all.chunks(size).map(Bytes::copy_from_slice);
            let mut gate = Gate { paying: None, has_many: false, ..gate(chunks, &budget, None) };
            let (passed, status) = pull(&mut gate);
            assert_eq!((passed.len(), status.unwrap().code()), (HEAD_BYTES + first, Code::InvalidArgument));
            assert_eq!(gate.ledger.shares().len(), 0);
        }
    }

    /// Empty messages of an append hold memory until they are answered.
    #[tokio::test]
    async fn empty_messages_hold_a_piece_each() {
        for size in [1, 4, 5, 50] {
            let budget = budget(3);
            let all = message(0).repeat(10);
            let mut gate = gate(all.chunks(size).map(Bytes::copy_from_slice), &budget, None);
            let mut passed = pull(&mut gate).0.len();
            assert_eq!((passed, left(&budget, 3)), (3 * HEAD_BYTES + HEAD_BYTES - 1, 0));
            for _ in 0..10 {
                drop(gate.ledger.claim());
                passed += pull(&mut gate).0.len();
            }
            assert_eq!((passed, left(&budget, 3)), (all.len(), 3));
        }
    }

    /// A stranger could announce a gigabyte to the port for replicas before it had said who it was.
    #[tokio::test]
    async fn who_is_not_known_says_little() {
        let budget = budget(1);
        let first = |length| {
            let chunks = [Bytes::from(message(length)), Bytes::from(message(1 << 20))];
            Gate { paying: None, first_bytes_max: SMALL_BYTES_MAX, ..gate(chunks, &budget, None) }
        };
        let (passed, status) = pull(&mut first(SMALL_BYTES_MAX));
        assert!(status.is_none() && passed.len() == SMALL_BYTES_MAX + (1 << 20) + 10);
        assert_eq!(pull(&mut first(SMALL_BYTES_MAX + 1)).1.unwrap().code(), Code::OutOfRange);
    }
}
