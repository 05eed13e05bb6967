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
pub struct chiplog_info_t {
    /// sizeof(chiplog_info_t) as the caller was compiled with it. Set it first.
    pub size: usize,
    /// The first record that is not discarded. For an empty log: the first one to be appended.
    pub first: u64,
    /// The last committed record. For an empty log: first - 1.
    pub last: u64,
    /// The last record that is durable here. Over the network: equal to `last`.
    pub durable: u64,
    /// Bytes from the first record on.
    pub bytes_used: u64,
    /// The configured limit of `bytes_used`. 0: none, or unknown.
    pub bytes_capacity: u64,
    /// The number of segments. Over the network: 0.
    pub segments: u64,
    /// The number of open exactly-once sessions. Over the network: 0.
    pub sessions: u64,
    /// When the newest block was written: milliseconds since 1970. Over the network: 0.
    pub last_timestamp_ms: u64,
    /// Over the network: the replica that answered, else 0.
    pub node: u64,
    /// Over the network: the leader. 0: unknown.
    pub leader: u64,
    /// The log's permanent name: 32 hexadecimal digits and a NUL. Empty: unknown.
    pub log_id: [c_char; 40],
    /// This copy's permanent name, in the same form. Over the network: empty.
    pub directory_id: [c_char; 40],
    /// Over the network: where the leader serves clients, `host:port`. Empty: unknown.
    pub leader_address: [c_char; 264],
    /// Whether this copy is a follower's: 1 or 0.
    pub follows: u8,
    /// Not used; must be 0.
    pub reserved: [u8; 7],
}

/// Counters of a log since it was opened.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct chiplog_stats_t {
    /// sizeof(chiplog_stats_t) as the caller was compiled with it. Set it first.
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
}

/// The work that waits in a log now.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct chiplog_backlog_t {
    /// sizeof(chiplog_backlog_t) as the caller was compiled with it. Set it first.
    pub size: usize,
    /// Appends that wait for the writer.
    pub queue_appends: u64,
    /// Their bytes.
    pub queue_bytes: u64,
    /// Bytes of appends that the writer has taken and not yet written.
    pub taken_bytes: u64,
    /// Bytes that are written and not yet committed.
    pub uncommitted_bytes: u64,
}

growing!(chiplog_info_t, chiplog_stats_t, chiplog_backlog_t);

pub(crate) fn info(status: &Status) -> chiplog_info_t {
    chiplog_info_t {
        first: status.first_index.get(),
        last: status.last_index.get(),
        durable: status.durable_index.get(),
        bytes_used: status.bytes_used,
        bytes_capacity: status.bytes_capacity.unwrap_or(0),
        segments: status.segments,
        sessions: status.sessions.into(),
        last_timestamp_ms: status.last_timestamp.get(),
        log_id: fixed(&to_hex(status.log_id.get())),
        directory_id: fixed(&to_hex(status.directory_id.get())),
        follows: status.follows.into(),
        ..Growing::zeros()
    }
}

fn stats(now: &Metrics) -> chiplog_stats_t {
    chiplog_stats_t {
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
        ..Growing::zeros()
    }
}

fn backlog(now: &Metrics) -> chiplog_backlog_t {
    chiplog_backlog_t {
        queue_appends: now.queue_appends,
        queue_bytes: now.queue_bytes,
        taken_bytes: now.taken_bytes,
        uncommitted_bytes: now.uncommitted_bytes,
        ..Growing::zeros()
    }
}

/// Returns the options that the log was opened with, except for the clock. Set `options->size` first.
/// Ownership: `log` borrowed; the caller owns `options`. Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_options(
    log: *const chiplog_log_t,
    options: *mut chiplog_log_options_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_struct(error, options, "options", || Ok(options::shown(get(log)?.options())))
}

/// Returns the current state of the log. Set `info->size` first.
/// Ownership: `log` borrowed; the caller owns `info`. Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_info(
    log: *const chiplog_log_t,
    info: *mut chiplog_info_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_struct(error, info, "info", || Ok(self::info(&get(log)?.status())))
}

/// Returns the counters of the log since it was opened. Set `stats->size` first.
/// Ownership: `log` borrowed; the caller owns `stats`. Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_stats(
    log: *const chiplog_log_t,
    stats: *mut chiplog_stats_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_struct(error, stats, "stats", || Ok(self::stats(&get(log)?.metrics())))
}

/// Returns the work that waits in the log now. Set `backlog->size` first.
/// Ownership: `log` borrowed; the caller owns `backlog`. Any thread. Does not block for long.
/// Errors: INVALID_ARGUMENT, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_log_backlog(
    log: *const chiplog_log_t,
    backlog: *mut chiplog_backlog_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_struct(error, backlog, "backlog", || Ok(self::backlog(&get(log)?.metrics())))
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
