//! Options of a directory of named logs, as the header shows them, and their conversion to Rust's.

use crate::abi::entry::init;
use crate::abi::error::invalid;
use crate::abi::growing;
use crate::abi::growing::{Growing, growing};
use crate::abi::pointers::path;
use crate::handles::log::options;
use crate::handles::log::options::chiplog_log_options_t;
use chiplog::{LogsOptions, Result};
use std::ffi::c_char;
use std::path::{Path, PathBuf};

/// Options for opening a directory of named logs. Fill it with chiplog_logs_options_init, then set the fields that
/// should differ. They are not stored in the directory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct chiplog_logs_options_t {
    /// sizeof(chiplog_logs_options_t) as the caller was compiled with it.
    pub size: usize,
    /// Options of each group. NULL, the default: the defaults. retention_bytes and retention_age_ms must be 0: discard
    /// records of each named log. With object_store each group has objects of its own, and local_bytes, local_age_ms and
    /// cache_bytes are of each group. Segments have a table of the group's logs: if they are smaller than 8 MiB, lower
    /// sessions_max to make room for it.
    pub options: *const chiplog_log_options_t,
    /// The number of groups, 1 to 1,024, default 2. A group has a thread and one sync at a time. A directory that is
    /// opened with a larger number gets more groups; a smaller one leaves all there are.
    pub groups: u32,
    /// Not used; must be 0.
    pub reserved: u32,
    /// Further directories for the groups, each meant to be on a disk of its own: `directories_count` paths, up to 64. NULL,
    /// the default: none. A new group goes to the one with the fewest groups, the first of these; one that exists is found
    /// in any of them and in the directory of the logs. They have to exist, apart from each other and from that one.
    pub directories: *const *const c_char,
    /// The number of `directories`.
    pub directories_count: usize,
}

growing!(chiplog_logs_options_t);

fn defaults() -> chiplog_logs_options_t {
    chiplog_logs_options_t { groups: LogsOptions::default().groups, ..Growing::zeros() }
}

/// Converts the caller's options to Rust's; NULL: the defaults.
///
/// # Safety
/// As [`growing::options`]. Its pointer is as `options::read` requires, and `directories` is NULL or points to
/// `directories_count` C strings.
pub(super) unsafe fn read(given: *const chiplog_logs_options_t) -> Result<LogsOptions> {
    let given = growing::options(given, defaults())?;
    if given.reserved != 0 {
        return Err(invalid("options of named logs: reserved must be 0"));
    }
    let (paths, count) = (given.directories, given.directories_count);
    if paths.is_null() && count > 0 {
        return Err(invalid(format!(
            "options of named logs: directories is NULL, and directories_count is {count}"
        )));
    }
    let directories: Vec<PathBuf> = (0..count)
        .map(|n| path(*paths.add(n), "one of directories").map(Path::to_owned))
        .collect::<Result<_>>()?;
    let options = options::read(given.options)?;
    Ok(LogsOptions::default().groups(given.groups).directories(directories).options(options))
}

/// Fills options with their defaults. `size`: sizeof(chiplog_logs_options_t).
/// Ownership: the caller owns `options`, which has `size` bytes. Does nothing if it is NULL. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chiplog_logs_options_init(options: *mut chiplog_logs_options_t, size: usize) {
    init(options, size, defaults);
}
