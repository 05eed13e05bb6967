//! Shared by the tests of the client.

use super::PATIENCE;
use chiplog::Start;
use chiplog_net::client::{Client, ClientOptions, ProducerOptions, ReadFrom, ReaderOptions};
use std::time::Duration;

pub(crate) fn quick() -> ClientOptions {
    let mut options = ClientOptions::default();
    options.timeout = PATIENCE;
    options.attempt_timeout = Duration::from_secs(3);
    options.probe_timeout = Duration::from_millis(500);
    options
}

pub(crate) fn producing(change: impl FnOnce(&mut ProducerOptions)) -> ProducerOptions {
    let mut options = ProducerOptions::default();
    change(&mut options);
    options
}

pub(crate) fn number(data: &[u8]) -> u64 {
    u64::from_le_bytes(data[..8].try_into().unwrap())
}

/// Reads from `start` to the end of the log.
pub(crate) async fn read_to_end(client: &Client, start: Start) -> Vec<(u64, Vec<u8>)> {
    let mut options = ReaderOptions::default();
    (options.follow, options.from) = (false, ReadFrom::Leader);
    let mut reader = client.reader_with(start, options);
    let mut all = Vec::new();
    while let Some(record) = reader.next_record().await.unwrap() {
        all.push((record.index.get(), record.data.to_vec()));
    }
    all
}
