//! A simulated disk, to test how a program handles crashes and faults. Feature `testing`.
//!
//! [`SimDisk`] is a [`Disk`] in memory that models what a power cut may leave. Pass it to `Log::open_on`; all code
//! above it is the shipped code:
//!
//! - **Crash**: [`SimDisk::crash`] returns the disk after a power cut: any subset of the 512-byte sectors written since
//!   the last sync of their file, and of the names changed since the last sync of the directory. [`DiskState::crashes`]
//!   iterates over all of them.
//! - **History**: every operation is recorded. [`History::states`] iterates over the disk after each one, so that a
//!   test can cut the power at every point.
//! - **Faults**: [`SimDisk::plan`] fails the n-th call with EIO or ENOSPC; [`SimDisk::limit_space`] makes a small disk.
//!   After a failed sync the new bytes can still be read but are *clean*: another sync returns `Ok` without writing them,
//!   as on Linux. Only a new write of the same or other bytes makes them dirty again.
//! - **Kill**: [`SimDisk::resume`] continues with a disk as a killed process leaves it: all writes are visible, and
//!   those not synced can still be lost.
//! - **Damage**: [`SimDisk::damage`] and [`Image::damage`] flip bits, swap sectors, misdirect writes.
//!
//! - **Syncs take time**: a sync covers the writes before it began, and none that happened while it ran:
//!   [`SimDisk::begin_sync`], [`SimDisk::set_sync_time`].
//!
//! It is harsher than most file systems: a rename may survive although the creation before it is lost, and a file may
//! keep its new length and lose its bytes. Code that works here works on all of them.
//!
//! ```
//! use chiplog::disk::sim::SimDisk;
//! use chiplog::disk::{Disk, DiskFile};
//! use std::io::IoSlice;
//!
//! let disk = SimDisk::default();
//! let file = disk.create("a")?;
//! file.write_at(0, &[IoSlice::new(b"kept")])?;
//! file.sync()?;
//! disk.sync_dir()?;
//! file.write_at(4, &[IoSlice::new(b" lost")])?;
//! // The power fails, and no unsynced bytes have reached the disk.
//! let after = disk.crash(|_versions| 0);
//! assert_eq!(after.visible().file("a").as_deref(), Some(&b"kept"[..]));
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! This file owns the handle: calls, locks, recording. `sim/state.rs` holds the state of the disk, `sim/file.rs` the
//! contents of a file, `sim/faults.rs` decides which calls fail, `sim/crashes.rs` which images a crash can leave,
//! `sim/rng.rs` generates random numbers.

mod crashes;
mod faults;
mod file;
mod rng;
mod state;

pub use crashes::Crashes;
pub use faults::{Call, Fault, Trouble};
pub use file::Damage;
pub use rng::Rng;
pub use state::{DiskState, Image, Landed, NodeId, Op};

use super::{Disk, DiskFile, Lock, SECTOR_BYTES, Space};
use faults::{Faults, eio, enospc};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, IoSlice};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A disk in memory. Cheap to clone: clones are the same disk. `Send + Sync`. Calls run one at a time and never block
/// longer than their work takes.
///
/// ```
/// use chiplog::disk::sim::SimDisk;
/// use chiplog::{Log, Options};
/// use std::sync::Arc;
///
/// let disk = SimDisk::default();
/// let options = Options::with_segment_bytes(64 << 10);
/// let log = Log::open_on(Arc::new(disk.clone()), options.clone())?;
/// let index = log.append(b"acknowledged")?;
/// // The power fails at once, and all unsynced bytes are lost.
/// let after = disk.crash(|_versions| 0);
/// let log = Log::open_on(Arc::new(after), options)?;
/// assert_eq!(log.read(index)?.data, "acknowledged");
/// # Ok::<(), chiplog::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SimDisk {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    state: DiskState,
    start: DiskState,
    ops: Vec<Op>,
    faults: Faults,
    space: Option<u64>,
    sync_time: Duration,
    /// Open handles of each file: an unnamed file occupies space until the last one is dropped.
    handles: BTreeMap<NodeId, usize>,
    locked: BTreeSet<NodeId>,
    off: bool,
    /// The power was cut during a call: reads still work, and nothing changes any more.
    failing: bool,
    /// The number of calls until the power is cut.
    calls_left: Option<u64>,
    /// Whether no history is recorded.
    forgetful: bool,
    /// Whether files can have no holes.
    is_solid: bool,
    /// The sectors of each file that were given back, or left out by a write behind them, and not written since. A crash forgets them:
    /// then they take space.
    holes: BTreeMap<NodeId, BTreeSet<usize>>,
    /// The source of ids of logs and files; None: the system.
    chance: Option<Rng>,
}

/// The history of a disk: its initial state and all operations since.
///
/// ```
/// use chiplog::disk::sim::SimDisk;
/// use chiplog::disk::Disk;
/// let disk = SimDisk::default();
/// disk.create("a")?;
/// disk.sync_dir()?;
/// let history = disk.history();
/// // The results of a crash before the first operation, after it, and after the second.
/// let images: Vec<usize> = history.states().map(|s| s.crashes(4096, 100, 1).count()).collect();
/// assert_eq!(images, [1, 2, 1]);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The initial state.
    pub start: DiskState,
    /// The operations, in order.
    pub ops: Vec<Op>,
}

impl History {
    /// Iterates over the initial state and the state after each operation: one more state than there are operations.
    pub fn states(&self) -> impl Iterator<Item = DiskState> {
        let mut next = Some(self.start.clone());
        let mut ops = self.ops.iter();
        std::iter::from_fn(move || {
            let now = next.take()?;
            if let Some(op) = ops.next() {
                let mut after = now.clone();
                after.apply(op);
                next = Some(after);
            }
            Some(now)
        })
    }
}

impl Default for SimDisk {
    fn default() -> Self {
        Self::new(Image::default())
    }
}

impl SimDisk {
    /// Creates a disk with these files, all durable.
    pub fn new(image: Image) -> Self {
        Self::resume(DiskState::at_rest(&image))
    }

    /// Creates a disk from a state that includes writes that are not durable: as the next process finds it when one was
    /// killed and the machine kept running.
    pub fn resume(mut state: DiskState) -> Self {
        state.forget_syncs();
        let inner = Inner { start: state.clone(), state, ..Inner::default() };
        Self { shared: Arc::new(Shared { path: PathBuf::from("/sim"), inner: Mutex::new(inner) }) }
    }

    /// Cuts the power: this disk is off permanently, as by [`power_off`](Self::power_off). Returns a new disk with the
    /// versions that `choose` keeps (see [`DiskState::crash`]). No lock is held on the new disk.
    pub fn crash(&self, choose: impl FnMut(usize) -> usize) -> Self {
        self.power_off();
        let inner = self.lock_inner();
        Self::new(inner.state.crash(choose)).inheriting(&inner)
    }

    /// Kills the program that uses the disk: this handle is off permanently. Returns a new disk on which all writes are
    /// visible, durable or not. No lock is held on it.
    pub fn kill(&self) -> Self {
        self.power_off();
        let inner = self.lock_inner();
        Self::resume(inner.state.clone()).inheriting(&inner)
    }

    fn inheriting(self, inner: &Inner) -> Self {
        let mut heir = self.lock_inner();
        heir.sync_time = inner.sync_time;
        heir.forgetful = inner.forgetful;
        heir.is_solid = inner.is_solid;
        heir.space = inner.space;
        heir.chance = inner.chance.clone();
        if heir.forgetful {
            heir.start = DiskState::default();
        }
        drop(heir);
        self
    }

    /// Does a [`crash`](Self::crash) with a uniformly random choice for every unit.
    pub fn crash_randomly(&self, rng: &mut Rng) -> Self {
        self.crash(|versions| rng.below(versions))
    }

    /// Makes every later call fail with EIO. Nothing changes any more. Ends a program's use of the disk.
    pub fn power_off(&self) {
        self.lock_inner().off = true;
    }

    /// Cuts the power after `calls` more calls, in the middle of the program's work. From then on nothing changes, and
    /// every call except a read fails with EIO. (Reads work, so that the program, which is dead by then, need not
    /// handle their errors.) [`crash`](Self::crash) returns what is left.
    pub fn cut_power_after(&self, calls: u64) {
        self.lock_inner().calls_left = Some(calls);
    }

    /// Cancels [`cut_power_after`](Self::cut_power_after).
    pub fn spare_power(&self) {
        self.lock_inner().calls_left = None;
    }

    /// Starts a sync of this file, which the next call of [`DiskFile::sync`] on it completes: that call covers only the
    /// writes before this one. For a driver that lets time pass in between.
    ///
    /// ```
    /// use chiplog::disk::sim::SimDisk;
    /// use chiplog::disk::{Disk, DiskFile};
    /// use std::io::IoSlice;
    /// let disk = SimDisk::default();
    /// let file = disk.create("a")?;
    /// disk.sync_dir()?;
    /// file.write_at(0, &[IoSlice::new(b"before")])?;
    /// disk.begin_sync("a");
    /// file.write_at(6, &[IoSlice::new(b" after")])?;
    /// file.sync()?;
    /// assert_eq!(disk.state().crash(|_| 0).file("a").as_deref(), Some(&b"before"[..]));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn begin_sync(&self, name: &str) {
        let mut inner = self.lock_inner();
        if let Ok(node) = inner.node(name) {
            inner.record(Op::SyncBegins { node });
        }
    }

    /// Whether the power is off.
    pub fn is_off(&self) -> bool {
        let inner = self.lock_inner();
        inner.off || inner.failing
    }

    /// Stops recording history, which would fill the memory in a long run. Disks returned by a crash do not record it
    /// either.
    pub fn forget_history(&self) {
        let mut inner = self.lock_inner();
        inner.forgetful = true;
        inner.ops = Vec::new();
        inner.start = DiskState::default();
    }

    /// Derives the ids of logs, directories and segments from this seed instead of the system: the same calls then
    /// write the same bytes.
    pub fn set_chance(&self, seed: u64) {
        self.lock_inner().chance = Some(Rng::new(seed));
    }

    /// The current state, to examine possible crashes without causing one.
    pub fn state(&self) -> DiskState {
        self.lock_inner().state.clone()
    }

    /// The disk as reads see it now, as if everything were durable.
    pub fn visible(&self) -> Image {
        self.lock_inner().state.visible()
    }

    /// The history since the disk was made.
    pub fn history(&self) -> History {
        let inner = self.lock_inner();
        History { start: inner.start.clone(), ops: inner.ops.clone() }
    }

    /// The number of operations in the history.
    pub fn history_len(&self) -> usize {
        self.lock_inner().ops.len()
    }

    /// Adds a note to the history, such as "append number 7 was acknowledged". Returns its position.
    pub fn mark(&self, note: u64) -> usize {
        let mut inner = self.lock_inner();
        inner.ops.push(Op::Mark(note));
        inner.ops.len() - 1
    }

    /// Adds to the fault plan.
    pub fn plan(&self, fault: Fault) {
        self.lock_inner().faults.plan(fault, None);
    }

    /// Adds to the fault plan, for calls on one file only: reads, writes, syncs and lengths of the file that has this
    /// name now, even if it is renamed. Returns false and plans nothing if there is no such file.
    ///
    /// ```
    /// use chiplog::disk::sim::{Call, Fault, Landed, SimDisk, Trouble};
    /// use chiplog::disk::Disk;
    /// let disk = SimDisk::default();
    /// let (a, b) = (disk.create("a")?, disk.create("b")?);
    /// let fault = Fault { call: Some(Call::Sync), nth: 1, lasting: false, trouble: Trouble::Eio(Landed::Nothing) };
    /// assert!(disk.plan_on("a", fault));
    /// assert!(b.sync().is_ok());
    /// assert!(a.sync().is_err());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn plan_on(&self, name: &str, fault: Fault) -> bool {
        let mut inner = self.lock_inner();
        let node = inner.node(name).ok();
        if node.is_some() {
            inner.faults.plan(fault, node);
        }
        node.is_some()
    }

    /// Removes the whole fault plan: the disk works from now on. Lost writes stay lost.
    pub fn heal(&self) {
        self.lock_inner().faults.clear();
    }

    /// How many planned faults have occurred.
    pub fn faults_fired(&self) -> u64 {
        self.lock_inner().faults.fired()
    }

    /// The number of calls of this kind, including failed ones; `None`: of all kinds.
    pub fn calls(&self, call: Option<Call>) -> u64 {
        self.lock_inner().faults.count(call)
    }

    /// Limits the bytes of all files together. A write that needs more is cut short and fails with ENOSPC, also one into a hole: a
    /// part of a file that was given back, or that a write behind it left out. The limit outlives a crash. `None` removes it.
    pub fn limit_space(&self, bytes: Option<u64>) {
        self.lock_inner().space = bytes;
    }

    /// Whether the bytes of all files are limited.
    #[cfg(feature = "testing")]
    pub(crate) fn is_limited(&self) -> bool {
        self.lock_inner().space.is_some()
    }

    /// Makes every sync of a file take this long, as on a real device, so that a program collects work meanwhile. Zero,
    /// the default, is fastest.
    pub fn set_sync_time(&self, time: Duration) {
        self.lock_inner().sync_time = time;
    }

    /// Has it refuse holes, as some file systems do.
    pub fn refuse_holes(&self) {
        self.lock_inner().is_solid = true;
    }

    /// Bytes in all files, including removed ones that are still open. Holes take none.
    pub fn space_used(&self) -> u64 {
        self.lock_inner().space_used()
    }

    /// Damages a file, even while it is in use. False if there is no such file or location. Histories do not record it.
    pub fn damage(&self, name: &str, damage: &Damage) -> bool {
        self.lock_inner().state.damage(name, damage)
    }

    fn lock_inner(&self) -> MutexGuard<'_, Inner> {
        self.shared.lock_inner()
    }
}

impl Shared {
    fn lock_inner(&self) -> MutexGuard<'_, Inner> {
        // A panic elsewhere leaves a consistent state, because operations apply as a whole.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a call that may start continues.
enum Verdict {
    Sound,
    Fail(io::Error, Landed),
    Lie,
}

impl Inner {
    fn begin(&mut self, call: Call, file: Option<NodeId>) -> io::Result<Verdict> {
        if let Some(left) = &mut self.calls_left {
            match left.checked_sub(1) {
                Some(fewer) => *left = fewer,
                None => self.failing = true,
            }
        }
        let reads = matches!(call, Call::List | Call::Open | Call::Len | Call::Read);
        if self.off || (self.failing && !reads) {
            return Err(eio());
        }
        Ok(match self.faults.next(call, file) {
            None => Verdict::Sound,
            Some(Trouble::Eio(persisted)) => Verdict::Fail(eio(), persisted),
            Some(Trouble::Enospc(persisted)) => Verdict::Fail(enospc(), persisted),
            Some(Trouble::Lie) => Verdict::Lie,
        })
    }

    /// Starts a call that cannot take effect in part and cannot lie.
    fn begin_plain(&mut self, call: Call, file: Option<NodeId>) -> io::Result<()> {
        match self.begin(call, file)? {
            Verdict::Fail(error, _) => Err(error),
            Verdict::Sound | Verdict::Lie => Ok(()),
        }
    }

    fn record(&mut self, op: Op) {
        self.state.apply(&op);
        if !self.forgetful {
            self.ops.push(op);
        }
    }

    fn node(&self, name: &str) -> io::Result<NodeId> {
        self.state.names().get(name).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn create(&mut self, name: &str) -> io::Result<NodeId> {
        if self.node(name).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.record(Op::Create { name: name.to_owned() });
        self.node(name)
    }

    /// Changes names: the call succeeds, fails although it took effect, or lies.
    fn change_names(&mut self, call: Call, op: Op, needs: &str) -> io::Result<()> {
        let verdict = self.begin(call, None)?;
        self.node(needs)?;
        match verdict {
            Verdict::Sound => self.record(op),
            Verdict::Lie => {}
            Verdict::Fail(error, persisted) => {
                if persisted.includes(0) {
                    self.record(op);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    fn space_used(&self) -> u64 {
        let used = self.state.bytes_used(|node| self.handles.contains_key(&node));
        used - self
            .holes
            .keys()
            .filter(|node| self.is_kept(**node))
            .map(|node| self.hole_bytes(*node))
            .sum::<u64>()
    }

    /// Whether a file has a name or is open.
    fn is_kept(&self, node: NodeId) -> bool {
        self.handles.contains_key(&node) || self.state.names().values().any(|named| *named == node)
    }

    fn hole_bytes(&self, node: NodeId) -> u64 {
        self.holes.get(&node).map_or(0, |sectors| (sectors.len() * SECTOR_BYTES) as u64)
    }

    /// As a write of zeros: after a crash each sector has its old bytes, or zeros.
    fn punch_hole(&mut self, node: NodeId, range: Range<u64>) -> io::Result<bool> {
        if self.is_solid {
            return Ok(false);
        }
        let end = range.end.min(self.state.content(node).len());
        if range.start < end {
            // It takes no space, so a full disk does not refuse it.
            let space = self.space.take();
            let zeroed = self.write(node, range.start, vec![0; (end - range.start) as usize]);
            self.space = space;
            zeroed?;
            let sectors = (range.start as usize).div_ceil(SECTOR_BYTES)..end as usize / SECTOR_BYTES;
            self.holes.entry(node).or_default().extend(sectors);
        }
        Ok(true)
    }

    fn write(&mut self, node: NodeId, offset: u64, data: Vec<u8>) -> io::Result<()> {
        match self.begin(Call::Write, Some(node))? {
            Verdict::Lie => return Ok(()),
            Verdict::Sound => {}
            Verdict::Fail(error, persisted) => {
                let part = persisted.part_of_write(offset, data.len());
                self.put(node, offset, &data[..part]);
                return Err(error);
            }
        }
        if let Some(space) = self.space {
            let free = space.saturating_sub(self.space_used());
            let part = self.part_within(free, node, offset, data.len());
            if part < data.len() {
                self.put(node, offset, &data[..part]);
                return Err(enospc());
            }
        }
        self.put(node, offset, &data);
        Ok(())
    }

    /// How many of the bytes of a write need no more than `free` bytes of space.
    fn part_within(&self, free: u64, node: NodeId, offset: u64, bytes: usize) -> usize {
        let len = self.state.content(node).len();
        let gap = self.gap_before(node, offset);
        let needed = |part: usize| {
            let end = offset + part as u64;
            let grown = end.saturating_sub(len) - (gap.len() * SECTOR_BYTES) as u64;
            let sectors = offset as usize / SECTOR_BYTES..(end as usize).div_ceil(SECTOR_BYTES);
            let filled = self.holes.get(&node).map_or(0, |holes| holes.range(sectors).count());
            grown + (filled * SECTOR_BYTES) as u64
        };
        if bytes == 0 || needed(bytes) <= free {
            return bytes;
        }
        let (mut fits, mut too_much) = (0, bytes);
        while fits + 1 < too_much {
            let middle = fits.midpoint(too_much);
            if needed(middle) <= free { fits = middle } else { too_much = middle }
        }
        fits
    }

    /// The whole sectors between the end of a file and a write behind it: they take no space.
    fn gap_before(&self, node: NodeId, offset: u64) -> Range<usize> {
        let first = (self.state.content(node).len() as usize).div_ceil(SECTOR_BYTES);
        first..if self.is_solid { first } else { (offset as usize / SECTOR_BYTES).max(first) }
    }

    fn put(&mut self, node: NodeId, offset: u64, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        if let Some(holes) = self.holes.get_mut(&node) {
            let (first, end) =
                (offset as usize / SECTOR_BYTES, (offset as usize + data.len()).div_ceil(SECTOR_BYTES));
            if holes.range(first..end).next().is_some() {
                holes.retain(|sector| !(first..end).contains(sector));
            }
        }
        let gap = self.gap_before(node, offset);
        if !gap.is_empty() {
            self.holes.entry(node).or_default().extend(gap);
        }
        if self.forgetful {
            return self.state.write(node, offset, data); // saves the copy that a history needs
        }
        self.record(Op::Write { node, offset, data: data.into() });
    }

    fn sync(&mut self, node: NodeId) -> io::Result<()> {
        match self.begin(Call::Sync, Some(node))? {
            Verdict::Lie => Ok(()),
            Verdict::Sound => {
                self.record(Op::Sync { node });
                Ok(())
            }
            Verdict::Fail(error, persisted) => {
                self.record(Op::SyncFailed { node, persisted });
                Err(error)
            }
        }
    }

    fn close_handle(&mut self, node: NodeId) {
        if let Some(count) = self.handles.get_mut(&node) {
            *count -= 1;
            if *count == 0 {
                self.handles.remove(&node);
            }
        }
    }
}

impl SimDisk {
    fn handle(&self, inner: &mut Inner, node: NodeId, write: bool) -> Arc<dyn DiskFile> {
        *inner.handles.entry(node).or_default() += 1;
        Arc::new(SimFile { shared: Arc::clone(&self.shared), node, write })
    }
}

impl Disk for SimDisk {
    fn path(&self) -> &Path {
        &self.shared.path
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut inner = self.lock_inner();
        inner.begin_plain(Call::List, None)?;
        Ok(inner.state.names().keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut inner = self.lock_inner();
        inner.begin_plain(Call::Create, None)?;
        let node = inner.create(name)?;
        Ok(self.handle(&mut inner, node, true))
    }

    fn open(&self, name: &str, write: bool) -> io::Result<Arc<dyn DiskFile>> {
        let mut inner = self.lock_inner();
        inner.begin_plain(Call::Open, None)?;
        let node = inner.node(name)?;
        Ok(self.handle(&mut inner, node, write))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let op = Op::Rename { from: from.to_owned(), to: to.to_owned() };
        self.lock_inner().change_names(Call::Rename, op, from)
    }

    fn space(&self) -> io::Result<Option<Space>> {
        let inner = self.lock_inner();
        let free = inner.space.map_or(u64::MAX, |space| space.saturating_sub(inner.space_used()));
        Ok(Some(Space { device: Arc::as_ptr(&self.shared) as u64, free }))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.lock_inner().change_names(Call::Remove, Op::Remove { name: name.to_owned() }, name)
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut inner = self.lock_inner();
        match inner.begin(Call::SyncDir, None)? {
            Verdict::Lie => {}
            Verdict::Sound => inner.record(Op::SyncDir),
            Verdict::Fail(error, persisted) => {
                // All pending names reach the disk, or none: they are one journal. A later sync covers them: if a
                // journal fails permanently, the file system accepts no more calls at all.
                if persisted.includes(0) {
                    inner.record(Op::SyncDir);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn Lock>> {
        let mut inner = self.lock_inner();
        inner.begin_plain(Call::Lock, None)?;
        let node = match inner.node(name) {
            Ok(node) => node,
            Err(_) => inner.create(name)?,
        };
        if !inner.locked.insert(node) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(Box::new(SimLock { shared: Arc::clone(&self.shared), node }))
    }

    fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
        let mut inner = self.lock_inner();
        let chance = inner.chance.get_or_insert_with(|| Rng::new(RandomState::new().hash_one(0)));
        for piece in bytes.chunks_mut(8) {
            piece.copy_from_slice(&chance.next_u64().to_le_bytes()[..piece.len()]);
        }
        Ok(())
    }
}

/// Like `flock`: locks the file, not its name; released when dropped.
#[derive(Debug)]
struct SimLock {
    shared: Arc<Shared>,
    node: NodeId,
}

impl Lock for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        self.shared.lock_inner().locked.remove(&self.node);
    }
}

#[derive(Debug)]
struct SimFile {
    shared: Arc<Shared>,
    node: NodeId,
    write: bool,
}

impl Drop for SimFile {
    fn drop(&mut self) {
        self.shared.lock_inner().close_handle(self.node);
    }
}

impl DiskFile for SimFile {
    fn len(&self) -> io::Result<u64> {
        let mut inner = self.shared.lock_inner();
        inner.begin_plain(Call::Len, Some(self.node))?;
        Ok(inner.state.content(self.node).len())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut inner = self.shared.lock_inner();
        inner.begin_plain(Call::Read, Some(self.node))?;
        if inner.state.content(self.node).read(offset, buf) {
            return Ok(());
        }
        Err(io::ErrorKind::UnexpectedEof.into())
    }

    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        if !self.write {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let mut data = Vec::with_capacity(bufs.iter().map(|s| s.len()).sum());
        for buf in bufs {
            data.extend_from_slice(buf);
        }
        self.shared.lock_inner().write(self.node, offset, data)
    }

    fn punch_hole(&self, range: Range<u64>) -> io::Result<bool> {
        if !self.write {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.shared.lock_inner().punch_hole(self.node, range)
    }

    fn allocated(&self) -> io::Result<u64> {
        let mut inner = self.shared.lock_inner();
        inner.begin_plain(Call::Len, Some(self.node))?;
        Ok(inner.state.content(self.node).len() - inner.hole_bytes(self.node))
    }

    fn sync(&self) -> io::Result<()> {
        let time = self.shared.lock_inner().sync_time;
        if !time.is_zero() {
            self.shared.lock_inner().record(Op::SyncBegins { node: self.node });
            std::thread::sleep(time); // without the lock, so other calls can run
        }
        self.shared.lock_inner().sync(self.node)
    }
}

#[cfg(test)]
mod tests;
