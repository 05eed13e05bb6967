//! The log's errors as Python's exceptions: one class a kind, in `lib/chiplog/_errors.py`.

use chiplog::{Error, ErrorKind};
use pyo3::exceptions::PyOSError;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};

/// The exception of an error: of the class of its kind, with what else it tells as attributes.
pub(crate) fn raise(error: Error) -> PyErr {
    Python::attach(|py| exception(py, &error).unwrap_or_else(|failed| failed))
}

fn exception(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    static CLASSES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    static BASE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let classes = CLASSES.import(py, "chiplog._errors", "BY_CODE")?;
    let class = match classes.get_item(error.kind().code())? {
        Some(class) => class,
        None => BASE.import(py, "chiplog._errors", "Error")?.clone().into_any(),
    };
    let value = class.call1((error.to_string(),))?;
    if let Some(number) = error.os_error() {
        value.setattr("os_error", number)?;
        if value.is_instance_of::<PyOSError>() {
            value.setattr("errno", number)?;
        }
    }
    if let Some((path, offset)) = error.location() {
        value.setattr("path", path.as_os_str())?;
        value.setattr("offset", offset)?;
    }
    if error.is_lasting() {
        value.setattr("lasting", true)?;
    }
    Ok(PyErr::from_value(value))
}

/// An error as a value: for what tells of errors without raising them.
pub(crate) fn value<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    Ok(exception(py, error)?.into_value(py).into_bound(py).into_any())
}

/// Every kind of error: name, number, whether trying again helps, whether the handle is of no more use.
#[pyfunction]
#[pyo3(name = "_error_kinds")]
pub(crate) fn error_kinds() -> Vec<(&'static str, u32, bool, bool)> {
    let row = |kind: ErrorKind| (kind.name(), kind.code(), kind.is_retryable(), kind.is_fatal());
    (1..).map_while(ErrorKind::from_code).map(row).collect()
}

/// Why a handle is not pickled.
pub(crate) fn not_pickled(what: &str, instead: &str) -> PyErr {
    PyTypeError::new_err(format!("a {what} is a handle and is not pickled; pickle its {instead}"))
}
