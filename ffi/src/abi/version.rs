//! Version: which one this library is.

/// The library's version, such as "0.1.0": to be held against CHIPLOG_VERSION, the header's.
/// Ownership: the text lives for ever. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_version() -> *const std::ffi::c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
