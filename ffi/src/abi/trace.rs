//! Trace: what chiplog notices on its own, told to a callback of the program's.

use crate::abi::entry::entry;
use crate::abi::error::{chiplog_error_t, chiplog_status_t, invalid};
use crate::abi::values::Context;
use chiplog_net::notices::{Notices, Severity};
use std::ffi::{CString, c_char, c_void};

/// Something failed, and somebody has to look.
pub const CHIPLOG_SEVERITY_ERROR: u32 = 1;
/// Something is not as it should be, and chiplog goes on.
pub const CHIPLOG_SEVERITY_WARN: u32 = 2;
/// Something changed, such as the leader.
pub const CHIPLOG_SEVERITY_INFO: u32 = 3;
/// What helps to find out why.
pub const CHIPLOG_SEVERITY_DEBUG: u32 = 4;
/// Every step.
pub const CHIPLOG_SEVERITY_TRACE: u32 = 5;

/// Called with each notice. `severity`: CHIPLOG_SEVERITY_...; `target`: the part of chiplog that noticed it; `text`: what,
/// on the whole one line, UTF-8. Both texts are for people and end with the call. It runs on any thread, several at once,
/// also on the program's own in the middle of a call, and with locks held that other calls need: it must not block, throw,
/// or call a function that can fail, each of which is CHIPLOG_INVALID_ARGUMENT there. It should write a line to a file or a
/// queue, and no more.
#[allow(non_camel_case_types)]
pub type chiplog_trace_fn = Option<
    unsafe extern "C" fn(context: *mut c_void, severity: u32, target: *const c_char, text: *const c_char),
>;

/// Calls `callback` from now on with what chiplog notices on its own that is as serious as `severity` or more: damage, a
/// leader that is gone, a peer that refuses. One callback for the whole process: a new one, or another severity, takes the
/// place of the last. NULL: nobody is told any more; `severity` means nothing then. Before the first call nobody is told,
/// and what is not wanted costs nothing.
/// Once this has returned, the callback before is not running and is not called any more: its context may be freed. Give
/// NULL before the library is unloaded, or the program's own log ends; before exit() it is not needed. A forked child tells
/// nobody until it calls this itself.
/// Ownership: `context` is borrowed until another call of this has returned. Any thread, at any time, but not in
/// `callback`. Blocks as long as the callback before runs, on whatever thread: hold no lock that it takes.
/// Errors: INVALID_ARGUMENT: no such severity; called in the callback; or the program, which is in Rust and has this
/// library linked in, has a subscriber of `tracing` already: it is told instead. IO.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_trace(
    callback: chiplog_trace_fn,
    context: *mut c_void,
    severity: u32,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    let context = Context(context);
    let body = || {
        let Some(callback) = callback else { return Notices::stop() };
        let Some(severity) = Severity::from_code(severity) else {
            return Err(invalid(format!("{severity} is no CHIPLOG_SEVERITY_...")));
        };
        Notices::tell(severity, move |notice| {
            let context = context; // whole: it is what may go to other threads
            let (target, text) = (c_text(notice.target), c_text(notice.text));
            // SAFETY: the caller gave both for each other, to be called on any thread until this function is called again.
            unsafe { callback(context.0, notice.severity.code(), target.as_ptr(), text.as_ptr()) };
        })
    };
    // SAFETY: the caller's word.
    unsafe { entry(error, body) }
}

fn c_text(text: &str) -> CString {
    let mut bytes = text.as_bytes().to_vec();
    bytes.retain(|byte| *byte != 0);
    CString::new(bytes).unwrap_or_default()
}
