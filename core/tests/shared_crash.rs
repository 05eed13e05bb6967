//! Power cuts at every point of the life of a shared group, with every outcome that a disk allows.
//!
//! A script creates, fills, discards, seals and deletes the logs of one group on a simulated disk. After each prefix of
//! the disk's operations, with each subset of the unsynced writes (a sample where there are many), the group recovers:
//! each log holds the effect of its commands up to one from the last acknowledged to the last submitted. (Appends of
//! different logs can overtake each other.) A second crash meanwhile changes nothing.
//!
//! `CHIPLOG_SHARED_STATES` sets how many different states are explored, `CHIPLOG_SEED` the first script's seed.
#![cfg(feature = "testing")] // opens the simulated disk
#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::disk::sim::{DiskState, History, Image, Op, Rng, SimDisk};
use chiplog::{
    BatchBuilder, Clock, ErrorKind, Index, Log, LogNumber, Logs, LogsOptions, Options, ReadMode, Sequence,
    SessionId, Start, Timestamp,
};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Returns from the function with an error message, unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}

type Judged<T> = Result<T, String>;

#[derive(Debug, Default)]
struct StepClock(AtomicU64);

impl Clock for StepClock {
    fn now(&self) -> Timestamp {
        Timestamp(1_700_000_000_000 + self.0.fetch_add(1, Ordering::Relaxed))
    }
}

fn options() -> Options {
    Options::with_segment_bytes(64 << 10)
        .read_mode(ReadMode::Read)
        .block_bytes_max(4096)
        .sessions_max(8)
        .session_window(8)
        .clock(Arc::new(StepClock::default()))
}

fn logs_on(system: &SimDisk, group: &SimDisk) -> chiplog::Result<Logs> {
    let options = LogsOptions::default().groups(1).options(options());
    Logs::open_on(Arc::new(system.clone()), vec![Arc::new(group.clone())], options)
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |v| v.parse().unwrap())
}

#[derive(Clone, Debug, PartialEq)]
struct LogModel {
    first: u64,
    next: u64,
    sealed: bool,
}

#[derive(Clone, Debug, PartialEq)]
struct SessionModel {
    log: u32,
    id: SessionId,
    /// Its last batch: its sequence, and the index that it got.
    last: Option<(u64, u64)>,
}

/// The logs that exist, and the open sessions, after some commands.
#[derive(Clone, Debug, Default, PartialEq)]
struct Snapshot {
    logs: BTreeMap<u32, LogModel>,
    sessions: Vec<SessionModel>,
    /// The newest log that was ever created.
    created: u32,
}

#[derive(Clone, Debug)]
struct Trace {
    snapshots: Vec<Snapshot>,
    /// All records ever, by log and index.
    records: BTreeMap<(u32, u64), Vec<u8>>,
    submitted: usize,
    acknowledged: usize,
}

impl Default for Trace {
    fn default() -> Self {
        let (snapshots, records) = (vec![Snapshot::default()], BTreeMap::new());
        Self { snapshots, records, submitted: 0, acknowledged: 0 }
    }
}

impl Trace {
    fn now(&self) -> &Snapshot {
        &self.snapshots[self.submitted]
    }

    fn submit(&mut self, disk: &SimDisk, effect: impl FnOnce(&mut Snapshot)) -> usize {
        let mut after = self.now().clone();
        effect(&mut after);
        self.snapshots.push(after);
        self.submitted += 1;
        disk.mark((self.submitted as u64) << 1);
        self.submitted
    }

    fn acknowledge(&mut self, disk: &SimDisk, n: usize) {
        disk.mark((n as u64) << 1 | 1);
        self.acknowledged = self.acknowledged.max(n);
    }

    fn submit_append(&mut self, disk: &SimDisk, log: u32, record: &[u8]) -> (usize, u64) {
        let at = self.now().logs[&log].next;
        self.records.insert((log, at), record.to_vec());
        (self.submit(disk, |s| s.logs.get_mut(&log).unwrap().next += 1), at)
    }

    /// A trace that begins with what a group was found to hold.
    fn after(&self, found: Snapshot) -> Self {
        let mut records = self.records.clone();
        records.retain(|(log, at), _| found.logs.get(log).is_some_and(|l| *at < l.next));
        Self { snapshots: vec![found], records, submitted: 0, acknowledged: 0 }
    }

    /// Checks a group that was just opened. Returns what it holds.
    fn judge(&self, group: &Log, legal: &RangeInclusive<usize>) -> Judged<Snapshot> {
        let newest = self.snapshots.iter().map(|s| s.created).max().unwrap_or_default();
        let handles: BTreeMap<u32, Log> =
            (1..=newest + 1).filter_map(|n| Some((n, group.named(LogNumber(n)).ok()?))).collect();
        let found: BTreeMap<u32, (u64, u64)> = handles
            .iter()
            .map(|(n, log)| (*n, (log.first_index().get(), log.last_index().get() + 1)))
            .collect();
        let (start, end) = (&self.snapshots[*legal.start()], &self.snapshots[*legal.end()]);
        let fits = |k: &usize| {
            let logs = &self.snapshots[*k].logs;
            let fits = |(n, log): (&u32, &LogModel)| {
                let (first, next) = found[n];
                let (from, to) = (start.logs.get(n).unwrap_or(log), end.logs.get(n).unwrap_or(log));
                // Several commands without an answer are appends.
                let is_within = match from.first == to.first {
                    true => (from.next..=to.next).contains(&next),
                    false => next == log.next,
                };
                first == log.first && is_within
            };
            logs.keys().eq(found.keys()) && logs.iter().all(fits) && shows(group, &self.snapshots[*k])
        };
        let k = legal.clone().rev().find(fits);
        let k = k.ok_or_else(|| {
            format!("the logs are {found:?}; legal is {legal:?}, from {:?} to {:?}", start.logs, end.logs)
        })?;
        for (n, log) in &handles {
            self.judge_records(*n, log).map_err(|what| format!("log {n}: {what}"))?;
        }
        let mut state = self.snapshots[k].clone();
        for (n, log) in &mut state.logs {
            log.next = found[n].1;
        }
        for session in &mut state.sessions {
            let last_in = |s: &Snapshot| s.sessions.iter().find(|s| s.id == session.id).and_then(|s| s.last);
            let is_there = |(_, at): &(u64, u64)| *at < found[&session.log].1;
            session.last = last_in(end).filter(is_there).or(last_in(start));
        }
        self.judge_sessions(&handles, &state)?;
        Ok(state)
    }

    fn judge_records(&self, n: u32, log: &Log) -> Judged<()> {
        let (first, next) = (log.first_index().get(), log.last_index().get() + 1);
        let mut reader = log.reader(Start::First).map_err(|e| e.to_string())?;
        for at in first..next {
            let record = reader.next_record().map_err(|e| format!("record {at} cannot be read: {e}"))?;
            let record = record.ok_or_else(|| format!("the reader stops before {at} of {next}"))?;
            ensure!(record.index.get() == at, "record {} was returned instead of {at}", record.index);
            let wanted = self.records.get(&(n, at)).map(Vec::as_slice);
            ensure!(Some(record.data) == wanted, "record {at} has other bytes, perhaps of another log");
        }
        ensure!(reader.next_record().map_err(|e| e.to_string())?.is_none(), "the reader goes beyond {next}");
        for at in [first, first.midpoint(next), next - 1].into_iter().filter(|at| (first..next).contains(at))
        {
            let record = log.read(Index(at)).map_err(|e| format!("record {at} cannot be read alone: {e}"))?;
            ensure!(record.data == self.records[&(n, at)], "record {at} alone has other bytes");
        }
        let past = log.read(Index(next)).map(drop).unwrap_err().kind();
        ensure!(past == ErrorKind::OutOfRange, "record {next} does not exist, but: {past}");
        Ok(())
    }

    /// A retry of a batch in the log gets its index, and adds nothing.
    fn judge_sessions(&self, handles: &BTreeMap<u32, Log>, state: &Snapshot) -> Judged<()> {
        for session in &state.sessions {
            let Some((sequence, at)) = session.last else { continue };
            let log = &handles[&session.log];
            let before = log.last_index();
            let mut batch = BatchBuilder::new();
            let batch = batch.session(session.id, Sequence(sequence), 0);
            let batch = batch.push(&self.records[&(session.log, at)]).unwrap().build().unwrap();
            let again = log.append(&batch).map_err(|e| format!("a retry was refused: {e}"))?;
            ensure!(again.first.get() == at, "a retry got {}, not {at}", again.first);
            ensure!(log.last_index() == before, "a retry became a record");
        }
        Ok(())
    }

    /// Appends to every log of the open group; a sealed one refuses. `Err`: a fault of the group.
    fn extend(&mut self, disk: &SimDisk, group: &Log) -> Judged<()> {
        for (n, model) in self.now().logs.clone() {
            let log = group.named(LogNumber(n)).map_err(|e| e.to_string())?;
            if model.sealed {
                let refused = log.append(b"x").err().map(|e| e.kind());
                ensure!(refused == Some(ErrorKind::Sealed), "sealed log {n} answers {refused:?}");
                continue;
            }
            let record = format!("extra {n} {}", model.next);
            let (command, at) = self.submit_append(disk, n, record.as_bytes());
            let got = log.append(record.as_bytes());
            // A seal may have taken effect, if the last command was one without an answer.
            let got = got.map_err(|e| format!("log {n} of {:?} takes no append: {e}", self.now()))?;
            ensure!(got.get() == at, "log {n}: an append got {got}, not {at}");
            self.acknowledge(disk, command);
        }
        Ok(())
    }
}

/// Runs a script and closes the logs. The log's answers are compared with the model on the way.
fn run(system: &SimDisk, group: &SimDisk, seed: u64, steps: usize) -> Trace {
    let mut rng = Rng::new(seed);
    let logs = logs_on(system, group).unwrap();
    let mut trace = Trace::default();
    let mut handles: BTreeMap<u32, Log> = BTreeMap::new();
    let mut waiting = VecDeque::new();
    let name = |n: u32| format!("log-{n}");
    for step in 0..steps {
        let open = trace.now().logs.clone();
        let any: Vec<u32> = open.keys().copied().collect();
        let log = rng.pick(&any).copied().unwrap_or_default();
        let kind = rng.below(100);
        let is_append = step > 5 && kind < 80;
        if !is_append || rng.below(5) == 0 {
            for (n, ticket, at) in waiting.drain(..) {
                let ticket: chiplog::Ticket<Index> = ticket;
                assert_eq!(ticket.wait().unwrap().get(), at);
                trace.acknowledge(group, n);
            }
        }
        match kind {
            _ if open.len() < 5 && (step < 5 || kind >= 96) => {
                let n = trace.now().created + 1;
                let command = trace.submit(group, |s| {
                    s.created = n;
                    s.logs.insert(n, LogModel { first: 1, next: 1, sealed: false });
                });
                handles.insert(n, logs.create(&name(n)).unwrap());
                trace.acknowledge(group, command);
            }
            0..80 if open[&log].sealed => {}
            0..70 => {
                let bytes = if rng.below(8) == 0 { rng.below(9000) } else { rng.below(900) };
                let mut record = format!("{log} {step} ").into_bytes();
                record.resize(record.len() + bytes, b'a' + (step % 26) as u8);
                let (command, at) = trace.submit_append(group, log, &record);
                waiting.push_back((command, handles[&log].submit(&record[..]).unwrap(), at));
            }
            70..80 => {
                let known = trace.now().sessions.iter().position(|s| s.log == log);
                let Some(known) = known else {
                    if trace.now().sessions.len() < 4 {
                        for (n, ticket, at) in waiting.drain(..) {
                            assert_eq!(ticket.wait().unwrap().get(), at);
                            trace.acknowledge(group, n);
                        }
                        let id = handles[&log].open_session().unwrap().id();
                        let session = SessionModel { log, id, last: None };
                        let command = trace.submit(group, |s| s.sessions.push(session));
                        trace.acknowledge(group, command);
                    }
                    continue;
                };
                let SessionModel { id, last, .. } = trace.now().sessions[known];
                let sequence = last.map_or(1, |(sequence, _)| sequence + 1);
                let record = format!("{log} {step} in a session").into_bytes();
                let mut batch = BatchBuilder::new();
                let batch = batch.session(id, Sequence(sequence), 0).push(&record).unwrap().build().unwrap();
                let at = trace.now().logs[&log].next;
                trace.records.insert((log, at), record);
                let command = trace.submit(group, |s| {
                    s.logs.get_mut(&log).unwrap().next += 1;
                    s.sessions[known].last = Some((sequence, at));
                });
                assert_eq!(handles[&log].append(&batch).unwrap().first.get(), at);
                for (n, ticket, at) in waiting.drain(..) {
                    assert_eq!(ticket.wait().unwrap().get(), at);
                    trace.acknowledge(group, n);
                }
                trace.acknowledge(group, command);
            }
            80..92 => {
                let LogModel { first, next, sealed } = open[&log];
                let to = match rng.below(10) {
                    0 => next + 1 + rng.below(5) as u64,
                    1..4 => next,
                    _ => first + rng.below((next - first) as usize + 1) as u64,
                };
                // The end of a sealed log does not move.
                if sealed && to > next {
                    let refused = handles[&log].discard(Index(to)).unwrap_err();
                    assert_eq!(refused.kind(), ErrorKind::Sealed, "{refused}");
                    continue;
                }
                let command = trace.submit(group, |s| {
                    let log = s.logs.get_mut(&log).unwrap();
                    (log.first, log.next) = (log.first.max(to), log.next.max(to));
                });
                handles[&log].discard(Index(to)).unwrap();
                trace.acknowledge(group, command);
                assert_eq!(handles[&log].first_index().get(), first.max(to));
            }
            92..94 if open.len() > 3 => {
                let command = trace.submit(group, |s| s.logs.get_mut(&log).unwrap().sealed = true);
                logs.seal(&name(log)).unwrap();
                trace.acknowledge(group, command);
            }
            94..96 if open.len() > 2 => {
                let command = trace.submit(group, |s| {
                    s.logs.remove(&log);
                    s.sessions.retain(|session| session.log != log);
                });
                logs.delete(&name(log)).unwrap();
                trace.acknowledge(group, command);
                handles.remove(&log);
            }
            _ => {}
        }
    }
    for (n, ticket, at) in waiting.drain(..) {
        assert_eq!(ticket.wait().unwrap().get(), at);
        trace.acknowledge(group, n);
    }
    logs.close().unwrap();
    trace
}

fn bounds(history: &History) -> Vec<RangeInclusive<usize>> {
    let (mut acknowledged, mut submitted) = (0, 0);
    let mut bounds = vec![0..=0];
    for op in &history.ops {
        if let Op::Mark(note) = op {
            let n = (note >> 1) as usize;
            if note & 1 == 1 { acknowledged = n.max(acknowledged) } else { submitted = n }
        }
        bounds.push(acknowledged..=submitted);
    }
    bounds
}

/// Whether each state of a disk is in the middle of the sort of a segment: the copy has begun, and does not have its name yet.
fn sorting(history: &History) -> Vec<bool> {
    let mut under_way = HashSet::new();
    let is_sorting = |op: &Op| {
        match op {
            Op::Create { name } if name.ends_with(".run.tmp") => _ = under_way.insert(name.clone()),
            Op::Rename { from: name, .. } | Op::Remove { name } => _ = under_way.remove(name),
            _ => {}
        }
        !under_way.is_empty()
    };
    std::iter::once(false).chain(history.ops.iter().map(is_sorting)).collect()
}

fn open_group(disk: &SimDisk) -> Judged<Log> {
    Log::open_on(Arc::new(disk.clone()), options()).map_err(|e| format!("the group does not open: {e:?}"))
}

/// Recovers from a crash, continues, crashes again meanwhile, and recovers once more.
fn recover(image: &Image, trace: &Trace, legal: &RangeInclusive<usize>, seed: u64) -> Judged<()> {
    let mut rng = Rng::new(seed);
    let disk = SimDisk::new(image.clone());
    let group = open_group(&disk)?;
    let mut after = trace.after(trace.judge(&group, legal)?);
    after.extend(&disk, &group)?;
    group.close().map_err(|e| e.to_string())?;
    let history = disk.history();
    let points: Vec<DiskState> = history.states().collect();
    let (bounds, point) = (bounds(&history), rng.below(points.len()));
    let odds = rng.below(3);
    let again = points[point].crash(|versions| if odds > 0 { rng.below(versions) } else { 0 });
    let is_shown = *bounds[point].end() > 0;
    let (told, legal) = match is_shown {
        true => (&after, bounds[point].clone()),
        false => (trace, legal.clone()),
    };
    let group = open_group(&SimDisk::new(again))?;
    told.judge(&group, &legal).map_err(|what| format!("second crash, at {point}: {what}"))?;
    drop(group);
    // Only synced bytes are left now.
    let group = open_group(&disk.crash(|_| 0))?;
    after.judge(&group, &(after.acknowledged..=after.submitted))?;
    Ok(())
}

/// Whether logs that this snapshot says are sealed are. Asks with a retry that can have no effect.
fn shows(group: &Log, snapshot: &Snapshot) -> bool {
    snapshot.logs.iter().filter(|(_, log)| log.sealed).all(|(n, _)| {
        let mut batch = BatchBuilder::new();
        let batch = batch.session(SessionId(1 << 40), Sequence(1), 0).push(b"x").unwrap().build().unwrap();
        let refused = group.named(LogNumber(*n)).unwrap().append(&batch).unwrap_err();
        refused.kind() == ErrorKind::Sealed
    })
}

#[test]
fn every_power_cut_leaves_each_log_its_acknowledged_records() {
    let wanted = number("CHIPLOG_SHARED_STATES", 10_000) as usize;
    let first = number("CHIPLOG_SEED", 1);
    let (seen, tried, sorts) = (Mutex::new(HashSet::new()), AtomicUsize::new(0), AtomicUsize::new(0));
    let (mut rolls, mut removals, mut seed) = (0, 0, first);
    while seen.lock().unwrap().len() < wanted {
        let (system, disk) = (SimDisk::default(), SimDisk::default());
        let steps = [60, 250, 500][seed as usize % 3];
        let trace = run(&system, &disk, seed, steps);
        let history = disk.history();
        for op in &history.ops {
            match op {
                Op::Rename { to, .. } if to.ends_with(".seg") => rolls += 1,
                Op::Rename { from, .. } if from.ends_with(".seg") => removals += 1,
                Op::Remove { .. } => removals += 1,
                _ => {}
            }
        }
        let states: Vec<_> = history.states().collect();
        let (bounds, sorting) = (bounds(&history), sorting(&history));
        // Every point of a long script would leave no time for another one: each is left out by chance.
        let share = (states.len() / 300).max(1);
        let mut rng = Rng::new(seed);
        let points: Vec<usize> = (0..states.len()).filter(|_| rng.below(share) == 0).collect();
        let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let wrong: Mutex<Option<String>> = Mutex::new(None);
        let work = || {
            while !stop.load(Ordering::Relaxed) {
                let Some(point) = points.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
                let (state, legal) = (&states[*point], &bounds[*point]);
                for (n, image) in state.crashes(64, 6, *point as u64).enumerate() {
                    if !seen.lock().unwrap().insert((image.fingerprint(), *legal.start(), *legal.end())) {
                        continue;
                    }
                    tried.fetch_add(1, Ordering::Relaxed);
                    sorts.fetch_add(sorting[*point].into(), Ordering::Relaxed);
                    if let Err(what) = recover(&image, &trace, legal, (*point as u64) << 16 | n as u64) {
                        let text = format!("seed {seed}, operation {point}, crash {n}: {what}");
                        wrong.lock().unwrap().get_or_insert(text);
                        stop.store(true, Ordering::Relaxed);
                        return;
                    }
                    if seen.lock().unwrap().len() >= wanted {
                        stop.store(true, Ordering::Relaxed);
                        return;
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(work);
            }
        });
        if let Some(what) = wrong.into_inner().unwrap() {
            panic!("{what}");
        }
        seed += 1;
    }
    let sorts = sorts.into_inner();
    println!(
        "{} recoveries, {sorts} in the middle of a sort, {} scripts, {rolls} rolls, {removals} removals",
        tried.into_inner(),
        seed - first
    );
    assert!(
        wanted < 10_000 || (rolls > 10 && removals > 2 && sorts > 0),
        "{rolls} rolls, {removals} removals, {sorts} states in the middle of a sort"
    );
}

/// All states of the disks of the system log and of the group.
struct States(Vec<DiskState>, Vec<DiskState>);

impl States {
    fn of(system: &SimDisk, group: &SimDisk) -> Self {
        let states = |disk: &SimDisk| disk.history().states().collect();
        Self(states(system), states(group))
    }

    /// Calls `check` with what a power cut leaves of both disks, and the place, at each operation of a step that went from the
    /// numbers `from` of operations to `to`, and wrote to the system log first, then to the group.
    fn crash_between(
        &self,
        from: (usize, usize),
        to: (usize, usize),
        mut check: impl FnMut(&SimDisk, &SimDisk, &str),
    ) {
        let first = (from.0..=to.0).map(|at| (at, from.1));
        for (at_system, at_group) in first.chain((from.1..=to.1).map(|at| (to.0, at))) {
            for seed in 0..3 {
                let mut rng = Rng::new(seed);
                let mut choose = |versions| if seed > 0 { rng.below(versions) } else { 0 };
                let system = SimDisk::new(self.0[at_system].crash(&mut choose));
                let group = SimDisk::new(self.1[at_group].crash(&mut choose));
                let place = format!("operations {at_system} and {at_group}, seed {seed}");
                check(&system, &group, &place);
            }
        }
    }
}

/// The names that a step of the catalogue's script leaves, each with the number of its records. A name that the step
/// creates or deletes may be there or not.
#[test]
fn create_and_delete_that_are_interrupted_leave_a_usable_name_or_none() {
    let (system, group) = (SimDisk::default(), SimDisk::default());
    let logs = logs_on(&system, &group).unwrap();
    let lengths = || (system.history_len(), group.history_len());
    let mut cuts = vec![(lengths(), lengths(), String::new(), BTreeMap::new(), BTreeMap::new())];
    let mut names: BTreeMap<String, Vec<Vec<u8>>> = BTreeMap::new();
    let script = [
        ('c', "a"),
        ('c', "b"),
        ('a', "a"),
        ('d', "a"),
        ('c', "a"),
        ('a', "a"),
        ('d', "b"),
        ('c', "b"),
        ('d', "a"),
    ];
    for (n, (what, name)) in script.into_iter().enumerate() {
        let (from, before) = (lengths(), names.clone());
        match what {
            'c' => {
                logs.create(name).unwrap();
                names.insert(name.to_owned(), Vec::new());
            }
            'd' => {
                logs.delete(name).unwrap();
                names.remove(name);
            }
            _ => {
                let record = format!("record of step {n}").into_bytes();
                logs.get(name).unwrap().append(&record[..]).unwrap();
                names.get_mut(name).unwrap().push(record);
            }
        }
        cuts.push((from, lengths(), name.to_owned(), before, names.clone()));
    }
    logs.close().unwrap();
    let states = States::of(&system, &group);
    let mut tried = 0;
    for (n, (from, to, touched, before, after)) in cuts.iter().enumerate() {
        states.crash_between(*from, *to, |system, group, place| {
            check_names(system, group, touched, before, after)
                .unwrap_or_else(|e| panic!("step {n}, {place}: {e}"));
            tried += 1;
        });
    }
    println!("{tried} interruptions");
    assert!(tried > 100, "{tried}");
}

type Names = BTreeMap<String, Vec<Vec<u8>>>;

fn check_names(
    system: &SimDisk,
    group: &SimDisk,
    touched: &str,
    before: &Names,
    after: &Names,
) -> Judged<()> {
    for round in 0..2 {
        let logs = logs_on(system, group).map_err(|e| format!("round {round}: {e}"))?;
        let listed: Vec<String> = logs.list().unwrap().into_iter().map(|info| info.name).collect();
        for name in ["a", "b"] {
            let found = logs.get(name);
            match (&found, name == touched) {
                (Ok(log), _) => {
                    let mut reader = log.reader(Start::First).map_err(|e| e.to_string())?;
                    let mut records = Vec::new();
                    while let Some(record) = reader.next_record().map_err(|e| e.to_string())? {
                        records.push(record.data.to_vec());
                    }
                    records.retain(|record| record != b"after");
                    let fits = |names: &Names| names.get(name) == Some(&records);
                    // An append without an answer may be there.
                    ensure!(fits(after) || (name == touched && fits(before)), "{name} holds {records:?}");
                    log.append(b"after").map_err(|e| format!("{name} takes no append: {e}"))?;
                }
                (Err(e), is_touched) => {
                    ensure!(e.kind() == ErrorKind::NotFound, "{name}: {e}");
                    let may_miss = !after.contains_key(name) || (is_touched && !before.contains_key(name));
                    ensure!(may_miss, "{name} is missing");
                }
            }
            ensure!(listed.iter().any(|l| l == name) == found.is_ok(), "{name} is listed wrongly");
        }
        // Deleted logs are gone from the group as well.
        let known: Vec<u32> = logs.list().unwrap().iter().map(|info| info.number.get()).collect();
        for n in 1..=6 {
            let there = logs.groups()[&1].named(LogNumber(n)).is_ok();
            ensure!(there == known.contains(&n), "log {n}, known {known:?}, is there: {there}");
        }
        logs.close().map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// The catalogue is written as a snapshot, and what is before is discarded: a power cut at each operation of that leaves every name,
/// and no number is given again.
#[test]
fn snapshot_of_the_catalogue_that_is_interrupted_loses_nothing() {
    let (system, group) = (SimDisk::default(), SimDisk::default());
    let logs = logs_on(&system, &group).unwrap();
    logs.create("a").unwrap().append(b"kept").unwrap();
    let names: Names = [("a".to_owned(), vec![b"kept".to_vec()])].into();
    let lengths = || (system.history_len(), group.history_len());
    let (mut from, mut newest, mut is_create) = (lengths(), 1, false);
    while logs.system().first_index() == Index(1) {
        (from, is_create) = (lengths(), !is_create);
        if is_create {
            logs.create("z").unwrap();
            newest += 1;
        } else {
            logs.delete("z").unwrap();
        }
        assert!(newest < 1000, "no snapshot is written");
    }
    let to = lengths();
    logs.close().unwrap();
    assert!(to.0 - from.0 > 4, "the record, the parts, the discard: {from:?} to {to:?}");
    States::of(&system, &group).crash_between(from, to, |system, group, place| {
        check_names(system, group, "z", &names, &names).unwrap_or_else(|e| panic!("{place}: {e}"));
        let logs = logs_on(system, group).unwrap();
        let is_there = logs.delete("z").is_ok();
        logs.create("z").unwrap();
        let number = logs.info("z").unwrap().number;
        let lost = is_create && !is_there;
        assert_eq!(number, LogNumber(newest + 1 - u32::from(lost)), "{place}");
        assert!(logs.system().first_index() > Index(1), "{place}");
        logs.close().unwrap();
    });
}
