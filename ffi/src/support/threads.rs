//! Threads: chiplog's threads receive none of the program's signals, and a broken connection ends no program.
//!
//! - Code that starts threads runs on a thread with all signals blocked: its children inherit the mask.
//! - Code that writes to connections on the caller's thread runs with SIGPIPE blocked, and removes a SIGPIPE that it
//!   caused.

use chiplog::{Error, ErrorKind, Result};
use std::mem::MaybeUninit;
use std::ptr;

/// Runs `start` on a thread with all signals blocked, and blocks until it returns.
pub(crate) fn without_signals<T: Send>(start: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let blocked = Mask::block(all());
        let thread = std::thread::Builder::new().name("chiplog-start".into()).stack_size(2 << 20);
        let spawned = thread.spawn_scoped(scope, start);
        drop(blocked);
        let failed = |e| Error::new(ErrorKind::Io, format!("cannot start a thread: {e}"));
        let panicked =
            |_| Err(Error::new(ErrorKind::Poisoned, "chiplog panicked, which is a bug in chiplog"));
        spawned.map_err(failed)?.join().unwrap_or_else(panicked)
    })
}

/// Runs `work`, which may write to connections, with SIGPIPE blocked.
pub(crate) fn without_sigpipe<T>(work: impl FnOnce() -> T) -> T {
    let pipe = only(libc::SIGPIPE);
    let was_pending = is_pending(libc::SIGPIPE);
    let blocked = Mask::block(pipe);
    let done = work();
    if !was_pending && is_pending(libc::SIGPIPE) {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: set and time outlive the call; the signal's information is not needed.
        unsafe { libc::sigtimedwait(&raw const pipe, ptr::null_mut(), &raw const now) };
    }
    drop(blocked);
    done
}

fn all() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigfillset writes the whole set.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        set.assume_init()
    }
}

fn only(signal: libc::c_int) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset writes the whole set, then sigaddset may add to it.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        set.assume_init()
    }
}

fn is_pending(signal: libc::c_int) -> bool {
    let mut set = only(signal);
    // SAFETY: `set` is a signal set, which sigpending overwrites and sigismember reads.
    unsafe { libc::sigpending(&raw mut set) == 0 && libc::sigismember(&raw const set, signal) == 1 }
}

/// Blocks signals on this thread while it lives.
struct Mask {
    before: libc::sigset_t,
}

impl Mask {
    fn block(set: libc::sigset_t) -> Self {
        let mut before = set;
        // SAFETY: both sets outlive the call; blocking signals has no other condition.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before) };
        Self { before }
    }
}

impl Drop for Mask {
    fn drop(&mut self) {
        // SAFETY: restores the mask that `block` saved, on the same thread: a `Mask` does not leave its function.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut()) };
    }
}
