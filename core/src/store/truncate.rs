//! Truncation: the effect on existing segments when a roll continues somewhere other than the log's end.
//!
//! ```text
//! truncation   | k ....B::::::| k+1 ::::| k+2 :::|      base B inside the log: `:` is dead
//!              | k ....|                            n |   k is cut to B, k+1 and k+2 leave, n begins at B
//! jump         | k ....| k+1 ....|                        base J beyond it, or on another past
//!                                                   n |   all leave, n begins at J
//! ```
//!
//! The files do not change: older blocks are dead because the new segment begins before they end. Files are removed
//! only after the new segment has durably begun; until then a crash restores the old end.
//!
//! Invariant: only a segment that is planned to begin elsewhere ([`Begins`]) makes anything dead. All others begin where the files end.

use super::read::entry_lookup::Archive;
use super::segment::{Base, Extent, Segment, Segments};
use crate::error::Result;
use crate::types::EntryIndex;
use std::sync::Arc;

/// Where a segment is planned to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begins {
    /// Where the log ends: no earlier block changes.
    AtTheEnd,
    /// Where a conflict truncates the log, or behind entries that are skipped.
    Elsewhere,
}

/// The changes that take effect once the next segment's opening is written, and finish once that is durable.
#[derive(Debug, Default)]
pub(crate) struct Truncation {
    /// The segment that contains the new end, and its extent from then on, if that is shorter.
    pub(crate) cut: Option<(Arc<Segment>, Extent)>,
    /// The segment to seal: the last one before the next one, if it has grown or was cut.
    pub(crate) seal: Option<Arc<Segment>>,
    /// Segments whose entries are all after the new end.
    pub(crate) dead: Vec<Arc<Segment>>,
}

impl Truncation {
    /// Plans to continue at `base`. `active` is the growing segment; all of it is durable.
    ///
    /// # Panics
    /// The segment begins elsewhere, and was not planned to: what is behind it would be taken to be dead.
    ///
    /// # Errors
    /// `Corrupt`, `Io`: the log could not be read at `base`.
    pub(crate) fn plan(
        segments: &Arc<Segments>,
        active: &Arc<Segment>,
        (base, begins): (Base, Begins),
        committed: EntryIndex,
    ) -> Result<Self> {
        if base == active.end() || planted!(6) {
            return Ok(Self { seal: Some(active.clone()), ..Self::default() });
        }
        assert!(
            begins == Begins::Elsewhere,
            "a segment was to begin where the log ends, at {:?}, and begins at {base:?}: files would be removed",
            active.end()
        );
        assert!(base.raft >= committed, "the log would lose committed entries");
        let archive = Archive::new(segments.clone());
        if archive.term(base.raft)? != Some(base.term) {
            return Ok(Self { dead: segments.snapshot(), ..Self::default() });
        }
        let (dead, kept): (Vec<_>, Vec<_>) =
            segments.snapshot().into_iter().partition(|s| s.base.raft >= base.raft);
        let mut truncation = Self { dead, ..Self::default() };
        if let Some(holding) = kept.last().filter(|s| s.end() != base) {
            let extent = archive.cut(holding, base)?;
            truncation.cut = Some((holding.clone(), extent));
            truncation.seal = Some(holding.clone());
        }
        Ok(truncation)
    }
}
