//! Growing structs: those of the header that begin with `size`, and may be longer in a later version. The caller states the
//! length of its own struct, and chiplog reads or writes no more than that.

use crate::abi::error::invalid;
use chiplog::Result;
use std::mem::{MaybeUninit, size_of};
use std::ptr;
use std::slice;

/// A struct of the header that begins with `size`.
///
/// # Safety
/// It has no padding that matters, and is valid for any bytes. Function pointers are the exception: C sets them, and zero is
/// valid.
pub(crate) unsafe trait Growing: Copy {
    /// The length of the caller's struct.
    fn size(&mut self) -> &mut usize;

    /// Returns the struct with its size here, and else only zeros: no value, no text, no pointer.
    fn zeros() -> Self {
        // SAFETY: by the trait's condition zeros are valid.
        let mut zeros: Self = unsafe { MaybeUninit::zeroed().assume_init() };
        *zeros.size() = size_of::<Self>();
        zeros
    }
}

/// Declares structs that begin with `size`.
macro_rules! growing {
    ($($name:ident),*) => {
        $(
            // SAFETY: numbers, arrays of numbers, pointers and functions that may be NULL.
            unsafe impl $crate::abi::growing::Growing for $name {
                fn size(&mut self) -> &mut usize {
                    &mut self.size
                }
            }
        )*
    };
}
pub(crate) use growing;

/// Returns the caller's options on top of the defaults. NULL means the defaults.
///
/// # Safety
/// `given` is NULL, or begins with its size in bytes and is that long.
pub(crate) unsafe fn options<T: Growing>(given: *const T, defaults: T) -> Result<T> {
    if given.is_null() {
        return Ok(defaults);
    }
    // SAFETY: not NULL, so by this function's condition it begins with its size.
    let size = unsafe { given.cast::<usize>().read_unaligned() };
    if !(size_of::<usize>()..=1 << 16).contains(&size) {
        return Err(invalid(format!(
            "the options' size is {size}: fill the options with their init function first"
        )));
    }
    let known = size.min(size_of::<T>());
    let mut options = defaults;
    // SAFETY: `given` is `size` bytes long by this function's condition, `options` at least `known`.
    unsafe { ptr::copy_nonoverlapping(given.cast::<u8>(), (&raw mut options).cast(), known) };
    // SAFETY: as above: the bytes behind `known` are the caller's too.
    let more = unsafe { slice::from_raw_parts(given.cast::<u8>().add(known), size - known) };
    if more.iter().any(|byte| *byte != 0) {
        return Err(invalid(
            "the options set a field that this library does not know: it is older than the program's chiplog.h",
        ));
    }
    Ok(options)
}

/// Writes as much of a struct as fits into the caller's, and sets its size.
///
/// # Safety
/// `place` is NULL, or has `size` bytes.
pub(crate) unsafe fn init<T: Growing>(place: *mut T, size: usize, mut defaults: T) {
    if place.is_null() || size < size_of::<usize>() {
        return;
    }
    let known = size.min(size_of::<T>());
    *defaults.size() = size;
    // SAFETY: `place` is `size` bytes long by this function's condition.
    unsafe {
        ptr::write_bytes(place.cast::<u8>(), 0, size);
        ptr::copy_nonoverlapping((&raw const defaults).cast::<u8>(), place.cast::<u8>(), known);
    }
}

/// Fills a struct whose `size` the caller has set.
///
/// # Safety
/// `place` is NULL, or begins with its size in bytes and is that long.
pub(crate) unsafe fn fill<T: Growing>(place: *mut T, name: &str, mut value: T) -> Result<()> {
    if place.is_null() {
        return Err(invalid(format!("{name} is NULL")));
    }
    // SAFETY: not NULL, so by this function's condition it begins with its size.
    let size = unsafe { place.cast::<usize>().read_unaligned() };
    if !(size_of::<usize>()..=1 << 16).contains(&size) {
        return Err(invalid(format!("{name}->size is {size}: set it to the size of the struct first")));
    }
    *value.size() = size;
    let known = size.min(size_of::<T>());
    // SAFETY: `place` is `size` bytes long by this function's condition.
    unsafe { ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), place.cast::<u8>(), known) };
    // Fields of a later header that this library does not know become 0, as in options.
    // SAFETY: as above; `known` is at most `size`.
    unsafe { place.cast::<u8>().add(known).write_bytes(0, size - known) };
    Ok(())
}
