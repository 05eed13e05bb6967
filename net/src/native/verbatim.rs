//! Verbatim: replies of a read as bytes of the wire, without a copy of what is large: the log's mapping is what the
//! socket is given. The generated service would copy every reply into a buffer of its own.
//!
//! ```text
//! gRPC frame:  0 | length | ReadResponse
//! chunks:      [ head, small batches, head of a large one ] [ large batch, shared ] [ … ]
//! ```

use super::read::{NANOS_PER_MILLI, Replies, Reply};
use bytes::{BufMut, Bytes, BytesMut};
use chiplog::StoredBatch;
use http_body::Frame;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, uint64};
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tonic::Status;

/// A batch of at least this size is not copied. Smaller ones would cost more as pieces than they cost to copy.
const SHARED_BYTES_MIN: usize = 8 << 10;
/// A gRPC frame's head: not compressed, and the length.
const FRAME_HEAD_BYTES: usize = 5;

/// Numbers of the fields in the proto.
mod field {
    pub(super) mod response {
        pub(in super::super) const BATCHES: u32 = 1;
        pub(in super::super) const LAST: u32 = 2;
        pub(in super::super) const FIRST: u32 = 3;
        pub(in super::super) const NEXT: u32 = 4;
    }
    pub(super) mod batch {
        pub(in super::super) const FIRST: u32 = 1;
        pub(in super::super) const TIMESTAMP_NANOS: u32 = 2;
        pub(in super::super) const BATCH: u32 = 3;
    }
}

/// The body of a response to `Read`.
pub(super) struct ReadBody {
    /// None: all was told.
    replies: Option<Replies>,
    chunks: VecDeque<Bytes>,
}

impl ReadBody {
    pub(super) fn new(replies: Replies) -> Self {
        Self { replies: Some(replies), chunks: VecDeque::new() }
    }
}

impl http_body::Body for ReadBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            if let Some(chunk) = self.chunks.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(chunk))));
            }
            let Some(replies) = &mut self.replies else { return Poll::Ready(None) };
            let status = match ready!(replies.as_mut().poll_next(context)) {
                Some(Ok(reply)) => {
                    encode(&reply, &mut self.chunks);
                    continue;
                }
                Some(Err(status)) => status,
                None => Status::ok(""),
            };
            self.replies = None;
            let mut trailers = tonic::codegen::http::HeaderMap::new();
            let added = status.add_header(&mut trailers);
            return Poll::Ready(Some(added.map(|()| Frame::trailers(trailers))));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.replies.is_none() && self.chunks.is_empty()
    }
}

/// One gRPC frame, in chunks.
fn encode(reply: &Reply, chunks: &mut VecDeque<Bytes>) {
    let numbers = [
        (field::response::LAST, reply.last.get()),
        (field::response::FIRST, reply.first.get()),
        (field::response::NEXT, reply.next.map_or(0, chiplog::Index::get)),
    ];
    let heads: Vec<(u64, usize)> = reply.batches.iter().map(inner_bytes).collect();
    let batches: usize = heads.iter().map(|(_, inner)| 1 + encoded_len_varint(*inner as u64) + inner).sum();
    let length = batches + numbers.iter().map(|(tag, n)| uint64::encoded_len(*tag, n)).sum::<usize>();
    let copied =
        reply.batches.iter().map(|b| b.bytes().len()).filter(|n| *n < SHARED_BYTES_MIN).sum::<usize>();
    let mut head = BytesMut::with_capacity(FRAME_HEAD_BYTES + copied + 40 * (reply.batches.len() + 1));
    head.put_u8(0);
    head.put_u32(length as u32);
    for (batch, (nanos, inner)) in reply.batches.iter().zip(heads) {
        encode_key(field::response::BATCHES, WireType::LengthDelimited, &mut head);
        encode_varint(inner as u64, &mut head);
        uint64::encode(field::batch::FIRST, &batch.first().get(), &mut head);
        uint64::encode(field::batch::TIMESTAMP_NANOS, &nanos, &mut head);
        encode_key(field::batch::BATCH, WireType::LengthDelimited, &mut head);
        encode_varint(batch.bytes().len() as u64, &mut head);
        if batch.bytes().len() < SHARED_BYTES_MIN {
            head.put_slice(batch.bytes());
        } else {
            chunks.push_back(head.split().freeze());
            chunks.push_back(batch.bytes().clone());
        }
    }
    for (tag, number) in numbers {
        uint64::encode(tag, &number, &mut head);
    }
    chunks.push_back(head.freeze());
}

/// When the log took the batch, and how many bytes its message has.
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
    use crate::proto::v1::ReadResponse;
    use chiplog::{BatchBuilder, Index, Timestamp};
    use prost::Message;

    fn stored(first: u64, bytes: usize) -> StoredBatch {
        let batch = BatchBuilder::new().push(&vec![7; bytes - 44]).unwrap().build().unwrap();
        StoredBatch::decode(Index(first), Timestamp(1 << 40), batch.as_bytes().clone()).unwrap()
    }

    #[test]
    fn replies_are_the_proto_s_and_large_batches_are_shared() {
        let edge = SHARED_BYTES_MIN;
        for sizes in
            [vec![], vec![44], vec![edge - 1], vec![edge], vec![100, edge + 1, 100, 100, 300_000, 44]]
        {
            let batches: Vec<_> = sizes.iter().zip(1..).map(|(bytes, first)| stored(first, *bytes)).collect();
            let reply = Reply { batches, last: Index(1 << 33), first: Index(1), next: Some(Index(300)) };
            let mut chunks = VecDeque::new();
            encode(&reply, &mut chunks);
            let all: Vec<u8> = chunks.iter().flatten().copied().collect();
            assert_eq!((all[0], all[1..5].to_vec()), (0, ((all.len() - 5) as u32).to_be_bytes().to_vec()));
            let got = ReadResponse::decode(&all[5..]).unwrap();
            assert_eq!((got.last, got.first, got.next), (1 << 33, 1, 300));
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
