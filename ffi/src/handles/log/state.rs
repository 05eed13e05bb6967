//! The state of a log: positions, counters, options, and why it does not continue.

use crate::abi::entry::{entry_cause, entry_struct};
use crate::abi::error::{chiplog_error_t, chiplog_status_t};
use crate::abi::growing::{Growing, growing};
use crate::abi::pointers::out;
use crate::abi::values::fixed;
use crate::handles::log::open::chiplog_log_t;
use crate::handles::log::options;
use crate::handles::log::options::chiplog_log_options_t;
use crate::support::handle_table::get;
use chiplog::Status;
use chiplog::metrics::Metrics;
use chiplog_net::wire::ids::to_hex;
use std::ffi::c_char;

/// The state of a log.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct chiplog_log_status_t {
    /// sizeof(chiplog_log_status_t) as the caller was compiled with it. Set it first.
    pub size: usize,
    /// The first record that is not discarded. For an empty log: the first one to be appended.
    pub first_index: u64,
    /// The last committed record. For an empty log: first_index - 1.
    pub last_index: u64,
    /// The last record that is durable here.
    pub durable_index: u64,
    /// Bytes from the first record on.
    pub bytes_used: u64,
    /// The configured limit of `bytes_used`. 0: none, or unknown.
    pub bytes_capacity: u64,
    /// The number of segments.
    pub segments: u64,
    /// The number of open exactly-once sessions.
    pub sessions: u64,
    /// When the newest block was written: milliseconds since 1970.
    pub last_timestamp_ms: u64,
    /// The log's permanent name: 32 hexadecimal digits and a NUL.
    pub log_id: [c_char; 40],
    /// This copy's permanent name, in the same form.
    pub directory_id: [c_char; 40],
    /// Whether this copy is a follower's: 1 or 0.
    pub follows: u8,
    /// Not used; must be 0.
    pub reserved: [u8; 7],
}

/// Counters of a log since it was opened, and the work that waits in it now.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct chiplog_metrics_t {
    /// sizeof(chiplog_metrics_t) as the caller was compiled with it. Set it first.
    pub size: usize,
    /// Batches accepted, including duplicates within sessions.
    pub appends: u64,
    /// Records written.
    pub records: u64,
    /// Blocks written.
    pub blocks: u64,
    /// Bytes of blocks written, with headers and padding.
    pub bytes: u64,
    /// Syncs that succeeded.
    pub syncs: u64,
    /// Time spent in syncs, in microseconds.
    pub sync_micros_total: u64,
    /// The longest sync, in microseconds.
    pub sync_micros_max: u64,
    /// The median sync time, in microseconds, rounded up to a power of two.
    pub sync_micros_p50: u64,
    /// The 99th percentile of sync times, in microseconds, rounded up to a power of two.
    pub sync_micros_p99: u64,
    /// How often a new segment was begun.
    pub rolls: u64,
    /// Bytes that the scrub has read and checked.
    pub scrubbed_bytes: u64,
    /// The number of places found where blocks are damaged.
    pub damaged: u64,
    /// The number of those places that were repaired.
    pub repaired: u64,
    /// How long the current sync has been running, in microseconds. 0: there is none.
    pub syncing_micros: u64,
    /// Records truncated because another leader has others in their place. None of them was known to be committed.
    pub truncated_records: u64,
    /// Records removed by discards or retention.
    pub discarded_records: u64,
    /// Appends that wait for the writer now.
    pub queue_appends: u64,
    /// Bytes of these appends.
    pub queue_bytes: u64,
    /// Bytes of appends that the writer has taken and not yet written.
    pub taken_bytes: u64,
    /// Bytes that are written and not yet committed.
    pub uncommitted_bytes: u64,
    /// Objects that were put into the object store.
    pub stored_objects: u64,
    /// Bytes of these objects.
    pub stored_bytes: u64,
    /// Attempts to use the object store for objects of the log that failed. Each is repeated.
    pub object_failures: u64,
    /// Bytes of objects that were fetched from the object store for readers.
    pub fetched_bytes: u64,
    /// Bytes of blocks here that are in no object known to be stored now. 0 in a log without objects.
    pub unstored_bytes: u64,
    /// Bytes of objects that are kept here for readers now.
    pub cached_bytes: u64,
    /// The last record that is in an object known to be stored; 0 if there is none.
    pub stored_index: u64,
    /// Objects that were missing or damaged in the object store, and that were stored again here.
    pub repaired_objects: u64,
    /// Objects that are known to be missing or damaged now, and cannot be made again here.
    pub damaged_objects: u64,
    /// Slices that were put into the object store: short stretches of the newest entries, until an object has them.
    pub stored_slices: u64,
    /// Bytes of these slices.
    pub sliced_bytes: u64,
    /// Attempts to store or to find slices that failed. Each is repeated.
    pub slice_failures: u64,
    /// Bytes of blocks here that are neither in an object nor in a slice now. 0 without slices.
    pub unsliced_bytes: u64,
    /// The last record that is in an object or a slice, as far as is known here: it would survive the loss of all replicas.
    pub sliced_index: u64,
    /// Payload slices that were put into the object store, with the durability class "object".
    pub stored_payloads: u64,
    /// Bytes of these slices.
    pub payload_bytes: u64,
    /// Attempts to store them that failed. Each is repeated for 10 s.
    pub payload_failures: u64,
    /// Appends of the durability class "object" that were confirmed here, and that the object store alone was not known to have.
    pub unstored_confirmations: u64,
    /// Bytes of the newest objects that are kept on this disk now: see `fill_bytes`.
    pub filled_bytes: u64,
    /// Attempts to keep an object that failed. Each is repeated.
    pub fill_failures: u64,
}

growing!(chiplog_log_status_t, chiplog_metrics_t);

pub(crate) fn status(now: &Status) -> chiplog_log_status_t {
    chiplog_log_status_t {
        first_index: now.first_index.get(),
        last_index: now.last_index.get(),
        durable_index: now.durable_index.get(),
        bytes_used: now.bytes_used,
        bytes_capacity: now.bytes_capacity.unwrap_or(0),
        segments: now.segments,
        sessions: now.sessions.into(),
        last_timestamp_ms: now.last_timestamp.get(),
        log_id: fixed(&to_hex(now.log_id.get())),
        directory_id: fixed(&to_hex(now.directory_id.get())),
        follows: now.follows.into(),
        ..Growing::zeros()
    }
}

fn metrics(now: &Metrics) -> chiplog_metrics_t {
    chiplog_metrics_t {
        appends: now.appends,
        records: now.records,
        blocks: now.blocks,
        bytes: now.bytes,
        syncs: now.syncs,
        sync_micros_total: now.sync_micros_total,
        sync_micros_max: now.sync_micros_max,
        sync_micros_p50: now.sync_latency(0.5).as_micros() as u64,
        sync_micros_p99: now.sync_latency(0.99).as_micros() as u64,
        rolls: now.rolls,
        scrubbed_bytes: now.scrubbed_bytes,
        damaged: now.damaged,
        repaired: now.repaired,
        syncing_micros: u64::try_from(now.syncing.as_micros()).unwrap_or(u64::MAX),
        truncated_records: now.truncated_records,
        discarded_records: now.discarded_records,
        queue_appends: now.queue_appends,
        queue_bytes: now.queue_bytes,
        taken_bytes: now.taken_bytes,
        uncommitted_bytes: now.uncommitted_bytes,
        stored_objects: now.stored_objects,
        stored_bytes: now.stored_bytes,
        object_failures: now.object_failures,
        fetched_bytes: now.fetched_bytes,
        unstored_bytes: now.unstored_bytes,
        cached_bytes: now.cached_bytes,
        stored_index: now.stored_index,
        repaired_objects: now.repaired_objects,
        damaged_objects: now.damaged_objects,
        stored_slices: now.stored_slices,
        sliced_bytes: now.sliced_bytes,
        slice_failures: now.slice_failures,
        unsliced_bytes: now.unsliced_bytes,
        sliced_index: now.sliced_index,
        stored_payloads: now.stored_payloads,
        payload_bytes: now.payload_bytes,
        payload_failures: now.payload_failures,
        unstored_confirmations: now.unstored_confirmations,
        filled_bytes: now.filled_bytes,
        fill_failures: now.fill_failures,
        ..Growing::zeros()
    }
}

/// Returns the options that the log was opened with, except for the clock and the object store. Set `options->size` first.
/// Ownership: `log` borrowed; the caller owns `options`. Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_options(
    log: *const chiplog_log_t,
    options: *mut chiplog_log_options_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_struct(error, options, "options", || Ok(options::shown(get(log)?.options())))
}

/// Returns the current state of the log. Set `status->size` first.
/// Ownership: `log` borrowed; the caller owns `status`. Any thread. Never blocks.
/// Errors: INVALID_ARGUMENT, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_status(
    log: *const chiplog_log_t,
    status: *mut chiplog_log_status_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_struct(error, status, "status", || Ok(self::status(&get(log)?.status())))
}

/// Returns the counters of the log since it was opened, and the work that waits in it now. Set `metrics->size` first.
/// Ownership: `log` borrowed; the caller owns `metrics`. Any thread. Does not block for long.
/// Errors: INVALID_ARGUMENT, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_metrics(
    log: *const chiplog_log_t,
    metrics: *mut chiplog_metrics_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_struct(error, metrics, "metrics", || Ok(self::metrics(&get(log)?.metrics())))
}

/// Returns why the log accepts no more appends, if a write or a sync has failed: `*cause`, else NULL.
/// Ownership: `log` borrowed; the caller owns `*cause` and must close it. Any thread. Never blocks.
/// Errors: INVALID_ARGUMENT, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_poison_cause(
    log: *const chiplog_log_t,
    cause: *mut *mut chiplog_error_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_cause(error, cause, || {
        out(cause, "cause")?;
        Ok(get(log)?.poison_cause())
    })
}

/// Returns why this replica does not accept the log's records while another replica leads. The reason is a disk
/// without space (FULL, IO), segments that are too small for what the leader sends (TOO_LARGE), or options that
/// conflict with the log's (INVALID_ARGUMENT): `*cause`, else NULL.
/// Ownership: `log` borrowed; the caller owns `*cause` and must close it. Any thread. Never blocks.
/// Errors: INVALID_ARGUMENT, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_shortage_cause(
    log: *const chiplog_log_t,
    cause: *mut *mut chiplog_error_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_cause(error, cause, || {
        out(cause, "cause")?;
        Ok(get(log)?.shortage_cause())
    })
}
