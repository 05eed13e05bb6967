//! Entry: the wrapper of each function of the header that can fail. It hands out the error and returns its status.

use crate::abi::error;
use crate::abi::error::{chiplog_error_t, chiplog_status_t};
use crate::support::panic_guard::caught;
use chiplog::{Error, ErrorKind, Result};
use chiplog_net::notices::Notices;

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
        let told = result.as_ref().err().map_or(std::ptr::null_mut(), error::hand_out);
        // SAFETY: not NULL, so by this function's condition memory for a pointer.
        unsafe { error.write(told) };
    }
    result.as_ref().err().map_or(0, error::status)
}

/// Refuses all calls in the trace callback, because locks of chiplog's may be held there.
fn refuse_in_trace() -> Result<()> {
    if Notices::is_inside() {
        let what = "called in the callback of chiplog_trace, which must not call functions that can fail";
        return Err(Error::new(ErrorKind::InvalidArgument, what));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::panic_guard::plain;

    #[test]
    fn a_panic_is_an_error() {
        let mut told = std::ptr::null_mut();
        // SAFETY: `told` is memory for a pointer.
        let status = unsafe { entry(&raw mut told, || panic!("for the test")) };
        assert_eq!(status, ErrorKind::Poisoned.code() as i32);
        let error = crate::support::handle_table::get::<error::Told>(told).unwrap();
        assert!(error.error.to_string().contains("for the test"));
        drop(crate::support::handle_table::close::<error::Told>(told));
        assert_eq!(plain(7, || panic!("again")), 7);
    }
}
