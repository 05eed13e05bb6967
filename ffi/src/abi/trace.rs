//! Trace: passes chiplog's notices to a callback of the program.

use crate::abi::entry::entry;
use crate::abi::error::{chiplog_error_t, chiplog_status_t, invalid};
use crate::abi::values::Context;
use chiplog_net::notices::{Notices, Severity};
use std::ffi::{CString, c_char, c_void};

/// Something failed and needs attention.
pub const CHIPLOG_SEVERITY_ERROR: u32 = 1;
/// Something is wrong, but chiplog continues.
pub const CHIPLOG_SEVERITY_WARN: u32 = 2;
/// Something changed, such as the leader.
pub const CHIPLOG_SEVERITY_INFO: u32 = 3;
/// Details that help to find a cause.
pub const CHIPLOG_SEVERITY_DEBUG: u32 = 4;
/// Every step.
pub const CHIPLOG_SEVERITY_TRACE: u32 = 5;

/// Called with each notice. `severity` is CHIPLOG_SEVERITY_...; `target` is the part of chiplog that reports; `text`
/// is the notice in UTF-8, usually one line. Both texts are for people and valid only during the call. The callback
/// runs on any thread, on several at once, and on the program's own threads in the middle of a call. chiplog may hold
/// locks that other calls need. So the callback must not block, throw, or call a function that can fail: each of
/// those returns CHIPLOG_INVALID_ARGUMENT there. It should only write a line to a file or a queue.
pub type chiplog_trace_fn = Option<
    unsafe extern "C" fn(context: *mut c_void, severity: u32, target: *const c_char, text: *const c_char),
>;

/// From now on calls `callback` with each notice of at least this `severity`: damage, a lost leader, a peer that
/// refuses. The process has one callback: a new one, or another severity, replaces the last. NULL removes the
/// callback, and `severity` is ignored. Before the first call there is no callback. Notices that no callback receives
/// cost nothing.
/// After this call returns, the previous callback is not running and will not be called any more: its context may be
/// freed. Pass NULL before the library is unloaded or the program's own logging ends. Before exit() this is not
/// necessary. A forked child has no callback until it calls this function itself.
/// Ownership: `context` is borrowed until another call of this function has returned. Any thread, at any time, but
/// not in `callback`. Blocks while the previous callback runs, on any thread: do not hold a lock that it takes.
/// Errors: INVALID_ARGUMENT: an unknown severity; a call within the callback; or the program is written in Rust,
/// links this library and has set a subscriber of `tracing`, which then receives the notices. IO.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_trace(
    callback: chiplog_trace_fn,
    context: *mut c_void,
    severity: u32,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || {
        let context = Context(context);
        let Some(callback) = callback else { return Notices::stop() };
        let Some(severity) = Severity::from_code(severity) else {
            return Err(invalid(format!("{severity} is not one of CHIPLOG_SEVERITY_...")));
        };
        Notices::subscribe(severity, move |notice| {
            let context = context; // moves the whole `Context`, which is `Send`
            let (target, text) = (c_text(notice.target), c_text(notice.text));
            // SAFETY: the caller promised that `callback` may be called with `context` on any thread until this
            // function is called again.
            unsafe { callback(context.0, notice.severity.code(), target.as_ptr(), text.as_ptr()) };
        })
    })
}

fn c_text(text: &str) -> CString {
    let mut bytes = text.as_bytes().to_vec();
    bytes.retain(|byte| *byte != 0);
    CString::new(bytes).unwrap_or_default()
}
