//! HTTP/2 frames on the wire: invalid authorities, pings, and the bytes of replies.

use crate::support::{PATIENCE, Served, small};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

struct Raw(TcpStream);

impl Raw {
    async fn connect(server: &Served) -> Self {
        let mut raw = Self(TcpStream::connect(&server.address).await.unwrap());
        raw.0.set_nodelay(true).unwrap();
        raw.0.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        raw.send(&frame(SETTINGS, 0, 0, b"")).await;
        raw
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.unwrap();
    }

    async fn frame(&mut self) -> Frame {
        let reading = async {
            let mut head = [0; 9];
            self.0.read_exact(&mut head).await.unwrap();
            let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
            self.0.read_exact(&mut payload).await.unwrap();
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            Frame { kind: head[3], flags: head[4], stream, payload }
        };
        tokio::time::timeout(PATIENCE, reading).await.expect("no frame")
    }

    /// The data of a stream, up to its end.
    async fn data(&mut self, stream: u32) -> Vec<u8> {
        let mut data = Vec::new();
        loop {
            let frame = self.frame().await;
            assert!(![3, GOAWAY].contains(&frame.kind), "reset or going away: {:?}", frame.payload);
            if frame.stream != stream {
                continue;
            }
            if frame.kind == DATA {
                data.extend_from_slice(&frame.payload);
            }
            if frame.flags & END_STREAM != 0 {
                return data;
            }
        }
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A call's headers, all of which enter the header table.
fn block(path: &str, authority: &str) -> Vec<u8> {
    let mut block = vec![0x83, 0x86]; // POST, http
    for (name, value) in [(4, path), (1, authority), (31, "application/grpc")] {
        block.extend_from_slice(&[0x40 | name, value.len() as u8]);
        block.extend_from_slice(value.as_bytes());
    }
    block.extend_from_slice(b"\x40\x02te\x08trailers");
    block
}

fn message(bytes: &[u8]) -> Vec<u8> {
    [&[0], &(bytes.len() as u32).to_be_bytes()[..], bytes].concat()
}

const AUTHORITY: &str = "StaticLocator(len=3, first=tcp://log1.example:7000)";

#[tokio::test]
async fn streams_of_any_authority_are_served() {
    let server = small().await;
    let mut raw = Raw::connect(&server).await;
    let first = block("/logspec.Log/Discard", AUTHORITY);
    let call = [
        frame(HEADERS, 0, 1, &first[..10]),
        frame(CONTINUATION, END_HEADERS, 1, &first[10..]),
        frame(DATA, END_STREAM, 1, &message(b"\x08\x01")),
    ]
    .concat();
    for byte in call {
        raw.send(&[byte]).await;
    }
    // The `ok` field is set, and empty.
    assert_eq!(raw.data(1).await, message(b"\x0a\x00"));
    // All headers from the table, except the two of the static table.
    let second = [0x83, 0x86, 0xc1, 0xc0, 0xbf, 0xbe];
    raw.send(&frame(HEADERS, END_HEADERS, 3, &second)).await;
    raw.send(&frame(DATA, END_STREAM, 3, &message(b"\x08\x01"))).await;
    assert_eq!(raw.data(3).await, message(b"\x0a\x00"));
    // A valid one continues, on the same connection.
    raw.send(&frame(HEADERS, END_HEADERS, 5, &block("/logspec.Log/Discard", "log1.example"))).await;
    raw.send(&frame(DATA, END_STREAM, 5, &message(b""))).await;
    assert_eq!(raw.data(5).await, message(b"\x0a\x00"));
}

#[tokio::test]
async fn pings_are_answered_at_once_and_never_limited() {
    let server = small().await;
    let mut raw = Raw::connect(&server).await;
    let mut slowest = Duration::ZERO;
    for n in 0..2000u64 {
        let sent = Instant::now();
        raw.send(&frame(PING, 0, 0, &n.to_be_bytes())).await;
        loop {
            let frame = raw.frame().await;
            assert_ne!(frame.kind, GOAWAY, "{:?}", frame.payload);
            if frame.kind == PING && frame.flags & 1 != 0 {
                assert_eq!(frame.payload, n.to_be_bytes());
                break;
            }
        }
        slowest = slowest.max(sent.elapsed());
    }
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
}

/// Nothing is compressed, even for a client that accepts compression.
#[tokio::test]
async fn replies_are_not_compressed() {
    let server = small().await;
    let mut raw = Raw::connect(&server).await;
    let mut headers = block("/logspec.Log/Info", "log1.example");
    headers.extend_from_slice(b"\x40\x14grpc-accept-encoding\x04gzip");
    raw.send(&frame(HEADERS, END_HEADERS, 1, &headers)).await;
    raw.send(&frame(DATA, END_STREAM, 1, &message(b""))).await;
    assert_eq!(raw.data(1).await[0], 0);
}

/// Bytes that are not HTTP/2 end their own connection, and no other.
#[tokio::test]
async fn invalid_bytes_end_only_their_connection() {
    let server = small().await;
    let mut good = Raw::connect(&server).await;
    for nonsense in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 100], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\x01"]
    {
        let mut raw = TcpStream::connect(&server.address).await.unwrap();
        raw.write_all(nonsense).await.unwrap();
        raw.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(PATIENCE, raw.read_to_end(&mut answer)).await.expect("not closed");
    }
    good.send(&frame(HEADERS, END_HEADERS, 1, &block("/logspec.Log/Discard", AUTHORITY))).await;
    good.send(&frame(DATA, END_STREAM, 1, &message(b""))).await;
    assert_eq!(good.data(1).await, message(b"\x0a\x00"));
}
