//! Pointers: texts, bytes and slices that the caller lends, and the places for results.

use crate::abi::error::invalid;
use crate::abi::values::chiplog_slice_t;
use chiplog::Result;
use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::slice;

/// # Safety
/// `text` is NULL or a C string.
pub(crate) unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<&'a str> {
    if text.is_null() {
        return Err(invalid(format!("{name} is NULL")));
    }
    // SAFETY: not NULL, so by this function's condition a C string.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| invalid(format!("{name} is not UTF-8")))
}

/// Reads a text that may be NULL, which means empty.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn text_or_none(pointer: *const c_char, name: &str) -> Result<String> {
    if pointer.is_null() {
        return Ok(String::new());
    }
    // SAFETY: this function's condition.
    unsafe { text(pointer, name) }.map(str::to_owned)
}

/// Reads a path: any bytes except NUL.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn path<'a>(pointer: *const c_char, name: &str) -> Result<&'a Path> {
    if pointer.is_null() {
        return Err(invalid(format!("{name} is NULL")));
    }
    // SAFETY: not NULL, so by this function's condition a C string.
    let bytes = unsafe { CStr::from_ptr(pointer) }.to_bytes();
    Ok(Path::new(OsStr::from_bytes(bytes)))
}

/// Reads the bytes of a pair of arguments named `data` and `length`.
///
/// # Safety
/// `data` is NULL, or points to `length` bytes that do not change during the call.
pub(crate) unsafe fn bytes<'a>(data: *const c_void, length: usize) -> Result<&'a [u8]> {
    // SAFETY: this function's condition.
    unsafe { bytes_of(data, length, || ("data".to_owned(), "length".to_owned())) }
}

/// Reads the bytes of a pair with other names. `names` is called only if there is an error.
///
/// # Safety
/// As [`bytes`].
pub(crate) unsafe fn bytes_of<'a>(
    data: *const c_void,
    length: usize,
    names: impl Fn() -> (String, String),
) -> Result<&'a [u8]> {
    if length == 0 {
        return Ok(&[]);
    }
    if data.is_null() {
        let (data, its_length) = names();
        return Err(invalid(format!("{data} is NULL, and {its_length} is {length}, not 0")));
    }
    if length > isize::MAX as usize {
        return Err(invalid(format!("{} is {length}: more bytes than memory can hold", names().1)));
    }
    // SAFETY: not NULL and not too long, so by this function's condition that many bytes.
    Ok(unsafe { slice::from_raw_parts(data.cast(), length) })
}

/// Reads an array. `name` is the argument that holds it; the argument with the number of its elements is `count`. `what` is
/// the elements' name in messages.
///
/// # Safety
/// `array` is NULL, or points to `count` elements that do not change during the call.
pub(crate) unsafe fn array<'a, T>(array: *const T, count: usize, name: &str, what: &str) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    if array.is_null() {
        return Err(invalid(format!("{name} is NULL, and count is {count}, not 0")));
    }
    if !array.is_aligned() {
        return Err(invalid(format!("{name} is {array:?}, which is not aligned for {what}")));
    }
    if count > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(invalid(format!("count is {count}: more {what} than memory can hold")));
    }
    // SAFETY: not NULL and aligned, so by this function's condition that many elements.
    Ok(unsafe { slice::from_raw_parts(array, count) })
}

/// `name` is the name of the argument that holds the slices; the argument with their number is `count`.
///
/// # Safety
/// `slices` is NULL, or points to `count` slices, each as [`bytes`] requires.
pub(crate) unsafe fn slices<'a>(
    slices: *const chiplog_slice_t,
    count: usize,
    name: &str,
) -> Result<Vec<&'a [u8]>> {
    // SAFETY: this function's condition.
    let slices = unsafe { array(slices, count, name, "slices") }?;
    let each = slices.iter().enumerate().map(|(n, one)| {
        let names = || (format!("{name}[{n}].data"), format!("{name}[{n}].length"));
        // SAFETY: this function's condition.
        unsafe { bytes_of(one.data, one.length, names) }
    });
    each.collect()
}

/// Writes a result, unless `place` is NULL.
///
/// # Safety
/// `place` is NULL or memory for a `T`.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: not NULL, so by this function's condition memory for a `T`.
        unsafe { place.write(value) };
    }
}

/// Checks the memory for a handle and writes NULL to it first, so that no caller mistakes an old handle for a new
/// one.
///
/// # Safety
/// `place` is NULL or memory for a pointer.
pub(crate) unsafe fn out<T>(place: *mut *mut T, name: &str) -> Result<()> {
    if place.is_null() {
        return Err(invalid(format!("{name} is NULL")));
    }
    // SAFETY: not NULL, so by this function's condition memory for a pointer.
    unsafe { place.write(ptr::null_mut()) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::error::said;

    /// "5 bytes at 0x0" and "3 slices at 0x0" did not name the argument or what is wrong with it.
    #[test]
    fn errors_of_bytes_and_slices_name_the_argument() {
        let nothing: *const c_void = ptr::null();
        let text = c"text".as_ptr().cast();
        let slice = |data, length| chiplog_slice_t { data, length };
        let given = [slice(text, 4), slice(nothing, 0), slice(nothing, 5)];
        // SAFETY: each pointer that is not NULL is as long as stated, or only checked.
        unsafe {
            assert_eq!(bytes(nothing, 0).unwrap(), b"");
            assert_eq!(bytes(text, 4).unwrap(), b"text");
            assert_eq!(slices(given.as_ptr(), 2, "records").unwrap(), [&b"text"[..], b""]);
            assert_eq!(said(bytes(nothing, 5)), "data is NULL, and length is 5, not 0");
            assert!(said(bytes(text, usize::MAX)).starts_with("length is 18446744073709551615:"));
            assert_eq!(said(slices(ptr::null(), 3, "pieces")), "pieces is NULL, and count is 3, not 0");
            let last = said(slices(given.as_ptr(), 3, "records"));
            assert_eq!(last, "records[2].data is NULL, and records[2].length is 5, not 0");
            assert!(said(slices(given.as_ptr(), usize::MAX, "records")).starts_with("count is "));
            let odd = given.as_ptr().cast::<u8>().add(1).cast();
            assert!(said(slices(odd, 1, "records")).contains("aligned"));
        }
    }
}
