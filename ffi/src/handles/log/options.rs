//! Options of the embedded log, as the header shows them, and their conversion to Rust's.

use crate::abi::entry::init;
use crate::abi::error::invalid;
use crate::abi::growing::{Growing, growing, options};
use crate::abi::pointers::text_or_none;
use crate::abi::values::{Context, duration, millis};
#[cfg(feature = "object-store")]
use chiplog::Error;
use chiplog::vault::Vault;
use chiplog::{Clock, Options, ReadMode, Result, Timestamp};
#[cfg(feature = "object-store")]
use chiplog_tier::{ObjectVault, VaultOptions};
use std::ffi::{c_char, c_void};
use std::sync::Arc;

/// Returns the time in milliseconds since 1970. Called on chiplog's threads, also on several at once. It must not
/// throw or block.
pub type chiplog_clock_fn = Option<unsafe extern "C" fn(context: *mut c_void) -> u64>;

/// The options for opening a log. Fill it with chiplog_log_options_init, then set the fields that should differ.
/// Opening the log checks the limits; the error names the one that is out of bounds. These options are not stored in
/// the log.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct chiplog_log_options_t {
    /// sizeof(chiplog_log_options_t) as the caller was compiled with it.
    pub size: usize,
    /// Create a log if the directory holds none: 1 or 0. Default 1. Missing directories are created, with their
    /// parents.
    pub create: u8,
    /// Read by pread into buffers instead of through mappings: 1 or 0. Default 0. With mappings the process gets
    /// SIGBUS if the device cannot read a page or another program shortens a file.
    pub read_by_copy: u8,
    /// The number of a session's latest batches whose indexes the log remembers: 1 to 1,024, default 128.
    pub session_window: u16,
    /// Size of a segment file: 64 KiB to 1 GiB, default 64 MiB. A log takes at least three segments on disk. Below 40
    /// MiB, other limits must be lowered as well: chiplog_log_options_for_segments fills options that fit.
    pub segment_bytes: u32,
    /// The largest record, default 16 MiB.
    pub record_bytes_max: u32,
    /// The largest encoded batch, default 32 MiB. It must fit into a segment, of which an eighth and some headers are
    /// reserved.
    pub batch_bytes_max: u32,
    /// The largest block of appends that are written together, default 4 MiB.
    pub block_bytes_max: u32,
    /// How far a sequential reader reads ahead, default 8 MiB. 0 leaves this to the kernel.
    pub prefetch_bytes: u32,
    /// The largest number of open exactly-once sessions, default 4,096.
    pub sessions_max: u32,
    /// With an object store: how many bytes of blocks an object has at most, 64 KiB to 512 MiB, default 64 MiB.
    pub object_bytes: u32,
    /// Limit of the bytes of retained blocks. Beyond it appends fail with CHIPLOG_FULL. 0, the default: no limit but
    /// the disk.
    pub capacity_bytes: u64,
    /// Keep about this many bytes: whole segments are discarded from the front. 0, the default: keep all.
    pub retention_bytes: u64,
    /// Discard segments whose newest record is older than this. 0, the default: keep all.
    pub retention_age_ms: u64,
    /// Bytes that may wait for the writer, default 64 MiB. Beyond it appends wait.
    pub queue_bytes_max: u64,
    /// Appends that may wait for the writer, default 65,536. Beyond it appends wait.
    pub queue_appends_max: u64,
    /// How long an append waits for space in the queue before it fails with CHIPLOG_BUSY. Default 60 s.
    pub queue_timeout_ms: u64,
    /// A session that sends nothing for this long expires. Default 24 h.
    pub session_idle_max_ms: u64,
    /// The source of timestamps. NULL, the default: the machine's clock.
    pub clock: chiplog_clock_fn,
    /// The argument of `clock`. Borrowed until the log is closed.
    pub clock_context: *mut c_void,
    /// The object store in which the log keeps copies of its older records: "s3://BUCKET/PREFIX", "gs://BUCKET/PREFIX",
    /// "az://CONTAINER/PREFIX", "file:///DIRECTORY" or an absolute path. Keys, region and endpoint come from the variables
    /// that the store's own programs use, such as AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL. NULL or empty, the default: none.
    /// Opening the log makes no request, and a store that is down stops no append. A follower reads the log's older records
    /// from there. Borrowed for the call.
    pub object_store: *const c_char,
    /// Records that are older than this are stored, even if they make a small object. 0, the default: only full objects.
    pub object_age_ms: u64,
    /// Keep at most about this many bytes of records on this disk that are in the object store: older ones are read from
    /// there. A new replica with this limit, `local_age_ms` or `fill_bytes` begins with records that are in no object. At least
    /// two segments. 0, the default: keep all.
    pub local_bytes: u64,
    /// Keep records that are in the object store on this disk no longer than this. 0, the default: keep all.
    pub local_age_ms: u64,
    /// Bytes of objects that are kept on this disk after they were read, default 1 GiB, at least 8 MiB.
    pub cache_bytes: u64,
    /// How long objects are kept after their records were discarded, default 24 h.
    pub object_delete_delay_ms: u64,
    /// For named logs: whether full segments of a group are copied in the order of their logs, so that one of many logs is read at the
    /// speed of a log on its own: 1 or 0. Default 1. A copy takes about the space of its segment, and gives way where the disk is full.
    pub sorted_copies: u32,
    /// Not used; must be 0.
    pub reserved: u32,
    /// How long a pass over all stored objects takes, in which each is read and compared with what the log says of it. A
    /// missing or damaged one is stored again, by a replica that has its entries in files. At least 100 ms, default 30 days. 0: objects
    /// are not examined.
    pub object_scrub_ms: u64,
    /// How often the newest committed entries, which no object has yet, go to the object store as a slice: 10 ms to 60 s. 0 (the
    /// default): only objects are stored. Needs `object_store`. Of named logs each
    /// group stores slices of its own, and so does the catalogue.
    pub slice_interval_ms: u64,
    /// How many bytes of blocks a slice has at most: 512 KiB to 8 MiB, default 4 MiB. As many are stored at once.
    pub slice_bytes: u32,
    /// 1: appends go to the object store, and only references to them are replicated: the durability class "object". Needs
    /// `object_store` and `slice_interval_ms`. Of named logs each group has payload slices of its own. 0 (the default): appends are
    /// replicated whole.
    pub payload_slices: u32,
    /// Download whole objects at leisure, and keep this many bytes of the newest ones on this disk: readers of these records need no
    /// object store. Files and these objects together stay within `local_bytes` and `capacity_bytes`. At least 64 KiB. 0 (the default):
    /// none.
    pub fill_bytes: u64,
}

growing!(chiplog_log_options_t);

/// A clock that the caller supplies.
#[derive(Debug)]
struct CallersClock {
    now: unsafe extern "C" fn(*mut c_void) -> u64,
    context: Context,
}

impl Clock for CallersClock {
    fn now(&self) -> Timestamp {
        // SAFETY: the caller promised that the function may be called with the context until the log is closed.
        Timestamp(unsafe { (self.now)(self.context.0) })
    }
}

pub(crate) fn shown(options: &Options) -> chiplog_log_options_t {
    chiplog_log_options_t {
        create: options.create.into(),
        read_by_copy: (options.read_mode == ReadMode::Read).into(),
        session_window: options.session_window,
        segment_bytes: options.segment_bytes,
        record_bytes_max: options.record_bytes_max,
        batch_bytes_max: options.batch_bytes_max,
        block_bytes_max: options.block_bytes_max,
        prefetch_bytes: options.prefetch_bytes,
        sessions_max: options.sessions_max,
        capacity_bytes: options.capacity_bytes.unwrap_or(0),
        retention_bytes: options.retention_bytes.unwrap_or(0),
        retention_age_ms: options.retention_age.map_or(0, millis),
        queue_bytes_max: options.queue_bytes_max as u64,
        queue_appends_max: options.queue_appends_max as u64,
        queue_timeout_ms: millis(options.queue_timeout),
        session_idle_max_ms: millis(options.session_idle_max),
        object_bytes: options.object_bytes,
        object_age_ms: options.object_age.map_or(0, millis),
        local_bytes: options.local_bytes.unwrap_or(0),
        local_age_ms: options.local_age.map_or(0, millis),
        cache_bytes: options.cache_bytes,
        object_delete_delay_ms: millis(options.object_delete_delay),
        sorted_copies: options.sorted_copies.into(),
        object_scrub_ms: options.object_scrub.map_or(0, millis),
        slice_interval_ms: options.slice_interval.map_or(0, millis),
        slice_bytes: options.slice_bytes,
        payload_slices: options.payload_slices.into(),
        fill_bytes: options.fill_bytes.unwrap_or(0),
        ..Growing::zeros()
    }
}

/// Converts the caller's options to Rust's; NULL: the defaults.
///
/// # Safety
/// As [`options`], with `object_store` NULL or a C string. The clock may be called with its context while the log is open.
pub(crate) unsafe fn read(given: *const chiplog_log_options_t) -> Result<Options> {
    let given = options(given, shown(&Options::default()))?;
    if given.create > 1 || given.read_by_copy > 1 {
        return Err(invalid("log options: create and read_by_copy must be 0 or 1"));
    }
    if given.sorted_copies > 1 || given.payload_slices > 1 || given.reserved != 0 {
        return Err(invalid("log options: sorted_copies and payload_slices must be 0 or 1, and reserved 0"));
    }
    let some = |value: u64| (value != 0).then_some(value);
    let mut options = Options::default()
        .create(given.create == 1)
        .read_mode(if given.read_by_copy == 1 { ReadMode::Read } else { ReadMode::Map })
        .session_window(given.session_window)
        .segment_bytes(given.segment_bytes)
        .record_bytes_max(given.record_bytes_max)
        .batch_bytes_max(given.batch_bytes_max)
        .block_bytes_max(given.block_bytes_max)
        .prefetch_bytes(given.prefetch_bytes)
        .sessions_max(given.sessions_max)
        .capacity_bytes(some(given.capacity_bytes))
        .retention_bytes(some(given.retention_bytes))
        .retention_age(some(given.retention_age_ms).map(duration))
        .queue_bytes_max(given.queue_bytes_max as usize)
        .queue_appends_max(given.queue_appends_max as usize)
        .queue_timeout(duration(given.queue_timeout_ms))
        .session_idle_max(duration(given.session_idle_max_ms))
        .vault(vault(given.object_store)?)
        .object_bytes(given.object_bytes)
        .object_age(some(given.object_age_ms).map(duration))
        .local_bytes(some(given.local_bytes))
        .local_age(some(given.local_age_ms).map(duration))
        .cache_bytes(given.cache_bytes)
        .object_delete_delay(duration(given.object_delete_delay_ms))
        .object_scrub(some(given.object_scrub_ms).map(duration))
        .slice_interval(some(given.slice_interval_ms).map(duration))
        .slice_bytes(given.slice_bytes)
        .payload_slices(given.payload_slices == 1)
        .fill_bytes(some(given.fill_bytes))
        .sorted_copies(given.sorted_copies == 1);
    if let Some(now) = given.clock {
        options.clock = Arc::new(CallersClock { now, context: Context(given.clock_context) });
    }
    Ok(options)
}

/// Opens the object store at a location. None: NULL, or empty.
///
/// # Safety
/// `location` is NULL or a C string.
unsafe fn vault(location: *const c_char) -> Result<Option<Arc<dyn Vault>>> {
    let location = text_or_none(location, "object_store")?;
    if location.is_empty() {
        return Ok(None);
    }
    open_vault(&location).map(Some)
}

#[cfg(feature = "object-store")]
fn open_vault(location: &str) -> Result<Arc<dyn Vault>> {
    let vault = ObjectVault::open(location, VaultOptions::default())
        .map_err(|error| Error::with_source(error.kind(), format!("object_store: {error}"), &error))?;
    Ok(Arc::new(vault))
}

#[cfg(not(feature = "object-store"))]
fn open_vault(_: &str) -> Result<Arc<dyn Vault>> {
    Err(invalid(
        "object_store is set, but this library was built without its feature object-store: use one that has it",
    ))
}

/// Fills options with their defaults. `size`: sizeof(chiplog_log_options_t).
/// Ownership: the caller owns `options`, which has `size` bytes. Does nothing if it is NULL. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_options_init(options: *mut chiplog_log_options_t, size: usize) {
    init(options, size, || shown(&Options::default()));
}

/// As chiplog_log_options_init, but lowers each limit that depends on the segment size until it fits. For small logs
/// and tests.
/// Ownership: the caller owns `options`, which has `size` bytes. Does nothing if it is NULL. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_options_for_segments(
    options: *mut chiplog_log_options_t,
    size: usize,
    segment_bytes: u32,
) {
    init(options, size, || shown(&Options::with_segment_bytes(segment_bytes)));
}
