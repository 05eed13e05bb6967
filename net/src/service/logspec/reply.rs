//! Reply: one answer to a reader: parts of batches, as encoded bytes or as the generated message.
//!
//! ```text
//! gRPC frame:  0 | length | ReadReply { ok { entries … } }
//! chunks:      [ heads, small records, head of a large one ] [ large record, shared ] [ … ]
//! ```

use crate::service::zero_copy::{EncodeFrame, FrameWriter, Memory, SHARED_BYTES_MIN};
use crate::wire::proto::logspec::read_reply::{Ok as Entries, Reply as Arm};
use crate::wire::proto::logspec::{Entry, ReadReply};
use bytes::Bytes;
use chiplog::RecordBatch;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, uint64};
use std::collections::VecDeque;
use std::ops::Range;

/// The field numbers of the proto.
mod field {
    pub(super) mod reply {
        pub(in crate::service::logspec) const OK: u32 = 1;
        pub(in crate::service::logspec) const TRUNCATED: u32 = 3;
    }
    pub(super) mod ok {
        pub(in crate::service::logspec) const ENTRIES: u32 = 1;
    }
    pub(super) mod entry {
        pub(in crate::service::logspec) const INDEX: u32 = 1;
        pub(in crate::service::logspec) const DATA: u32 = 3;
    }
}

/// The largest overhead of an entry in a reply: tags, its index, two lengths.
pub(super) const ENTRY_BYTES: usize = 24;

/// An answer to a reader.
#[derive(Debug)]
pub(super) enum Reply {
    /// These records, in order.
    Entries {
        parts: Vec<Part>,
        /// The memory of copied records; and of the parts, if they are in memory.
        memory: Memory,
        /// The parts were decompressed, or read without a mapping.
        is_in_memory: bool,
    },
    /// The requested entry was discarded.
    Truncated,
}

/// Some records of a batch, by their number in it.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) batch: RecordBatch,
    pub(super) records: Range<u32>,
}

impl Part {
    fn records(&self) -> impl Iterator<Item = chiplog::Record<'_>> {
        self.records.clone().filter_map(|n| self.batch.get(n))
    }

    /// The bytes of its records.
    pub(super) fn data_bytes(&self) -> usize {
        let before = |n: u32| n.checked_sub(1).map_or(0, |last| self.batch.end(last));
        before(self.records.end).saturating_sub(before(self.records.start))
    }

    /// An upper bound of its memory without its large records.
    pub(super) fn copied_bytes(&self) -> usize {
        let small = |bytes: usize| if bytes < SHARED_BYTES_MIN { bytes } else { 0 };
        self.records().map(|record| small(record.data.len()) + ENTRY_BYTES).sum()
    }
}

/// Bytes of an entry's message.
fn entry_bytes(index: u64, data: usize) -> usize {
    let data = if data == 0 { 0 } else { 1 + encoded_len_varint(data as u64) + data };
    uint64::encoded_len(field::entry::INDEX, &index) + data
}

impl EncodeFrame for Reply {
    fn encode(&self, chunks: &mut VecDeque<Bytes>) {
        let (parts, memory, is_in_memory) = match self {
            Self::Entries { parts, memory, is_in_memory } => (parts, memory, *is_in_memory),
            Self::Truncated => {
                let mut frame = FrameWriter::new(2, 2, chunks, &None);
                uint64::encode(field::reply::TRUNCATED, &1, &mut frame.head); // a bool is encoded as a number of one byte
                return frame.end();
            }
        };
        let records = || parts.iter().flat_map(Part::records);
        let of_entry = |entry: usize| 1 + encoded_len_varint(entry as u64) + entry;
        let entries: usize = records().map(|r| of_entry(entry_bytes(r.index.get(), r.data.len()))).sum();
        let copied = parts.iter().map(Part::copied_bytes).sum::<usize>() + ENTRY_BYTES;
        let mut frame = FrameWriter::new(of_entry(entries), copied, chunks, memory);
        if is_in_memory {
            frame = frame.shares_memory();
        }
        encode_key(field::reply::OK, WireType::LengthDelimited, &mut frame.head);
        encode_varint(entries as u64, &mut frame.head);
        for part in parts {
            for n in part.records.clone() {
                let Some(record) = part.batch.get(n) else { continue };
                let (index, data) = (record.index.get(), record.data);
                encode_key(field::ok::ENTRIES, WireType::LengthDelimited, &mut frame.head);
                encode_varint(entry_bytes(index, data.len()) as u64, &mut frame.head);
                uint64::encode(field::entry::INDEX, &index, &mut frame.head);
                match data.len() {
                    0 => {}
                    1..SHARED_BYTES_MIN => frame.small(field::entry::DATA, data),
                    _ => {
                        let owned = part.batch.get_owned(n).map(|owned| owned.data).unwrap_or_default();
                        frame.bytes(field::entry::DATA, &owned);
                    }
                }
            }
        }
        frame.end();
    }
}

impl From<Reply> for ReadReply {
    fn from(reply: Reply) -> Self {
        let arm = match reply {
            Reply::Truncated => Arm::Truncated(true),
            Reply::Entries { parts, .. } => {
                let entry = |owned: chiplog::OwnedRecord| Entry {
                    index: owned.index.get(),
                    skip: false,
                    data: owned.data,
                };
                let owned = |part: Part| -> Vec<_> {
                    part.records.clone().filter_map(|n| part.batch.get_owned(n)).map(entry).collect()
                };
                Arm::Ok(Entries { entries: parts.into_iter().flat_map(owned).collect() })
            }
        };
        Self { reply: Some(arm) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chiplog::{BatchBuilder, Index, StoredBatch, Timestamp};
    use prost::Message as _;

    fn part(first: u64, sizes: &[usize], records: Range<u32>) -> Part {
        let mut builder = BatchBuilder::new();
        for (n, size) in sizes.iter().enumerate() {
            builder.push(&vec![n as u8; *size]).unwrap();
        }
        let batch = builder.build().unwrap();
        let stored = StoredBatch::decode(Index(first), Timestamp(1), batch.as_bytes().clone()).unwrap();
        Part { batch: stored.unpack().unwrap(), records }
    }

    #[test]
    fn replies_match_the_proto_and_share_large_records() {
        let edge = SHARED_BYTES_MIN;
        let all: [Vec<Part>; 3] = [
            vec![part(1, &[0], 0..1)],
            vec![part(127, &[1, edge - 1, edge, 0, 300_000, 7], 1..6), part(1 << 40, &[5, 6], 0..2)],
            vec![part(300, &[edge; 4], 3..4)],
        ];
        for parts in all {
            let wanted: Vec<(u64, Vec<u8>)> = parts
                .iter()
                .flat_map(|p| p.records().map(|r| (r.index.get(), r.data.to_vec())).collect::<Vec<_>>())
                .collect();
            let reply = Reply::Entries { parts, memory: None, is_in_memory: false };
            let mut chunks = VecDeque::new();
            reply.encode(&mut chunks);
            let bytes: Vec<u8> = chunks.iter().flatten().copied().collect();
            assert_eq!(bytes[1..5], ((bytes.len() - 5) as u32).to_be_bytes());
            let got = ReadReply::decode(&bytes[5..]).unwrap();
            assert_eq!(got, ReadReply::from(reply));
            let Some(Arm::Ok(entries)) = got.reply else { panic!("no entries") };
            let got: Vec<(u64, Vec<u8>)> =
                entries.entries.iter().map(|e| (e.index, e.data.to_vec())).collect();
            assert_eq!(got, wanted);
            let shared = wanted.iter().filter(|(_, data)| data.len() >= edge).count();
            assert_eq!(
                chunks.iter().filter(|c| c.len() >= edge && c.iter().all(|b| *b == c[0])).count(),
                shared
            );
        }
        let mut chunks = VecDeque::new();
        Reply::Truncated.encode(&mut chunks);
        let bytes: Vec<u8> = chunks.iter().flatten().copied().collect();
        assert_eq!(ReadReply::decode(&bytes[5..]).unwrap(), ReadReply::from(Reply::Truncated));
    }
}
