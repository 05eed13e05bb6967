//! Finder: finds the block, or the run of a log of a shared group, that contains a record, in files and objects.
//!
//! Must not know: which records are committed, what a record is.

use crate::error::{Error, ErrorKind, Result};
use crate::read::view::LogView;
use crate::record::batch;
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind};
use crate::store::read::block_reader::Slice;
use crate::store::read::cursor::Cursor;
use crate::store::read::run_cursor::{FoundRun, RunCursor};
use crate::store::read::run_directory::unknown_object;
use crate::types::{Index, Timestamp};

/// The batches that a reader is in: a block, or a run of a mixed block.
pub(crate) struct Block {
    pub(crate) bytes: Slice,
    /// The offset of `bytes` in the segment's file.
    pub(crate) offset: usize,
    pub(crate) timestamp: Timestamp,
    /// The offset of the next batch in `bytes`, and the index of its first record.
    pub(crate) at: usize,
    pub(crate) first: Index,
}

/// Finds the batches that contain a record.
pub(crate) enum Finder {
    /// Of a directory's own log.
    Blocks(Cursor),
    /// Of a log of a shared group.
    Runs(RunCursor),
    /// Of a copy of one log of a shared group: before its files, in the objects of the group.
    Older(RunCursor),
}

impl Finder {
    pub(crate) fn new(view: &LogView, next: Index) -> Result<Self> {
        if let Some(older) = view.older_at(next) {
            return Ok(Self::Older(older.cursor()));
        }
        if view.log.is_none() {
            return Ok(Self::Blocks(view.cursor(next)?));
        }
        Ok(Self::Runs(RunCursor::new(view.runs.clone(), view.log)))
    }

    /// Whether it looks where record `next` is: the files of a copy of one log begin where it needs no more of the group's objects, and
    /// go once they have its records.
    pub(crate) fn leads_to(&self, view: &LogView, next: Index) -> bool {
        match self {
            Self::Runs(_) => true,
            Self::Blocks(_) => view.older_at(next).is_none(),
            Self::Older(_) => view.older_at(next).is_some(),
        }
    }

    /// Loads the batches of the block that contains `next`.
    pub(crate) fn find(&mut self, next: Index, lookup: bool) -> Result<Block> {
        match self {
            Self::Blocks(cursor) => find_block(cursor, next, lookup),
            Self::Runs(cursor) | Self::Older(cursor) => {
                let FoundRun { bytes, offset, first, timestamp } = cursor.find(next)?;
                Ok(Block { bytes, offset, timestamp, at: 0, first })
            }
        }
    }

    /// Of a log of a shared group: goes on in the other file that contains record `next`, the segment or its sorted copy, if `why` is damage in
    /// the one that is read. False: it is not, or there is no other file.
    pub(crate) fn go_to_other_file(&mut self, next: Index, why: &Error) -> bool {
        match self {
            Self::Blocks(_) => false,
            Self::Runs(cursor) | Self::Older(cursor) => cursor.go_to_other_file(next, why),
        }
    }

    /// Of a log of a shared group, or a copy of one: goes on in the object that contains record `next`. False: none is known.
    pub(crate) fn go_to_object(&mut self, next: Index) -> Result<bool> {
        match self {
            Self::Blocks(_) => Ok(false),
            Self::Runs(cursor) | Self::Older(cursor) => cursor.go_to_object(next),
        }
    }

    /// Drops the bytes that were read without a mapping.
    pub(crate) fn release(&mut self) {
        match self {
            Self::Blocks(cursor) => cursor.release(),
            Self::Runs(cursor) | Self::Older(cursor) => cursor.release(),
        }
    }

    /// At the tail, of a log of a shared group: lets go of the file that is read. False: none is. The file of a log on its own stays, because
    /// nothing but the records that the reader waits for fills others.
    pub(crate) fn rest(&mut self) -> bool {
        match self {
            Self::Blocks(_) => false,
            Self::Runs(cursor) | Self::Older(cursor) => cursor.rest(),
        }
    }

    /// An error at an offset of the segment.
    pub(crate) fn corrupt(&self, offset: usize, why: batch::Malformed) -> Error {
        match self {
            Self::Blocks(cursor) => cursor.corrupt(offset, why),
            Self::Runs(cursor) | Self::Older(cursor) => cursor.corrupt(offset, why),
        }
    }
}

/// Loads the block that contains `next`, at the batch that contains it.
fn find_block(cursor: &mut Cursor, next: Index, lookup: bool) -> Result<Block> {
    let located = cursor.find(|h| h.kind == Kind::Data && h.next_record() > next)?;
    let Some(located) = located else {
        if cursor.end_of_object().is_some() || cursor.is_before_files(next) {
            return Err(unknown_object(format_args!("record {next}")));
        }
        return Err(Error::new(
            ErrorKind::Corrupt,
            format!("record {next} is committed, but no block contains it"),
        ));
    };
    if located.header.first > next && cursor.is_before_files(next) {
        return Err(unknown_object(format_args!("record {next}"))); // a jump has removed the files that the cursor comes from
    }
    if located.header.first > next {
        return Err(cursor.corrupt(located.offset, "records are missing before this block"));
    }
    let BlockHeader { first, timestamp, .. } = located.header;
    let offset = located.offset;
    let before = next.0 - first.0;
    if before == 0 && !lookup {
        let bytes = cursor.load(&located, |_| {})?;
        return Ok(Block { bytes, offset, timestamp, at: BLOCK_HEADER_BYTES, first });
    }
    let (mut batches, mut start) = (Vec::new(), None);
    let bytes = cursor.load(&located, |place| {
        if u64::from(place.before) <= before {
            start = Some(place);
        }
        if lookup {
            batches.push(place);
        }
    })?;
    if lookup {
        cursor.remember(&located, batches);
    }
    let (at, skipped) = start.map_or((BLOCK_HEADER_BYTES, 0), |p| (p.at as usize, u64::from(p.before)));
    Ok(Block { bytes, offset, timestamp, at, first: first.plus(skipped) })
}
