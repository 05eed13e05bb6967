//! Block builder: the batches that become one block. Small batches are copied into one buffer; a large batch stays in a
//! buffer of its own.

use crate::record::batch::BatchHeader;
use crate::record::reference::{PayloadId, REFERENCE_BYTES};
use crate::store::format::mixed::{RUN_BYTES, RUNS_MAX, TABLE_FIXED_BYTES};
use crate::sync::completer::Completer;
use crate::sync::completion::Ticket;
use crate::types::LogNumber;
use bytes::{Bytes, BytesMut};
use std::ops::Range;

/// Batches that are gathered for one block.
#[derive(Debug)]
pub(crate) struct BlockBuilder {
    /// The headers of the batches, in order. Their bytes are in `pieces`, without gaps.
    pub(crate) batches: Vec<BatchHeader>,
    /// Their logs, in stretches of batches of one log. Empty in a block of the group's own log.
    stretches: Vec<Stretch>,
    /// Batches of several logs that are appended together: all of each range, or none.
    together: Vec<Range<usize>>,
    pub(crate) completer: Completer,
    pieces: Vec<Piece>,
    buffer: BytesMut,
    /// Bytes of the block's body: of the batches, and of the table if there is one.
    pub(crate) bytes: usize,
    pub(crate) records: u32,
    /// Whether any batch belongs to a session.
    pub(crate) has_sessions: bool,
    /// The lengths of the batches for which references stand in it.
    whole_lengths: Vec<u32>,
    /// Where its batches are, if they were put into a payload slice: it may be proposed in no other term.
    pub(crate) stored: Option<StoredAt>,
}

/// The place of a block's batches in a payload slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredAt {
    pub(crate) slice: PayloadId,
    /// The offsets at which they begin and end.
    pub(crate) begin: u32,
    pub(crate) end: u32,
    /// Whether they are the last ones of the slice.
    pub(crate) is_last: bool,
    /// Whether something else was in the queue before them.
    pub(crate) breaks: bool,
}

/// Neighbouring batches of one log.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    log: LogNumber,
    /// The number of the batch after them.
    end: usize,
    /// The bytes of the batches.
    bytes: usize,
}

#[derive(Debug)]
enum Piece {
    Copied(Range<usize>),
    Own(Bytes),
}

impl BlockBuilder {
    pub(super) fn new(buffer: BytesMut) -> Self {
        Self {
            batches: Vec::new(),
            stretches: Vec::new(),
            together: Vec::new(),
            completer: Completer::new(),
            pieces: Vec::new(),
            buffer,
            bytes: 0,
            records: 0,
            has_sessions: false,
            whole_lengths: Vec::new(),
            stored: None,
        }
    }

    /// A block of these batches of logs, for which nobody waits. All are of the group's own log, or none.
    pub(crate) fn of(batches: &[(LogNumber, BatchHeader, Bytes)]) -> Self {
        let mut made = Self::new(BytesMut::new());
        for (log, header, bytes) in batches {
            drop(made.push(*log, &Parts::Own(bytes), header));
        }
        made
    }

    /// Whether a batch can be added. A block counts its records in 32 bits, and records can be empty.
    pub(super) fn has_room(&self, log: LogNumber, batch: &BatchHeader, block_bytes: usize) -> bool {
        let continues = self.continues(log);
        let takes_log = match self.is_mixed() {
            true => !log.is_none() && (continues || self.stretches.len() < RUNS_MAX),
            false => log.is_none(),
        };
        let table = if continues { 0 } else { RUN_BYTES };
        takes_log
            && self.bytes + table + batch.length as usize <= block_bytes
            && self.records.checked_add(batch.count).is_some()
    }

    /// Whether the block is for logs of a shared group.
    pub(crate) fn is_mixed(&self) -> bool {
        !self.stretches.is_empty()
    }

    /// Whether a batch of this log needs no run of its own.
    fn continues(&self, log: LogNumber) -> bool {
        log.is_none() || self.stretches.last().is_some_and(|stretch| stretch.log == log)
    }

    /// The length of batch `n`, or of the one for which a reference stands there.
    pub(crate) fn whole_length(&self, n: usize) -> u32 {
        let of_batch = || self.batches.get(n).map_or(0, |batch| batch.length);
        self.whole_lengths.get(n).copied().unwrap_or_else(of_batch)
    }

    /// The batches of a mixed block with their logs, in order.
    pub(crate) fn with_logs(&self) -> impl Iterator<Item = (LogNumber, &BatchHeader)> {
        let mut begin = 0;
        self.stretches.iter().flat_map(move |Stretch { log, end, .. }| {
            let batches = &self.batches[std::mem::replace(&mut begin, *end)..*end];
            batches.iter().map(move |batch| (*log, batch))
        })
    }

    /// The bytes of the batches of each log of a mixed block. A log can be there several times.
    pub(crate) fn bytes_by_log(&self) -> impl Iterator<Item = (LogNumber, usize)> {
        self.stretches.iter().map(|stretch| (stretch.log, stretch.bytes))
    }

    /// The bytes of the table of a mixed block; 0 for other blocks.
    fn table_bytes(&self) -> usize {
        if self.is_mixed() { TABLE_FIXED_BYTES + self.stretches.len() * RUN_BYTES } else { 0 }
    }

    /// The bytes of all batches.
    pub(crate) fn payload_bytes(&self) -> usize {
        self.bytes - self.table_bytes()
    }

    /// The bytes by which it becomes smaller with references to its batches, if they go to the object store from blocks of logs of a shared
    /// group, or from the others. None: it stays whole, because it is of the other kind, or references would not make it smaller.
    pub(crate) fn beyond_references(&self, of_mixed: bool) -> Option<usize> {
        let references = self.batches.len() * REFERENCE_BYTES;
        let more = self.payload_bytes().checked_sub(references).filter(|more| *more > 0)?;
        (self.is_mixed() == of_mixed).then_some(more)
    }

    /// Whether batches of `runs` runs, with this many bytes and records in all, can be added to this mixed block.
    pub(super) fn has_room_together(
        &self,
        runs: usize,
        bytes: usize,
        records: u32,
        block_bytes: usize,
    ) -> bool {
        self.is_mixed()
            && self.stretches.len() + runs <= RUNS_MAX
            && self.bytes + runs * RUN_BYTES + bytes <= block_bytes
            && self.records.checked_add(records).is_some()
    }

    /// The last `count` batches are appended together: all of them, or none.
    pub(super) fn tie_last(&mut self, count: usize) {
        self.together.push(self.batches.len() - count..self.batches.len());
    }

    /// Whether some of its batches are appended together.
    pub(crate) fn has_together(&self) -> bool {
        !self.together.is_empty()
    }

    /// The batches that are appended together with batch `n`, if that is the first of them.
    pub(crate) fn together_from(&self, n: usize) -> Option<Range<usize>> {
        let found = self.together.binary_search_by_key(&n, |range| range.start).ok();
        found.and_then(|at| self.together.get(at).cloned())
    }

    pub(super) fn push(&mut self, log: LogNumber, parts: &Parts<'_>, batch: &BatchHeader) -> Ticket {
        if !self.continues(log) {
            self.bytes += if self.is_mixed() { RUN_BYTES } else { TABLE_FIXED_BYTES + RUN_BYTES };
            self.stretches.push(Stretch { log, end: self.batches.len(), bytes: 0 });
        }
        if let Some(stretch) = self.stretches.last_mut() {
            stretch.end += 1;
            stretch.bytes += batch.length as usize;
        }
        let ticket = self.completer.ticket(self.batches.len() as u32, self.records, batch.count);
        match parts {
            Parts::Copy(parts) => {
                let start = self.buffer.len();
                for part in parts {
                    self.buffer.extend_from_slice(part);
                }
                match self.pieces.last_mut() {
                    Some(Piece::Copied(range)) => range.end = self.buffer.len(),
                    _ => self.pieces.push(Piece::Copied(start..self.buffer.len())),
                }
            }
            Parts::Own(bytes) => self.pieces.push(Piece::Own((*bytes).clone())),
        }
        self.bytes += batch.length as usize;
        self.records += batch.count;
        self.has_sessions |= !batch.stamp.session.is_none();
        self.batches.push(*batch);
        ticket
    }

    /// Takes the bytes of all batches out, in as few pieces as possible. Their headers stay, for [`Self::refer`].
    pub(crate) fn take_payload(&mut self) -> Vec<Bytes> {
        let buffer = std::mem::take(&mut self.buffer).freeze();
        let pieces = std::mem::take(&mut self.pieces).into_iter();
        let whole = pieces.map(|piece| match piece {
            Piece::Copied(range) => buffer.slice(range),
            Piece::Own(bytes) => bytes,
        });
        whole.collect()
    }

    /// Replaces the batches, whose bytes were taken out, by others with the same records and places in their sessions: `refer` returns
    /// header and bytes of each.
    pub(crate) fn refer<const N: usize>(
        &mut self,
        mut refer: impl FnMut(&BatchHeader) -> (BatchHeader, [u8; N]),
    ) {
        let mut buffer = BytesMut::with_capacity(self.batches.len() * N);
        self.whole_lengths = self.batches.iter().map(|batch| batch.length).collect();
        for batch in &mut self.batches {
            let (header, bytes) = refer(batch);
            buffer.extend_from_slice(&bytes);
            *batch = header;
        }
        let mut begin = 0;
        for stretch in &mut self.stretches {
            stretch.bytes = (stretch.end - std::mem::replace(&mut begin, stretch.end)) * N;
        }
        self.bytes = self.table_bytes() + buffer.len();
        self.pieces = vec![Piece::Copied(0..buffer.len())];
        self.buffer = buffer;
    }

    /// Returns the bytes of all batches, in as few pieces as possible, and the completer that answers them. Leaves
    /// out the batches for which `keep` returns false. `keep` is called once for each batch, in order.
    pub(crate) fn into_pieces(
        self,
        mut keep: Option<&mut dyn FnMut(usize) -> bool>,
    ) -> (Vec<Bytes>, Completer) {
        let buffer = self.buffer.freeze();
        let whole = self.pieces.into_iter().map(|p| match p {
            Piece::Copied(range) => buffer.slice(range),
            Piece::Own(bytes) => bytes,
        });
        let Some(keep) = keep.as_mut() else { return (whole.collect(), self.completer) };
        let mut kept = Vec::new();
        let mut batches = self.batches.iter().enumerate();
        for piece in whole {
            let mut at = 0;
            while at < piece.len() {
                let Some((n, batch)) = batches.next() else { break };
                let end = at + batch.length as usize;
                if keep(n) {
                    kept.push(piece.slice(at..end));
                }
                at = end;
            }
        }
        (kept, self.completer)
    }
}

/// The bytes of a batch.
pub(super) enum Parts<'a> {
    Copy([&'a [u8]; 3]),
    Own(&'a Bytes),
}
