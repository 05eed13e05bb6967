//! Say: tells the program of what it cannot be told by an exception: another one is on its way, or the program ends.

use crate::runtime::wait;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;

/// How the program is told.
#[derive(Clone, Copy)]
pub(crate) enum Say {
    /// By a `ResourceWarning`.
    Warn,
    /// On stderr, and by a `ResourceWarning`.
    Tell,
    /// Of a handler of `logging` that hangs, on stderr.
    Hung,
}

/// Calls `chiplog._ending`, which does that.
pub(crate) fn say(py: Python<'_>, how: Say, what: &str) {
    let how = match how {
        Say::Warn => "warn",
        Say::Tell => "tell",
        Say::Hung => "hung",
    };
    let said = py.import("chiplog._ending").and_then(|ending| ending.call_method1(how, (what,)));
    if let Err(error) = said {
        swallow(py, error); // warnings can be errors
    }
}

/// Tells of an exception that cannot be raised here: another one is on its way, or the program ends.
pub(crate) fn swallow(py: Python<'_>, error: PyErr) {
    if error.is_instance_of::<PyKeyboardInterrupt>(py) {
        wait::interrupt_later(py);
    } else {
        error.write_unraisable(py, None);
    }
}
