//! Jumps: the opening of a segment is lost that begins behind a jump, over entries that this replica never had.
//!
//! ```text
//!   k: ... | e |                      the file of before the jump: removed, and there again after a crash
//!   k+1: opening behind j | j+1 | ... what the log is, behind the jump; its opening is lost
//! ```
//!
//! The old file is no part of the log, and shows nothing of the opening: only an opening says that there was a jump. The repair takes that
//! file for the segment before, asks for the entries from its end on, and finds that they have no room before the first sound block. So the
//! segment began behind one of them. Its opening holds the state there, which follows from the old file and these entries.
//!
//! A jump is not the only reason: a segment between the two can be lost as well, or the end of the old one. Then entries and records would be
//! hidden that this replica may have acknowledged. So the opening is made again only if nothing before it counts any more, whatever
//! happened: the segment itself records that all entries before it are committed, and that all their records are discarded. It begins as
//! early as there is room for, so that entries which can have been in the gap are there again.
//!
//! Must not know: time, who is asked.

use crate::error::Result;
use crate::record::batch::Malformed;
use crate::replica::open::DamagedLog;
use crate::replica::repair::diagnosis::{state_before, state_behind, unlearnt};
use crate::replica::repair::offline::terms::with_state;
use crate::replica::state::sequencer::{Committed, Sequencer};
use crate::store::format::block::BlockHeader;
use crate::store::format::segment::HardState;
use crate::store::read::segment_files::SegmentFile;
use crate::store::recovery::gap::{BlockCopy, Gap};
use crate::store::segment::Base;

/// The bytes of a gap with a lost opening, if the segment began behind a jump. `spares` are all entries from [`Gap::first`] through the end
/// of the gap, and `state` is the hard state that the gap lost, as for [`Gap::fill`]. None: they have room, or something before the segment
/// can count.
///
/// # Errors
/// `Io`.
pub(super) fn fill_behind_jump(
    damaged: &DamagedLog,
    gap: &Gap,
    spares: &[BlockCopy],
    state: Option<HardState>,
) -> Result<Option<Vec<u8>>> {
    if !gap.is_opening() || gap.is_refuted() || gap.presumed().is_some() {
        return Ok(None);
    }
    let Some(mut sequencer) = state_before(damaged, gap)? else { return Ok(None) };
    let begins = |sequencer: &Sequencer, behind: &[BlockCopy]| {
        let opening = opening_behind_jump(damaged, sequencer).ok()?;
        gap.has_room_for(std::iter::once(&opening.0).chain(headers(behind))).then_some(opening)
    };
    if begins(&sequencer, spares).is_some() {
        return Ok(None);
    }
    // The footer of a full segment says where it begins, and its index where each entry is.
    let footer = SegmentFile::open(&*damaged.disk, gap.place.number)?.footer;
    let begins_there = |base: Base| footer.as_ref().is_none_or(|footer| Base::before(footer) == base);
    let mut found = None;
    for (n, (header, body)) in spares.iter().enumerate() {
        if sequencer.replay(header, &body.concat(), &damaged.options).is_err() {
            return Ok(None);
        }
        let behind = &spares[n + 1..];
        if found.is_none() && begins_there(sequencer.end()) && gap.has_room_for(headers(behind)) {
            found = begins(&sequencer, behind).map(|opening| (header, sequencer.end(), opening, behind));
        }
    }
    let Some((entry, base, opening, behind)) = found else { return Ok(None) };
    let sequencer = state_behind(damaged, gap, sequencer)?;
    let has_objects = sequencer.objects().has_begun();
    if base.raft > gap.latest_beginning() || has_objects || !counts_no_more(sequencer.committed(), base) {
        return Ok(None);
    }
    let filled = with_state(opening, state)
        .and_then(|opening| gap.moved_behind(entry).fill(Some(&opening), behind, state));
    if filled.is_ok() {
        tracing::warn!(
            segment = gap.place.number, entry = %base.raft,
            "a damaged segment began behind a jump: its opening is made again of entries of other replicas"
        );
    }
    Ok(filled.ok())
}

fn headers(blocks: &[BlockCopy]) -> impl Iterator<Item = &BlockHeader> {
    blocks.iter().map(|(header, _)| header)
}

/// Whether all entries before a segment are committed, and all their records discarded.
fn counts_no_more(committed: &Committed, base: Base) -> bool {
    base.raft <= committed.raft && base.next <= committed.first
}

/// The opening of a segment to which a replica jumps where another one has this state.
fn opening_behind_jump(damaged: &DamagedLog, state: &Sequencer) -> Result<BlockCopy, Malformed> {
    let block = state.opening();
    let mut jumped = unlearnt(damaged);
    jumped.jump(&block.header, &block.body.concat(), &damaged.options)?;
    let opening = jumped.opening();
    // A jump changes neither term nor vote.
    let HardState { term, vote, .. } = state.hard_state();
    with_state((opening.header, opening.body), Some(HardState { term, vote, commit: state.end().raft }))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::cluster::membership::Membership;
    use crate::options::Options;
    use crate::replica::state::sequencer::Owner;
    use crate::types::{EntryIndex, Index, NodeId, Term};

    /// Records and entries that can have been acknowledged are not hidden.
    #[test]
    fn only_what_is_committed_and_discarded_counts_no_more() {
        let sequencer = Sequencer::new(Owner::Node(NodeId(2)), Membership::default(), &Options::default());
        let state = |raft, first| {
            let (raft, first) = (EntryIndex(raft), Index(first));
            Committed { raft, first, ..sequencer.committed().clone() }
        };
        let base = Base { raft: EntryIndex(84), term: Term(2), next: Index(212) };
        for (raft, first, is_needed) in
            [(84, 212, false), (145, 269, false), (83, 212, true), (145, 211, true), (0, 1, true)]
        {
            assert_eq!(counts_no_more(&state(raft, first), base), !is_needed, "{raft}, {first}");
        }
    }
}
