//! Read-only logs: read-only access to a log, also while another process writes it.

use crate::abi::entry::entry;
use crate::abi::error::{chiplog_error_t, chiplog_status_t, hand_out, invalid};
use crate::abi::records;
use crate::abi::records::chiplog_records_t;
use crate::abi::values::{Context, fill, fixed, out, put, start};
use crate::handles::log;
use crate::handles::log::chiplog_info_t;
use crate::handles::reader;
use crate::handles::reader::chiplog_reader_t;
use crate::support::handle_table;
use crate::support::handle_table::handle;
use crate::support::panic_guard::plain;
use crate::support::threads::without_signals;
use chiplog::{ReadOnlyLog, Result};
use std::ffi::{c_char, c_void};

/// The read-only log behind a handle.
pub(crate) struct Viewing(pub(crate) ReadOnlyLog);

/// Read-only access to a log, also while another process writes it. Takes no lock and changes nothing. Many threads
/// may use it at once.
#[allow(non_camel_case_types, missing_debug_implementations)]
pub struct chiplog_read_only_log_t {
    _private: crate::support::handle_table::Opaque,
}

handle!(chiplog_read_only_log_t is Viewing, 9, "read-only log");

/// A replica of a cluster.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct chiplog_member_t {
    /// Its node number.
    pub node: u64,
    /// The address where it is reached, with a NUL at the end.
    pub address: [c_char; 520],
    /// Whether it votes: 1 or 0.
    pub is_voter: u8,
    /// Whether it is leaving: 1 or 0.
    pub is_leaving: u8,
    /// Not used; must be 0.
    pub reserved: [u8; 6],
    /// The directory id that it must have: 32 hexadecimal digits and a NUL. All 0: unknown.
    pub directory_id: [c_char; 40],
}

/// Called with each member; the member is valid only during the call. The callback must not throw.
#[allow(non_camel_case_types)]
pub type chiplog_member_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, member: *const chiplog_member_t)>;

fn get(read_only: *const chiplog_read_only_log_t) -> Result<handle_table::Pinned<Viewing>> {
    handle_table::get::<Viewing>(read_only)
}

/// Opens the log in `directory` for reading.
/// Ownership: `directory` borrowed for the call; the caller owns `*read_only` and must close it. Any thread. Blocks for the disk.
/// Errors: NOT_FOUND, CORRUPT, UNSUPPORTED, IO, INVALID_ARGUMENT.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_read_only_log_open(
    directory: *const c_char,
    read_only: *mut *mut chiplog_read_only_log_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let place = out(read_only, "read_only")?;
            let directory = log::path(directory, "directory")?;
            let opened = without_signals(|| ReadOnlyLog::open(directory))?;
            place.write(handle_table::insert(Viewing(opened))?);
            Ok(())
        })
    }
}

/// Opens a reader of records that are proven durable; see chiplog_log_reader.
/// Ownership: `read_only` borrowed; the caller owns `*reader` and must close it. Any thread. Blocks for the disk.
/// Errors: as chiplog_log_reader.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_read_only_log_reader(
    read_only: *const chiplog_read_only_log_t,
    start: u32,
    value: u64,
    reader: *mut *mut chiplog_reader_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || reader::hand_out(reader, || get(read_only)?.0.reader(self::start(start, value)?)))
    }
}

/// Reads one record by its index.
/// Ownership: `read_only` borrowed; the caller owns `*records` and must close it. Any thread. Blocks for the disk.
/// Errors: as chiplog_log_read.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_read_only_log_read(
    read_only: *const chiplog_read_only_log_t,
    index: u64,
    records: *mut *mut chiplog_records_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe { entry(error, || records::hand_out_one(records, || get(read_only)?.0.read(index.into()))) }
}

/// Returns the state of the log, as far as it is proven durable. Set `info->size` first.
/// Ownership: `read_only` borrowed; the caller owns `info`. Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_read_only_log_info(
    read_only: *const chiplog_read_only_log_t,
    info: *mut chiplog_info_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe { entry(error, || fill(info, "info", log::info(&get(read_only)?.0.status()))) }
}

/// Returns how many records follow the last visible one that are intact but not proven durable: `*count`.
/// Ownership: borrowed. Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_read_only_log_unproven(
    read_only: *const chiplog_read_only_log_t,
    count: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            put(count, get(read_only)?.0.unproven());
            Ok(())
        })
    }
}

/// Calls `callback` on this thread with each member of the cluster, as far as these files say. `*is_cluster` (may be
/// NULL) is 0 for a log on its own.
/// Ownership: all borrowed for the call. Any thread. Blocks while the callback runs. Errors: INVALID_ARGUMENT,
/// CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_read_only_log_members(
    read_only: *const chiplog_read_only_log_t,
    callback: chiplog_member_fn,
    context: *mut c_void,
    is_cluster: *mut u8,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    let context = Context(context);
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let Some(callback) = callback else { return Err(invalid("callback is NULL")) };
            let members = get(read_only)?.0.members();
            put(is_cluster, members.is_some().into());
            for member in members.into_iter().flatten() {
                let shown = chiplog_member_t {
                    node: member.node.get(),
                    address: fixed(&member.address),
                    is_voter: member.is_voter().into(),
                    is_leaving: member.is_leaving().into(),
                    reserved: [0; 6],
                    directory_id: fixed(&chiplog_net::wire::ids::to_hex(member.directory.get())),
                };
                callback(context.0, &raw const shown);
            }
            Ok(())
        })
    }
}

/// Returns why the view stopped, if it met damage: `*cause`, else NULL.
/// Ownership: `read_only` borrowed; the caller owns `*cause` and must close it. Any thread. Never blocks.
/// Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// The arguments are as described above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_read_only_log_failure(
    read_only: *const chiplog_read_only_log_t,
    cause: *mut *mut chiplog_error_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    if !cause.is_null() && cause == error {
        // SAFETY: this function's condition. One place cannot hold both pointers.
        return unsafe { entry(error, || Err(invalid("cause and error must not point to the same place"))) };
    }
    // SAFETY: this function's condition.
    unsafe {
        entry(error, || {
            let place = out(cause, "cause")?;
            if let Some(cause) = get(read_only)?.0.failure() {
                place.write(hand_out(&cause));
            }
            Ok(())
        })
    }
}

/// Closes a read-only log; its readers keep the records they hold. Does nothing if it is NULL or already closed.
/// Ownership: takes `read_only`. Any thread. Does not block for long.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_read_only_log_close(read_only: *mut chiplog_read_only_log_t) {
    plain((), || drop(handle_table::close::<Viewing>(read_only)));
}
