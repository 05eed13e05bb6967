//! chiplog for Python: the classes of package `chiplog`, on top of the crates `chiplog` and `chiplog-net`.
//!
//! ```text
//! lib/*.py          values, options, exceptions: plain Python          log, session, read-only log, client, producer, follower
//!      │  made and read by                                                │ each a handle and its calls
//!      └──────────── options, values, errors ─────────────────────────────┤
//!                                                                         │
//!      reader ── reader_lease     batch, record ── export (buffers), even, arrow   ticket ── callbacks
//!         └── wait   asyncio_bridge   threads   handle   close_flag   fork   tokio_runtime   unsent ┘
//! ```
//!
//! Invariants:
//! - No thread waits, or copies large data, with the interpreter held.
//! - A thread that waits checks for signals every `wait::SLICE`, so that Ctrl-C works.
//! - No thread of the log or of the network ever waits for the interpreter. It notifies an event loop through an
//!   eventfd, and a callback through the callbacks' thread.
//! - chiplog's notices go to `logging` through `notices`, in the same way.
//! - A forked child touches nothing of its parent's: its handles refuse calls, and are forgotten instead of
//!   dropped.
#![cfg(not(test))] // a test harness has no interpreter to link with, also where `cargo test --lib` makes one

mod convert;
mod handles;
mod runtime;
use pyo3::prelude::*;

/// The compiled part of package `chiplog`.
#[pymodule(gil_used = false)]
mod _chiplog {
    #[pymodule_export]
    use crate::convert::errors::error_kinds;
    #[pymodule_export]
    use crate::handles::batch::Batch;
    #[pymodule_export]
    use crate::handles::batch::record::Record;
    #[pymodule_export]
    use crate::handles::client::{Client, Watch};
    #[pymodule_export]
    use crate::handles::follower::Follower;
    #[pymodule_export]
    use crate::handles::log::Log;
    #[pymodule_export]
    use crate::handles::logs::Logs;
    #[pymodule_export]
    use crate::handles::producer::Producer;
    #[pymodule_export]
    use crate::handles::read_only::ReadOnlyLog;
    #[pymodule_export]
    use crate::handles::reader::{Reader, Stream};
    #[pymodule_export]
    use crate::handles::session::Session;
    #[pymodule_export]
    use crate::handles::ticket::Ticket;
    #[pymodule_export]
    use crate::handles::unsent::end;
    #[pymodule_export]
    use crate::runtime::asyncio_bridge::Completions;
    #[pymodule_export]
    use crate::runtime::notices::logging_changed;

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
