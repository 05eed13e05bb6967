//! Line: the callers that wait for room in one account. Their order stays correct while the amounts of their accounts
//! change.
//!
//! ```text
//! line ── token ──┬── address ──┬── connection ── callers that hold nothing, by age
//!                 │             └── callers that hold something, by age
//!                 └── address …
//! ```
//!
//! Callers compare by the parts of their caps that connection, address and token hold, the fullest first. Among callers
//! of one token, the token makes no difference; among those of one address, only the connection does. So each level
//! keeps the order of the next one, and a change of a connection or an address moves one entry.
//!
//! Callers that hold something compare without their own share. The oldest of them for each address and token
//! represents the others. Its own parts are subtracted from those of its connection and its address, in the order as
//! well. From its token its [`Size`] is subtracted, which many callers share: there is one order per size.
//!
//! Reading the first caller of a line takes one step per token, plus one per token and size of held amounts: 16 for
//! messages of up to 32 MiB. The number of waiting connections and addresses makes no difference. When each read
//! compared all connections, a grant with 4,000 of them took several milliseconds under the lock of all accounts.
//!
//! Must not know: caps, amounts.

use super::{Slots, Tier};
use std::collections::{BTreeMap, BTreeSet};
use tokio::time::Instant;

/// The part of its cap that an account holds.
pub(super) type Part = u128;

/// An account, if the caller has one of this tier.
type Slot = Option<usize>;

/// The approximate amount that a caller holds, rounded up to a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Size(u32);

impl Size {
    pub(super) fn of(amount: usize) -> Self {
        Self(amount.checked_next_power_of_two().map_or(usize::BITS - 1, usize::ilog2))
    }

    /// The upper bound of the amounts of this size: none of them is larger.
    pub(super) fn amount(self) -> usize {
        1 << self.0
    }
}

/// The share that a caller in line has already.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holding {
    /// The parts of the caps of its connection and its address.
    pub(super) parts: [Part; 2],
    pub(super) size: Size,
}

/// A caller in line. A smaller number is older.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    pub(super) number: u64,
    pub(super) slots: Slots,
    /// None: it holds nothing.
    pub(super) holding: Option<Holding>,
    /// From this time it comes before callers that hold less.
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
    /// The callers with a time from which they come first.
    firsts: BTreeMap<u64, Instant>,
    count: usize,
}

#[derive(Debug, Default)]
struct OfToken {
    addresses: BTreeMap<Slot, OfAddress>,
    /// The first caller of each address that holds nothing, ordered by the amounts of its address and connection.
    order: BTreeSet<(Key, Slot)>,
    /// The same for callers that hold something, by size.
    holding: BTreeMap<Size, BTreeSet<(Key, Slot)>>,
}

/// The parts of address and connection, the fuller first; then the caller's number.
type Key = ([Part; 2], u64);

fn key(address: Part, connection: Part, number: u64) -> Key {
    ([address.max(connection), address.min(connection)], number)
}

#[derive(Debug, Default)]
struct OfAddress {
    part: Part,
    connections: BTreeMap<Slot, OfConnection>,
    /// The oldest caller of each connection that holds nothing, ordered by the amount of the connection.
    order: BTreeSet<(Part, u64)>,
    /// Callers that hold something, with their connections.
    holding: BTreeMap<u64, (Slot, Holding)>,
    /// Its positions in the orders of its token.
    keys: Keys,
}

/// The keys of the first caller that holds nothing, and of the first one that holds something.
type Keys = (Option<Key>, Option<(Size, Key)>);

#[derive(Debug, Default)]
struct OfConnection {
    part: Part,
    callers: BTreeSet<u64>,
    /// The number of further callers that hold something.
    holding: usize,
}

impl OfConnection {
    fn key(&self) -> Option<(Part, u64)> {
        self.callers.first().map(|number| (self.part, *number))
    }
}

impl OfAddress {
    /// Changes the callers of a connection, or its amount, and moves it in the order.
    fn change<T>(&mut self, connection: Slot, change: impl FnOnce(&mut OfConnection) -> T) -> T {
        let of = self.connections.entry(connection).or_default();
        let before = of.key();
        let changed = change(of);
        let after = of.key();
        if before != after {
            before.map(|key| self.order.remove(&key));
            self.order.extend(after);
        }
        if after.is_none() && of.holding == 0 {
            self.connections.remove(&connection);
        }
        changed
    }

    fn keys(&self) -> Keys {
        let nothing = self.order.first().map(|(part, number)| key(self.part, *part, *number));
        let something =
            self.holding.first_key_value().map(|(number, (connection, Holding { parts, size }))| {
                let held = self.connections.get(connection).map_or(0, |of| of.part);
                let (address, connection) =
                    (self.part.saturating_sub(parts[1]), held.saturating_sub(parts[0]));
                (*size, key(address, connection, *number))
            });
        (nothing, something)
    }
}

impl OfToken {
    /// Changes the entries of an address, and moves it in the orders.
    fn change<T>(&mut self, address: Slot, change: impl FnOnce(&mut OfAddress) -> T) -> T {
        let of = self.addresses.entry(address).or_default();
        let changed = change(of);
        let (before, after) = (of.keys, of.keys());
        of.keys = after;
        if before.0 != after.0 {
            before.0.map(|key| self.order.remove(&(key, address)));
            self.order.extend(after.0.map(|key| (key, address)));
        }
        if before.1 != after.1 {
            if let Some((size, key)) = before.1
                && let Some(order) = self.holding.get_mut(&size)
            {
                order.remove(&(key, address));
                if order.is_empty() {
                    self.holding.remove(&size);
                }
            }
            if let Some((size, key)) = after.1 {
                self.holding.entry(size).or_default().insert((key, address));
            }
        }
        if after == (None, None) {
            self.addresses.remove(&address);
        }
        changed
    }
}

impl Line {
    /// Adds a caller, with the parts of its connection and its address.
    pub(super) fn insert(&mut self, caller: &Caller, connection: Part, address: Part) {
        let of_token = self.tokens.entry(caller.slot(Tier::Token)).or_default();
        of_token.change(caller.slot(Tier::Address), |of| {
            of.part = address;
            let own = caller.slot(Tier::Connection);
            of.holding.extend(caller.holding.map(|holding| (caller.number, (own, holding))));
            of.change(own, |of| {
                of.part = connection;
                match caller.holding {
                    Some(_) => of.holding += 1,
                    None => of.callers.extend([caller.number]),
                }
            });
        });
        self.firsts.extend(caller.first_at.map(|at| (caller.number, at)));
        self.count += 1;
    }

    /// Removes the caller. Returns whether it was in line.
    pub(super) fn remove(&mut self, caller: &Caller) -> bool {
        let token = caller.slot(Tier::Token);
        let Some(of_token) = self.tokens.get_mut(&token) else { return false };
        let was_there = of_token.change(caller.slot(Tier::Address), |of| {
            let held = of.holding.remove(&caller.number).is_some();
            of.change(caller.slot(Tier::Connection), |of| {
                of.holding -= usize::from(held);
                of.callers.remove(&caller.number) || held
            })
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

    /// Updates the part of a connection whose callers wait here, or of their address, depending on `tier`.
    pub(super) fn moved(&mut self, slots: &Slots, token: Slot, tier: Tier, part: Part) {
        let [connection, address] = [Tier::Connection, Tier::Address].map(|tier| slots[tier as usize]);
        let Some(of_token) = self.tokens.get_mut(&token) else { return };
        of_token.change(address, |of| match tier {
            Tier::Connection => of.change(connection, |of| of.part = part),
            _ => of.part = part,
        });
        if of_token.addresses.is_empty() {
            self.tokens.remove(&token);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// The oldest caller with a time from which it comes first, and that time.
    pub(super) fn first_in_the_end(&self) -> Option<(u64, Instant)> {
        self.firsts.first_key_value().map(|(number, at)| (*number, *at))
    }

    /// The callers that can be first.
    pub(super) fn candidates(&self) -> impl Iterator<Item = u64> {
        self.tokens.values().flat_map(|of_token| {
            let orders = of_token.holding.values().chain([&of_token.order]);
            orders.filter_map(|order| order.first().map(|((_, number), _)| *number))
        })
    }

    /// Whether the caller is in line.
    #[cfg(test)]
    pub(super) fn has(&self, caller: &Caller) -> bool {
        let of_token = self.tokens.get(&caller.slot(Tier::Token));
        let of = of_token.and_then(|of| of.addresses.get(&caller.slot(Tier::Address)));
        let of_connection = of.and_then(|of| of.connections.get(&caller.slot(Tier::Connection)));
        of.is_some_and(|of| of.holding.contains_key(&caller.number))
            || of_connection.is_some_and(|of| of.callers.contains(&caller.number))
    }
}
