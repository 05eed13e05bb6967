//! What Python gives. Records: `bytes` are borrowed, anything else that has a buffer is copied once, since others can change
//! it meanwhile. Numbers: those that no `u64` can be are refused by the name of their argument.

use crate::errors::raise;
use chiplog::{Error, ErrorKind};
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
        let view = PyMemoryView::from(&object).map_err(|_| {
            let got = type_name(&object);
            PyTypeError::new_err(format!("a record is bytes, or anything with a buffer, not {got}"))
        })?;
        let bytes = view.call_method0(intern!(object.py(), "tobytes"))?;
        Ok(Self(bytes.cast_into()?))
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

/// The records of an iterable.
pub(crate) fn records<'py>(iterable: &Bound<'py, PyAny>) -> PyResult<Vec<Input<'py>>> {
    if iterable.is_instance_of::<PyBytes>() {
        return Err(PyTypeError::new_err("a batch is an iterable of records, not one of them"));
    }
    iterable.try_iter()?.map(|record| record?.extract()).collect()
}

/// Their bytes, for calls that release the interpreter.
pub(crate) fn slices<'a>(records: &'a [Input<'_>]) -> Vec<&'a [u8]> {
    records.iter().map(Input::as_slice).collect()
}
