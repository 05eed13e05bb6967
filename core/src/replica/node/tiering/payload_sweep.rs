//! Payload sweep: a leader deletes payload slices that objects have made unneeded, and leftovers of other leaders.
//!
//! Invariants:
//! - a slice is deleted only if no entry behind the stored objects refers to it, or can ever refer to it (P3): it is before the first
//!   slice to which such an entry of the leader's log refers, and before all that this leader may still refer to. The leader has
//!   committed an entry of its own term, so every later leader has all entries of earlier terms that can still be committed;
//! - payload of an object that may have to be made again stays, and so does all later payload. Nothing is deleted before it is known which
//!   objects these are.
//!
//! Must not know: the network, which object store it is.

use super::super::Node;
use super::jobs::Job;
use super::payload_jobs::Sweep;
use crate::error::{ErrorKind, Result};
use crate::options::log_options::LogOption;
use crate::record::reference::PayloadId;
use crate::sync::clock::Moment;
use crate::types::EntryIndex;
use std::time::Duration;

/// How often slices are looked for that a leader has left behind, and how soon a failed deletion is tried again.
const SWEEP_EVERY: Duration = Duration::from_secs(3600);
const SWEEP_RETRY: Duration = Duration::from_secs(60);

impl Node {
    /// Whether payload slices may have become unneeded: up to which entry objects have everything, and the last entry. None: nothing is to
    /// be deleted now.
    fn sweepable(&self, now: Moment) -> Option<(EntryIndex, EntryIndex)> {
        let gate = &self.tiering.payloads;
        let committed = self.replica.sequencer.committed();
        committed.options.get(LogOption::PayloadSlices)?;
        let (stored, oldest) =
            (committed.objects.stored_end().map(|end| end.raft), self.writer.archive.first().raft);
        // As long as an object may have to be made again, payload of its entries and of later ones stays. If they have left the files
        // here, another replica may have them, and which payload is theirs is not to be seen here.
        let stored = match self.first_suspect() {
            Some(begin) if begin.raft < oldest => return None,
            Some(begin) => stored.map(|stored| stored.min(begin.raft)),
            None => stored,
        };
        // Without a stored object slices of entries lead to the log: from an object whose records are discarded, or from the one that
        // begins with the log's state. Most of those before that state go first: a fetch by an earlier chiplog follows the former.
        let leads = stored.is_some() || planted!(125) || self.slices_lead_from(oldest);
        let behind = stored.unwrap_or_default().max(oldest);
        let is_due = gate.sweep_at <= now || gate.swept.is_none_or(|swept| swept < behind);
        // Blocks that were released and are not written yet are neither here nor in the files.
        let upto = self.writer.written().end.raft;
        let is_settled = self.items.is_empty() && upto == self.replica.sequencer.end().raft;
        // A put that checks the term has the slices of this leader to itself.
        let is_clear = gate.has_clear_term();
        let may = is_due && is_settled && leads && is_clear;
        // Payload of an earlier term may be all that the object store has of appends, until it has an entry of this one (P7).
        let leads = self.kept_payload().is_some();
        (may && leads && self.replica.has_committed_in_its_term()).then_some((behind, upto))
    }

    /// The first payload slice of this term that says where payload goes on. None: those of earlier terms may.
    fn kept_payload(&self) -> Option<Option<PayloadId>> {
        let sliced = self.tiering.slices.sliced().map(|sliced| sliced.end);
        let end = sliced.or(self.replica.sequencer.committed().objects.stored_end())?;
        self.tiering.payloads.placement.keeps_payload_from(end.raft)
    }

    /// The job that deletes payload slices that are not needed any more (P3). None: nothing is to be deleted now.
    pub(super) fn sweep_payloads(&self, now: Moment) -> Option<Job> {
        let (behind, upto) = self.sweepable(now)?;
        let (vault, log, archive) =
            (self.tiering.vault.clone()?, self.tiering.log, self.writer.archive.clone());
        let below = self.tiering.payloads.next_referred(self.replica.term());
        let below = self.kept_payload()?.map_or(below, |kept| kept.min(below));
        let unaided = self.tiering.unaided;
        let of_others = (!self.tiering.payloads.has_checked_term()).then(|| self.replica.term());
        Some(Job::SweepPayloads(Sweep { vault, log, archive, behind, upto, below, of_others, unaided }))
    }

    /// Payload slices were deleted, those of entries up to `behind`: all of them, or some.
    pub(super) fn end_payload_sweep(&mut self, behind: EntryIndex, result: Result<bool>, now: Moment) {
        let gate = &mut self.tiering.payloads;
        let again = match result {
            Ok(true) => {
                gate.swept = Some(behind);
                SWEEP_EVERY
            }
            Ok(false) => Duration::ZERO,
            // A put has begun meanwhile, and has checked the term itself.
            Err(error) if error.kind() == ErrorKind::Diverged && gate.has_checked_term() => SWEEP_RETRY,
            Err(error) => {
                let path = self.tiering.path.display();
                tracing::warn!(%path, %error, "payload slices that are not needed cannot be deleted; it is tried again");
                gate.swept = Some(behind);
                SWEEP_RETRY
            }
        };
        gate.sweep_at = now.plus(again);
    }

    /// When payload slices are to be deleted.
    pub(super) fn payload_sweep_due(&self, now: Moment) -> Option<Moment> {
        if self.awaits_suspects() {
            return None;
        }
        let at = self.tiering.payloads.sweep_at;
        self.sweepable(now.max(at)).map(|_| if self.sweepable(now).is_some() { now } else { at })
    }
}
