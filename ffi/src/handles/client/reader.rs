//! A client's readers and their options.

use crate::abi::entry::{entry_handle, init};
use crate::abi::error::{chiplog_error_t, chiplog_status_t, invalid};
use crate::abi::growing;
use crate::abi::growing::{Growing, growing};
use crate::abi::pointers::text;
use crate::abi::values;
use crate::abi::values::{duration, millis};
use crate::handles::client::calls::chiplog_client_t;
use crate::handles::reader::state::chiplog_reader_t;
use crate::support::handle_table::get;
use chiplog::Result;
use chiplog_net::client::{ReadFrom, ReaderOptions};
use std::ffi::c_char;

/// Read from any replica: acknowledged records become visible after a moment.
pub const CHIPLOG_READ_FROM_ANY: u32 = 0;
/// Read from the leader: acknowledged records are visible at once.
pub const CHIPLOG_READ_FROM_LEADER: u32 = 1;
/// Read from a replica of the zone if one answers, else from any replica.
pub const CHIPLOG_READ_FROM_NEAREST: u32 = 2;

/// Where and how a reader reads over the network. Fill it with chiplog_reader_options_init.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct chiplog_reader_options_t {
    /// sizeof(chiplog_reader_options_t) as the caller was compiled with it.
    pub size: usize,
    /// CHIPLOG_READ_FROM_..., default ANY.
    pub from: u32,
    /// Whether the reader waits at the end for new records: 1 or 0. Default 1. With 0 it ends there.
    pub follow: u8,
    /// Not used; must be 0.
    pub reserved: [u8; 3],
    /// The zone of CHIPLOG_READ_FROM_NEAREST.
    pub zone: *const c_char,
    /// The reader waits for a replica that does not have this record yet. Default 0.
    pub min_index: u64,
    /// The interval at which an idle server sends a sign of life, default 3 s.
    pub keep_alive_ms: u64,
    /// How long servers are tried before the reader returns an error, default 30 s.
    pub timeout_ms: u64,
}

growing!(chiplog_reader_options_t);

fn defaults() -> chiplog_reader_options_t {
    let d = ReaderOptions::default();
    chiplog_reader_options_t {
        from: CHIPLOG_READ_FROM_ANY,
        follow: 1,
        keep_alive_ms: millis(d.keep_alive),
        timeout_ms: millis(d.timeout),
        ..Growing::zeros()
    }
}

/// Converts the caller's options to Rust's.
///
/// # Safety
/// As [`growing::options`]. Its pointers are as [`text`] requires.
unsafe fn read(given: *const chiplog_reader_options_t) -> Result<ReaderOptions> {
    let given = growing::options(given, defaults())?;
    if given.follow > 1 || given.reserved != [0; 3] {
        return Err(invalid("reader options: follow must be 0 or 1, and reserved must be 0"));
    }
    let mut options = ReaderOptions::default();
    options.from = match given.from {
        CHIPLOG_READ_FROM_ANY => ReadFrom::Any,
        CHIPLOG_READ_FROM_LEADER => ReadFrom::Leader,
        CHIPLOG_READ_FROM_NEAREST => ReadFrom::Nearest(text(given.zone, "zone")?.to_owned()),
        other => return Err(invalid(format!("{other} is not one of CHIPLOG_READ_FROM_..."))),
    };
    options.follow = given.follow == 1;
    options.min_index = given.min_index.into();
    options.keep_alive = duration(given.keep_alive_ms);
    options.timeout = duration(given.timeout_ms);
    Ok(options)
}

/// Fills options with their defaults. `size`: sizeof(chiplog_reader_options_t).
/// Ownership: the caller owns `options`, which has `size` bytes. Does nothing if it is NULL. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_reader_options_init(options: *mut chiplog_reader_options_t, size: usize) {
    init(options, size, defaults);
}

/// Opens a reader that follows the log over the network from `start` on (CHIPLOG_START_...; `value`: its number, else
/// 0). It connects at the first read and switches to another server when one fails. `options` may be NULL for the
/// defaults.
/// Ownership: `client`, `options` borrowed for the call; the caller owns `*reader` and must close it; it may outlive the client.
/// Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_client_reader(
    client: *const chiplog_client_t,
    start: u32,
    value: u64,
    options: *const chiplog_reader_options_t,
    reader: *mut *mut chiplog_reader_t,
    error: *mut *mut chiplog_error_t,
) -> chiplog_status_t {
    entry_handle(error, reader, "reader", || {
        let options = read(options)?;
        Ok(get(client)?.reader_with(values::start(start, value)?, options))
    })
}
