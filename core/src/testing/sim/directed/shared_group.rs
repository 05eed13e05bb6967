//! A scenario with a shared group: the logs of one process, on a simulated disk.
//!
//! Must not know: a cluster.

use crate::api::log::Log;
use crate::api::logs::{Logs, LogsOptions};
use crate::disk::sim::SimDisk;
use crate::error::Error;
use crate::options::Options;
use crate::read::reader::Start;
use crate::store::segment::ReadMode;
use crate::testing::sim::oracle::Check;
use crate::types::Index;
use std::sync::Arc;
use std::time::Duration;

const NAMES: [&str; 3] = ["a", "b", "c"];
const RECORDS: u64 = 300;

fn record(name: &str, n: u64) -> Vec<u8> {
    let mut record = format!("{name} {n} ").into_bytes();
    record.resize(20 + (n * 37 % 700) as usize, b'x');
    record
}

fn open(system: &SimDisk, group: &SimDisk) -> Check<Logs> {
    let options = Options::with_segment_bytes(64 << 10).read_mode(ReadMode::Read).sessions_max(8);
    let options = LogsOptions::default().groups(1).options(options.session_window(8));
    let logs = Logs::open_on(Arc::new(system.clone()), vec![Arc::new(group.clone())], options);
    logs.map_err(|e| format!("the logs do not open: {e}"))
}

/// Checks that a log has these records, and no others.
fn has_records(logs: &Logs, name: &str, from: u64, upto: u64) -> Check {
    let wrong = |e: Error| format!("log {name}: {e}");
    let log = logs.get(name).map_err(wrong)?;
    let mut reader = log.reader(Start::First).map_err(wrong)?;
    let mut next = from;
    while let Some(found) = reader.next_record().map_err(wrong)? {
        if (found.index.get(), found.data) != (next, &record(name, next)[..]) {
            return Err(format!("log {name} returns another record at {next}"));
        }
        next += 1;
    }
    if next != upto + 1 {
        return Err(format!("log {name} ends before record {next}, not behind {upto}"));
    }
    let middle = Index(from.midpoint(upto));
    let alone = log.read(middle).map_err(wrong)?;
    if alone.data == record(name, middle.get()) { Ok(()) } else { Err(format!("record {middle} of {name}")) }
}

fn append(logs: &Logs, from: u64, upto: u64) -> Check {
    let wrong = |e: Error| format!("an append is refused: {e}");
    let handles = NAMES.map(|name| logs.get(name));
    let mut tickets = Vec::new();
    for n in from..=upto {
        for (name, log) in NAMES.iter().zip(&handles) {
            let log: &Log = log.as_ref().map_err(|e| wrong(e.clone()))?;
            tickets.push((n, log.submit(&record(name, n)[..]).map_err(wrong)?));
        }
    }
    for (n, ticket) in tickets {
        let index = ticket.wait().map_err(wrong)?;
        if index.get() != n {
            return Err(format!("record {n} got index {index}"));
        }
    }
    Ok(())
}

/// Three logs are filled in turn over several segments. One discards all its records, which takes nothing from the
/// others. All of it holds after a restart.
pub(super) fn logs_of_a_group_are_kept_apart() -> Check {
    let (system, group) = (SimDisk::default(), SimDisk::default());
    group.set_sync_time(Duration::from_micros(300)); // so that appends gather
    let logs = open(&system, &group)?;
    for name in NAMES {
        logs.create(name).map_err(|e| format!("log {name} is not created: {e}"))?;
    }
    append(&logs, 1, RECORDS)?;
    NAMES.iter().try_for_each(|name| has_records(&logs, name, 1, RECORDS))?;
    let all = |logs: &Logs, upto| {
        has_records(logs, "a", 1, upto)?;
        has_records(logs, "b", RECORDS, upto)?;
        has_records(logs, "c", 1, upto)
    };
    let discarded = logs.get("b").and_then(|log| log.discard(Index(RECORDS)));
    discarded.map_err(|e| format!("a discard is refused: {e}"))?;
    append(&logs, RECORDS + 1, RECORDS + 20)?;
    all(&logs, RECORDS + 20)?;
    logs.close().map_err(|e| format!("the logs do not close: {e}"))?;
    let logs = open(&system, &group)?;
    all(&logs, RECORDS + 20)?;
    append(&logs, RECORDS + 21, RECORDS + 40)?;
    all(&logs, RECORDS + 40)?;
    logs.close().map_err(|e| format!("the logs do not close: {e}"))
}
