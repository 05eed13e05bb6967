//! What comes from the network, before anything looks at what it means.

use chiplog::fuzzing;
use chiplog_net::authority::Mended;
use chiplog_net::logspec::AppendRequest;
use chiplog_net::proto::{logspec, v1};
use prost::Message;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

/// A message of any service: the first byte says which.
pub fn wire(input: &[u8]) {
    fn look<M: Message + Default + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
        if let Ok(message) = M::decode(bytes) {
            let again = message.encode_to_vec();
            assert_eq!(M::decode(&again[..]).as_ref(), Ok(&message), "what is understood can be said again");
        }
    }
    let Some((which, bytes)) = input.split_first() else { return };
    match which % 9 {
        0 => appends(bytes),
        1 => look::<v1::AppendRequest>(bytes),
        2 => look::<v1::ReadRequest>(bytes),
        3 => look::<v1::ReadResponse>(bytes),
        4 => look::<v1::PeerMessage>(bytes),
        5 => look::<v1::FollowRequest>(bytes),
        6 => look::<v1::FollowResponse>(bytes),
        7 => look::<v1::ChangeMembersRequest>(bytes),
        _ => look::<logspec::ReadRequest>(bytes),
    }
}

/// Requests that existing clients send: taken as they came, with a look at where their proposals lie.
fn appends(bytes: &[u8]) {
    let Ok(request) = AppendRequest::decode(bytes) else { return };
    assert!(request.largest() <= bytes.len() && request.count() as usize <= bytes.len());
    let said = |r: &AppendRequest| (r.sequence(), r.count(), r.largest());
    let again = AppendRequest::decode(&request.encode_to_vec()[..]);
    assert_eq!(again.as_ref().map(said), Ok(said(&request)));
}

/// What one replica sends another: two bytes that say how long the head is, the head, the bodies.
pub fn peer(input: &[u8]) {
    let Some((length, rest)) = input.split_first_chunk::<2>() else { return };
    let (head, body) = rest.split_at((u16::from_le_bytes(*length) as usize).min(rest.len()));
    let look = |head: &[u8]| {
        let half = body.len() / 2;
        let whole = fuzzing::peer(head, vec![body.to_vec()]);
        let halves = fuzzing::peer(head, vec![body[..half].to_vec(), body[half..].to_vec()]);
        assert_eq!(whole, halves, "how the bodies are cut changes nothing");
    };
    look(head);
    let mut mended = head.to_vec();
    if fuzzing::mend_peer(&mut mended) {
        look(&mended);
    }
}

/// A connection whose authorities are mended: what comes out does not depend on how the bytes came.
pub fn authority(input: &[u8]) {
    let Some((size, frames)) = input.split_first() else { return };
    let bytes = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", frames].concat();
    let whole = through(&bytes, bytes.len());
    let pieces = through(&bytes, usize::from(*size).max(1));
    assert_eq!(whole, pieces);
}

/// What comes out, and whether it ended in order.
fn through(bytes: &[u8], size: usize) -> (Vec<u8>, bool) {
    let mut out = Vec::new();
    let mut mended = Mended::new(Pieces { left: bytes, size });
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().build() else { return (out, false) };
    let ended = runtime.block_on(async {
        let mut part = [0; 1000];
        loop {
            match mended.read(&mut part).await {
                Ok(0) => return true,
                Ok(n) => out.extend_from_slice(&part[..n]),
                Err(_) => return false,
            }
        }
    });
    (out, ended)
}

/// A connection whose bytes come in pieces of one size.
struct Pieces<'a> {
    left: &'a [u8],
    size: usize,
}

impl AsyncRead for Pieces<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (piece, left) = self.left.split_at(self.size.min(self.left.len()).min(buffer.remaining()));
        buffer.put_slice(piece);
        self.left = left;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pieces<'_> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
