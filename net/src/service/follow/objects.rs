//! Objects: what the log has in the object store, read for copies that cannot reach the store.
//!
//! ```text
//! ReadObject ── a place among the reads ──> Vault::get, up to 4 MiB, on a thread that may block ──> pieces of 1 MiB
//! ```
//!
//! Invariants:
//! - A caller gets objects of the log that it may read, and of no other: their names begin with the log's id.
//! - Memory is paid for before bytes are read. A call that waits for the store has no turn at the disk: a slow store delays no
//!   reader of files. The number of requests to the store at a time is bounded.
//!
//! Must not know: what is in an object.

use super::Follow;
use super::source::{find_log, gone};
use crate::listener::auth::tokens::Payer;
use crate::served::caller::Caller;
use crate::served::log_slot::{LogSlot, status_of};
use crate::service::zero_copy::{
    Answers, EncodeFrame, FrameWriter, Memory, SHARED_BYTES_MIN, ahead, pay, settle,
};
use crate::wire::ids;
use crate::wire::proto::v1::{
    ListObjectsRequest, ListObjectsResponse, ObjectSizeRequest, ObjectSizeResponse, ReadObjectRequest,
    StoredObject,
};
use bytes::{BufMut, Bytes};
use chiplog::vault::Vault;
use chiplog::{Error, ErrorKind, Log};
use futures_util::stream;
use prost::Message;
use prost::encoding::encoded_len_varint;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tonic::Status;

/// The most bytes of one request to the store: as many as a copy's cache fetches at a time.
const READ_BYTES_MAX: u64 = 4 << 20;
/// The bytes of a piece. Clients accept messages of at least 4 MiB.
const PIECE_BYTES: usize = 1 << 20;
/// The limit of requests to the store at a time, of all calls.
pub(super) const REQUESTS_MAX: usize = 16;
/// The objects in one message of a list. Each takes some 80 bytes.
const PAGE: usize = 1000;

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
    host: Arc<LogSlot>,
    log: Log,
    vault: Arc<dyn Vault>,
    requests: Arc<Semaphore>,
    payer: Arc<Payer>,
}

impl Access {
    /// # Errors
    /// Those of finding the log. UNIMPLEMENTED: this server has no object store. INVALID_ARGUMENT: the name is not one of an object
    /// of this log.
    async fn of(
        follow: &Follow,
        caller: &Caller,
        (log, name): (&str, &str),
        payer: Arc<Payer>,
    ) -> Result<Self, Status> {
        let host = &follow.host;
        let log = find_log(host, caller, log, None).await?;
        let fail = |kind, what: String| Err(status_of(&log, &Error::new(kind, what)));
        let own = ids::to_hex(log.log_id().get());
        if name.strip_prefix(&own).is_none_or(|rest| !rest.starts_with('/')) {
            let what = format!("{name:?} names no object of this log: these begin with {own}/");
            return fail(ErrorKind::InvalidArgument, what);
        }
        let Some(vault) = log.options().vault.clone() else {
            let what = "this server has no object store: ask another one, or give the copy the store itself";
            return fail(ErrorKind::Unsupported, what.into());
        };
        Ok(Self { host: host.clone(), log, vault, requests: follow.requests.clone(), payer })
    }

    fn status(&self, error: &Error) -> Status {
        status_of(&self.log, error)
    }

    /// Makes one request to the store, in its turn. The request goes on if the call ends.
    async fn request<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Vault) -> chiplog::Result<T> + Send + 'static,
    ) -> Result<T, Status> {
        if self.host.is_draining() {
            return Err(self.status(&gone()));
        }
        let place = self.requests.clone().acquire_owned().await;
        let vault = self.vault.clone();
        let working = spawn_blocking(move || {
            let _place = place; // it is never closed
            work(&*vault)
        });
        match working.await {
            Ok(done) => done.map_err(|error| self.status(&error)),
            Err(_) => Err(self.status(&gone())),
        }
    }

    /// Reads these bytes of an object, which are at most [`READ_BYTES_MAX`].
    async fn read(&self, name: &str, range: Range<u64>) -> Result<VecDeque<Reply>, Status> {
        let bytes = (range.end - range.start) as usize;
        let share = ahead(&self.payer, bytes).await;
        let name = name.to_owned();
        let read = self.request(move |vault| vault.get(&name, range)).await?;
        // The vault returns exactly these bytes, so the share suffices.
        let memory = settle(share, read.len()).unwrap_or_default();
        self.host.sent_of_objects(read.len());
        let pieces =
            (0..read.len()).step_by(PIECE_BYTES).map(|at| read.slice(at..read.len().min(at + PIECE_BYTES)));
        Ok(pieces.map(|piece| Reply::Piece(piece, memory.clone())).collect())
    }

    async fn message(&self, message: &impl Message) -> Reply {
        let message = message.encode_to_vec();
        let memory = pay(&self.payer, message.len()).await;
        Reply::Message(message, memory)
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
/// Those of [`Access::of`] and of [`Vault::get`].
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
        return Err(access.status(&Error::new(ErrorKind::InvalidArgument, what)));
    }
    let first = end.min(start.saturating_add(READ_BYTES_MAX));
    let pieces = access.read(&name, start..first).await?;
    let reading = Reading { access, name, left: first..end, pieces };
    Ok(Box::pin(stream::try_unfold(reading, Reading::next)))
}

/// Returns the size of an object.
///
/// # Errors
/// Those of [`Access::of`] and of [`Vault::size`].
pub(super) async fn size(
    follow: &Follow,
    caller: &Caller,
    ObjectSizeRequest { log, name }: ObjectSizeRequest,
    payer: Arc<Payer>,
) -> Result<Answers<Reply>, Status> {
    let access = Access::of(follow, caller, (&log, &name), payer).await?;
    let bytes = access.request(move |vault| vault.size(&name)).await?;
    let reply = access.message(&ObjectSizeResponse { bytes }).await;
    Ok(Box::pin(stream::iter([Ok(reply)])))
}

/// Streams the objects of a folder.
///
/// # Errors
/// Those of [`Access::of`] and of [`Vault::list`].
pub(super) async fn list(
    follow: &Follow,
    caller: &Caller,
    ListObjectsRequest { log, folder }: ListObjectsRequest,
    payer: Arc<Payer>,
) -> Result<Answers<Reply>, Status> {
    let access = Access::of(follow, caller, (&log, &folder), payer).await?;
    let found = access.request(move |vault| vault.list(&folder)).await?;
    let pages = stream::try_unfold((access, VecDeque::from(found)), |(access, mut left)| async move {
        if left.is_empty() {
            return Ok(None);
        }
        let page = left.drain(..left.len().min(PAGE));
        let objects = page.map(|object| StoredObject { name: object.name, bytes: object.bytes }).collect();
        let reply = access.message(&ListObjectsResponse { objects }).await;
        Ok(Some((reply, (access, left))))
    });
    Ok(Box::pin(pages))
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let objects = vec![StoredObject { name: "a/o/1".into(), bytes: 1 << 33 }];
        let message = ListObjectsResponse { objects };
        let mut chunks = VecDeque::new();
        Reply::Message(message.encode_to_vec(), None).encode(&mut chunks);
        let all: Vec<u8> = chunks.iter().flatten().copied().collect();
        assert_eq!(ListObjectsResponse::decode(&all[5..]).unwrap(), message);
    }
}
