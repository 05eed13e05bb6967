//! Delivery: passes the result of a batch to the futures of its records. There is one per batch, not one per record.
//!
//! Invariants:
//! - The result is set once and never changes.
//! - No foreign code runs while the lock is held.
//! - A delivery is reported when its result was taken, from it or from a clone. In a failed batch, each delivery that
//!   is not reported counts as unreported, also while it is held.

use super::unreported::{Cause, Held, Unreported};
use chiplog::{Appended, Durability, Error, Index, Result};
use slab::Slab;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

/// Some records of a batch.
pub(crate) fn part(batch: Appended, offset: u32, count: u32) -> Appended {
    Appended { first: batch.first.plus(offset.into()), count, ..batch }
}

/// The result of one batch.
#[derive(Debug, Default)]
pub(crate) struct BatchResult(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The batch's place.
    result: Option<Result<Appended>>,
    /// The waker of each delivery that was polled and is not dropped.
    wakers: Slab<Waker>,
    /// For each record, or batch, with a delivery: the number of its deliveries that are not dropped, and the number of
    /// its records, 0 once its result was taken. Empty once the batch is in the log.
    deliveries: Vec<(u32, u32)>,
    /// The deliveries of a failed batch that are neither dropped nor reported.
    held: Option<Held>,
}

impl State {
    /// The result of delivery `nth` was taken.
    fn reported(&mut self, nth: usize) -> Option<Arc<Unreported>> {
        let (_, records) = self.deliveries.get_mut(nth).filter(|_| self.held.is_some())?;
        let records = std::mem::take(records);
        self.held.as_mut()?.reported(records.into())
    }

    /// A delivery is dropped.
    fn dropped(&mut self, nth: usize) -> Option<Arc<Unreported>> {
        let (deliveries, records) = self.deliveries.get_mut(nth)?;
        *deliveries -= 1;
        if *deliveries > 0 {
            return None;
        }
        let held = self.held.as_mut()?;
        held.lost(std::mem::take(records).into())
    }
}

impl BatchResult {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the batch as failed; wakes nobody yet. `silent`: its records without a delivery or callback. Returns how
    /// many of its records now count as unreported.
    pub(crate) fn fail(&self, why: &Error, cause: Cause, silent: u64, unreported: &Arc<Unreported>) -> u64 {
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
        state.held = unreported.add(cause, lost, held, why);
        state.result = Some(Err(why.clone()));
        lost + held
    }

    /// Sets the batch's result, unless it is set, and wakes the waiting tasks.
    pub(crate) fn set(&self, result: Result<Appended>) {
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

/// A future of one record's index. It may be dropped: the record is appended all the same. If a record fails and its
/// result is not taken, by awaiting it or by [`try_result`](Self::try_result), the record counts as unreported: the
/// producer's flush or close reports it. A clone belongs to the same record.
///
/// The error `SequenceForgotten` means that the record **is in the log**, once; only its index is no longer known.
/// After `Timeout` or `Closed` the record may be in the log or not.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/support/serve.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_dir, address) = serve().await?;
/// # let client = chiplog_net::client::Client::connect([address], Default::default()).await?;
/// let producer = client.producer(Default::default()).await?;
/// let one = producer.append(b"one").await?;
/// let two = producer.append(b"two").await?; // both are in flight
/// assert_eq!(one.await?.next(), two.await?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "without the delivery's result it is unknown whether the record was appended"]
pub struct Delivery {
    outcome: Arc<BatchResult>,
    offset: u32,
    /// Its number among the deliveries of its batch.
    nth: usize,
    slot: Option<usize>,
}

impl Delivery {
    /// A delivery of `records` records; the first one is at `offset` in its batch.
    pub(crate) fn new(outcome: Arc<BatchResult>, offset: u32, records: u32) -> Self {
        let mut state = outcome.state();
        let nth = state.deliveries.len();
        state.deliveries.push((1, records));
        drop(state);
        Self { outcome, offset, nth, slot: None }
    }

    /// Returns the result, if there is one yet. Never blocks.
    pub fn try_result(&self) -> Option<Result<Index>> {
        let mut state = self.outcome.state();
        let result = state.result.clone()?;
        let over = state.reported(self.nth);
        drop(state);
        log(over);
        Some(result.map(|batch| part(batch, self.offset, 1).first))
    }

    /// How durable the record was when it was acknowledged. `None`: it has no result yet, it has failed, or the server is
    /// of an earlier version and does not tell. Never blocks, and takes no result.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/support/serve.rs"));
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_dir, address) = serve().await?;
    /// # let client = chiplog_net::client::Client::connect([address], Default::default()).await?;
    /// use chiplog::Durability;
    /// let producer = client.producer(Default::default()).await?;
    /// let mut delivery = producer.append(b"record").await?;
    /// (&mut delivery).await?;
    /// assert_eq!(delivery.durability(), Some(Durability::Majority)); // the servers have no object store
    /// # Ok(())
    /// # }
    /// ```
    pub fn durability(&self) -> Option<Durability> {
        match &self.outcome.state().result {
            Some(Ok(batch)) => batch.durability,
            _ => None,
        }
    }

    /// Ready once there is a result. Does not take it: a failed record still counts as unreported.
    pub fn settled(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut twin = self.clone();
        poll_fn(move |context| twin.poll_with(context, |_, _| ()))
    }

    /// Calls `found` under the lock once there is a result.
    fn poll_with<T>(
        &mut self,
        context: &mut Context<'_>,
        found: impl FnOnce(&mut State, Result<Appended>) -> T,
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
        let (result, over) = ready!(self.poll_with(context, |state, result| (result, state.reported(nth))));
        log(over);
        Poll::Ready(result.map(|batch| part(batch, offset, 1).first))
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

/// Logs a failed batch's unreported records, once none of its deliveries is held any more.
fn log(over: Option<Arc<Unreported>>) {
    if let Some(unreported) = over {
        unreported.log();
    }
}
