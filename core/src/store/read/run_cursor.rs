//! Run cursor: finds the runs of one log of a shared group, for readers. It keeps the segment that it reads, so that
//! returned bytes stay valid even if the segment is dropped.
//!
//! Invariant: it reads only below `Segment::readable`.

use super::block_reader::{Blocks, Slice, WINDOW_BYTES};
use super::run_directory::{RunDirectories, RunDirectory, RunPlace};
use crate::error::{Error, ErrorKind, Result};
use crate::record::batch::Malformed;
use crate::store::format::block::BlockHeader;
use crate::types::{Index, LogNumber, Timestamp};
use std::sync::Arc;

/// The batches of one run. Their list is checked, their payloads are not.
#[derive(Debug)]
pub(crate) struct FoundRun {
    pub(crate) bytes: Slice,
    /// Their offset in the segment's file.
    pub(crate) offset: usize,
    /// The index of the first record.
    pub(crate) first: Index,
    pub(crate) timestamp: Timestamp,
}

/// A position in a segment.
#[derive(Debug)]
struct Position {
    directory: Arc<RunDirectory>,
    blocks: Blocks,
}

/// Reads the runs of one log.
#[derive(Debug)]
pub(crate) struct RunCursor {
    directories: Arc<RunDirectories>,
    log: LogNumber,
    position: Option<Position>,
}

impl RunCursor {
    pub(crate) fn new(directories: Arc<RunDirectories>, log: LogNumber) -> Self {
        Self { directories, log, position: None }
    }

    /// Returns the run that contains record `next`, which is committed.
    ///
    /// # Errors
    /// `Corrupt`: the run or its block's table is damaged, or no block contains the record; `Io`.
    pub(crate) fn find(&mut self, next: Index) -> Result<FoundRun> {
        if let Some(found) = self.find_here(next)? {
            return Ok(found);
        }
        let segment = self.directories.holding(self.log, next)?;
        let directory = self.directories.of(&segment);
        let blocks = Blocks::new(self.directories.segments().open(&segment)?, 0, WINDOW_BYTES);
        self.position = Some(Position { directory, blocks });
        if let Some(found) = self.find_here(next)? {
            return Ok(found);
        }
        if let Some(Position { directory, blocks }) = &self.position {
            directory.read_gaps(blocks.data())?;
        }
        self.find_here(next)?.ok_or_else(|| {
            let what = format!("record {next} of log {} is committed, but no block contains it", self.log);
            Error::new(ErrorKind::Corrupt, what)
        })
    }

    /// Returns the run that contains record `next`, if it is in the current segment.
    fn find_here(&mut self, next: Index) -> Result<Option<FoundRun>> {
        let Some(Position { directory, blocks }) = &mut self.position else { return Ok(None) };
        let Some(place) = directory.place(blocks.data(), self.log, next)? else { return Ok(None) };
        let RunPlace { first, block, number, at } = place;
        let upto = blocks.data().segment.readable();
        blocks.seek(block as usize);
        let Some(block) = blocks.next(upto)? else { return Ok(None) };
        let (run, offset) = (blocks.run_at(&block, number as usize, upto)?, block.offset + at as usize);
        if (run.log, run.first) != (self.log, first) {
            return Err(blocks.corrupt(block.offset, "table of a mixed block has changed"));
        }
        if run.next() <= next {
            return Ok(None);
        }
        let bytes = blocks.load_run(&run, offset, upto)?;
        let BlockHeader { timestamp, .. } = block.header;
        Ok(Some(FoundRun { bytes, offset, first, timestamp }))
    }

    /// The first record of the log in a block of this time or later. `None`: no block is.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub(crate) fn first_since(&mut self, time: Timestamp) -> Result<Option<Index>> {
        self.directories.segments().undisturbed(|| self.look_since(time))
    }

    fn look_since(&self, time: Timestamp) -> Result<Option<Index>> {
        let segments = self.directories.segments();
        let from = segments.at_time(time).map_or(0, |segment| segment.number);
        for segment in segments.snapshot().into_iter().filter(|segment| segment.number >= from) {
            let data = segments.open(&segment)?;
            let places = self.directories.of(&segment).places(&data, self.log)?;
            let upto = segment.readable();
            let mut blocks = Blocks::new(data, 0, WINDOW_BYTES);
            let mut is_before = |place: &RunPlace| {
                blocks.seek(place.block as usize);
                let block = blocks.next(upto)?;
                Ok(block.is_some_and(|block| block.header.timestamp < time))
            };
            // A binary search whose steps can fail.
            let (mut low, mut high) = (0, places.len());
            while low < high {
                let middle = low.midpoint(high);
                match is_before(&places[middle])? {
                    true => low = middle + 1,
                    false => high = middle,
                }
            }
            if let Some(place) = places.get(low) {
                return Ok(Some(place.first));
            }
        }
        Ok(None)
    }

    /// An error at an offset of the cursor's segment.
    pub(crate) fn corrupt(&self, offset: usize, why: Malformed) -> Error {
        match &self.position {
            Some(Position { blocks, .. }) => blocks.corrupt(offset, why),
            None => Error::new(ErrorKind::Corrupt, why),
        }
    }
}
