//! Bill: the accounts that a call uses.
//!
//! Must not know: the limits.

use crate::listener::auth::tokens::{Payer, Share};
use std::sync::{Arc, OnceLock};

/// The accounts that a call uses, and its place among the streams. Empty until they are known. Stored in the extensions
/// of its request, and held by its answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bill(Arc<OnceLock<Settled>>);

#[derive(Debug)]
struct Settled {
    payer: Arc<Payer>,
    _place: Place,
}

/// A call's place among the streams, and among the tokenless calls if it is one.
pub(crate) type Place = (Share, Option<Share>);

impl Bill {
    /// None: it was not settled, and nothing of the call is counted.
    pub(crate) fn payer(&self) -> Option<&Arc<Payer>> {
        self.0.get().map(|settled| &settled.payer)
    }

    /// Sets the call's accounts. Called once: no call is let in twice.
    pub(crate) fn settle(&self, payer: &Arc<Payer>, place: Place) {
        let _ = self.0.set(Settled { payer: payer.clone(), _place: place });
    }

    #[cfg(test)]
    pub(crate) fn of(payer: &Arc<Payer>) -> Self {
        use crate::listener::auth::tokens::Resource;
        let bill = Self::default();
        let _place = (payer.nothing(Resource::Streams), None);
        bill.0.set(Settled { payer: payer.clone(), _place }).unwrap();
        bill
    }
}
