//! Superseded: what stood in a hole was never committed, and the log goes on with what is committed in its place.
//!
//! The damaged entries need never have been committed: another leader followed the one that sent them, and its entries are
//! the committed ones. Then nobody has the lost entries, and those of the others do not fit. So they are asked for the
//! committed entries from the one before the hole through the one at its end ([`Gap::rivals`]), as far as the cluster has
//! committed any. Question and answer are of kinds of their own: an answer to another question can hold entries that are not
//! committed, and only raises the doubt. Terms never decrease along a log. So a committed entry of a later term, at the end of
//! the hole or before it, says that the entry at the end was superseded, and all behind it ([`Gap::is_contradicted_by`]). Each leader commits
//! an entry of its own term first: an idle cluster has such an entry as well.
//!
//! The log then goes on in a new segment, as at a conflict: its opening stands where the hole begins, and all behind that
//! place in older segments is dead. So no segment behind the hole may hold what was acknowledged. A hole that spans an
//! earlier cut ends where the next live segment begins, not at a dead block behind it (`Probe`). And
//! nothing is replaced while a segment behind it need not go with its end ([`Gap::goes_with`]). The committed entries that
//! the hole may have held come with it: this replica can have acknowledged them. The others remember how far this replica
//! was in the old term, so it goes on in a newer one, which is learnt as where a hard state is lost.
//!
//! Must not know: time, who is asked.

use crate::cluster::options::Cluster;
use crate::error::{Error, Result};
use crate::record::batch::Malformed;
use crate::replica::open::DamagedLog;
use crate::replica::repair::diagnosis::{numbers, state_before};
use crate::replica::repair::fetcher::Fetcher;
use crate::replica::repair::offline::terms::with_state;
use crate::replica::wire::raft_message::header_of;
use crate::store::PROOF_BYTES_MAX;
use crate::store::format::block::BlockHeader;
use crate::store::format::geometry::SEGMENT_BYTES_MAX;
use crate::store::format::geometry::{SEGMENT_HEADER_BYTES, data_limit};
use crate::store::format::segment::HardState;
use crate::store::recovery::gap::{BlockCopy, Gap};
use crate::store::whole_segments::begin_segment;

/// The question whether what stood in a hole was superseded.
pub(super) struct Doubt {
    /// Gathers committed entries alone.
    pub(super) rivals: Fetcher,
    /// Why what came does not fit, if all of it came.
    pub(super) why: Option<Malformed>,
    /// A committed entry says that what stood in the hole was superseded.
    pub(super) contradiction: Option<BlockHeader>,
}

impl Doubt {
    /// Asks whether other entries were committed where the hole is.
    pub(super) fn of(gap: &Gap, why: Option<Malformed>, cluster: &Cluster) -> Self {
        let rivals = Fetcher::new(gap.rivals(), cluster.heartbeat * 4, cluster.message_bytes_max);
        Self { rivals, why, contradiction: None }
    }

    /// Whether the answer is known.
    pub(super) fn is_settled(&self) -> bool {
        self.contradiction.is_some() || self.rivals.missing().is_none()
    }
}

/// Has the log go on where a hole begins, in a new segment that holds `state` and the committed entries that follow. All
/// behind that place in older segments is dead from the moment on in which the new file has its name: a crash before it
/// changes nothing.
///
/// The hole may have held committed entries that this replica acknowledged. So at least as many bytes of entries as it had
/// are put back, and more as far as there is room.
///
/// # Errors
/// `Io`; `Corrupt`: the state before the hole cannot be told, or the committed entries do not follow each other.
pub(super) fn go_on_before(
    damaged: &DamagedLog,
    gap: &Gap,
    committed: &[BlockCopy],
    state: HardState,
) -> Result<()> {
    let wrong = |why: &str| Error::corrupt(&gap.path(&*damaged.disk), gap.from as u64, why.to_owned());
    let sequencer =
        state_before(damaged, gap)?.ok_or_else(|| wrong("nothing tells the state before the damage"))?;
    let block = sequencer.opening();
    let mut blocks = vec![with_state((header_of(&block), block.body), Some(state)).map_err(wrong)?];
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
            return Err(wrong("committed entries do not follow each other"));
        }
        taken += header.stride();
        if taken > room {
            if taken <= gap.bytes() {
                return Err(wrong("no room for committed entries in place of a superseded end"));
            }
            break;
        }
        blocks.push((*header, body.clone()));
    }
    let number = numbers(damaged)?.last().map_or(1, |last| last + 1);
    begin_segment(&*damaged.disk, damaged.identity.log, number, bytes, &blocks)
}
