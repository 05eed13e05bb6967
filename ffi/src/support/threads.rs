//! Threads: chiplog's own take none of the program's signals, and a broken connection ends no program.
//!
//! - What starts threads is called on a thread that has all signals blocked: its children have them blocked too.
//! - What writes to connections on the caller's thread is called with SIGPIPE blocked, and takes back one that it caused.

use chiplog::{Error, ErrorKind, Result};
use std::mem::MaybeUninit;
use std::ptr;

/// Calls `start` on a thread without signals, and waits for it.
pub(crate) fn without_signals<T: Send>(start: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let blocked = Mask::block(all());
        let thread = std::thread::Builder::new().name("chiplog-start".into()).stack_size(2 << 20);
        let spawned = thread.spawn_scoped(scope, start);
        drop(blocked);
        let failed = |e| Error::new(ErrorKind::Io, format!("cannot start a thread: {e}"));
        let panicked =
            |_| Err(Error::new(ErrorKind::Poisoned, "chiplog panicked, which is a bug of its own"));
        spawned.map_err(failed)?.join().unwrap_or_else(panicked)
    })
}

/// Calls `work`, which may write to connections.
pub(crate) fn without_sigpipe<T>(work: impl FnOnce() -> T) -> T {
    let pipe = only(libc::SIGPIPE);
    let was_pending = is_pending(libc::SIGPIPE);
    let blocked = Mask::block(pipe);
    let done = work();
    if !was_pending && is_pending(libc::SIGPIPE) {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: set and time outlive the call; nothing is wanted of the signal's information.
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
    // SAFETY: sigemptyset writes the whole set, then it is one to add to.
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

/// Signals that are blocked on this thread as long as it lives.
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
        // SAFETY: puts back what `block` was told, on the same thread: a `Mask` does not leave its function.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut()) };
    }
}
