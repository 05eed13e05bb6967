//! Values: what crosses the boundary apart from handles: slices, records, positions, times, texts, callbacks.

use crate::abi::error;
use crate::abi::error::{chiplog_error_t, chiplog_status_t, invalid};
use crate::support::handle_table;
use chiplog::{Appended, Durability, Result, Start, Timestamp};
use std::ffi::{c_char, c_void};
use std::ptr;
use std::time::Duration;

/// The reader begins at the first record that is not discarded. The value must be 0.
pub const CHIPLOG_START_FIRST: u32 = 0;
/// At the next record to be appended. The value must be 0.
pub const CHIPLOG_START_NEXT: u32 = 1;
/// At the record whose index is the value; this may be the next one to be appended.
pub const CHIPLOG_START_INDEX: u32 = 2;
/// As many records before the end as the value says; at the first one if there are fewer.
pub const CHIPLOG_START_LAST: u32 = 3;
/// At the first record written at this time or later: milliseconds since 1970.
pub const CHIPLOG_START_TIMESTAMP: u32 = 4;

/// Batches are not compressed.
pub const CHIPLOG_CODEC_NONE: u32 = 0;
/// Batches are compressed with lz4.
pub const CHIPLOG_CODEC_LZ4: u32 = 1;
/// Batches are compressed with zstd.
pub const CHIPLOG_CODEC_ZSTD: u32 = 2;

/// It is not known how durable the records are: a server of an earlier version acknowledged them. Also of a command.
pub const CHIPLOG_DURABILITY_UNKNOWN: u32 = 0;
/// The records are on stable storage at a majority of the voters. Of a log on its own: on its disk. In a log that has or
/// had the class "object", their payload can be in the object store alone: then a reference to it is there.
pub const CHIPLOG_DURABILITY_MAJORITY: u32 = 1;
/// The same. Soon after, within about the leader's slice_interval_ms, they are in the object store, too.
pub const CHIPLOG_DURABILITY_MAJORITY_SLICES: u32 = 2;
/// The records are in the object store, and a reference to them is on stable storage at a majority of the voters.
pub const CHIPLOG_DURABILITY_OBJECT: u32 = 3;

/// Bytes of the caller's, laid out as a struct iovec: one record, or a piece of one. `data` may be NULL if `length`
/// is 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct chiplog_slice_t {
    /// The first byte.
    pub data: *const c_void,
    /// The number of bytes.
    pub length: usize,
}

/// The position of records in the log.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct chiplog_appended_t {
    /// Index of the first record. For a command: its answer.
    pub first: u64,
    /// The number of records: at least 1. Their indexes are consecutive.
    pub count: u64,
    /// How durable the records were when they were acknowledged: CHIPLOG_DURABILITY_...
    pub durability: u32,
    /// Not used; 0.
    pub reserved: u32,
}

/// A record that was read. Its bytes are borrowed: see the function that returned it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct chiplog_record_t {
    /// Its index in the log.
    pub index: u64,
    /// When the log accepted it: milliseconds since 1970.
    pub timestamp_ms: u64,
    /// Its bytes; never NULL.
    pub data: *const c_void,
    /// The number of bytes.
    pub length: usize,
}

/// Called once with the outcome of an append or a command. On success `status` is CHIPLOG_OK and `appended` is the
/// position. On failure `appended` is NULL and `error` is the reason. Both are borrowed and valid only during the
/// call. The callback must not throw, block, or wait for the same log or client. The function that takes it says on
/// which thread it runs.
pub type chiplog_outcome_fn = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        status: chiplog_status_t,
        appended: *const chiplog_appended_t,
        error: *const chiplog_error_t,
    ),
>;

/// Called once when there is something to take. It must not throw or block: it should only notify another thread.
pub type chiplog_notify_fn = Option<unsafe extern "C" fn(context: *mut c_void)>;

/// The context of a caller's callback. The header states that any thread may receive it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context(pub(crate) *mut c_void);

// SAFETY: the pointer is only passed to the caller's callback; the header says that callbacks run on other threads.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// Converts a time-out. None means no limit.
pub(crate) fn timeout(ms: u64) -> Option<Duration> {
    (ms != u64::MAX).then(|| Duration::from_millis(ms))
}

/// Converts a time-out that must be a duration: "no limit" becomes the longest duration.
pub(crate) fn duration(ms: u64) -> Duration {
    timeout(ms).unwrap_or(Duration::MAX)
}

/// Converts a duration to milliseconds. The longest duration becomes "no limit".
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn start(kind: u32, value: u64) -> Result<Start> {
    if matches!(kind, CHIPLOG_START_FIRST | CHIPLOG_START_NEXT) && value != 0 {
        let name = if kind == CHIPLOG_START_FIRST { "CHIPLOG_START_FIRST" } else { "CHIPLOG_START_NEXT" };
        let what = format!(
            "{name} takes no value, but the value is {value}: pass 0; CHIPLOG_START_INDEX and CHIPLOG_START_LAST take one"
        );
        return Err(invalid(what));
    }
    match kind {
        CHIPLOG_START_FIRST => Ok(Start::First),
        CHIPLOG_START_NEXT => Ok(Start::Next),
        CHIPLOG_START_INDEX => Ok(Start::Index(value.into())),
        CHIPLOG_START_LAST => Ok(Start::Last(value)),
        CHIPLOG_START_TIMESTAMP => Ok(Start::Timestamp(Timestamp(value))),
        _ => Err(invalid(format!("{kind} is not one of CHIPLOG_START_..."))),
    }
}

pub(crate) fn codec(code: u32) -> Result<chiplog::Codec> {
    match code {
        CHIPLOG_CODEC_NONE => Ok(chiplog::Codec::None),
        CHIPLOG_CODEC_LZ4 => Ok(chiplog::Codec::Lz4),
        CHIPLOG_CODEC_ZSTD => Ok(chiplog::Codec::Zstd),
        _ => Err(invalid(format!("{code} is not one of CHIPLOG_CODEC_..."))),
    }
}

pub(crate) fn appended(appended: Appended) -> chiplog_appended_t {
    chiplog_appended_t {
        first: appended.first.get(),
        count: appended.count.into(),
        durability: durability(appended.durability),
        reserved: 0,
    }
}

fn durability(durability: Option<Durability>) -> u32 {
    match durability {
        Some(Durability::Majority) => CHIPLOG_DURABILITY_MAJORITY,
        Some(Durability::MajoritySlices) => CHIPLOG_DURABILITY_MAJORITY_SLICES,
        Some(Durability::Object) => CHIPLOG_DURABILITY_OBJECT,
        _ => CHIPLOG_DURABILITY_UNKNOWN,
    }
}

/// Returns the name of a durability, CHIPLOG_DURABILITY_...: "majority", "majority+slices" or "object"; else "unknown".
/// Ownership: the text is valid for ever. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_durability_name(durability: u32) -> *const c_char {
    let name = match durability {
        CHIPLOG_DURABILITY_MAJORITY => c"majority",
        CHIPLOG_DURABILITY_MAJORITY_SLICES => c"majority+slices",
        CHIPLOG_DURABILITY_OBJECT => c"object",
        _ => c"unknown",
    };
    name.as_ptr()
}

/// The position of one record, or an answer.
pub(crate) fn one(appended: Appended) -> chiplog_appended_t {
    chiplog_appended_t { count: 1, ..self::appended(appended) }
}

/// The position of a command that has none.
pub(crate) fn nothing() -> chiplog_appended_t {
    chiplog_appended_t { count: 1, ..Default::default() }
}

/// Checks the caller's callback, and returns what calls it with an outcome.
///
/// # Safety
/// `callback` is NULL, or may be called once with `context`, on any thread.
pub(crate) unsafe fn outcome(
    callback: chiplog_outcome_fn,
    context: *mut c_void,
) -> Result<impl FnOnce(Result<chiplog_appended_t>) + Send + 'static> {
    let Some(callback) = callback else { return Err(invalid("callback is NULL")) };
    let context = Context(context);
    Ok(move |result: Result<chiplog_appended_t>| {
        let context = context; // moves the whole `Context`, which is `Send`
        match result {
            // SAFETY: this function's condition; what is pointed to outlives the call.
            Ok(appended) => unsafe { callback(context.0, 0, &raw const appended, ptr::null()) },
            Err(error) => {
                let handle = error::hand_out(&error);
                // SAFETY: as above.
                unsafe { callback(context.0, error::status(&error), ptr::null(), handle) };
                drop(handle_table::close(handle));
            }
        }
    })
}

/// Copies a text to a buffer of fixed length with a NUL at its end. Cuts the text if it is longer.
pub(crate) fn fixed<const N: usize>(text: &str) -> [c_char; N] {
    let mut place = [0; N];
    for (to, from) in place[..N - 1].iter_mut().zip(text.bytes().filter(|byte| *byte != 0)) {
        *to = from as c_char;
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::error::said;
    use std::ffi::CStr;

    #[test]
    fn durability_has_the_name_of_rust() {
        for known in [Durability::Majority, Durability::MajoritySlices, Durability::Object] {
            // SAFETY: the function returns a C string that is valid for ever.
            let name = unsafe { CStr::from_ptr(chiplog_durability_name(durability(Some(known)))) };
            assert_eq!(name.to_str().unwrap(), known.name());
        }
        assert_eq!(durability(None), CHIPLOG_DURABILITY_UNKNOWN);
    }

    /// A value was silently ignored where it means nothing.
    #[test]
    fn a_start_without_a_value_refuses_one() {
        assert_eq!(start(CHIPLOG_START_FIRST, 0).unwrap(), Start::First);
        assert_eq!(start(CHIPLOG_START_NEXT, 0).unwrap(), Start::Next);
        assert_eq!(start(CHIPLOG_START_LAST, 0).unwrap(), Start::Last(0));
        assert!(
            said(start(CHIPLOG_START_FIRST, 7))
                .contains("CHIPLOG_START_FIRST takes no value, but the value is 7")
        );
        assert!(said(start(CHIPLOG_START_NEXT, 1)).contains("CHIPLOG_START_NEXT"));
        assert!(said(start(99, 0)).contains("99"));
    }
}
