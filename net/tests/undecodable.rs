//! Batches with a correct checksum whose body cannot be decompressed. They are rejected at the append, as far as a
//! cheap check detects them. If one is in the log, its readers get a specific error and a way past it.
#![allow(clippy::unwrap_used, reason = "a test")]

mod served;

use bytes::Bytes;
use chiplog::{ErrorKind, Index, Start};
use chiplog_net::client::{Client, ReadFrom, RemoteReader};
use chiplog_net::wire::proto::v1::append_response::Result as Outcome;
use chiplog_net::wire::proto::v1::log_client::LogClient;
use chiplog_net::wire::proto::v1::{AppendRequest, Appended, Refused};
use served::One;
use std::time::Duration;

/// Less than a reader's timeout: a later error would come from giving up.
const SOON: Duration = Duration::from_secs(10);

fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |c, _| if c & 1 == 1 { c >> 1 ^ 0x82f6_3b78 } else { c >> 1 })
    })
}

/// A batch of `count` records with any compressed body, and a correct checksum.
fn encoded(codec: u8, count: u32, body_length: u32, packed: &[u8]) -> Bytes {
    let mut bytes = vec![0; 40];
    bytes[4..8].copy_from_slice(&(40 + packed.len() as u32).to_le_bytes());
    bytes[8..12].copy_from_slice(&count.to_le_bytes());
    bytes[12..16].copy_from_slice(&body_length.to_le_bytes());
    bytes[34] = codec;
    bytes.extend_from_slice(packed);
    let crc = crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    bytes.into()
}

fn plain(record: &[u8]) -> Bytes {
    let mut builder = chiplog::BatchBuilder::new();
    builder.push(record).unwrap().build().unwrap().as_bytes().clone()
}

/// A valid lz4 block of 102,000 zeros: as a batch of 3 records, its table of ends is wrong. Too large to be
/// decompressed at the append.
fn zeros_without_a_table() -> Bytes {
    // One literal, then a match of 4 + 15 + 399 * 255 + 230 bytes; the last five bytes are literals.
    let mut packed = vec![0x1f, 0, 1, 0];
    packed.extend([255; 399]);
    packed.push(230);
    packed.extend([0x50, 0, 0, 0, 0, 0]);
    encoded(1, 3, 102_000, &packed)
}

async fn append(one: &One, batches: Vec<Bytes>) -> Vec<Outcome> {
    let mut client = LogClient::connect(format!("http://{}", one.address())).await.unwrap();
    let requests: Vec<_> =
        batches.into_iter().map(|batch| AppendRequest { batch, ..AppendRequest::default() }).collect();
    let mut answers = client.append(tokio_stream::iter(requests)).await.unwrap().into_inner();
    let mut all = Vec::new();
    while let Some(answer) = answers.message().await.unwrap() {
        all.push(answer.result.unwrap());
    }
    all
}

async fn reader(one: &One) -> RemoteReader {
    let client = Client::connect([one.address()], Default::default()).await.unwrap();
    client.reader(Start::First, ReadFrom::Any)
}

#[tokio::test]
async fn undecodable_batch_is_rejected_at_the_append() {
    let one = One::new();
    let garbage = b"no compressor has ever made this, of that one may be quite sure";
    let batches = vec![
        encoded(1, 1, 20, garbage),
        encoded(2, 1, 20, garbage),
        encoded(1, 1, 30 << 20, garbage),
        encoded(2, 1, 30 << 20, garbage),
        plain(b"sound"),
    ];
    let answers = append(&one, batches).await;
    for answer in &answers[..4] {
        let Outcome::Refused(Refused { kind, retryable, outcome_unknown, message, .. }) = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(ErrorKind::from_code(*kind), Some(ErrorKind::InvalidArgument), "{message}");
        assert!(!retryable && !outcome_unknown, "{message}");
        assert!(message.contains("unpack"), "{message}");
    }
    assert!(matches!(answers[4], Outcome::Appended(Appended { first: 1, count: 1, .. })), "{:?}", answers[4]);
}

#[tokio::test]
async fn reader_reports_an_undecodable_batch_and_continues_behind_it() {
    let one = One::new();
    let answers = append(&one, vec![plain(b"before"), zeros_without_a_table(), plain(b"behind")]).await;
    assert!(matches!(answers[1], Outcome::Appended(Appended { first: 2, count: 3, .. })), "{:?}", answers[1]);
    let mut reader = reader(&one).await;
    assert_eq!(reader.next_record().await.unwrap().unwrap().data, "before");
    for _ in 0..2 {
        let error = tokio::time::timeout(SOON, reader.next_record()).await.expect("no answer").unwrap_err();
        assert_eq!(error.kind().name(), "undecodable", "{error}");
        assert!(error.to_string().contains("records 2 to 4"), "{error}");
        assert_eq!(reader.position(), Some(Index(2)));
    }
    assert_eq!(one.log.metrics().damaged, 0);
}

#[tokio::test]
async fn reader_that_skips_gets_every_other_record() {
    let one = One::new();
    let batches = vec![zeros_without_a_table(), plain(b"between"), zeros_without_a_table(), plain(b"behind")];
    append(&one, batches).await;
    let mut reader = reader(&one).await;
    assert_eq!(reader.skip_batch().await.unwrap(), None, "no error before: nothing changes");
    assert_eq!(reader.next_record().await.unwrap_err().kind(), ErrorKind::Undecodable);
    assert_eq!(reader.skip_batch().await.unwrap(), Some(Index(4)));
    assert_eq!(reader.skip_batch().await.unwrap(), Some(Index(4)), "once");
    assert_eq!(reader.next_record().await.unwrap().unwrap().data, "between");
    assert_eq!(reader.next_batch().await.unwrap_err().kind(), ErrorKind::Undecodable);
    assert_eq!(reader.skip_batch().await.unwrap(), Some(Index(8)));
    assert_eq!(reader.next_record().await.unwrap().unwrap().index, Index(8));
    // A position within one: the skip ends at the same place.
    reader.seek(Start::Index(Index(6)));
    assert_eq!(reader.next_record().await.unwrap_err().kind(), ErrorKind::Undecodable);
    assert_eq!(reader.skip_batch().await.unwrap(), Some(Index(8)));
    assert_eq!(reader.next_batch().await.unwrap().unwrap().get(0).unwrap().data, &b"behind"[..]);
}

/// A reader at the tail waited for the next batch, and dropped it.
#[tokio::test]
async fn skipping_at_the_tail_drops_no_record() {
    let one = One::new();
    append(&one, vec![plain(b"first"), plain(b"second")]).await;
    let mut reader = reader(&one).await;
    assert_eq!(reader.next_record().await.unwrap().unwrap().data, "first");
    assert_eq!(reader.skip_batch().await.unwrap(), Some(Index(2)));
    assert_eq!(reader.next_record().await.unwrap().unwrap().data, "second");
    let skipped = tokio::time::timeout(SOON, reader.skip_batch()).await.expect("the call waits");
    assert_eq!(skipped.unwrap(), Some(Index(3)));
    append(&one, vec![plain(b"third")]).await;
    assert_eq!(reader.next_record().await.unwrap().unwrap().data, "third");
}

/// An event loop gets the error, and continues.
#[test]
fn blocking_reader_skips_as_well() {
    use chiplog_net::client::blocking;
    let one = One::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(append(&one, vec![zeros_without_a_table(), plain(b"behind")]));
    let client = blocking::Client::connect([one.address()], Default::default()).unwrap();
    let mut reader = client.reader(Start::First, ReadFrom::Any);
    let (told, heard) = std::sync::mpsc::channel();
    reader.on_more(move || told.send(()).unwrap()).unwrap();
    heard.recv_timeout(SOON).unwrap();
    // The error was not returned yet.
    assert_ne!(reader.skip_batch().unwrap(), Some(Index(4)));
    assert_eq!(reader.next_record().unwrap_err().kind(), ErrorKind::Undecodable);
    assert_eq!(reader.skip_batch().unwrap(), Some(Index(4)));
    assert_eq!(reader.next_record().unwrap().unwrap().data, "behind");
}
