//! Closes: handles that `with` and `async with` close, and that are not pickled.

use crate::runtime::asyncio_bridge::ready;
use pyo3::prelude::*;

/// A handle that the end of a block closes.
pub(crate) trait Closes {
    /// Closes the handle, and blocks until that is done.
    fn close_now(&self, py: Python<'_>) -> PyResult<()>;

    /// Begins to close the handle. Returns an awaitable.
    fn close_async(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.close_now(py)?;
        ready(py, Ok(py.None()))
    }
}

/// Gives a class the methods of `with` and `async with`; and, with its name and with what to pickle instead of it, the refusal
/// to be pickled.
macro_rules! closes {
    ($class:ident $(, $what:literal, $instead:literal)?) => {
        #[pymethods]
        impl $class {
            fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
                slf
            }

            fn __exit__(
                &self,
                py: Python<'_>,
                _type: &Bound<'_, PyAny>,
                _value: &Bound<'_, PyAny>,
                _traceback: &Bound<'_, PyAny>,
            ) -> PyResult<()> {
                crate::handles::closes::Closes::close_now(self, py)
            }

            fn __aenter__(slf: Bound<'_, Self>) -> PyResult<Py<PyAny>> {
                let py = slf.py();
                crate::runtime::asyncio_bridge::ready(py, Ok(slf.into_any().unbind()))
            }

            fn __aexit__(
                &self,
                py: Python<'_>,
                _type: &Bound<'_, PyAny>,
                _value: &Bound<'_, PyAny>,
                _traceback: &Bound<'_, PyAny>,
            ) -> PyResult<Py<PyAny>> {
                crate::handles::closes::Closes::close_async(self, py)
            }

            $(
                fn __reduce__(&self) -> PyResult<()> {
                    Err(crate::convert::errors::not_pickled($what, $instead))
                }
            )?
        }
    };
}
pub(crate) use closes;
