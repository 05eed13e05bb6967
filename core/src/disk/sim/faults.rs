//! Decides when and how a simulated disk fails: the plan, and counts of calls and faults.
//!
//! It does not know the names of files. Every call uses [`Faults::next`] once. All calls are counted, so that a test
//! can run a workload once, learn how many calls it makes, and fail each of them in turn.

use super::state::{Landed, NodeId};
use std::io;

/// The calls of [`Disk`](crate::disk::Disk) and [`DiskFile`](crate::disk::DiskFile).
///
/// ```
/// use chiplog::disk::Disk;
/// use chiplog::disk::sim::{Call, SimDisk};
/// let disk = SimDisk::default();
/// disk.list()?;
/// assert_eq!((disk.calls(Some(Call::List)), disk.calls(None)), (1, 1));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(usize)]
pub enum Call {
    /// `Disk::list`
    List,
    /// `Disk::create`
    Create,
    /// `Disk::open`
    Open,
    /// `Disk::rename`
    Rename,
    /// `Disk::remove`
    Remove,
    /// `Disk::sync_dir`
    SyncDir,
    /// `Disk::lock`
    Lock,
    /// `DiskFile::len`
    Len,
    /// `DiskFile::read_at`
    Read,
    /// `DiskFile::write_at`
    Write,
    /// `DiskFile::sync`
    Sync,
}

impl Call {
    /// All kinds of calls.
    pub const ALL: [Self; 11] = [
        Self::List,
        Self::Create,
        Self::Open,
        Self::Rename,
        Self::Remove,
        Self::SyncDir,
        Self::Lock,
        Self::Len,
        Self::Read,
        Self::Write,
        Self::Sync,
    ];
}

/// The kind of a fault. See [`Fault`].
///
/// ```
/// use chiplog::disk::sim::{Landed, Trouble};
/// assert_ne!(Trouble::Eio(Landed::All), Trouble::Enospc(Landed::All));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trouble {
    /// The call fails with `EIO`. `Landed` says how much of a write, or of the bytes to sync, reached the disk anyway.
    Eio(Landed),
    /// The call fails with `ENOSPC`, with the same meaning of `Landed`.
    Enospc(Landed),
    /// The call returns `Ok` and does nothing. No reliable disk does this; it shows that a checker notices. Only for
    /// calls that return nothing (write, sync, rename, remove, sync_dir).
    Lie,
}

/// One entry of a fault plan: the call that fails, and how.
///
/// ```
/// use chiplog::disk::sim::{Call, Fault, Landed, SimDisk, Trouble};
/// use chiplog::disk::Disk;
/// let disk = SimDisk::default();
/// disk.plan(Fault { call: Some(Call::Create), nth: 2, lasting: false, trouble: Trouble::Eio(Landed::Nothing) });
/// assert!(disk.create("a").is_ok());
/// assert_eq!(disk.create("b").unwrap_err().raw_os_error(), Some(5));
/// assert!(disk.create("b").is_ok());
/// assert_eq!(disk.faults_fired(), 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fault {
    /// Only calls of this kind; `None`: of every kind.
    pub call: Option<Call>,
    /// The number of the call, counted from 1 since the plan was made.
    pub nth: u64,
    /// Whether all later calls fail too.
    pub lasting: bool,
    /// The kind of the fault.
    pub trouble: Trouble,
}

#[derive(Debug)]
struct Plan {
    fault: Fault,
    /// Only calls on this file.
    file: Option<NodeId>,
    /// Matching calls since the plan was made.
    seen: u64,
}

impl Plan {
    fn is_for(&self, call: Call, file: Option<NodeId>) -> bool {
        self.fault.call.is_none_or(|c| c == call) && (self.file.is_none() || self.file == file)
    }
}

#[derive(Debug, Default)]
pub(super) struct Faults {
    plans: Vec<Plan>,
    counts: [u64; Call::ALL.len()],
    fired: u64,
}

impl Faults {
    pub(super) fn plan(&mut self, fault: Fault, file: Option<NodeId>) {
        self.plans.push(Plan { fault, file, seen: 0 });
    }

    /// Removes all plans, but keeps the counts.
    pub(super) fn clear(&mut self) {
        self.plans.clear();
    }

    /// Counts a call, on an open file or on the directory, and returns the fault planned for it.
    pub(super) fn next(&mut self, call: Call, file: Option<NodeId>) -> Option<Trouble> {
        self.counts[call as usize] += 1;
        let mut trouble = None;
        for Plan { fault, seen, .. } in self.plans.iter_mut().filter(|plan| plan.is_for(call, file)) {
            *seen += 1;
            if *seen == fault.nth || (fault.lasting && *seen > fault.nth) {
                trouble = trouble.or(Some(fault.trouble));
            }
        }
        self.fired += u64::from(trouble.is_some());
        trouble
    }

    pub(super) fn count(&self, call: Option<Call>) -> u64 {
        call.map_or_else(|| self.counts.iter().sum(), |c| self.counts[c as usize])
    }

    pub(super) fn fired(&self) -> u64 {
        self.fired
    }
}

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

pub(super) fn eio() -> io::Error {
    io::Error::from_raw_os_error(EIO)
}

pub(super) fn enospc() -> io::Error {
    io::Error::from_raw_os_error(ENOSPC)
}
