//! A simulated disk, for testing what a program makes of crashes and faults. Feature `sim`.
//!
//! [`SimDisk`] is a [`Disk`] in memory that knows what a power cut may leave of it. Give it to
//! `Log::open_on` and everything above is the shipped code:
//!
//! - **Crash**: [`SimDisk::crash`] gives the disk after a power cut: any subset of the 512-byte sectors
//!   written and of the names changed since the last sync of that file or of the directory.
//!   [`DiskState::crashes`] goes through all of them.
//! - **History**: every operation is recorded; [`History::states`] goes through the disk after each one, so
//!   that a test can cut the power at every single point.
//! - **Faults**: [`SimDisk::plan`] fails the n-th call with EIO or ENOSPC; [`SimDisk::limit_space`] makes a
//!   small disk. After a failed sync the new bytes can still be read but are *clean*: another sync returns
//!   `Ok` without them, as on Linux. Only a new write of other or the same bytes makes them dirty again.
//! - **Kill**: [`SimDisk::resume`] goes on with a disk as a killed process leaves it: all is visible that was
//!   written, and what was not synced can still be lost.
//! - **Damage**: [`SimDisk::damage`] and [`Image::damage`] flip bits, swap sectors, misdirect writes.
//!
//! - **Syncs take time**: a sync covers what was written before it began, and nothing that was written while it ran:
//!   [`SimDisk::begin_sync`], [`SimDisk::set_sync_time`].
//!
//! It is harsher than most file systems: a rename may survive while the creation before it is lost, and a
//! file may keep its new length and lose its bytes. What holds here holds on all of them.
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
//! // The power fails, and nothing that was not synced has reached the disk.
//! let after = disk.crash(|_versions| 0);
//! assert_eq!(after.visible().file("a").as_deref(), Some(&b"kept"[..]));
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! This file owns the handle: calls, locks, recording. `sim/state.rs` is what is on the disk, `sim/file.rs` what is in a file, `sim/faults.rs`
//! when it fails, `sim/crashes.rs` which images a crash can leave, `sim/rng.rs` chance.

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

use super::{Disk, DiskFile, Lock};
use faults::{Faults, eio, enospc};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A disk in memory. Cheap to clone: clones are the same disk. `Send + Sync`; calls take turns and never block
/// for longer than the work takes.
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
/// // The power fails at once, and of what was not synced nothing is left.
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
    /// Open handles of each file: an unnamed file takes room until the last is gone.
    handles: BTreeMap<NodeId, usize>,
    locked: BTreeSet<NodeId>,
    off: bool,
    /// The power was cut in the midst of things: reads still work, and nothing changes any more.
    failing: bool,
    /// Calls that are still served before the power is cut.
    calls_left: Option<u64>,
    /// No history is kept.
    forgetful: bool,
    /// Where the names of logs and files come from; None: from the system.
    chance: Option<Rng>,
}

/// What happened on a disk: how it began and all operations since.
///
/// ```
/// use chiplog::disk::sim::SimDisk;
/// use chiplog::disk::Disk;
/// let disk = SimDisk::default();
/// disk.create("a")?;
/// disk.sync_dir()?;
/// let history = disk.history();
/// // Before the first operation, after it, after the second: what can a crash leave?
/// let images: Vec<usize> = history.states().map(|s| s.crashes(4096, 100, 1).count()).collect();
/// assert_eq!(images, [1, 2, 1]);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The disk before.
    pub start: DiskState,
    /// What was done to it, in order.
    pub ops: Vec<Op>,
}

impl History {
    /// The disk before the first operation, then after each of them: one more state than there are operations.
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
    /// A disk with these files, all durable.
    pub fn new(image: Image) -> Self {
        Self::resume(DiskState::at_rest(&image))
    }

    /// A disk in the midst of its life, with all that is not durable yet: as the next process finds it when one
    /// was killed and the machine ran on.
    pub fn resume(mut state: DiskState) -> Self {
        state.forget_syncs();
        let inner = Inner { start: state.clone(), state, ..Inner::default() };
        Self { shared: Arc::new(Shared { path: PathBuf::from("/sim"), inner: Mutex::new(inner) }) }
    }

    /// Cuts the power: this disk is off for good, as by [`power_off`](Self::power_off), and a new one is
    /// returned that holds what `choose` keeps (see [`DiskState::crash`]). No lock is held on it.
    pub fn crash(&self, choose: impl FnMut(usize) -> usize) -> Self {
        self.power_off();
        let inner = self.lock_inner();
        Self::new(inner.state.crash(choose)).inheriting(&inner)
    }

    /// Kills the program that uses the disk: this handle is off for good, and a new one is returned on which all
    /// is visible that was written, durable or not. No lock is held on it.
    pub fn kill(&self) -> Self {
        self.power_off();
        let inner = self.lock_inner();
        Self::resume(inner.state.clone()).inheriting(&inner)
    }

    fn inheriting(self, inner: &Inner) -> Self {
        let mut heir = self.lock_inner();
        heir.sync_time = inner.sync_time;
        heir.forgetful = inner.forgetful;
        heir.chance = inner.chance.clone();
        if heir.forgetful {
            heir.start = DiskState::default();
        }
        drop(heir);
        self
    }

    /// [`crash`](Self::crash) with a fair choice for every unit.
    pub fn crash_randomly(&self, rng: &mut Rng) -> Self {
        self.crash(|versions| rng.below(versions))
    }

    /// From now on every call fails with EIO and nothing changes any more. Ends a program's use of the disk.
    pub fn power_off(&self) {
        self.lock_inner().off = true;
    }

    /// Serves so many more calls and then cuts the power in the midst of whatever the program is doing: from then on
    /// nothing changes, and all but reads fails with EIO. (Reads do not, lest a program that is dead already has to
    /// bear them.) [`crash`](Self::crash) tells what that leaves.
    pub fn cut_power_after(&self, calls: u64) {
        self.lock_inner().calls_left = Some(calls);
    }

    /// Takes [`cut_power_after`](Self::cut_power_after) back.
    pub fn spare_power(&self) {
        self.lock_inner().calls_left = None;
    }

    /// A sync of this file begins now, and is carried out by the next call of [`DiskFile::sync`] on it: that one covers
    /// only what was written before. For a driver that lets time pass between the two.
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

    /// Keeps no history from now on, which a long run would fill the memory with. What a crash leaves keeps none
    /// either.
    pub fn forget_history(&self) {
        let mut inner = self.lock_inner();
        inner.forgetful = true;
        inner.ops = Vec::new();
        inner.start = DiskState::default();
    }

    /// Draws the names of logs, directories and segments from this seed, and not from the system: with the same
    /// calls the same bytes are written.
    pub fn set_chance(&self, seed: u64) {
        self.lock_inner().chance = Some(Rng::new(seed));
    }

    /// The disk as it is now, for looking at possible crashes without causing one.
    pub fn state(&self) -> DiskState {
        self.lock_inner().state.clone()
    }

    /// What reads see now, as if everything were durable.
    pub fn visible(&self) -> Image {
        self.lock_inner().state.visible()
    }

    /// What happened since the disk was made.
    pub fn history(&self) -> History {
        let inner = self.lock_inner();
        History { start: inner.start.clone(), ops: inner.ops.clone() }
    }

    /// How many operations the history holds.
    pub fn history_len(&self) -> usize {
        self.lock_inner().ops.len()
    }

    /// Puts a note into the history, such as "append number 7 was acknowledged". Returns its place.
    pub fn mark(&self, note: u64) -> usize {
        let mut inner = self.lock_inner();
        inner.ops.push(Op::Mark(note));
        inner.ops.len() - 1
    }

    /// Adds to the fault plan.
    pub fn plan(&self, fault: Fault) {
        self.lock_inner().faults.plan(fault, None);
    }

    /// Adds to the fault plan, for calls on one file only: reads, writes, syncs and lengths of what has this name now,
    /// whatever it is renamed to. False, and nothing is planned, when there is no such file.
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

    /// Takes back the whole fault plan: the disk is sound from now on (what was lost stays lost).
    pub fn heal(&self) {
        self.lock_inner().faults.clear();
    }

    /// How many planned faults have happened.
    pub fn faults_fired(&self) -> u64 {
        self.lock_inner().faults.fired()
    }

    /// How often a call was made, failed ones included; `None`: all calls together.
    pub fn calls(&self, call: Option<Call>) -> u64 {
        self.lock_inner().faults.count(call)
    }

    /// All files together can have so many bytes; a write that would make them more is cut short and fails
    /// with ENOSPC. `None` lifts the limit.
    pub fn limit_space(&self, bytes: Option<u64>) {
        self.lock_inner().space = bytes;
    }

    /// Makes every sync of a file take so long, as on a real device: meanwhile a program gathers work. Zero, the
    /// default, is for speed.
    pub fn set_sync_time(&self, time: Duration) {
        self.lock_inner().sync_time = time;
    }

    /// Bytes in all files, removed ones that are still open included.
    pub fn space_used(&self) -> u64 {
        self.lock_inner().space_used()
    }

    /// Damages a file while it may be in use. False when there is no such file or place. Histories do not
    /// record it.
    pub fn damage(&self, name: &str, damage: &Damage) -> bool {
        self.lock_inner().state.damage(name, damage)
    }

    fn lock_inner(&self) -> MutexGuard<'_, Inner> {
        self.shared.lock_inner()
    }
}

impl Shared {
    fn lock_inner(&self) -> MutexGuard<'_, Inner> {
        // A panic elsewhere leaves a state that is as good as any: operations apply whole.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a call that is allowed to begin goes on.
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
            Some(Trouble::Eio(confirmed)) => Verdict::Fail(eio(), confirmed),
            Some(Trouble::Enospc(confirmed)) => Verdict::Fail(enospc(), confirmed),
            Some(Trouble::Lie) => Verdict::Lie,
        })
    }

    /// For calls of which nothing can land and which cannot lie.
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

    /// A change of names: sound, failed but landed all the same, or a lie.
    fn change_names(&mut self, call: Call, op: Op, needs: &str) -> io::Result<()> {
        let verdict = self.begin(call, None)?;
        self.node(needs)?;
        match verdict {
            Verdict::Sound => self.record(op),
            Verdict::Lie => {}
            Verdict::Fail(error, confirmed) => {
                if confirmed.includes(0) {
                    self.record(op);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    fn space_used(&self) -> u64 {
        self.state.bytes_used(|node| self.handles.contains_key(&node))
    }

    fn write(&mut self, node: NodeId, offset: u64, data: Vec<u8>) -> io::Result<()> {
        match self.begin(Call::Write, Some(node))? {
            Verdict::Lie => return Ok(()),
            Verdict::Sound => {}
            Verdict::Fail(error, confirmed) => {
                let part = match confirmed {
                    Landed::Nothing => 0,
                    Landed::Some(seed) => Rng::new(seed).below(data.len().max(1)),
                    Landed::All => data.len(),
                };
                self.put(node, offset, &data[..part]);
                return Err(error);
            }
        }
        if let Some(space) = self.space {
            let end = offset + data.len() as u64;
            let len = self.state.content(node).len();
            let free = space.saturating_sub(self.space_used());
            if end.saturating_sub(len) > free {
                let part = (len + free).saturating_sub(offset).min(data.len() as u64);
                self.put(node, offset, &data[..part as usize]);
                return Err(enospc());
            }
        }
        self.put(node, offset, &data);
        Ok(())
    }

    fn put(&mut self, node: NodeId, offset: u64, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        if self.forgetful {
            return self.state.write(node, offset, data); // spares the copy that a history needs
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
            Verdict::Fail(error, confirmed) => {
                self.record(Op::SyncFailed { node, confirmed });
                Err(error)
            }
        }
    }

    fn let_go(&mut self, node: NodeId) {
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

    fn remove(&self, name: &str) -> io::Result<()> {
        self.lock_inner().change_names(Call::Remove, Op::Remove { name: name.to_owned() }, name)
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut inner = self.lock_inner();
        match inner.begin(Call::SyncDir, None)? {
            Verdict::Lie => {}
            Verdict::Sound => inner.record(Op::SyncDir),
            Verdict::Fail(error, confirmed) => {
                // Names are one journal: all of them land, or none does. A later sync covers them: where a
                // journal fails for good the file system takes no more calls at all.
                if confirmed.includes(0) {
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

/// Like `flock`: on the file, not its name; gone when dropped.
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
        self.shared.lock_inner().let_go(self.node);
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

    fn sync(&self) -> io::Result<()> {
        let time = self.shared.lock_inner().sync_time;
        if !time.is_zero() {
            self.shared.lock_inner().record(Op::SyncBegins { node: self.node });
            std::thread::sleep(time); // without the lock: other calls go on
        }
        self.shared.lock_inner().sync(self.node)
    }
}

#[cfg(test)]
mod tests;
