//! Fork: identifies this process, without a system call, by the fork guard that it made.
//!
//! Invariant: a process and one that was forked from it never have the same number. A guard is never freed, so that no
//! later one has its address.

use chiplog::internal::ForkGuard;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The guard of this process; in a forked child the parent's, until the first call there. Null: none was made.
static GUARD: AtomicPtr<ForkGuard> = AtomicPtr::new(ptr::null_mut());

/// Returns the number of this process: the address of its guard. Takes no lock, which a forked child could find held
/// for ever. Where the kernel has no such guard (Linux before 4.14), the number is made of the process id.
pub(crate) fn process() -> usize {
    let known = GUARD.load(Ordering::Acquire);
    // SAFETY: null, or a guard that `make` stored, which is never freed.
    let is_own = unsafe { known.as_ref() }.is_some_and(|guard| !guard.is_child());
    if is_own { known.addr() } else { make(known) }
}

fn make(before: *mut ForkGuard) -> usize {
    let Ok(guard) = ForkGuard::new() else {
        return usize::MAX - std::process::id() as usize; // no address of a guard
    };
    let made = Box::into_raw(Box::new(guard));
    match GUARD.compare_exchange(before, made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => made.addr(),
        Err(other) => {
            // SAFETY: made above; another thread's guard was stored, so no other code has this address.
            drop(unsafe { Box::from_raw(made) });
            other.addr()
        }
    }
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
