//! Entry: the body of each function of the header, apart from its own expression. It guards against panics, hands out the
//! error and the result, and returns the status.
//!
//! | function | the result |
//! |---|---|
//! | [`entry`] | only the status |
//! | [`entry_value`] | a value, through a pointer that may be NULL |
//! | [`entry_handle`] | a new handle, through a pointer that must not be NULL |
//! | [`entry_struct`] | a struct that begins with its size |
//! | [`entry_cause`] | an error that is not this call's own |
//! | [`init`] | options with their defaults |
//!
//! Functions that cannot fail are [`handle_table::query`] and [`handle_table::release`].

use crate::abi::error;
use crate::abi::error::{chiplog_error_t, chiplog_status_t, invalid};
use crate::abi::growing;
use crate::abi::growing::Growing;
use crate::abi::pointers::{out, put};
use crate::support::handle_table;
use crate::support::handle_table::Handle;
use crate::support::panic_guard::caught;
use chiplog::{Error, Result};
use chiplog_net::notices::Notices;
use std::ptr;

/// Runs the body of an entry. Hands out its error through `error`, unless that is NULL.
///
/// # Safety
/// `error` is NULL, or points to memory for a pointer.
pub(crate) unsafe fn entry(
    error: *mut *mut chiplog_error_t,
    body: impl FnOnce() -> Result<()>,
) -> chiplog_status_t {
    let result = refuse_in_trace().and_then(|()| caught(body).unwrap_or_else(Err));
    if !error.is_null() {
        let handle = result.as_ref().err().map_or(ptr::null_mut(), error::hand_out);
        // SAFETY: not NULL, so by this function's condition memory for a pointer.
        unsafe { error.write(handle) };
    }
    result.as_ref().err().map_or(0, error::status)
}

/// Refuses all calls in the trace callback, because locks of chiplog's may be held there.
fn refuse_in_trace() -> Result<()> {
    if Notices::is_inside() {
        let what = "called in the callback of chiplog_trace, which must not call functions that can fail";
        return Err(invalid(what));
    }
    Ok(())
}

/// Writes the body's value to `place`, unless that is NULL.
///
/// # Safety
/// As [`entry`]; `place` is NULL or memory for a `T`.
pub(crate) unsafe fn entry_value<T>(
    error: *mut *mut chiplog_error_t,
    place: *mut T,
    body: impl FnOnce() -> Result<T>,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            put(place, body()?);
            Ok(())
        })
    }
}

/// Writes a new handle of the body's value to `place`, which messages call `name`; if there is none, NULL.
///
/// # Safety
/// As [`entry`]; `place` is NULL or memory for a pointer.
pub(crate) unsafe fn entry_handle<H: Handle, V: Into<H::Value>>(
    error: *mut *mut chiplog_error_t,
    place: *mut *mut H,
    name: &str,
    body: impl FnOnce() -> Result<V>,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe { entry_some_handle(error, place, name, || body().map(Some)) }
}

/// As [`entry_handle`]. Without a value it writes NULL and succeeds.
///
/// # Safety
/// As [`entry_handle`].
pub(crate) unsafe fn entry_some_handle<H: Handle, V: Into<H::Value>>(
    error: *mut *mut chiplog_error_t,
    place: *mut *mut H,
    name: &str,
    body: impl FnOnce() -> Result<Option<V>>,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            out(place, name)?;
            if let Some(value) = body()? {
                place.write(handle_table::insert(value.into())?);
            }
            Ok(())
        })
    }
}

/// Fills the caller's struct, which messages call `name`, with the body's.
///
/// # Safety
/// As [`entry`]; `place` is NULL, or begins with its size in bytes and is that long.
pub(crate) unsafe fn entry_struct<T: Growing>(
    error: *mut *mut chiplog_error_t,
    place: *mut T,
    name: &str,
    body: impl FnOnce() -> Result<T>,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe { entry(error, || growing::fill(place, name, body()?)) }
}

/// Hands out the body's error, if any, through `cause`, unless that is NULL.
///
/// # Safety
/// As [`entry`]; `cause` is NULL or memory for a pointer.
pub(crate) unsafe fn entry_cause(
    error: *mut *mut chiplog_error_t,
    cause: *mut *mut chiplog_error_t,
    body: impl FnOnce() -> Result<Option<Error>>,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            if !cause.is_null() && cause == error {
                return Err(invalid("cause and error must not point to the same place"));
            }
            put(cause, ptr::null_mut());
            let why = body()?.filter(|_| !cause.is_null());
            why.iter().for_each(|why| put(cause, error::hand_out(why)));
            Ok(())
        })
    }
}

/// Writes as much of the defaults as fits into the caller's struct of `size` bytes, and sets its size.
///
/// # Safety
/// `place` is NULL, or has `size` bytes.
pub(crate) unsafe fn init<T: Growing>(place: *mut T, size: usize, defaults: impl FnOnce() -> T) {
    // SAFETY: this function's condition.
    let _ = caught(|| unsafe { growing::init(place, size, defaults()) });
}

#[cfg(test)]
mod tests {
    use super::*;
    use chiplog::ErrorKind;

    #[test]
    fn a_panic_is_an_error() {
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is memory for a pointer.
        let status = unsafe { entry(&raw mut handle, || panic!("for the test")) };
        assert_eq!(status, ErrorKind::Poisoned.code() as i32);
        assert!(handle_table::get(handle).unwrap().error.to_string().contains("for the test"));
        assert_eq!(handle_table::query(handle, 7, |_| panic!("again")), 7);
        handle_table::release(handle);
    }
}
