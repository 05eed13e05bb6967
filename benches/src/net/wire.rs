//! Wire: the part of HTTP/2 and gRPC that a client needs which sends requests on open streams and receives answers.
//!
//! On a machine with two cores the server lacks what the load costs. So the load consists of bytes, without a gRPC
//! library: requests are combined in one buffer and written at once, answers are cut from the bytes read.
//!
//! Invariants:
//! - Nothing is sent beyond the windows that the server granted.
//! - The server may send more than a run ever receives: this side never has to grant more.
//!
//! Must not know: sockets, what requests and answers say.

use anyhow::{Result, bail};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

const FRAME_HEAD_BYTES: usize = 9;
const MESSAGE_HEAD_BYTES: usize = 5;
/// Every receiver accepts frames of this size.
const FRAME_BYTES_MAX: usize = 16 << 10;
const WINDOW_AT_FIRST: i64 = 65_535;
const WINDOW_MAX: u32 = (1 << 31) - 1;
const SETTING_INITIAL_WINDOW: u16 = 4;

/// The client's side of one connection.
#[derive(Debug)]
pub(super) struct Wire {
    /// Bytes to be written to the socket; the writer empties it.
    pub(super) out: Vec<u8>,
    received: Vec<u8>,
    /// How far `received` was processed.
    at: usize,
    streams: Vec<Stream>,
    window: i64,
    initial_window: i64,
    /// The stream whose bytes may hold another answer.
    current: Option<usize>,
}

#[derive(Debug)]
struct Stream {
    window: i64,
    answers: Vec<u8>,
    at: usize,
}

/// An answer that arrived on a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    /// Number of the stream, from 0 in the order in which they were opened.
    pub(super) stream: usize,
    from: usize,
    to: usize,
}

impl Wire {
    /// Starts a connection.
    pub(super) fn new() -> Self {
        let mut out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        frame_head(&mut out, 6, SETTINGS, 0, 0);
        out.extend_from_slice(&SETTING_INITIAL_WINDOW.to_be_bytes());
        out.extend_from_slice(&WINDOW_MAX.to_be_bytes());
        frame_head(&mut out, 4, WINDOW_UPDATE, 0, 0);
        out.extend_from_slice(&(WINDOW_MAX - WINDOW_AT_FIRST as u32).to_be_bytes());
        Self {
            out,
            received: Vec::new(),
            at: 0,
            streams: Vec::new(),
            window: WINDOW_AT_FIRST,
            initial_window: WINDOW_AT_FIRST,
            current: None,
        }
    }

    /// Calls a method, such as `/chiplog.v1.Log/Append`; returns its number.
    pub(super) fn open(&mut self, path: &str) -> usize {
        // Literals that the receiver does not store; the small numbers are indexes in the static table.
        let mut block = vec![0x83, 0x86]; // POST, http
        for (name, value) in [(&[0x04][..], path), (&[0x01], "bench"), (&[0x0f, 0x10], "application/grpc")] {
            block.extend_from_slice(name);
            block.push(value.len() as u8);
            block.extend_from_slice(value.as_bytes());
        }
        block.extend_from_slice(b"\x00\x02te\x08trailers");
        let stream = self.streams.len();
        self.streams.push(Stream { window: self.initial_window, answers: Vec::new(), at: 0 });
        frame_head(&mut self.out, block.len(), HEADERS, END_HEADERS, id(stream));
        self.out.extend_from_slice(&block);
        stream
    }

    /// Sends a request, in these parts. Returns false if the server's windows have no room for it; nothing was sent
    /// then.
    pub(super) fn send(&mut self, stream: usize, parts: &[&[u8]]) -> bool {
        let message: usize = parts.iter().map(|part| part.len()).sum();
        let bytes = message + MESSAGE_HEAD_BYTES;
        assert!(bytes <= FRAME_BYTES_MAX, "requests of the load fit a frame");
        let of_stream = &mut self.streams[stream].window;
        if *of_stream < bytes as i64 || self.window < bytes as i64 {
            return false;
        }
        *of_stream -= bytes as i64;
        self.window -= bytes as i64;
        frame_head(&mut self.out, bytes, DATA, 0, id(stream));
        self.out.push(0);
        self.out.extend_from_slice(&(message as u32).to_be_bytes());
        parts.iter().for_each(|part| self.out.extend_from_slice(part));
        true
    }

    /// Adds bytes that arrived.
    pub(super) fn received(&mut self, bytes: &[u8]) {
        self.received.drain(..self.at);
        self.at = 0;
        self.received.extend_from_slice(bytes);
    }

    /// The next answer in the received bytes; `None` if it is incomplete.
    ///
    /// # Errors
    /// The server ended a stream or the connection.
    pub(super) fn next(&mut self) -> Result<Option<Answer>> {
        loop {
            if let Some(stream) = self.current {
                if let Some(answer) = self.cut(stream) {
                    return Ok(Some(answer));
                }
                self.current = None;
            }
            if !self.frame()? {
                return Ok(None);
            }
        }
    }

    /// The bytes of an answer. Valid until the next one is taken.
    pub(super) fn body(&self, answer: Answer) -> &[u8] {
        &self.streams[answer.stream].answers[answer.from..answer.to]
    }

    fn cut(&mut self, number: usize) -> Option<Answer> {
        let stream = &mut self.streams[number];
        let rest = &stream.answers[stream.at..];
        let length = rest
            .first_chunk::<MESSAGE_HEAD_BYTES>()
            .map(|head| u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize);
        match length.filter(|length| rest.len() >= MESSAGE_HEAD_BYTES + length) {
            Some(length) => {
                let from = stream.at + MESSAGE_HEAD_BYTES;
                stream.at = from + length;
                Some(Answer { stream: number, from, to: from + length })
            }
            None => {
                stream.answers.drain(..stream.at);
                stream.at = 0;
                None
            }
        }
    }

    /// Processes one frame. Returns false if it is incomplete.
    fn frame(&mut self) -> Result<bool> {
        let rest = &self.received[self.at..];
        let Some([a, b, c, kind, flags, stream @ ..]) = rest.first_chunk::<FRAME_HEAD_BYTES>() else {
            return Ok(false);
        };
        let (kind, flags) = (*kind, *flags);
        let end = FRAME_HEAD_BYTES + u32::from_be_bytes([0, *a, *b, *c]) as usize;
        let Some(body) = rest.get(FRAME_HEAD_BYTES..end) else { return Ok(false) };
        let stream = (u32::from_be_bytes(*stream) as usize).checked_sub(1).map(|id| id / 2);
        match (kind, stream) {
            (DATA | HEADERS, _) if flags & END_STREAM != 0 => {
                bail!("the server ended a stream: {}", String::from_utf8_lossy(body))
            }
            (RESET | GO_AWAY, _) => bail!("the server gave up: {body:?}"),
            (DATA, Some(stream)) if stream < self.streams.len() => {
                self.streams[stream].answers.extend_from_slice(body);
                self.current = Some(stream);
            }
            (SETTINGS, None) if flags & ACK == 0 => {
                for setting in body.chunks_exact(6) {
                    let value = u32::from_be_bytes([setting[2], setting[3], setting[4], setting[5]]);
                    if u16::from_be_bytes([setting[0], setting[1]]) == SETTING_INITIAL_WINDOW {
                        let more = i64::from(value) - self.initial_window;
                        self.initial_window += more;
                        self.streams.iter_mut().for_each(|s| s.window += more);
                    }
                }
                frame_head(&mut self.out, 0, SETTINGS, ACK, 0);
            }
            (PING, _) if flags & ACK == 0 => {
                let body = body.to_vec();
                frame_head(&mut self.out, body.len(), PING, ACK, 0);
                self.out.extend_from_slice(&body);
            }
            (WINDOW_UPDATE, stream) => {
                let more = body.first_chunk().map_or(0, |b| i64::from(u32::from_be_bytes(*b)));
                match stream {
                    None => self.window += more,
                    Some(stream) => self.streams.get_mut(stream).into_iter().for_each(|s| s.window += more),
                }
            }
            _ => {}
        }
        self.at += end;
        Ok(true)
    }
}

/// A stream's number in frames.
fn id(stream: usize) -> u32 {
    2 * stream as u32 + 1
}

fn frame_head(out: &mut Vec<u8>, length: usize, kind: u8, flags: u8, stream: u32) {
    out.extend_from_slice(&(length as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(stream: u32, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        frame_head(&mut out, bytes.len(), DATA, 0, stream);
        out.extend_from_slice(bytes);
        out
    }

    #[test]
    fn answers_are_cut_however_they_come() {
        let messages = [&b"\0\0\0\0\x03abc\0\0\0\0\0"[..], b"\0\0\0", b"\0\x01x"];
        let all = [data(1, messages[0]), data(3, messages[1]), data(3, messages[2])].concat();
        for size in [1, 2, 7, all.len()] {
            let mut wire = Wire::new();
            for _ in 0..2 {
                wire.open("/a/B");
            }
            let mut got = Vec::new();
            for piece in all.chunks(size) {
                wire.received(piece);
                while let Some(answer) = wire.next().unwrap() {
                    got.push((answer.stream, wire.body(answer).to_vec()));
                }
            }
            assert_eq!(got, [(0, b"abc".to_vec()), (0, vec![]), (1, b"x".to_vec())], "pieces of {size}");
        }
    }

    #[test]
    fn nothing_goes_beyond_the_windows() {
        let mut wire = Wire::new();
        let stream = wire.open("/a/B");
        let request = [7; 10_000];
        let sent = (0..10).filter(|_| wire.send(stream, &[&request])).count();
        assert_eq!(sent, 6);
        let mut more = Vec::new();
        for stream in [0, 1] {
            frame_head(&mut more, 4, WINDOW_UPDATE, 0, stream);
            more.extend_from_slice(&10_000u32.to_be_bytes());
        }
        wire.received(&more);
        assert!(wire.next().unwrap().is_none());
        assert!(wire.send(stream, &[&request]) && !wire.send(stream, &[&request]));
    }

    #[test]
    fn a_stream_that_ends_is_an_error() {
        let mut wire = Wire::new();
        wire.open("/a/B");
        let mut end = Vec::new();
        frame_head(&mut end, 0, HEADERS, END_HEADERS | END_STREAM, 1);
        wire.received(&end);
        assert!(wire.next().is_err());
    }
}
