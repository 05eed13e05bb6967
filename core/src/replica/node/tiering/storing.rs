//! Storing: what becomes of the object that is stored next, at the leader.
//!
//! ```text
//!   put here ──────────────────┐
//!   put by another replica ────┴──> claim ──> looked at (job) ──> sound ──> proposed: `Stored`
//!                                     ^                 │           ├─ no room: the claim waits, and nothing is put or read again
//!                                     │                 │           └─ the log refuses it: looked at again, later
//!                                     │                 ├─> wrong ──> put again
//!                                     └── the store ────┴─> unreadable, and that has lasted ──> put again, here
//! ```
//!
//! Invariants:
//! - an object counts as stored only by a claim that a look has found to be sound, or by a put here that the class does not read;
//! - a claim that was found to be sound is looked at once, however long its command waits for room; once more only after the log has
//!   refused that command;
//! - that a replica has put an object, or has tried to, is known there whatever the answer was: it can put it again.
//!
//! Must not know: how objects are made and put.

use super::super::Node;
use super::Proposed;
use super::jobs::Job;
use super::object_access::{HowToStore, Put};
use super::object_look::Look;
use crate::error::{Error, ErrorKind, Result};
use crate::options::log_options::LogOption;
use crate::replica::queue::proposals::ObjectCommand;
use crate::store::format::objects::StoredObject;
use crate::store::object_file::Stretch;
use crate::store::objects::names::object_name;
use crate::sync::clock::Moment;
use crate::types::NodeId;
use crate::vault::Vault;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// An object that a replica has put.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) from: NodeId,
    pub(super) number: u64,
    pub(super) object: StoredObject,
    /// It was looked at, or need not be: only its command is left to be proposed.
    pub(super) is_sound: bool,
}

impl Node {
    /// The next job for the object that is to be stored, if there is one.
    pub(super) fn job_to_store(
        &mut self,
        vault: Arc<dyn Vault>,
        stretch: Stretch,
        now: Moment,
    ) -> Result<Option<Job>> {
        let Stretch { log, number, .. } = stretch;
        match self.tiering.claimed.filter(|claim| claim.number == number) {
            Some(claim) if claim.is_sound => self.propose_claimed(now).map(|()| None),
            Some(Claim { from, object, .. }) => {
                let whole = self.reads_before_stored();
                Ok(Some(Job::Check { vault, log, number, object, from, whole }))
            }
            None => {
                self.tiering.claimed = None;
                let is_here = self.replaces(number, now) || self.is_stored_here(&stretch, now);
                Ok(is_here.then(|| self.store_job(vault, stretch, now)))
            }
        }
    }

    /// The job that stores an object from the files here.
    pub(super) fn store_job(&self, vault: Arc<dyn Vault>, stretch: Stretch, now: Moment) -> Job {
        let how = HowToStore {
            oldest: self.replica.sequencer.committed().objects.number() == stretch.number,
            whole: self.reads_before_stored(),
            replaces: self.replaces(stretch.number, now),
            is_put: self.tiering.unreadable.is_put(stretch.number),
        };
        Job::Store { vault, maker: Box::new(self.object_maker()), stretch, how }
    }

    /// Whether an object is read, whole, before it counts as stored: in a log with payload slices, whose payload goes then. As long as that is
    /// there, an object that has arrived damaged can be made again.
    pub(super) fn reads_before_stored(&self) -> bool {
        let is_set = self.replica.sequencer.committed().options.get(LogOption::PayloadSlices).is_some();
        is_set && !planted!(146)
    }

    /// Whether an object that is not stored yet is put over one that cannot be read: the log has put that, and the error has lasted.
    fn replaces(&self, number: u64, now: Moment) -> bool {
        self.tiering.unreadable.is_own(number) && self.has_lasted(number, now)
    }

    /// Whether an object could not be read for long, while the object store worked.
    pub(super) fn has_lasted(&self, number: u64, now: Moment) -> bool {
        self.tiering.unreadable.has_lasted(number, self.at_most_a_pass(Duration::MAX), now)
    }

    /// Proposes that an object is stored, which was found to be sound.
    fn propose_claimed(&mut self, now: Moment) -> Result<()> {
        let Some(Claim { number, object, .. }) = self.tiering.claimed.filter(|claim| claim.is_sound) else {
            return Ok(());
        };
        let proposed = self.propose_object(ObjectCommand::Stored { number, object }, now)?;
        if proposed == Proposed::Refused {
            // The look led to nothing: there is another one before the next attempt, and that is not at once.
            self.tiering.claimed = self.tiering.claimed.map(|claim| Claim { is_sound: false, ..claim });
            let what = format!("the log does not take the command that object {number} is stored");
            let error = Error::new(ErrorKind::InvalidArgument, what);
            self.tiering.put_off(&error, "an object does not count as stored", now);
            return Ok(());
        }
        if proposed == Proposed::Taken {
            self.tiering.claimed = None;
        }
        self.tiering.has_succeeded("the object store");
        Ok(())
    }

    /// A replica that was asked has stored an object, or this one for itself.
    pub(super) fn end_store(
        &mut self,
        asked: Option<(NodeId, u64)>,
        number: u64,
        result: Result<Put>,
        now: Moment,
    ) -> Result<()> {
        let result = self.learn_put(number, result, now);
        if asked.is_some() {
            self.answer(asked, number, result);
            return Ok(());
        }
        match result {
            Ok(object) => {
                tracing::debug!(path = %self.tiering.path.display(), number, bytes = object.bytes, "an object is stored");
                self.published.counters.stored_object(object.bytes.into());
                let is_sound = !self.reads_before_stored();
                self.tiering.claimed = Some(Claim { from: self.cluster.node, number, object, is_sound });
                if is_sound {
                    self.propose_claimed(now)?;
                }
            }
            Err(error) => self.tiering.has_failed(&error, "an object cannot be stored", now),
        }
        Ok(())
    }

    /// Learns what became of an object that was to be put here.
    fn learn_put(&mut self, number: u64, result: Result<Put>, now: Moment) -> Result<StoredObject> {
        let unreadable = &mut self.tiering.unreadable;
        let result = match result {
            Ok(Put::Stored(object)) => {
                unreadable.has_put(number);
                Ok(object)
            }
            Ok(Put::Tried(error)) => {
                unreadable.has_tried(number);
                Err(error)
            }
            Ok(Put::Unreadable { error, is_own }) => {
                if is_own {
                    unreadable.has_put(number);
                }
                unreadable.meet(number, now);
                if !self.tiering.unreadable.is_own(number) && self.has_lasted(number, now) {
                    self.show_unreadable(number, &error);
                }
                Err(error)
            }
            Err(error) => {
                unreadable.interrupt(number);
                if error.kind() == ErrorKind::Diverged {
                    unreadable.show(number);
                }
                Err(error)
            }
        };
        self.show_damaged();
        result
    }

    /// Reports an object that stands in the way of the next one, and cannot be replaced.
    fn show_unreadable(&mut self, number: u64, error: &Error) {
        if self.tiering.unreadable.show(number) {
            let (path, name) = (self.tiering.path.display(), object_name(self.tiering.log, number));
            tracing::warn!(
                %path, name, %error,
                "an object cannot be read, and it is not known here whether this log has put it, so this replica does not replace it: no more \
                 objects are stored until another one does, if that has put it. If no other cluster uses this location, delete the object by the store's own means: it is stored again"
            );
        }
    }

    /// An object was looked at that a replica has put.
    pub(super) fn end_check(&mut self, claim: Claim, result: Result<Look>, now: Moment) -> Result<()> {
        let Claim { from, number, .. } = claim;
        match result {
            Ok(Look::Interrupted) => _ = self.tiering.claimed.get_or_insert(claim),
            Ok(Look::Sound) => {
                self.tiering.unreadable.is_sound(number);
                self.tiering.claimed = Some(Claim { is_sound: true, ..claim });
                self.propose_claimed(now)?;
            }
            Ok(Look::Wrong(why)) => {
                self.tiering.claimed = None;
                let node = match from == self.cluster.node {
                    true => "this node".to_owned(),
                    false => {
                        self.tiering.delegation.rest(from, now);
                        format!("node {from}")
                    }
                };
                let what = format!("object {number} is not in the object store as {node} has put it: {why}");
                let error = Error::new(ErrorKind::Corrupt, what);
                self.tiering.has_failed(&error, "an object has to be stored again", now);
            }
            Ok(Look::Unreadable(error)) => {
                self.tiering.unreadable.meet(number, now);
                let what = match self.replaces(number, now) {
                    true => {
                        self.tiering.claimed = None;
                        "an object cannot be read for long, although the object store works: it is stored again"
                    }
                    false => {
                        self.tiering.claimed.get_or_insert(claim);
                        "it cannot be seen whether an object is stored"
                    }
                };
                self.tiering.has_failed(&error, what, now);
            }
            Err(error) => {
                self.tiering.unreadable.interrupt(number);
                self.tiering.claimed.get_or_insert(claim);
                self.tiering.has_failed(&error, "it cannot be seen whether an object is stored", now);
            }
        }
        Ok(())
    }

    /// Shows how many objects are damaged.
    pub(super) fn show_damaged(&self) {
        let count = self.tiering.scrub.damaged() + self.tiering.unreadable.shown();
        self.published.counters.damaged_objects.store(count as u64, Ordering::Relaxed);
    }
}
