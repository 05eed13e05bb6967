//! Read-only logs: a log read-only, also while another process writes it.

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

/// A read-only log as C holds it.
pub(crate) struct Viewing(pub(crate) ReadOnlyLog);

/// A log read-only, also while another process writes it. Takes no lock and changes nothing. Any thread may use it, many
/// at once.
#[allow(non_camel_case_types, missing_debug_implementations)]
pub struct chiplog_read_only_log_t {
    _private: crate::support::handle_table::Opaque,
}

handle!(chiplog_read_only_log_t is Viewing, 9, "read_only");

/// A replica that belongs to a cluster.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct chiplog_member_t {
    /// Its number.
    pub node: u64,
    /// Where it is reached, NUL behind it.
    pub address: [c_char; 520],
    /// Whether it votes: 1 or 0.
    pub is_voter: u8,
    /// Whether it is about to leave: 1 or 0.
    pub is_leaving: u8,
    /// Not used; 0.
    pub reserved: [u8; 6],
    /// The directory it has to come with: 32 hexadecimal digits and a NUL; all 0: not known.
    pub directory_id: [c_char; 40],
}

/// Called with each member; what it points to ends with the call. It must not throw.
#[allow(non_camel_case_types)]
pub type chiplog_member_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, member: *const chiplog_member_t)>;

fn get(read_only: *const chiplog_read_only_log_t) -> Result<handle_table::Pinned<Viewing>> {
    handle_table::get::<Viewing>(read_only)
}

/// Opens the log in `directory` for reading.
/// Ownership: `directory` borrowed for the call; `*read_only`: the caller's, to be closed. Any thread. Blocks for the disk.
/// Errors: NOT_FOUND, CORRUPT, UNSUPPORTED, IO, INVALID_ARGUMENT.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_read_only_log_open(
    directory: *const c_char,
    read_only: *mut *mut chiplog_read_only_log_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
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

/// A reader of records that are proven durable: chiplog_log_reader tells the rest.
/// Ownership: `read_only` borrowed; `*reader`: the caller's, to be closed. Any thread. Blocks for the disk.
/// Errors: as chiplog_log_reader.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_read_only_log_reader(
    read_only: *const chiplog_read_only_log_t,
    start: u32,
    value: u64,
    reader: *mut *mut chiplog_reader_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || reader::hand_out(reader, || get(read_only)?.0.reader(self::start(start, value)?)))
    }
}

/// One record, by its index.
/// Ownership: `read_only` borrowed; `*records`: the caller's, to be closed. Any thread. Blocks for the disk.
/// Errors: as chiplog_log_read.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_read_only_log_read(
    read_only: *const chiplog_read_only_log_t,
    index: u64,
    records: *mut *mut chiplog_records_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe { entry(error, || records::hand_out_one(records, || get(read_only)?.0.read(index.into()))) }
}

/// How the log stands, as far as it is proven durable. `info->size` has to be set.
/// Ownership: `read_only` borrowed; `info` the caller's. Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_read_only_log_info(
    read_only: *const chiplog_read_only_log_t,
    info: *mut chiplog_info_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe { entry(error, || fill(info, "info", log::info(&get(read_only)?.0.info()))) }
}

/// How many records stand behind the last one shown, sound and not proven durable: `*count`.
/// Ownership: borrowed. Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_read_only_log_unproven(
    read_only: *const chiplog_read_only_log_t,
    count: *mut u64,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    // SAFETY: the caller's word.
    unsafe {
        entry(error, || {
            put(count, get(read_only)?.0.unproven());
            Ok(())
        })
    }
}

/// Who belongs to the cluster, as far as the files here say: calls `callback` on this thread with each. `*is_cluster`: 0: it
/// is a log on its own; NULL: not wanted.
/// Ownership: all borrowed for the call. Any thread. Blocks as long as the callback. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_read_only_log_members(
    read_only: *const chiplog_read_only_log_t,
    callback: chiplog_member_fn,
    context: *mut c_void,
    is_cluster: *mut u8,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    let context = Context(context);
    // SAFETY: the caller's word.
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

/// Why the view does not go on, if it met damage: `*cause`, else NULL.
/// Ownership: `read_only` borrowed; `*cause`: the caller's, to be closed. Any thread. Never blocks.
/// Errors: INVALID_ARGUMENT, CLOSED, FORKED.
///
/// # Safety
/// As said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_read_only_log_failure(
    read_only: *const chiplog_read_only_log_t,
    cause: *mut *mut chiplog_error_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    if !cause.is_null() && cause == error {
        // SAFETY: the caller's word. One place cannot hold both.
        return unsafe { entry(error, || Err(invalid("cause and error are the same place"))) };
    }
    // SAFETY: the caller's word.
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

/// Closes a read-only log; its readers keep what they have. NULL, or one that was closed: nothing happens.
/// Ownership: takes `read_only`. Any thread. Never blocks for long.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_read_only_log_close(read_only: *mut chiplog_read_only_log_t) {
    plain((), || drop(handle_table::close::<Viewing>(read_only)));
}
