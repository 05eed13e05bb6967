//! Tail: the end of a log that another process writes, for a read-only handle.

use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::record::batch::Malformed;
use crate::store::format::identity::Identity;
use crate::store::read::chain::{Learn, Proven, Walk};
use crate::store::read::scanner::Scanner;
use crate::store::read::segment_files::{Begun, Files, SegmentFile};
use crate::store::segment::{Segment, file_number};
use crate::types::EntryIndex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The end of a log that another process writes.
#[derive(Debug)]
pub(crate) struct Follow {
    scanner: Scanner,
    walk: Walk,
    /// Set if segments before this one contain blocks that were not known to be committed, and are not shown: the last
    /// entry known to be committed then.
    hidden: Option<EntryIndex>,
    /// Whether the log continued at a position other than the end that was followed.
    turned: bool,
}

/// The segment files above the one that is followed.
enum Successor {
    /// None has begun.
    None,
    /// A segment that begins where this one ends now.
    Here(SegmentFile),
    /// A segment that begins elsewhere.
    Elsewhere,
}

impl Follow {
    /// Continues where a survey's walk stopped.
    pub(crate) fn new(scanner: Scanner, walk: Walk) -> Self {
        let hidden = Some(walk.commit).filter(|commit| *commit < walk.base().raft);
        Self { scanner, walk, hidden, turned: false }
    }

    /// The state known to be durable and committed.
    pub(crate) fn proven(&self) -> Proven {
        self.walk.proven
    }

    /// Sound records after that state that are not known to be durable.
    pub(crate) fn unproven_records(&self) -> u64 {
        self.walk.unproven_records()
    }

    /// Learns the blocks that were added since. Returns the segments that have begun meanwhile.
    ///
    /// # Errors
    /// `Corrupt` if a block is damaged and a later one proves it durable; `Io`.
    pub(crate) fn advance(
        &mut self,
        disk: &dyn Disk,
        identity: Identity,
        learner: &mut dyn Learn,
    ) -> Result<Vec<Arc<Segment>>> {
        let mut begun = Vec::new();
        // Whether the last check found a segment that begins elsewhere: all blocks before that segment then exist.
        let mut met = false;
        loop {
            self.scanner.refresh();
            let before = self.walk.at;
            let why = self.walk.run(&mut self.scanner, learner)?;
            match self.successor(disk, identity)? {
                Successor::Here(next) => {
                    begun.extend(self.enter(&next, learner)?);
                    met = false;
                    continue;
                }
                Successor::Elsewhere if met && self.walk.at == before => {
                    self.turned = true;
                    return Ok(begun);
                }
                Successor::Elsewhere => {
                    met = true;
                    continue;
                }
                Successor::None => {}
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

    /// Continues in the next segment, which begins where this one ends; so this one is durable.
    fn enter(&mut self, next: &SegmentFile, learner: &mut dyn Learn) -> Result<Option<Arc<Segment>>> {
        let mut old = std::mem::replace(&mut self.walk, Walk::new(next));
        self.scanner = next.scanner();
        self.walk.commit = old.commit;
        self.walk.run(&mut self.scanner, learner)?;
        old.commit = self.walk.commit;
        old.prove_all();
        if self.walk.base().raft > self.walk.commit {
            self.walk.proven = old.proven;
            self.hidden.get_or_insert(self.walk.commit);
        }
        Ok(self.walk.segment.clone())
    }

    /// Whether the log must be surveyed again: it continued elsewhere; or hidden blocks of older segments can be shown;
    /// or the followed segment is gone, because the writer discarded it meanwhile and perhaps reused its file.
    pub(crate) fn is_lost(&self, disk: &dyn Disk, identity: Identity) -> bool {
        if self.turned || self.hidden.is_some_and(|commit| commit < self.walk.commit) {
            return true;
        }
        let files = Files { disk, identity, names: BTreeMap::new() };
        let here = files.open(self.walk.header.number);
        !here.is_ok_and(|found| found.is_some_and(|opened| opened.header.id == self.walk.header.id))
    }

    /// Examines the files above, lowest first. The next number can be missing: truncated and reused, if the log was
    /// truncated more than once since.
    fn successor(&self, disk: &dyn Disk, identity: Identity) -> Result<Successor> {
        let files = Files { disk, identity, names: BTreeMap::new() };
        let here = self.walk.header.number;
        let names = disk.list().map_err(|e| Error::io("list", disk.path(), e))?;
        let mut above: Vec<u64> =
            names.iter().filter_map(|name| file_number(name)).filter(|n| *n > here).collect();
        above.sort_unstable();
        for number in above {
            // Removed meanwhile, or being made.
            let Ok(Some(opened)) = files.open(number) else { continue };
            if !opened.may_have_begun() {
                continue;
            }
            if let Begun::Yes(base) = opened.begins()? {
                let adjoins = base == self.walk.end && number == here + 1;
                return Ok(if adjoins { Successor::Here(opened) } else { Successor::Elsewhere });
            }
        }
        Ok(Successor::None)
    }

    /// If no sound block follows, either nothing was written yet or it is damaged: a later block that proves it shows
    /// which.
    fn check_damage(&mut self, why: Malformed) -> Result<()> {
        let at = self.walk.at;
        self.scanner.refresh();
        let later = self.scanner.later_within(at, at + DAMAGE_SEARCH_BYTES)?;
        self.scanner.refresh();
        // The writer may have written it just now: only a block that is still not sound is damaged.
        if later.durable_upto > at && self.scanner.block(at)?.is_err() {
            return Err(self.scanner.corrupt(at, why));
        }
        Ok(())
    }
}

/// How far a read-only handle searches for proof of damage.
const DAMAGE_SEARCH_BYTES: usize = 1 << 20;
