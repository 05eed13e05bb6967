//! Objects: what uploads cost appends, what reading from an object store costs beside bare requests and beside the log's own
//! files, and how fast a log comes back that is in an object store alone. For appends the object store is a
//! directory, otherwise an S3 server over HTTP in this process.
//!
//! Must not know: which ratio would be good, how results are shown.

use crate::cases::{Bench, options};
use crate::engine::{Log, Options, ScratchLog, Start, fill};
use crate::measure::{interleave, timed};
use crate::replicas::Replicas;
use crate::workload::{self, Outcome};
use anyhow::{Context, Result, ensure};
use bucket::Bucket;
use bytes::Bytes;
use chiplog::backup::{Backup, Branch, BranchOptions, RestoreOptions};
use chiplog::vault::Vault;
use chiplog::{Index, LogId};
use chiplog_tier::{ObjectVault, VaultOptions};
use std::cell::RefCell;
use std::fs::File;
use std::hint::black_box;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

#[path = "../../examples/tiered/src/bucket.rs"]
#[allow(dead_code, reason = "the example uses all of it")]
mod bucket;

/// Threads that append.
const APPENDERS: usize = 128;
/// The size of segments where old ones are to leave the disk.
pub(crate) const SEGMENT_BYTES: u32 = 4 << 20;
/// The size of objects that are read.
pub(crate) const OBJECT_BYTES: u32 = 16 << 20;
/// Bytes of a request, as the log makes them, and how many are under way beside each other.
const REQUEST_BYTES: u64 = 4 << 20;
const REQUESTS: usize = 8;
/// How long objects may take to be stored.
pub(crate) const STORE_TIMEOUT: Duration = Duration::from_secs(120);

/// A fresh object store that is a directory in the work directory.
pub(crate) fn directory(bench: &Bench) -> Result<Arc<dyn Vault>> {
    let place = std::path::absolute(bench.store.as_deref().unwrap_or(bench.dir()).join("store"))?;
    empty(&place)?;
    Ok(Arc::new(ObjectVault::open(&place.display().to_string(), VaultOptions::default())?))
}

/// A fresh object store over HTTP, with its files in the work directory: a server in this process.
pub(crate) fn bucket(bench: &Bench) -> Result<(Bucket, Arc<dyn Vault>)> {
    let place = bench.dir().join("bucket");
    empty(&place)?;
    std::fs::create_dir(&place)?;
    let bucket = Bucket::start(&place).map_err(anyhow::Error::from_boxed)?;
    let vault = Arc::new(bucket.vault().map_err(anyhow::Error::from_boxed)?);
    Ok((bucket, vault))
}

/// Appends at the leader of three replicas with and without an object store, by round. A follower makes and stores the objects.
pub(crate) fn appends(bench: &Bench, record_bytes: usize) -> Result<(Vec<Outcome>, Vec<Outcome>)> {
    let run = |options: Options| {
        let replicas = Replicas::start(bench.dir(), 3, &options)?;
        workload::blocking(replicas.leader()?, &bench.pool, APPENDERS, record_bytes, bench.window)
    };
    interleave(bench.rounds, || run(options().vault(directory(bench)?)), || run(options()))
}

/// As [`appends`], at a log that is alone, so that it makes and stores its objects itself.
pub(crate) fn appends_alone(bench: &Bench, record_bytes: usize) -> Result<(Vec<Outcome>, Vec<Outcome>)> {
    let run = |options: Options| {
        let log = ScratchLog::create(bench.dir(), "log-tier", options)?;
        workload::blocking(&*log, &bench.pool, APPENDERS, record_bytes, bench.window)
    };
    interleave(bench.rounds, || run(options().vault(directory(bench)?)), || run(options()))
}

/// Rates of reading, in bytes a second, by round.
pub(crate) struct Reads {
    /// Through the log, from an empty cache; and bare requests for the same objects.
    pub(crate) cold: (Vec<f64>, Vec<f64>),
    /// Through the log, from its cache; and from files of its own.
    pub(crate) warm: (Vec<f64>, Vec<f64>),
}

/// Reads the records from the first one up to `upto`. Returns bytes of payload.
fn scan(log: &Log, upto: u64) -> Result<u64> {
    let mut reader = log.reader(Start::First)?;
    let (mut next, mut bytes) = (1, 0);
    while next <= upto {
        let Some(record) = reader.next_record()? else { break };
        ensure!(record.index == Index(next), "record {} instead of {next}", record.index);
        bytes += black_box(record.data).len() as u64;
        next += 1;
    }
    ensure!(next > upto, "the log ends at {next}");
    Ok(bytes)
}

/// Bare requests for all objects of the store, a few beside each other. `taken` gets each answer, the number of its object and
/// where in that it is. Returns bytes.
fn requests_with(vault: &dyn Vault, taken: &(dyn Fn(usize, u64, Bytes) -> Result<()> + Sync)) -> Result<u64> {
    let mut pieces = Vec::new();
    for (number, object) in vault.list("")?.into_iter().enumerate() {
        let starts = (0..object.bytes).step_by(REQUEST_BYTES as usize);
        pieces.extend(
            starts.map(|at| (number, object.name.clone(), at..(at + REQUEST_BYTES).min(object.bytes))),
        );
    }
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        let work = || -> Result<u64> {
            let mut bytes = 0;
            while let Some((number, name, range)) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                let piece = vault.get(name, range.clone())?;
                bytes += piece.len() as u64;
                taken(*number, range.start, piece)?;
            }
            Ok(bytes)
        };
        let threads: Vec<_> = (0..REQUESTS).map(|_| scope.spawn(work)).collect();
        let mut bytes = 0;
        for thread in threads {
            bytes += thread.join().map_err(|_| anyhow::anyhow!("a requesting thread panicked"))??;
        }
        Ok(bytes)
    })
}

/// Bare requests whose answers go nowhere: bytes a second.
pub(crate) fn requests(vault: &dyn Vault) -> Result<f64> {
    let taken = |_, _, piece| {
        black_box(piece);
        Ok(())
    };
    let (bytes, time) = timed(|| requests_with(vault, &taken))?;
    Ok(bytes as f64 / time.as_secs_f64())
}

/// Bare requests whose answers are written to a file for each object and synced: bytes a second.
fn download(vault: &dyn Vault, to: &Path) -> Result<f64> {
    empty(to)?;
    std::fs::create_dir(to)?;
    let (bytes, time) = timed(|| {
        let count = vault.list("")?.len();
        let files: Vec<File> =
            (0..count).map(|n| Ok(File::create(to.join(n.to_string()))?)).collect::<Result<_>>()?;
        let bytes = requests_with(vault, &|n, at, piece| Ok(files[n].write_all_at(&piece, at)?))?;
        files.iter().try_for_each(File::sync_data)?;
        Ok(bytes)
    })?;
    Ok(bytes as f64 / time.as_secs_f64())
}

/// Removes a directory if it is there. A request that a closed log has made can put a file into it meanwhile.
fn empty(path: &Path) -> Result<()> {
    let begun = Instant::now();
    while path.exists() {
        match std::fs::remove_dir_all(path) {
            Err(error)
                if error.kind() == ErrorKind::DirectoryNotEmpty
                    && begun.elapsed() < Duration::from_secs(10) => {}
            removed => removed.with_context(|| format!("removing {}", path.display()))?,
        }
    }
    Ok(())
}

/// How fast logs are made of objects alone, by round.
pub(crate) struct Restores {
    /// A log with all records in its own files, and a bare download beside it: bytes of objects a second.
    pub(crate) rates: Vec<f64>,
    pub(crate) limits: Vec<f64>,
    /// A branch, until it has taken an append, and its first record was read.
    pub(crate) branch_seconds: Vec<f64>,
}

/// Makes a log of its objects alone, beside bare downloads, and branches.
pub(crate) fn restores(bench: &Bench, bytes: u64, record_bytes: usize) -> Result<Restores> {
    let (_bucket, vault) = bucket(bench)?;
    let options = options().vault(vault.clone()).object_bytes(OBJECT_BYTES);
    let log = ScratchLog::create(bench.dir(), "log-tier", options)?;
    fill(&log, &bench.pool, bytes, record_bytes, 1)?;
    store_all(&log)?;
    // The newest object knows the others, as in a log that is stored while it grows: the first ones were cut behind all that was written.
    fill(&log, &bench.pool, u64::from(OBJECT_BYTES), record_bytes, 1)?;
    store_all(&log)?;
    let (id, last) = (log.log_id(), log.last_index());
    drop(log);
    let objects: u64 = vault.list("")?.iter().map(|object| object.bytes).sum();
    let [fetched, restored, bare] = ["fetched", "restored", "bare"].map(|name| bench.dir().join(name));
    let (rates, limits) = interleave(
        bench.rounds,
        || {
            empty(&fetched)?;
            empty(&restored)?;
            let (found, time) = timed(|| {
                let backup = Backup::fetch(&*vault, id, &fetched, &mut |_, _| {})?;
                Ok(backup.restore(&restored, &RestoreOptions::default(), &mut |_, _| {})?)
            })?;
            ensure!(found.last == last, "the log ends at {} instead of {last}", found.last);
            Ok(objects as f64 / time.as_secs_f64())
        },
        || download(&*vault, &bare),
    )?;
    let mut branch_seconds = Vec::new();
    for _ in 0..bench.rounds {
        empty(&restored)?;
        branch_seconds.push(timed(|| branch(&vault, id, &restored, last))?.1.as_secs_f64());
    }
    for path in [&fetched, &restored, &bare] {
        empty(path)?;
    }
    Ok(Restores { rates, limits, branch_seconds })
}

/// Waits until all of a log is in objects.
fn store_all(log: &Log) -> Result<()> {
    log.cut_objects(log.last_index())?;
    let begun = Instant::now();
    while Index(log.metrics().stored_index) < log.last_index() {
        ensure!(begun.elapsed() < STORE_TIMEOUT, "the log is not stored");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Makes a branch of a log with the records up to `last`, and uses it.
fn branch(vault: &Arc<dyn Vault>, log: LogId, dir: &Path, last: Index) -> Result<()> {
    Branch::make(&**vault, log, dir, &BranchOptions::default())?;
    let branch = chiplog::Log::open(dir, options().vault(vault.clone()))?;
    let next = branch.append(b"of the branch")?;
    ensure!(next == last.next(), "the branch goes on at {next}, behind {last}");
    branch.read(Index(1))?;
    branch.close()?;
    Ok(())
}

/// Reads a log of `bytes` bytes most of which are in the object store alone.
pub(crate) fn reads(bench: &Bench, bytes: u64, record_bytes: usize) -> Result<Reads> {
    let bytes = bytes.max(16 * u64::from(SEGMENT_BYTES));
    let (_bucket, vault) = bucket(bench)?;
    let plain = Options::with_segment_bytes(SEGMENT_BYTES);
    let tiered = || {
        let objects = plain.clone().vault(vault.clone()).object_bytes(OBJECT_BYTES).local_bytes(8 << 20);
        objects.cache_bytes(4 * bytes)
    };
    let mut log = ScratchLog::create(bench.dir(), "log-tier", tiered())?;
    let records = fill(&log, &bench.pool, bytes, record_bytes, 1)?;
    // The last quarter stays in files, and is not read.
    let upto = records * 3 / 4 - u64::from(OBJECT_BYTES) / record_bytes as u64;
    let begun = Instant::now();
    while log.status().segments > bytes / u64::from(SEGMENT_BYTES) / 4 {
        ensure!(begun.elapsed() < STORE_TIMEOUT, "the log does not leave its files");
        log.append(bench.pool.record(0, record_bytes))?;
    }
    let local = ScratchLog::create(bench.dir(), "log-files", plain.clone())?;
    fill(&local, &bench.pool, bytes, record_bytes, 1)?;
    let expected = scan(&local, upto)?;
    let rate = |log: &Log| {
        let (seen, time) = timed(|| scan(log, upto))?;
        ensure!(seen == expected, "a scan saw {seen} bytes, another {expected}");
        Ok(seen as f64 / time.as_secs_f64())
    };
    let log = RefCell::new(&mut log);
    let cold = interleave(
        bench.rounds,
        || {
            log.borrow_mut().shut()?;
            log.borrow_mut().open_again(tiered())?; // its cache is empty
            rate(&log.borrow())
        },
        || requests(&*vault),
    )?;
    let warm = interleave(bench.rounds, || rate(&log.borrow()), || rate(&local))?;
    Ok(Reads { cold, warm })
}
