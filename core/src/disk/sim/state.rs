//! The two states of a simulated disk: as reads see it (volatile), and as a power cut leaves it (durable).
//!
//! ```text
//!   write ──> volatile image ─┐
//!        └──> pending: versions of a sector, lengths, name operations
//!                             │ sync / sync_dir          │ failed sync: forgotten, volatile image stays
//!                             v                          v
//!                        durable image <── crash: for each pending unit the old or any newer version
//! ```
//!
//! A pure state machine: [`DiskState::apply`] takes one [`Op`] after the other, so a recorded history can be replayed
//! up to any point. It does not know threads, faults or handles.
//!
//! Invariant: a pending list is never empty, and its last version equals the volatile image, unless a sync failed in
//! between.

use super::file::{Damage, FileImage, Sector, patches};
use super::rng::Rng;
use crate::disk::SECTOR_BYTES;
use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Names and contents of a whole disk, at rest: the result of a power cut, or assembled by hand. Cheap to clone:
/// contents are shared until they change.
///
/// ```
/// use chiplog::disk::sim::{Image, SimDisk};
/// use chiplog::disk::{Disk, DiskFile};
/// let mut image = Image::default();
/// image.insert("greeting", b"hello");
/// let disk = SimDisk::new(image);
/// let mut bytes = [0; 5];
/// disk.open("greeting", false)?.read_at(0, &mut bytes)?;
/// assert_eq!(&bytes, b"hello");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Image {
    pub(super) files: BTreeMap<String, Arc<FileImage>>,
}

impl Image {
    /// Adds a file, replacing one of the same name.
    pub fn insert(&mut self, name: &str, contents: &[u8]) {
        self.files.insert(name.to_owned(), Arc::new(FileImage::from_bytes(contents)));
    }

    /// Returns a file's contents.
    pub fn file(&self, name: &str) -> Option<Vec<u8>> {
        self.files.get(name).map(|f| f.to_bytes())
    }

    /// All names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// Removes a file. False if there is no file of this name.
    pub fn remove(&mut self, name: &str) -> bool {
        self.files.remove(name).is_some()
    }

    /// Copies the contents of `from` to `to`. False if there is no `from`.
    pub fn copy(&mut self, from: &str, to: &str) -> bool {
        let Some(file) = self.files.get(from).cloned() else { return false };
        self.files.insert(to.to_owned(), file);
        true
    }

    /// Damages a file. Returns false and changes nothing if there is no such file or location.
    pub fn damage(&mut self, name: &str, damage: &Damage) -> bool {
        self.files.get_mut(name).is_some_and(|f| Arc::make_mut(f).damage(damage))
    }

    /// A hash of all names and contents, to distinguish images; equal images have equal hashes.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (name, file) in &self.files {
            name.hash(&mut hasher);
            file.hash_into(&mut hasher);
        }
        hasher.finish()
    }
}

/// The id of a file, independent of its names, like an inode number.
///
/// ```
/// use chiplog::disk::sim::{Op, SimDisk};
/// use chiplog::disk::{Disk, DiskFile};
/// let disk = SimDisk::default();
/// disk.create("a")?.sync()?;
/// disk.rename("a", "b")?;
/// disk.open("b", true)?.sync()?;
/// let ops = disk.history().ops;
/// assert_eq!(ops[1], ops[3], "both syncs were of the same file");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u32);

/// A change of the disk. Public so that a test can locate it in a history.
///
/// ```
/// use chiplog::disk::Disk;
/// use chiplog::disk::sim::{Op, SimDisk};
/// let disk = SimDisk::default();
/// disk.create("a")?;
/// disk.mark(7);
/// assert_eq!(disk.history().ops, [Op::Create { name: "a".into() }, Op::Mark(7)]);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// A name was made for a new, empty file.
    Create {
        /// Its name.
        name: String,
    },
    /// Bytes were written. For a write that failed: the part that was written anyway.
    Write {
        /// The file.
        node: NodeId,
        /// The offset of the first byte.
        offset: u64,
        /// The bytes.
        data: Arc<[u8]>,
    },
    /// A sync of a file started: it does not make later writes durable.
    SyncBegins {
        /// The file.
        node: NodeId,
    },
    /// A file's contents became durable: all, or those from before its last [`Op::SyncBegins`].
    Sync {
        /// The file.
        node: NodeId,
    },
    /// A sync failed: pending bytes are forgotten, except for those that reached the disk by chance.
    SyncFailed {
        /// The file.
        node: NodeId,
        /// The pending sectors that reached the disk.
        persisted: Landed,
    },
    /// A file was renamed.
    Rename {
        /// The old name.
        from: String,
        /// The new name.
        to: String,
    },
    /// A name was removed.
    Remove {
        /// The name.
        name: String,
    },
    /// All names became durable.
    SyncDir,
    /// A note of the test; see [`SimDisk::mark`](super::SimDisk::mark).
    Mark(u64),
}

/// The part of a failed write or sync that took effect anyway. A write within one sector takes effect whole or not at all: a segment's header
/// is raised in place, and relies on it. A longer write can end at any byte, which is harsher than a file system is.
///
/// ```
/// use chiplog::disk::sim::Landed;
/// assert_eq!(Landed::default(), Landed::Nothing);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Landed {
    /// Nothing.
    #[default]
    Nothing,
    /// Of a sync, some sectors; of a write, its first bytes, or nothing if it is within one sector. The number decides.
    Some(u64),
    /// Everything.
    All,
}

impl Landed {
    /// Whether unit `n` took effect.
    pub(super) fn includes(self, n: u64) -> bool {
        match self {
            Self::Nothing => false,
            Self::All => true,
            Self::Some(seed) => Rng::new(seed ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).below(2) == 0,
        }
    }

    /// How many bytes of a failed write took effect.
    pub(super) fn part_of_write(self, offset: u64, bytes: usize) -> usize {
        let sector = SECTOR_BYTES as u64;
        match self {
            Self::Nothing => 0,
            Self::Some(_) if offset / sector == (offset + bytes as u64).saturating_sub(1) / sector => 0,
            Self::Some(seed) => Rng::new(seed).below(bytes.max(1)),
            Self::All => bytes,
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Node {
    volatile: Arc<FileImage>,
    durable: Arc<FileImage>,
    /// Versions of each sector since the last sync, oldest first.
    pending: BTreeMap<usize, Vec<Sector>>,
    /// Lengths since the last sync, growing.
    pending_len: Vec<u64>,
    /// The pending units when the current sync began; None: no sync is in progress.
    began: Option<Began>,
}

/// The extent of a sync: how many versions of each sector, and how many lengths, were pending when it began.
#[derive(Clone, Debug, Default)]
struct Began {
    versions: BTreeMap<usize, usize>,
    lengths: usize,
}

impl Node {
    fn at_rest(image: Arc<FileImage>) -> Self {
        Self { volatile: Arc::clone(&image), durable: image, ..Self::default() }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        let volatile = Arc::make_mut(&mut self.volatile);
        if end > volatile.len {
            volatile.resize(end);
        }
        if end > *self.pending_len.last().unwrap_or(&self.durable.len) {
            self.pending_len.push(end);
        }
        for (n, patch) in patches(offset, data) {
            let new = patch.over(&volatile.sectors[n]);
            volatile.sectors[n] = new.clone();
            let zero = Sector::default();
            let durable = self.durable.sectors.get(n).unwrap_or(&zero);
            match self.pending.get_mut(&n) {
                // Writing the same bytes again adds no version, unless a failed sync forgot those bytes.
                Some(versions) => {
                    if versions.last() != Some(&new) {
                        versions.push(new);
                    }
                }
                None => {
                    if *durable != new {
                        self.pending.insert(n, vec![new]);
                    }
                }
            }
        }
    }

    /// Starts a sync.
    fn begin_sync(&mut self) {
        let versions = self.pending.iter().map(|(n, versions)| (*n, versions.len())).collect();
        self.began = Some(Began { versions, lengths: self.pending_len.len() });
    }

    /// Ends a sync: moves the units that it covers and `keep` selects to the durable image, and forgets the others it
    /// covers. Writes after its start stay pending.
    fn settle(&mut self, keep: impl Fn(usize) -> bool, keep_len: bool) {
        let began = self.began.take();
        let lengths_covered = began.as_ref().map_or(self.pending_len.len(), |b| b.lengths);
        let lengths: Vec<u64> = self.pending_len.drain(..lengths_covered).collect();
        let length = lengths.last().filter(|_| keep_len);
        if length.is_none() && self.pending.is_empty() {
            return;
        }
        let durable = Arc::make_mut(&mut self.durable);
        if let Some(len) = length {
            durable.resize(*len);
        }
        self.pending.retain(|n, versions| {
            let covered = began.as_ref().map_or(versions.len(), |b| b.versions.get(n).copied().unwrap_or(0));
            let newest = versions.drain(..covered).next_back();
            if let (true, Some(slot), Some(new)) = (keep(*n), durable.sectors.get_mut(*n), newest) {
                *slot = new;
            }
            !versions.is_empty()
        });
        durable.clear_beyond_end();
    }

    /// Returns what a power cut leaves. `choose` picks a version of each pending unit; 0 is the old one.
    fn crash(&self, choose: &mut impl FnMut(usize) -> usize) -> Arc<FileImage> {
        if self.pending.is_empty() && self.pending_len.is_empty() {
            return Arc::clone(&self.durable);
        }
        let mut image = FileImage::clone(&self.durable);
        if !self.pending_len.is_empty() {
            match choose(self.pending_len.len() + 1) {
                0 => {}
                n => image.resize(self.pending_len[n - 1]),
            }
        }
        for (n, versions) in &self.pending {
            match choose(versions.len() + 1) {
                0 => {}
                version => {
                    // A sector that arrived beyond the surviving length is not part of the file.
                    if let Some(slot) = image.sectors.get_mut(*n) {
                        *slot = versions[version - 1].clone();
                    }
                }
            }
        }
        image.clear_beyond_end();
        Arc::new(image)
    }
}

/// A change of the directory that a power cut can undo.
#[derive(Clone, Debug)]
enum NameOp {
    Set(String, NodeId),
    Move(String, String, NodeId),
    Clear(String, NodeId),
}

impl NameOp {
    fn node(&self) -> NodeId {
        let (Self::Set(_, node) | Self::Move(_, _, node) | Self::Clear(_, node)) = self;
        *node
    }

    fn apply(&self, names: &mut BTreeMap<String, NodeId>) {
        match self {
            Self::Set(name, node) => {
                names.insert(name.clone(), *node);
            }
            Self::Move(from, to, node) => {
                if names.get(from) == Some(node) {
                    names.remove(from);
                }
                names.insert(to.clone(), *node);
            }
            Self::Clear(name, node) => {
                if names.get(name) == Some(node) {
                    names.remove(name);
                }
            }
        }
    }
}

/// The state of a disk between two operations: what reads see, and what a power cut may leave. Cheap to clone.
///
/// ```
/// use chiplog::disk::Disk;
/// use chiplog::disk::sim::SimDisk;
/// let disk = SimDisk::default();
/// disk.create("a")?;
/// let state = disk.state();
/// assert_eq!(state.visible().names().collect::<Vec<_>>(), ["a"]);
/// assert_eq!(state.dirty_units(), 1);
/// assert_eq!(state.crash(|_versions| 0).names().count(), 0);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct DiskState {
    nodes: Vec<Node>,
    names: BTreeMap<String, NodeId>,
    durable_names: BTreeMap<String, NodeId>,
    pending_names: Vec<NameOp>,
}

impl DiskState {
    /// Creates a disk on which everything is durable.
    pub fn at_rest(image: &Image) -> Self {
        let mut state = Self::default();
        for (name, file) in &image.files {
            state.names.insert(name.clone(), NodeId(state.nodes.len() as u32));
            state.nodes.push(Node::at_rest(Arc::clone(file)));
        }
        state.durable_names = state.names.clone();
        state
    }

    /// Applies one operation. Operations recorded by a [`SimDisk`](super::SimDisk) on the same image always apply; one
    /// on a missing name changes nothing.
    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Create { name } => {
                let node = NodeId(self.nodes.len() as u32);
                self.nodes.push(Node::default());
                self.change_names(NameOp::Set(name.clone(), node));
            }
            Op::Write { node, offset, data } => self.write(*node, *offset, data),
            Op::SyncBegins { node } => {
                if let Some(node) = self.nodes.get_mut(node.0 as usize) {
                    node.begin_sync();
                }
            }
            Op::Sync { node } => {
                if let Some(node) = self.nodes.get_mut(node.0 as usize) {
                    node.settle(|_| true, true);
                }
            }
            Op::SyncFailed { node, persisted } => {
                if let Some(node) = self.nodes.get_mut(node.0 as usize) {
                    node.settle(|n| persisted.includes(n as u64), persisted.includes(u64::MAX));
                }
            }
            Op::Rename { from, to } => {
                if let Some(node) = self.names.get(from).copied() {
                    self.change_names(NameOp::Move(from.clone(), to.clone(), node));
                }
            }
            Op::Remove { name } => {
                if let Some(node) = self.names.get(name).copied() {
                    self.change_names(NameOp::Clear(name.clone(), node));
                }
            }
            Op::SyncDir => {
                for op in self.pending_names.drain(..) {
                    op.apply(&mut self.durable_names);
                }
            }
            Op::Mark(_) => {}
        }
    }

    /// Forgets the syncs in progress, because the process that waited for them has ended. They may succeed or fail: the
    /// bytes that they cover stay pending.
    pub(super) fn forget_syncs(&mut self) {
        for node in &mut self.nodes {
            node.began = None;
        }
    }

    pub(super) fn write(&mut self, node: NodeId, offset: u64, data: &[u8]) {
        if let Some(node) = self.nodes.get_mut(node.0 as usize) {
            node.write(offset, data);
        }
    }

    fn change_names(&mut self, op: NameOp) {
        op.apply(&mut self.names);
        self.pending_names.push(op);
    }

    /// The disk as reads see it, as if everything were durable: the disk after an orderly shutdown.
    pub fn visible(&self) -> Image {
        let file = |node: &NodeId| Arc::clone(&self.nodes[node.0 as usize].volatile);
        Image { files: self.names.iter().map(|(name, node)| (name.clone(), file(node))).collect() }
    }

    /// Returns one image that a power cut can leave now. `choose` is called once for each unit that is not durable,
    /// with the number of its possible versions (2 or more), and returns a number below that; 0 is the oldest version.
    /// The units and their order depend only on the state.
    pub fn crash(&self, mut choose: impl FnMut(usize) -> usize) -> Image {
        let mut names = self.durable_names.clone();
        for op in &self.pending_names {
            if choose(2) == 1 {
                op.apply(&mut names);
            }
        }
        // `choose` is called for every file that can have a name, so that the units do not depend on earlier choices.
        let mut nodes: Vec<NodeId> = self.durable_names.values().copied().collect();
        nodes.extend(self.pending_names.iter().map(NameOp::node));
        nodes.sort_unstable();
        nodes.dedup();
        let files: BTreeMap<_, _> =
            nodes.into_iter().map(|id| (id, self.nodes[id.0 as usize].crash(&mut choose))).collect();
        Image { files: names.into_iter().map(|(name, node)| (name, Arc::clone(&files[&node]))).collect() }
    }

    /// The number of units that are not durable: sectors, lengths and name operations.
    pub fn dirty_units(&self) -> usize {
        let mut units = 0;
        self.crash(|_| {
            units += 1;
            0
        });
        units
    }

    pub(super) fn names(&self) -> &BTreeMap<String, NodeId> {
        &self.names
    }

    pub(super) fn content(&self, node: NodeId) -> &FileImage {
        &self.nodes[node.0 as usize].volatile
    }

    /// Bytes in all files that have a name or that `held` selects.
    pub(super) fn bytes_used(&self, held: impl Fn(NodeId) -> bool) -> u64 {
        let named: std::collections::BTreeSet<_> = self.names.values().copied().collect();
        (0..self.nodes.len() as u32)
            .map(NodeId)
            .filter(|id| named.contains(id) || held(*id))
            .map(|id| self.content(id).len)
            .sum()
    }

    /// Damages a file while it may be in use: both what reads see and what is durable.
    pub(super) fn damage(&mut self, name: &str, damage: &Damage) -> bool {
        let Some(node) = self.names.get(name).map(|n| &mut self.nodes[n.0 as usize]) else { return false };
        let seen = Arc::make_mut(&mut node.volatile).damage(damage);
        let kept = Arc::make_mut(&mut node.durable).damage(damage);
        seen || kept
    }
}
