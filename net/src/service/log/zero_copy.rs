//! Zero copy: the replies of a read as encoded bytes.
//!
//! ```text
//! gRPC frame:  0 | length | ReadResponse
//! chunks:      [ head, small batches, head of a large one ] [ large batch, shared ] [ … ]
//! ```

use super::read::Reply;
use crate::service::zero_copy::{EncodeFrame, FrameWriter, SHARED_BYTES_MIN};
use crate::wire::protocol::NANOS_PER_MILLI;
use bytes::Bytes;
use chiplog::StoredBatch;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, uint64};
use std::collections::VecDeque;

/// The field numbers of the proto.
mod field {
    pub(super) mod response {
        pub(in crate::service::log) const BATCHES: u32 = 1;
        pub(in crate::service::log) const LAST: u32 = 2;
        pub(in crate::service::log) const FIRST: u32 = 3;
        pub(in crate::service::log) const NEXT: u32 = 4;
        pub(in crate::service::log) const SHORT: u32 = 5;
    }
    pub(super) mod batch {
        pub(in crate::service::log) const FIRST: u32 = 1;
        pub(in crate::service::log) const TIMESTAMP_NANOS: u32 = 2;
        pub(in crate::service::log) const BATCH: u32 = 3;
    }
}

impl EncodeFrame for Reply {
    fn encode(&self, chunks: &mut VecDeque<Bytes>) {
        let numbers = [
            (field::response::LAST, self.last.get()),
            (field::response::FIRST, self.first.get()),
            (field::response::NEXT, self.next.map_or(0, chiplog::Index::get)),
            (field::response::SHORT, u64::from(self.short)),
        ];
        // Omitted if false: older clients do not know the field.
        let numbers = &numbers[..if self.short { 4 } else { 3 }];
        let heads: Vec<(u64, usize)> = self.batches.iter().map(inner_bytes).collect();
        let batches: usize =
            heads.iter().map(|(_, inner)| 1 + encoded_len_varint(*inner as u64) + inner).sum();
        let length = batches + numbers.iter().map(|(tag, n)| uint64::encoded_len(*tag, n)).sum::<usize>();
        let copied =
            self.batches.iter().map(|b| b.bytes().len()).filter(|n| *n < SHARED_BYTES_MIN).sum::<usize>();
        let mut frame =
            FrameWriter::new(length, copied + 40 * (self.batches.len() + 1), chunks, &self.memory);
        if self.is_in_memory {
            frame = frame.shares_memory();
        }
        for (batch, (nanos, inner)) in self.batches.iter().zip(heads) {
            encode_key(field::response::BATCHES, WireType::LengthDelimited, &mut frame.head);
            encode_varint(inner as u64, &mut frame.head);
            uint64::encode(field::batch::FIRST, &batch.first().get(), &mut frame.head);
            uint64::encode(field::batch::TIMESTAMP_NANOS, &nanos, &mut frame.head);
            frame.bytes(field::batch::BATCH, batch.bytes());
        }
        for (tag, number) in numbers {
            uint64::encode(*tag, number, &mut frame.head);
        }
        frame.end();
    }
}

/// When the log appended the batch, and the bytes of its message.
fn inner_bytes(batch: &StoredBatch) -> (u64, usize) {
    let nanos = batch.timestamp().get().saturating_mul(NANOS_PER_MILLI);
    let bytes = batch.bytes().len();
    let inner = uint64::encoded_len(field::batch::FIRST, &batch.first().get())
        + uint64::encoded_len(field::batch::TIMESTAMP_NANOS, &nanos)
        + 1
        + encoded_len_varint(bytes as u64)
        + bytes;
    (nanos, inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::proto::v1::ReadResponse;
    use chiplog::{BatchBuilder, Index, Timestamp};
    use prost::Message;

    fn stored(first: u64, bytes: usize) -> StoredBatch {
        let batch = BatchBuilder::new().push(&vec![7; bytes - 44]).unwrap().build().unwrap();
        StoredBatch::decode(Index(first), Timestamp(1 << 40), batch.as_bytes().clone()).unwrap()
    }

    #[test]
    fn replies_match_the_proto_and_share_large_batches() {
        let edge = SHARED_BYTES_MIN;
        for sizes in [
            vec![],
            vec![44],
            vec![44, 44],
            vec![edge - 1],
            vec![edge],
            vec![100, edge + 1, 100, 100, 300_000, 44],
        ] {
            let batches: Vec<_> = sizes.iter().zip(1..).map(|(bytes, first)| stored(first, *bytes)).collect();
            let (last, first, next) = (Index(1 << 33), Index(1), Some(Index(300)));
            let short = sizes.len() == 2;
            let reply = Reply { batches, last, first, next, short, memory: None, is_in_memory: false };
            let mut chunks = VecDeque::new();
            reply.encode(&mut chunks);
            let all: Vec<u8> = chunks.iter().flatten().copied().collect();
            assert_eq!((all[0], all[1..5].to_vec()), (0, ((all.len() - 5) as u32).to_be_bytes().to_vec()));
            let got = ReadResponse::decode(&all[5..]).unwrap();
            assert_eq!((got.last, got.first, got.next, got.short), (1 << 33, 1, 300, short));
            assert_eq!(got.batches.len(), sizes.len());
            for (got, sent) in got.batches.iter().zip(&reply.batches) {
                assert_eq!((got.first, &got.batch), (sent.first().get(), sent.bytes()));
                assert_eq!(got.timestamp_nanos, (1 << 40) * NANOS_PER_MILLI);
                let shared = chunks.iter().any(|c| c.as_ptr() == sent.bytes().as_ptr());
                assert_eq!(shared, sent.bytes().len() >= edge);
            }
        }
    }
}
