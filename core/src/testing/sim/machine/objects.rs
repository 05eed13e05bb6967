//! The objects of a simulated machine's log, as the checks see them.

use super::Machine;
use crate::cluster::membership::Membership;
use crate::error::{ErrorKind, Result};
use crate::replica::node::tiering::ObjectMaker;
use crate::replica::state::sequencer::{Owner, Sequencer};
use crate::store::format::block::BlockHeader;
use crate::store::format::older_rows::RowsRun;
use crate::store::format::segment::Base;
use crate::store::object_file::Stretch;
use crate::store::objects::names::object_name;
use crate::store::sorted_object::unsort;
use crate::testing::sim::made::{Made, made};
use crate::testing::sim::vault::SimVault;
use crate::types::{EntryIndex, Index, LogNumber};
use bytes::Bytes;
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
        let older = objects.runs().flat_map(|run| run.number..run.rows.below);
        let stored = older.chain(objects.stored().map(|at| at.number));
        (stored.map(name).collect(), (0..cut).map(name).collect())
    }

    /// The log's first record, the number of its first object, and the objects whose rows are elsewhere, as far as is committed here.
    pub(in super::super) fn older_rows(&self) -> (Index, u64, Vec<RowsRun>) {
        let guarded = self.lock();
        let committed = guarded.node.replica.sequencer.committed();
        (committed.first, committed.objects.number(), committed.objects.runs().collect())
    }

    /// The bytes in the object store, without faults, where the rows of a run are to be. None: that object is not there, or arrived damaged.
    pub(in super::super) fn rows_in_holder(&self, run: &RowsRun) -> Option<Bytes> {
        let name = object_name(self.identity.log, run.rows.holder);
        let vault = self.vault.as_ref().filter(|vault| vault.spoiled().as_ref() != Some(&name))?;
        let at = u64::from(run.rows.offset);
        match vault.sound().get(&name, at..at + run.rows.rows_bytes()) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            rows => Some(rows.unwrap_or_default()),
        }
    }

    /// The last record that is known here to be in an object; 0 if there is none.
    pub(in super::super) fn stored_upto(&self) -> Index {
        let guarded = self.lock();
        let stored = guarded.node.replica.sequencer.committed().objects.stored();
        stored.last().map_or(Index(0), |at| at.state.end.next.previous())
    }

    /// The last entry that this replica says is in the object store, in an object or a slice.
    pub(in super::super) fn sliced_upto(&self) -> EntryIndex {
        let guarded = self.lock();
        EntryIndex(guarded.node.published.counters.sliced_upto.load(Ordering::Relaxed))
    }

    /// The last records of named logs that the object store alone is said to have.
    pub(in super::super) fn logs_in_store(&self) -> Vec<(LogNumber, Index)> {
        self.readers.group().logs.stored()
    }

    /// The last entry that this replica says a log has that is made of the object store alone.
    pub(in super::super) fn in_store_upto(&self) -> EntryIndex {
        let guarded = self.lock();
        EntryIndex(guarded.node.published.counters.in_store_upto.load(Ordering::Relaxed))
    }

    /// The first committed entry that is to be in a slice and is in none, and in no object.
    pub(in super::super) fn entry_to_slice(&self) -> Option<EntryIndex> {
        self.options.slice_interval?;
        let (sliced, guarded) = (self.sliced_upto(), self.lock());
        (sliced < guarded.node.replica.sequencer.committed().raft).then(|| sliced.next())
    }

    /// Whether all committed entries are in slices or objects, as far as this replica says.
    pub(in super::super) fn has_all_in_slices(&self) -> bool {
        self.options.slice_interval.is_some() && self.entry_to_slice().is_none()
    }

    /// The state behind the last entry, as an object would begin with it there, if all entries here are committed; and the log's first
    /// record.
    pub(in super::super) fn settled_state(&self) -> Option<(BlockHeader, Vec<u8>, Index)> {
        let guarded = self.lock();
        let sequencer = &guarded.node.replica.sequencer;
        let (header, body) = sequencer.object_opening();
        let is_settled = sequencer.committed().raft == sequencer.end().raft;
        is_settled.then(|| (header, body, sequencer.committed().first))
    }

    /// The log that would be made of the object store alone.
    ///
    /// # Errors
    /// Those of [`Backup::fetch`](crate::backup::Backup::fetch).
    pub(in super::super) fn made_of(&self, vault: &SimVault) -> Result<Made> {
        let sequencer = Sequencer::new(Owner::Node(self.node), Membership::default(), &self.options);
        made(vault.sound(), self.identity.log, sequencer, &self.options)
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
        drop(guarded);
        self.readers.faults().begin();
        let made = maker.make(&stretch);
        self.compared = at.number + 1;
        match made {
            Ok(made) => {
                let name = object_name(log, at.number);
                if made.object.is_sorted() {
                    unsort(log, at.number, &made.pieces.concat().into(), &name)?;
                }
                vault.compare(&name, &made.pieces)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()), // removed here since, or its payload
            Err(error) if self.readers.faults().explain(&error, None) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
