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
//! Invariants:
//! - no account ever holds more than its cap; a need beyond the cap counts as the cap, and is met when the account is empty;
//! - what is not held, with what is held by those who wait for nothing more, is at least the reserve: one of those who
//!   wait can always be served once these are done. Shares that grow cannot block each other for ever;
//! - in a line the oldest comes first, and a new caller never passes a line that it would stand in;
//! - an account of an address or a token exists while somebody pays from it.
//!
//! Must not know: what is counted; sockets.

use futures_util::task::AtomicWaker;
use slab::Slab;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    /// Pieces of messages that came.
    Requests,
    /// Pieces of answers that are made.
    Answers,
    /// Calls.
    Streams,
}

const RESOURCES: usize = 3;

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

/// Who shares an account, besides a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Name {
    Address(IpAddr),
    Token([u8; 32]),
}

/// The accounts of a server.
#[derive(Debug)]
pub(crate) struct Accounts {
    caps: [Caps; RESOURCES],
    /// What is given to those only who wait for nothing more. Grows only.
    reserves: [AtomicUsize; RESOURCES],
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    accounts: Slab<Account>,
    named: HashMap<Name, usize>,
    /// Those that wait, by their number.
    waiting: BTreeMap<u64, Waiter>,
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
    line: BTreeSet<u64>,
}

type Slots = [Option<usize>; TIERS];

/// What a share is to become.
#[derive(Clone, Copy, Debug)]
struct Ask {
    resource: Resource,
    /// What it is.
    held: usize,
    /// What it has to be now.
    want: usize,
    /// What it will be in the end.
    total: usize,
}

#[derive(Debug)]
struct Waiter {
    slots: Slots,
    ask: Ask,
    granted: Arc<Granted>,
}

/// What a waiter was given; 0: nothing yet.
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
        let state = State { accounts, named: HashMap::new(), waiting: BTreeMap::new(), next: 0 };
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

    /// What is held of it in all.
    pub(crate) fn used(&self, resource: Resource) -> usize {
        self.state().accounts.get(ALL).map_or(0, |all| all.meters[resource as usize].used)
    }

    /// How many callers wait for it.
    pub(crate) fn waiting(&self, resource: Resource) -> usize {
        self.state().waiting.values().filter(|waiter| waiter.ask.resource == resource).count()
    }

    /// A payer of no connection that is known.
    pub(crate) fn anybody(self: &Arc<Self>) -> Arc<Payer> {
        let slots = [None, None, None, Some(ALL)];
        self.state().accounts[ALL].payers += 1;
        Arc::new(Payer { accounts: self.clone(), slots })
    }

    /// The payer of a new connection from there.
    pub(crate) fn connection(self: &Arc<Self>, address: IpAddr) -> Arc<Payer> {
        let mut state = self.state();
        let own = state.accounts.insert(Account { name: None, payers: 1, meters: Default::default() });
        let address = state.named(Name::Address(address));
        state.accounts[ALL].payers += 1;
        drop(state);
        let slots = [Some(own), Some(address), None, Some(ALL)];
        Arc::new(Payer { accounts: self.clone(), slots })
    }

    fn cap(&self, resource: Resource, tier: usize) -> (usize, usize) {
        let cap = self.caps[resource as usize][tier];
        (cap, self.reserves[resource as usize].load(Ordering::Relaxed).min(cap))
    }

    /// What a share becomes: what is wanted, or all of it; else the account that lacks room. Takes nothing then.
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
        Ok(amount)
    }

    /// The same for somebody who comes now: those in line come first.
    fn arrive(&self, state: &mut State, slots: &Slots, ask: Ask) -> Result<usize, usize> {
        if !state.waiting.is_empty()
            && let Some((_, slot)) =
                present(slots).find(|(_, s)| !state.meter(*s, ask.resource).line.is_empty())
        {
            return Err(slot);
        }
        self.attempt(state, slots, ask)
    }

    /// What these accounts hold of a share shrinks; serves those in line there.
    fn release(&self, slots: &Slots, resource: Resource, (from, to): (usize, usize)) {
        let mut state = self.state();
        for (tier, slot) in present(slots) {
            let (cap, _) = self.cap(resource, tier);
            state.meter(slot, resource).used -= from.min(cap) - to.min(cap);
        }
        let served = self.serve(&mut state, slots, resource);
        drop(state);
        served.iter().for_each(|granted| granted.waker.wake());
    }

    /// Serves those in line at these accounts, as far as there is room.
    fn serve(&self, state: &mut State, slots: &Slots, resource: Resource) -> Vec<Arc<Granted>> {
        let mut served = Vec::new();
        if state.waiting.is_empty() {
            return served;
        }
        for (_, slot) in present(slots) {
            while let Some(number) = state.meter(slot, resource).line.first().copied() {
                let Some((at, ask)) = state.waiting.get(&number).map(|w| (w.slots, w.ask)) else {
                    state.meter(slot, resource).line.remove(&number);
                    continue;
                };
                match self.attempt(state, &at, ask) {
                    Ok(amount) => {
                        state.meter(slot, resource).line.remove(&number);
                        if let Some(waiter) = state.waiting.remove(&number) {
                            waiter.granted.amount.store(amount, Ordering::Release);
                            served.push(waiter.granted);
                        }
                    }
                    Err(lacks) if lacks == slot => break,
                    Err(lacks) => {
                        state.meter(slot, resource).line.remove(&number);
                        state.meter(lacks, resource).line.insert(number);
                    }
                }
            }
        }
        served
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

/// Those accounts that a call takes from.
#[derive(Debug)]
pub(crate) struct Payer {
    accounts: Arc<Accounts>,
    slots: Slots,
}

impl Payer {
    /// The same with the account of a token, by its digest.
    pub(crate) fn with_token(&self, token: [u8; 32]) -> Arc<Self> {
        let mut state = self.accounts.state();
        let mut slots = self.slots;
        slots[Tier::Token as usize] = Some(state.named(Name::Token(token)));
        for (_, slot) in present(&self.slots).filter(|(tier, _)| *tier != Tier::Token as usize) {
            state.accounts[slot].payers += 1;
        }
        drop(state);
        Arc::new(Self { accounts: self.accounts.clone(), slots })
    }

    /// A share of nothing yet.
    pub(crate) fn nothing(self: &Arc<Self>, resource: Resource) -> Share {
        Share { payer: self.clone(), resource, amount: 0 }
    }

    /// So much of it now.
    ///
    /// # Errors
    /// Whose limit has no room.
    pub(crate) fn try_take(self: &Arc<Self>, resource: Resource, amount: usize) -> Result<Share, Tier> {
        let mut share = self.nothing(resource);
        share.try_grow(amount, amount)?;
        Ok(share)
    }

    /// So much of it, once it can be had.
    pub(crate) async fn take(self: &Arc<Self>, resource: Resource, amount: usize) -> Share {
        self.nothing(resource).grow(amount, amount).await
    }

    /// Whether its connection holds some, and callers wait for what its accounts hold.
    pub(crate) fn is_pressed(&self, resource: Resource) -> bool {
        let mut state = self.accounts.state();
        let own = self.slots[Tier::Connection as usize];
        !state.waiting.is_empty()
            && own.is_none_or(|own| state.meter(own, resource).used > 0)
            && present(&self.slots).any(|(_, slot)| !state.meter(slot, resource).line.is_empty())
    }

    fn tier_of(&self, slot: usize) -> Tier {
        let tiers = [Tier::Connection, Tier::Address, Tier::Token, Tier::All];
        tiers.into_iter().find(|tier| self.slots[*tier as usize] == Some(slot)).unwrap_or(Tier::All)
    }
}

impl Drop for Payer {
    fn drop(&mut self) {
        let mut state = self.accounts.state();
        for (_, slot) in present(&self.slots) {
            let account = &mut state.accounts[slot];
            account.payers -= 1;
            if account.payers == 0 {
                let gone = state.accounts.remove(slot);
                debug_assert!(gone.meters.iter().all(|m| m.used == 0 && m.line.is_empty()));
                if let Some(name) = gone.name {
                    state.named.remove(&name);
                }
            }
        }
    }
}

/// What somebody holds. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    payer: Arc<Payer>,
    resource: Resource,
    amount: usize,
}

impl Share {
    /// How much it is.
    #[cfg(test)]
    pub(crate) fn amount(&self) -> usize {
        self.amount
    }

    fn ask(&self, want: usize, total: usize) -> Ask {
        let want = want.max(self.amount);
        Ask { resource: self.resource, held: self.amount, want, total: total.max(want) }
    }

    /// Makes it at least `want` now; it will be `total` in the end.
    ///
    /// # Errors
    /// Whose limit has no room; nothing changed.
    pub(crate) fn try_grow(&mut self, want: usize, total: usize) -> Result<(), Tier> {
        if want <= self.amount {
            return Ok(());
        }
        let (accounts, slots) = (&self.payer.accounts, &self.payer.slots);
        let mut state = accounts.state();
        match accounts.arrive(&mut state, slots, self.ask(want, total)) {
            Ok(amount) => self.amount = amount,
            Err(slot) => return Err(self.payer.tier_of(slot)),
        }
        Ok(())
    }

    /// Makes it at least `want`, once that can be had; it will be `total` in the end. Given up, it is given back.
    pub(crate) async fn grow(mut self, want: usize, total: usize) -> Self {
        if want <= self.amount {
            return self;
        }
        let accounts = self.payer.accounts.clone();
        let ask = self.ask(want, total);
        let mut wait = {
            let mut state = accounts.state();
            match accounts.arrive(&mut state, &self.payer.slots, ask) {
                Ok(amount) => {
                    self.amount = amount;
                    return self;
                }
                Err(slot) => {
                    state.next += 1;
                    let (number, granted) = (state.next, Arc::<Granted>::default());
                    let waiter = Waiter { slots: self.payer.slots, ask, granted: granted.clone() };
                    state.waiting.insert(number, waiter);
                    state.meter(slot, ask.resource).line.insert(number);
                    Wait { number, granted, share: Some(self) }
                }
            }
        };
        poll_fn(move |context| {
            wait.granted.waker.register(context.waker());
            match (wait.granted.amount.load(Ordering::Acquire), wait.share.take()) {
                (amount @ 1.., Some(mut share)) => {
                    share.amount = amount;
                    Poll::Ready(share)
                }
                (_, share) => {
                    wait.share = share;
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Gives back what is beyond `to`.
    pub(crate) fn shrink(&mut self, to: usize) {
        if to < self.amount {
            let (from, resource) = (std::mem::replace(&mut self.amount, to), self.resource);
            self.payer.accounts.release(&self.payer.slots, resource, (from, to));
        }
    }

    /// From now on only its connection holds it.
    pub(crate) fn keep_to_connection(mut self) -> Option<ConnectionShare> {
        let (amount, slot) = (self.amount, self.payer.slots[Tier::Connection as usize]);
        if slot.is_none() || amount == 0 {
            return None;
        }
        let payer = self.payer.clone();
        let mut larger = payer.slots;
        larger[Tier::Connection as usize] = None;
        payer.accounts.release(&larger, self.resource, (amount, 0));
        self.amount = 0;
        Some(ConnectionShare { payer, resource: self.resource, amount })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

/// What is left of a share that only its connection holds. Given back when dropped.
#[derive(Debug)]
pub(crate) struct ConnectionShare {
    payer: Arc<Payer>,
    resource: Resource,
    amount: usize,
}

impl Drop for ConnectionShare {
    fn drop(&mut self) {
        let slots = [self.payer.slots[Tier::Connection as usize], None, None, None];
        self.payer.accounts.release(&slots, self.resource, (self.amount, 0));
    }
}

/// A place in line.
struct Wait {
    number: u64,
    granted: Arc<Granted>,
    /// None: it was given to its caller.
    share: Option<Share>,
}

impl Drop for Wait {
    fn drop(&mut self) {
        let Some(mut share) = self.share.take() else { return };
        let accounts = share.payer.accounts.clone();
        let mut state = accounts.state();
        let served = if state.waiting.remove(&self.number).is_some() {
            // Those behind it may find room at once.
            for (_, slot) in present(&share.payer.slots) {
                state.meter(slot, share.resource).line.remove(&self.number);
            }
            accounts.serve(&mut state, &share.payer.slots, share.resource)
        } else {
            share.amount = self.granted.amount.load(Ordering::Acquire);
            Vec::new()
        };
        drop(state);
        served.iter().for_each(|granted| granted.waker.wake());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::Pin;
    use std::task::{Context, Waker};

    const UNBOUND: usize = usize::MAX >> 1;

    fn accounts(of: [usize; TIERS], reserve: usize) -> Arc<Accounts> {
        let accounts = Accounts::new([of; RESOURCES]);
        accounts.reserve(R, reserve);
        accounts
    }

    fn from(accounts: &Arc<Accounts>, host: u8) -> Arc<Payer> {
        accounts.connection([10, 0, 0, host].into())
    }

    fn poll<T>(future: &mut Pin<Box<impl Future<Output = T>>>) -> Option<T> {
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        }
    }

    const R: Resource = Resource::Requests;

    #[test]
    fn each_account_has_its_cap_and_holders_give_back() {
        let accounts = accounts([3, 5, 6, 8], 0);
        let (a, b, c) = (from(&accounts, 1), from(&accounts, 1), from(&accounts, 2));
        let first = a.try_take(R, 3).unwrap();
        assert_eq!(a.try_take(R, 1).unwrap_err(), Tier::Connection);
        let second = b.try_take(R, 2).unwrap();
        assert_eq!(b.try_take(R, 1).unwrap_err(), Tier::Address);
        let [t, u] = [c.with_token([7; 32]), from(&accounts, 3).with_token([7; 32])];
        let third = t.try_take(R, 3).unwrap();
        assert_eq!(u.try_take(R, 1).unwrap_err(), Tier::All);
        drop(first);
        let fourth = u.try_take(R, 3).unwrap();
        assert_eq!(from(&accounts, 4).with_token([7; 32]).try_take(R, 1).unwrap_err(), Tier::Token);
        assert_eq!(accounts.used(R), 8);
        drop((second, third, fourth));
        assert_eq!(accounts.used(R), 0);
        drop((a, b, c, t, u));
        let state = accounts.state();
        assert_eq!((state.accounts.len(), state.named.len()), (1, 0), "nothing is remembered");
    }

    #[test]
    fn a_need_beyond_the_cap_is_met_alone() {
        let accounts = accounts([4; TIERS], 0);
        let payer = from(&accounts, 1);
        let large = payer.try_take(R, 100).unwrap();
        assert!(payer.try_take(R, 1).is_err());
        assert_eq!(accounts.used(R), 4);
        drop(large);
        assert_eq!(accounts.used(R), 0);
    }

    #[test]
    fn callers_in_line_are_served_in_order_and_others_pass() {
        let accounts = accounts([2, UNBOUND, UNBOUND, 10], 0);
        let (a, b) = (from(&accounts, 1), from(&accounts, 2));
        let held = a.try_take(R, 2).unwrap();
        let mut large = Box::pin(a.take(R, 2));
        let mut small = Box::pin(a.take(R, 1));
        assert!(poll(&mut large).is_none() && poll(&mut small).is_none());
        assert_eq!(accounts.waiting(R), 2);
        let other = b.try_take(R, 2).unwrap();
        assert!(a.is_pressed(R) && !b.is_pressed(R));
        drop(held);
        let large = poll(&mut large).unwrap();
        assert!(poll(&mut small).is_none(), "the oldest comes first");
        drop(large);
        let small = poll(&mut small).unwrap();
        drop((small, other));
        assert_eq!((accounts.used(R), accounts.waiting(R)), (0, 0));
    }

    #[test]
    fn a_caller_that_gives_up_lets_those_behind_it_go() {
        let accounts = accounts([4; TIERS], 0);
        let payer = from(&accounts, 1);
        let held = payer.try_take(R, 3).unwrap();
        let mut large = Box::pin(payer.take(R, 4));
        let mut small = Box::pin(payer.take(R, 1));
        assert!(poll(&mut large).is_none() && poll(&mut small).is_none());
        drop(large);
        let small = poll(&mut small).expect("there is room for it");
        // Given up after it was served, and not looked at since.
        let mut late = Box::pin(payer.take(R, 4));
        assert!(poll(&mut late).is_none());
        drop((held, small));
        assert_eq!(accounts.used(R), 4);
        drop(late);
        assert_eq!(accounts.used(R), 0);
    }

    /// Messages that come in together and each wait for the rest of their share would wait for ever.
    #[test]
    fn shares_that_grow_never_block_each_other() {
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (message, cap) = (16, 16 + random.usize(0..48));
            let accounts = accounts([cap.min(24), cap.min(40), UNBOUND, cap], message);
            let payers: Vec<_> = (0..6).map(|n| from(&accounts, n / 2)).collect();
            // Each wants a message, a few pieces at a time; what waits is polled until something moves.
            let mut open: Vec<(Option<Share>, usize)> = (0..12)
                .map(|n| (Some(payers[n % payers.len()].nothing(R)), random.usize(1..=message)))
                .collect();
            let mut waiting: Vec<Option<Pin<Box<dyn Future<Output = Share>>>>> =
                (0..open.len()).map(|_| None).collect();
            let (mut done, mut turns) = (0, 0);
            while done < open.len() {
                turns += 1;
                assert!(turns < 100_000, "seed {seed}: nobody goes on");
                let n = random.usize(0..open.len());
                let total = open[n].1;
                if let Some(future) = &mut waiting[n] {
                    let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                    let Poll::Ready(share) = polled else { continue };
                    (waiting[n], open[n].0) = (None, Some(share));
                }
                let Some(share) = open[n].0.take() else { continue };
                if share.amount() >= total {
                    done += 1; // it is complete, and leaves
                    continue;
                }
                let want = (share.amount() + random.usize(1..=4)).min(total);
                waiting[n] = Some(Box::pin(share.grow(want, total)));
            }
            drop(waiting);
            assert_eq!((accounts.used(R), accounts.waiting(R)), (0, 0), "seed {seed}");
        }
    }

    #[test]
    fn what_is_queued_holds_its_connection_s_share_only() {
        let accounts = accounts([4, 4, 4, 4], 0);
        let payer = from(&accounts, 1);
        let kept = payer.try_take(R, 3).unwrap().keep_to_connection();
        assert_eq!(accounts.used(R), 0);
        assert_eq!(payer.try_take(R, 2).unwrap_err(), Tier::Connection);
        drop(kept);
        assert!(payer.try_take(R, 4).is_ok());
        assert!(accounts.anybody().try_take(R, 4).unwrap().keep_to_connection().is_none());
    }
}
