//! Support for the entries: the table of handles, the guard against panics, threads, forks.

pub(crate) mod fork;
pub(crate) mod handle_table;
pub(crate) mod panic_guard;
pub(crate) mod threads;
