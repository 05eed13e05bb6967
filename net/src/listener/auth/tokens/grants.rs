//! Grants: which caller gets room next, and the lines of waiting callers.
//!
//! Must not know: what is counted; futures.

use super::line::{Caller, Holding, Part, Size};
use super::{ALL, Accounts, Ask, Granted, Resource, Slots, State, TIERS, Tier, present};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::time::Instant;

/// The parts of their caps that a caller's accounts hold, in 1/2^64; the largest first. None comes before all others.
pub(super) type HeldParts = Option<[Part; TIERS - 1]>;
/// The smaller one comes first. The number is the age.
pub(super) type Rank = (HeldParts, u64);

/// The tiers whose accounts order the callers of one token.
const ORDERING: [Tier; 2] = [Tier::Connection, Tier::Address];

impl Accounts {
    fn cap(&self, resource: Resource, tier: usize) -> (usize, usize) {
        let cap = self.caps[resource as usize][tier];
        (cap, self.reserves[resource as usize].load(Ordering::Relaxed).min(cap))
    }

    /// Returns the new amount of a share: the wanted one, or the total; otherwise the account that lacks room, and
    /// takes nothing.
    fn attempt(&self, state: &mut State, slots: &Slots, ask: Ask) -> Result<usize, usize> {
        let (mut is_ample, mut lacks) = (true, None);
        for (tier, slot) in present(slots) {
            let (cap, reserve) = self.cap(ask.resource, tier);
            let used = state.meter(slot, ask.resource).used;
            let held = ask.held.min(cap);
            is_ample &= used + (ask.want.min(cap) - held) <= cap - reserve;
            if used + (ask.total.min(cap) - held) > cap {
                lacks = lacks.or(Some(slot));
            }
        }
        let amount = match lacks {
            _ if is_ample => ask.want,
            None => ask.total,
            Some(slot) => return Err(slot),
        };
        for (tier, slot) in present(slots) {
            let (cap, _) = self.cap(ask.resource, tier);
            let meter = state.meter(slot, ask.resource);
            meter.used += amount.min(cap) - ask.held.min(cap);
            debug_assert!(meter.used <= cap, "{:?}: {} of {cap}", ask.resource, meter.used);
        }
        self.reorder(state, slots, ask.resource);
        Ok(amount)
    }

    /// The same for a new caller: callers in line that come before it keep their place. Its accounts hold more after a
    /// grant, so another caller may be next there: returns the callers that are served then and must be woken.
    pub(super) fn arrive(
        &self,
        state: &mut State,
        slots: &Slots,
        ask: Ask,
    ) -> Result<(usize, Vec<Arc<Granted>>), usize> {
        if !state.waiting[ask.resource as usize].is_empty() {
            let rank = (self.held_parts(state, slots, ask.resource, self.holding(slots, ask)), u64::MAX);
            for (_, slot) in present(slots) {
                if self.first_in_line(state, slot, ask.resource).is_some_and(|first| first < rank) {
                    return Err(slot);
                }
            }
        }
        let amount = self.attempt(state, slots, ask)?;
        Ok((amount, self.serve(state, slots, ask.resource)))
    }

    /// The share that a caller has already, in the form that lines use.
    pub(super) fn holding(&self, slots: &Slots, ask: Ask) -> Option<Holding> {
        let part = |tier: Tier| slots[tier as usize].map_or(0, |_| self.part(tier, ask.resource, ask.held));
        (ask.held > 0).then(|| Holding { parts: ORDERING.map(part), size: Size::of(ask.held) })
    }

    /// The parts of their caps that the accounts of a caller hold, without its own share; the fullest first.
    pub(super) fn held_parts(
        &self,
        state: &State,
        slots: &Slots,
        resource: Resource,
        holding: Option<Holding>,
    ) -> HeldParts {
        let holds = |tier: Tier| {
            let used = |slot: usize| state.accounts[slot].meters[resource as usize].used;
            let except = if tier == Tier::Token { holding.map_or(0, |own| own.size.amount()) } else { 0 };
            slots[tier as usize]
                .map_or(0, |slot| self.part(tier, resource, used(slot).saturating_sub(except)))
        };
        let own = holding.map_or([0; 2], |own| own.parts);
        let [connection, address] = ORDERING.map(holds);
        let mut parts =
            [connection.saturating_sub(own[0]), address.saturating_sub(own[1]), holds(Tier::Token)];
        parts.sort_unstable_by(|a, b| b.cmp(a));
        Some(parts)
    }

    /// This amount as a part of the cap of accounts of this tier, in 1/2^64.
    fn part(&self, tier: Tier, resource: Resource, amount: usize) -> Part {
        let (cap, _) = self.cap(resource, tier as usize);
        ((amount.min(cap) as u128) << 64).checked_div(cap as u128).unwrap_or(0)
    }

    /// The rank of the next caller of a line.
    pub(super) fn first_in_line(&self, state: &State, slot: usize, resource: Resource) -> Option<Rank> {
        let line = &state.accounts[slot].meters[resource as usize].line;
        match line.first_in_the_end() {
            Some((number, at)) if at <= Instant::now() => return Some((None, number)),
            _ => {}
        }
        let rank = |number: u64| {
            let Caller { slots, holding, .. } = state.waiting[resource as usize].get(&number)?.caller;
            Some((self.held_parts(state, &slots, resource, holding), number))
        };
        line.candidates().filter_map(rank).min()
    }

    /// Adds a caller to the line of an account.
    pub(super) fn join(&self, state: &mut State, slot: usize, caller: Caller, resource: Resource) {
        let [connection, address] = ORDERING.map(|tier| {
            let own = caller.slots[tier as usize];
            own.map_or(0, |own| self.part(tier, resource, state.meter(own, resource).used))
        });
        state.meter(slot, resource).line.insert(&caller, connection, address);
        state.count_order(&caller, slot, resource, |count| count + 1);
    }

    /// Updates the order of the lines in which callers of these accounts wait, after an account's amount changed.
    fn reorder(&self, state: &mut State, slots: &Slots, resource: Resource) {
        if state.waiting[resource as usize].is_empty() {
            return;
        }
        for tier in ORDERING {
            let Some(own) = slots[tier as usize] else { continue };
            let orders = std::mem::take(&mut state.meter(own, resource).orders);
            if !orders.is_empty() {
                let part = self.part(tier, resource, state.meter(own, resource).used);
                for (slot, token) in orders.keys() {
                    state.meter(*slot, resource).line.moved(slots, *token, tier, part);
                }
                state.meter(own, resource).orders = orders;
            }
        }
    }

    /// Reduces a share in these accounts: that of its connection, and those that others share. Serves the callers in
    /// line there.
    pub(super) fn release(
        &self,
        slots: &Slots,
        resource: Resource,
        from: (usize, usize),
        to: (usize, usize),
    ) {
        let mut state = self.state();
        for (tier, slot) in present(slots) {
            let (cap, _) = self.cap(resource, tier);
            let is_connection = tier == Tier::Connection as usize;
            let (from, to) = if is_connection { (from.0, to.0) } else { (from.1, to.1) };
            state.meter(slot, resource).used -= from.min(cap) - to.min(cap);
        }
        self.reorder(&mut state, slots, resource);
        let served = self.serve(&mut state, slots, resource);
        drop(state);
        served.iter().for_each(|granted| granted.waker.wake());
    }

    /// Serves the callers in line at these accounts, as far as there is room. Of the first callers of these lines, the
    /// one with the lowest rank is next, whichever line it is in. No caller passes the first one of all connections: if
    /// that one lacks room, the later ones join its line.
    pub(super) fn serve(&self, state: &mut State, slots: &Slots, resource: Resource) -> Vec<Arc<Granted>> {
        let mut served = Vec::new();
        if state.waiting[resource as usize].is_empty() {
            return served;
        }
        // The accounts that were full for the first caller of their line.
        let mut blocked: Vec<usize> = Vec::new();
        loop {
            let first = |(tier, slot): (usize, usize)| {
                let used = state.accounts[slot].meters[resource as usize].used;
                let is_open = used < self.cap(resource, tier).0 && !blocked.contains(&slot);
                is_open.then(|| self.first_in_line(state, slot, resource)).flatten().map(|rank| (rank, slot))
            };
            let Some(((_, number), slot)) = present(slots).filter_map(first).min() else { break };
            let waiter = state.waiting[resource as usize].get(&number);
            let Some((caller, ask)) = waiter.map(|waiter| (waiter.caller, waiter.ask)) else { break };
            if blocked.contains(&ALL) {
                state.leave(&caller, slot, resource);
                self.join(state, ALL, caller, resource);
                continue;
            }
            match self.attempt(state, &caller.slots, ask) {
                Ok(amount) => {
                    state.leave(&caller, slot, resource);
                    if let Some(waiter) = state.waiting[resource as usize].remove(&number) {
                        waiter.tally.waits_no_more(resource);
                        waiter.tally.holds_more(resource, amount - ask.held);
                        waiter.granted.amount.store(amount, Ordering::Release);
                        served.push(waiter.granted);
                    }
                    // After this grant another caller can be first in these lines, one that needs less.
                    blocked.retain(|slot| !caller.slots.contains(&Some(*slot)));
                }
                Err(lacks) if lacks == slot => blocked.push(slot),
                Err(lacks) => {
                    state.leave(&caller, slot, resource);
                    self.join(state, lacks, caller, resource);
                }
            }
        }
        served
    }
}

impl State {
    /// Removes the caller from the line of an account, if it is there.
    pub(super) fn leave(&mut self, caller: &Caller, slot: usize, resource: Resource) {
        if self.meter(slot, resource).line.remove(caller) {
            self.count_order(caller, slot, resource, |count| count - 1);
        }
    }

    /// In a connection's own line its callers compare equal, whatever it holds; so do those of one address in the
    /// address's line. Such a line needs no update.
    fn count_order(
        &mut self,
        caller: &Caller,
        slot: usize,
        resource: Resource,
        count: impl Fn(usize) -> usize,
    ) {
        let token = caller.slots[Tier::Token as usize];
        let owns = ORDERING.map(|tier| caller.slots[tier as usize]);
        let end = owns.iter().position(|own| *own == Some(slot)).unwrap_or(owns.len());
        for own in owns.into_iter().take(end).flatten() {
            let orders = &mut self.meter(own, resource).orders;
            let entry = orders.entry((slot, token)).or_default();
            *entry = count(*entry);
            if *entry == 0 {
                orders.remove(&(slot, token));
            }
        }
    }
}
