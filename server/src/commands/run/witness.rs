//! An outside witness: a child process appends, and this process records what was acknowledged to the child.
//!
//! Only a process that outlives the appending one can check that a log keeps its promises through `kill -9`.
//! The child's threads report each acknowledgement through a pipe at once. When the child is killed, every
//! acknowledgement is in this process's memory, to be compared with what the log contains afterwards. The
//! demo and the real-process tests share this code.
//!
//! ```text
//! parent: Plan (JSON) --stdin--> child: threads, each with a session and tickets in flight --> the log
//!         Witness <----stdout--- child: 32-byte reports, written whole (below PIPE_BUF), in FIFO order per thread
//! ```
//!
//! The records are a function of their number ([`Text::record`]), so each record can be verified bit by bit,
//! and its number reveals duplicates.

use chiplog::{Index, Log, Options, Reader, Record, Sequence, Session, SessionId, Ticket};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fmt;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// The failures of a run.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The log broke a promise. The checks look for this.
    Promise(String),
    /// The log returned an error.
    Log(chiplog::Error),
    /// The system failed, or the other process did.
    System(String),
}

pub(crate) type Result<T, E = Trouble> = std::result::Result<T, E>;

fn promise<T>(what: String) -> Result<T> {
    Err(Trouble::Promise(what))
}

fn system<T>(what: impl Into<String>) -> Result<T> {
    Err(Trouble::System(what.into()))
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Promise(what) => write!(f, "A PROMISE IS BROKEN: {what}"),
            Self::Log(error) => write!(f, "{error}"),
            Self::System(what) => write!(f, "{what}"),
        }
    }
}

impl std::error::Error for Trouble {}

impl From<chiplog::Error> for Trouble {
    fn from(error: chiplog::Error) -> Self {
        Self::Log(error)
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::System(error.to_string())
    }
}

impl From<rustix::io::Errno> for Trouble {
    fn from(error: rustix::io::Errno) -> Self {
        Self::System(error.to_string())
    }
}

impl From<serde_json::Error> for Trouble {
    fn from(error: serde_json::Error) -> Self {
        Self::System(error.to_string())
    }
}

/// The built-in data set: Isaac Newton, Opticks, 1730 (see `examples/data/README.md`).
static OPTICKS: &[u8] = include_bytes!("../../../../examples/data/opticks.txt");

/// A text whose lines, repeated, make the records of a run.
#[derive(Debug)]
pub(crate) struct Text {
    bytes: Vec<u8>,
    /// The positions of the lines that are not empty; at least one.
    lines: Vec<Range<usize>>,
}

impl Text {
    /// Loads a text, or the built-in one. Its lines may hold any bytes.
    pub(crate) fn load(file: Option<&Path>) -> Result<Self> {
        let bytes = match file {
            Some(path) => {
                fs::read(path).or_else(|e| system(format!("cannot read {}: {e}", path.display())))?
            }
            None => OPTICKS.to_vec(),
        };
        let mut lines = Vec::new();
        let mut start = 0;
        for line in bytes.split(|b| *b == b'\n') {
            if !line.is_empty() {
                lines.push(start..start + line.len());
            }
            start += line.len() + 1;
        }
        if lines.is_empty() {
            return system("the text has no lines");
        }
        Ok(Self { bytes, lines })
    }

    /// The number of records that one pass over the text makes.
    pub(crate) fn lines(&self) -> u64 {
        self.lines.len() as u64
    }

    /// The size of all its lines.
    pub(crate) fn bytes(&self) -> u64 {
        self.lines.iter().map(|l| l.len() as u64).sum()
    }

    /// Writes record `number` (from 0) into `record`: the number, a space, a line.
    pub(crate) fn record(&self, number: u64, record: &mut Vec<u8>) {
        record.clear();
        // Writing to a Vec cannot fail.
        let _ = write!(record, "{number} ");
        let line = &self.lines[(number % self.lines()) as usize];
        record.extend_from_slice(&self.bytes[line.clone()]);
    }

    /// The number at the beginning of a record.
    pub(crate) fn number_of(record: &[u8]) -> Option<u64> {
        let blank = record.iter().position(|b| *b == b' ')?;
        std::str::from_utf8(&record[..blank]).ok()?.parse().ok()
    }
}

/// The hash by which the witness stores a record's content. Both processes run the same program, so any hash
/// works.
pub(crate) fn hash(record: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(record);
    hasher.finish()
}

/// The task of a child: worker `w` of `n` appends records `w`, `w + n`, `w + 2n` … below `total`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// The log's directory.
    pub(crate) dir: PathBuf,
    /// The text; None: the built-in one.
    pub(crate) file: Option<PathBuf>,
    /// The number of records of the whole run.
    pub(crate) total: u64,
    /// The number of appends that each thread keeps in flight.
    pub(crate) in_flight: usize,
    /// The log's segment size.
    pub(crate) segment_bytes: u32,
    /// For each thread: the session to resume and its next sequence number, or None to open one.
    pub(crate) workers: Vec<Option<(u64, u64)>>,
}

impl Plan {
    /// The options with which every process of a run opens the log.
    pub(crate) fn options(&self) -> Options {
        // Everything that a dying child had in flight may be sent again.
        Options::with_segment_bytes(self.segment_bytes)
            .session_window(self.window())
            .sessions_max(self.sessions_max())
    }

    fn window(&self) -> u16 {
        u16::try_from(self.in_flight).unwrap_or(u16::MAX)
    }

    /// A few more than there are workers: a worker that was killed before it could report its session opens
    /// another one.
    fn sessions_max(&self) -> u32 {
        2 * self.workers.len() as u32 + 16
    }

    /// The smallest segment size, at least `least`, whose opening has room for all sessions.
    pub(crate) fn fit_segments(self, least: u32) -> Self {
        let table = self.sessions_max() * (64 + 16 * u32::from(self.window()));
        Self { segment_bytes: (table * 10).next_power_of_two().max(least), ..self }
    }
}

/// A message of a child. On the pipe: kind, a, b, c, each 8 bytes, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Report {
    /// The log is open; this was its last index.
    Opened { last: u64 },
    /// A worker has a session.
    Session { worker: u64, id: u64 },
    /// An append was acknowledged.
    Acked { number: u64, index: u64, hash: u64 },
    /// All appends are done. The log's counters since it was opened: blocks, bytes, syncs.
    Done { blocks: u64, bytes: u64, syncs: u64 },
}

const REPORT_BYTES: usize = 32;
/// Reports written at once: as many as a pipe takes completely or not at all (PIPE_BUF, 4096 bytes).
const REPORTS_MAX: usize = 4096 / REPORT_BYTES;

impl Report {
    fn encode(self, out: &mut Vec<u8>) {
        let words = match self {
            Self::Opened { last } => [1, last, 0, 0],
            Self::Session { worker, id } => [2, worker, id, 0],
            Self::Acked { number, index, hash } => [3, number, index, hash],
            Self::Done { blocks, bytes, syncs } => [4, blocks, bytes, syncs],
        };
        words.iter().for_each(|w| out.extend_from_slice(&w.to_le_bytes()));
    }

    fn decode(bytes: &[u8; REPORT_BYTES]) -> Option<Self> {
        let (words, _) = bytes.as_chunks::<8>();
        let [kind, a, b, c] = [0, 1, 2, 3].map(|i| u64::from_le_bytes(words[i]));
        match kind {
            1 => Some(Self::Opened { last: a }),
            2 => Some(Self::Session { worker: a, id: b }),
            3 => Some(Self::Acked { number: a, index: b, hash: c }),
            4 => Some(Self::Done { blocks: a, bytes: b, syncs: c }),
            _ => None,
        }
    }
}

/// The main function of the child: reads a plan from stdin, executes it, reports on stdout.
pub(crate) fn child() -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let plan: Plan = serde_json::from_reader(io::stdin().lock())?;
    let text = Text::load(plan.file.as_deref())?;
    let log = Log::open(&plan.dir, plan.options())?;
    send(&[Report::Opened { last: log.last_index().get() }])?;
    thread::scope(|scope| {
        let work = |worker| work(&log, &text, &plan, worker);
        let threads: Vec<_> = (0..plan.workers.len()).map(|w| scope.spawn(move || work(w))).collect();
        // A panic in a worker was printed already.
        threads.into_iter().try_for_each(|t| t.join().unwrap_or_else(|_| system("a worker panicked")))
    })?;
    let metrics = log.metrics();
    log.close()?;
    send(&[Report::Done { blocks: metrics.blocks, bytes: metrics.bytes, syncs: metrics.syncs }])
}

/// The appends of one thread.
fn work(log: &Log, text: &Text, plan: &Plan, worker: usize) -> Result<()> {
    let mut session: Session = match plan.workers[worker] {
        None => log.open_session()?,
        Some((id, next)) => log.resume_session(SessionId(id), Sequence(next)),
    };
    send(&[Report::Session { worker: worker as u64, id: session.id().get() }])?;
    let threads = plan.workers.len() as u64;
    let mut number = worker as u64 + (session.next_sequence().get() - 1) * threads;
    let mut under_way: VecDeque<(u64, u64, Ticket)> = VecDeque::new();
    let mut record = Vec::new();
    let mut reports = Vec::new();
    loop {
        while under_way.len() < plan.in_flight && number < plan.total {
            text.record(number, &mut record);
            under_way.push_back((number, hash(&record), session.submit(&record)?));
            number += threads;
        }
        let Some((number, hash, ticket)) = under_way.pop_front() else { return Ok(()) };
        reports.push(Report::Acked { number, index: ticket.wait()?.first.get(), hash });
        while reports.len() < REPORTS_MAX
            && let Some(done) = under_way.front().and_then(|(_, _, ticket)| ticket.poll())
            && let Some((number, hash, _)) = under_way.pop_front()
        {
            reports.push(Report::Acked { number, index: done?.first.get(), hash });
        }
        send(&reports)?;
        reports.clear();
    }
}

/// Writes reports to stdout in one call, so that they arrive completely or not at all. `io::stdout()` would
/// split them at the end of its buffer.
fn send(reports: &[Report]) -> Result<()> {
    let mut bytes = Vec::with_capacity(reports.len() * REPORT_BYTES);
    reports.iter().for_each(|r| r.encode(&mut bytes));
    let sent = rustix::io::retry_on_intr(|| rustix::io::write(rustix::stdio::stdout(), &bytes))?;
    if sent == bytes.len() {
        Ok(())
    } else {
        system("the pipe to the witness accepted only part of a report")
    }
}

/// Everything that was acknowledged to the children of a run.
#[derive(Debug)]
pub(crate) struct Witness {
    plan: Plan,
    notes: Mutex<Notes>,
    acked: AtomicU64,
}

#[derive(Debug, Default)]
struct Notes {
    /// By record number: index and hash; index 0: not acknowledged.
    promised: Vec<(u64, u64)>,
    /// By worker: session id, and the number of its acknowledged records.
    workers: Vec<(u64, u64)>,
    /// The log's last index when the current child opened it.
    opened_last: u64,
    /// Appends whose acknowledgement to the current child says that they were in the log before.
    repeated: u64,
    done: Option<Counters>,
}

/// The counters of a child's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Blocks written.
    pub(crate) blocks: u64,
    /// Bytes of these blocks.
    pub(crate) bytes: u64,
    /// Syncs.
    pub(crate) syncs: u64,
}

impl Witness {
    /// A witness without acknowledgements. Only the length of `plan.workers` matters, the number of threads.
    pub(crate) fn new(plan: Plan) -> Arc<Self> {
        let threads = plan.workers.len();
        let notes = Notes {
            promised: vec![(0, 0); plan.total as usize],
            workers: vec![(0, 0); threads],
            ..Notes::default()
        };
        Arc::new(Self { plan, notes: Mutex::new(notes), acked: AtomicU64::new(0) })
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The run's plan.
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The number of acknowledged records.
    pub(crate) fn acked(&self) -> u64 {
        self.acked.load(Ordering::Acquire)
    }

    /// Appends of the latest child that were in the log already; they were sent again because the answer was
    /// lost.
    pub(crate) fn repeated(&self) -> u64 {
        self.notes().repeated
    }

    /// Starts a child. Known sessions are resumed after their last acknowledgement.
    pub(crate) fn start(self: &Arc<Self>, program: &Path) -> Result<Running> {
        let mut plan = self.plan.clone();
        {
            let mut notes = self.notes();
            plan.workers =
                notes.workers.iter().map(|(id, acked)| (*id > 0).then_some((*id, acked + 1))).collect();
            (notes.repeated, notes.done) = (0, None);
        }
        let mut child = Command::new(program)
            .args(["demo", "--child"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .or_else(|e| system(format!("cannot start {}: {e}", program.display())))?;
        let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return system("the child has no pipes");
        };
        stdin.write_all(&serde_json::to_vec(&plan)?)?;
        drop(stdin);
        let witness = Arc::clone(self);
        let collector = thread::spawn(move || witness.collect(stdout));
        Ok(Running { child, collector: Some(collector) })
    }

    /// Records reports until the pipe ends, at the latest when the child dies.
    fn collect(&self, mut pipe: impl Read) -> Result<()> {
        let mut buffer = vec![0; 64 << 10];
        let mut filled = 0;
        loop {
            let n = match pipe.read(&mut buffer[filled..]) {
                Ok(0) if filled == 0 => return Ok(()),
                Ok(0) => return system("the child's last report is cut off"),
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e.into()),
            };
            filled += n;
            let (reports, rest) = buffer[..filled].as_chunks::<REPORT_BYTES>();
            let left = rest.len();
            let mut notes = self.notes();
            for report in reports {
                match Report::decode(report) {
                    Some(report) => self.note(&mut notes, report)?,
                    None => return system("the child sent an unknown report"),
                }
            }
            drop(notes);
            buffer.copy_within(filled - left..filled, 0);
            filled = left;
        }
    }

    fn note(&self, notes: &mut Notes, report: Report) -> Result<()> {
        match report {
            Report::Opened { last } => notes.opened_last = last,
            Report::Session { worker, id } => {
                let Some(known) = notes.workers.get_mut(worker as usize) else {
                    return system("the child has too many workers");
                };
                known.0 = id;
            }
            Report::Acked { number, index, hash } => {
                let threads = notes.workers.len() as u64;
                let (_, acked) = &mut notes.workers[(number % threads) as usize];
                // Appends of one session are acknowledged in order.
                if *acked != number / threads {
                    return promise(format!("record {number} was acknowledged out of its session's order"));
                }
                *acked += 1;
                match notes.promised.get_mut(number as usize) {
                    Some(place) => *place = (index, hash),
                    None => return system("the child appends beyond the plan"),
                }
                notes.repeated += u64::from(index <= notes.opened_last);
                self.acked.fetch_add(1, Ordering::Release);
            }
            Report::Done { blocks, bytes, syncs } => notes.done = Some(Counters { blocks, bytes, syncs }),
        }
        Ok(())
    }

    /// Reads to the end of the log and compares every record with the text and the acknowledgements.
    pub(crate) fn check(&self, reader: &mut Reader, text: &Text, seen: &mut Seen) -> Result<()> {
        let mut record = Vec::new();
        while let Some(found) = reader.next_record()? {
            seen.take(&found, text, &mut record)?;
        }
        self.compare(seen)
    }

    /// Compares what a reader saw with the acknowledgements: each acknowledged record is there, at its index.
    /// Records below the first one that the reader saw are skipped.
    pub(crate) fn compare(&self, seen: &Seen) -> Result<()> {
        let notes = self.notes();
        for (number, &(index, hash)) in notes.promised.iter().enumerate() {
            let (at, hash_seen) = seen.places[number];
            if index < seen.from {
                continue; // never acknowledged (it may be there or not), or discarded
            }
            if index >= seen.next {
                let end = seen.next - 1;
                return promise(format!(
                    "record {number} was acknowledged at {index}, but the log ends at {end}"
                ));
            }
            if index != at {
                return promise(format!("record {number} was acknowledged at {index}, but it is at {at}"));
            }
            if hash != hash_seen {
                return promise(format!(
                    "record {number}, index {index}, differs from what was acknowledged"
                ));
            }
        }
        Ok(())
    }
}

/// The records that one reader saw, in the order of the log.
#[derive(Debug)]
pub(crate) struct Seen {
    /// By record number: index and hash; index 0: not seen.
    places: Vec<(u64, u64)>,
    from: u64,
    next: u64,
}

impl Seen {
    /// A reader that saw nothing yet. Its next record has to be at `next`.
    pub(crate) fn new(total: u64, next: Index) -> Self {
        Self { places: vec![(0, 0); total as usize], from: next.get(), next: next.get() }
    }

    /// The index that the next record has to have.
    pub(crate) fn next(&self) -> Index {
        Index(self.next)
    }

    /// The number of seen records.
    pub(crate) fn count(&self) -> u64 {
        self.next - self.from
    }

    /// Checks the next record: consecutive, no duplicate, and every bit correct. `expected` is a buffer.
    pub(crate) fn take(&mut self, found: &Record<'_>, text: &Text, expected: &mut Vec<u8>) -> Result<()> {
        let index = found.index.get();
        if index != self.next {
            return promise(format!("index {index} follows index {}", self.next - 1));
        }
        let number = Text::number_of(found.data);
        let Some((number, place)) = number.and_then(|n| Some((n, self.places.get_mut(n as usize)?))) else {
            return promise(format!("index {index} holds an unknown record"));
        };
        if place.0 > 0 {
            return promise(format!("record {number} is in the log twice: at {} and at {index}", place.0));
        }
        text.record(number, expected);
        if found.data != expected.as_slice() {
            return promise(format!("index {index} holds other bytes than record {number}"));
        }
        *place = (index, hash(found.data));
        self.next += 1;
        Ok(())
    }
}

/// A running child. It is killed on drop.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    collector: Option<JoinHandle<Result<()>>>,
}

impl Running {
    /// The child's process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether the child has ended by itself.
    pub(crate) fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Kills the child with SIGKILL and collects its earlier reports. False: it had ended by itself.
    pub(crate) fn kill(mut self) -> Result<bool> {
        self.child.kill()?;
        let status = self.finish()?;
        Ok(std::os::unix::process::ExitStatusExt::signal(&status) == Some(Signal::KILL.as_raw()))
    }

    /// Waits until the child ends by itself, and returns its log's counters.
    pub(crate) fn wait(mut self, witness: &Witness) -> Result<Counters> {
        let status = self.finish()?;
        if !status.success() {
            return system(format!("the child failed: {status}"));
        }
        witness.notes().done.ok_or_else(|| Trouble::System("the child ended without its last report".into()))
    }

    fn finish(&mut self) -> Result<ExitStatus> {
        let status = self.child.wait()?;
        if let Some(collector) = self.collector.take() {
            collector.join().unwrap_or_else(|_| system("the collector panicked"))?;
        }
        Ok(status)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // If it has already ended, there is nothing to do or report.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
