//! Attackers: malicious clients. Each attack continues until it is killed. They run in a process of their own at a low
//! priority, so that other clients are delayed by the server, not by the attacker's use of the processor.
//!
//! Must not know: what others get meanwhile.

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use chiplog::{BatchBuilder, Codec};
use chiplog_net::wire::proto::v1::AppendRequest;
use chiplog_net::wire::proto::v1::log_client::LogClient;
use clap::ValueEnum;
use futures_util::stream;
use http_body_util::{Full, StreamBody};
use rustix::process::{Resource, Rlimit, getrlimit, nice, setrlimit};
use serde::Serialize;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tonic::body::Body;
use tonic::codegen::Service as _;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

/// The attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Attack {
    /// 200 streams of logspec.Log read batches that are small in the log and 14 MiB unpacked, and do not take the
    /// answers
    PackedReads,
    /// The same over 1,000 connections, a stream each: this many wait for memory at once
    ManyConnections,
    /// Append streams over 8 connections announce 30 MiB, send 9 bytes, and are renewed every 5 s
    Announced,
    /// 20 connections with 200 read streams each do not take their answers
    UnreadReads,
    /// The same with chiplog.v1.Log from the first record on, over the smallest windows: the first answer of a
    /// connection fills its window, and the other streams read without taking anything
    CatchUps,
    /// 20 connections without a token watch the server's health, 200 streams each
    HealthWatches,
    /// The same with half-open checks and watches: their requests never end
    HalfOpenHealth,
    /// Connections from four addresses send nothing, and are made again when they are closed
    Connections,
    /// One client appends packed batches that cannot be unpacked
    Garbage,
    /// 20 connections append batches of 32 MiB unpacked, a few KiB or 8 MiB packed, 50 a second each
    PackedAppends,
}

/// The address of all attacks except one: not that of the well-behaved clients.
const FROM: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const CONNECTIONS: usize = 20;
const STREAMS: usize = 200;
const PACKED_STREAMS: usize = 10;
const MANY_CONNECTIONS: usize = 1000;
const ANNOUNCING: usize = 8;
const ANNOUNCED_STREAMS: usize = 32;
const ANNOUNCED_BYTES: u32 = 30 << 20;
/// The smallest window of a connection in HTTP/2.
const WINDOW_BYTES: u32 = (1 << 16) - 1;
/// Two of these are as large as a batch may be.
const PACKED_RECORD_BYTES: usize = (16 << 20) - 64;
/// The incompressible part of a large packed batch. One batch in this many is large, so that the attack does not fill
/// the log.
const UNPACKABLE_BYTES: usize = 8 << 20;
const LARGE_EVERY: usize = 64;
/// The interval between two batches of a stream: all streams together send more than the server unpacks.
const PACKED_EVERY: Duration = Duration::from_millis(20);
/// A stream that is not read is restarted after this time.
const HELD: Duration = Duration::from_secs(20);
const RENEWED: Duration = Duration::from_secs(5);
/// From each address.
const SILENT: usize = 1100;
/// The pause before a connection that the server closed is made again.
const PAUSE: Duration = Duration::from_millis(200);
/// The same if the attack is to hold slots. A flood of new connections is a different attack, and a firewall's task.
const PLACE_PAUSE: Duration = Duration::from_secs(1);
/// How long an attack may take to be complete.
const SETTLING: Duration = Duration::from_secs(10);

/// The number of parts of a complete attack, as far as the server permits it.
fn parts(attack: Attack) -> usize {
    match attack {
        Attack::PackedReads => CONNECTIONS * PACKED_STREAMS,
        Attack::ManyConnections => MANY_CONNECTIONS,
        Attack::Announced => ANNOUNCING * ANNOUNCED_STREAMS,
        Attack::UnreadReads | Attack::CatchUps | Attack::HealthWatches | Attack::HalfOpenHealth => {
            CONNECTIONS * STREAMS
        }
        Attack::Connections => 4 * SILENT,
        Attack::Garbage => 1,
        Attack::PackedAppends => CONNECTIONS,
    }
}

#[derive(Clone, Debug)]
struct Target {
    address: String,
    token: Option<String>,
    begun: Arc<AtomicU64>,
    /// A small and a large batch, for attacks that append them.
    packed: Vec<Bytes>,
}

/// Attacks until this process is killed. Prints a line once the attack is complete, or cannot grow further.
pub(crate) fn run(attack: Attack, address: &str, token: &str) -> Result<()> {
    nice(10)?;
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let is_tokenless = matches!(attack, Attack::HealthWatches | Attack::HalfOpenHealth);
    let token = (!is_tokenless).then(|| format!("Bearer {token}"));
    let packed = if attack == Attack::PackedAppends { packed()? } else { Vec::new() };
    let target = Target { address: address.to_owned(), token, begun: Arc::default(), packed };
    crate::servers::block_on(async move {
        let mut tasks = JoinSet::new();
        for part in 0..match attack {
            Attack::Announced => ANNOUNCING,
            Attack::Connections | Attack::ManyConnections => parts(attack),
            Attack::Garbage => 1,
            _ => CONNECTIONS,
        } {
            tasks.spawn(keep_at_it(attack, target.clone(), part));
        }
        let begun = Instant::now();
        while target.begun.load(Ordering::Relaxed) < parts(attack) as u64 && begun.elapsed() < SETTLING {
            sleep(Duration::from_millis(20)).await;
        }
        println!("{} of {} parts were begun", target.begun.load(Ordering::Relaxed), parts(attack));
        while tasks.join_next().await.is_some() {}
        bail!("the attack ended")
    })
}

/// Opens one connection after the other.
async fn keep_at_it(attack: Attack, target: Target, part: usize) {
    loop {
        let _ = match attack {
            Attack::PackedReads => {
                hold(&target, None, "/logspec.Log/Read", || whole(READ_ALL), PACKED_STREAMS).await
            }
            Attack::ManyConnections => hold(&target, None, "/logspec.Log/Read", || whole(READ_ALL), 1).await,
            Attack::UnreadReads => {
                hold(&target, None, "/logspec.Log/Read", || whole(READ_ALL), STREAMS).await
            }
            Attack::CatchUps => {
                hold(&target, Some(WINDOW_BYTES), "/chiplog.v1.Log/Read", || whole(CATCH_UP), STREAMS).await
            }
            Attack::HealthWatches => hold(&target, None, HEALTH[1], || whole(NOTHING), STREAMS).await,
            // A whole message without an end; and less than a message.
            Attack::HalfOpenHealth if part.is_multiple_of(4) => {
                hold(&target, None, HEALTH[0], || endless(NOTHING[..3].to_vec()), STREAMS).await
            }
            Attack::HalfOpenHealth => {
                hold(&target, None, HEALTH[part % 2], || endless(NOTHING.to_vec()), STREAMS).await
            }
            Attack::Announced => announce(&target, part).await,
            Attack::Connections => connect(&target, part).await,
            Attack::Garbage => append_garbage(&target).await,
            Attack::PackedAppends => append_packed(&target, part).await,
        };
        sleep(if attack == Attack::Connections { PLACE_PAUSE } else { PAUSE }).await;
    }
}

/// A `ReadRequest` from record 1, in its frame.
const READ_ALL: &[u8] = &[0, 0, 0, 0, 2, 0x08, 0x01];
/// A `ReadRequest` of chiplog.v1.Log from record 1 on, in its frame. It follows at the end.
const CATCH_UP: &[u8] = &[0, 0, 0, 0, 4, 0x10, 0x01, 0x38, 0x01];
/// An empty message, in its frame.
const NOTHING: &[u8] = &[0, 0, 0, 0, 0];
const HEALTH: [&str; 2] = ["/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"];

fn whole(message: &'static [u8]) -> Body {
    Body::new(Full::new(Bytes::from_static(message)))
}

/// A body that begins with these bytes, and never continues.
fn endless(head: Vec<u8>) -> Body {
    Body::new(StreamBody::new(stream::unfold(Some(head), |head| async {
        match head {
            Some(head) => Some((Ok::<_, Status>(http_body::Frame::data(Bytes::from(head))), None)),
            None => std::future::pending().await,
        }
    })))
}

/// `window`: what the connection accepts unread, for all its streams and for each.
async fn channel(target: &Target, window: Option<u32>) -> Result<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{}", target.address))?;
    let endpoint = endpoint.initial_connection_window_size(window).initial_stream_window_size(window);
    Ok(endpoint.local_address(Some(FROM.into())).connect().await?)
}

/// A call whose answer is ignored.
async fn call(target: &Target, mut channel: Channel, path: &str, body: Body) -> Result<http::Response<Body>> {
    let mut request = http::Request::new(body);
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = format!("http://{}{path}", target.address).parse()?;
    request.headers_mut().insert("content-type", http::HeaderValue::from_static("application/grpc"));
    request.headers_mut().insert("te", http::HeaderValue::from_static("trailers"));
    if let Some(token) = &target.token {
        request.headers_mut().insert("authorization", token.parse()?);
    }
    std::future::poll_fn(|context| channel.poll_ready(context)).await?;
    Ok(channel.call(request).await?)
}

/// Streams of one connection that are opened and not read.
async fn hold(
    target: &Target,
    window: Option<u32>,
    path: &'static str,
    body: impl Fn() -> Body + Copy + Send + 'static,
    streams: usize,
) -> Result<()> {
    let channel = channel(target, window).await?;
    let mut open = JoinSet::new();
    for _ in 0..streams {
        let (target, channel) = (target.clone(), channel.clone());
        open.spawn(async move {
            loop {
                // A half-open call may have no answer before it ends.
                target.begun.fetch_add(1, Ordering::Relaxed);
                let held = timeout(HELD, call(&target, channel.clone(), path, body())).await;
                match held {
                    Ok(Ok(held)) if held.headers().get("grpc-status").is_none() => {
                        // Long enough to hold the answer; a stream that the server ended is restarted.
                        sleep(HELD).await;
                        drop(held);
                    }
                    Err(_) => {}
                    _ => sleep(Duration::from_millis(500)).await,
                }
            }
        });
    }
    while open.join_next().await.is_some() {}
    Ok(())
}

async fn announce(target: &Target, part: usize) -> Result<()> {
    let channel = channel(target, None).await?;
    let path = ["/chiplog.v1.Log/Append", "/logspec.Log/Append"][part % 2];
    let mut open = JoinSet::new();
    for _ in 0..ANNOUNCED_STREAMS {
        let (target, channel) = (target.clone(), channel.clone());
        open.spawn(async move {
            loop {
                let head = [&[0], &ANNOUNCED_BYTES.to_be_bytes()[..], &[7; 4]].concat();
                target.begun.fetch_add(1, Ordering::Relaxed);
                let begun = Instant::now();
                let _ = timeout(RENEWED, async {
                    let _held = call(&target, channel.clone(), path, endless(head)).await;
                    std::future::pending::<()>().await;
                })
                .await;
                sleep(RENEWED.saturating_sub(begun.elapsed())).await;
            }
        });
    }
    while open.join_next().await.is_some() {}
    Ok(())
}

async fn connect(target: &Target, part: usize) -> Result<()> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((Ipv4Addr::new(127, 0, 0, 1 + (part % 4) as u8), 0).into())?;
    let mut stream = socket.connect(target.address.parse()?).await?;
    // The preface of an HTTP/2 client; without it the server might close the connection sooner.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await?;
    target.begun.fetch_add(1, Ordering::Relaxed);
    let mut sink = [0; 1024];
    while let 1.. = stream.read(&mut sink).await? {}
    Ok(())
}

/// A batch of the right form and checksum whose packed body cannot be unpacked.
fn garbage() -> Result<Bytes> {
    const HEADER_BYTES: usize = 40;
    let mut builder = BatchBuilder::new();
    builder.codec(Codec::Zstd);
    let whole = builder.push(&[0; 4096])?.build()?;
    let mut bytes = whole.as_bytes().to_vec();
    anyhow::ensure!(bytes.len() < 4096, "it is packed");
    bytes[HEADER_BYTES..].fill(0xa5);
    let crc = crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    Ok(bytes.into())
}

fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
    })
}

/// A small and a large packed batch that unpack to as much as a batch may have. The server must unpack them to append
/// them, because the records together are larger than one may be.
fn packed() -> Result<Vec<Bytes>> {
    let zeros = vec![0; PACKED_RECORD_BYTES];
    let mut random = zeros.clone();
    fastrand::Rng::with_seed(16).fill(&mut random[..UNPACKABLE_BYTES]);
    let packed = |codec, first: &[u8]| -> Result<Bytes> {
        let mut builder = BatchBuilder::new();
        builder.codec(codec);
        let batch = builder.push(first)?.push(&zeros)?.build()?;
        Ok(batch.as_bytes().clone())
    };
    Ok(vec![packed(Codec::Zstd, &zeros)?, packed(Codec::Lz4, &random)?])
}

async fn append_garbage(target: &Target) -> Result<()> {
    let batch = garbage()?;
    append(target, Duration::from_millis(5), std::iter::repeat(batch)).await
}

/// `part`: the connections send their large batches one after the other.
async fn append_packed(target: &Target, part: usize) -> Result<()> {
    let batches = target.packed.clone();
    let batches = (part..).map(move |n| batches[usize::from(n % LARGE_EVERY == 0)].clone());
    append(target, PACKED_EVERY, batches).await
}

/// Sends one batch after the other, at this interval.
async fn append(
    target: &Target,
    every: Duration,
    batches: impl Iterator<Item = Bytes> + Send + 'static,
) -> Result<()> {
    let mut client = LogClient::new(channel(target, None).await?);
    let requests = batches.map(|batch| AppendRequest { batch, ..AppendRequest::default() });
    let requests = tokio_stream::StreamExt::throttle(tokio_stream::iter(requests), every);
    let mut request = Request::new(requests);
    let token = target.token.as_ref().context("it needs a token")?;
    request.metadata_mut().insert("authorization", token.parse()?);
    let mut answers = client.append(request).await?.into_inner();
    while answers.message().await?.is_some() {
        target.begun.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn garbage_has_a_right_checksum() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        let sound = BatchBuilder::new().push(b"x").unwrap().build().unwrap();
        let bytes = sound.as_bytes();
        assert_eq!(crc32c(&bytes[4..]).to_le_bytes(), bytes[..4]);
        assert_eq!(crc32c(&garbage().unwrap()[4..]).to_le_bytes(), garbage().unwrap()[..4]);
    }

    #[test]
    fn packed_batches_are_as_large_as_they_may_be_and_have_to_be_unpacked() {
        let options = chiplog::Options::default();
        let [small, large] = packed().unwrap().try_into().unwrap();
        assert!(small.len() < 64 << 10 && large.len() > UNPACKABLE_BYTES, "{} {}", small.len(), large.len());
        for batch in [small, large] {
            let batch = chiplog::Batch::decode(batch).unwrap();
            let unpacked = batch.unmeasured_bytes(options.record_bytes_max);
            let most = options.batch_bytes_max as usize;
            assert!((most - 1024..=most).contains(&unpacked), "{unpacked}");
        }
    }
}
