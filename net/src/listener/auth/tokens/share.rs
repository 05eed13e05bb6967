//! Share: the amount that one call holds, its accounts, and its wait for more.
//!
//! Invariant: a share is returned when it is dropped, also while its caller waits for more.

use super::line::Caller;
use super::{Account, Accounts, Ask, Granted, Name, RESOURCES, Resource, Slots, Tier, Waiter, present};
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

/// The accounts that one call uses, and the amounts that it holds.
#[derive(Debug)]
pub(crate) struct Payer {
    accounts: Arc<Accounts>,
    slots: Slots,
    tally: Arc<Tally>,
    /// One small message may be sent that no account counts.
    spare: Semaphore,
    /// Only one call of a connection at a time waits for a place ([`Resource::Paced`]).
    pacing: Arc<Semaphore>,
}

/// The amounts that a call holds and waits for. Counted when they are granted, not when the caller sees the grant: a
/// client that reads nothing keeps the caller from running.
#[derive(Debug, Default)]
pub(super) struct Tally {
    held: [AtomicUsize; RESOURCES],
    /// Since the start of the call; wraps.
    given_back: [AtomicUsize; RESOURCES],
    waiting: [AtomicUsize; RESOURCES],
}

impl Tally {
    fn waits(&self, resource: Resource) {
        self.waiting[resource as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn waits_no_more(&self, resource: Resource) {
        self.waiting[resource as usize].fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn holds_more(&self, resource: Resource, amount: usize) {
        self.held[resource as usize].fetch_add(amount, Ordering::Relaxed);
    }

    fn gives_back(&self, resource: Resource, amount: usize) {
        self.held[resource as usize].fetch_sub(amount, Ordering::Relaxed);
        self.given_back[resource as usize].fetch_add(amount, Ordering::Relaxed);
    }
}

/// The amount that a call holds while others wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pressure {
    pub(crate) held: usize,
    /// Since the start of the call; wraps.
    pub(crate) given_back: usize,
}

impl Payer {
    pub(super) fn new(accounts: Arc<Accounts>, slots: Slots) -> Arc<Self> {
        Self::with_pacing(accounts, slots, Arc::new(Semaphore::new(1)))
    }

    fn with_pacing(accounts: Arc<Accounts>, slots: Slots, pacing: Arc<Semaphore>) -> Arc<Self> {
        Arc::new(Self { accounts, slots, tally: Arc::default(), spare: Semaphore::new(1), pacing })
    }

    /// The same accounts for one call, with the account of its token, by the token's digest.
    pub(crate) fn for_call(&self, token: Option<[u8; 32]>) -> Arc<Self> {
        let mut state = self.accounts.state();
        let mut slots = self.slots;
        if let Some(token) = token {
            slots[Tier::Token as usize] = Some(state.named(Name::Token(token)));
        }
        for (_, slot) in
            present(&self.slots).filter(|(tier, _)| token.is_none() || *tier != Tier::Token as usize)
        {
            state.accounts[slot].payers += 1;
        }
        drop(state);
        Self::with_pacing(self.accounts.clone(), slots, self.pacing.clone())
    }

    /// Returns an empty share.
    pub(crate) fn nothing(self: &Arc<Self>, resource: Resource) -> Share {
        Share { payer: self.clone(), resource, amount: 0, wide: 0 }
    }

    /// Takes this amount now.
    ///
    /// # Errors
    /// The account that has no room.
    pub(crate) fn try_take(self: &Arc<Self>, resource: Resource, amount: usize) -> Result<Share, Tier> {
        let mut share = self.nothing(resource);
        share.try_grow(amount, amount)?;
        Ok(share)
    }

    /// Takes this amount as soon as there is room.
    pub(crate) async fn take(self: &Arc<Self>, resource: Resource, amount: usize) -> Share {
        self.nothing(resource).grow(amount, amount).await
    }

    /// The amount that the call holds, if other calls wait for room in its accounts.
    pub(crate) fn pressure(&self, resource: Resource) -> Option<Pressure> {
        let read = |of: &[AtomicUsize; RESOURCES]| of[resource as usize].load(Ordering::Relaxed);
        let held = read(&self.tally.held);
        if held == 0 {
            return None;
        }
        let mut state = self.accounts.state();
        if state.waiting[resource as usize].is_empty() {
            return None;
        }
        let in_line: usize =
            present(&self.slots).map(|(_, slot)| state.meter(slot, resource).line.len()).sum();
        (in_line > read(&self.tally.waiting))
            .then(|| Pressure { held, given_back: read(&self.tally.given_back) })
    }

    /// Waits for the right to wait for a place, behind earlier calls of this connection.
    pub(crate) async fn first_of_connection(&self) -> Option<SemaphorePermit<'_>> {
        self.pacing.acquire().await.ok() // it is never closed
    }

    /// Waits for the right to send one small message that no account counts, until the previous one was sent.
    pub(crate) async fn spare(self: &Arc<Self>) -> Spare {
        // It is never closed.
        if let Ok(permit) = self.spare.acquire().await {
            permit.forget();
        }
        Spare { payer: self.clone() }
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
                let gone: Account = state.accounts.remove(slot);
                debug_assert!(
                    gone.meters.iter().all(|m| m.used == 0 && m.line.len() == 0 && m.orders.is_empty())
                );
                if let Some(name) = gone.name {
                    state.named.remove(&name);
                }
            }
        }
    }
}

/// The right to send one small uncounted message. Returned when dropped.
#[derive(Debug)]
pub(crate) struct Spare {
    payer: Arc<Payer>,
}

impl Drop for Spare {
    fn drop(&mut self) {
        self.payer.spare.add_permits(1);
    }
}

/// An amount that a call holds. Returned when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    payer: Arc<Payer>,
    resource: Resource,
    /// The amount in the account of its connection.
    amount: usize,
    /// The amount in the accounts that it shares with other connections.
    wide: usize,
}

impl Share {
    /// The amount of the share.
    pub(crate) fn amount(&self) -> usize {
        self.amount
    }

    fn ask(&self, want: usize, total: usize) -> Ask {
        debug_assert_eq!(self.amount, self.wide, "a message in the log's queue never grows");
        let want = want.max(self.amount);
        Ask { resource: self.resource, held: self.amount, want, total: total.max(want) }
    }

    /// The share was granted this amount.
    fn granted(&mut self, amount: usize) {
        self.payer.tally.holds_more(self.resource, amount - self.amount);
        (self.amount, self.wide) = (amount, amount);
    }

    /// Grows it to at least `want` now; its final amount will be `total`.
    ///
    /// # Errors
    /// The account that has no room; nothing changed.
    pub(crate) fn try_grow(&mut self, want: usize, total: usize) -> Result<(), Tier> {
        if want <= self.amount {
            return Ok(());
        }
        let (accounts, slots) = (&self.payer.accounts, &self.payer.slots);
        let arrived = accounts.arrive(&mut accounts.state(), slots, self.ask(want, total));
        let (amount, served) = arrived.map_err(|slot| self.payer.tier_of(slot))?;
        self.granted(amount);
        served.iter().for_each(|granted| granted.waker.wake());
        Ok(())
    }

    /// Grows it to at least `want` once there is room; its final amount will be `total`. Dropping the future returns
    /// the share.
    pub(crate) async fn grow(self, want: usize, total: usize) -> Self {
        self.grow_first_at(None, want, total).await
    }

    /// The same for up to `patience`; the share is returned then. After half of that time, a share that holds something
    /// comes before those that hold less.
    pub(crate) async fn grow_within(self, patience: Duration, want: usize, total: usize) -> Option<Self> {
        let first_at = if self.amount > 0 { Instant::now().checked_add(patience / 2) } else { None };
        timeout(patience, self.grow_first_at(first_at, want, total)).await.ok()
    }

    async fn grow_first_at(mut self, first_at: Option<Instant>, want: usize, total: usize) -> Self {
        if want <= self.amount {
            return self;
        }
        let accounts = self.payer.accounts.clone();
        let ask = self.ask(want, total);
        let arrived = {
            let mut state = accounts.state();
            accounts.arrive(&mut state, &self.payer.slots, ask).map_err(|slot| {
                state.next += 1;
                let (number, granted) = (state.next, Arc::<Granted>::default());
                let (slots, tally) = (self.payer.slots, self.payer.tally.clone());
                let caller = Caller { number, slots, holding: accounts.holding(&slots, ask), first_at };
                let waiter = Waiter { caller, ask, granted: granted.clone(), tally };
                state.waiting[ask.resource as usize].insert(number, waiter);
                accounts.join(&mut state, slot, caller, ask.resource);
                self.payer.tally.waits(ask.resource);
                (number, granted)
            })
        };
        let mut wait = match arrived {
            Ok((amount, served)) => {
                self.granted(amount);
                served.iter().for_each(|granted| granted.waker.wake());
                return self;
            }
            Err((number, granted)) => Wait { number, granted, share: Some(self) },
        };
        poll_fn(move |context| {
            wait.granted.waker.register(context.waker());
            match (wait.granted.amount.load(Ordering::Acquire), wait.share.take()) {
                (amount @ 1.., Some(mut share)) => {
                    (share.amount, share.wide) = (amount, amount);
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

    /// Returns the amount above `to`.
    pub(crate) fn shrink(&mut self, to: usize) {
        self.give_back(to, to);
    }

    /// From now on only the account of its connection holds more than one piece of it.
    pub(crate) fn keep_to_connection(&mut self) {
        self.give_back(self.amount, 1);
    }

    fn give_back(&mut self, amount: usize, wide: usize) {
        let to = (self.amount.min(amount), self.wide.min(wide));
        if to == (self.amount, self.wide) {
            return;
        }
        let from = (self.amount, self.wide);
        (self.amount, self.wide) = to;
        let (payer, resource) = (&self.payer, self.resource);
        payer.tally.gives_back(resource, from.0 - to.0);
        payer.accounts.release(&payer.slots, resource, from, to);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

/// A place in a line.
struct Wait {
    number: u64,
    granted: Arc<Granted>,
    /// None: the caller has it.
    share: Option<Share>,
}

impl Drop for Wait {
    fn drop(&mut self) {
        let Some(mut share) = self.share.take() else { return };
        let (accounts, slots) = (share.payer.accounts.clone(), share.payer.slots);
        let mut state = accounts.state();
        let Some(Waiter { caller, .. }) = state.waiting[share.resource as usize].remove(&self.number) else {
            drop(state);
            let amount = self.granted.amount.load(Ordering::Acquire);
            (share.amount, share.wide) = (amount, amount); // returned when dropped
            return;
        };
        for (_, slot) in present(&slots) {
            state.leave(&caller, slot, share.resource);
        }
        share.payer.tally.waits_no_more(share.resource);
        // Callers behind it may find room at once.
        let served = accounts.serve(&mut state, &slots, share.resource);
        drop(state);
        served.iter().for_each(|granted| granted.waker.wake());
    }
}
