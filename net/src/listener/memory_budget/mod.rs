//! Budget: the memory that requests and answers may take, and how many streams there may be: of a connection, an address,
//! a token, of all. A request's share grows with the bytes that arrive, and is taken before they are let in
//! ([`gate`]). Its address, its token and the whole have it back, except for one piece, when the message is in the log's
//! queue, which has limits of its own; its connection when it is answered. A request that finds no room waits: its stream
//! is not read meanwhile, and HTTP/2 holds the client back. One that waits for too long is refused. A sender that holds a
//! share and pauses loses it, with the stream. A request other than an append has one small message and no share. Its
//! body has to end in time.
//!
//! Invariant: only appends have entries in a [`ledger`]: nothing claims those of other calls.
//!
//! Must not know: what is in a message.

mod gate;
mod ledger;

use crate::listener::auth::roles::Bearer;
use crate::listener::auth::tokens::{Accounts, Caps, Payer, RESOURCES, Resource};
use crate::listener::connection_info::ConnectionInfo;
use crate::listener::refusals::Refusals;
use gate::Gate;
pub(crate) use ledger::{Held, Ledger};
use std::num::NonZero;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::NamedService;

/// Bytes are counted in pieces of this size.
const PIECE_BYTES: usize = 1024;

/// The largest request that is no append, and the largest message of a peer before it has introduced itself.
const SMALL_BYTES_MAX: usize = 64 << 10;
/// Where there are tokens, calls that need none have this part of all streams together, and at least so many. Those of one
/// address have its share of them, and at least so many.
const TOKENLESS_PART: usize = 16;
const TOKENLESS_MIN: usize = 4;
const TOKENLESS_OF_ADDRESS_MIN: usize = 2;
/// Batches that unpack to more than this are unpacked on threads of their own, [`unpackings`] at a time: 64 KiB
/// keep a thread of the runtime for 30 us (lz4) to 43 us (zstd), and each MiB for 0.4 ms (docs/performance.md).
pub(crate) const UNPACKED_AT_ONCE_MAX: usize = 64 << 10;
/// As good as never.
const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);

/// How much a [`Budget`] has. A single larger message may always be under way alone, and a single larger answer.
///
/// ```
/// let limits = chiplog_net::listener::memory_budget::BudgetLimits::default();
/// assert_eq!((limits.bytes, limits.connection_bytes), (512 << 20, 128 << 20));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetLimits {
    /// Bytes of all messages that came and are not in the log's queue, default 512 MiB; counted in pieces of 1 KiB.
    pub bytes: usize,
    /// Bytes of one connection's messages that came and are not answered, default 128 MiB.
    pub connection_bytes: usize,
    /// How long a message waits for room before its stream is refused as RESOURCE_EXHAUSTED, default 30 s.
    pub wait: Duration,
    /// Bytes of all answers that are made and not sent, default 512 MiB; counted in pieces of 1 KiB. Bytes that are sent
    /// from the log's mapping take no memory and do not count.
    pub answer_bytes: usize,
    /// The same of one connection, default 64 MiB.
    pub answer_connection_bytes: usize,
    /// Calls that are open at a time, of all connections, default 8,192. One more is refused as RESOURCE_EXHAUSTED.
    pub streams: usize,
    /// Connections on which one token may be shown, default 1,024. A call with the token on one more is refused as
    /// RESOURCE_EXHAUSTED.
    pub connections_per_token: usize,
    /// How many percent of all request bytes, answer bytes and streams one address may have, and one token, default 25. Of
    /// the turns to read each may have half at least, of the [`unpackings`] one.
    pub share_percent: u8,
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
    /// The caps of accounts: of connections, addresses, tokens, and in all.
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
            // A turn ends by itself and soon: one client never needs to leave more than half of them unused.
            [turns(), turns_of_one, turns_of_one, turns()],
            of(unpackings(), unpackings()),
            [usize::MAX, usize::MAX, self.connections_per_token.max(1), usize::MAX],
            [usize::MAX, tokenless_of_address, usize::MAX, tokenless],
        ]
    }
}

/// Reads of the disk, and unpackings, that go on at a time. Few: however many streams read, the appends of the other
/// clients find a processor.
///
/// ```
/// assert!(chiplog_net::listener::memory_budget::turns() >= 4);
/// ```
pub fn turns() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    (2 * processors).clamp(4, 64)
}

/// Large appended batches that are unpacked at a time, each with a rest of three times as long: as many as there are
/// processors, up to 32. So unpacking them takes a quarter of the processors' time at most.
///
/// ```
/// use chiplog_net::listener::memory_budget::{turns, unpackings};
/// assert!((1..turns()).contains(&unpackings()));
/// ```
pub fn unpackings() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get).min(32)
}

/// The memory that messages and answers may take, and the streams there may be. Shared by its clones.
///
/// ```
/// use chiplog_net::listener::memory_budget::{Budget, BudgetLimits};
/// let limits = BudgetLimits { bytes: 64 << 20, ..BudgetLimits::default() };
/// let budget = Budget::new(limits, Default::default());
/// let mut options = chiplog_net::service::log::NativeOptions::default();
/// options.budget = budget;
/// ```
#[derive(Clone, Debug)]
pub struct Budget {
    accounts: Arc<Accounts>,
    wait: Duration,
    refusals: Arc<Refusals>,
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
        Self { accounts: Accounts::new(limits.caps()), wait: limits.wait, refusals }
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

    /// Calls that are open. Counted by [`CallBudgetLayer`](crate::listener::stream_budget::CallBudgetLayer).
    pub fn streams(&self) -> usize {
        self.accounts.used(Resource::Streams)
    }

    /// How long a message waits for room.
    pub(crate) fn wait(&self) -> Duration {
        self.wait.min(FAR)
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

    /// The accounts that a call takes from.
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

/// Whose accounts a call takes from, among its request's extensions.
#[derive(Clone, Debug)]
pub(crate) struct Paying(pub(crate) Arc<Payer>);

/// A service whose streams begin with a small message: nothing larger is let in before who sends it is known.
pub(crate) fn introduced<S>(inner: S, message_bytes_max: usize) -> Budgeted<S> {
    Budgeted { inner, budget: Budget::default(), message_bytes_max, mode: Mode::Introduced }
}

/// A request's body that is small, and comes in time.
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
/// let budget = Budget::new(BudgetLimits { bytes: 256 << 20, ..Default::default() }, Default::default());
/// let limits = Limits { budget, ..Limits::default() };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_has_its_share_of_turns() {
        for (percent, most) in [(100, turns()), (50, turns() / 2), (1, turns() / 2)] {
            let limits = BudgetLimits { share_percent: percent, ..BudgetLimits::default() };
            let caps = limits.caps()[Resource::Turns as usize];
            assert_eq!(caps, [turns(), most, most, turns()], "{percent} percent");
            let [_, address, token, all] = limits.caps()[Resource::Paced as usize];
            let one = (unpackings() * usize::from(percent) / 100).max(1);
            assert_eq!([address, token, all], [one, one, unpackings()], "{percent} percent");
        }
    }
}
