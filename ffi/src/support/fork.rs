//! Fork: identifies this process without a system call, by a page that the kernel zeroes in a forked child.
//!
//! Invariant: a process and one that was forked from it never have the same number.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

const PAGE_BYTES: usize = 4096;

/// The page. Null if it is not mapped yet or cannot be mapped.
static PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
/// Grows from parent to child.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Returns the number of this process, from 1. Where the kernel has no such page (Linux before 4.14) it is the
/// process id.
pub(crate) fn process() -> u64 {
    let mut page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        page = make();
    }
    if page.is_null() {
        return u64::from(std::process::id()) << 32;
    }
    // SAFETY: the page was mapped by `make`, is aligned and larger than a word, and is never unmapped.
    let word = unsafe { &*page };
    match word.load(Ordering::Relaxed) {
        0 => number(word),
        known => known,
    }
}

/// Returns a number for a process that has none yet: it just started, or was just forked.
fn number(word: &AtomicU64) -> u64 {
    let new = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    match word.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => new,
        Err(other) => other,
    }
}

fn make() -> *mut AtomicU64 {
    // SAFETY: maps new pages at an address that the kernel chooses, and touches no memory in use.
    let page = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(ptr::null_mut(), PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    if page == libc::MAP_FAILED {
        return ptr::null_mut();
    }
    // SAFETY: the page just mapped; the advice affects only a child's copy of it.
    let advised = unsafe { libc::madvise(page, PAGE_BYTES, libc::MADV_WIPEONFORK) } == 0;
    let made = page.cast::<AtomicU64>();
    let won =
        advised && PAGE.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire).is_ok();
    if won {
        return made;
    }
    // SAFETY: the page was mapped above and no other code has its address.
    unsafe { libc::munmap(page, PAGE_BYTES) };
    PAGE.load(Ordering::Acquire)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_process_has_one_number() {
        let here = super::process();
        assert!(here > 0);
        assert_eq!(std::thread::spawn(super::process).join().unwrap(), here);
    }
}
