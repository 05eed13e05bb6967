//! Benchmark of a log in a directory: threads that append to it, then a read. The log is removed at the end.

use super::{Case, Latencies, Load, Measured, Read};
use crate::common::failure::{Failure, Result};
use crate::common::output::Ui;
use crate::common::scratch::Scratch;
use crate::common::signals;
use crate::connect::directory;
use chiplog::{ErrorKind, Log, Options, Start};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

/// Begins the name of the log's directory.
const PREFIX: &str = "chiplog-bench-";
/// The log keeps that much, so that a long run does not fill the disk.
const RETENTION_BYTES: u64 = 1 << 30;

pub(super) fn measure(dir: &Path, load: &Load, ui: &Ui) -> Result<Measured> {
    if !dir.is_dir() {
        let why = format!("there is no directory {}: name one on the disk to measure", dir.display());
        return Err(Failure::new(ErrorKind::NotFound, why));
    }
    if directory::is_log(dir) {
        let why = format!("{} is a log: name another directory on its disk", dir.display());
        return Err(Failure::usage(why));
    }
    let stopped = Arc::clone(&load.stopped);
    signals::on_stop(move || stopped.store(true, Ordering::Relaxed))?;
    let scratch = Scratch::make(dir, PREFIX)?;
    let options = Options::default().retention_bytes(RETENTION_BYTES);
    let log = Log::open(scratch.dir().join("log"), options)?;
    let mut appends = Vec::new();
    for case in &load.cases {
        case.announce(ui);
        appends.push(load.row(*case, &append(&log, *case, load)?));
        if load.stopped.load(Ordering::Relaxed) {
            break;
        }
    }
    let read = read(&log, load)?;
    log.close()?;
    let seconds = load.time.as_secs_f64();
    Ok(Measured { log_id: None, directory: Some(dir.into()), seconds, appends, read })
}

/// Appends from many threads, and returns the latencies of what was acknowledged.
fn append(log: &Log, case: Case, load: &Load) -> Result<Latencies> {
    let window = load.window();
    let appender = || {
        let record = vec![b'.'; case.record_bytes as usize];
        let mut latencies = load.none.clone();
        loop {
            let begun = Instant::now();
            log.append(&record)?;
            window.note(begun, &mut latencies);
            if window.is_over() {
                return chiplog::Result::Ok(latencies);
            }
        }
    };
    thread::scope(|scope| {
        let start = |_| thread::Builder::new().spawn_scoped(scope, appender);
        let threads: Vec<_> = (0..case.appenders).map(start).collect();
        let mut all = load.none.clone();
        for thread in threads {
            let thread = thread.map_err(|e| {
                Failure::new(ErrorKind::Io, format!("cannot start an appender's thread: {e}"))
            })?;
            let panicked = |_| Err(chiplog::Error::new(ErrorKind::Io, "an appender panicked"));
            all += thread.join().unwrap_or_else(panicked)?;
        }
        Ok(all)
    })
}

/// Reads from the first record to the end of the log or of the time.
fn read(log: &Log, load: &Load) -> Result<Read> {
    let mut reader = log.reader(Start::First)?;
    let (begun, mut read) = (Instant::now(), Read::default());
    while !load.has_read_enough(begun)
        && let Some(batch) = reader.next_batch()?
    {
        read.count(batch.iter().map(|record| record.data.len()));
    }
    Ok(read.after(begun.elapsed()))
}
