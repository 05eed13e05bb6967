//! Call places: how many calls of one kind run at a time, in all and of one token.
//!
//! Invariant: calls with one token have no more places than its share. The others are for calls with other tokens.
//!
//! Must not know: tokens, services.

use crate::served::caller::{Caller, Identity};
use chiplog::{Error, ErrorKind};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// When a call that is refused should be made again: a few of those that run have ended by then.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// The places of calls of one kind.
#[derive(Debug)]
pub(crate) struct CallPlaces {
    all: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// Those of each token that has any.
    of: HashMap<Identity, usize>,
}

/// The place of one call, until it is dropped.
#[derive(Debug)]
pub(crate) struct CallPlace {
    places: Arc<CallPlaces>,
    of: Option<Identity>,
}

impl CallPlaces {
    pub(crate) fn new(all: usize) -> Arc<Self> {
        Arc::new(Self { all, taken: Mutex::default() })
    }

    /// Takes a place for a call, if there is one. `share_percent`: the part of all that one token may have, but at least one. `what`: what
    /// these calls do, for the error.
    ///
    /// # Errors
    /// `Busy`, with a time after which to try again: all places are taken, or those of the token.
    pub(crate) fn take(
        self: &Arc<Self>,
        caller: &Caller,
        share_percent: u8,
        what: &str,
    ) -> Result<CallPlace, Error> {
        let of = caller.identity();
        let mut taken = self.taken();
        if let Some(of) = of {
            let percent = usize::from(share_percent.clamp(1, 100));
            let share = (self.all / 100 * percent + self.all % 100 * percent / 100).max(1);
            let own = taken.of.get(&of).copied().unwrap_or(0);
            if own >= share {
                drop(taken);
                caller.refused_its_share();
                return Err(busy(format!(
                    "{own} calls with this token already {what}, its share of {}; try again later",
                    self.all
                )));
            }
        }
        if taken.all >= self.all {
            return Err(busy(format!("{} calls already {what}; try again later", self.all)));
        }
        taken.all += 1;
        if let Some(of) = of {
            *taken.of.entry(of).or_default() += 1;
        }
        drop(taken);
        Ok(CallPlace { places: self.clone(), of })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CallPlace {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.all -= 1;
        if let Some(of) = self.of
            && let Some(own) = taken.of.get_mut(&of)
        {
            *own -= 1;
            if *own == 0 {
                taken.of.remove(&of);
            }
        }
    }
}

fn busy(what: String) -> Error {
    Error::retry_in(ErrorKind::Busy, what, RETRY_AFTER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::served::refusals::{Refusal, Refusals};
    use crate::served::scope::Scope;

    #[test]
    fn one_token_leaves_places_for_others() {
        let refusals = Arc::<Refusals>::default();
        let caller = |token| Caller::new("/a/B", [token; 32], Scope::default(), false, refusals.clone());
        let places = CallPlaces::new(8);
        let take = |caller: &Caller| places.take(caller, 25, "run");
        let one: Vec<_> = (0..2).map(|_| take(&caller(1)).unwrap()).collect();
        let error = take(&caller(1)).unwrap_err();
        assert_eq!(
            (error.kind(), error.retry_after(), refusals.read(Refusal::CallsOfToken)),
            (ErrorKind::Busy, Some(RETRY_AFTER), 1)
        );
        assert!(error.to_string().contains("2 calls with this token already run"), "{error}");
        let others: Vec<_> = (2..5).flat_map(|token| [token; 2]).map(|t| take(&caller(t)).unwrap()).collect();
        // Now all are taken.
        let error = take(&caller(5)).unwrap_err();
        assert!(error.to_string().contains("8 calls already run"), "{error}");
        assert_eq!((error.retry_after(), refusals.read(Refusal::CallsOfToken)), (Some(RETRY_AFTER), 1));
        drop((one, others));
        drop((take(&caller(1)).unwrap(), take(&caller(1)).unwrap()));
        assert!(places.taken().of.is_empty() && places.taken().all == 0);
    }

    #[test]
    fn calls_without_a_token_and_a_share_of_all_have_all_places() {
        let places = CallPlaces::new(3);
        let held: Vec<_> = (0..3).map(|_| places.take(&Caller::default(), 25, "run").unwrap()).collect();
        assert!(places.take(&Caller::default(), 25, "run").is_err());
        drop(held);
        let caller = Caller::new("/a/B", [1; 32], Scope::default(), false, Arc::default());
        let held: Vec<_> = (0..3).map(|_| places.take(&caller, 100, "run").unwrap()).collect();
        drop(held);
        let _one = places.take(&caller, 1, "run").unwrap();
        assert!(places.take(&caller, 1, "run").is_err());
    }
}
