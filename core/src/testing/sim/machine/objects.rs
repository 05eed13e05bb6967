//! The objects of a simulated machine's log, as the checks see them.

use super::Machine;
use crate::error::{ErrorKind, Result};
use crate::replica::node::tiering::ObjectMaker;
use crate::store::format::segment::Base;
use crate::store::object_file::Stretch;
use crate::store::objects::names::object_name;
use crate::store::sorted_object::unsort;
use crate::types::EntryIndex;
use std::sync::atomic::Ordering;

impl Machine {
    /// The first object that was cut and is not known here to be stored.
    pub(in super::super) fn object_to_store(&self) -> Option<(u64, Base, Base)> {
        self.lock().node.replica.sequencer.committed().objects.next_to_store()
    }

    /// Has all committed records put into objects, as [`Log::cut_objects`](crate::Log::cut_objects) does.
    pub(in super::super) fn cut_objects(&self) {
        let guarded = self.lock();
        let node = &guarded.node;
        let upto = node.replica.sequencer.committed().next.get().saturating_sub(1);
        node.published.cut_upto.fetch_max(upto, Ordering::Relaxed);
    }

    /// The names of the objects that are known here to be stored, and of all objects that were cut.
    pub(in super::super) fn objects(&self) -> (Vec<String>, Vec<String>) {
        let guarded = self.lock();
        let objects = &guarded.node.replica.sequencer.committed().objects;
        let name = |number| object_name(self.identity.log, number);
        let cut = objects.end().map_or(0, |(next, _)| next);
        (objects.stored().map(|at| name(at.number)).collect(), (0..cut).map(name).collect())
    }

    /// The last entry that this replica says is in the object store, in an object or a slice.
    pub(in super::super) fn sliced_upto(&self) -> EntryIndex {
        let guarded = self.lock();
        EntryIndex(guarded.node.published.counters.sliced_upto.load(Ordering::Relaxed))
    }

    /// The first committed entry that is to be in a slice and is in none, and in no object.
    pub(in super::super) fn entry_to_slice(&self) -> Option<EntryIndex> {
        self.options.slice_interval?;
        let (sliced, guarded) = (self.sliced_upto(), self.lock());
        (sliced < guarded.node.replica.sequencer.committed().raft).then(|| sliced.next())
    }

    /// Makes each object that is stored from the files here, where they still have it, and has the object store compare it with
    /// the one that it has.
    ///
    /// # Errors
    /// Those of the archive.
    pub(in super::super) fn compare_objects(&mut self) -> Result<()> {
        let Some(vault) = self.vault.clone() else { return Ok(()) };
        let guarded = self.lock();
        let node = &guarded.node;
        let objects = &node.replica.sequencer.committed().objects;
        let at = objects.stored().find(|at| at.number >= self.compared);
        let Some(at) = at else { return Ok(()) };
        let maker = ObjectMaker {
            archive: node.writer.archive.clone(),
            options: self.options.clone(),
            node: self.node,
        };
        let log = self.identity.log;
        let stretch = Stretch { log, number: at.number, begin: at.begin, end: at.state.end };
        let made = maker.make(&stretch);
        drop(guarded);
        self.compared = at.number + 1;
        match made {
            Ok(made) => {
                let name = object_name(log, at.number);
                if made.object.is_sorted() {
                    unsort(log, at.number, &made.pieces.concat().into(), &name)?;
                }
                vault.compare(&name, &made.pieces)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()), // removed here since
            Err(error) => Err(error),
        }
    }
}
