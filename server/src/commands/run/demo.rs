//! `chiplog demo`: the log's main task, shown step by step on a real text.
//!
//! A child process appends from many threads; two readers of this process follow the live log. The child is
//! killed with SIGKILL, and a second child continues. Then a prefix is discarded. Everything is checked
//! against an outside witness (see [`witness`](crate::commands::run::witness)); the command fails if any
//! check does.

use crate::commands::run::witness;
use crate::commands::run::witness::{Counters, Plan, Running, Seen, Text, Trouble, Witness};
use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::format::{bytes, count, parse_bytes};
use crate::common::output;
use crate::common::output::Ui;
use crate::connect::target;
use chiplog::{ErrorKind, Index, Log, ReadOnlyLog, Start};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, IsTerminal};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// See it work: append a real text from many threads, kill -9 the writer, recover, check every byte.
///
/// A child process appends while two readers follow; it is killed in mid-write. A second child continues
/// where the first one stopped; then a prefix is discarded. An outside witness records every confirmation and
/// compares it with what the log contains afterwards. Status 3: a promise is broken.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  chiplog demo                             Newton's Opticks repeatedly, in a temporary directory
  chiplog demo ./log --file access.log     your own text; the log stays
  chiplog demo --size 1GiB --json          longer, with the figures for a script")]
pub(crate) struct Demo {
    /// Directory for the log, new or empty; it stays. Default: a directory made here and removed at the end.
    #[arg(value_parser = target::directory)]
    dir: Option<PathBuf>,

    /// Text whose lines become the records, repeatedly. The built-in text is Newton's Opticks (1730).
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// Total size of the records to append.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_bytes)]
    size: u64,

    /// Number of threads that append.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,

    /// Number of appends that each thread keeps in flight.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=256))]
    in_flight: u16,

    /// Run as the process that appends.
    #[arg(long, hide = true)]
    child: bool,
}

impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Promise(_) => Self::new(ErrorKind::Corrupt, trouble.to_string()),
            Trouble::Log(error) => error.into(),
            Trouble::System(what) => Self::new(ErrorKind::Io, what),
        }
    }
}

/// The failure of a check.
fn broken<T>(what: String) -> Result<T> {
    Err(Trouble::Promise(what).into())
}

/// A failure of the system, not of the log.
fn system<T>(what: &str) -> Result<T> {
    Err(Trouble::System(what.to_owned()).into())
}

/// The results of the demo.
#[derive(Debug, Default, Serialize)]
struct Summary {
    directory: PathBuf,
    records: u64,
    record_bytes: u64,
    threads: u16,
    disk_syncs_per_second: f64,
    disk_sync_micros_median: f64,
    before_kill: Phase,
    killed_after_acknowledged: u64,
    recovery_millis: f64,
    recovered_records: u64,
    recovered_unacknowledged: u64,
    repeated_appends_recognised: u64,
    after_kill: Phase,
    records_per_sync: f64,
    block_bytes_mean: u64,
    disk_bytes_per_second_in_such_blocks: f64,
    log_bytes_per_second: f64,
    readers_checked: [u64; 2],
    discarded_below: u64,
    bytes_freed: u64,
    verified_records: u64,
    seconds: f64,
}

#[derive(Debug, Default, Serialize)]
struct Phase {
    records: u64,
    seconds: f64,
    records_per_second: f64,
}

impl Phase {
    fn new(records: u64, time: Duration) -> Self {
        let seconds = time.as_secs_f64();
        Self { records, seconds, records_per_second: records as f64 / seconds }
    }
}

/// Small segments, so that the log has several dozen of them.
const SEGMENT_BYTES_MIN: u32 = 4 << 20;
/// More records than this would only make the demo longer.
const RECORDS_MAX: u64 = 20_000_000;

/// Runs the demo.
pub(crate) fn run(args: &Demo, ui: &Ui) -> Result<Exit> {
    if args.child {
        witness::child()?;
        return Ok(Exit::Ok);
    }
    // Open the text first: a wrong file name must not leave a directory behind.
    if let Some(file) = &args.file {
        fs::File::open(file).map_err(|e| Failure::io("read", file, &e))?;
    }
    let text = Text::load(args.file.as_deref())?;
    let (dir, made) = directory(args)?;
    match play(args, &text, &dir, ui) {
        Ok(_) if made => fs::remove_dir_all(&dir).map_err(|e| Failure::io("remove", &dir, &e))?,
        Ok(story) => story.say(&format!("The log stays. Inspect it with: chiplog info {}", dir.display()))?,
        Err(failure) => {
            let words = format!("the log is kept in {}", dir.display());
            return Err(failure.with_detail(&words, "directory", dir.display().to_string().into()));
        }
    }
    Ok(Exit::Ok)
}

/// The log's directory, and whether the demo made it and removes it.
fn directory(args: &Demo) -> Result<(PathBuf, bool)> {
    let new = |dir: &Path| fs::create_dir_all(dir).map_err(|e| Failure::io("make", dir, &e));
    if let Some(dir) = &args.dir {
        new(dir)?;
        if fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some()) {
            let message = format!("{} is not empty: give the demo an empty directory", dir.display());
            return Err(Failure::usage(message));
        }
        return Ok((dir.clone(), false));
    }
    let here = std::env::current_dir().map_err(|e| Failure::io("find", Path::new("."), &e))?;
    let dir = here.join(format!("chiplog-demo-{}", std::process::id()));
    new(&dir)?;
    Ok((dir, true))
}

fn play(args: &Demo, text: &Text, dir: &Path, ui: &Ui) -> Result<Story> {
    let began = Instant::now();
    let total = records_in(text, args.size);
    let plan = Plan {
        dir: dir.to_owned(),
        file: args.file.clone(),
        total,
        in_flight: args.in_flight.into(),
        segment_bytes: SEGMENT_BYTES_MIN,
        workers: vec![None; args.threads.into()],
    }
    .fit_segments(SEGMENT_BYTES_MIN);
    let story = Story { silent: ui.json || ui.quiet };
    let mut summary = Summary {
        directory: dir.to_owned(),
        records: total,
        record_bytes: bytes_of(text, total),
        threads: args.threads,
        ..Summary::default()
    };
    story.opening(args, text, &summary)?;
    measure(&story, &mut summary, dir)?;

    let witness = Witness::new(plan);
    let readers = Followers::default();
    thread::scope(|scope| {
        // After any failure the readers must not wait for records that never arrive.
        let _stop = StopAtEnd(&readers.stop);
        let program = std::env::current_exe().map_err(Trouble::from)?;
        let mut child = witness.start(&program)?;
        wait_for(&witness, &mut child, 1, &mut || {})?;
        let spawn = |n: usize| {
            let (witness, readers) = (&witness, &readers);
            scope.spawn(move || follow(witness, text, readers, n))
        };
        let threads = [spawn(0), spawn(1)];
        ingest_and_kill(&story, &mut summary, &witness, child, &readers)?;
        recover(&story, &mut summary, &witness, text)?;
        let counters = go_on(&story, &mut summary, &witness, &program, &readers)?;
        compare_with_disk(&story, &mut summary, dir, counters)?;
        for (n, thread) in threads.into_iter().enumerate() {
            let seen = thread.join().unwrap_or_else(|_| system("a reader panicked"))?;
            witness.compare(&seen)?;
            summary.readers_checked[n] = seen.count();
        }
        story.readers(&summary)
    })?;
    discard_and_verify(&story, &mut summary, &witness, text)?;
    summary.seconds = began.elapsed().as_secs_f64();
    if ui.json {
        ui.json(&summary)?;
    }
    story.end(&summary)?;
    Ok(story)
}

/// The number of records that have `size` bytes together.
fn records_in(text: &Text, size: u64) -> u64 {
    let line = text.bytes() / text.lines() + 7; // the approximate size of the number in front
    (size / line).clamp(u64::from(u16::MAX), RECORDS_MAX)
}

fn bytes_of(text: &Text, total: u64) -> u64 {
    let mut record = Vec::new();
    // Lines repeat and numbers grow: one pass is exact enough, and cheap for any size.
    let sample = total.min(text.lines());
    let bytes: u64 = (0..sample)
        .map(|i| {
            text.record(total - 1 - i, &mut record);
            record.len() as u64
        })
        .sum();
    (bytes as f64 / sample as f64 * total as f64) as u64
}

/// Measures the disk: small writes, each with a sync, per second. That is the limit of a program that syncs
/// each record alone.
fn measure(story: &Story, summary: &mut Summary, dir: &Path) -> Result<()> {
    let mut times = sync_times(dir, 4096, Duration::from_millis(700))?;
    times.sort_unstable();
    let median = times[times.len() / 2];
    summary.disk_sync_micros_median = median.as_secs_f64() * 1e6;
    // Use the median: in such a short time, a single stall would make the limit look too low.
    summary.disk_syncs_per_second = 1.0 / median.as_secs_f64();
    let in_memory = rustix::fs::statfs(dir).is_ok_and(|fs| fs.f_type == TMPFS);
    story.disk(summary, in_memory)
}

/// `TMPFS_MAGIC` of linux/magic.h.
const TMPFS: rustix::fs::FsWord = 0x0102_1994;

/// Times writes of `block` bytes, each followed by `fdatasync`, into a zero-filled file in `dir`.
fn sync_times(dir: &Path, block: usize, time: Duration) -> Result<Vec<Duration>> {
    const FILE_BYTES: usize = 16 << 20;
    let path = dir.join("disk-probe"); // not a name that the log uses
    let measure = || {
        let file = File::create(&path)?;
        (0..FILE_BYTES >> 20).try_for_each(|i| file.write_all_at(&vec![0; 1 << 20], (i as u64) << 20))?;
        file.sync_all()?;
        let bytes = vec![b'x'; block];
        let mut times = Vec::new();
        let began = Instant::now();
        while began.elapsed() < time || times.is_empty() {
            let at = times.len() * block % (FILE_BYTES - block);
            let one = Instant::now();
            file.write_all_at(&bytes, at as u64)?;
            file.sync_data()?;
            times.push(one.elapsed());
        }
        io::Result::Ok(times)
    };
    let times = measure().map_err(|e| Failure::io("measure the disk with", &path, &e));
    // If the file could not even be made, that failure was reported above.
    let _ = fs::remove_file(&path);
    times
}

/// Waits until `acked` records are acknowledged.
fn wait_for(witness: &Witness, child: &mut Running, acked: u64, look: &mut dyn FnMut()) -> Result<()> {
    while witness.acked() < acked {
        if child.has_ended()? {
            return system("the child ended too early");
        }
        look();
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

fn ingest_and_kill(
    story: &Story,
    summary: &mut Summary,
    witness: &Witness,
    mut child: Running,
    readers: &Followers,
) -> Result<()> {
    story.ingest(summary, child.id())?;
    let began = Instant::now();
    let before = witness.acked();
    let half = summary.records * 9 / 20;
    let progress = Progress::new(story, witness, readers);
    wait_for(witness, &mut child, half, &mut || progress.tick())?;
    summary.before_kill = Phase::new(witness.acked() - before, began.elapsed());
    if !child.kill()? {
        return system("the child ended before it could be killed");
    }
    drop(progress);
    summary.killed_after_acknowledged = witness.acked();
    story.killed(summary)?;
    Ok(())
}

/// Opens the log as any program would after a crash, and reads all of it.
fn recover(story: &Story, summary: &mut Summary, witness: &Witness, text: &Text) -> Result<()> {
    let began = Instant::now();
    let log = Log::open(&witness.plan().dir, witness.plan().options())?;
    summary.recovery_millis = began.elapsed().as_secs_f64() * 1e3;
    let mut seen = Seen::new(summary.records, Index(1));
    witness.check(&mut log.reader(Start::First)?, text, &mut seen)?;
    if seen.next() != log.last_index().next() {
        return broken(format!(
            "a reader ended before {}, but the log's last record is {}",
            seen.next(),
            log.last_index()
        ));
    }
    log.close()?;
    summary.recovered_records = seen.count();
    summary.recovered_unacknowledged = seen.count() - summary.killed_after_acknowledged;
    story.recovered(summary)?;
    Ok(())
}

fn go_on(
    story: &Story,
    summary: &mut Summary,
    witness: &Arc<Witness>,
    program: &Path,
    readers: &Followers,
) -> Result<Counters> {
    let before = witness.acked();
    let mut child = witness.start(program)?;
    wait_for(witness, &mut child, before + 1, &mut || {})?;
    let began = Instant::now();
    let progress = Progress::new(story, witness, readers);
    while witness.acked() < summary.records && !child.has_ended()? {
        progress.tick();
        thread::sleep(Duration::from_millis(2));
    }
    summary.after_kill = Phase::new(witness.acked() - before, began.elapsed());
    let counters = child.wait(witness)?;
    drop(progress);
    if witness.acked() != summary.records {
        return broken(format!("{} of {} records were acknowledged", witness.acked(), summary.records));
    }
    summary.repeated_appends_recognised = witness.repeated();
    if summary.repeated_appends_recognised != summary.recovered_unacknowledged {
        return broken(format!(
            "{} records were in the log unacknowledged, but {} were recognised when sent again",
            summary.recovered_unacknowledged, summary.repeated_appends_recognised
        ));
    }
    let fresh = summary.after_kill.records - summary.repeated_appends_recognised;
    summary.records_per_sync = fresh as f64 / counters.syncs.max(1) as f64;
    summary.log_bytes_per_second = counters.bytes as f64 / summary.after_kill.seconds;
    story.went_on(summary)?;
    Ok(counters)
}

/// Measures the bare disk, with blocks of the size that the log wrote.
fn compare_with_disk(story: &Story, summary: &mut Summary, dir: &Path, counters: Counters) -> Result<()> {
    let block = (counters.bytes / counters.syncs.max(1)).clamp(512, 8 << 20);
    let mut times = sync_times(dir, block as usize, Duration::from_millis(700))?;
    times.sort_unstable();
    summary.block_bytes_mean = block;
    summary.disk_bytes_per_second_in_such_blocks = block as f64 / times[times.len() / 2].as_secs_f64();
    story.beside_the_disk(summary)?;
    Ok(())
}

/// Two readers of the live log.
#[derive(Debug, Default)]
struct Followers {
    stop: AtomicBool,
    /// How far each reader has read.
    seen: [AtomicU64; 2],
}

struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Follows the live log from its first record until every planned record was seen. The first reader reads
/// record by record, the second one batch by batch.
fn follow(witness: &Witness, text: &Text, followers: &Followers, n: usize) -> Result<Seen> {
    let total = witness.plan().total;
    let read_only = ReadOnlyLog::open(&witness.plan().dir)?;
    let mut reader = read_only.reader(Start::First)?;
    let mut seen = Seen::new(total, Index(1));
    let mut expected = Vec::new();
    while seen.count() < total {
        if n == 0 {
            while let Some(record) = reader.next_record()? {
                seen.take(&record, text, &mut expected)?;
                followers.seen[n].store(seen.count(), Ordering::Relaxed);
            }
        } else {
            while let Some(batch) = reader.next_batch()? {
                batch.iter().try_for_each(|record| seen.take(&record, text, &mut expected))?;
                followers.seen[n].store(seen.count(), Ordering::Relaxed);
            }
        }
        if followers.stop.load(Ordering::Relaxed) {
            return broken(format!("stopped after {} of {total} records", seen.count()));
        }
        reader.wait(Some(Duration::from_millis(100)))?;
    }
    Ok(seen)
}

fn discard_and_verify(story: &Story, summary: &mut Summary, witness: &Witness, text: &Text) -> Result<()> {
    let log = Log::open(&witness.plan().dir, witness.plan().options())?;
    let before = log.status().bytes_used;
    let first = Index(summary.records / 2 + 1);
    log.discard(first)?;
    summary.discarded_below = first.get();
    summary.bytes_freed = before.saturating_sub(log.status().bytes_used);
    if log.first_index() != first {
        return broken(format!("discarded below {first}, but the log begins at {}", log.first_index()));
    }
    match log.read(first.previous()) {
        Err(e) if e.kind() == ErrorKind::Discarded => {}
        other => return broken(format!("reading a discarded record returned {other:?}")),
    }
    story.discarded(summary)?;
    log.close()?;

    // Opened again: the check has to see what the files contain.
    let log = Log::open(&witness.plan().dir, witness.plan().options())?;
    let mut seen = Seen::new(summary.records, first);
    witness.check(&mut log.reader(Start::First)?, text, &mut seen)?;
    if seen.next() != Index(summary.records).next() {
        return broken(format!("the log ends before {}", seen.next()));
    }
    log.close()?;
    summary.verified_records = seen.count();
    story.verified(summary)?;
    Ok(())
}

/// Prints the story. Each step puts its results into the summary; this turns them into sentences.
#[derive(Debug)]
struct Story {
    silent: bool,
}

impl Story {
    fn say(&self, text: &str) -> Result<()> {
        if self.silent { Ok(()) } else { output::print(format!("{text}\n").as_bytes()) }
    }

    fn opening(&self, args: &Demo, text: &Text, s: &Summary) -> Result<()> {
        let name =
            args.file.as_ref().map_or("Isaac Newton's Opticks (1730)".into(), |f| f.display().to_string());
        self.say(&format!(
            "The text: {name}, {} lines, repeated until there are {} records, {}.\n\
             The log:  {}\n",
            count(text.lines()),
            count(s.records),
            bytes(s.record_bytes),
            s.directory.display(),
        ))
    }

    fn disk(&self, s: &Summary, in_memory: bool) -> Result<()> {
        self.say(&format!(
            "1. First the disk alone. A write of 4 KiB with its fdatasync takes {:.0} us (median): a program that\n   \
             syncs each record by itself reaches {} records a second here.",
            s.disk_sync_micros_median,
            count(s.disk_syncs_per_second as u64),
        ))?;
        if in_memory {
            self.say("   But this directory is in memory and lost at power-off: name one on a disk for realistic rates.")?;
        }
        Ok(())
    }

    fn ingest(&self, s: &Summary, child: u32) -> Result<()> {
        self.say(&format!(
            "\n2. A child process (pid {child}) opens the log and appends from {} threads. Each append is answered when\n   \
             it is on the disk, and each answer is reported to this process at once, as an outside witness.\n   \
             Two readers of this process follow the live log and compare every record with the text.",
            s.threads
        ))
    }

    fn killed(&self, s: &Summary) -> Result<()> {
        self.say(&format!(
            "   {} records acknowledged in {:.1} s: {} a second, {:.0} times the syncs of the disk.\n\n\
             3. kill -9. The child dies in mid-write. {} records had been acknowledged to it.",
            count(s.before_kill.records),
            s.before_kill.seconds,
            count(s.before_kill.records_per_second as u64),
            s.before_kill.records_per_second / s.disk_syncs_per_second,
            count(s.killed_after_acknowledged),
        ))
    }

    fn recovered(&self, s: &Summary) -> Result<()> {
        self.say(&format!(
            "   Reopened in {:.0} ms: the log holds {} records. Every acknowledged record is there, bit for bit, at the\n   \
             index it was acknowledged with, and none is there twice. {} more had become durable, but their\n   \
             acknowledgements died with the child.",
            s.recovery_millis,
            count(s.recovered_records),
            count(s.recovered_unacknowledged),
        ))
    }

    fn went_on(&self, s: &Summary) -> Result<()> {
        self.say(&format!(
            "\n4. A second child resumes the {} sessions and sends again every append without an answer. {} of these are\n   \
             in the log already: it recognises them, returns their original index, and stores nothing twice.\n   \
             Then the rest: {} records in {:.1} s: {} a second, {:.0} per sync.",
            s.threads,
            count(s.repeated_appends_recognised),
            count(s.after_kill.records),
            s.after_kill.seconds,
            count(s.after_kill.records_per_second as u64),
            s.records_per_sync,
        ))
    }

    fn beside_the_disk(&self, s: &Summary) -> Result<()> {
        let between = if s.log_bytes_per_second >= s.disk_bytes_per_second_in_such_blocks {
            "The disk was slower at that moment, because other programs use it too.".to_owned()
        } else {
            format!(
                "The difference is mostly the work of\n   the witness and the two readers, which check every \
                 record, on {} processors; `chiplog bench` measures the log alone.",
                thread::available_parallelism().map_or(1, usize::from)
            )
        };
        self.say(&format!(
            "   In bytes: the log wrote {}/s, in blocks of {} on average. The bare disk, with the same blocks each\n   \
             followed by fdatasync, just reached {}/s (median). {between}",
            bytes(s.log_bytes_per_second as u64),
            bytes(s.block_bytes_mean),
            bytes(s.disk_bytes_per_second_in_such_blocks as u64),
        ))
    }

    fn readers(&self, s: &Summary) -> Result<()> {
        self.say(&format!(
            "\n5. The two readers read through the crash without interruption: {} and {} records, in order, without a\n   \
             gap, each one equal to the text and at its acknowledged index.",
            count(s.readers_checked[0]),
            count(s.readers_checked[1]),
        ))
    }

    fn discarded(&self, s: &Summary) -> Result<()> {
        self.say(&format!(
            "\n6. Every record below index {} is discarded: {} freed; reading an older record returns a clear error.",
            count(s.discarded_below),
            bytes(s.bytes_freed),
        ))
    }

    fn verified(&self, s: &Summary) -> Result<()> {
        self.say(&format!(
            "   The log, opened again, holds the other {} records; checksums and contents are verified.",
            count(s.verified_records)
        ))
    }

    fn end(&self, s: &Summary) -> Result<()> {
        self.say(&format!("\nAll checks passed, in {:.1} s.", s.seconds))
    }
}

/// A progress bar on a terminal while the children append. It disappears on drop.
#[derive(Debug)]
struct Progress<'a> {
    witness: &'a Witness,
    readers: &'a Followers,
    bar: ProgressBar,
}

impl<'a> Progress<'a> {
    fn new(story: &Story, witness: &'a Witness, readers: &'a Followers) -> Self {
        let target = if !story.silent && io::stderr().is_terminal() {
            ProgressDrawTarget::stderr_with_hz(10)
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(witness.plan().total), target);
        let style = ProgressStyle::with_template("   [{bar:30}] {human_pos} confirmed; readers: {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
        Self { witness, readers, bar }
    }

    fn tick(&self) {
        if !self.bar.is_hidden() {
            let seen = [0, 1].map(|n| count(self.readers.seen[n].load(Ordering::Relaxed)));
            self.bar.set_message(seen.join(" and "));
            self.bar.set_position(self.witness.acked());
        }
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
