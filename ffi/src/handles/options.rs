//! Options of the embedded log, as the header shows them, and how they become Rust's.

use crate::abi::error::invalid;
use crate::abi::values::{Context, Sized0, duration, init, millis, options};
use crate::support::panic_guard::plain;
use chiplog::{Clock, Options, ReadMode, Result, Timestamp};
use std::ffi::c_void;
use std::sync::Arc;

/// Gives the time in milliseconds since 1970. Called on chiplog's threads, and several may call at once; it must not throw
/// nor block.
#[allow(non_camel_case_types)]
pub type chiplog_clock_fn = Option<unsafe extern "C" fn(context: *mut c_void) -> u64>;

/// How a log is opened. Fill it with chiplog_log_options_init, then change what is to be different. Limits are checked when
/// the log is opened; the error names the one that is out of bounds. Options are not stored in the log.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, missing_debug_implementations)]
pub struct chiplog_log_options_t {
    /// sizeof(chiplog_log_options_t), as the caller knows it.
    pub size: usize,
    /// Make a new log when the directory holds none: 1 or 0. Default 1. The directory is made if it is missing, and so are
    /// those above it.
    pub create: u8,
    /// Read by pread into buffers instead of through mappings: 1 or 0. Default 0. With mappings the process gets SIGBUS when
    /// the device cannot read a page, or another program shortens a file.
    pub read_by_copy: u8,
    /// How many of a session's latest batches the log remembers the indexes of: 1 to 1,024, default 128.
    pub session_window: u16,
    /// Size of a segment file: 64 KiB to 1 GiB, default 64 MiB. A log takes at least three of them on disk. Below 40 MiB
    /// other limits have to go down with it: chiplog_log_options_for_segments fills options that fit.
    pub segment_bytes: u32,
    /// The largest record, default 16 MiB.
    pub record_bytes_max: u32,
    /// The largest encoded batch, default 32 MiB. Must fit a segment, of which an eighth goes to other things.
    pub batch_bytes_max: u32,
    /// How much one block gathers, default 4 MiB.
    pub block_bytes_max: u32,
    /// How far a sequential reader reads ahead, default 8 MiB; 0 leaves it to the kernel.
    pub prefetch_bytes: u32,
    /// The most exactly-once sessions open at a time, default 4,096.
    pub sessions_max: u32,
    /// Not used; 0.
    pub reserved: u32,
    /// The most bytes of retained blocks: beyond it appends are CHIPLOG_FULL. 0, the default: until the disk is full.
    pub capacity_bytes: u64,
    /// Keep at most about this many bytes: whole segments are discarded from the front. 0, the default: keep all.
    pub retention_bytes: u64,
    /// Discard segments whose newest record is older than this. 0, the default: keep all.
    pub retention_age_ms: u64,
    /// Bytes that may wait for the writer, default 64 MiB; beyond it appends wait.
    pub queue_bytes_max: u64,
    /// Appends that may wait for the writer, default 65,536; beyond it appends wait.
    pub queue_appends_max: u64,
    /// How long an append waits for room in the queue before it fails as CHIPLOG_BUSY. Default 60 s.
    pub queue_timeout_ms: u64,
    /// A session that sends nothing for so long expires. Default 24 h.
    pub session_idle_max_ms: u64,
    /// Where timestamps come from; NULL, the default: the machine's clock.
    pub clock: chiplog_clock_fn,
    /// Handed to `clock`. Borrowed until the log is closed.
    pub clock_context: *mut c_void,
}

impl Sized0 for chiplog_log_options_t {
    fn size(&mut self) -> &mut usize {
        &mut self.size
    }
}

/// A clock of the caller's.
#[derive(Debug)]
struct CallersClock {
    now: unsafe extern "C" fn(*mut c_void) -> u64,
    context: Context,
}

impl Clock for CallersClock {
    fn now(&self) -> Timestamp {
        // SAFETY: the caller gave function and context for each other, to be called until the log is closed.
        Timestamp(unsafe { (self.now)(self.context.0) })
    }
}

pub(crate) fn shown(options: &Options) -> chiplog_log_options_t {
    chiplog_log_options_t {
        size: size_of::<chiplog_log_options_t>(),
        create: options.create.into(),
        read_by_copy: (options.read_mode == ReadMode::Read).into(),
        session_window: options.session_window,
        segment_bytes: options.segment_bytes,
        record_bytes_max: options.record_bytes_max,
        batch_bytes_max: options.batch_bytes_max,
        block_bytes_max: options.block_bytes_max,
        prefetch_bytes: options.prefetch_bytes,
        sessions_max: options.sessions_max,
        reserved: 0,
        capacity_bytes: options.capacity_bytes.unwrap_or(0),
        retention_bytes: options.retention_bytes.unwrap_or(0),
        retention_age_ms: options.retention_age.map_or(0, millis),
        queue_bytes_max: options.queue_bytes_max as u64,
        queue_appends_max: options.queue_appends_max as u64,
        queue_timeout_ms: millis(options.queue_timeout),
        session_idle_max_ms: millis(options.session_idle_max),
        clock: None,
        clock_context: std::ptr::null_mut(),
    }
}

/// Rust's options out of what the caller gave; NULL: the defaults.
///
/// # Safety
/// As [`options`]; the clock may be called with its context as long as the log is open.
pub(crate) unsafe fn read(given: *const chiplog_log_options_t) -> Result<Options> {
    // SAFETY: this function's condition.
    let given = unsafe { options(given, shown(&Options::default())) }?;
    if given.create > 1 || given.read_by_copy > 1 || given.reserved != 0 {
        return Err(invalid("log options: create and read_by_copy have to be 0 or 1, reserved 0"));
    }
    let some = |value: u64| (value != 0).then_some(value);
    let mut options = Options {
        create: given.create == 1,
        read_mode: if given.read_by_copy == 1 { ReadMode::Read } else { ReadMode::Map },
        session_window: given.session_window,
        segment_bytes: given.segment_bytes,
        record_bytes_max: given.record_bytes_max,
        batch_bytes_max: given.batch_bytes_max,
        block_bytes_max: given.block_bytes_max,
        prefetch_bytes: given.prefetch_bytes,
        sessions_max: given.sessions_max,
        capacity_bytes: some(given.capacity_bytes),
        retention_bytes: some(given.retention_bytes),
        retention_age: some(given.retention_age_ms).map(duration),
        queue_bytes_max: given.queue_bytes_max as usize,
        queue_appends_max: given.queue_appends_max as usize,
        queue_timeout: duration(given.queue_timeout_ms),
        session_idle_max: duration(given.session_idle_max_ms),
        ..Options::default()
    };
    if let Some(now) = given.clock {
        options.clock = Arc::new(CallersClock { now, context: Context(given.clock_context) });
    }
    Ok(options)
}

/// Fills options with their defaults. `size`: sizeof(chiplog_log_options_t).
/// Ownership: `options` is the caller's, `size` bytes; NULL: nothing happens. Any thread. Never blocks.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_options_init(options: *mut chiplog_log_options_t, size: usize) {
    // SAFETY: the caller's word.
    plain((), || unsafe { init(options, size, shown(&Options::default())) });
}

/// As chiplog_log_options_init, with every limit that depends on the segments' size brought down to fit it. For small logs
/// and tests.
/// Ownership: `options` is the caller's, `size` bytes; NULL: nothing happens. Any thread. Never blocks.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_options_for_segments(
    options: *mut chiplog_log_options_t,
    size: usize,
    segment_bytes: u32,
) {
    // SAFETY: the caller's word.
    plain((), || unsafe { init(options, size, shown(&Options::with_segment_bytes(segment_bytes))) });
}
