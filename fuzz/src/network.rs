//! Messages from the network, before any code interprets them.

use chiplog::fuzzing;
use chiplog_net::listener::authority::CheckedAuthority;
use chiplog_net::service::logspec::AppendRequest;
use chiplog_net::wire::proto::{logspec, v1};
use prost::Message;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

/// The check of the bytes of one message.
type Look = fn(&[u8]);

/// Each with its name in the protos.
macro_rules! messages {
    ($($package:ident::$message:ident),* $(,)?) => {
        &[$((concat!(stringify!($package), ".", stringify!($message)), look::<$package::$message> as Look)),*]
    };
}

/// All messages that servers and clients send each other: the request and the answer of every call. Add new ones at the
/// end: the corpus depends on the order.
const MESSAGES: &[(&str, Look)] = messages![
    v1::AppendRequest,
    v1::ReadRequest,
    v1::ReadResponse,
    v1::PeerMessage,
    v1::FollowRequest,
    v1::FollowResponse,
    v1::ChangeMembersRequest,
    logspec::ReadRequest,
    v1::AppendResponse,
    v1::ServerInfoResponse,
    v1::StatusResponse,
    v1::InfoResponse,
    v1::WatchResponse,
    v1::ScrubResponse,
    v1::ChangeMembersResponse,
    v1::JoinResponse,
    v1::PeerHello,
    v1::OpenSessionResponse,
    v1::InitResponse,
    v1::DiscardRequest,
    v1::InfoRequest,
    v1::WatchRequest,
    v1::OpenSessionRequest,
    v1::CloseSessionRequest,
    v1::JoinRequest,
    v1::StatusRequest,
    v1::TransferLeaderRequest,
    v1::ScrubRequest,
    v1::DiscardResponse,
    v1::CloseSessionResponse,
    v1::ServerInfoRequest,
    v1::InitRequest,
    v1::TransferLeaderResponse,
    logspec::AppendReply,
    logspec::DiscardRequest,
    logspec::DiscardReply,
    logspec::ReadReply,
    logspec::InfoRequest,
    logspec::InfoReply,
    v1::LogOptionsRequest,
    v1::LogOptionsResponse,
    v1::SetLogOptionsRequest,
    v1::SetLogOptionsResponse,
    v1::CreateLogRequest,
    v1::CreateLogResponse,
    v1::DeleteLogRequest,
    v1::DeleteLogResponse,
    v1::SealLogRequest,
    v1::SealLogResponse,
    v1::ListLogsRequest,
    v1::ListLogsResponse,
    v1::HostRequest,
    v1::HostResponse,
    v1::AllowSystemLogRequest,
    v1::AllowSystemLogResponse,
    v1::ViewRequest,
    v1::ViewResponse,
    v1::ReadObjectRequest,
    v1::ReadObjectResponse,
    v1::ObjectSizeRequest,
    v1::ObjectSizeResponse,
    v1::CutObjectsRequest,
    v1::CutObjectsResponse,
    v1::AppendTogetherRequest,
    v1::AppendTogetherResponse,
];

fn look<M: Message + Default + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    if let Ok(message) = M::decode(bytes) {
        let again = message.encode_to_vec();
        assert_eq!(M::decode(&again[..]).as_ref(), Ok(&message), "what is understood can be said again");
    }
}

/// A message of any service: the first byte selects one. 0 is the one that has a decoder of its own.
pub fn wire(input: &[u8]) {
    let Some((which, bytes)) = input.split_first() else { return };
    match (usize::from(*which) % (MESSAGES.len() + 1)).checked_sub(1) {
        None => appends(bytes),
        Some(n) => MESSAGES[n].1(bytes),
    }
}

/// Requests of existing clients: kept as they arrived, with the positions of their proposals.
fn appends(bytes: &[u8]) {
    let Ok(request) = AppendRequest::decode(bytes) else { return };
    assert!(request.largest() <= bytes.len() && request.count() as usize <= bytes.len());
    let said = |r: &AppendRequest| (r.sequence(), r.count(), r.largest());
    let again = AppendRequest::decode(&request.encode_to_vec()[..]);
    assert_eq!(again.as_ref().map(said), Ok(said(&request)));
}

/// A message between replicas: two bytes with the length of the head, the head, the bodies.
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
    if fuzzing::fix_peer(&mut mended) {
        look(&mended);
    }
}

/// A connection whose authorities are replaced: the result does not depend on how the bytes arrive.
pub fn authority(input: &[u8]) {
    let Some((size, frames)) = input.split_first() else { return };
    let bytes = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", frames].concat();
    let whole = through(&bytes, bytes.len());
    let pieces = through(&bytes, usize::from(*size).max(1));
    assert_eq!(whole, pieces);
}

/// The resulting bytes, and whether the connection ended in order.
fn through(bytes: &[u8], size: usize) -> (Vec<u8>, bool) {
    let mut out = Vec::new();
    let mut mended = CheckedAuthority::new(Pieces { left: bytes, size });
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

/// A connection whose bytes arrive in pieces of one size.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_messages_of_all_calls_are_looked_at() {
        let files =
            prost_types::FileDescriptorSet::decode(chiplog_net::wire::proto::DESCRIPTORS).unwrap().file;
        let methods = files.iter().flat_map(|file| &file.service).flat_map(|service| &service.method);
        let used: BTreeSet<String> = methods
            .flat_map(|method| [method.input_type(), method.output_type()])
            .map(|name| name.trim_start_matches(".chiplog.").trim_start_matches('.').to_owned())
            .collect();
        let mut looked_at: BTreeSet<String> = MESSAGES.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(looked_at.len(), MESSAGES.len(), "none twice");
        looked_at.insert("logspec.AppendRequest".to_owned());
        assert_eq!(looked_at, used, "left: what is looked at; right: what is used");
    }
}
