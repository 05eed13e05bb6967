//! Sorter: makes the sorted copy of a segment, in steps, so that more urgent work of the helper thread comes between them.
//!
//! The first steps read where the runs of each log are; the others copy them. Each reads or writes up to a few MiB: an append of any log on
//! the disk can wait for a file meanwhile. Every byte is checked before it is copied. Each step ends with a sync of what it wrote: the syncs of the log's appends wait on the
//! same disk.

use super::block_reader::Blocks;
use super::run_directory::{RunPlace, RunWalk};
use super::sorted_copies::{SortedCopies, sorted_name, unfinished_name};
use crate::disk::{Disk, DiskFile};
use crate::error::{Error, ErrorKind, Result};
use crate::record::batch::{BatchHeader, Malformed};
use crate::record::crc::crc32c;
use crate::store::format::block::{BLOCK_HEADER_BYTES, Batches, BlockHeader, Kind, digest_of_batches};
use crate::store::format::sorted::{SORTED_HEADER_BYTES, SortedDirectory, SortedHeader, salt};
use crate::store::segment::{Segment, SegmentData};
use crate::types::{LogId, LogNumber};
use std::collections::btree_map;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::vec;

/// Bytes written at a time.
const PIECE_BYTES: usize = 256 << 10;
/// Bytes of the segment that are looked through in a step, or of the copy that are written in one.
const STEP_BYTES: usize = 4 << 20;
/// The most runs that are copied in a step: each can be a read of its own.
const STEP_RUNS: usize = 4096;
/// The largest block that batches of one time are joined to.
const BLOCK_BYTES_MAX: usize = 256 << 10;
/// Bytes read at a time: the runs of a log are far apart.
const WINDOW_BYTES: usize = 4096;
/// No copy is made of a segment with more records: a run can be a single one, and takes some memory while the copy is made.
const RECORDS_MAX: u64 = 1 << 22;
/// The number of further segments that have to fit the disk behind a copy; else none is made.
const RESERVE_SEGMENTS: u64 = 16;

/// Whether a copy can be made.
#[derive(Debug)]
pub(crate) enum Begun {
    Sorter(Box<Sorter>),
    /// The segment is gone, or has too many records.
    NotThis,
    /// The disk has too little space for a copy.
    NoRoom,
}

/// How far a copy is.
#[derive(Debug)]
pub(crate) enum Step {
    More,
    /// It is complete, and readers use it.
    Done,
    /// The disk has too little space left.
    NoRoom,
}

/// Whether the disk has space for a copy, and enough behind it. Yes, if that is not known.
fn has_room(disk: &dyn Disk, segment: &Segment) -> bool {
    let needed = u64::from(segment.bytes) * (RESERVE_SEGMENTS + 2);
    disk.space().ok().flatten().is_none_or(|space| space.free >= needed)
}

/// Makes one copy. If it is dropped before its last step, the file is removed.
#[derive(Debug)]
pub(crate) struct Sorter {
    copies: Arc<SortedCopies>,
    log: LogId,
    segment: Arc<Segment>,
    blocks: Blocks,
    /// Finds the runs. None: all are found.
    walk: Option<RunWalk>,
    /// Those that were found, and are not copied yet.
    runs: Runs,
    output: Output,
    directory: SortedDirectory,
    next: Option<NextBlock>,
    is_done: bool,
}

/// Runs, log by log.
#[derive(Debug, Default)]
struct Runs {
    log: LogNumber,
    /// Of that log.
    places: vec::IntoIter<RunPlace>,
    /// Of the logs behind it.
    others: btree_map::IntoIter<LogNumber, Vec<RunPlace>>,
}

impl Iterator for Runs {
    type Item = (LogNumber, RunPlace);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(place) = self.places.next() {
                return Some((self.log, place));
            }
            let (log, places) = self.others.next()?;
            (self.log, self.places) = (log, places.into_iter());
        }
    }
}

impl Drop for Sorter {
    fn drop(&mut self) {
        if !self.is_done {
            self.copies.remove(&self.output.name);
        }
    }
}

/// A block that is being collected: batches of one log and one time.
#[derive(Debug)]
struct NextBlock {
    log: LogNumber,
    header: BlockHeader,
    body: Vec<u8>,
    /// The checksums of its batches.
    crcs: Vec<u32>,
}

impl Sorter {
    /// Begins the copy of a full segment whose blocks are all committed: opens both files. Blocks for the disk.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn begin(copies: Arc<SortedCopies>, log: LogId, segment: Arc<Segment>) -> Result<Begun> {
        let disk = copies.segments().disk().clone();
        let records = segment.end().next.0 - segment.base.next.0;
        if !copies.segments().contains(&segment) || records > RECORDS_MAX {
            return Ok(Begun::NotThis);
        }
        if !has_room(&*disk, &segment) {
            return Ok(Begun::NoRoom);
        }
        let data = SegmentData::unmapped(segment.clone(), &*disk)?;
        let mut sorter = Self {
            blocks: Blocks::new(data.clone(), 0, WINDOW_BYTES),
            output: Output::create(disk, unfinished_name(segment.number))?,
            copies,
            log,
            segment,
            walk: Some(RunWalk::new(data)),
            runs: Runs::default(),
            directory: SortedDirectory::default(),
            next: None,
            is_done: false,
        };
        sorter.output.push(&[0; SORTED_HEADER_BYTES])?;
        Ok(Begun::Sorter(Box::new(sorter)))
    }

    /// Finds some more runs, or copies some more. Blocks for the disk.
    ///
    /// # Errors
    /// `Corrupt`: the segment is damaged. `Io`: the disk may be full.
    pub(crate) fn step(&mut self) -> Result<Step> {
        if !has_room(&*self.output.disk, &self.segment) {
            return Ok(Step::NoRoom);
        }
        if let Some(walk) = &mut self.walk {
            if walk.step(STEP_BYTES)? {
                let others = self.walk.take().map(RunWalk::into_places).unwrap_or_default().into_iter();
                self.runs = Runs { others, ..Runs::default() };
            }
            return Ok(Step::More);
        }
        let end = self.output.written + STEP_BYTES as u64;
        for _ in 0..STEP_RUNS {
            let Some((log, place)) = self.runs.next() else { return self.finish().map(|()| Step::Done) };
            self.add(log, place)?;
            if self.output.written >= end {
                break;
            }
        }
        self.output.sync()?;
        Ok(Step::More)
    }

    fn finish(&mut self) -> Result<()> {
        self.end_block()?;
        let (directory, directory_at) = (self.directory.encode(), self.output.offset()?);
        let (logs, marks) = self.directory.counts();
        let header = SortedHeader {
            log: self.log,
            number: self.segment.number,
            id: self.segment.id,
            data_end: self.segment.data_end() as u32,
            directory_at,
            logs,
            marks,
            directory_crc: crc32c(&directory),
        };
        self.output.push(&directory)?;
        self.output.finish(&header.encode())?;
        let (number, disk) = (self.segment.number, &*self.output.disk);
        let rename = || disk.rename(&self.output.name, &sorted_name(number)).and_then(|()| disk.sync_dir());
        rename().map_err(|e| Error::io("rename", &disk.path().join(&self.output.name), e))?;
        self.is_done = true;
        self.copies.add(number);
        if !self.copies.segments().contains(&self.segment) {
            self.copies.forget_below(number + 1);
            self.copies.remove(&sorted_name(number));
        }
        Ok(())
    }

    /// Adds a run of a log.
    fn add(&mut self, log: LogNumber, place: RunPlace) -> Result<()> {
        let upto = self.segment.data_end();
        self.blocks.seek(place.block as usize);
        let corrupt = |blocks: &Blocks, why| blocks.corrupt(place.block as usize, why);
        let block = self.blocks.next(upto)?;
        let block = block.ok_or_else(|| corrupt(&self.blocks, "block of a run is missing"))?;
        let run = self.blocks.run_at(&block, place.number as usize, upto)?;
        if (run.log, run.first) != (log, place.first) {
            return Err(corrupt(&self.blocks, "table of a mixed block has changed"));
        }
        let offset = block.offset + place.at as usize;
        let bytes = self.blocks.load_run(&run, offset, upto)?;
        let crcs: Result<Vec<u32>, Malformed> = Batches::new(&bytes).map(|batch| checked(batch?)).collect();
        let crcs = crcs.map_err(|why| self.blocks.corrupt(offset, why))?;
        let is_joined = |next: &NextBlock| {
            (next.log == log || planted!(89))
                && next.header.timestamp == block.header.timestamp
                && (next.header.next_record() == run.first || planted!(89))
                && next.body.len() + bytes.len() <= BLOCK_BYTES_MAX
        };
        if !self.next.as_ref().is_some_and(is_joined) {
            self.end_block()?;
        }
        let next = self.next.get_or_insert_with(|| NextBlock {
            log,
            header: BlockHeader {
                kind: Kind::Data,
                first: run.first,
                batch_count: 0,
                record_count: 0,
                durable_upto: 0,
                ..block.header
            },
            body: Vec::new(),
            crcs: Vec::new(),
        });
        next.header.batch_count += run.batches;
        next.header.record_count += run.records;
        (next.header.raft_index, next.header.term) = (block.header.raft_index, block.header.term);
        next.body.extend_from_slice(&bytes);
        next.crcs.extend(crcs);
        Ok(())
    }

    fn end_block(&mut self) -> Result<()> {
        let Some(NextBlock { log, header, body, crcs }) = self.next.take() else { return Ok(()) };
        let length = (BLOCK_HEADER_BYTES + body.len()) as u32;
        let header = BlockHeader { length, body_digest: digest_of_batches(crcs), ..header };
        let offset = self.output.offset()?;
        self.output.push(&header.encode(salt(self.segment.id, log)))?;
        self.output.push(&body)?;
        self.output.push(&ZEROS[..header.stride() - length as usize])?;
        self.directory.add(log, header.first, offset, self.output.offset()?);
        Ok(())
    }
}

/// The checksum of a batch whose bytes are right.
fn checked((batch, bytes): (BatchHeader, &[u8])) -> Result<u32, Malformed> {
    if crc32c(&bytes[4..]) == batch.crc { Ok(batch.crc) } else { Err("batch checksum does not match") }
}

/// The padding behind a block.
static ZEROS: [u8; BLOCK_HEADER_BYTES] = [0; BLOCK_HEADER_BYTES];

/// A file that is written from its beginning to its end.
#[derive(Debug)]
struct Output {
    file: Arc<dyn DiskFile>,
    disk: Arc<dyn Disk>,
    name: String,
    /// The bytes that were pushed and not written, and their offset.
    pending: Vec<u8>,
    written: u64,
}

impl Output {
    fn create(disk: Arc<dyn Disk>, name: String) -> Result<Self> {
        let create = || match disk.create(&name) {
            // Left by an attempt that could not clean up.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                disk.remove(&name)?;
                disk.create(&name)
            }
            created => created,
        };
        let file = create().map_err(|e| Error::io("make", &disk.path().join(&name), e))?;
        Ok(Self { file, disk, name, pending: Vec::with_capacity(2 * PIECE_BYTES), written: 0 })
    }

    /// The offset of the next push.
    fn offset(&self) -> Result<u32> {
        let at = self.written + self.pending.len() as u64;
        u32::try_from(at)
            .map_err(|_| Error::new(ErrorKind::TooLarge, "sorted copy of a segment exceeds 4 GiB"))
    }

    fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.pending.extend_from_slice(bytes);
        if self.pending.len() >= PIECE_BYTES { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<()> {
        let written = self.file.write_at(self.written, &[IoSlice::new(&self.pending)]);
        written.map_err(|e| self.failed(e))?;
        self.written += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.file.sync().map_err(|e| self.failed(e))
    }

    /// Writes the rest, and the header, and makes all of it durable.
    fn finish(&mut self, header: &[u8]) -> Result<()> {
        self.write()?;
        let written = self.file.write_at(0, &[IoSlice::new(header)]);
        written.map_err(|e| self.failed(e))?;
        self.sync()
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::io("write", &self.disk.path().join(&self.name), error)
    }
}
