//! The tokio runtime of servers and of commands that query many of them at a time.

use crate::common::failure::{Failure, Result};
use chiplog::ErrorKind;
use std::num::NonZero;

/// A runtime with `of` threads, or with [`threads`] of them.
pub(crate) fn runtime(of: Option<u64>) -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .worker_threads(of.map_or_else(threads, |n| usize::try_from(n).unwrap_or(usize::MAX)))
        .thread_name("chiplog-serve")
        .build()
        .map_err(|e| Failure::new(ErrorKind::Io, format!("cannot start threads: {e}")))
}

/// Half of the processors, at least one. The other half is for the log's own threads and those between
/// replicas. On a small machine, more threads wake each other without need, which slows a single append.
pub(crate) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get).div_ceil(2)
}
