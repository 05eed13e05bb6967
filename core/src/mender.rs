//! Mender: gathers the entries that belong into a wound, from whoever has them. Pure: told the time, it says whom to
//! ask for what.
//!
//! One peer is asked at a time; who does not answer in time loses its turn, and who answers is asked on.
//!
//! Must not know: files, raft.

use crate::fetch::Fetch;
use crate::moment::Moment;
use crate::store::wound::{Spare, Wound};
use crate::types::{NodeId, RaftIndex};
use std::time::Duration;

/// A wound, and what has come for it.
#[derive(Debug)]
pub(crate) struct Mender {
    pub(crate) wound: Wound,
    /// The entries from the first that is missing on.
    spares: Vec<Spare>,
    /// Whose turn it is, and until when.
    turn: usize,
    until: Option<Moment>,
    patience: Duration,
    bytes_max: u32,
}

impl Mender {
    /// Nothing is there yet. A peer has `patience` to answer.
    pub(crate) fn new(wound: Wound, patience: Duration, bytes_max: u32) -> Self {
        Self { wound, spares: Vec::new(), turn: 0, until: None, patience, bytes_max }
    }

    /// The next entry that is missing; None when all are there.
    pub(crate) fn missing(&self) -> Option<RaftIndex> {
        let next = self.spares.last().map_or(self.wound.first(), |(h, _)| h.raft_index.next());
        (next <= self.wound.upto).then_some(next)
    }

    /// The entries, when all are there.
    pub(crate) fn spares(&self) -> &[Spare] {
        &self.spares
    }

    /// When [`Self::ask`] wants to be called again.
    pub(crate) fn deadline(&self, now: Moment) -> Moment {
        self.until.unwrap_or(now)
    }

    /// Whom to ask for what, if it is time to.
    pub(crate) fn ask(&mut self, now: Moment, peers: &[NodeId]) -> Option<(NodeId, Fetch)> {
        let first = self.missing()?;
        if self.until.is_some_and(|until| now < until) {
            return None;
        }
        if self.until.is_some() {
            self.turn = self.turn.wrapping_add(1); // no answer
        }
        self.until = Some(now.plus(self.patience));
        let peer = *peers.get(self.turn % peers.len().max(1))?;
        let (last, anchor, bytes_max) = (self.wound.upto, self.wound.anchor, self.bytes_max);
        Some((peer, Fetch { first, last, anchor, bytes_max }))
    }

    /// Takes what came, as far as it is missing. Who sent it may be asked on at once.
    pub(crate) fn take(&mut self, spares: impl IntoIterator<Item = Spare>) {
        for (header, body) in spares {
            if self.missing() == Some(header.raft_index) {
                self.spares.push((header, body));
                self.until = None;
            }
        }
    }
}
