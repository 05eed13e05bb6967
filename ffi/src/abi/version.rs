//! Version: the version of this library.

/// Returns the library's version, such as "0.1.0". Compare it with CHIPLOG_VERSION, the version of the header.
/// Ownership: the text is valid for ever. Any thread. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn chiplog_version() -> *const std::ffi::c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
