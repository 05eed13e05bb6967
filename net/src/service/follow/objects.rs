//! Objects: what the log has in the object store, read for copies that cannot reach the store.
//!
//! Invariant: a caller gets objects of the log that it may read, and of no other: their names begin with the log's id. If the log is a
//! branch, it also gets those of its ancestors that readers of the branch read, and no other ones of these. Objects of a group have
//! records of all its logs: a copy of one log gets them if its token may read the whole group.
//!
//! Must not know: what is in an object.

use super::Follow;
use super::source::find_log;
use crate::listener::auth::tokens::Payer;
use crate::served::caller::Caller;
use crate::served::log_slot::status_of;
use crate::service::store_access::{READ_BYTES_MAX, Stage, StoreAccess, pieces};
use crate::service::zero_copy::{Answers, EncodeFrame, FrameWriter, Memory, SHARED_BYTES_MIN, pay};
use crate::wire::ids;
use crate::wire::proto::v1::{ObjectSizeRequest, ObjectSizeResponse, ReadObjectRequest};
use bytes::{BufMut, Bytes};
use chiplog::{Error, ErrorKind};
use futures_util::stream;
use prost::Message;
use prost::encoding::encoded_len_varint;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use tonic::Status;

/// The number of the field in the proto.
const PIECE: u32 = 1;

/// One response, before it is encoded.
#[derive(Debug)]
pub(super) enum Reply {
    Piece(Bytes, Memory),
    Message(Vec<u8>, Memory),
}

impl EncodeFrame for Reply {
    fn encode(&self, chunks: &mut VecDeque<Bytes>) {
        match self {
            Self::Piece(piece, memory) => {
                let length = 1 + encoded_len_varint(piece.len() as u64) + piece.len();
                let copied = if piece.len() < SHARED_BYTES_MIN { length } else { length - piece.len() };
                let mut frame = FrameWriter::new(length, copied, chunks, memory).shares_memory();
                frame.bytes(PIECE, piece);
                frame.end();
            }
            Self::Message(message, memory) => {
                let mut frame = FrameWriter::new(message.len(), message.len(), chunks, memory);
                frame.head.put_slice(message);
                frame.end();
            }
        }
    }
}

/// The objects of one log, for one call.
struct Access {
    store: StoreAccess,
}

impl Access {
    /// # Errors
    /// Those of finding the log and of [`StoreAccess::new`]. PERMISSION_DENIED: objects of its group have other logs' records. FAILED_PRECONDITION, of kind `Diverged`: the name is one of another log,
    /// which other servers may have.
    async fn of(
        follow: &Follow,
        caller: &Caller,
        (log_name, name): (&str, &str),
        payer: Arc<Payer>,
    ) -> Result<Self, Status> {
        let host = &follow.host;
        let log = find_log(host, caller, log_name, None).await?;
        if log.is_in_object_of_group(name) {
            host.claim_group(caller, log_name)?;
        } else if !log.reads_object(name) {
            let own = ids::to_hex(log.log_id().get());
            let what = format!("{name:?} names no object of the log of this server: these begin with {own}/");
            return Err(status_of(&log, &Error::new(ErrorKind::Diverged, what)));
        }
        Ok(Self { store: StoreAccess::new(host.clone(), log, payer)? })
    }

    /// Reads these bytes of an object, which are at most [`READ_BYTES_MAX`]. Waits for a turn no longer once the answer has begun: a copy
    /// can go on at another server.
    async fn read(&self, name: &str, range: Range<u64>) -> Result<VecDeque<Reply>, Status> {
        let (read, memory) = self.store.read(Stage::New, name, range).await?;
        Ok(pieces(&read).map(|piece| Reply::Piece(piece, memory.clone())).collect())
    }
}

/// A read under way.
struct Reading {
    access: Access,
    name: String,
    left: Range<u64>,
    pieces: VecDeque<Reply>,
}

impl Reading {
    async fn next(mut self) -> Result<Option<(Reply, Self)>, Status> {
        if self.pieces.is_empty() && !self.left.is_empty() {
            let end = self.left.end.min(self.left.start + READ_BYTES_MAX);
            self.pieces = self.access.read(&self.name, self.left.start..end).await?;
            self.left.start = end;
        }
        Ok(self.pieces.pop_front().map(|piece| (piece, self)))
    }
}

/// Streams bytes of an object. The first ones are read before the call is answered: an object that is missing fails the call.
///
/// # Errors
/// Those of [`Access::of`] and of [`StoreAccess::read`]. RESOURCE_EXHAUSTED: there are too many requests.
pub(super) async fn read(
    follow: &Follow,
    caller: &Caller,
    request: ReadObjectRequest,
    payer: Arc<Payer>,
) -> Result<Answers<Reply>, Status> {
    let ReadObjectRequest { log, name, start, end } = request;
    let access = Access::of(follow, caller, (&log, &name), payer).await?;
    if start > end {
        let what = format!("the range {start}..{end} of object {name} ends before it begins");
        return Err(access.store.status(&Error::new(ErrorKind::InvalidArgument, what)));
    }
    let first = end.min(start.saturating_add(READ_BYTES_MAX));
    let pieces = access.read(&name, start..first).await?;
    let reading = Reading { access, name, left: first..end, pieces };
    Ok(Box::pin(stream::try_unfold(reading, Reading::next)))
}

/// Returns the size of an object.
///
/// # Errors
/// Those of [`Access::of`] and of [`chiplog::vault::Vault::size`]. RESOURCE_EXHAUSTED: there are too many requests.
pub(super) async fn size(
    follow: &Follow,
    caller: &Caller,
    ObjectSizeRequest { log, name }: ObjectSizeRequest,
    payer: Arc<Payer>,
) -> Result<Answers<Reply>, Status> {
    let access = Access::of(follow, caller, (&log, &name), payer).await?;
    let (bytes, _) = access.store.request(Stage::New, 0, move |vault| vault.size(&name)).await?;
    let message = ObjectSizeResponse { bytes }.encode_to_vec();
    let memory = pay(access.store.payer(), message.len()).await;
    Ok(Box::pin(stream::iter([Ok(Reply::Message(message, memory))])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::store_access::PIECE_BYTES;
    use crate::wire::proto::v1::ReadObjectResponse;

    #[test]
    fn replies_match_the_proto_and_share_large_pieces() {
        for bytes in [0, 1, SHARED_BYTES_MIN - 1, SHARED_BYTES_MIN, PIECE_BYTES] {
            let piece = Bytes::from(vec![7; bytes]);
            let mut chunks = VecDeque::new();
            Reply::Piece(piece.clone(), None).encode(&mut chunks);
            let all: Vec<u8> = chunks.iter().flatten().copied().collect();
            assert_eq!((all[0], all[1..5].to_vec()), (0, ((all.len() - 5) as u32).to_be_bytes().to_vec()));
            assert_eq!(ReadObjectResponse::decode(&all[5..]).unwrap().piece, piece);
            let is_shared = chunks.iter().any(|chunk| chunk.as_ptr() == piece.as_ptr());
            assert_eq!(is_shared, bytes >= SHARED_BYTES_MIN);
        }
        let message = ObjectSizeResponse { bytes: Some(1 << 33) };
        let mut chunks = VecDeque::new();
        Reply::Message(message.encode_to_vec(), None).encode(&mut chunks);
        let all: Vec<u8> = chunks.iter().flatten().copied().collect();
        assert_eq!(ObjectSizeResponse::decode(&all[5..]).unwrap(), message);
    }
}
