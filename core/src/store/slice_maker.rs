//! Makes slices from the log's own files: short stretches of entries for an object store.
//!
//! Bodies are those of the files, not copied if the files are mapped. Every byte is checked on the way.
//!
//! Must not know: which entries are committed, where the slice goes.

use crate::error::{Error, ErrorKind, Result};
use crate::store::format::slices::{Block, Slice};
use crate::store::objects::slice_names::SliceName;
use crate::store::read::entry_lookup::Archive;
use crate::store::segment::Base;
use crate::types::{EntryIndex, LogId};
use bytes::Bytes;

/// A slice as it goes to the object store.
#[derive(Debug)]
pub(crate) struct MadeSlice {
    pub(crate) name: SliceName,
    pub(crate) pieces: Vec<Bytes>,
    pub(crate) bytes: u64,
    /// The position behind its last entry, as far as that entry says.
    pub(crate) end: Base,
}

/// Where slices of about `bytes_max` bytes end that follow each other from behind one entry up to another one: up to `count_max` of
/// them. A larger block is a slice of its own.
///
/// # Errors
/// `NotFound`: the first entry is not in the log's files. `Corrupt`, `Io`.
pub(crate) fn ends(
    archive: &Archive,
    behind: EntryIndex,
    upto: EntryIndex,
    bytes_max: u64,
    count_max: usize,
) -> Result<Vec<EntryIndex>> {
    let mut ends: Vec<EntryIndex> = Vec::new();
    while ends.len() < count_max {
        let from = ends.last().unwrap_or(&behind).next();
        if from > upto {
            break;
        }
        let headers = archive.headers(from, upto.next(), bytes_max)?;
        let mut bytes = 0;
        let fits = headers.iter().take_while(|header| {
            bytes += header.stride() as u64;
            bytes <= bytes_max
        });
        let count = fits.count().max(1);
        let Some(last) = headers.get(count - 1) else { return Err(not_here(archive, from)) };
        ends.push(last.raft_index);
    }
    Ok(ends)
}

/// Makes the slice of the entries behind one up to another one. With `opening`, the state behind the former, a chain of slices can
/// begin with it.
///
/// # Errors
/// `NotFound`: not all of them are in the log's files. `Corrupt`, `Io`.
pub(crate) fn make(
    archive: &Archive,
    log: LogId,
    behind: EntryIndex,
    upto: EntryIndex,
    opening: Option<Block>,
) -> Result<MadeSlice> {
    let first = behind.next();
    let entries = archive.entries(first, upto)?.ok_or_else(|| not_here(archive, first))?;
    let term = archive.term(behind)?.ok_or_else(|| not_here(archive, behind))?;
    let next = entries.first().map(|(header, _)| header.first).ok_or_else(|| not_here(archive, first))?;
    let begins = opening.is_some();
    let slice = Slice { log, base: Base { raft: behind, term, next }, opening, entries };
    let (last, term) = slice.last();
    let name = SliceName { log, first, last, term, begins };
    let end = Base { raft: last, term, next: slice.next_record() };
    let pieces = slice.encode(name.salt());
    let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
    Ok(MadeSlice { name, pieces, bytes, end })
}

fn not_here(archive: &Archive, entry: EntryIndex) -> Error {
    let what = format!("entry {entry} is not in the files of {} any more", archive.path().display());
    Error::new(ErrorKind::NotFound, what)
}
