//! Bill: from whose accounts a call takes.
//!
//! Must not know: how much there is.

use crate::listener::auth::tokens::{Payer, Share};
use std::sync::{Arc, OnceLock};

/// From whose accounts a call takes, with its place among the streams. Empty until that is known. In the extensions of its
/// request, and held by its answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bill(Arc<OnceLock<Settled>>);

#[derive(Debug)]
struct Settled {
    payer: Arc<Payer>,
    _place: Place,
}

/// A call's place among the streams, and among those of calls that need no token where it is one.
pub(crate) type Place = (Share, Option<Share>);

impl Bill {
    /// None: it was not settled, and nothing of it is counted.
    pub(crate) fn payer(&self) -> Option<&Arc<Payer>> {
        self.0.get().map(|settled| &settled.payer)
    }

    /// The call takes from these accounts. Once: no call is let in twice.
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
