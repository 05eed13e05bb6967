//! Line: the callers that wait for room in one account, in an order that is kept while what their accounts hold changes.
//!
//! ```text
//! line ── token ──┬── address ──┬── connection ── callers that hold nothing, by age
//!                 │             └── callers that hold something, by age
//!                 └── address …
//! ```
//!
//! Callers compare by the parts of their caps that connection, address and token hold, the fullest first. Among callers of one
//! token the token makes no difference, and among those of one address as well the connection alone does. So each level
//! keeps the order of the next one, and a change of what a connection or an address holds moves one entry. Callers that hold
//! something compare without their own share, which no such order can have: of these the oldest of each address and token
//! stands for the others.
//!
//! A look at a line costs one step per token, and one per address and token of which a caller holds something, however many
//! connections wait. With 4,000 connections in line, a grant took some milliseconds under the lock of all accounts, when each
//! look compared all connections.
//!
//! Must not know: caps, amounts.

use super::{Slots, Tier};
use std::collections::{BTreeMap, BTreeSet};
use tokio::time::Instant;

/// The part of its cap that an account holds.
pub(super) type Part = u128;

/// An account, if the caller has one of this tier.
type Slot = Option<usize>;

/// A caller in line. The smaller number is the older one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    pub(super) number: u64,
    pub(super) slots: Slots,
    /// It has a share already.
    pub(super) holds: bool,
    /// From then on it comes before those that hold less.
    pub(super) first_at: Option<Instant>,
}

impl Caller {
    fn slot(&self, tier: Tier) -> Slot {
        self.slots[tier as usize]
    }
}

/// The callers in line.
#[derive(Debug, Default)]
pub(super) struct Line {
    tokens: BTreeMap<Slot, OfToken>,
    /// Those whose turn comes in the end.
    firsts: BTreeMap<u64, Instant>,
    count: usize,
}

#[derive(Debug, Default)]
struct OfToken {
    addresses: BTreeMap<Slot, OfAddress>,
    /// The first caller of each address that holds nothing, by what its address and connection hold.
    order: BTreeSet<(Key, Slot)>,
    /// The addresses of which a caller holds something.
    holding: BTreeSet<Slot>,
}

/// The parts that address and connection hold, the fuller first; then the caller's number.
type Key = ([Part; 2], u64);

#[derive(Debug, Default)]
struct OfAddress {
    part: Part,
    connections: BTreeMap<Slot, OfConnection>,
    /// The oldest caller of each connection that holds nothing, by what the connection holds.
    order: BTreeSet<(Part, u64)>,
    /// Callers that hold something.
    holding: BTreeSet<u64>,
    /// Where it stands in the order of its token.
    key: Option<Key>,
}

#[derive(Debug, Default)]
struct OfConnection {
    part: Part,
    callers: BTreeSet<u64>,
}

impl OfConnection {
    fn key(&self) -> Option<(Part, u64)> {
        self.callers.first().map(|number| (self.part, *number))
    }
}

impl OfAddress {
    /// Changes the callers of a connection, or what it holds, and its place in the order with it.
    fn change(&mut self, connection: Slot, change: impl FnOnce(&mut OfConnection) -> bool) -> bool {
        let of = self.connections.entry(connection).or_default();
        let before = of.key();
        let is_changed = change(of);
        let after = of.key();
        if before != after {
            before.map(|key| self.order.remove(&key));
            self.order.extend(after);
        }
        if after.is_none() {
            self.connections.remove(&connection);
        }
        is_changed
    }
}

impl OfToken {
    /// Changes what stands under an address, and its place in the order with it.
    fn change(&mut self, address: Slot, change: impl FnOnce(&mut OfAddress) -> bool) -> bool {
        let of = self.addresses.entry(address).or_default();
        let is_changed = change(of);
        let key = of.order.first().map(|(part, number)| ([of.part.max(*part), of.part.min(*part)], *number));
        if of.key != key {
            of.key.map(|key| self.order.remove(&(key, address)));
            self.order.extend(key.map(|key| (key, address)));
            of.key = key;
        }
        match of.holding.is_empty() {
            true => self.holding.remove(&address),
            false => self.holding.insert(address),
        };
        if of.key.is_none() && of.holding.is_empty() {
            self.addresses.remove(&address);
        }
        is_changed
    }
}

impl Line {
    /// One more caller, with the parts that its connection and its address hold.
    pub(super) fn insert(&mut self, caller: &Caller, connection: Part, address: Part) {
        let of_token = self.tokens.entry(caller.slot(Tier::Token)).or_default();
        of_token.change(caller.slot(Tier::Address), |of| {
            of.part = address;
            if caller.holds {
                return of.holding.insert(caller.number);
            }
            of.change(caller.slot(Tier::Connection), |of| {
                of.part = connection;
                of.callers.insert(caller.number)
            })
        });
        self.firsts.extend(caller.first_at.map(|at| (caller.number, at)));
        self.count += 1;
    }

    /// Whether the caller was in line.
    pub(super) fn remove(&mut self, caller: &Caller) -> bool {
        let token = caller.slot(Tier::Token);
        let Some(of_token) = self.tokens.get_mut(&token) else { return false };
        let was_there = of_token.change(caller.slot(Tier::Address), |of| match caller.holds {
            true => of.holding.remove(&caller.number),
            false => of.change(caller.slot(Tier::Connection), |of| of.callers.remove(&caller.number)),
        });
        if of_token.addresses.is_empty() {
            self.tokens.remove(&token);
        }
        if was_there {
            self.firsts.remove(&caller.number);
            self.count -= 1;
        }
        was_there
    }

    /// The connection of callers that wait here holds another part now; or their address, where `tier` says so.
    pub(super) fn moved(&mut self, slots: &Slots, token: Slot, tier: Tier, part: Part) {
        let [connection, address] = [Tier::Connection, Tier::Address].map(|tier| slots[tier as usize]);
        let Some(of_token) = self.tokens.get_mut(&token) else { return };
        of_token.change(address, |of| match tier {
            Tier::Connection => of.change(connection, |of| {
                of.part = part;
                true
            }),
            _ => {
                of.part = part;
                true
            }
        });
        if of_token.addresses.is_empty() {
            self.tokens.remove(&token);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// The oldest of those whose turn comes in the end, and when it does.
    pub(super) fn first_in_the_end(&self) -> Option<(u64, Instant)> {
        self.firsts.first_key_value().map(|(number, at)| (*number, *at))
    }

    /// The callers one of which comes first.
    pub(super) fn candidates(&self) -> impl Iterator<Item = u64> {
        self.tokens.values().flat_map(|of_token| {
            let first = of_token.order.first().map(|((_, number), _)| *number);
            let of_address = |address| of_token.addresses.get(address)?.holding.first().copied();
            first.into_iter().chain(of_token.holding.iter().filter_map(of_address))
        })
    }

    /// Whether the caller is in line.
    #[cfg(test)]
    pub(super) fn has(&self, caller: &Caller) -> bool {
        let of_token = self.tokens.get(&caller.slot(Tier::Token));
        let of = of_token.and_then(|of| of.addresses.get(&caller.slot(Tier::Address)));
        let of_connection = of.and_then(|of| of.connections.get(&caller.slot(Tier::Connection)));
        of.is_some_and(|of| of.holding.contains(&caller.number))
            || of_connection.is_some_and(|of| of.callers.contains(&caller.number))
    }
}
