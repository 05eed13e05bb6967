//! Outcome: how what became of a batch reaches those who wait for its records. One a batch, not one a record.
//!
//! Invariants:
//! - The result is set once and stays.
//! - No foreign code runs while the lock is held.
//! - A delivery is heard when its result was taken, of it or of a twin. Of a batch that failed, each one that is not heard
//!   counts as untold, also while it is held.

use super::untold::{Cause, Held, Untold};
use chiplog::{Error, Index, Result};
use slab::Slab;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

/// What becomes of one batch.
#[derive(Debug, Default)]
pub(crate) struct Outcome(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Index of the batch's first record.
    result: Option<Result<Index>>,
    /// Of each delivery that was polled and is not dropped.
    wakers: Slab<Waker>,
    /// Of each record, or batch, with a delivery: how many of those are not dropped, and how many records it is of; none,
    /// once its result was taken. Empty once the batch is in the log.
    deliveries: Vec<(u32, u32)>,
    /// Those that are neither dropped nor heard, of a batch that failed.
    held: Option<Held>,
}

impl State {
    /// The result of delivery `nth` was taken.
    fn heard(&mut self, nth: usize) -> Option<Arc<Untold>> {
        let (_, records) = self.deliveries.get_mut(nth).filter(|_| self.held.is_some())?;
        let records = std::mem::take(records);
        self.held.as_mut()?.heard(records.into())
    }

    /// A delivery is dropped.
    fn dropped(&mut self, nth: usize) -> Option<Arc<Untold>> {
        let (deliveries, records) = self.deliveries.get_mut(nth)?;
        *deliveries -= 1;
        if *deliveries > 0 {
            return None;
        }
        let held = self.held.as_mut()?;
        held.lost(std::mem::take(records).into())
    }
}

impl Outcome {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The batch failed, and nobody is woken yet. `silent`: records of it that have no delivery, and nobody to tell. How
    /// many of its records count as untold now.
    pub(crate) fn fail(&self, why: &Error, cause: Cause, silent: u64, untold: &Arc<Untold>) -> u64 {
        let mut state = self.state();
        if state.result.is_some() {
            return 0;
        }
        let (mut lost, mut held) = (silent, 0);
        for (deliveries, records) in &mut state.deliveries {
            if *deliveries == 0 {
                lost += u64::from(std::mem::take(records));
            } else {
                held += u64::from(*records);
            }
        }
        state.held = untold.add(cause, lost, held, why);
        state.result = Some(Err(why.clone()));
        lost + held
    }

    /// Tells what became of the batch, unless that is known, and wakes those who wait.
    pub(crate) fn set(&self, result: Result<Index>) {
        let wakers = {
            let mut state = self.state();
            state.result.get_or_insert(result);
            if state.held.is_none() {
                state.deliveries = Vec::new();
            }
            std::mem::take(&mut state.wakers)
        };
        wakers.into_iter().for_each(|(_, waker)| waker.wake());
    }
}

/// The outcome of one record: a future of its index. It may be dropped: the record is appended all the same. A record that
/// fails and whose result nobody takes, by waiting for it or by [`try_result`](Self::try_result), counts as one that nobody
/// was told of: the producer's flush or close tells of it. A clone is of the same record.
///
/// Its error can be `SequenceForgotten`: the record **is in the log**, once; only where is no longer known. And
/// `Timeout` or `Closed`: it may be in the log or not.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/support/serve.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_dir, address) = serve().await?;
/// # let client = chiplog_net::client::Client::connect([address], Default::default()).await?;
/// let producer = client.producer(Default::default()).await?;
/// let one = producer.append(b"one").await?;
/// let two = producer.append(b"two").await?; // both are under way
/// assert_eq!(one.await?.next(), two.await?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "without the delivery's result it is unknown whether the record was appended"]
pub struct Delivery {
    outcome: Arc<Outcome>,
    offset: u32,
    /// Which one it is of those of its batch that have a delivery.
    nth: usize,
    slot: Option<usize>,
}

impl Delivery {
    /// Of `records` records, the first of which is at `offset` in its batch.
    pub(crate) fn new(outcome: Arc<Outcome>, offset: u32, records: u32) -> Self {
        let mut state = outcome.state();
        let nth = state.deliveries.len();
        state.deliveries.push((1, records));
        drop(state);
        Self { outcome, offset, nth, slot: None }
    }

    /// The result, if there is one yet. Never waits.
    pub fn try_result(&self) -> Option<Result<Index>> {
        let mut state = self.outcome.state();
        let result = state.result.clone()?;
        let over = state.heard(self.nth);
        drop(state);
        log(over);
        Some(result.map(|first| first.plus(self.offset.into())))
    }

    /// Ready once there is a result, which is not taken: a record that failed still counts as one that nobody was told of.
    pub fn settled(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut twin = self.clone();
        poll_fn(move |context| twin.poll_with(context, |_, _| ()))
    }

    /// Once there is a result, calls `found` under the lock.
    fn poll_with<T>(
        &mut self,
        context: &mut Context<'_>,
        found: impl FnOnce(&mut State, Result<Index>) -> T,
    ) -> Poll<T> {
        let waker = context.waker().clone();
        let mut state = self.outcome.state();
        if let Some(result) = state.result.clone() {
            return Poll::Ready(found(&mut state, result));
        }
        let replaced = match self.slot {
            Some(slot) => Some(std::mem::replace(&mut state.wakers[slot], waker)),
            None => {
                self.slot = Some(state.wakers.insert(waker));
                None
            }
        };
        drop(state);
        drop(replaced);
        Poll::Pending
    }
}

impl Clone for Delivery {
    fn clone(&self) -> Self {
        if let Some((deliveries, _)) = self.outcome.state().deliveries.get_mut(self.nth) {
            *deliveries += 1;
        }
        Self { outcome: self.outcome.clone(), offset: self.offset, nth: self.nth, slot: None }
    }
}

impl Future for Delivery {
    type Output = Result<Index>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (nth, offset) = (self.nth, self.offset);
        let (result, over) = ready!(self.poll_with(context, |state, result| (result, state.heard(nth))));
        log(over);
        Poll::Ready(result.map(|first| first.plus(offset.into())))
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let mut state = self.outcome.state();
        let over = state.dropped(self.nth);
        // None: it was never polled, or was woken.
        let waker = self.slot.and_then(|slot| state.wakers.try_remove(slot));
        drop(state);
        drop(waker);
        log(over);
    }
}

/// Tells of what was lost of a batch, of which nothing is held any more.
fn log(over: Option<Arc<Untold>>) {
    if let Some(untold) = over {
        untold.log();
    }
}
