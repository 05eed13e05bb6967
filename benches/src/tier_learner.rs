//! A new replica of a cluster whose log is mostly in an object store: how soon a read from it gives the log's first record. The replicas are in
//! this process, the object store is an S3 server over HTTP in this process.
//!
//! Must not know: which time would be good, how results are shown.

use crate::cases::Bench;
use crate::engine::{Options, fill};
use crate::replicas::Replicas;
use crate::tier::{OBJECT_BYTES, SEGMENT_BYTES, STORE_TIMEOUT, bucket};
use anyhow::{Result, ensure};
use bytes::Bytes;
use chiplog::{Index, Log};
use std::thread;
use std::time::{Duration, Instant};

/// How many replicas have a vote.
const VOTERS: u64 = 3;
/// How often a record is tried to read that the learner does not know yet.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// How long learners of a log of about `bytes` bytes take, from the opening of their empty directory to the first record, in seconds, by
/// round.
pub(crate) fn first_reads(bench: &Bench, bytes: u64, record_bytes: usize) -> Result<Vec<f64>> {
    let (_bucket, vault) = bucket(bench)?;
    let objects = Options::with_segment_bytes(SEGMENT_BYTES).vault(vault).object_bytes(OBJECT_BYTES);
    let options = objects.local_bytes(2 * u64::from(SEGMENT_BYTES));
    let replicas = Replicas::start(bench.dir(), VOTERS, &options)?;
    let leader = replicas.leader()?;
    fill(leader, &bench.pool, bytes, record_bytes, 1)?;
    store(leader)?;
    let first = leader.read(Index(1))?.data;
    let mut seconds = Vec::new();
    for node in (VOTERS + 1..).take(bench.rounds) {
        let begun = Instant::now();
        let learner = replicas.join(node, &options)?;
        ensure!(first_record(&learner, begun)? == first, "the learner has another first record");
        seconds.push(begun.elapsed().as_secs_f64());
        learner.close()?;
        drop(learner);
        replicas.remove(node)?;
    }
    Ok(seconds)
}

/// Waits until the object store has all records.
fn store(leader: &Log) -> Result<()> {
    let (last, begun) = (leader.last_index(), Instant::now());
    leader.cut_objects(last)?;
    while Index(leader.metrics().stored_index) < last {
        ensure!(begun.elapsed() < STORE_TIMEOUT, "the log is not stored");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// The first record of the log, once this replica gives it.
fn first_record(learner: &Log, begun: Instant) -> Result<Bytes> {
    loop {
        match learner.read(Index(1)) {
            Ok(record) => return Ok(record.data),
            Err(error) => ensure!(
                begun.elapsed() < STORE_TIMEOUT,
                "the learner does not give the first record: {error}"
            ),
        }
        thread::sleep(LOOK_EVERY);
    }
}
