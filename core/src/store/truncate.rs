//! Turn: what a roll to somewhere else than the log's end does to the segments behind it.
//!
//! ```text
//! truncation   | k ....B::::::| k+1 ::::| k+2 :::|      base B inside the log: `:` is dead
//!              | k ....|                            n |   k is cut to B, k+1 and k+2 leave, n begins at B
//! jump         | k ....| k+1 ....|                        base J beyond it, or on another past
//!                                                   n |   all leave, n begins at J
//! ```
//!
//! Nothing in the files changes: that the new segment begins before older blocks end is what says that these are
//! dead. Files go only after the new segment has durably begun; until then a crash brings the old end back.

use super::read::entry_lookup::Archive;
use super::segment::{Base, Extent, Segment, Segments};
use crate::error::Result;
use crate::types::EntryIndex;
use std::sync::Arc;

/// What changes once the next segment's opening is written, and is done once that is durable.
#[derive(Debug, Default)]
pub(crate) struct Truncation {
    /// What the segment that holds the new end holds from then on, if that is less.
    pub(crate) cut: Option<(Arc<Segment>, Extent)>,
    /// To be sealed: the last segment before the next one, if it has grown or was cut.
    pub(crate) seal: Option<Arc<Segment>>,
    /// All of whose entries lie behind the new end.
    pub(crate) dead: Vec<Arc<Segment>>,
}

impl Truncation {
    /// Plans to go on at `base`. `active` is the segment that grows; all of it is durable.
    ///
    /// # Errors
    /// `Corrupt`, `Io`: the log could not be read to find the place.
    pub(crate) fn plan(
        segments: &Arc<Segments>,
        active: &Arc<Segment>,
        base: Base,
        committed: EntryIndex,
    ) -> Result<Self> {
        if base == active.end() || planted!(6) {
            return Ok(Self { seal: Some(active.clone()), ..Self::default() });
        }
        assert!(base.raft >= committed, "the log would forget committed entries");
        let archive = Archive::new(segments.clone());
        if archive.term(base.raft)? != Some(base.term) {
            return Ok(Self { dead: segments.snapshot(), ..Self::default() });
        }
        let (dead, kept): (Vec<_>, Vec<_>) =
            segments.snapshot().into_iter().partition(|s| s.base.raft >= base.raft);
        let mut turn = Self { dead, ..Self::default() };
        if let Some(holding) = kept.last().filter(|s| s.end() != base) {
            let extent = archive.cut(holding, base)?;
            turn.cut = Some((holding.clone(), extent));
            turn.seal = Some(holding.clone());
        }
        Ok(turn)
    }
}
