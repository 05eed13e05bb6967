//! Budget: the limits of memory for requests and answers, and of streams: per connection, address and token, and in
//! total. A request's share grows with its received bytes, and is taken before they are let in ([`gate`]). When the
//! message is in the log's queue, which has its own limits, all of the share except one piece is returned to the
//! address, the token and the total. When it is answered, the rest is returned to the connection. A request without
//! room waits: its stream is not read meanwhile, and HTTP/2 slows the client down. If it waits too long, it is
//! rejected. A sender that holds a share and pauses too long loses it, with the stream. Requests other than appends
//! have one small message and no share. Their body must end in time.
//!
//! Invariant: only appends have entries in a [`ledger`]: no service claims entries of other calls.
//!
//! Must not know: the contents of messages.

mod gate;
mod ledger;

use crate::listener::auth::roles::Bearer;
use crate::listener::auth::tokens::{Accounts, Caps, Payer, RESOURCES, Resource};
use crate::listener::connection_info::ConnectionInfo;
use crate::served::refusals::Refusals;
use chiplog::options;
use gate::Gate;
pub(crate) use ledger::{Held, Ledger};
use std::num::NonZero;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::NamedService;

/// The unit in which bytes are counted.
const PIECE_BYTES: usize = 1024;

/// The limit of requests that are not appends, and of a peer's first message.
const SMALL_BYTES_MAX: usize = 64 << 10;
/// If there are tokens, calls that need none get this part of all streams together, and at least this number. Those of
/// one address get its share of them, and at least this number.
const TOKENLESS_PART: usize = 16;
const TOKENLESS_MIN: usize = 4;
const TOKENLESS_OF_ADDRESS_MIN: usize = 2;
/// Batches that decompress to more than this are decompressed on separate threads, [`unpackings`] at a time. 64 KiB
/// keep a runtime thread busy for 30 us (lz4) to 43 us (zstd), and each MiB for 0.4 ms (docs/performance.md).
pub(crate) const UNPACKED_AT_ONCE_MAX: usize = 64 << 10;
/// Requests to the object store at a time, for copies: of a connection, an address and a token, and in total. Each holds up to 4 MiB
/// of the memory for answers.
const OBJECT_REQUESTS: Caps = [4, 8, 8, 16];
/// Practically never.
const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);

options! {
    /// The limits of a [`Budget`]. A single larger message may always be in flight alone, and a single larger answer.
    ///
    /// ```
    /// let limits = chiplog_net::listener::memory_budget::BudgetLimits::default();
    /// assert_eq!((limits.bytes, limits.connection_bytes), (512 << 20, 128 << 20));
    /// ```
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct BudgetLimits {
        /// Bytes of all messages that have arrived and are not in the log's queue, default 512 MiB; counted in pieces
        /// of 1 KiB.
        pub bytes: usize,
        /// Bytes of one connection's messages that have arrived and are not answered, default 128 MiB.
        pub connection_bytes: usize,
        /// How long a message waits for room before its stream is rejected as RESOURCE_EXHAUSTED, default 30 s.
        pub wait: Duration,
        /// Bytes of all answers that are not sent yet, default 512 MiB; counted in pieces of 1 KiB. Bytes that are sent
        /// from the log's mapping take no memory and do not count.
        pub answer_bytes: usize,
        /// The same for one connection, default 64 MiB.
        pub answer_connection_bytes: usize,
        /// The limit of open calls on all connections, default 8,192. A call above it is rejected as
        /// RESOURCE_EXHAUSTED.
        pub streams: usize,
        /// The limit of connections on which one token is used, default 1,024. A call with the token on another
        /// connection is rejected as RESOURCE_EXHAUSTED.
        pub connections_per_token: usize,
        /// The percentage of all request bytes, answer bytes and streams that one address may use, and one token,
        /// default 25. Of the turns to read, each may use at least half; of the [`unpackings`], at least one.
        pub share_percent: u8,
    }
}

impl Default for BudgetLimits {
    fn default() -> Self {
        Self {
            bytes: 512 << 20,
            connection_bytes: 128 << 20,
            wait: Duration::from_secs(30),
            answer_bytes: 512 << 20,
            answer_connection_bytes: 64 << 20,
            streams: 8192,
            connections_per_token: 1024,
            share_percent: 25,
        }
    }
}

impl BudgetLimits {
    /// The caps of accounts: of connections, addresses, tokens, and in total.
    fn caps(&self) -> [Caps; RESOURCES] {
        let percent = usize::from(self.share_percent.clamp(1, 100));
        let share = |all: usize| (all / 100 * percent + all % 100 * percent / 100).max(1);
        let of = |connection: usize, all: usize| [connection, share(all), share(all), all];
        let turns_of_one = share(turns()).max(turns() / 2);
        let tokenless = (self.streams / TOKENLESS_PART).max(TOKENLESS_MIN);
        let tokenless_of_address = share(tokenless).max(TOKENLESS_OF_ADDRESS_MIN);
        [
            of(pieces(self.connection_bytes), pieces(self.bytes)),
            of(pieces(self.answer_connection_bytes), pieces(self.answer_bytes)),
            of(usize::MAX, self.streams.clamp(1, u32::MAX as usize)),
            // A turn ends by itself and soon: no client needs to leave more than half of them unused.
            [turns(), turns_of_one, turns_of_one, turns()],
            of(unpackings(), unpackings()),
            [usize::MAX, usize::MAX, self.connections_per_token.max(1), usize::MAX],
            [usize::MAX, tokenless_of_address, usize::MAX, tokenless],
            OBJECT_REQUESTS,
        ]
    }
}

/// The number of concurrent disk reads and decompressions. It is small: however many streams read, the appends of other
/// clients find a processor.
///
/// ```
/// assert!(chiplog_net::listener::memory_budget::turns() >= 4);
/// ```
pub fn turns() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    (2 * processors).clamp(4, 64)
}

/// The number of large appended batches that are decompressed at a time; each is followed by a rest of three times its
/// duration. It is the number of processors, up to 32. So decompression uses at most a quarter of the processors' time.
///
/// ```
/// use chiplog_net::listener::memory_budget::{turns, unpackings};
/// assert!((1..turns()).contains(&unpackings()));
/// ```
pub fn unpackings() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get).min(32)
}

/// The memory for messages and answers, and the number of streams. Clones share it.
///
/// ```
/// use chiplog_net::listener::memory_budget::{Budget, BudgetLimits};
/// let limits = BudgetLimits::default().bytes(64 << 20);
/// let budget = Budget::new(limits, Default::default());
/// let mut options = chiplog_net::service::log::NativeOptions::default();
/// options.budget = budget;
/// ```
#[derive(Clone, Debug)]
pub struct Budget {
    accounts: Arc<Accounts>,
    wait: Duration,
    share_percent: u8,
    refusals: Arc<Refusals>,
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(BudgetLimits::default(), Arc::default())
    }
}

/// The number of pieces for this number of bytes.
pub(crate) fn pieces(bytes: usize) -> usize {
    bytes.div_ceil(PIECE_BYTES).clamp(1, u32::MAX as usize >> 3)
}

impl Budget {
    /// Creates a budget with these limits; rejections are counted.
    pub fn new(limits: BudgetLimits, refusals: Arc<Refusals>) -> Self {
        let share_percent = limits.share_percent.clamp(1, 100);
        Self { accounts: Accounts::new(limits.caps()), wait: limits.wait, share_percent, refusals }
    }

    /// Bytes held by messages that are not in the log's queue.
    pub fn used_bytes(&self) -> usize {
        self.accounts.used(Resource::Requests) * PIECE_BYTES
    }

    /// Bytes held by answers that are not sent yet.
    pub fn answer_bytes(&self) -> usize {
        self.accounts.used(Resource::Answers) * PIECE_BYTES
    }

    /// The number of answers that wait for memory.
    pub fn answers_waiting(&self) -> usize {
        self.accounts.waiting(Resource::Answers)
    }

    /// The number of open calls. Counted by [`CallBudgetLayer`](crate::listener::stream_budget::CallBudgetLayer).
    pub fn streams(&self) -> usize {
        self.accounts.used(Resource::Streams)
    }

    /// How long a message waits for room.
    pub(crate) fn wait(&self) -> Duration {
        self.wait.min(FAR)
    }

    /// The percentage of all that one address may use, and one token.
    pub(crate) fn share_percent(&self) -> u8 {
        self.share_percent
    }

    pub(crate) fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// Wraps a service so that requests are let in as there is room: appends up to `message_bytes_max`, others up to 64
    /// KiB. Every call except a stream of appends and server reflection has one message: another one is rejected.
    pub fn over<S>(&self, inner: S, message_bytes_max: usize) -> Budgeted<S> {
        self.accounts.reserve(Resource::Requests, pieces(message_bytes_max));
        Budgeted { inner, budget: self.clone(), message_bytes_max, mode: Mode::Appends }
    }

    /// The accounts that a call uses.
    pub(crate) fn payer_of(&self, extensions: &http::Extensions) -> Arc<Payer> {
        if let Some(Paying(payer)) = extensions.get() {
            return payer.clone();
        }
        let token = extensions.get().map(|Bearer(token)| *token);
        match extensions.get::<ConnectionInfo>() {
            Some(arrival) => arrival.payer(&self.accounts).for_call(token),
            None => self.accounts.anybody(),
        }
    }
}

/// The accounts of a call, in its request's extensions.
#[derive(Clone, Debug)]
pub(crate) struct Paying(pub(crate) Arc<Payer>);

/// Wraps a service whose streams start with a small message: nothing larger is let in before the sender is known.
pub(crate) fn introduced<S>(inner: S, message_bytes_max: usize) -> Budgeted<S> {
    Budgeted { inner, budget: Budget::default(), message_bytes_max, mode: Mode::Introduced }
}

/// Wraps a request's body that is small and must arrive in time.
pub(crate) fn small(inner: Body) -> Body {
    let mut gate = Gate::new(inner, None, Arc::default(), SMALL_BYTES_MAX, Ledger::default());
    gate.has_many = false;
    Body::new(gate)
}

/// A service whose requests are let in as memory allows.
///
/// ```
/// use chiplog_net::listener::memory_budget::{Budget, BudgetLimits};
/// use chiplog_net::served::log_slot::LogSlot;
/// use chiplog_net::service::logspec::{Limits, LogspecService};
/// let budget = Budget::new(BudgetLimits::default().bytes(256 << 20), Default::default());
/// let limits = Limits::default().budget(budget);
/// let service = LogspecService::new(LogSlot::new(), limits).into_server();
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
    /// A stream's first message is small; later ones take no shares.
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
        let path = parts.uri.path();
        let (appends, is_together) = (self.mode == Mode::Appends, path.ends_with(APPEND_TOGETHER));
        let is_append = appends && (is_together || path.ends_with("/Append"));
        let is_reflection = path.ends_with(REFLECTION);
        let paying = is_append.then(|| (budget.payer_of(&parts.extensions), budget.wait));
        let mut gate = Gate::new(inner, paying, budget.refusals.clone(), message_bytes_max, ledger);
        let small = SMALL_BYTES_MAX.min(message_bytes_max);
        match self.mode {
            Mode::Appends if is_append => gate.has_many = !is_together,
            Mode::Appends => {
                gate.message_bytes_max = small;
                gate.has_many = is_reflection;
            }
            Mode::Introduced => gate.first_bytes_max = small,
        }
        self.inner.call(http::Request::from_parts(parts, Body::new(gate)))
    }
}

/// The only append with a single message.
const APPEND_TOGETHER: &str = "/AppendTogether";
/// The only small call whose client sends several requests.
const REFLECTION: &str = "/ServerReflectionInfo";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_has_its_share_of_turns() {
        for (percent, most) in [(100, turns()), (50, turns() / 2), (1, turns() / 2)] {
            let limits = BudgetLimits::default().share_percent(percent);
            let caps = limits.caps()[Resource::Turns as usize];
            assert_eq!(caps, [turns(), most, most, turns()], "{percent} percent");
            let [_, address, token, all] = limits.caps()[Resource::Paced as usize];
            let one = (unpackings() * usize::from(percent) / 100).max(1);
            assert_eq!([address, token, all], [one, one, unpackings()], "{percent} percent");
        }
    }
}
