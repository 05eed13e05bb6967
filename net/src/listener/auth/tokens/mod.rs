//! Accounts: what a server holds for its clients (bytes of requests, bytes of answers, streams), counted in all and for
//! each of those who share it.
//!
//! ```text
//!            all
//!        ┌────┴────┐
//!     address    token      each with its share of what there is in all
//!        └────┬────┘
//!        connection
//! ```
//!
//! A [`Share`] is taken from every account of its [`Payer`] at once, or from none. A caller that finds no room waits in the
//! line of the first account that lacks it; callers with other accounts pass. A share can grow as bytes arrive. The last
//! `reserve` of each account is given only to a caller that takes all it will ever need, so that it waits for nothing more.
//!
//! Grants are fair. The next one goes to the caller whose accounts hold least, its own share not counted: the fullest of its
//! accounts is compared first, as a part of its cap, then the next one. So a connection that holds nothing comes before
//! the connections of its address that hold something. Equal callers are served by age, and so are those of one address and
//! token whose shares hold something already. (Of the token, the own share counts as the next power of two: line.rs says why.)
//!
//! Newcomers that hold less do not pass for ever. A caller whose wait has an end and whose share holds something already
//! comes first once half of its time is over; such callers are served by age. So a message of which a part has come stands
//! behind newcomers for at most half of `inflight_wait`.
//!
//! Invariants:
//! - no account ever holds more than its cap; a need beyond the cap counts as the cap, and is met when the account is empty;
//! - what is not held, with what is held by those who wait for nothing more, is at least the reserve: one of those who
//!   wait can always be served once these are done. Shares that grow cannot block each other for ever;
//! - in a line, the oldest caller that waited for half of its time with something in its hands comes first, then the one
//!   whose accounts hold least; a new caller passes only those that come after it;
//! - an account of an address or a token exists while somebody pays from it.
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

/// The things that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    /// Pieces of messages that came.
    Requests,
    /// Pieces of answers that are made.
    Answers,
    /// Calls.
    Streams,
    /// Turns to read the disk or to unpack. Taken by [`in_turn`](crate::service::turn::in_turn) alone.
    Turns,
    /// Places for work that is paced. Taken by [`paced`](crate::service::turn::paced) alone.
    Paced,
    /// Connections on which a token is shown.
    Connections,
    /// Calls that need no token, where there are tokens.
    Tokenless,
}

pub(crate) const RESOURCES: usize = 7;

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
    /// As messages name it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Connection => "of this connection",
            Self::Address => "of this address",
            Self::Token => "of this token",
            Self::All => "of all connections",
        }
    }
}

/// How much of one thing the accounts may hold, by tier.
pub(crate) type Caps = [usize; TIERS];

/// An address or a token, all connections of which share an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Name {
    Address(IpAddr),
    Token([u8; 32]),
}

/// The accounts of a server.
#[derive(Debug)]
pub(crate) struct Accounts {
    caps: [Caps; RESOURCES],
    /// So much is given only to those that wait for nothing more. Grows only.
    reserves: [AtomicUsize; RESOURCES],
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    accounts: Slab<Account>,
    named: HashMap<Name, usize>,
    /// Those that wait, by resource and number.
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
    /// Those that wait for room here.
    line: Line,
    /// The lines whose order depends on what this account holds, each with a token of callers there, and how many these are.
    orders: BTreeMap<(usize, Option<usize>), usize>,
}

type Slots = [Option<usize>; TIERS];

/// The amounts that a share is to become.
#[derive(Clone, Copy, Debug)]
struct Ask {
    resource: Resource,
    /// So much it is.
    held: usize,
    /// So much it has to be now.
    want: usize,
    /// So much it will be in the end.
    total: usize,
}

#[derive(Debug)]
struct Waiter {
    caller: Caller,
    ask: Ask,
    granted: Arc<Granted>,
    tally: Arc<Tally>,
}

/// The amount that a waiter was given; 0: nothing yet.
#[derive(Debug, Default)]
struct Granted {
    amount: AtomicUsize,
    waker: AtomicWaker,
}

const ALL: usize = 0;

impl Accounts {
    /// With these bounds, by resource.
    pub(crate) fn new(caps: [Caps; RESOURCES]) -> Arc<Self> {
        let mut accounts = Slab::new();
        let all = accounts.insert(Account { name: None, payers: 1, meters: Default::default() });
        debug_assert_eq!(all, ALL);
        let state = State { accounts, named: HashMap::new(), waiting: Default::default(), next: 0 };
        Arc::new(Self { caps, reserves: Default::default(), state: Mutex::new(state) })
    }

    /// The largest share of a thing that grows bit by bit: so much is given to those only who wait for nothing more.
    pub(crate) fn reserve(&self, resource: Resource, largest: usize) {
        self.reserves[resource as usize].fetch_max(largest, Ordering::Relaxed);
    }

    // Nothing panics under the lock, and nothing is dropped under it that takes it.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The amount of it that is held in all.
    pub(crate) fn used(&self, resource: Resource) -> usize {
        self.state().accounts.get(ALL).map_or(0, |all| all.meters[resource as usize].used)
    }

    /// How many callers wait for it.
    pub(crate) fn waiting(&self, resource: Resource) -> usize {
        self.state().waiting[resource as usize].len()
    }

    /// A payer of no connection that is known.
    pub(crate) fn anybody(self: &Arc<Self>) -> Arc<Payer> {
        let slots = [None, None, None, Some(ALL)];
        self.state().accounts[ALL].payers += 1;
        Payer::new(self.clone(), slots)
    }

    /// The payer of a new connection from there.
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

    /// The account of this name, with one payer more.
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
