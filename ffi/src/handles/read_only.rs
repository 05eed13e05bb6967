//! Read-only logs: read-only access to a log, also while another process writes it.

use crate::abi::entry::{entry, entry_cause, entry_handle, entry_struct, entry_value};
use crate::abi::error::{chiplog_error_t, chiplog_status_t, invalid};
use crate::abi::pointers::{out, path, put};
use crate::abi::records::chiplog_records_t;
use crate::abi::values;
use crate::abi::values::fixed;
use crate::handles::log::state;
use crate::handles::log::state::chiplog_log_status_t;
use crate::handles::reader::state::chiplog_reader_t;
use crate::support::handle_table::{Opaque, get, handle, release};
use crate::support::threads::without_signals;
use chiplog::ReadOnlyLog;
use chiplog::cluster::Member;
use chiplog_net::wire::ids::to_hex;
use std::ffi::{c_char, c_void};

/// Read-only access to a log, also while another process writes it. Takes no lock and changes nothing. Many threads
/// may use it at once.
pub struct chiplog_read_only_log_t {
    _private: Opaque,
}

handle!(chiplog_read_only_log_t is ReadOnlyLog, 9, "read-only log");

/// A replica of a cluster.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
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
pub type chiplog_member_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, member: *const chiplog_member_t)>;

fn shown(member: &Member) -> chiplog_member_t {
    chiplog_member_t {
        node: member.node.get(),
        address: fixed(&member.address),
        is_voter: member.is_voter().into(),
        is_leaving: member.is_leaving().into(),
        reserved: [0; 6],
        directory_id: fixed(&to_hex(member.directory.get())),
    }
}

/// Opens the log in `directory` for reading.
/// Ownership: `directory` borrowed for the call; the caller owns `*read_only` and must close it. Any thread. Blocks for the disk.
/// Errors: NOT_FOUND, CORRUPT, UNSUPPORTED, IO, INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_read_only_log_open(
    directory: *const c_char,
    read_only: *mut *mut chiplog_read_only_log_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, read_only, "read_only", || {
        let directory = path(directory, "directory")?;
        without_signals(|| ReadOnlyLog::open(directory))
    })
}

/// Opens a reader of records that are proven durable; see chiplog_log_reader.
/// Ownership: `read_only` borrowed; the caller owns `*reader` and must close it. Any thread. Blocks for the disk.
/// Errors: as chiplog_log_reader.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_read_only_log_reader(
    read_only: *const chiplog_read_only_log_t,
    start: u32,
    value: u64,
    reader: *mut *mut chiplog_reader_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, reader, "reader", || get(read_only)?.reader(values::start(start, value)?))
}

/// Reads one record by its index.
/// Ownership: `read_only` borrowed; the caller owns `*records` and must close it. Any thread. Blocks for the disk.
/// Errors: as chiplog_log_read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_read_only_log_read(
    read_only: *const chiplog_read_only_log_t,
    index: u64,
    records: *mut *mut chiplog_records_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, records, "records", || get(read_only)?.read(index.into()))
}

/// Returns the state of the log, as far as it is proven durable. Set `status->size` first.
/// Ownership: `read_only` borrowed; the caller owns `status`. Any thread. Never blocks.
/// Errors: INVALID_ARGUMENT, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_read_only_log_status(
    read_only: *const chiplog_read_only_log_t,
    status: *mut chiplog_log_status_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_struct(error, status, "status", || Ok(state::status(&get(read_only)?.status())))
}

/// Returns how many records follow the last visible one that are intact but not proven durable: `*count`.
/// Ownership: borrowed. Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_read_only_log_unproven(
    read_only: *const chiplog_read_only_log_t,
    count: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_value(error, count, || Ok(get(read_only)?.unproven()))
}

/// Calls `callback` on this thread with each member of the cluster, as far as these files say. `*is_cluster` (may be
/// NULL) is 0 for a log on its own.
/// Ownership: all borrowed for the call. Any thread. Blocks while the callback runs. Errors: INVALID_ARGUMENT,
/// CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_read_only_log_members(
    read_only: *const chiplog_read_only_log_t,
    callback: chiplog_member_fn,
    context: *mut c_void,
    is_cluster: *mut u8,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry(error, || {
        let Some(callback) = callback else { return Err(invalid("callback is NULL")) };
        let members = get(read_only)?.members();
        put(is_cluster, members.is_some().into());
        members.iter().flatten().map(shown).for_each(|member| callback(context, &raw const member));
        Ok(())
    })
}

/// Returns why the view stopped, if it met damage: `*cause`, else NULL.
/// Ownership: `read_only` borrowed; the caller owns `*cause` and must close it. Any thread. Never blocks.
/// Errors: INVALID_ARGUMENT, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_read_only_log_failure(
    read_only: *const chiplog_read_only_log_t,
    cause: *mut *mut chiplog_error_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_cause(error, cause, || {
        out(cause, "cause")?;
        Ok(get(read_only)?.failure())
    })
}

/// Closes a read-only log; its readers keep the records they hold. Does nothing if it is NULL or already closed.
/// Ownership: takes `read_only`. Any thread. Does not block for long.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_read_only_log_close(read_only: *mut chiplog_read_only_log_t) {
    release(read_only);
}
