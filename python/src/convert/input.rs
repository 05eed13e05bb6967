//! What Python gives. Records: `bytes` are borrowed, anything else that has a buffer is copied once, since others can change
//! it meanwhile. Numbers: those that no `u64` can be are refused by the name of their argument.
//!
//! Invariants:
//! - An iterable is read no further than what is made of it can hold, and nothing is copied that is too large.
//! - Signals are looked for while it is read: one written in C, as `itertools.repeat`, looks for none.

use crate::convert::errors::raise;
use chiplog::{BATCH_BYTES_MAX, BATCH_HEADER_BYTES, BATCH_RECORDS_MAX, Error, ErrorKind};
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};

/// A record to be appended.
pub(crate) struct Input<'py>(Bound<'py, PyBytes>);

impl Input<'_> {
    pub(crate) fn as_slice(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl<'py> FromPyObject<'_, 'py> for Input<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Self(bytes.to_owned()));
        }
        let py = object.py();
        let view = PyMemoryView::from(&object).map_err(|_| {
            let got = type_name(&object);
            PyTypeError::new_err(format!("a record is bytes, or anything with a buffer, not {got}"))
        })?;
        let length: usize = view.getattr(intern!(py, "nbytes"))?.extract()?;
        if length > BATCH_BYTES_MAX {
            let what = format!("a record of {length} bytes; no log takes more than {BATCH_BYTES_MAX}");
            return Err(raise(Error::new(ErrorKind::TooLarge, what)));
        }
        Ok(Self(view.call_method0(intern!(py, "tobytes"))?.cast_into()?))
    }
}

/// What type an object is of, for messages.
pub(crate) fn type_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string())
}

/// The number that was given as `name`, which has to be `what`: that says from which number on.
///
/// # Errors
/// `InvalidArgument`: it is below 0, or more than 64 bits hold. `TypeError`: it is no integer.
pub(crate) fn whole(given: &Bound<'_, PyAny>, name: &str, what: &str) -> PyResult<u64> {
    given.extract().map_err(|error: PyErr| {
        let wanted = format!("it has to be {what} to {}", u64::MAX);
        if error.is_instance_of::<PyOverflowError>(given.py()) {
            let what = format!("{name} is {given}; {wanted}");
            return raise(Error::new(ErrorKind::InvalidArgument, what));
        }
        if error.is_instance_of::<PyTypeError>(given.py()) {
            return PyTypeError::new_err(format!("{name} is of type {}; {wanted}", type_name(given)));
        }
        error // what its own __index__ raised
    })
}

pub(crate) const INDEX: &str = "an index, from 1";

/// The argument `index`.
pub(crate) fn index(given: &Bound<'_, PyAny>) -> PyResult<u64> {
    whole(given, "index", INDEX)
}

/// The argument `first`.
pub(crate) fn first(given: &Bound<'_, PyAny>) -> PyResult<u64> {
    whole(given, "first", INDEX)
}

/// The argument `bytes`.
pub(crate) fn bytes(given: &Bound<'_, PyAny>) -> PyResult<usize> {
    let bytes = whole(given, "bytes", "a number of bytes, from 0")?;
    Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// The argument `id` of a session.
pub(crate) fn session_id(given: &Bound<'_, PyAny>) -> PyResult<u64> {
    whole(given, "id", "a session's id, from 0")
}

/// The argument `next_sequence`.
pub(crate) fn next_sequence(given: &Bound<'_, PyAny>) -> PyResult<u64> {
    whole(given, "next_sequence", "an append's number in its session, from 1")
}

/// How often signals are looked for while an iterable is read.
const LOOK_EVERY: usize = 256;

/// How large a batch may be, and by which option, for messages.
#[derive(Clone, Copy)]
pub(crate) struct BatchLimit {
    pub(crate) bytes: usize,
    pub(crate) option: &'static str,
}

/// The records of an iterable, read no further than one batch holds.
///
/// # Errors
/// `TooLarge`: it has more. `TypeError`: it is none, or has something else than records. What it raises, and what a
/// signal's handler does.
pub(crate) fn records<'py>(iterable: &Bound<'py, PyAny>, limit: BatchLimit) -> PyResult<Vec<Input<'py>>> {
    /// Of a record's place in its batch.
    const PLACE_BYTES: usize = 4;
    if iterable.is_instance_of::<PyBytes>() {
        return Err(PyTypeError::new_err("a batch is an iterable of records, not one of them"));
    }
    let (mut records, mut bytes) = (Vec::new(), BATCH_HEADER_BYTES);
    for record in iterable.try_iter()? {
        let record: Input<'_> = record?.extract()?;
        bytes += record.as_slice().len() + PLACE_BYTES;
        records.push(record);
        let count = records.len();
        let allowed = match () {
            () if bytes > limit.bytes => format!("{} allows {} bytes", limit.option, limit.bytes),
            () if count > BATCH_RECORDS_MAX as usize => {
                format!("a batch has up to {BATCH_RECORDS_MAX} records")
            }
            () => {
                if count.is_multiple_of(LOOK_EVERY) {
                    iterable.py().check_signals()?;
                }
                continue;
            }
        };
        let what = format!(
            "the first {count} records of the iterable are a batch of {bytes} bytes; {allowed}: append them as several \
             batches (it was read no further)"
        );
        return Err(raise(Error::new(ErrorKind::TooLarge, what)));
    }
    Ok(records)
}

/// The texts of an iterable: addresses of servers.
///
/// # Errors
/// `InvalidArgument`: more than anybody has. `TypeError`: it is none, or has something else. What it raises, and what a
/// signal's handler does.
pub(crate) fn texts(iterable: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    const MOST: usize = 1024;
    let mut texts = Vec::new();
    for text in iterable.try_iter()? {
        if texts.len() == MOST {
            let what = format!(
                "the iterable has more than {MOST} servers; give some of them (it was read no further)"
            );
            return Err(raise(Error::new(ErrorKind::InvalidArgument, what)));
        }
        texts.push(text?.extract()?);
        iterable.py().check_signals()?;
    }
    Ok(texts)
}

/// Their bytes, for calls that release the interpreter.
pub(crate) fn slices<'a>(records: &'a [Input<'_>]) -> Vec<&'a [u8]> {
    records.iter().map(Input::as_slice).collect()
}
