//! The read-only mapping of a segment file, or of a sorted copy. The only file with `unsafe` code.
//!
//! Returning `&[u8]` of a file that is being written is sound for these reasons:
//!
//! 1. No reference is made to bytes that can still change. [`Map::bytes`] is called only for ranges inside committed
//!    blocks, and the writer never writes to a committed range again. A repair does (`store::recovery::gap`): into
//!    blocks that fail their checksums, and of these only into sectors with wrong bytes. References to such bytes live
//!    only as long as the check that they fail, and are never returned. A check that runs beside a repair sees old or
//!    new bytes, and the bytes that it accepts do not change again.
//! 2. A segment file keeps its length while it is mapped: it has its full size, with blocks allocated, before it is
//!    first mapped, and is reused only when no mapping is left (`store::allocator`).
//!    A sorted copy is whole before it gets its name, and never written or reused after that (`store::read::sorter`).
//! 3. Another process that shortens or overwrites the files breaks both. It must not; the directory is locked and the
//!    documentation says so. Programs that cannot exclude such a process use `ReadMode::Read`.
#![expect(unsafe_code, reason = "memory mappings; each block says why it is sound")]

use memmap2::{Advice, MmapOptions, MmapRaw};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// The bytes that a processor loads at a time.
#[cfg(target_arch = "x86_64")]
const CACHE_LINE_BYTES: usize = 64;

/// A whole file, mapped read-only. `Send + Sync`.
#[derive(Debug)]
pub struct Map {
    raw: MmapRaw,
}

impl Map {
    /// Maps all of `file`.
    pub(crate) fn new(file: &File) -> io::Result<Self> {
        MmapOptions::new().map_raw_read_only(file).map(|raw| Self { raw })
    }

    /// The number of mapped bytes.
    pub fn len(&self) -> usize {
        self.raw.len()
    }

    /// Whether the file was empty.
    pub fn is_empty(&self) -> bool {
        self.raw.len() == 0
    }

    /// The bytes of a committed range, which never changes again (see the module's invariant 1); `None` if it is not
    /// inside the file.
    pub(crate) fn bytes(&self, range: Range<usize>) -> Option<&[u8]> {
        if range.start > range.end || range.end > self.raw.len() {
            return None;
        }
        // SAFETY: the range was just checked to be inside the mapping, which lives as long as `self`. The module's
        // invariants 1 and 2, kept by `store::read::cursor` and `store::allocator`, guarantee that no code writes to
        // these bytes or shortens the file while the slice lives.
        Some(unsafe { std::slice::from_raw_parts(self.raw.as_ptr().add(range.start), range.len()) })
    }

    /// Requests the kernel to read a range ahead. Advice only: a failure is ignored.
    pub(crate) fn will_need(&self, range: Range<usize>) {
        self.advise(Advice::WillNeed, range);
    }

    /// Has the processor load a range into its caches ahead. Advice only: of pages that are not in memory nothing is loaded.
    pub(crate) fn load_soon(&self, range: Range<usize>) {
        #[cfg(target_arch = "x86_64")]
        for at in range.start / CACHE_LINE_BYTES..range.end.min(self.raw.len()).div_ceil(CACHE_LINE_BYTES) {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: the line begins inside the mapping; a prefetch reads nothing that the program sees, and causes no fault.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.raw.as_ptr().add(at * CACHE_LINE_BYTES).cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = range;
    }

    fn advise(&self, advice: Advice, range: Range<usize>) {
        let end = range.end.min(self.raw.len());
        if range.start < end {
            let _ = self.raw.advise_range(advice, range.start, end - range.start);
        }
    }
}

/// Detects, without a system call, whether this process is a forked child of the one that made the guard: the kernel
/// gives a child the guard's page as zeros. For code that relies on threads, which a forked child does not have.
///
/// ```
/// # #[cfg(feature = "internal")]
/// let guard = chiplog::internal::ForkGuard::new()?;
/// # #[cfg(feature = "internal")]
/// assert!(!guard.is_child());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
#[cfg_attr(not(feature = "internal"), expect(unreachable_pub, reason = "only chiplog's other crates use it"))]
pub struct ForkGuard {
    page: MmapRaw,
}

const PAGE_BYTES: usize = 4096;

#[cfg_attr(not(feature = "internal"), expect(unreachable_pub, reason = "only chiplog's other crates use it"))]
impl ForkGuard {
    /// Creates a guard for this process.
    ///
    /// # Errors
    /// The system gave no page, or the kernel does not support `MADV_WIPEONFORK` (Linux before 4.14).
    pub fn new() -> io::Result<Self> {
        let page = MmapRaw::from(MmapOptions::new().len(PAGE_BYTES).map_anon()?);
        // SAFETY: the page is a private anonymous mapping of our own with exactly this length; the advice changes only
        // what a forked child sees of it.
        unsafe {
            rustix::mm::madvise(page.as_mut_ptr().cast(), PAGE_BYTES, rustix::mm::Advice::LinuxWipeOnFork)?;
        }
        let guard = Self { page };
        guard.word().store(1, Ordering::Relaxed);
        Ok(guard)
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the page is mapped read-write, aligned and larger than a word, lives as long as `self`, and is
        // accessed only through this atomic.
        unsafe { AtomicU32::from_ptr(self.page.as_mut_ptr().cast()) }
    }

    /// Whether this is a forked child of the process that made the guard.
    pub fn is_child(&self) -> bool {
        self.word().load(Ordering::Relaxed) == 0
    }
}
