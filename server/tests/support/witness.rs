//! An outside witness: a child process appends, and this process records what was acknowledged to the child.
//!
//! Only a process that outlives the appending one can check that a log keeps its promises through `kill -9`.
//! The child's threads report each acknowledgement through a pipe at once. When the child is killed, every
//! acknowledgement is in this process's memory, to be compared with what the log contains afterwards.
//!
//! The child is this test program, started to run [`appender`] alone. Its standard output and error belong to
//! the test harness, so the pipe takes the place of its standard input.
//!
//! ```text
//! parent: Plan (JSON) --environment--> child: threads, each with a session and tickets in flight --> the log
//!         Witness <--pipe, fd 0 there- child: 24-byte reports, written whole (below PIPE_BUF), in FIFO order per thread
//! ```
//!
//! The records are a function of their number ([`Text::record`]), so each record can be verified bit by bit,
//! and its number reveals duplicates.

use chiplog::{Index, Log, Options, Reader, Record, Sequence, Session, SessionId, Ticket};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::env;
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

/// A text whose lines, repeated, make the records of a run: Isaac Newton, Opticks, 1730.
#[derive(Debug)]
pub(crate) struct Text(Vec<&'static str>);

impl Text {
    pub(crate) fn new() -> Self {
        let all = include_str!("../../../examples/data/opticks.txt");
        Self(all.lines().filter(|line| !line.is_empty()).collect())
    }

    /// Record `number` (from 0): the number, a space, a line.
    pub(crate) fn record(&self, number: u64) -> String {
        format!("{number} {}", self.0[number as usize % self.0.len()])
    }

    /// The number of a record that is one of these, bit by bit.
    fn number_of(&self, record: &[u8]) -> Option<u64> {
        let (number, _) = str::from_utf8(record).ok()?.split_once(' ')?;
        let number = number.parse().ok()?;
        (self.record(number).as_bytes() == record).then_some(number)
    }
}

/// The task of a child: worker `w` of `n` appends records `w`, `w + n`, `w + 2n` … below `total`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// The log's directory.
    pub(crate) dir: PathBuf,
    /// The number of records of the whole run.
    pub(crate) total: u64,
    /// The number of appends that each thread keeps in flight.
    pub(crate) in_flight: u16,
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
            .session_window(self.in_flight)
            .sessions_max(self.sessions_max())
    }

    /// A few more than there are workers: a worker that was killed before it could report its session opens
    /// another one.
    fn sessions_max(&self) -> u32 {
        2 * self.workers.len() as u32 + 16
    }

    /// The smallest segment size, at least the plan's, whose opening has room for all sessions.
    pub(crate) fn fit_segments(self) -> Self {
        let table = self.sessions_max() * (64 + 16 * u32::from(self.in_flight));
        Self { segment_bytes: (table * 10).next_power_of_two().max(self.segment_bytes), ..self }
    }
}

/// A message of a child. On the pipe: kind, a, b, each 8 bytes, little-endian.
#[derive(Clone, Copy, Debug)]
enum Report {
    /// The log is open; this was its last index.
    Opened { last: u64 },
    /// A worker has a session.
    Session { worker: u64, id: u64 },
    /// An append was acknowledged.
    Acked { number: u64, index: u64 },
}

const REPORT_BYTES: usize = 24;
/// Reports written at once: as many as a pipe takes completely or not at all (PIPE_BUF, 4096 bytes).
const REPORTS_MAX: usize = 4096 / REPORT_BYTES;

impl Report {
    fn encode(self) -> [u8; REPORT_BYTES] {
        let words = match self {
            Self::Opened { last } => [1, last, 0],
            Self::Session { worker, id } => [2, worker, id],
            Self::Acked { number, index } => [3, number, index],
        };
        let mut bytes = [0; REPORT_BYTES];
        bytes.as_chunks_mut().0.iter_mut().zip(words).for_each(|(to, word)| *to = word.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; REPORT_BYTES]) -> Self {
        let [kind, a, b] = [0, 1, 2].map(|i| u64::from_le_bytes(bytes.as_chunks().0[i]));
        match kind {
            1 => Self::Opened { last: a },
            2 => Self::Session { worker: a, id: b },
            3 => Self::Acked { number: a, index: b },
            _ => panic!("the child sent an unknown report: {kind}"),
        }
    }
}

/// The name of the test that is the child's main function.
const APPENDER: &str = "witness::appender";
/// The environment variable that has the child's plan.
const PLAN: &str = "CHIPLOG_TEST_PLAN";

/// The child: carries out a plan, reports on the pipe.
#[test]
#[ignore = "the process that other tests start, and kill"]
fn appender() {
    let Ok(plan) = env::var(PLAN) else { return };
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let plan: Plan = serde_json::from_str(&plan).unwrap();
    let text = Text::new();
    let log = Log::open(&plan.dir, plan.options()).unwrap();
    send(&[Report::Opened { last: log.last_index().get() }]);
    thread::scope(|scope| {
        for worker in 0..plan.workers.len() {
            let (log, text, plan) = (&log, &text, &plan);
            scope.spawn(move || work(log, text, plan, worker));
        }
    });
    log.close().unwrap();
}

/// The appends of one thread.
fn work(log: &Log, text: &Text, plan: &Plan, worker: usize) {
    let mut session: Session = match plan.workers[worker] {
        None => log.open_session().unwrap(),
        Some((id, next)) => log.resume_session(SessionId(id), Sequence(next)),
    };
    send(&[Report::Session { worker: worker as u64, id: session.id().get() }]);
    let threads = plan.workers.len() as u64;
    let mut number = worker as u64 + (session.next_sequence().get() - 1) * threads;
    let mut under_way: VecDeque<(u64, Ticket<Index>)> = VecDeque::new();
    loop {
        while under_way.len() < plan.in_flight.into() && number < plan.total {
            under_way.push_back((number, session.submit(text.record(number).as_bytes()).unwrap()));
            number += threads;
        }
        let Some((number, ticket)) = under_way.pop_front() else { return };
        let mut reports = vec![Report::Acked { number, index: ticket.wait().unwrap().get() }];
        while reports.len() < REPORTS_MAX
            && let Some(done) = under_way.front().and_then(|(_, ticket)| ticket.poll())
            && let Some((number, _)) = under_way.pop_front()
        {
            reports.push(Report::Acked { number, index: done.unwrap().get() });
        }
        send(&reports);
    }
}

/// Writes reports in one call, so that they arrive completely or not at all.
fn send(reports: &[Report]) {
    let bytes: Vec<u8> = reports.iter().flat_map(|report| report.encode()).collect();
    let sent = rustix::io::retry_on_intr(|| rustix::io::write(rustix::stdio::stdin(), &bytes)).unwrap();
    assert_eq!(sent, bytes.len(), "the pipe to the witness accepted only part of a report");
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
    /// By record number: the index; 0: not acknowledged.
    promised: Vec<u64>,
    /// By worker: session id, and the number of its acknowledged records.
    workers: Vec<(u64, u64)>,
    /// The log's last index when the current child opened it.
    opened_last: u64,
    /// Appends whose acknowledgement to the current child says that they were in the log before.
    repeated: u64,
}

impl Witness {
    /// A witness without acknowledgements. Only the length of `plan.workers` matters, the number of threads.
    pub(crate) fn new(plan: Plan) -> Arc<Self> {
        let notes = Notes {
            promised: vec![0; plan.total as usize],
            workers: vec![(0, 0); plan.workers.len()],
            ..Notes::default()
        };
        Arc::new(Self { plan, notes: Mutex::new(notes), acked: AtomicU64::new(0) })
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
        self.notes.lock().unwrap().repeated
    }

    /// Starts a child. Known sessions are resumed after their last acknowledgement.
    pub(crate) fn start(self: &Arc<Self>) -> Running {
        let mut plan = self.plan.clone();
        {
            let mut notes = self.notes.lock().unwrap();
            let next = |(id, acked): &(u64, u64)| (*id > 0).then_some((*id, acked + 1));
            plan.workers = notes.workers.iter().map(next).collect();
            notes.repeated = 0;
        }
        let (reports, theirs) = io::pipe().unwrap();
        let child = Command::new(env::current_exe().unwrap())
            .args([APPENDER, "--exact", "--ignored", "--nocapture"])
            .env(PLAN, serde_json::to_string(&plan).unwrap())
            .stdin(theirs)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let witness = Arc::clone(self);
        Running { child, collector: Some(thread::spawn(move || witness.collect(reports))) }
    }

    /// Records reports until the pipe ends, at the latest when the child dies.
    fn collect(&self, mut pipe: impl Read) {
        let mut buffer = vec![0; 64 << 10];
        let mut filled = 0;
        loop {
            filled += match pipe.read(&mut buffer[filled..]).unwrap() {
                0 => break,
                n => n,
            };
            let (reports, rest) = buffer[..filled].as_chunks();
            let left = rest.len();
            let mut notes = self.notes.lock().unwrap();
            reports.iter().for_each(|report| self.note(&mut notes, Report::decode(report)));
            drop(notes);
            buffer.copy_within(filled - left..filled, 0);
            filled = left;
        }
        assert_eq!(filled, 0, "the child's last report is cut off");
    }

    fn note(&self, notes: &mut Notes, report: Report) {
        match report {
            Report::Opened { last } => notes.opened_last = last,
            Report::Session { worker, id } => notes.workers[worker as usize].0 = id,
            Report::Acked { number, index } => {
                let threads = notes.workers.len() as u64;
                let (_, acked) = &mut notes.workers[(number % threads) as usize];
                // Appends of one session are acknowledged in order.
                assert_eq!(*acked, number / threads, "record {number} is out of its session's order");
                *acked += 1;
                notes.promised[number as usize] = index;
                notes.repeated += u64::from(index <= notes.opened_last);
                self.acked.fetch_add(1, Ordering::Release);
            }
        }
    }

    /// Reads to the end of the log and compares every record with the text and the acknowledgements.
    pub(crate) fn check(&self, reader: &mut Reader, text: &Text, seen: &mut Seen) {
        while let Some(found) = reader.next_record().unwrap() {
            seen.take(&found, text);
        }
        self.compare(seen);
    }

    /// Compares what a reader saw with the acknowledgements: each acknowledged record is there, at its index.
    /// Records below the first one that the reader saw are skipped.
    pub(crate) fn compare(&self, seen: &Seen) {
        for (number, &index) in self.notes.lock().unwrap().promised.iter().enumerate() {
            if index < seen.from {
                continue; // never acknowledged (it may be there or not), or discarded
            }
            assert!(
                index < seen.next,
                "record {number} was acknowledged at {index}, but the log ends at {}",
                seen.next - 1
            );
            let at = seen.indexes[number];
            assert_eq!(index, at, "record {number} was acknowledged at {index}, but it is at {at}");
        }
    }
}

/// The records that one reader saw, in the order of the log.
#[derive(Debug)]
pub(crate) struct Seen {
    /// By record number; 0: not seen.
    indexes: Vec<u64>,
    from: u64,
    next: u64,
}

impl Seen {
    /// A reader that saw nothing yet. Its next record has to be at `next`.
    pub(crate) fn new(total: u64, next: Index) -> Self {
        Self { indexes: vec![0; total as usize], from: next.get(), next: next.get() }
    }

    /// The index that the next record has to have.
    pub(crate) fn next(&self) -> Index {
        Index(self.next)
    }

    /// The number of seen records.
    pub(crate) fn count(&self) -> u64 {
        self.next - self.from
    }

    /// Checks the next record: consecutive, no duplicate, and every bit correct.
    pub(crate) fn take(&mut self, found: &Record<'_>, text: &Text) {
        let index = found.index.get();
        assert_eq!(index, self.next, "index {index} follows index {}", self.next - 1);
        let Some(number) = text.number_of(found.data) else {
            panic!("index {index} holds no planned record")
        };
        let place = &mut self.indexes[number as usize];
        assert_eq!(*place, 0, "record {number} is in the log twice: at {place} and at {index}");
        (*place, self.next) = (index, self.next + 1);
    }
}

/// A running child. It is killed on drop.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    collector: Option<JoinHandle<()>>,
}

impl Running {
    /// The child's process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether the child has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Kills the child with SIGKILL and collects its earlier reports. False: it had ended by itself.
    pub(crate) fn kill(mut self) -> bool {
        self.child.kill().unwrap();
        self.finish().signal() == Some(Signal::KILL.as_raw())
    }

    /// Waits until the child ends by itself.
    pub(crate) fn wait(mut self) {
        let status = self.finish();
        assert!(status.success(), "the child failed: {status}");
    }

    fn finish(&mut self) -> ExitStatus {
        let status = self.child.wait().unwrap();
        self.collector.take().unwrap().join().unwrap();
        status
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // If it has already ended, there is nothing to do or report.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
