//! Read-back: an object of a log with payload slices is read once, right after it is stored, before the payload of its entries goes. As
//! long as that is there, an object that has arrived damaged can be made again.
//!
//! ```text
//!   objects          | k-2 | k-1 |  k  | k+1 |        read back: k-2, k-1
//!   payload slices                [ p ][ q ][ r ]     a new leader reads back k and k+1: the first payload of k is still there
//! ```
//!
//! Nothing notes down which objects were read back: the object store shows it. Payload of an object's entries goes only after that, the
//! oldest first. So a new leader looks which of the newest objects still have their first payload slice. Where that is gone the object was
//! read back, and could not be made again.
//!
//! Invariants:
//! - no payload of an object's entries goes before the object was read back, by this leader or one before it;
//! - read-backs and uploads take turns, and a read-back gives way to nothing: it is paid once, and payload goes however busy the leader is.
//!
//! Must not know: the network, which object store it is.

use super::super::Node;
use super::jobs::Job;
use super::object_scrub::Suspect;
use super::unread::{StoredStretch, UnreadLook};
use crate::error::{Error, Result};
use crate::options::log_options::LogOption;
use crate::store::segment::Base;
use crate::sync::clock::Moment;
use crate::vault::Vault;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// How soon a look that failed is repeated.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

impl Node {
    /// Whether objects are read back before payload goes. If it is known which have to be: see [`Self::knows_unread`].
    fn reads_back(&self) -> bool {
        let is_set = self.replica.sequencer.committed().options.get(LogOption::PayloadSlices).is_some();
        is_set && self.options.object_scrub.is_some() && self.replica.is_leader()
    }

    /// This replica leads now, or does not lead any more: which objects were read back is to be seen. Those that were not are suspects
    /// from now on: their entries stay here, and they are examined.
    pub(super) fn forget_read_backs(&mut self) {
        let scrub = &mut self.tiering.scrub;
        let forgotten = std::mem::take(&mut scrub.read_backs);
        for (_, suspect) in scrub.suspects.iter_mut().filter(|(number, _)| forgotten.unread.contains(number))
        {
            suspect.holds = true;
        }
        scrub.forgot_read_backs();
    }

    /// Whether it is known which objects have to be read back.
    pub(super) fn knows_unread(&self) -> bool {
        self.tiering.scrub.read_backs.is_known || !self.reads_back() || planted!(146)
    }

    /// The job that looks which objects have to be read back. None: it is known, or cannot be seen now.
    pub(super) fn look_for_unread(&mut self, vault: &Arc<dyn Vault>, now: Moment) -> Option<Job> {
        if self.unread_look_due().is_none_or(|at| at > now) {
            return None;
        }
        let objects = &self.replica.sequencer.committed().objects;
        let own_from = objects.lineage(self.tiering.log).own_from();
        let own = objects.stored().rev().take_while(|at| at.number >= own_from);
        let stored: Vec<_> = own
            .map(|at| StoredStretch {
                number: at.number,
                behind: at.begin.raft,
                upto: at.state.end.raft,
                bytes: at.object.bytes.into(),
            })
            .collect();
        let read_backs = &mut self.tiering.scrub.read_backs;
        read_backs.looked_below = Some(objects.next_to_show());
        read_backs.is_known = stored.is_empty();
        if read_backs.is_known {
            return None;
        }
        let (vault, log, archive) = (vault.clone(), self.tiering.log, self.writer.archive.clone());
        Some(Job::LookForUnread(UnreadLook { vault, log, archive, stored }))
    }

    /// When [`Self::look_for_unread`] has to be called.
    pub(super) fn unread_look_due(&self) -> Option<Moment> {
        let read_backs = &self.tiering.scrub.read_backs;
        (!self.knows_unread() && read_backs.looked_below.is_none()).then_some(read_backs.again)
    }

    /// A job has panicked, in the program's vault, or could not be started: if it was a look at objects, it is repeated.
    pub(super) fn end_failed_look(&mut self, error: &Error, now: Moment) {
        if !self.knows_unread() {
            self.end_unread_look(Err(error.clone()), now);
        }
    }

    pub(super) fn end_unread_look(&mut self, result: Result<BTreeSet<u64>>, now: Moment) {
        let read_backs = &mut self.tiering.scrub.read_backs;
        if read_backs.looked_below.is_none() {
            return; // it was of an earlier leadership
        }
        match result {
            Ok(unread) => {
                read_backs.is_known = true;
                self.await_read_backs(&unread, now);
            }
            Err(error) => {
                let path = self.tiering.path.display();
                let what = "it cannot be seen which objects have to be read back: payload slices stay; it is tried again";
                tracing::warn!(%path, %error, "{what}");
                (read_backs.looked_below, read_backs.again) = (None, now.plus(LOOK_AGAIN));
            }
        }
    }

    /// Has new objects read back. Those that were stored before this replica led are looked for.
    pub(super) fn read_back(&mut self, stored: Range<u64>, now: Moment) {
        let Some(looked_below) = self.tiering.scrub.read_backs.looked_below else { return };
        if self.reads_back() {
            self.await_read_backs(&(stored.start.max(looked_below)..stored.end).collect(), now);
        }
    }

    fn await_read_backs(&mut self, numbers: &BTreeSet<u64>, now: Moment) {
        let objects = &self.replica.sequencer.committed().objects;
        let scrub = &mut self.tiering.scrub;
        for number in objects.stored().map(|at| at.number).filter(|number| numbers.contains(number)) {
            scrub.read_backs.unread.insert(number);
            scrub.suspects.entry(number).or_insert(Suspect { at: now, holds: false });
        }
    }

    /// The job that reads back an object, if it is its turn: an object was stored since the last one.
    pub(super) fn read_back_job(&mut self, vault: &Arc<dyn Vault>, now: Moment) -> Option<Job> {
        let scrub = &self.tiering.scrub;
        if !scrub.read_backs.has_turn || self.rests_scrub(now) {
            return None;
        }
        let is_due = |number: &&u64| scrub.suspects.get(number).is_some_and(|suspect| suspect.at <= now);
        let number = *scrub.read_backs.unread.iter().find(is_due)?;
        let scrub = &mut self.tiering.scrub;
        scrub.read_backs.has_turn = false;
        let holds = scrub.suspects.remove(&number).is_some_and(|suspect| suspect.holds);
        self.examine(vault.clone(), number, holds, now)
    }

    /// Where the first object of this log's own begins that may be lost or damaged, or was not read back. Payload of this log is not in
    /// objects of ancestors.
    pub(super) fn first_suspect(&self) -> Option<Base> {
        let mut suspects = self.tiering.scrub.known_suspects();
        suspects.extend(&self.tiering.scrub.read_backs.unread);
        if suspects.is_empty() {
            return None;
        }
        let objects = &self.replica.sequencer.committed().objects;
        let own_from = objects.lineage(self.tiering.log).own_from();
        let mut own = objects.stored().filter(|at| at.number >= own_from);
        own.find(|at| suspects.contains(&at.number)).map(|at| at.begin)
    }
}
