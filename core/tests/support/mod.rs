//! The shared parts of the tests over the simulated disk: scripts of commands, their model, and the checks.
//!
//! One thread submits, so commands take effect in the order of the script. [`run`] runs a script on a [`SimDisk`] and
//! writes a note into the disk's history when a command is submitted and when it is acknowledged. At any point of
//! that history the log may hold the effect of the first `k` commands, for any `k` from the last acknowledged to the
//! last submitted, and nothing else: [`Trace::judge`].
#![allow(dead_code, unreachable_pub, unused_imports, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test support")]

pub mod explore;
mod script;

pub use script::{Mix, Step, record, script};

use chiplog::disk::sim::{History, Op, Rng, SimDisk};
use chiplog::{
    Appended, Batch, BatchBuilder, Clock, Codec, ErrorKind, Index, Log, LogOption, LogOptions, Options,
    ReadMode, Sequence, SessionId, Start, Ticket, Timestamp,
};
use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Returns from the function with an error message, unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+).into());
        }
    };
}

/// A clock that moves on by a millisecond at each look, and now and then jumps back.
#[derive(Debug, Default)]
pub struct StepClock(AtomicU64);

impl Clock for StepClock {
    fn now(&self) -> Timestamp {
        let n = self.0.fetch_add(1, Ordering::Relaxed);
        Timestamp(1_700_000_000_000 + if n % 7 == 3 { n / 2 } else { n })
    }
}

/// Small segments, so that a short script rolls; small blocks, so that one write holds many; reads by `pread`,
/// because a simulated disk has nothing to map.
/// The records' place, however durable they are.
fn place(appended: Appended) -> (Index, u32) {
    (appended.first, appended.count)
}

pub fn options() -> Options {
    options_for(64)
}

fn options_for(segment_kib: u32) -> Options {
    Options::with_segment_bytes(segment_kib << 10)
        .read_mode(ReadMode::Read)
        .block_bytes_max(4096)
        .clock(Arc::new(StepClock::default()))
}

/// Opens the log on a simulated disk.
pub fn open(disk: &SimDisk) -> chiplog::Result<Log> {
    Log::open_on(Arc::new(disk.clone()), options())
}

/// The expected memory of a session.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionModel {
    pub id: Option<SessionId>,
    pub closed: bool,
    pub last: Option<(Sequence, Appended)>,
}

impl SessionModel {
    fn next_sequence(&self) -> Sequence {
        Sequence(self.last.map_or(1, |(last, _)| last.0 + 1))
    }
}

/// The expected state of the log after some commands, without the records' bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    pub first: Index,
    /// The index after the last record.
    pub next: Index,
    pub sessions: Vec<SessionModel>,
    pub options: LogOptions,
}

/// A script that was run: the expected states, and the disk's history.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Before the first command, and after each.
    pub snapshots: Vec<Snapshot>,
    /// All records ever, by index.
    pub records: BTreeMap<Index, Vec<u8>>,
    /// Each session's last batch by sequence, for retries.
    pub batches: BTreeMap<(usize, Sequence), Batch>,
    /// Commands submitted and acknowledged at the end.
    pub submitted: usize,
    pub acknowledged: usize,
    /// The first error, where a script may end early.
    pub error: Option<chiplog::Error>,
}

impl Default for Trace {
    fn default() -> Self {
        let options = LogOptions::default();
        let start = Snapshot { first: Index(1), next: Index(1), sessions: Vec::new(), options };
        Self {
            snapshots: vec![start],
            records: BTreeMap::new(),
            batches: BTreeMap::new(),
            submitted: 0,
            acknowledged: 0,
            error: None,
        }
    }
}

/// The notes in the history: command `n` (from 1) was submitted, was acknowledged.
const SUBMITTED: u64 = 0;
const ACKNOWLEDGED: u64 = 1;

struct Runner {
    disk: SimDisk,
    log: Log,
    trace: Trace,
    waiting: VecDeque<(usize, Ticket, Appended)>,
}

/// The reason why a step ends a script.
enum Stop {
    /// The log answered with an error.
    Failed(chiplog::Error),
    /// The log is wrong.
    Wrong(String),
    /// A planned fault occurred during a check of the log.
    Disturbed,
}

impl From<chiplog::Error> for Stop {
    fn from(error: chiplog::Error) -> Self {
        Self::Failed(error)
    }
}

/// Runs `steps` on a log that is opened on `disk`, up to the first error. Closes the log at the end. The log's
/// answers are compared with the model on the way.
///
/// # Errors
/// The fault of the log.
pub fn run(disk: &SimDisk, steps: &[Step]) -> Result<Trace, String> {
    let log = match open(disk) {
        Ok(log) => log,
        Err(error) => return Ok(Trace { error: Some(error), ..Trace::default() }),
    };
    let mut runner = Runner { disk: disk.clone(), log, trace: Trace::default(), waiting: VecDeque::new() };
    let mut outcome = steps.iter().try_for_each(|step| runner.step(step));
    if outcome.is_ok() {
        outcome = runner.wait_all();
    }
    // After a failure too: earlier acknowledgements still count.
    while !runner.waiting.is_empty() {
        if let Err(Stop::Wrong(what)) = runner.wait_all() {
            return Err(what);
        }
    }
    let closed = runner.log.close();
    match outcome.and(closed.map_err(Stop::Failed)) {
        Ok(()) => {}
        Err(Stop::Failed(error)) => runner.trace.error = Some(error),
        Err(Stop::Wrong(what)) => return Err(what),
        Err(Stop::Disturbed) => {}
    }
    Ok(runner.trace)
}

impl Runner {
    fn step(&mut self, step: &Step) -> Result<(), Stop> {
        match step {
            Step::Append { session, records, codec } => self.append(*session, records, *codec)?,
            Step::Retry { session } => self.retry(*session)?,
            Step::OpenSession => {
                self.wait_all()?;
                let n = self.submitted(|s| s.sessions.push(SessionModel::default()));
                let id = self.log.open_session()?.id();
                if let Some(session) = self.trace.snapshots.last_mut().and_then(|s| s.sessions.last_mut()) {
                    session.id = Some(id);
                }
                self.acknowledged(n);
            }
            Step::CloseSession { session } => {
                self.wait_all()?;
                let Some((id, model)) = self.open_session(*session) else { return Ok(()) };
                let mut handle = self.log.resume_session(id, model.next_sequence());
                let n = self.submitted(|s| s.sessions[*session].closed = true);
                handle.close()?;
                self.acknowledged(n);
            }
            Step::Discard { records } => {
                self.wait_all()?;
                let first = self.now().first.plus(*records);
                let n = self.submitted(|s| {
                    s.first = s.first.max(first);
                    s.next = s.next.max(first);
                });
                self.log.discard(first)?;
                self.acknowledged(n);
            }
            Step::SetOption { option, value } => {
                self.wait_all()?;
                let n = self.submitted(|s| s.options.set(*option, *value));
                self.log.set_log_options(&[(*option, *value)], Duration::from_secs(20))?;
                self.acknowledged(n);
            }
            Step::Wait => self.wait_all()?,
            Step::Idle => {
                self.wait_all()?;
                std::thread::sleep(Duration::from_millis(25));
            }
            Step::Reopen { segment_kib } => {
                self.wait_all()?;
                self.log.close()?;
                self.log = Log::open_on(Arc::new(self.disk.clone()), options_for(*segment_kib))?;
                self.judge()?;
            }
            Step::Read => {
                self.wait_all()?;
                self.judge()?;
            }
            Step::Crash { seed, keep } => self.crash(*seed, *keep)?,
        }
        Ok(())
    }

    /// Checks the log after everything submitted is acknowledged: nothing else may be there.
    fn judge(&self) -> Result<(), Stop> {
        let (end, faults) = (self.trace.submitted, self.disk.faults_fired());
        match self.trace.judge(&self.log, end..=end) {
            Ok(_) => Ok(()),
            Err(_) if self.disk.faults_fired() > faults => Err(Stop::Disturbed),
            Err(what) => Err(Stop::Wrong(what)),
        }
    }

    fn crash(&mut self, seed: u64, keep: usize) -> Result<(), Stop> {
        let mut rng = Rng::new(seed);
        let after =
            self.disk.crash(|versions| if rng.below(8) < keep { 1 + rng.below(versions - 1) } else { 0 });
        // Appends that return `Ok` now were durable before the power failed.
        while let Some((n, ticket, wanted)) = self.waiting.pop_front() {
            match ticket.wait() {
                Ok(_) => self.acknowledged(n),
                Err(error) => self.refused(n, wanted, &error),
            }
        }
        let _ = self.log.close();
        self.disk = after;
        self.log = open(&self.disk)?;
        let legal = self.trace.acknowledged..=self.trace.submitted;
        let ks = self.trace.judge(&self.log, legal).map_err(Stop::Wrong)?;
        self.trace.forget_after(&ks);
        Ok(())
    }

    fn now(&self) -> &Snapshot {
        &self.trace.snapshots[self.trace.submitted]
    }

    /// A session of the script, if it is open; a crash can have undone its opening.
    fn open_session(&self, n: usize) -> Option<(SessionId, SessionModel)> {
        let model = self.now().sessions.get(n).filter(|s| !s.closed)?;
        Some((model.id?, model.clone()))
    }

    fn append(&mut self, session: Option<usize>, records: &[Vec<u8>], codec: Codec) -> Result<(), Stop> {
        let mut builder = BatchBuilder::new();
        builder.codec(codec);
        let mut stamp = None;
        if let Some(n) = session {
            let Some((id, model)) = self.open_session(n) else { return Ok(()) };
            builder.session(id, model.next_sequence(), 100);
            stamp = Some((n, model.next_sequence()));
        }
        for record in records {
            builder.push(record)?;
        }
        let batch = builder.build()?;
        let (n, appended) = self.trace.submit(&self.disk, stamp, records, &batch);
        let plain = session.is_none() && records.len() == 1 && codec == Codec::None;
        let ticket = if plain { self.log.submit(&records[0])?.into() } else { self.log.submit(&batch)? };
        self.waiting.push_back((n, ticket, appended));
        Ok(())
    }

    fn retry(&mut self, session: usize) -> Result<(), Stop> {
        let Some((sequence, appended)) = self.open_session(session).and_then(|(_, model)| model.last) else {
            return Ok(());
        };
        let batch = self.trace.batches[&(session, sequence)].clone();
        let n = self.submitted(|_| {});
        let ticket = self.log.submit(&batch)?;
        self.waiting.push_back((n, ticket, appended));
        Ok(())
    }

    fn submitted(&mut self, effect: impl FnOnce(&mut Snapshot)) -> usize {
        self.trace.submitted(&self.disk, effect)
    }

    fn acknowledged(&mut self, n: usize) {
        self.trace.acknowledged(&self.disk, n);
    }

    /// An append that was refused, not one that failed, is as if it had never been submitted; a retry behind it may be acknowledged.
    fn refused(&mut self, n: usize, wanted: Appended, error: &chiplog::Error) {
        if error.kind() == ErrorKind::Poisoned {
            return;
        }
        self.trace.refuse(n, wanted);
        for (_, _, later) in self.waiting.iter_mut().filter(|(_, _, w)| w.first > wanted.first) {
            later.first = Index(later.first.0 - u64::from(wanted.count));
        }
    }

    fn wait_all(&mut self) -> Result<(), Stop> {
        while let Some((n, ticket, wanted)) = self.waiting.pop_front() {
            let appended = ticket.wait().inspect_err(|error| self.refused(n, wanted, error))?;
            if place(appended) != place(wanted) {
                return Err(Stop::Wrong(format!("command {n} got {appended:?}, not {wanted:?}")));
            }
            self.acknowledged(n);
        }
        Ok(())
    }
}

/// The commands that may have taken effect after each prefix of the operations: from the last acknowledged to the
/// last submitted.
pub fn bounds(history: &History) -> Vec<RangeInclusive<usize>> {
    let (mut acknowledged, mut submitted) = (0, 0);
    let mut bounds = vec![0..=0];
    for op in &history.ops {
        if let Op::Mark(note) = op {
            let n = (note >> 1) as usize;
            if note & 1 == ACKNOWLEDGED { acknowledged = n.max(acknowledged) } else { submitted = n }
        }
        bounds.push(acknowledged..=submitted);
    }
    bounds
}

impl Trace {
    /// Adds a command with its effect to the trace; returns its number.
    fn submitted(&mut self, disk: &SimDisk, effect: impl FnOnce(&mut Snapshot)) -> usize {
        let mut after = self.snapshots[self.submitted].clone();
        effect(&mut after);
        self.snapshots.push(after);
        self.submitted += 1;
        disk.mark((self.submitted as u64) << 1 | SUBMITTED);
        self.submitted
    }

    fn acknowledged(&mut self, disk: &SimDisk, n: usize) {
        disk.mark((n as u64) << 1 | ACKNOWLEDGED);
        self.acknowledged = self.acknowledged.max(n);
    }

    /// Adds a batch that is about to be submitted.
    fn submit(
        &mut self,
        disk: &SimDisk,
        stamp: Option<(usize, Sequence)>,
        records: &[Vec<u8>],
        batch: &Batch,
    ) -> (usize, Appended) {
        let appended = Appended::new(self.snapshots[self.submitted].next, records.len() as u32);
        for (i, record) in records.iter().enumerate() {
            self.records.insert(appended.first.plus(i as u64), record.clone());
        }
        if let Some(key) = stamp {
            self.batches.insert(key, batch.clone());
        }
        let n = self.submitted(disk, |s| {
            s.next = s.next.plus(records.len() as u64);
            if let Some((session, sequence)) = stamp {
                s.sessions[session].last = Some((sequence, appended));
            }
        });
        (n, appended)
    }

    /// Removes command `n`, a batch that would have had the indexes `wanted`, from the submitted ones: all later
    /// records move up.
    fn refuse(&mut self, n: usize, wanted: Appended) {
        let count = u64::from(wanted.count);
        let before = self.snapshots[n - 1].clone();
        if before.next != wanted.first {
            return; // a duplicate: it has no index of its own
        }
        let up = |index: Index| if index > wanted.first { Index(index.0 - count) } else { index };
        for snapshot in &mut self.snapshots[n..] {
            snapshot.next = up(snapshot.next);
            for (session, old) in snapshot.sessions.iter_mut().zip(&before.sessions) {
                match &mut session.last {
                    Some((_, appended)) if *appended == wanted => session.last = old.last,
                    Some((_, appended)) => appended.first = up(appended.first),
                    None => {}
                }
            }
        }
        let records = std::mem::take(&mut self.records);
        let gone = wanted.first..wanted.first.plus(count);
        self.records =
            records.into_iter().filter(|(i, _)| !gone.contains(i)).map(|(i, r)| (up(i), r)).collect();
    }

    /// Checks the open log: it must be exactly the result of some number of commands within `legal`, by every way of
    /// reading it. Returns those numbers.
    ///
    /// # Errors
    /// The fault of the log.
    pub fn judge(&self, log: &Log, legal: RangeInclusive<usize>) -> Result<RangeInclusive<usize>, String> {
        let status = log.status();
        let found = (status.first_index, status.last_index.next(), log.log_options());
        let fits = |k: &usize| {
            let Snapshot { first, next, options, .. } = &self.snapshots[*k];
            (*first, *next, *options) == found
        };
        let ks: Vec<usize> = legal.clone().filter(fits).collect();
        let (Some(&low), Some(&high)) = (ks.first(), ks.last()) else {
            let all: Vec<usize> = (0..self.snapshots.len()).filter(fits).collect();
            let bound = |k: usize| (self.snapshots[k].first.0, self.snapshots[k].next.0);
            let (from, to) = (bound(*legal.start()), bound(*legal.end()));
            return Err(format!(
                "the log holds records {}..={}, options {}: the effect of {all:?} commands; legal is {legal:?}, (first, next) from {from:?} to {to:?}",
                status.first_index, status.last_index, found.2,
            ));
        };
        ensure!(
            status.durable_index == status.last_index,
            "opened, but durable only to {} of {}",
            status.durable_index,
            status.last_index
        );
        self.judge_records(log, status.first_index, status.last_index)?;
        self.judge_sessions(log, high)?;
        Ok(low..=high)
    }

    fn judge_records(&self, log: &Log, first: Index, last: Index) -> Result<(), String> {
        let mut reader = log.reader(Start::First).map_err(|e| format!("no reader: {e}"))?;
        let (mut next, mut time) = (first, Timestamp(0));
        while let Some(record) =
            reader.next_record().map_err(|e| format!("record {next} cannot be read: {e}"))?
        {
            ensure!(record.index == next, "record {} was returned instead of {next}", record.index);
            self.judge_bytes(next, record.data)?;
            ensure!(record.timestamp >= time, "record {next} is older than the one before");
            time = record.timestamp;
            next = next.next();
        }
        ensure!(next == last.next(), "the reader stops before {next}, the last is {last}");
        for index in [first, Index((first.0 + last.0) / 2), last] {
            if (first..=last).contains(&index) {
                let record =
                    log.read(index).map_err(|e| format!("record {index} cannot be read alone: {e}"))?;
                ensure!(record.index == index, "requested record {index}, got {}", record.index);
                self.judge_bytes(index, &record.data)?;
            }
        }
        self.judge_starts(log, first, last)?;
        let refused = |index: Index, wanted: ErrorKind| match log.read(index) {
            Err(e) if e.kind() == wanted => Ok(()),
            Err(e) => Err(format!("reading {index} should fail as {wanted}: {e}")),
            Ok(_) => Err(format!("record {index} is outside the log, but was read")),
        };
        refused(last.next(), ErrorKind::OutOfRange)?;
        if first.0 > 1 { refused(first.previous(), ErrorKind::Discarded) } else { Ok(()) }
    }

    /// Checks that readers from every kind of start begin at the right index.
    fn judge_starts(&self, log: &Log, first: Index, last: Index) -> Result<(), String> {
        let middle = Index((first.0 + last.0) / 2);
        let mut starts =
            vec![(Start::Next, last.next()), (Start::Last(0), last.next()), (Start::Last(u64::MAX), first)];
        if last >= first {
            starts.push((Start::Index(middle), middle));
            starts.push((Start::Last(1), last));
            starts.push((Start::Timestamp(Timestamp(0)), first));
            let time = log.read(middle).map_err(|e| e.to_string())?.timestamp;
            let mut reader = log.reader(Start::Timestamp(time)).map_err(|e| e.to_string())?;
            let found = reader.next_record().map_err(|e| e.to_string())?.map(|r| (r.index, r.timestamp));
            ensure!(
                found.is_some_and(|(i, t)| i <= middle && t == time),
                "from {time} of {middle}: {found:?}"
            );
        }
        starts.push((Start::Timestamp(Timestamp(u64::MAX)), last.next()));
        starts.push((Start::Index(last.next()), last.next()));
        for (start, wanted) in starts {
            let mut reader = log.reader(start).map_err(|e| format!("no reader from {start:?}: {e}"))?;
            ensure!(reader.position() == wanted, "{start:?} begins at {}, not {wanted}", reader.position());
            match reader.next_batch().map_err(|e| format!("a batch from {start:?}: {e}"))? {
                None => ensure!(wanted > last, "{start:?} returns nothing"),
                Some(batch) => {
                    ensure!(batch.first() == wanted, "{start:?} returns {}, not {wanted}", batch.first());
                    for record in batch.iter() {
                        self.judge_bytes(record.index, record.data)?;
                    }
                    ensure!(
                        reader.position() == batch.first().plus(batch.count().into()),
                        "a batch moves the reader"
                    );
                }
            }
        }
        Ok(())
    }

    fn judge_bytes(&self, index: Index, data: &[u8]) -> Result<(), String> {
        let wanted = self.records.get(&index).map_or(&[][..], Vec::as_slice);
        let show = |b: &[u8]| String::from_utf8_lossy(&b[..b.len().min(12)]).into_owned();
        ensure!(data == wanted, "record {index} is {:?}…, not {:?}…", show(data), show(wanted));
        Ok(())
    }

    /// Checks that a batch in the log is not appended twice: a retry gets the first one's indexes.
    fn judge_sessions(&self, log: &Log, k: usize) -> Result<(), String> {
        let before = log.last_index();
        for (n, session) in self.snapshots[k].sessions.iter().enumerate() {
            let (Some((sequence, appended)), false) = (session.last, session.closed) else { continue };
            match log.submit(&self.batches[&(n, sequence)]).and_then(|t| t.wait()) {
                Ok(again) => {
                    ensure!(
                        place(again) == place(appended),
                        "a duplicate in session {n} got {again:?}, not {appended:?}"
                    )
                }
                Err(e) => return Err(format!("session {n} refused a duplicate: {e}")),
            }
        }
        ensure!(log.last_index() == before, "a duplicate became a record");
        Ok(())
    }

    /// Removes the commands after the last of `ks`: they did not happen. A session whose opening is among `ks` may be
    /// open or not; it is not used any more.
    pub fn forget_after(&mut self, ks: &RangeInclusive<usize>) {
        let k = *ks.end();
        self.snapshots.truncate(k + 1);
        (self.submitted, self.acknowledged) = (k, k);
        let sure = self.snapshots[*ks.start()].sessions.len();
        for session in self.snapshots[k].sessions.iter_mut().skip(sure) {
            session.closed = true;
        }
        let Snapshot { next: beyond, sessions, .. } = &self.snapshots[k];
        self.records.retain(|index, _| index < beyond);
        self.batches.retain(|(n, _), _| *n < sessions.len());
    }

    /// Continues with the open log, whose state is that of this trace's end: retries each session's next batch if it
    /// was lost, then appends `records` one by one.
    pub fn extend(&mut self, disk: &SimDisk, log: &Log, records: &[Vec<u8>]) -> Result<(), Wrong> {
        for n in 0..self.snapshots[self.submitted].sessions.len() {
            let session = self.snapshots[self.submitted].sessions[n].clone();
            let key = (n, session.next_sequence());
            let Some(batch) = self.batches.get(&key).cloned().filter(|_| !session.closed) else { continue };
            let (number, wanted) = self.submit(disk, Some(key), &batch.records()?, &batch);
            let got = log.append(&batch)?;
            if place(got) != place(wanted) {
                return Err(Wrong(format!("session {n}'s lost batch got {got:?}, not {wanted:?}")));
            }
            self.acknowledged(disk, number);
        }
        for record in records {
            let mut builder = BatchBuilder::new();
            let batch = builder.push(record)?.build()?;
            let (number, wanted) = self.submit(disk, None, std::slice::from_ref(record), &batch);
            let got = log.append(record)?;
            if got != wanted.first {
                return Err(Wrong(format!("an append got {got}, not {}", wanted.first)));
            }
            self.acknowledged(disk, number);
        }
        Ok(())
    }
}

/// A fault of the log, in words.
#[derive(Debug)]
pub struct Wrong(pub String);

impl Wrong {
    /// Adds the place where it was found.
    pub fn within(self, place: &str) -> Self {
        Self(format!("{place}: {}", self.0))
    }
}

impl From<chiplog::Error> for Wrong {
    fn from(error: chiplog::Error) -> Self {
        Self(format!("{error:?}"))
    }
}

impl From<String> for Wrong {
    fn from(what: String) -> Self {
        Self(what)
    }
}
