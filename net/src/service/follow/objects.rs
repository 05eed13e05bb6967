//! Objects: what the log has in the object store, read for copies that cannot reach the store.
//!
//! ```text
//! ReadObject ── a place among the requests ── memory ──> Vault::get, up to 4 MiB, on a thread that may block ──> pieces of 256 KiB
//! ```
//!
//! Invariants:
//! - A caller gets objects of the log that it may read, and of no other: their names begin with the log's id.
//! - A call takes memory only once it has a place, and places are few: a slow store holds little of the memory for answers. It holds no
//!   turn at the disk. So it delays nobody who reads files.
//! - A request to the store that nobody waits for any more keeps its place and its memory until it ends.
//!
//! Must not know: what is in an object.

use super::Follow;
use super::source::{find_log, gone};
use crate::listener::auth::tokens::{Payer, Resource, Share};
use crate::served::caller::Caller;
use crate::served::log_slot::{LogSlot, status_of};
use crate::service::zero_copy::{
    Answers, EncodeFrame, FrameWriter, Memory, SHARED_BYTES_MIN, ahead, pay, settle,
};
use crate::wire::ids;
use crate::wire::proto::v1::{ObjectSizeRequest, ObjectSizeResponse, ReadObjectRequest};
use bytes::{BufMut, Bytes};
use chiplog::vault::Vault;
use chiplog::{Error, ErrorKind, Log};
use futures_util::stream;
use prost::Message;
use prost::encoding::encoded_len_varint;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tonic::Status;

/// The most bytes of one request to the store: as many as a copy's cache fetches at a time.
const READ_BYTES_MAX: u64 = 4 << 20;
/// The bytes of a piece. A client sees by each piece that bytes still arrive: over a slow connection a larger one takes long.
const PIECE_BYTES: usize = 256 << 10;
/// How long a call waits for a place and memory.
const WAIT_MAX: Duration = Duration::from_secs(5);

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
    payer: Arc<Payer>,
}

impl Access {
    /// # Errors
    /// Those of finding the log. UNIMPLEMENTED: there is no object store here. FAILED_PRECONDITION, of kind `Diverged`: the name is one of
    /// another log, which other servers may have.
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
            let what = format!("{name:?} names no object of the log of this server: these begin with {own}/");
            return fail(ErrorKind::Diverged, what);
        }
        if host.reads_through_servers() {
            let what =
                "this copy reads objects through servers itself: ask them, or give it the object store";
            return fail(ErrorKind::Unsupported, what.into());
        }
        let Some(vault) = log.options().vault.clone() else {
            let what = "this server has no object store: ask another one, or give the copy the store itself";
            return fail(ErrorKind::Unsupported, what.into());
        };
        Ok(Self { host: host.clone(), log, vault, payer })
    }

    fn status(&self, error: &Error) -> Status {
        status_of(&self.log, error)
    }

    /// Waits for a place among the requests to the store, and then for memory.
    async fn place(&self, bytes: usize) -> Result<(Share, Share), Status> {
        let waiting = async {
            let place = self.payer.take(Resource::Objects, 1).await;
            (place, ahead(&self.payer, bytes).await)
        };
        timeout(WAIT_MAX, waiting).await.map_err(|_| {
            let what =
                "too many requests to the object store are under way here; ask another server, or later";
            self.status(&Error::new(ErrorKind::Busy, what))
        })
    }

    /// Makes one request to the store, whose answer has up to this number of bytes. Returns the memory with it.
    async fn request<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce(&dyn Vault) -> chiplog::Result<T> + Send + 'static,
    ) -> Result<(T, Share), Status> {
        if self.host.is_draining() {
            return Err(self.status(&gone()));
        }
        let (place, memory) = self.place(bytes).await?;
        let vault = self.vault.clone();
        let working = spawn_blocking(move || {
            let done = work(&*vault);
            drop(place);
            (done, memory)
        });
        match working.await {
            Ok((done, memory)) => done.map(|done| (done, memory)).map_err(|error| self.status(&error)),
            Err(_) => Err(self.status(&gone())),
        }
    }

    /// Reads these bytes of an object, which are at most [`READ_BYTES_MAX`].
    async fn read(&self, name: &str, range: Range<u64>) -> Result<VecDeque<Reply>, Status> {
        let bytes = (range.end - range.start) as usize;
        let name = name.to_owned();
        let (read, memory) = self.request(bytes, move |vault| vault.get(&name, range)).await?;
        // The vault returns exactly these bytes, so the share suffices.
        let memory = settle(memory, read.len()).unwrap_or_default();
        self.host.sent_of_objects(read.len());
        let pieces = (0..read.len()).step_by(PIECE_BYTES);
        let pieces = pieces.map(|at| read.slice(at..read.len().min(at + PIECE_BYTES)));
        Ok(pieces.map(|piece| Reply::Piece(piece, memory.clone())).collect())
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
/// Those of [`Access::of`] and of [`Vault::get`]. RESOURCE_EXHAUSTED: there are too many requests.
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
/// Those of [`Access::of`] and of [`Vault::size`]. RESOURCE_EXHAUSTED: there are too many requests.
pub(super) async fn size(
    follow: &Follow,
    caller: &Caller,
    ObjectSizeRequest { log, name }: ObjectSizeRequest,
    payer: Arc<Payer>,
) -> Result<Answers<Reply>, Status> {
    let access = Access::of(follow, caller, (&log, &name), payer).await?;
    let (bytes, _) = access.request(0, move |vault| vault.size(&name)).await?;
    let message = ObjectSizeResponse { bytes }.encode_to_vec();
    let memory = pay(&access.payer, message.len()).await;
    Ok(Box::pin(stream::iter([Ok(Reply::Message(message, memory))])))
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
        let message = ObjectSizeResponse { bytes: Some(1 << 33) };
        let mut chunks = VecDeque::new();
        Reply::Message(message.encode_to_vec(), None).encode(&mut chunks);
        let all: Vec<u8> = chunks.iter().flatten().copied().collect();
        assert_eq!(ObjectSizeResponse::decode(&all[5..]).unwrap(), message);
    }
}
