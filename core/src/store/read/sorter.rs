//! Makes the sorted copy of a segment.
//!
//! Every byte is checked before it is copied. The file is written in pieces, with a sync after some of them: the syncs of the
//! log's appends wait on the same disk.

use super::block_reader::Blocks;
use super::run_directory::{RunDirectory, RunPlace};
use super::sorted_copies::{SortedCopies, remove, sorted_name, unfinished_name};
use crate::disk::{Disk, DiskFile};
use crate::error::{Error, ErrorKind, Result};
use crate::record::batch::{BatchHeader, Malformed};
use crate::record::crc::crc32c;
use crate::store::format::block::{BLOCK_HEADER_BYTES, Batches, BlockHeader, Kind, digest_of_batches};
use crate::store::format::sorted::{SORTED_HEADER_BYTES, SortedDirectory, SortedHeader, salt};
use crate::store::segment::{Segment, Segments};
use crate::types::{LogId, LogNumber};
use std::io::{self, IoSlice};
use std::sync::Arc;

/// Bytes written at a time, and between two syncs.
const PIECE_BYTES: usize = 256 << 10;
const SYNC_BYTES: u64 = 4 << 20;
/// The largest block that batches of one time are joined to.
const BLOCK_BYTES_MAX: usize = 256 << 10;
/// Bytes read at a time without a mapping: the runs of a log are far apart.
const WINDOW_BYTES: usize = 4096;

/// Makes the sorted copy of a full segment whose blocks are all committed. Blocks for the disk.
///
/// # Errors
/// `Corrupt`: the segment is damaged. `Full`, `Io`. The file is removed then.
pub(crate) fn sort(copies: &SortedCopies, log: LogId, segment: &Arc<Segment>) -> Result<()> {
    let segments = copies.segments();
    let disk = segments.disk();
    let name = unfinished_name(segment.number);
    let made = Maker::new(segments, segment, &**disk, &name).and_then(|maker| maker.make(log));
    let made = made.and_then(|()| {
        let rename = || disk.rename(&name, &sorted_name(segment.number)).and_then(|()| disk.sync_dir());
        rename().map_err(|e| Error::io("rename", &disk.path().join(&name), e))
    });
    match made {
        Ok(()) => copies.add(segment.number),
        Err(_) => remove(&**disk, &name),
    }
    made
}

/// Makes one copy.
struct Maker<'a> {
    segment: &'a Arc<Segment>,
    blocks: Blocks,
    output: Output<'a>,
    directory: SortedDirectory,
    next: Option<NextBlock>,
}

/// A block that is being collected: batches of one log and one time.
struct NextBlock {
    log: LogNumber,
    header: BlockHeader,
    body: Vec<u8>,
    /// The checksums of its batches.
    crcs: Vec<u32>,
}

impl<'a> Maker<'a> {
    fn new(
        segments: &Segments,
        segment: &'a Arc<Segment>,
        disk: &'a dyn Disk,
        name: &'a str,
    ) -> Result<Self> {
        let blocks = Blocks::new(segments.open(segment)?, 0, WINDOW_BYTES);
        let (output, directory) = (Output::create(disk, name)?, SortedDirectory::default());
        Ok(Self { segment, blocks, output, directory, next: None })
    }

    /// Writes the file.
    fn make(mut self, log: LogId) -> Result<()> {
        self.output.push(&[0; SORTED_HEADER_BYTES])?;
        for (log, places) in RunDirectory::all_of(self.blocks.data())? {
            for place in places {
                self.add(log, place)?;
            }
        }
        self.end_block()?;
        let (directory, directory_at) = (self.directory.encode(), self.output.offset()?);
        let (logs, marks) = self.directory.counts();
        let header = SortedHeader {
            log,
            number: self.segment.number,
            id: self.segment.id,
            data_end: self.segment.data_end() as u32,
            directory_at,
            logs,
            marks,
            directory_crc: crc32c(&directory),
        };
        self.output.push(&directory)?;
        self.output.finish(&header.encode())
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
struct Output<'a> {
    file: Arc<dyn DiskFile>,
    disk: &'a dyn Disk,
    name: &'a str,
    /// The bytes that were pushed and not written, and their offset.
    pending: Vec<u8>,
    written: u64,
    synced: u64,
}

impl<'a> Output<'a> {
    fn create(disk: &'a dyn Disk, name: &'a str) -> Result<Self> {
        let create = || match disk.create(name) {
            // Left by an attempt that could not clean up.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                disk.remove(name)?;
                disk.create(name)
            }
            created => created,
        };
        let file = create().map_err(|e| Error::io("make", &disk.path().join(name), e))?;
        Ok(Self { file, disk, name, pending: Vec::with_capacity(2 * PIECE_BYTES), written: 0, synced: 0 })
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
        let write = || {
            self.file.write_at(self.written, &[IoSlice::new(&self.pending)])?;
            match self.written - self.synced >= SYNC_BYTES {
                true => self.file.sync().map(|()| true),
                false => Ok(false),
            }
        };
        let is_synced = write().map_err(|e| self.failed(e))?;
        self.written += self.pending.len() as u64;
        self.pending.clear();
        if is_synced {
            self.synced = self.written;
        }
        Ok(())
    }

    /// Writes the rest, and the header, and makes all of it durable.
    fn finish(mut self, header: &[u8]) -> Result<()> {
        self.write()?;
        let end = || {
            self.file.write_at(0, &[IoSlice::new(header)])?;
            self.file.sync()
        };
        end().map_err(|e| self.failed(e))
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::io("write", &self.disk.path().join(self.name), error)
    }
}
