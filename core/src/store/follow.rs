//! Follow: the end of a log that another process writes, for a read-only handle.

use super::block::Kind;
use super::files::{Files, Opened};
use super::identity::Identity;
use super::layout::SEGMENT_HEADER_BYTES;
use super::scan::{Found, Scanner};
use super::segment::Segment;
use super::walk::{Learn, Proven, Walk};
use crate::batch::Malformed;
use crate::disk::Disk;
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The end of a log that another process writes.
#[derive(Debug)]
pub(crate) struct Follow {
    pub(crate) scanner: Scanner,
    pub(crate) walk: Walk,
}

impl Follow {
    /// What is known durable.
    pub(crate) fn proven(&self) -> Proven {
        self.walk.proven
    }

    /// Learns the blocks that were added since. Returns the segments that have begun meanwhile.
    ///
    /// # Errors
    /// `Corrupt` when a block is damaged that a later one proves; `Io`.
    pub(crate) fn advance(
        &mut self,
        disk: &dyn Disk,
        identity: Identity,
        learner: &mut dyn Learn,
    ) -> Result<Vec<Arc<Segment>>> {
        let mut begun = Vec::new();
        loop {
            self.scanner.refresh();
            let before = self.walk.at;
            let why = self.walk.run(&mut self.scanner, learner)?;
            if let Some(next) = self.successor(disk, identity)? {
                // It goes on where this one ends, which is durable then.
                self.walk.prove_all();
                let mut walk = Walk::new(&next);
                let mut scanner = next.scanner();
                walk.run(&mut scanner, learner)?;
                begun.extend(walk.segment.clone());
                (self.scanner, self.walk) = (scanner, walk);
                continue;
            }
            if self.walk.at > before {
                continue;
            }
            if let Some(why) = why {
                self.check_damage(why)?;
            }
            return Ok(begun);
        }
    }

    /// Whether the segment it follows is gone: the writer has discarded it meanwhile, and perhaps used its file
    /// again. Then the log has to be surveyed anew.
    pub(crate) fn is_lost(&self, disk: &dyn Disk, identity: Identity) -> bool {
        let files = Files { disk, identity, names: BTreeMap::new() };
        let here = files.open(self.walk.header.number, false);
        !here.is_ok_and(|found| found.is_some_and(|opened| opened.header.id == self.walk.header.id))
    }

    /// The next segment, if it has begun where this one ends now.
    fn successor(&self, disk: &dyn Disk, identity: Identity) -> Result<Option<Opened>> {
        let files = Files { disk, identity, names: BTreeMap::new() };
        let Ok(Some(opened)) = files.open(self.walk.header.number + 1, false) else { return Ok(None) };
        let mut scanner = opened.scanner();
        let begins_here = matches!(
            scanner.block(SEGMENT_HEADER_BYTES)?,
            Found::Block(h, _) if h.kind == Kind::Opening
                && (h.raft_index, h.term, h.first) == (self.walk.end.raft, self.walk.end.term, self.walk.end.next)
        );
        Ok(begins_here.then_some(opened))
    }

    /// Where nothing sound follows, there is either nothing yet or damage: a block that proves it tells.
    fn check_damage(&mut self, why: Malformed) -> Result<()> {
        let at = self.walk.at;
        self.scanner.refresh();
        let later = self.scanner.later_within(at, at + DAMAGE_SEARCH_BYTES)?;
        self.scanner.refresh();
        // The writer may have written it just now: only what is still unsound is damaged.
        if later.durable_upto > at && matches!(self.scanner.block(at)?, Found::Nothing(_)) {
            return Err(Error::corrupt(&self.scanner.path, at as u64, why));
        }
        Ok(())
    }
}

/// How far a read-only handle looks for proof of damage.
const DAMAGE_SEARCH_BYTES: usize = 1 << 20;
