//! Ledger: the shares of an append's messages, from the gate that lets them in to the service that answers them.
//!
//! Invariant: the n-th entry of an append's ledger is the share of its n-th message. Only appends have entries.
//!
//! Must not know: bodies, accounts.

use crate::listener::auth::tokens::Share;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A message's share of the budget; empty for a call that pays nothing. Returned when dropped.
#[derive(Debug, Default)]
pub(crate) struct Held(Option<Share>);

impl Held {
    pub(super) fn new(share: Option<Share>) -> Self {
        Self(share)
    }

    /// Reduces it once the message is in the log's queue: its connection still holds all of it, the accounts that it
    /// shares with others hold one piece.
    pub(crate) fn queued(mut self) -> Self {
        self.0.iter_mut().for_each(Share::keep_to_connection);
        self
    }

    /// Reduces it to one piece, once only the answer is kept.
    pub(crate) fn answered(mut self) -> Self {
        self.0.iter_mut().for_each(|share| share.shrink(1));
        self
    }

    #[cfg(test)]
    pub(super) fn amount(&self) -> Option<usize> {
        self.0.as_ref().map(Share::amount)
    }
}

/// The shares of an append's messages that have arrived and are not claimed. Empty for other calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger(Arc<Mutex<VecDeque<Held>>>);

impl Ledger {
    /// Takes the share of the next message.
    pub(crate) fn claim(&self) -> Held {
        self.shares().pop_front().unwrap_or_default()
    }

    pub(super) fn enter(&self, held: Held) {
        self.shares().push_back(held);
    }

    pub(super) fn shares(&self) -> MutexGuard<'_, VecDeque<Held>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
