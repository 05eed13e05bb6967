//! Holes in sorted copies: the parts of a copy whose records no log needs any more, because their log was deleted or has discarded
//! them, are given back to the file system.
//!
//! ```text
//!  before:  | header | log 3 | log 7, deleted | log 9: discarded | the rest | log 12 | directory |
//!  after:   | header | log 3 | a hole, in whole pages            | the rest | log 12 | directory |
//! ```
//!
//! The file keeps its length, its header and its directory. A hole needs no sync: what a crash leaves of the old bytes is as good.
//!
//! Invariants:
//! - a hole has no byte of a block that a log needs, nor of one that a reader passes on the way to it: it ends at a mark;
//! - nothing reads the copy meanwhile, so no byte changes that a reader holds.
//!
//! Must not know: raft, readers.

use super::run_directory::in_opening;
use super::sorted_copies::{KnownCopy, SortedCopies, cannot_be_read, directory_of, sorted_name};
use crate::error::{Error, ErrorKind, Result};
use crate::store::format::logs;
use crate::store::format::sorted::SortedDirectory;
use crate::store::segment::{Segment, SegmentData};
use crate::types::{Index, LogNumber};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Holes begin and end where pages do: file systems give back nothing smaller.
const PAGE_BYTES: u32 = 4096;

/// The records that the logs of a group need.
#[derive(Debug)]
pub(crate) struct Needed {
    /// The newest log that was ever opened.
    opened: LogNumber,
    /// The first record of each log.
    firsts: BTreeMap<LogNumber, Index>,
}

/// The part of its records that a log needs.
enum Part {
    Everything,
    From(Index),
    Nothing,
}

impl Needed {
    pub(crate) fn new(opened: LogNumber, firsts: impl Iterator<Item = (LogNumber, Index)>) -> Self {
        Self { opened, firsts: firsts.collect() }
    }

    fn part_of(&self, log: LogNumber) -> Part {
        match self.firsts.get(&log) {
            Some(first) => Part::From(*first),
            // A segment that was filled since then can have logs that were opened since then.
            None if log > self.opened && !planted!(139) => Part::Everything,
            None => Part::Nothing,
        }
    }
}

/// The result of a look at a copy.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum GivenBack {
    /// This much was given back now.
    Bytes(u64),
    /// The same, and more can be once the opening behind the segment is repaired.
    BytesForNow(u64),
    /// Something reads it.
    InUse,
    /// There is no such copy, or it may not be changed any more.
    Gone,
    /// The file system has no holes.
    NotSupported,
}

/// Gives back what no log needs of the copy of a segment. `needed` is committed, and that is known to be durable. Blocks for the disk.
///
/// # Errors
/// `Corrupt`: the segment behind is damaged. `Io`.
pub(crate) fn give_back(copies: &SortedCopies, segment: &Arc<Segment>, needed: &Needed) -> Result<GivenBack> {
    let Some(known) = copies.known(segment.number) else { return Ok(GivenBack::Gone) };
    let Some((ends, are_exact)) = ends_of(copies, segment)? else { return Ok(GivenBack::Gone) };
    let given = |bytes| if are_exact { GivenBack::Bytes(bytes) } else { GivenBack::BytesForNow(bytes) };
    let (disk, name) = (copies.disk(), sorted_name(segment.number));
    let path = disk.path().join(&name);
    let opened = disk.open(&name, true).map_err(|e| cannot_be_read(&path, e));
    let read = opened.and_then(|file| Ok((directory_of(segment, &*file, &path)?, file)));
    let (directory, file) = match read {
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            copies.cannot_use(segment.number, known.made, &error);
            return Ok(GivenBack::Gone);
        }
        read => read?,
    };
    let holes = holes_in(&directory, &ends, needed);
    if holes == known.holes && (known.are_made || holes.is_empty()) {
        return Ok(given(0));
    }
    let Some(_alone) = copies.exclude_readers(segment) else { return Ok(GivenBack::InUse) };
    if copies.is_closed() {
        return Ok(GivenBack::Gone);
    }
    let failed = |e| Error::io("punch holes into", &path, e);
    let before = file.allocated().map_err(failed)?;
    // Noted first: a reader that meets one takes it for no damage.
    let noted = KnownCopy { holes, are_made: false, ..known };
    copies.note(segment.number, noted.clone());
    for hole in &noted.holes {
        if !file.punch_hole(hole.start.into()..hole.end.into()).map_err(failed)? {
            copies.note(segment.number, KnownCopy { holes: Vec::new(), ..noted.clone() });
            return Ok(GivenBack::NotSupported);
        }
    }
    let after = file.allocated().map_err(failed)?;
    copies.note(segment.number, KnownCopy { are_made: true, ..noted });
    Ok(given(before.saturating_sub(after)))
}

/// The next record of each log.
type Ends = BTreeMap<LogNumber, Index>;

/// Where each log ends at the end of a segment, or behind that, as the first later opening that is not damaged says; and whether that is the
/// one behind the segment. None: no segment follows.
///
/// # Errors
/// `Corrupt`: all later openings are damaged. `Io`.
fn ends_of(copies: &SortedCopies, segment: &Segment) -> Result<Option<(Ends, bool)>> {
    let next = copies.segments().after(segment.number);
    let Some(mut next) = next.filter(|next| next.base.raft >= segment.end().raft) else { return Ok(None) };
    let ends = |bytes: &[u8]| {
        let logs = if bytes.is_empty() { Vec::new() } else { logs::decode(bytes)?.logs };
        Ok(logs.into_iter().map(|(log, state)| (log, state.next)).collect())
    };
    let mut are_exact = true;
    loop {
        let number = next.number;
        let read = in_opening(&SegmentData::unmapped(next, copies.disk())?, ends);
        next = match (read, copies.segments().after(number)) {
            (Err(error), Some(later)) if error.kind() == ErrorKind::Corrupt => {
                let _ = copies.segments().met(error, None); // the repair looks there
                later
            }
            (read, _) => return read.map(|ends| Some((ends, are_exact))),
        };
        are_exact = false;
    }
}

/// The parts of a copy that no log needs, in whole pages. `ends`: the next record of each log behind the copy.
pub(crate) fn holes_in(
    directory: &SortedDirectory,
    ends: &BTreeMap<LogNumber, Index>,
    needed: &Needed,
) -> Vec<Range<u32>> {
    let mut parts: Vec<Range<usize>> = Vec::new();
    for (log, begin, end) in directory.places() {
        let upto = match needed.part_of(log) {
            Part::Everything => begin,
            Part::Nothing => end,
            Part::From(first) if ends.get(&log).is_some_and(|next| *next <= first) => end,
            Part::From(first) => {
                let first = if planted!(140) { Index(u64::MAX) } else { first };
                directory.seek(log, first).map_or(begin, |(mark, _)| mark)
            }
        };
        match parts.last_mut() {
            Some(last) if last.end == begin => last.end = upto,
            _ => parts.push(begin..upto),
        }
    }
    let in_pages = |part: Range<usize>| {
        let (begin, end) = (part.start as u32, part.end as u32); // offsets of a directory have 32 bits
        begin.next_multiple_of(PAGE_BYTES)..end / PAGE_BYTES * PAGE_BYTES
    };
    parts.into_iter().map(in_pages).filter(|hole| hole.start < hole.end).collect()
}
