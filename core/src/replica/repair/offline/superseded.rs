//! Superseded entries: the entries of a gap were never committed, and the log continues with the committed ones
//! instead.
//!
//! Damaged entries may never have been committed: another leader may have followed the one that sent them, and the
//! entries of that leader are the committed ones. Then no replica has the lost entries, and those of the others do not
//! fit. So the others are asked for the committed entries from the one before the gap through the one at its end
//! ([`Gap::rivals`]), as far as the cluster has committed any. Request and answer have types of their own: the answer
//! to another request can hold uncommitted entries, and is only a reason to ask. Terms never decrease along a log. So a
//! committed entry of a later term, at the end of the gap or before it, shows that the entry at the end was superseded,
//! and so were all entries after it ([`Gap::is_contradicted_by`]). Each leader commits an entry of its own term
//! first, so an idle cluster has such an entry too.
//!
//! The log then continues in a new segment, as at a conflict: its opening is at the position where the gap begins, and
//! all blocks after that position in older segments are dead. So no segment after the gap may hold acknowledged
//! entries. A gap that spans an earlier truncation ends where the next live segment begins, not at a dead block after
//! it (`Probe`). Nothing is replaced while a segment after it may not be superseded together with the gap's end
//! ([`Gap::goes_with`]). The committed entries that the gap may have held are restored too, because this replica may
//! have acknowledged them. The others remember how far this replica was in the old term, so it continues in a newer
//! one, which is learnt as for a lost hard state.
//!
//! Must not know: time, who is asked.

use crate::cluster::options::ClusterOptions;
use crate::error::{Error, Result};
use crate::record::batch::Malformed;
use crate::replica::open::DamagedLog;
use crate::replica::repair::diagnosis::{numbers, state_before};
use crate::replica::repair::fetcher::Fetcher;
use crate::replica::repair::offline::terms::with_state;
use crate::store::PROOF_BYTES_MAX;
use crate::store::format::block::BlockHeader;
use crate::store::format::geometry::SEGMENT_BYTES_MAX;
use crate::store::format::geometry::{SEGMENT_HEADER_BYTES, data_limit};
use crate::store::format::segment::HardState;
use crate::store::recovery::gap::{BlockCopy, Gap};
use crate::store::whole_segments::begin_segment;

/// The question whether the entries of a gap were superseded.
pub(super) struct Doubt {
    /// Collects committed entries only.
    pub(super) rivals: Fetcher,
    /// The reason why the received entries do not fit, if all have arrived.
    pub(super) why: Option<Malformed>,
    /// A committed entry that shows that the entries of the gap were superseded.
    pub(super) contradiction: Option<BlockHeader>,
}

impl Doubt {
    /// Starts to ask whether other entries were committed in the gap.
    pub(super) fn of(gap: &Gap, why: Option<Malformed>, cluster: &ClusterOptions) -> Self {
        let rivals = Fetcher::new(gap.rivals(), cluster.heartbeat * 4, cluster.message_bytes_max);
        Self { rivals, why, contradiction: None }
    }

    /// Whether the answer is known.
    pub(super) fn is_settled(&self) -> bool {
        self.contradiction.is_some() || self.rivals.missing().is_none()
    }
}

/// Makes the log continue where a gap begins, in a new segment that holds `state` and the committed entries that
/// follow. All blocks after that position in older segments are dead from the moment when the new file has its name. A
/// crash before that changes nothing.
///
/// The gap may have held committed entries that this replica acknowledged. So all committed entries that fit in the
/// gap are restored, and more as far as there is room. If there is no room for those that fit in the gap, it fails.
///
/// # Errors
/// `Io`; `Corrupt`: the state before the gap cannot be determined, the committed entries are not consecutive, or
/// there is no room for them.
pub(super) fn replace_from_gap(
    damaged: &DamagedLog,
    gap: &Gap,
    committed: &[BlockCopy],
    state: HardState,
) -> Result<()> {
    let wrong = |why: &str| Error::corrupt(&gap.path(&*damaged.disk), gap.from as u64, why.to_owned());
    let sequencer = state_before(damaged, gap)?
        .ok_or_else(|| wrong("the state before the damage cannot be determined"))?;
    let block = sequencer.opening();
    let mut blocks = vec![with_state((block.header, block.body), Some(state)).map_err(wrong)?];
    let fixed = SEGMENT_HEADER_BYTES + blocks[0].0.stride() + PROOF_BYTES_MAX;
    let mut bytes = gap.place.bytes.max(damaged.options.segment_bytes);
    if data_limit(bytes as usize) < fixed + gap.bytes() {
        bytes = bytes.saturating_mul(2).min(SEGMENT_BYTES_MAX.max(bytes));
    }
    let room = data_limit(bytes as usize).saturating_sub(fixed);
    let mut taken = 0;
    for (header, body) in committed {
        let follows = blocks.last().is_some_and(|(before, _)| {
            header.raft_index == before.raft_index.next() && header.term >= before.term
        });
        if !follows {
            return Err(wrong("committed entries are not consecutive"));
        }
        taken += header.stride();
        if taken > room {
            if taken <= gap.bytes() {
                return Err(wrong(
                    "there is no room for the committed entries that replace a superseded end",
                ));
            }
            break;
        }
        blocks.push((*header, body.clone()));
    }
    let number = numbers(damaged)?.last().map_or(1, |last| last + 1);
    begin_segment(&*damaged.disk, damaged.identity.log, number, bytes, &blocks)
}
