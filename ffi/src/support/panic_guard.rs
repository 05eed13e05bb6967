//! Panic guard: no panic unwinds into C. A panic is a bug, and becomes an error.
//!
//! Rust's own report of a panic reads the environment and writes to the program's standard error. A library must do
//! neither. For panics on chiplog's threads and in its calls the report is replaced, and the message becomes part of
//! the error.

use chiplog::{Error, ErrorKind, Result};
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

thread_local! {
    /// Whether this thread is inside an entry.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    /// The message of the last panic on this thread.
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs the body of an entry that can fail only by a bug. A panic returns `otherwise`.
pub(crate) fn plain<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    caught(body).unwrap_or(otherwise)
}

pub(crate) fn caught<T>(body: impl FnOnce() -> T) -> Result<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(take_over_reports);
    let was_inside = INSIDE.replace(true);
    // AssertUnwindSafe: state that a panic leaves half-changed is behind locks and handles that tolerate it.
    let outcome = catch_unwind(AssertUnwindSafe(body));
    INSIDE.set(was_inside);
    outcome.map_err(|_| {
        let said = SAID.take();
        Error::new(ErrorKind::Poisoned, format!("chiplog panicked, which is a bug in chiplog: {said}"))
    })
}

/// Locks a value, also after a panic: each holder of these locks leaves a value that the next one can use.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take_over_reports() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current();
        let is_ours = thread.name().is_some_and(|name| name.starts_with("chiplog-"));
        if INSIDE.try_with(Cell::get).unwrap_or(false) {
            let _ = SAID.try_with(|said| *said.borrow_mut() = panic.to_string());
        } else if !is_ours {
            before(panic);
        }
    }));
}
