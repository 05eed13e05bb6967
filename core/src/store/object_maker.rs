//! Makes an object from the log's own files: its segment file, or, of a shared group, the same sorted by log. Every byte is checked on
//! the way. Batches that the files only refer to are fetched, so that an object needs nothing but itself.
//!
//! Must not know: what the entries mean, where the object goes.

use crate::error::{Error, ErrorKind, Result};
use crate::store::format::block::{BlockHeader, Kind};
use crate::store::format::references::has_references;
use crate::store::object_file::{Entry, MadeObject, Stretch, segment_file};
use crate::store::read::entry_lookup::Archive;
use crate::store::sorted_object::sort;

/// Makes the file of an object. `opening`: header and body of its opening block.
///
/// # Errors
/// `NotFound`: not all of the stretch is in the log's files, or in payload slices. `Corrupt`, `Io`. `TooLarge`: no segment file is
/// that large.
pub(crate) fn make(
    archive: &Archive,
    stretch: &Stretch,
    opening: (BlockHeader, Vec<u8>),
) -> Result<MadeObject> {
    let Stretch { number, begin, end, .. } = *stretch;
    let entries = archive.entries(begin.raft.next(), end.raft)?.ok_or_else(|| {
        let what = format!(
            "entries {} to {} of object {number} are not all in the files of {} any more",
            begin.raft.next(),
            end.raft,
            archive.path().display()
        );
        Error::new(ErrorKind::NotFound, what)
    })?;
    let lacking = usize::from(planted!(93));
    let count = entries.len() - lacking;
    let opening = (opening.0, opening.1.into());
    let mut whole: Vec<Entry> = Vec::with_capacity(1 + count);
    whole.push(opening);
    for (header, body) in entries.into_iter().take(count) {
        whole.push(match has_references(&header, &body) && !planted!(124) {
            true => archive.payloads()?.block(header, body)?,
            false => (header, body),
        });
    }
    let entries = whole;
    let segment = segment_file(stretch, &entries)?;
    // The object of a shared group has its records log by log.
    if entries.iter().any(|(header, _)| header.kind == Kind::Mixed)
        && let Some(sorted) = sort(stretch, &entries, &segment)?
    {
        return Ok(sorted);
    }
    Ok(segment)
}
