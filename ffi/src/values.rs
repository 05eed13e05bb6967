//! Values: what goes over the boundary besides handles: slices, times, texts, structs that grow, callbacks.
//!
//! A struct that begins with `size` may be longer in a later version: the caller says how long its own is, and only so much
//! is read or written.

use crate::error::{chiplog_error_t, chiplog_status_t, invalid};
use chiplog::{Appended, Error, Result, Start, Timestamp};
use std::ffi::{CStr, c_char, c_void};
use std::mem::size_of;
use std::ptr;
use std::slice;
use std::time::Duration;

/// Where a reader begins: at the first record that is not discarded.
pub const CHIPLOG_START_FIRST: u32 = 0;
/// At the next record to come.
pub const CHIPLOG_START_NEXT: u32 = 1;
/// At the record whose index is the value; it may be the next one to come.
pub const CHIPLOG_START_INDEX: u32 = 2;
/// So many records before the end as the value says.
pub const CHIPLOG_START_LAST: u32 = 3;
/// At the first record that was written at this time or later: milliseconds since 1970.
pub const CHIPLOG_START_TIMESTAMP: u32 = 4;

/// Batches are not compressed.
pub const CHIPLOG_CODEC_NONE: u32 = 0;
/// Batches are compressed with lz4.
pub const CHIPLOG_CODEC_LZ4: u32 = 1;
/// Batches are compressed with zstd.
pub const CHIPLOG_CODEC_ZSTD: u32 = 2;

/// Bytes of the caller's, as a struct iovec: one record, or a piece of one. `data` may be NULL if `length` is 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct chiplog_slice_t {
    /// Where they begin.
    pub data: *const c_void,
    /// How many.
    pub length: usize,
}

/// Where records stand in the log.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub struct chiplog_appended_t {
    /// Index of the first record. Of a command's answer: the answer.
    pub first: u64,
    /// How many records: at least 1. They follow each other without a gap.
    pub count: u64,
}

/// A record that was read. Its bytes are borrowed: see the function that gave it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct chiplog_record_t {
    /// Its place in the log.
    pub index: u64,
    /// When the log took it: milliseconds since 1970.
    pub timestamp_ms: u64,
    /// Its bytes; never NULL.
    pub data: *const c_void,
    /// How many.
    pub length: usize,
}

/// Called once with what became of an append or a command: `status` is CHIPLOG_OK and `appended` is where it stands, or
/// `appended` is NULL and `error` says why not. Both are borrowed and end with the call. It must not throw, nor block, nor
/// wait for anything of the same log or client; see the function that takes it for the thread it runs on.
#[allow(non_camel_case_types)]
pub type chiplog_outcome_fn = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        status: chiplog_status_t,
        appended: *const chiplog_appended_t,
        error: *const chiplog_error_t,
    ),
>;

/// Called once when there is something to be taken. It must not throw nor block: it passes the word on.
#[allow(non_camel_case_types)]
pub type chiplog_notify_fn = Option<unsafe extern "C" fn(context: *mut c_void)>;

/// What a caller gave for its callback. The caller says in the header's terms that any thread may have it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context(pub(crate) *mut c_void);

// SAFETY: the pointer is only handed back to the caller's callback; the header says that callbacks run on other threads.
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

/// A text that may be NULL: then it is empty.
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

/// # Safety
/// `data` is NULL, or `length` bytes stand there that nobody changes during the call.
pub(crate) unsafe fn bytes<'a>(data: *const c_void, length: usize) -> Result<&'a [u8]> {
    if length == 0 {
        return Ok(&[]);
    }
    if data.is_null() || length > isize::MAX as usize {
        return Err(invalid(format!("{length} bytes at {data:?}")));
    }
    // SAFETY: not NULL and not too long, so by this function's condition so many bytes.
    Ok(unsafe { slice::from_raw_parts(data.cast(), length) })
}

/// # Safety
/// `slices` is NULL, or `count` slices stand there, each as [`bytes`] wants it.
pub(crate) unsafe fn slices<'a>(slices: *const chiplog_slice_t, count: usize) -> Result<Vec<&'a [u8]>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if slices.is_null() || !slices.is_aligned() || count > isize::MAX as usize / size_of::<chiplog_slice_t>()
    {
        return Err(invalid(format!("{count} slices at {slices:?}")));
    }
    // SAFETY: not NULL and aligned, so by this function's condition so many slices.
    let slices = unsafe { slice::from_raw_parts(slices, count) };
    // SAFETY: this function's condition.
    slices.iter().map(|one| unsafe { bytes(one.data, one.length) }).collect()
}

/// Writes a result out, if that is wanted.
///
/// # Safety
/// `place` is NULL or a place for a `T`.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: not NULL, so by this function's condition a place for it.
        unsafe { place.write(value) };
    }
}

/// A place that a handle is to be written to: NULL is written first, so that nobody takes an old one for new.
///
/// # Safety
/// `place` is NULL or a place for a pointer.
pub(crate) unsafe fn out<T>(place: *mut *mut T, name: &str) -> Result<*mut *mut T> {
    if place.is_null() {
        return Err(invalid(format!("{name} is NULL")));
    }
    // SAFETY: not NULL, so by this function's condition a place for a pointer.
    unsafe { place.write(ptr::null_mut()) };
    Ok(place)
}

/// A struct of the header that begins with `size`, has no padding that matters, and is valid whatever its bytes are, but
/// for function pointers, which C gives.
pub(crate) trait Sized0: Copy {
    /// How long the caller's is.
    fn size(&mut self) -> &mut usize;
}

/// What the caller gave, over the defaults. NULL: the defaults.
///
/// # Safety
/// `given` is NULL, or begins with a size in bytes and is as long as that says.
pub(crate) unsafe fn options<T: Sized0>(given: *const T, defaults: T) -> Result<T> {
    if given.is_null() {
        return Ok(defaults);
    }
    // SAFETY: not NULL, so by this function's condition it begins with its size.
    let size = unsafe { given.cast::<usize>().read_unaligned() };
    if !(size_of::<usize>()..=1 << 16).contains(&size) {
        return Err(invalid(format!("options of size {size}: fill them with their init function first")));
    }
    let known = size.min(size_of::<T>());
    let mut options = defaults;
    // SAFETY: `given` is `size` bytes long by this function's condition, `options` at least `known`.
    unsafe { ptr::copy_nonoverlapping(given.cast::<u8>(), (&raw mut options).cast(), known) };
    // SAFETY: as above: what is behind `known` is the caller's too.
    let more = unsafe { slice::from_raw_parts(given.cast::<u8>().add(known), size - known) };
    if more.iter().any(|byte| *byte != 0) {
        return Err(invalid("options of a newer chiplog.h than this library knows"));
    }
    Ok(options)
}

/// Writes as much of a struct as the caller's is long, and sets its size.
///
/// # Safety
/// `place` is NULL, or `size` bytes.
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

/// Fills a struct in which the caller has set `size`.
///
/// # Safety
/// `place` is NULL, or begins with its size in bytes and is as long as that says.
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
    // What a later header has and this library does not know is 0, as in options.
    // SAFETY: as above; `known` is at most `size`.
    unsafe { place.cast::<u8>().add(known).write_bytes(0, size - known) };
    Ok(())
}

/// A time-out: None is for ever.
pub(crate) fn timeout(ms: u64) -> Option<Duration> {
    (ms != u64::MAX).then(|| Duration::from_millis(ms))
}

/// A time-out of what always has one: for ever is the longest there is.
pub(crate) fn duration(ms: u64) -> Duration {
    timeout(ms).unwrap_or(Duration::MAX)
}

/// As milliseconds, for ever as for ever.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn start(kind: u32, value: u64) -> Result<Start> {
    match kind {
        CHIPLOG_START_FIRST => Ok(Start::First),
        CHIPLOG_START_NEXT => Ok(Start::Next),
        CHIPLOG_START_INDEX => Ok(Start::Index(value.into())),
        CHIPLOG_START_LAST => Ok(Start::Last(value)),
        CHIPLOG_START_TIMESTAMP => Ok(Start::Timestamp(Timestamp(value))),
        _ => Err(invalid(format!("{kind} is no CHIPLOG_START_..."))),
    }
}

pub(crate) fn codec(code: u32) -> Result<chiplog::Codec> {
    match code {
        CHIPLOG_CODEC_NONE => Ok(chiplog::Codec::None),
        CHIPLOG_CODEC_LZ4 => Ok(chiplog::Codec::Lz4),
        CHIPLOG_CODEC_ZSTD => Ok(chiplog::Codec::Zstd),
        _ => Err(invalid(format!("{code} is no CHIPLOG_CODEC_..."))),
    }
}

pub(crate) fn appended(appended: Appended) -> chiplog_appended_t {
    chiplog_appended_t { first: appended.first.get(), count: appended.count.into() }
}

/// One record, or an answer.
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
            let told = crate::error::hand_out(&error);
            // SAFETY: as above.
            unsafe { callback(context.0, crate::error::status(&error), ptr::null(), told) };
            drop(crate::handle::close::<crate::error::Told>(told));
        }
    }
}

/// A text in a place of fixed length, NUL behind it; cut if it is longer.
pub(crate) fn fixed<const N: usize>(text: &str) -> [c_char; N] {
    let mut place = [0; N];
    for (to, from) in place[..N - 1].iter_mut().zip(text.bytes().filter(|byte| *byte != 0)) {
        *to = from as c_char;
    }
    place
}
