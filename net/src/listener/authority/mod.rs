//! Authority: a connection that accepts clients with an invalid `:authority` header.
//!
//! Some clients send a description of their target as `:authority`, with spaces, commas and parentheses. The HTTP/2
//! library rejects that stream before any service sees it. So this layer checks the incoming bytes of a connection,
//! and replaces an invalid `:authority` in a header block.
//!
//! ```text
//! socket ──> frames: all except HEADERS pass unchanged
//!                    HEADERS (+ CONTINUATION): decompressed ──> valid: pass unchanged
//!                                                          └──> invalid: rewritten, and all later ones too
//! ```
//!
//! Invariants:
//! - until the first block is rewritten, every byte passes unchanged: the receiver's header table equals the sender's.
//!   From then on, blocks are rewritten so that they use no table (see `headers`);
//! - bytes that cannot be parsed pass unchanged, for the receiver to reject; once blocks are rewritten, they end the
//!   connection;
//! - at most [`HEADERS_BYTES_MAX`] of a header block, plus one read, are held.
//!
//! Must be placed on the plain bytes: inside TLS, not around it.

mod headers;

use bytes::{Buf as _, BytesMut};
use headers::Rewriter;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// The largest header block that is checked, compressed, with the heads of its frames.
pub const HEADERS_BYTES_MAX: usize = 64 << 10;

/// The largest number of frames of a header block.
const BLOCK_FRAMES_MAX: usize = 64;
/// The size of a read during a header block.
const READ_BYTES: usize = 4096;
/// The frame size that every receiver accepts.
const FRAME_BYTES: usize = 16 << 10;
/// The size of a frame's head.
const HEAD_BYTES: usize = 9;
/// The first bytes of an HTTP/2 client.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 0x01;
const END_HEADERS: u8 = 0x04;
const PADDED: u8 = 0x08;
const PRIORITY: u8 = 0x20;

/// A server's connection; rewrites invalid authorities in its incoming bytes. Outgoing bytes pass unchanged.
///
/// ```
/// use chiplog_net::listener::authority::CheckedAuthority;
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let (mut client, server) = tokio::io::duplex(100);
/// let mut server = CheckedAuthority::new(server);
/// client.write_all(b"not HTTP/2 at all").await?;
/// drop(client);
/// let mut seen = Vec::new();
/// server.read_to_end(&mut seen).await?;
/// assert_eq!(seen, b"not HTTP/2 at all");
/// # Ok::<(), std::io::Error>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct CheckedAuthority<T> {
    io: T,
    frames: Frames,
    /// Rewritten or checked bytes, ready to be read.
    ready: BytesMut,
    /// Received after those, not checked yet.
    held: BytesMut,
    ended: bool,
}

impl<T> CheckedAuthority<T> {
    /// Wraps a connection that was just accepted.
    pub fn new(io: T) -> Self {
        let frames = Frames { at: At::Preface(0), rewriter: Rewriter::new(), rewriting: false };
        Self { io, frames, ready: BytesMut::new(), held: BytesMut::new(), ended: false }
    }

    /// The wrapped connection.
    pub fn get_ref(&self) -> &T {
        &self.io
    }
}

/// The parser's position in the stream of frames.
#[derive(Debug)]
struct Frames {
    at: At,
    rewriter: Rewriter,
    /// Whether blocks are rewritten.
    rewriting: bool,
}

#[derive(Debug)]
enum At {
    /// This many bytes of the preface have arrived.
    Preface(usize),
    /// At a frame's head.
    Head,
    /// This many bytes belong to a frame that passes.
    Within(usize),
    /// Nothing is parsed any more.
    Blind,
}

/// The action for the bytes at hand.
enum Step {
    /// This many of them pass.
    Pass(usize),
    /// More bytes are needed first.
    More,
    /// The first bytes, of this number, are replaced by these.
    Instead(usize, BytesMut),
}

impl Frames {
    /// Parses the front of `data`, which is not empty.
    fn step(&mut self, data: &[u8]) -> io::Result<Step> {
        match &mut self.at {
            At::Blind => Ok(Step::Pass(data.len())),
            At::Preface(seen) => {
                let rest = &PREFACE[*seen..];
                let come = rest.len().min(data.len());
                if data[..come] != rest[..come] {
                    return self.give_up(data);
                }
                *seen += come;
                if *seen == PREFACE.len() {
                    self.at = At::Head;
                }
                Ok(Step::Pass(come))
            }
            At::Within(left) => {
                let come = data.len().min(*left);
                *left -= come;
                if *left == 0 {
                    self.at = At::Head;
                }
                Ok(Step::Pass(come))
            }
            At::Head => {
                let Some(head) = Head::parse(data) else { return Ok(Step::More) };
                if head.kind == HEADERS {
                    return self.headers(data);
                }
                self.at = At::Within(HEAD_BYTES + head.length);
                self.step(data)
            }
        }
    }

    /// Parses a header block at the front of `data`.
    fn headers(&mut self, data: &[u8]) -> io::Result<Step> {
        let extent = match extent(data) {
            Ok(Some(extent)) => extent,
            Ok(None) => return Ok(Step::More),
            Err(Senseless) => return self.give_up(data),
        };
        let Some((head, block)) = Head::parse(data).zip(block(&data[..extent])) else {
            return self.give_up(data);
        };
        let Ok((again, mended)) = self.rewriter.rewrite(&block) else { return self.give_up(data) };
        if !self.rewriting && !mended {
            self.at = At::Within(extent);
            return self.step(data);
        }
        if !self.rewriting {
            tracing::debug!("replaced a client's invalid :authority header");
        }
        self.rewriting = true;
        Ok(Step::Instead(extent, head.frames(&again)))
    }

    /// Passes bytes that cannot be parsed to the receiver, if it has seen all earlier bytes unchanged.
    fn give_up(&mut self, data: &[u8]) -> io::Result<Step> {
        if self.rewriting {
            let what = "invalid HTTP/2 headers on a connection whose headers are rewritten";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        self.at = At::Blind;
        Ok(Step::Pass(data.len()))
    }
}

/// A frame's head.
#[derive(Clone, Copy)]
struct Head {
    length: usize,
    kind: u8,
    flags: u8,
    stream: [u8; 4],
}

impl Head {
    fn parse(data: &[u8]) -> Option<Self> {
        let [a, b, c, kind, flags, stream @ ..] = *data.first_chunk::<HEAD_BYTES>()?;
        Some(Self { length: u32::from_be_bytes([0, a, b, c]) as usize, kind, flags, stream })
    }

    /// Returns the frames of the header block `block`, for a block that had this head.
    fn frames(self, block: &[u8]) -> BytesMut {
        let mut frames = BytesMut::with_capacity(block.len() + HEAD_BYTES);
        let count = block.len().div_ceil(FRAME_BYTES).max(1);
        for n in 0..count {
            let part = &block[n * FRAME_BYTES..block.len().min((n + 1) * FRAME_BYTES)];
            let (kind, flags) = if n == 0 { (HEADERS, self.flags & END_STREAM) } else { (CONTINUATION, 0) };
            let flags = if n + 1 == count { flags | END_HEADERS } else { flags };
            frames.extend_from_slice(&(part.len() as u32).to_be_bytes()[1..]);
            frames.extend_from_slice(&[kind, flags]);
            frames.extend_from_slice(&self.stream);
            frames.extend_from_slice(part);
        }
        frames
    }
}

/// The error for bytes that are not a header block, or too large a one.
struct Senseless;

/// Returns the size of the header block at the front of `data`, with its frames; None: it is incomplete.
fn extent(data: &[u8]) -> Result<Option<usize>, Senseless> {
    let mut at = 0;
    let mut stream = None;
    for _ in 0..BLOCK_FRAMES_MAX {
        let Some(head) = data.get(at..).and_then(Head::parse) else { return Ok(None) };
        let wanted = if stream.is_none() { HEADERS } else { CONTINUATION };
        if head.kind != wanted || stream.is_some_and(|s| s != head.stream) {
            return Err(Senseless);
        }
        stream = Some(head.stream);
        at += HEAD_BYTES + head.length;
        if at > HEADERS_BYTES_MAX {
            return Err(Senseless);
        }
        if head.flags & END_HEADERS != 0 {
            return Ok((at <= data.len()).then_some(at));
        }
    }
    Err(Senseless)
}

/// Returns the header block in these complete frames; None: its padding is longer than the block.
fn block(frames: &[u8]) -> Option<Vec<u8>> {
    let mut block = Vec::with_capacity(frames.len());
    let mut rest = frames;
    while let Some(head) = Head::parse(rest) {
        let mut part = rest.get(HEAD_BYTES..HEAD_BYTES + head.length)?;
        rest = &rest[HEAD_BYTES + head.length..];
        if head.kind == HEADERS {
            if head.flags & PADDED != 0 {
                let (padding, padded) = part.split_first()?;
                part = padded.get(..padded.len().checked_sub(usize::from(*padding))?)?;
            }
            if head.flags & PRIORITY != 0 {
                part = part.get(5..)?; // the priority, which is ignored
            }
        }
        block.extend_from_slice(part);
    }
    Some(block)
}

impl<T: AsyncRead + Unpin> CheckedAuthority<T> {
    /// Reads more bytes behind the held ones.
    fn poll_held(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let before = self.held.len();
        self.held.resize(before + READ_BYTES, 0);
        let mut buffer = ReadBuf::new(&mut self.held[before..]);
        let read = Pin::new(&mut self.io).poll_read(context, &mut buffer);
        let come = buffer.filled().len();
        self.held.truncate(before + come);
        if matches!(read, Poll::Ready(Ok(()))) && come == 0 {
            self.ended = true;
        }
        read
    }

    /// Parses the held bytes, of which there is at least one.
    fn poll_step(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.frames.step(&self.held)? {
            Step::Pass(count) => self.ready = self.held.split_to(count),
            Step::Instead(count, again) => {
                self.held.advance(count);
                self.ready = again;
            }
            Step::More if self.ended => self.ready = self.held.split(), // truncated
            Step::More => ready!(self.poll_held(context))?,
        }
        Poll::Ready(Ok(()))
    }

    /// Reads into the caller's buffer, and takes back the bytes that must not pass unchanged.
    fn poll_direct(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(context, buffer))?;
        let come = &buffer.filled()[before..];
        self.ended = come.is_empty();
        let mut passed = 0;
        while passed < come.len() {
            match self.frames.step(&come[passed..])? {
                Step::Pass(count) => passed += count,
                Step::More => {
                    self.held.extend_from_slice(&come[passed..]);
                    break;
                }
                Step::Instead(count, again) => {
                    self.ready = again;
                    self.held.extend_from_slice(&come[passed + count..]);
                    break;
                }
            }
        }
        buffer.set_filled(before + passed);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for CheckedAuthority<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            if !this.ready.is_empty() {
                let count = this.ready.len().min(buffer.remaining());
                buffer.put_slice(&this.ready.split_to(count));
                return Poll::Ready(Ok(()));
            }
            if !this.held.is_empty() {
                ready!(this.poll_step(context))?;
                continue;
            }
            ready!(this.poll_direct(context, buffer))?;
            if buffer.filled().len() > before || this.ended {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for CheckedAuthority<T> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(context)
    }
}

impl<T: Connected> Connected for CheckedAuthority<T> {
    type ConnectInfo = T::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.io.connect_info()
    }
}

#[cfg(test)]
mod tests;
