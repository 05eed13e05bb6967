//! Unraised: reports to the program when an exception cannot be raised: another one is being raised, or the program
//! ends.

use crate::runtime::wait;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;

/// The way of a report.
#[derive(Clone, Copy)]
pub(crate) enum ReportBy {
    /// By a `ResourceWarning`.
    Warn,
    /// On stderr, and by a `ResourceWarning`.
    Print,
    /// For a handler of `logging` that hangs: on stderr.
    Hung,
}

/// Calls `chiplog._close_flag`, which writes the report.
pub(crate) fn report_unraised(py: Python<'_>, how: ReportBy, what: &str) {
    let how = match how {
        ReportBy::Warn => "warn",
        ReportBy::Print => "print_and_warn",
        ReportBy::Hung => "hung",
    };
    let said = py.import("chiplog._close_flag").and_then(|ending| ending.call_method1(how, (what,)));
    if let Err(error) = said {
        swallow(py, error); // a warning can be an error
    }
}

/// Reports an exception that cannot be raised here: another one is being raised, or the program ends.
pub(crate) fn swallow(py: Python<'_>, error: PyErr) {
    if error.is_instance_of::<PyKeyboardInterrupt>(py) {
        wait::interrupt_later(py);
    } else {
        error.write_unraisable(py, None);
    }
}
