//! Accounts: the resources that clients use (bytes of requests, bytes of answers, streams), counted in total and per
//! connection, address and token.
//!
//! ```text
//!            all
//!        ┌────┴────┐
//!     address    token      each with its share of the total
//!        └────┬────┘
//!        connection
//! ```
//!
//! A [`Share`] is taken from every account of its [`Payer`] at once, or from none. A caller without room waits in the
//! line of the first full account; callers with other accounts pass it. A share can grow as bytes arrive. The last
//! `reserve` of each account goes only to a caller that takes its total need, so that it waits for nothing more.
//!
//! Grants are fair. The next one goes to the caller whose accounts hold least, without its own share. The fullest of
//! its accounts is compared first, as a part of its cap, then the next one. So a connection that holds nothing comes
//! before connections of its address that hold something. Equal callers are served by age, as are callers of one
//! address and token whose shares hold something already. (For the token, the own share counts as the next power of
//! two; line.rs explains why.)
//!
//! Newcomers that hold less cannot pass forever. A caller with a time limit whose share holds something comes first
//! once half of its time is over; these callers are served by age. So a message that has partly arrived waits behind
//! newcomers for at most half of `inflight_wait_millis`.
//!
//! Invariants:
//! - no account ever holds more than its cap; a need beyond the cap counts as the cap, and is met when the account is
//!   empty;
//! - the free amount, plus the amount held by callers that wait for nothing more, is at least the reserve. Once those
//!   callers are done, one of the waiting ones can always be served. So growing shares cannot block each other forever;
//! - in a line, the oldest caller that has waited for half of its time while holding something comes first, then the
//!   one whose accounts hold least; a new caller passes only those that come after it;
//! - an account of an address or a token exists while a payer uses it.
//!
//! Must not know: what is counted; sockets.

mod grants;
mod line;
mod share;

use futures_util::task::AtomicWaker;
use line::{Caller, Line};
use share::Tally;
pub(crate) use share::{Payer, Pressure, Share, Spare};
use slab::Slab;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The counted resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    /// Pieces of received messages.
    Requests,
    /// Pieces of answers.
    Answers,
    /// Calls.
    Streams,
    /// Turns to read the disk or to decompress. Taken by
    /// [`run_blocking`](crate::service::blocking_work::run_blocking) alone.
    Turns,
    /// Places for paced work. Taken by [`run_paced`](crate::service::blocking_work::run_paced) alone.
    Paced,
    /// Connections on which a token is used.
    Connections,
    /// Calls that need no token, if there are tokens.
    Tokenless,
    /// Requests to the object store.
    Objects,
}

pub(crate) const RESOURCES: usize = 8;

/// The accounts of a payer, the smallest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    Connection,
    Address,
    Token,
    All,
}

const TIERS: usize = 4;

impl Tier {
    /// The name in messages.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Connection => "of this connection",
            Self::Address => "of this address",
            Self::Token => "of this token",
            Self::All => "of all connections",
        }
    }
}

/// The caps of one resource, by tier.
pub(crate) type Caps = [usize; TIERS];

/// An address or a token, whose connections share an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Name {
    Address(IpAddr),
    Token([u8; 32]),
}

/// The accounts of a server.
#[derive(Debug)]
pub(crate) struct Accounts {
    caps: [Caps; RESOURCES],
    /// The amount that only callers get that wait for nothing more. Only grows.
    reserves: [AtomicUsize; RESOURCES],
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    accounts: Slab<Account>,
    named: HashMap<Name, usize>,
    /// The waiting callers, by resource and number.
    waiting: [BTreeMap<u64, Waiter>; RESOURCES],
    next: u64,
}

#[derive(Debug)]
struct Account {
    name: Option<Name>,
    payers: usize,
    meters: [Meter; RESOURCES],
}

#[derive(Debug, Default)]
struct Meter {
    used: usize,
    /// The callers that wait for room here.
    line: Line,
    /// The lines whose order depends on this account's amount, each with a token of callers there, and their number.
    orders: BTreeMap<(usize, Option<usize>), usize>,
}

type Slots = [Option<usize>; TIERS];

/// The amounts of a request for a share.
#[derive(Clone, Copy, Debug)]
struct Ask {
    resource: Resource,
    /// The current amount.
    held: usize,
    /// The amount needed now.
    want: usize,
    /// The final amount.
    total: usize,
}

#[derive(Debug)]
struct Waiter {
    caller: Caller,
    ask: Ask,
    granted: Arc<Granted>,
    tally: Arc<Tally>,
}

/// The amount that a waiting caller was granted; 0: nothing yet.
#[derive(Debug, Default)]
struct Granted {
    amount: AtomicUsize,
    waker: AtomicWaker,
}

const ALL: usize = 0;

impl Accounts {
    /// Creates accounts with these caps, by resource.
    pub(crate) fn new(caps: [Caps; RESOURCES]) -> Arc<Self> {
        let mut accounts = Slab::new();
        let all = accounts.insert(Account { name: None, payers: 1, meters: Default::default() });
        debug_assert_eq!(all, ALL);
        let state = State { accounts, named: HashMap::new(), waiting: Default::default(), next: 0 };
        Arc::new(Self { caps, reserves: Default::default(), state: Mutex::new(state) })
    }

    /// Reserves the largest growing share of a resource for callers that wait for nothing more.
    pub(crate) fn reserve(&self, resource: Resource, largest: usize) {
        self.reserves[resource as usize].fetch_max(largest, Ordering::Relaxed);
    }

    // Nothing panics under the lock, and nothing is dropped under it that takes it.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The amount of the resource in use.
    pub(crate) fn used(&self, resource: Resource) -> usize {
        self.state().accounts.get(ALL).map_or(0, |all| all.meters[resource as usize].used)
    }

    /// The number of callers that wait for the resource.
    pub(crate) fn waiting(&self, resource: Resource) -> usize {
        self.state().waiting[resource as usize].len()
    }

    /// A payer without a known connection.
    pub(crate) fn anybody(self: &Arc<Self>) -> Arc<Payer> {
        let slots = [None, None, None, Some(ALL)];
        self.state().accounts[ALL].payers += 1;
        Payer::new(self.clone(), slots)
    }

    /// The payer of a new connection from this address.
    pub(crate) fn connection(self: &Arc<Self>, address: IpAddr) -> Arc<Payer> {
        let mut state = self.state();
        let own = state.accounts.insert(Account { name: None, payers: 1, meters: Default::default() });
        let address = state.named(Name::Address(address));
        state.accounts[ALL].payers += 1;
        drop(state);
        let slots = [Some(own), Some(address), None, Some(ALL)];
        Payer::new(self.clone(), slots)
    }
}

fn present(slots: &Slots) -> impl Iterator<Item = (usize, usize)> {
    let slots = *slots;
    (0..TIERS).filter_map(move |tier| slots[tier].map(|slot| (tier, slot)))
}

impl State {
    fn meter(&mut self, slot: usize, resource: Resource) -> &mut Meter {
        &mut self.accounts[slot].meters[resource as usize]
    }

    /// Returns the account of this name, and counts one more payer.
    fn named(&mut self, name: Name) -> usize {
        let slot = match self.named.get(&name) {
            Some(slot) => *slot,
            None => {
                let account = Account { name: Some(name), payers: 0, meters: Default::default() };
                let slot = self.accounts.insert(account);
                self.named.insert(name, slot);
                slot
            }
        };
        self.accounts[slot].payers += 1;
        slot
    }
}

#[cfg(test)]
mod tests;
