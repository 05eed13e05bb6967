//! Found: what is on the disk of a machine that is off, learnt by opening the log there without running it.
//!
//! Must not know: hosts, clients, what should be there.

use super::kept::{Kept, Seal};
use super::setup::{Setup, options_of};
use crate::disk::sim::SimDisk;
use crate::error::Result;
use crate::replica::open::open;
use crate::types::EntryIndex;
use std::sync::Arc;

/// The state that a replica finds on a disk when it starts.
///
/// # Errors
/// Those of opening a log.
pub(super) fn found_on(disk: &SimDisk, setup: &Setup) -> Result<Kept> {
    let opened = open(Arc::new(disk.clone()), &options_of(setup, Arc::default()))?;
    let (state, end) = (opened.sequencer.hard_state(), opened.sequencer.end());
    Ok(Kept { last: end.next.previous(), term: state.term, vote: state.vote, ..Kept::default() })
}

/// The entry at `index` on a disk; `None`: there is none. A discarded one counts as `known`.
///
/// # Errors
/// Those of opening a log and of reading it.
pub(super) fn entry_on(
    disk: &SimDisk,
    setup: &Setup,
    index: EntryIndex,
    known: Seal,
) -> Result<Option<Seal>> {
    let opened = open(Arc::new(disk.clone()), &options_of(setup, Arc::default()))?;
    let archive = opened.store.archive();
    if index <= archive.first().raft {
        return Ok(Some(known));
    }
    Ok(archive.header(index)?.map(|header| Seal::of(&header)))
}
