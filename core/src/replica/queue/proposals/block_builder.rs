//! Block builder: the batches that become one block. Small batches are copied into one buffer; a large batch stays in a
//! buffer of its own.

use crate::record::batch::Stamp;
use crate::sync::completer::Completer;
use crate::sync::completion::Ticket;
use bytes::{Bytes, BytesMut};
use std::ops::Range;

/// One batch of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) stamp: Stamp,
    pub(crate) crc: u32,
    pub(crate) length: u32,
    pub(crate) count: u32,
}

/// Batches that are gathered for one block.
#[derive(Debug)]
pub(crate) struct BlockBuilder {
    /// The batches, in order. Their bytes are in `pieces`, without gaps.
    pub(crate) entries: Vec<Entry>,
    pub(crate) completer: Completer,
    pieces: Vec<Piece>,
    buffer: BytesMut,
    pub(crate) bytes: usize,
    pub(crate) records: u32,
    /// Whether any batch belongs to a session.
    pub(crate) has_sessions: bool,
}

#[derive(Debug)]
enum Piece {
    Copied(Range<usize>),
    Own(Bytes),
}

impl BlockBuilder {
    pub(super) fn new(buffer: BytesMut) -> Self {
        Self {
            entries: Vec::new(),
            completer: Completer::new(),
            pieces: Vec::new(),
            buffer,
            bytes: 0,
            records: 0,
            has_sessions: false,
        }
    }

    /// Whether a batch can be added. A block counts its records in 32 bits, and records can be empty.
    pub(super) fn has_room(&self, entry: Entry, block_bytes: usize) -> bool {
        self.bytes + entry.length as usize <= block_bytes && self.records.checked_add(entry.count).is_some()
    }

    pub(super) fn push(&mut self, parts: &Parts<'_>, entry: Entry) -> Ticket {
        let ticket = self.completer.ticket(self.entries.len() as u32, self.records, entry.count);
        match parts {
            Parts::Copy(parts) => {
                let start = self.buffer.len();
                for part in *parts {
                    self.buffer.extend_from_slice(part);
                }
                match self.pieces.last_mut() {
                    Some(Piece::Copied(range)) => range.end = self.buffer.len(),
                    _ => self.pieces.push(Piece::Copied(start..self.buffer.len())),
                }
            }
            Parts::Own(bytes) => self.pieces.push(Piece::Own((*bytes).clone())),
        }
        self.bytes += entry.length as usize;
        self.records += entry.count;
        self.has_sessions |= !entry.stamp.session.is_none();
        self.entries.push(entry);
        ticket
    }

    /// Returns the bytes of all batches, in as few pieces as possible, and the promise that answers them. Leaves out
    /// the batches for which `keep` returns false. `keep` is called once for each batch, in order.
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
        let mut entries = self.entries.iter().enumerate();
        for piece in whole {
            let mut at = 0;
            while at < piece.len() {
                let Some((n, entry)) = entries.next() else { break };
                let end = at + entry.length as usize;
                if keep(n) {
                    kept.push(piece.slice(at..end));
                }
                at = end;
            }
        }
        (kept, self.completer)
    }
}

pub(super) enum Parts<'a> {
    Copy(&'a [&'a [u8]]),
    Own(&'a Bytes),
}
