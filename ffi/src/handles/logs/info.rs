//! The state of a named log.

use crate::abi::growing::{Growing, growing};
use crate::abi::values::fixed;
use chiplog::LogInfo;
use chiplog_net::wire::ids::to_hex;
use std::ffi::{c_char, c_void};

/// The state of a named log.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct chiplog_log_info_t {
    /// sizeof(chiplog_log_info_t) as the caller was compiled with it. Set it first. In chiplog_log_info_fn: as the
    /// library was compiled with it.
    pub size: usize,
    /// Its number, which no other log of this directory, or of these servers, ever had.
    pub number: u32,
    /// The group that holds it, from 1.
    pub group: u32,
    /// The first record that is not discarded.
    pub first_index: u64,
    /// The last committed record. Without records: first_index - 1.
    pub last_index: u64,
    /// Bytes of all batches that were ever appended to it.
    pub bytes_appended: u64,
    /// When it was last appended to: milliseconds since 1970. 0: never.
    pub last_timestamp_ms: u64,
    /// Whether it takes no more appends: 1 or 0.
    pub sealed: u8,
    /// 1: its group does not run on the server that answered, which knows none of the values from first_index to sealed.
    /// chiplog_client_info of a client of the log returns them. Else 0.
    pub elsewhere: u8,
    /// Not used; must be 0.
    pub reserved: [u8; 6],
    /// Its permanent id: 32 hexadecimal digits and a NUL.
    pub log_id: [c_char; 40],
    /// Its name, up to 260 bytes and a NUL.
    pub name: [c_char; 264],
}

growing!(chiplog_log_info_t);

/// Called with each log; the state is valid only during the call. The callback must not throw.
pub type chiplog_log_info_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, info: *const chiplog_log_info_t)>;

pub(crate) fn shown(info: &LogInfo) -> chiplog_log_info_t {
    chiplog_log_info_t {
        number: info.number.get(),
        group: info.group,
        first_index: info.first_index.get(),
        last_index: info.last_index.get(),
        bytes_appended: info.bytes_appended,
        last_timestamp_ms: info.last_timestamp.get(),
        sealed: info.sealed.into(),
        elsewhere: info.elsewhere.into(),
        log_id: fixed(&to_hex(info.log_id.get())),
        name: fixed(&info.name),
        ..Growing::zeros()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn the_longest_name_is_not_cut() {
        let mut info = LogInfo::default();
        info.name = format!("{}/{}", "x".repeat(249), u32::MAX);
        let shown = shown(&info);
        // SAFETY: `fixed` ends the text with a NUL.
        let name = unsafe { CStr::from_ptr(shown.name.as_ptr()) };
        assert_eq!(name.to_str().unwrap(), info.name);
    }
}
