//! Guard: what every entry goes through. Nothing unwinds into C: a panic, which is a bug, becomes an error.
//!
//! Rust's own report of a panic reads the environment and writes to the program's standard error. Neither is a library's
//! business: for panics on chiplog's threads and in its calls it is replaced, and the message goes into the error.

use crate::error::{self, chiplog_error_t, chiplog_status_t};
use chiplog::{Error, ErrorKind, Result};
use chiplog_net::notices::Notices;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    /// Whether this thread is in an entry.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    /// What the last panic here said.
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs the body of an entry. Its error is handed out by `error`, if that is wanted.
///
/// # Safety
/// `error` is NULL, or points to a place for a pointer.
pub(crate) unsafe fn entry(
    error: *mut *mut chiplog_error_t,
    body: impl FnOnce() -> Result<()>,
) -> chiplog_status_t {
    let result = refuse_in_trace().and_then(|()| caught(body).unwrap_or_else(Err));
    if !error.is_null() {
        let told = result.as_ref().err().map_or(std::ptr::null_mut(), error::hand_out);
        // SAFETY: not NULL, so by this function's condition a place for a pointer.
        unsafe { error.write(told) };
    }
    result.as_ref().err().map_or(0, error::status)
}

/// Nothing is asked for where locks of chiplog's may be held.
fn refuse_in_trace() -> Result<()> {
    if Notices::is_inside() {
        let what = "called in the callback of chiplog_trace, where nothing of chiplog can be used";
        return Err(Error::new(ErrorKind::InvalidArgument, what));
    }
    Ok(())
}

/// Runs the body of an entry that cannot fail but by a bug, which gives `otherwise`.
pub(crate) fn plain<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    caught(body).unwrap_or(otherwise)
}

fn caught<T>(body: impl FnOnce() -> T) -> Result<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(take_over_reports);
    let was_inside = INSIDE.replace(true);
    // AssertUnwindSafe: what a panic leaves half-done is behind locks and handles that bear it.
    let outcome = catch_unwind(AssertUnwindSafe(body));
    INSIDE.set(was_inside);
    outcome.map_err(|_| {
        let said = SAID.take();
        Error::new(ErrorKind::Poisoned, format!("chiplog panicked, which is a bug of its own: {said}"))
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error() {
        let mut told = std::ptr::null_mut();
        // SAFETY: `told` is a place for a pointer.
        let status = unsafe { entry(&raw mut told, || panic!("for the test")) };
        assert_eq!(status, ErrorKind::Poisoned.code() as i32);
        let error = crate::handle::get::<error::Told>(told).unwrap();
        assert!(error.error.to_string().contains("for the test"));
        drop(crate::handle::close::<error::Told>(told));
        assert_eq!(plain(7, || panic!("again")), 7);
    }
}
