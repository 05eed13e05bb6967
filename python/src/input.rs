//! Records as Python gives them: `bytes` are borrowed, anything else that has a buffer is copied once, since others can
//! change it meanwhile.

use pyo3::exceptions::PyTypeError;
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
            let what = object.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string());
            PyTypeError::new_err(format!("a record is bytes, or anything with a buffer, not {what}"))
        })?;
        let bytes = view.call_method0(intern!(object.py(), "tobytes"))?;
        Ok(Self(bytes.cast_into()?))
    }
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
