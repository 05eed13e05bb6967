//! The log's errors as Python exceptions: one class per kind, in `lib/chiplog/_errors.py`.

use chiplog::{Error, ErrorKind};
use pyo3::exceptions::PyOSError;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};

/// Returns the exception of an error: of its kind's class, with its other details as attributes.
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
    if let Some(time) = error.retry_after() {
        value.setattr("retry_after", time.as_secs_f64())?;
    }
    Ok(PyErr::from_value(value))
}

/// Returns an error as a value, for code that reports errors without raising them.
pub(crate) fn value<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    Ok(exception(py, error)?.into_value(py).into_bound(py).into_any())
}

/// Each kind of error: name, number, whether a retry can help, whether the handle can no longer append.
#[pyfunction]
#[pyo3(name = "_error_kinds")]
pub(crate) fn error_kinds() -> Vec<(&'static str, u32, bool, bool)> {
    let row = |kind: ErrorKind| (kind.name(), kind.code(), kind.is_retryable(), kind.is_fatal());
    (1..).map_while(ErrorKind::from_code).map(row).collect()
}

/// The error of pickling a handle.
pub(crate) fn not_pickled(what: &str, instead: &str) -> PyErr {
    PyTypeError::new_err(format!("a {what} is a handle and is not pickled; pickle its {instead}"))
}
