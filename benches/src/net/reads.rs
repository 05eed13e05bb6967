//! Reads over the network: a whole log, read by one client that checks every byte, with the files in the page cache or
//! not.
//!
//! Must not know: which ratio would be good, how results are shown.

use super::bare::BareServer;
use super::servers::Servers;
use crate::cases::Bench;
use crate::data::RECORD_BYTES;
use crate::measure::interleave;
use crate::raw::{self, Readahead};
use anyhow::{Result, ensure};
use chiplog::{Index, Start};
use chiplog_net::client::{Client, ClientOptions, ProducerOptions, ReaderOptions};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// `cat` reads in pieces of this size.
const CAT_BYTES: usize = 128 << 10;
const PATIENCE: Duration = Duration::from_secs(120);

/// A figure and its limit, by round, in bytes a second.
#[derive(Clone, Debug)]
pub(crate) struct RemoteScans {
    pub(crate) figures: Vec<f64>,
    pub(crate) limits: Vec<f64>,
}

/// A server with a log of about this many bytes, in the batches that a producer makes, and how many records that are. `settings`: as
/// for [`Servers::start`].
pub(super) fn filled(bench: &Bench, bytes: u64, settings: &[&str]) -> Result<(Servers, u64)> {
    let servers = Servers::start(&bench.own, &bench.dir, 1, settings)?;
    let records = bytes.div_ceil(RECORD_BYTES as u64);
    super::block_on(async {
        let client = Client::connect(servers.addresses(), ClientOptions::default()).await?;
        let producer = client.producer(ProducerOptions::default()).await?;
        for n in 0..records {
            producer.send(bench.pool.record(n, RECORD_BYTES)).await?;
        }
        producer.flush(PATIENCE).await?;
        ensure!(producer.close(PATIENCE).await.all_acknowledged(), "records were not acknowledged");
        Ok(())
    })?;
    Ok((servers, records))
}

/// Reads all records; returns bytes of records a second.
fn scan(address: &str, records: u64) -> Result<f64> {
    super::block_on(async {
        let client = Client::connect([address], ClientOptions::default()).await?;
        let mut options = ReaderOptions::default();
        options.follow = false;
        let mut reader = client.reader_with(Start::First, options);
        let begun = Instant::now();
        let (mut next, mut bytes) = (Index(1), 0);
        while let Some(batch) = reader.next_batch().await? {
            for record in batch.iter() {
                ensure!(record.index == next, "record {} came where {next} was due", record.index);
                next = next.next();
                bytes += black_box(record.data).len() as u64;
            }
        }
        ensure!(
            next == Index(records).next() && bytes == records * RECORD_BYTES as u64,
            "it ended at {next}"
        );
        Ok(bytes as f64 / begun.elapsed().as_secs_f64())
    })
}

/// From the page cache, compared with bare messages.
pub(crate) fn cached(bench: &Bench, bytes: u64) -> Result<RemoteScans> {
    let (servers, records) = filled(bench, bytes, &[])?;
    let bare = BareServer::start(&bench.own, &bench.dir)?;
    scan(servers.address(1), records)?; // the first read fills the cache
    let (limits, figures) =
        interleave(bench.rounds, || bare.receive(bytes), || scan(servers.address(1), records))?;
    Ok(RemoteScans { figures, limits })
}

/// With an empty page cache, compared with `cat` of the same files.
pub(crate) fn uncached(bench: &Bench, bytes: u64) -> Result<RemoteScans> {
    let (mut servers, records) = filled(bench, bytes, &[])?;
    let files = servers.files(1)?;
    let mut seen = RemoteScans { figures: Vec::new(), limits: Vec::new() };
    for _ in 0..bench.rounds {
        // Mapped pages stay in the cache: the server is restarted.
        servers.kill(1);
        raw::drop_caches(&files)?;
        seen.limits.push(raw::read_files(&files, CAT_BYTES, Readahead::Kernel)?);
        raw::drop_caches(&files)?;
        servers.run(1)?;
        seen.figures.push(scan(servers.address(1), records)?);
    }
    Ok(seen)
}
