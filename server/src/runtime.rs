//! The threads of servers, and of those who ask many of them at a time.

use crate::failure::{Failure, Result};
use chiplog::ErrorKind;

/// A runtime for servers and for those who ask them.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("chiplog-serve")
        .build()
        .map_err(|e| Failure::new(ErrorKind::Io, format!("cannot start threads: {e}")))
}
