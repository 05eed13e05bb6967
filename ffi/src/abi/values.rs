//! Values: what crosses the boundary apart from handles: slices, times, texts, structs that grow, callbacks.
//!
//! A struct that begins with `size` may be longer in a later version. The caller states the length of its own struct,
//! and chiplog reads or writes no more than that.

use crate::abi::error::{chiplog_error_t, chiplog_status_t, invalid};
use chiplog::{Appended, Error, Result, Start, Timestamp};
use std::ffi::{CStr, c_char, c_void};
use std::mem::size_of;
use std::ptr;
use std::slice;
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

/// Bytes of the caller's, laid out as a struct iovec: one record, or a piece of one. `data` may be NULL if `length`
/// is 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct chiplog_slice_t {
    /// The first byte.
    pub data: *const c_void,
    /// The number of bytes.
    pub length: usize,
}

/// The position of records in the log.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub struct chiplog_appended_t {
    /// Index of the first record. For a command: its answer.
    pub first: u64,
    /// The number of records: at least 1. Their indexes are consecutive.
    pub count: u64,
}

/// A record that was read. Its bytes are borrowed: see the function that returned it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
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
#[allow(non_camel_case_types)]
pub type chiplog_outcome_fn = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        status: chiplog_status_t,
        appended: *const chiplog_appended_t,
        error: *const chiplog_error_t,
    ),
>;

/// Called once when there is something to take. It must not throw or block: it should only notify another thread.
#[allow(non_camel_case_types)]
pub type chiplog_notify_fn = Option<unsafe extern "C" fn(context: *mut c_void)>;

/// The context of a caller's callback. The header states that any thread may receive it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context(pub(crate) *mut c_void);

// SAFETY: the pointer is only passed to the caller's callback; the header says that callbacks run on other threads.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// # Safety
/// `text` is NULL or a C string.
pub(crate) unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<&'a str> {
    if text.is_null() {
        return Err(invalid(format!("{name} is NULL")));
    }
    // SAFETY: not NULL, so by this function's condition a C string.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| invalid(format!("{name} is not UTF-8")))
}

/// Reads a text that may be NULL, which means empty.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn text_or_none(pointer: *const c_char, name: &str) -> Result<String> {
    if pointer.is_null() {
        return Ok(String::new());
    }
    // SAFETY: this function's condition.
    unsafe { text(pointer, name) }.map(str::to_owned)
}

/// Reads the bytes of a pair of arguments named `data` and `length`.
///
/// # Safety
/// `data` is NULL, or points to `length` bytes that do not change during the call.
pub(crate) unsafe fn bytes<'a>(data: *const c_void, length: usize) -> Result<&'a [u8]> {
    // SAFETY: this function's condition.
    unsafe { bytes_of(data, length, || ("data".to_owned(), "length".to_owned())) }
}

/// Reads the bytes of a pair with other names. `names` is called only if there is an error.
///
/// # Safety
/// As [`bytes`].
pub(crate) unsafe fn bytes_of<'a>(
    data: *const c_void,
    length: usize,
    names: impl Fn() -> (String, String),
) -> Result<&'a [u8]> {
    if length == 0 {
        return Ok(&[]);
    }
    if data.is_null() {
        let (data, its_length) = names();
        return Err(invalid(format!("{data} is NULL, and {its_length} is {length}, not 0")));
    }
    if length > isize::MAX as usize {
        return Err(invalid(format!("{} is {length}: more bytes than memory can hold", names().1)));
    }
    // SAFETY: not NULL and not too long, so by this function's condition that many bytes.
    Ok(unsafe { slice::from_raw_parts(data.cast(), length) })
}

/// `name` is the name of the argument that holds the slices; the argument with their number is `count`.
///
/// # Safety
/// `slices` is NULL, or points to `count` slices, each as [`bytes`] requires.
pub(crate) unsafe fn slices<'a>(
    slices: *const chiplog_slice_t,
    count: usize,
    name: &str,
) -> Result<Vec<&'a [u8]>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if slices.is_null() {
        return Err(invalid(format!("{name} is NULL, and count is {count}, not 0")));
    }
    if !slices.is_aligned() {
        return Err(invalid(format!("{name} is {slices:?}, which is not aligned for chiplog_slice_t")));
    }
    if count > isize::MAX as usize / size_of::<chiplog_slice_t>() {
        return Err(invalid(format!("count is {count}: more slices than memory can hold")));
    }
    // SAFETY: not NULL and aligned, so by this function's condition that many slices.
    let slices = unsafe { slice::from_raw_parts(slices, count) };
    let each = slices.iter().enumerate().map(|(n, one)| {
        let names = || (format!("{name}[{n}].data"), format!("{name}[{n}].length"));
        // SAFETY: this function's condition.
        unsafe { bytes_of(one.data, one.length, names) }
    });
    each.collect()
}

/// Writes a result, unless `place` is NULL.
///
/// # Safety
/// `place` is NULL or memory for a `T`.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: not NULL, so by this function's condition memory for a `T`.
        unsafe { place.write(value) };
    }
}

/// Checks the memory for a handle and writes NULL to it first, so that no caller mistakes an old handle for a new
/// one.
///
/// # Safety
/// `place` is NULL or memory for a pointer.
pub(crate) unsafe fn out<T>(place: *mut *mut T, name: &str) -> Result<*mut *mut T> {
    if place.is_null() {
        return Err(invalid(format!("{name} is NULL")));
    }
    // SAFETY: not NULL, so by this function's condition memory for a pointer.
    unsafe { place.write(ptr::null_mut()) };
    Ok(place)
}

/// A struct of the header that begins with `size`, has no padding that matters, and is valid for any bytes. Function
/// pointers are the exception: C sets them.
pub(crate) trait Sized0: Copy {
    /// The length of the caller's struct.
    fn size(&mut self) -> &mut usize;
}

/// Returns the caller's options on top of the defaults. NULL means the defaults.
///
/// # Safety
/// `given` is NULL, or begins with its size in bytes and is that long.
pub(crate) unsafe fn options<T: Sized0>(given: *const T, defaults: T) -> Result<T> {
    if given.is_null() {
        return Ok(defaults);
    }
    // SAFETY: not NULL, so by this function's condition it begins with its size.
    let size = unsafe { given.cast::<usize>().read_unaligned() };
    if !(size_of::<usize>()..=1 << 16).contains(&size) {
        return Err(invalid(format!(
            "the options' size is {size}: fill the options with their init function first"
        )));
    }
    let known = size.min(size_of::<T>());
    let mut options = defaults;
    // SAFETY: `given` is `size` bytes long by this function's condition, `options` at least `known`.
    unsafe { ptr::copy_nonoverlapping(given.cast::<u8>(), (&raw mut options).cast(), known) };
    // SAFETY: as above: the bytes behind `known` are the caller's too.
    let more = unsafe { slice::from_raw_parts(given.cast::<u8>().add(known), size - known) };
    if more.iter().any(|byte| *byte != 0) {
        return Err(invalid(
            "the options set a field that this library does not know: it is older than the program's chiplog.h",
        ));
    }
    Ok(options)
}

/// Writes as much of a struct as fits into the caller's, and sets its size.
///
/// # Safety
/// `place` is NULL, or has `size` bytes.
pub(crate) unsafe fn init<T: Sized0>(place: *mut T, size: usize, mut defaults: T) {
    if place.is_null() || size < size_of::<usize>() {
        return;
    }
    let known = size.min(size_of::<T>());
    *defaults.size() = size;
    // SAFETY: `place` is `size` bytes long by this function's condition.
    unsafe {
        ptr::write_bytes(place.cast::<u8>(), 0, size);
        ptr::copy_nonoverlapping((&raw const defaults).cast::<u8>(), place.cast::<u8>(), known);
    }
}

/// Fills a struct whose `size` the caller has set.
///
/// # Safety
/// `place` is NULL, or begins with its size in bytes and is that long.
pub(crate) unsafe fn fill<T: Sized0>(place: *mut T, name: &str, mut value: T) -> Result<()> {
    if place.is_null() {
        return Err(invalid(format!("{name} is NULL")));
    }
    // SAFETY: not NULL, so by this function's condition it begins with its size.
    let size = unsafe { place.cast::<usize>().read_unaligned() };
    if !(size_of::<usize>()..=1 << 16).contains(&size) {
        return Err(invalid(format!("{name}->size is {size}: set it to the size of the struct first")));
    }
    *value.size() = size;
    let known = size.min(size_of::<T>());
    // SAFETY: `place` is `size` bytes long by this function's condition.
    unsafe { ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), place.cast::<u8>(), known) };
    // Fields of a later header that this library does not know become 0, as in options.
    // SAFETY: as above; `known` is at most `size`.
    unsafe { place.cast::<u8>().add(known).write_bytes(0, size - known) };
    Ok(())
}

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
    chiplog_appended_t { first: appended.first.get(), count: appended.count.into() }
}

/// The position of one record, or an answer.
pub(crate) fn one(index: chiplog::Index) -> chiplog_appended_t {
    chiplog_appended_t { first: index.get(), count: 1 }
}

/// Calls a caller's callback with an outcome.
///
/// # Safety
/// `callback` may be called with `context`.
pub(crate) unsafe fn tell(
    callback: chiplog_outcome_fn,
    context: Context,
    result: std::result::Result<chiplog_appended_t, Error>,
) {
    let Some(callback) = callback else { return };
    match result {
        // SAFETY: this function's condition; what is pointed to outlives the call.
        Ok(appended) => unsafe { callback(context.0, 0, &raw const appended, ptr::null()) },
        Err(error) => {
            let told = crate::abi::error::hand_out(&error);
            // SAFETY: as above.
            unsafe { callback(context.0, crate::abi::error::status(&error), ptr::null(), told) };
            drop(crate::support::handle_table::close::<crate::abi::error::Told>(told));
        }
    }
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

    fn said<T: std::fmt::Debug>(result: Result<T>) -> String {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), chiplog::ErrorKind::InvalidArgument);
        error.to_string()
    }

    /// "5 bytes at 0x0" and "3 slices at 0x0" did not name the argument or what is wrong with it.
    #[test]
    fn errors_of_bytes_and_slices_name_the_argument() {
        let nothing: *const c_void = ptr::null();
        let text = c"text".as_ptr().cast();
        let slice = |data, length| chiplog_slice_t { data, length };
        let given = [slice(text, 4), slice(nothing, 0), slice(nothing, 5)];
        // SAFETY: each pointer that is not NULL is as long as stated, or only checked.
        unsafe {
            assert_eq!(bytes(nothing, 0).unwrap(), b"");
            assert_eq!(bytes(text, 4).unwrap(), b"text");
            assert_eq!(slices(given.as_ptr(), 2, "records").unwrap(), [&b"text"[..], b""]);
            assert_eq!(said(bytes(nothing, 5)), "data is NULL, and length is 5, not 0");
            assert!(said(bytes(text, usize::MAX)).starts_with("length is 18446744073709551615:"));
            assert_eq!(said(slices(ptr::null(), 3, "pieces")), "pieces is NULL, and count is 3, not 0");
            let last = said(slices(given.as_ptr(), 3, "records"));
            assert_eq!(last, "records[2].data is NULL, and records[2].length is 5, not 0");
            assert!(said(slices(given.as_ptr(), usize::MAX, "records")).starts_with("count is "));
            let odd = given.as_ptr().cast::<u8>().add(1).cast();
            assert!(said(slices(odd, 1, "records")).contains("aligned"));
        }
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
