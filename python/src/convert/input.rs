//! Arguments from Python. Records: `bytes` are borrowed; any other buffer is copied once, because other threads can
//! change it. Numbers: an error about a number that does not fit in a `u64` names its argument.
//!
//! Invariants:
//! - An iterable is read only as far as the result can hold it, and nothing that is too large is copied.
//! - Signals are checked while it is read, because an iterable in C such as `itertools.repeat` checks none.

use crate::convert::errors::raise;
use chiplog::limits::{BATCH_BYTES_MAX, BATCH_HEADER_BYTES, BATCH_RECORDS_MAX};
use chiplog::{Error, ErrorKind};
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};

/// A record to append.
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
            PyTypeError::new_err(format!("a record must be bytes or an object with a buffer, not {got}"))
        })?;
        let length: usize = view.getattr(intern!(py, "nbytes"))?.extract()?;
        if length > BATCH_BYTES_MAX {
            let what = format!("a record of {length} bytes; no log takes more than {BATCH_BYTES_MAX}");
            return Err(raise(Error::new(ErrorKind::TooLarge, what)));
        }
        Ok(Self(view.call_method0(intern!(py, "tobytes"))?.cast_into()?))
    }
}

/// The type of an object, for messages.
pub(crate) fn type_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string())
}

/// Returns the number passed as `name`. `what` describes it, with its lower bound.
///
/// # Errors
/// `InvalidArgument`: it is below 0, or more than 64 bits hold. `TypeError`: it is not an integer.
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
        error // raised by its own __index__
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

/// The argument `groups`.
pub(crate) fn groups(given: &Bound<'_, PyAny>) -> PyResult<u32> {
    let groups = whole(given, "groups", "a number of groups, from 1")?;
    u32::try_from(groups).map_err(|_| {
        let what = format!("groups is {groups}; it has to be from 1 to 1024");
        raise(Error::new(ErrorKind::InvalidArgument, what))
    })
}

/// The argument `limit`.
pub(crate) fn limit(given: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
    if given.is_none() {
        return Ok(None);
    }
    let limit = whole(given, "limit", "None, or a number from 0")?;
    Ok(usize::try_from(limit).ok())
}

/// The argument `id` of a session.
pub(crate) fn session_id(given: &Bound<'_, PyAny>) -> PyResult<u64> {
    whole(given, "id", "a session's id, from 0")
}

/// The argument `next_sequence`.
pub(crate) fn next_sequence(given: &Bound<'_, PyAny>) -> PyResult<u64> {
    whole(given, "next_sequence", "an append's number in its session, from 1")
}

/// How often signals are checked while an iterable is read.
const LOOK_EVERY: usize = 256;

/// The limit of a batch, and the option that sets it, for messages.
#[derive(Clone, Copy)]
pub(crate) struct BatchLimit {
    pub(crate) bytes: usize,
    pub(crate) option: &'static str,
}

/// Reads the records of an iterable, up to the limit of a batch.
///
/// # Errors
/// `TooLarge`: it has more. `TypeError`: it is not an iterable, or an item is not a record. Exceptions of the
/// iterable and of signal handlers.
pub(crate) fn records<'py>(iterable: &Bound<'py, PyAny>, limit: BatchLimit) -> PyResult<Vec<Input<'py>>> {
    /// The size of a record's entry in its batch.
    const PLACE_BYTES: usize = 4;
    if iterable.is_instance_of::<PyBytes>() {
        return Err(PyTypeError::new_err("a batch must be an iterable of records, not one of them"));
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
            "the first {count} records of the iterable make a batch of {bytes} bytes; {allowed}: append them as several \
             batches (the rest of the iterable was not read)"
        );
        return Err(raise(Error::new(ErrorKind::TooLarge, what)));
    }
    Ok(records)
}

/// Reads the texts of an iterable: addresses of servers.
///
/// # Errors
/// `InvalidArgument`: more than any cluster has. `TypeError`: it is not an iterable, or an item is not a text.
/// Exceptions of the iterable and of signal handlers.
pub(crate) fn texts(iterable: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    const MOST: usize = 1024;
    let mut texts = Vec::new();
    for text in iterable.try_iter()? {
        if texts.len() == MOST {
            let what =
                format!("the iterable has more than {MOST} servers: pass fewer (the rest was not read)");
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
