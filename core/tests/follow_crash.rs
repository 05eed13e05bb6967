//! Followers on a disk that loses power, killed processes, failing calls, full disks: at any point of taking entries,
//! syncing, discarding and jumping. The log left behind is always the log as of some fed entry, at least the last
//! synced one. Feeding it again leads to the same log.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

#[path = "support/hooked.rs"]
mod hooked;
mod support;

use chiplog::disk::sim::{Fault, History, Image, Landed, Op, Rng, SimDisk, Trouble};
use chiplog::follower::{FollowFrom, FollowMessage, FollowSnapshot};
use chiplog::{
    BatchBuilder, Codec, EntryIndex, ErrorKind, FollowerLog, Index, Log, Options, ReadMode, Start,
};
use hooked::{Hooked, Hooks};
use std::collections::BTreeMap;
use std::io::IoSlice;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::explore::at_every_point;
use support::{Wrong, options, record};

/// A step in a follower's life.
#[derive(Clone, Debug)]
enum Step {
    Take(FollowMessage),
    Sync,
    /// Long enough for the thread to sync, and to prove the tail.
    Idle,
}

/// A life, and the expected state after each entry.
struct Life {
    begin: FollowSnapshot,
    steps: Vec<Step>,
    /// The first record and the next one after each entry.
    after: BTreeMap<EntryIndex, (Index, Index)>,
    records: BTreeMap<Index, Vec<u8>>,
    last: EntryIndex,
}

/// The kinds of marks in the history.
const SUBMITTED: u64 = 0;
const TAKEN: u64 = 1;
const SYNCED: u64 = 2;

fn mark(disk: &SimDisk, raft: EntryIndex, what: u64) {
    disk.mark(raft.get() << 2 | what);
}

fn last_of(fed: &FollowMessage) -> EntryIndex {
    match fed {
        FollowMessage::State(state) => state.raft(),
        FollowMessage::Entries(entries) => entries.last().unwrap().raft(),
        _ => unreachable!(),
    }
}

impl Life {
    /// A source's life as it is fed: records of all sizes, sessions, discards, and two jumps.
    fn new(seed: u64, record_bytes: usize, steps: usize) -> Self {
        let mut rng = Rng::new(seed);
        let source = Log::open_on(Arc::new(SimDisk::default()), options()).unwrap();
        source.append(b"before all").unwrap();
        let begin = match source.follow(FollowFrom::Newest).unwrap().next(1).unwrap() {
            Some(FollowMessage::State(state)) => state,
            other => panic!("{other:?}"),
        };
        // One entry at a time, to learn the state after each.
        let reference = FollowerLog::create_on(Arc::new(SimDisk::default()), options(), &begin).unwrap();
        let mut life = Self {
            last: begin.raft(),
            after: BTreeMap::from([(begin.raft(), (begin.next(), begin.next()))]),
            records: BTreeMap::new(),
            begin,
            steps: Vec::new(),
        };
        let mut session = source.open_session().unwrap();
        for n in 0..steps {
            for m in 0..1 + rng.below(4) {
                let record = record((n * 100 + m) as u64, rng.below(record_bytes));
                match rng.below(8) {
                    0 => drop(source.open_session().unwrap()),
                    1 | 2 => drop(session.append(&record).unwrap()),
                    3 => {
                        let mut batch = BatchBuilder::new();
                        batch.codec(Codec::Lz4);
                        batch.push(&record).unwrap().push(b"").unwrap();
                        source.append(&batch.build().unwrap()).unwrap();
                    }
                    _ => drop(source.append(&record).unwrap()),
                }
            }
            if n % 9 == 8 {
                let (first, last) = (source.first_index().get(), source.last_index().get());
                source.discard(Index(first + rng.below((last - first + 3) as usize) as u64)).unwrap();
            }
            if n == steps / 3 || n == 2 * steps / 3 {
                // Enough appends that records are discarded before they are fed.
                for m in 0..20 {
                    source.append(&record(900_000 + m, 10_000)).unwrap();
                }
                source.discard(Index(source.last_index().get() - 1)).unwrap();
                while source.status().segments > 2 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            life.learn(&source, &reference, 1 + rng.below(4 * record_bytes));
            match rng.below(6) {
                0 => life.steps.push(Step::Sync),
                1 if n % 5 == 0 => life.steps.push(Step::Idle),
                _ => {}
            }
        }
        life
    }

    fn learn(&mut self, source: &Log, reference: &FollowerLog, bytes: usize) {
        let from = reference.resume_point().unwrap();
        let mut feed = source.follow(from).unwrap();
        while let Some(fed) = feed.next(bytes).unwrap() {
            self.last = last_of(&fed);
            self.steps.push(Step::Take(fed));
        }
        let mut feed = source.follow(from).unwrap();
        while let Some(fed) = feed.next(1).unwrap() {
            let raft = last_of(&fed);
            let jumped = reference.apply(fed).unwrap();
            let status = reference.log().status();
            self.after.insert(raft, (status.first_index, status.last_index.next()));
            assert!(
                jumped.is_none_or(|j| j.to == status.first_index && status.last_index < status.first_index)
            );
            let mut reader = reference.log().reader(Start::Last(2)).unwrap();
            while let Some(record) = reader.next_record().unwrap() {
                self.records.insert(record.index, record.data.to_vec());
            }
        }
    }

    /// Runs the steps on `disk`, up to the first error.
    fn run(&self, disk: &SimDisk, options: Options) -> chiplog::Result<()> {
        mark(disk, self.begin.raft(), SUBMITTED);
        let follower = FollowerLog::create_on(Arc::new(disk.clone()), options, &self.begin)?;
        mark(disk, self.begin.raft(), TAKEN);
        mark(disk, self.begin.raft(), SYNCED);
        self.steps.iter().try_for_each(|step| Self::step(step, &follower, disk))?;
        follower.close()?;
        mark(disk, self.last, SYNCED);
        Ok(())
    }

    fn step(step: &Step, follower: &FollowerLog, disk: &SimDisk) -> chiplog::Result<()> {
        match step {
            Step::Take(fed) => {
                mark(disk, last_of(fed), SUBMITTED);
                follower.apply(fed.clone())?;
                mark(disk, last_of(fed), TAKEN);
            }
            Step::Sync => {
                let FollowFrom::After { raft, .. } = follower.resume_point()? else { unreachable!() };
                follower.sync()?;
                mark(disk, raft, SYNCED);
            }
            Step::Idle => std::thread::sleep(Duration::from_millis(250)),
        }
        Ok(())
    }

    /// Checks that the log is as it was after an entry within `legal`, and returns that entry. `own_retention`: it
    /// may begin later.
    fn judge(
        &self,
        follower: &FollowerLog,
        legal: &RangeInclusive<u64>,
        own_retention: bool,
    ) -> Result<EntryIndex, Wrong> {
        let FollowFrom::After { raft, .. } = follower.resume_point()? else { unreachable!() };
        let status = follower.log().status();
        if !legal.contains(&raft.get()) {
            return Err(Wrong(format!("it ends with entry {raft}; legal is {legal:?}")));
        }
        let Some((first, next)) = self.after.get(&raft).copied() else {
            return Err(Wrong(format!("it ends with entry {raft}, at which no state is known")));
        };
        let begins = status.first_index == first
            || (own_retention && status.first_index > first && status.first_index <= next);
        if !begins || status.last_index.next() != next.max(status.first_index) {
            return Err(Wrong(format!("after entry {raft} {status:?}, not from {first} to before {next}")));
        }
        let mut reader = follower.log().reader(Start::First)?;
        let mut index = status.first_index;
        while let Some(record) = reader.next_record()? {
            if record.index != index || self.records.get(&index).is_none_or(|r| r != record.data) {
                return Err(Wrong(format!("record {} is wrong; expected record {index}", record.index)));
            }
            index = index.next();
        }
        if index != status.last_index.next() {
            return Err(Wrong(format!("the reader stops before {index} of {status:?}")));
        }
        Ok(raft)
    }

    /// Takes everything that is missing, and ends as without a crash.
    fn finish(&self, disk: &SimDisk, follower: &FollowerLog, own_retention: bool) -> Result<(), Wrong> {
        for step in &self.steps {
            let FollowFrom::After { raft, .. } = follower.resume_point()? else { unreachable!() };
            if let Step::Take(fed) = step
                && last_of(fed) > raft
            {
                Self::step(step, follower, disk)?;
            }
        }
        self.judge(follower, &(self.last.get()..=self.last.get()), own_retention)?;
        Ok(())
    }
}

/// From the last synced entry to the last submitted one, before the first operation of `history` and after each; and
/// the last entry that was taken.
fn bounds(history: &History) -> Vec<(RangeInclusive<u64>, u64)> {
    let (mut synced, mut taken, mut submitted) = (0, 0, 0);
    let mut bounds = vec![(0..=0, 0)];
    for op in &history.ops {
        if let Op::Mark(note) = op {
            match note & 3 {
                SUBMITTED => submitted = note >> 2,
                TAKEN => taken = note >> 2,
                _ => synced = note >> 2,
            }
        }
        bounds.push((synced..=submitted, taken));
    }
    bounds
}

/// Opens the log after a crash, checks it and continues; then the power is cut again.
fn recover(
    life: &Life,
    disk: &SimDisk,
    options: &Options,
    legal: &RangeInclusive<u64>,
    seed: u64,
    deep: bool,
) -> Result<(), Wrong> {
    let own_retention = options.retention_bytes.is_some();
    let open = |disk: &SimDisk| FollowerLog::open_on(Arc::new(disk.clone()), options.clone());
    let follower = match open(disk) {
        Err(e) if e.kind() == ErrorKind::NotFound && *legal.start() == 0 => {
            FollowerLog::create_on(Arc::new(disk.clone()), options.clone(), &life.begin)?
        }
        opened => opened?,
    };
    let legal = life.begin.raft().get().max(*legal.start())..=life.begin.raft().get().max(*legal.end());
    let found = life.judge(&follower, &legal, own_retention)?;
    let status = follower.log().status();
    if status.durable_index < status.last_index {
        return Err(Wrong(format!("opened, but not durable: {status:?}")));
    }
    if !deep {
        return Ok(());
    }
    // At any later operation.
    let before = disk.history_len();
    life.finish(disk, &follower, own_retention)?;
    follower.sync()?;
    let durable = disk.crash(|_| 0);
    drop(follower);
    life.judge(&open(&durable)?, &(life.last.get()..=life.last.get()), own_retention)
        .map_err(|w| w.within("after it continued"))?;
    let history = disk.history();
    let states: Vec<_> = history.states().collect();
    let mut rng = Rng::new(seed);
    let point = before.min(states.len() - 1) + rng.below(states.len() - before.min(states.len() - 1));
    let image = states[point].crash(|versions| rng.below(versions));
    let upto = legal.end().max(&bounds(&history)[point].0.end().clone()).to_owned();
    life.judge(&open(&SimDisk::new(image))?, &(found.get().min(*legal.start())..=upto), own_retention)
        .map_err(|w| w.within(&format!("second crash, at operation {point}")))?;
    Ok(())
}

/// Cuts the power, and kills the process, after every operation of a life.
fn crash_everywhere(name: &str, life: &Life, options: &Options, images: usize) -> usize {
    let disk = SimDisk::default();
    life.run(&disk, options.clone()).unwrap();
    let history = disk.history();
    let bounds = bounds(&history);
    let tried = AtomicUsize::new(0);
    let explored = at_every_point(name, &history, |point, state| {
        let (legal, taken) = &bounds[point];
        // A kill loses nothing that was taken.
        if *taken > 0 && point % 5 == 0 {
            let alive = (*taken).max(*legal.start())..=*legal.end();
            recover(life, &SimDisk::resume(state.clone()), options, &alive, point as u64, false)
                .map_err(|w| w.within("killed"))?;
        }
        for (n, image) in state.crashes(images, images, point as u64).enumerate() {
            tried.fetch_add(1, Ordering::Relaxed);
            let deep = n == point % images.max(1) || n == 0 && point % 7 == 0;
            recover(life, &SimDisk::new(image), options, legal, (point * 100 + n) as u64, deep)
                .map_err(|w| w.within(&format!("crash {n}")))?;
        }
        Ok(true)
    });
    if let Err(wrong) = explored {
        panic!("{wrong}");
    }
    tried.into_inner()
}

#[test]
fn power_cut_at_any_point_leaves_the_log_as_of_an_entry() {
    let mut images = 0;
    for (seed, record_bytes, steps) in [(1, 300, 12), (2, 3000, 30), (3, 9000, 24)] {
        let life = Life::new(seed, record_bytes, steps);
        let jumps = life.steps.iter().filter(|s| matches!(s, Step::Take(FollowMessage::State(_)))).count();
        assert!(jumps >= 2, "seed {seed}: {jumps} jumps");
        images += crash_everywhere(&format!("seed {seed}"), &life, &options(), 6);
    }
    println!("follow: {images} images recovered from");
    assert!(images > 500, "{images}");
}

#[test]
fn power_cut_at_any_point_of_retention_leaves_the_log_as_of_an_entry() {
    let life = Life::new(5, 9000, 40);
    let few = options().retention_bytes(128 << 10);
    assert!(crash_everywhere("retention", &life, &few, 4) > 200);
}

#[test]
fn failure_of_any_call_loses_nothing() {
    let life = Life::new(7, 6000, 15);
    let sound = SimDisk::default();
    life.run(&sound, options()).unwrap();
    let calls = sound.calls(None);
    let mut named = BTreeMap::new();
    for trouble in
        [Trouble::Eio(Landed::Nothing), Trouble::Eio(Landed::Some(1)), Trouble::Enospc(Landed::Some(2))]
    {
        for nth in (1..calls).step_by(3) {
            let disk = SimDisk::default();
            disk.plan(Fault { call: None, nth, lasting: false, trouble });
            if let Err(error) = life.run(&disk, options()) {
                *named.entry(error.kind().name()).or_insert(0) += 1;
                let kinds = [ErrorKind::Io, ErrorKind::Poisoned, ErrorKind::Full];
                assert!(kinds.contains(&error.kind()), "{trouble:?} at call {nth}: {error:?}");
            }
            disk.heal();
            let (legal, _) = bounds(&disk.history()).pop().unwrap();
            recover(&life, &disk, &options(), &legal, nth, true)
                .map_err(|Wrong(what)| what)
                .unwrap_or_else(|what| panic!("{trouble:?} at call {nth}: {what}"));
        }
    }
    println!("follow: errors by kind {named:?}");
    assert!(named.len() >= 2, "{named:?}");
}

/// On a full disk a follower takes the entries that fit, returns `Full`, and continues when there is room. A fed
/// discard needs no room.
#[test]
fn full_disk_poisons_no_follower() {
    // In one large segment: discarded records are still fed, and never jumped over.
    let large = Options::with_segment_bytes(4 << 20).read_mode(ReadMode::Read).block_bytes_max(4096);
    let source = Log::open_on(Arc::new(SimDisk::default()), large).unwrap();
    source.append(b"x").unwrap();
    let Some(FollowMessage::State(begin)) = source.follow(FollowFrom::First).unwrap().next(1).unwrap() else {
        panic!()
    };
    let disk = SimDisk::default();
    let follower = FollowerLog::create_on(Arc::new(disk.clone()), options(), &begin).unwrap();
    for n in 0..60 {
        source.append(&record(n, 9000)).unwrap();
    }
    disk.limit_space(Some(6 << 16));
    let fill = || {
        loop {
            let mut feed = source.follow(follower.resume_point()?)?;
            match feed.next(30_000)? {
                Some(fed) => assert_eq!(follower.apply(fed)?, None),
                None => return Ok::<(), chiplog::Error>(()),
            }
        }
    };
    for _ in 0..3 {
        assert_eq!(fill().unwrap_err().kind(), ErrorKind::Full);
    }
    let last = follower.log().last_index();
    assert!(last.get() > 10 && last.get() < 50, "{last}");
    // The source discards: that makes room on a disk as full as before.
    source.discard(Index(58)).unwrap();
    for n in 0..2 {
        source.append(&record(n, 10)).unwrap();
    }
    fill().unwrap();
    follower.sync().unwrap();
    assert_eq!(follower.log().last_index(), source.last_index());
    assert_eq!(follower.log().first_index(), source.first_index());
    let image: Image = disk.crash(|_| 0).visible();
    let again = FollowerLog::open_on(Arc::new(SimDisk::new(image)), options()).unwrap();
    assert_eq!(again.log().last_index(), source.last_index());
}

type Call = Box<dyn Fn() + Send>;

/// Calls a function before an opening block is written.
#[derive(Default)]
struct BeforeOpening(Mutex<Option<Call>>);

impl Hooks for BeforeOpening {
    fn before_write(&self, bufs: &[IoSlice<'_>]) {
        const KIND_AT: usize = 60;
        const OPENING: u8 = 7;
        if bufs.first().is_some_and(|b| b.starts_with(b"CLB1") && b.get(KIND_AT) == Some(&OPENING))
            && let Some(call) = &*self.0.lock().unwrap()
        {
            call();
        }
    }
}

/// If the segments had left the log before its first index moved, a reader in between would have looked for its
/// record in a segment that never had it, and reported damage.
#[test]
fn jump_moves_the_first_index_before_any_segment_leaves() {
    let source = Log::open_on(Arc::new(SimDisk::default()), options()).unwrap();
    source.append(b"x").unwrap();
    let Some(FollowMessage::State(begin)) = source.follow(FollowFrom::First).unwrap().next(1).unwrap() else {
        panic!()
    };
    let hooks = Arc::<BeforeOpening>::default();
    let follower = FollowerLog::create_on(Arc::new(Hooked::new(hooks.clone())), options(), &begin).unwrap();
    let mut feed = source.follow(follower.resume_point().unwrap()).unwrap();
    while let Some(fed) = feed.next(1 << 20).unwrap() {
        follower.apply(fed).unwrap();
    }
    for n in 0..10 {
        source.append(&record(n, 100)).unwrap();
    }
    let Some(FollowMessage::State(ahead)) = source.follow(FollowFrom::Newest).unwrap().next(1).unwrap()
    else {
        panic!()
    };
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (log, told) = (follower.log().clone(), seen.clone());
    *hooks.0.lock().unwrap() = Some(Box::new(move || {
        told.lock().unwrap().push(log.read(Index(1)).map_err(|e| e.kind()));
    }));
    assert!(follower.install_snapshot(&ahead).unwrap().is_some());
    *hooks.0.lock().unwrap() = None;
    let seen = seen.lock().unwrap();
    assert!(matches!(seen[..], [Err(ErrorKind::Discarded)]), "{seen:?}");
}
