//! Outcome: how what became of a batch reaches those who wait for its records. One a batch, not one a record.
//!
//! Invariants:
//! - The result is set once and stays.
//! - No foreign code runs while the lock is held.

use chiplog::{Index, Result};
use slab::Slab;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// What becomes of one batch.
#[derive(Debug, Default)]
pub(crate) struct Outcome(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Index of the batch's first record.
    result: Option<Result<Index>>,
    /// Of each delivery that was polled and is not dropped.
    wakers: Slab<Waker>,
    /// Of each record, or batch, with a delivery: how many of those are not dropped, and how many records it is of.
    deliveries: Vec<(u32, u32)>,
}

impl Outcome {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of so many records the deliveries are dropped: nobody hears what becomes of them.
    pub(crate) fn unheard(&self) -> u64 {
        let state = self.state();
        let dropped = state.deliveries.iter().filter(|(deliveries, _)| *deliveries == 0);
        dropped.map(|(_, records)| u64::from(*records)).sum()
    }

    pub(crate) fn set(&self, result: Result<Index>) {
        let wakers = {
            let mut state = self.state();
            state.result.get_or_insert(result);
            state.deliveries = Vec::new();
            std::mem::take(&mut state.wakers)
        };
        wakers.into_iter().for_each(|(_, waker)| waker.wake());
    }
}

/// What becomes of one record: a future of its index. It may be dropped: the record is appended all the same, and one that
/// fails then is told of by the producer's flush or close.
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
#[must_use = "a delivery that nobody asks leaves it unknown whether the record was appended"]
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

    /// Another one of the same record.
    pub(crate) fn twin(&self) -> Self {
        if let Some((deliveries, _)) = self.outcome.state().deliveries.get_mut(self.nth) {
            *deliveries += 1;
        }
        Self { outcome: self.outcome.clone(), offset: self.offset, nth: self.nth, slot: None }
    }

    /// The result, if there is one yet. Never waits.
    pub fn try_result(&self) -> Option<Result<Index>> {
        let result = self.outcome.state().result.clone()?;
        Some(result.map(|first| first.plus(self.offset.into())))
    }
}

impl Future for Delivery {
    type Output = Result<Index>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let waker = context.waker().clone();
        let delivery = &mut *self;
        let mut state = delivery.outcome.state();
        if let Some(result) = &state.result {
            return Poll::Ready(result.clone().map(|first| first.plus(delivery.offset.into())));
        }
        let replaced = match delivery.slot {
            Some(slot) => Some(std::mem::replace(&mut state.wakers[slot], waker)),
            None => {
                delivery.slot = Some(state.wakers.insert(waker));
                None
            }
        };
        drop(state);
        drop(replaced);
        Poll::Pending
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let mut state = self.outcome.state();
        if let Some((deliveries, _)) = state.deliveries.get_mut(self.nth) {
            *deliveries -= 1;
        }
        // None: it was never polled, or was woken.
        let waker = self.slot.and_then(|slot| state.wakers.try_remove(slot));
        drop(state);
        drop(waker);
    }
}
