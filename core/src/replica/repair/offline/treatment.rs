//! Treatment: the repair of one gap, and the entries received for it.
//!
//! Must not know: who sends what, files.

use crate::replica::open::DamagedLog;
use crate::replica::repair::diagnosis::Finding;
use crate::replica::repair::fetcher::Fetcher;
use crate::replica::repair::offline::superseded::Doubt;
use crate::store::format::block::BlockHeader;
use crate::store::recovery::gap::BlockCopy;

/// The repair of one gap.
pub(super) struct Treatment {
    pub(super) fetcher: Fetcher,
    /// The segment's opening block, rebuilt, if it is lost.
    pub(super) opening: Option<BlockCopy>,
    /// Whether the gap may have held a hard state that no later one replaces, if there is room for one.
    pub(super) state_lost: bool,
    /// An answer, perhaps to an earlier request, holds an entry that contradicts those of the gap. It need not be
    /// committed.
    pub(super) is_suspected: bool,
    /// The question whether other entries were committed in the gap.
    pub(super) doubt: Option<Doubt>,
}

impl Treatment {
    pub(super) fn of(finding: Finding, damaged: &DamagedLog) -> Box<Self> {
        let Finding { gap, opening, state_lost } = finding;
        let fetcher = Fetcher::new(gap, damaged.cluster.heartbeat * 4, damaged.cluster.message_bytes_max);
        Box::new(Self { fetcher, opening, state_lost, is_suspected: false, doubt: None })
    }

    /// Takes entries received for the gap. They need not be committed.
    pub(super) fn take(&mut self, blocks: Vec<BlockCopy>) {
        if self.doubt.is_none() {
            self.is_suspected |= blocks.iter().any(|(header, _)| self.fetcher.gap.is_contradicted_by(header));
            self.fetcher.take(blocks);
        }
    }

    /// Takes committed entries, until one contradicts the entries of the gap. All entries before that one have then
    /// arrived; they may have been in the gap.
    pub(super) fn take_committed(&mut self, blocks: Vec<BlockCopy>) {
        let Some(doubt) = self.doubt.as_mut().filter(|doubt| doubt.contradiction.is_none()) else { return };
        let headers: Vec<BlockHeader> = blocks.iter().map(|(header, _)| *header).collect();
        doubt.rivals.take(blocks);
        let lacks = doubt.rivals.missing();
        let is_taken = |header: &BlockHeader| lacks.is_none_or(|lacks| header.raft_index < lacks);
        let gap = &self.fetcher.gap;
        doubt.contradiction = headers.into_iter().find(|h| is_taken(h) && gap.is_contradicted_by(h));
    }
}
